"""The settings of the loader of a recorded run, as they were and with changes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.config import RECORDED_AS, LoaderSettings, loader_defaults
from gloader.errors import ConfigError, ReplayError
from gloader.replay.changes import Ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.replay.changes import Changes, Value
    from gloader.replay.recording import RunHeader

_NAMES: Final = {recorded: name for name, recorded in RECORDED_AS.items()}
# Those that a state names, as no flag has them.
_OF_STATE: Final = ("shuffle", "drop_last")
# Keywords of `gloader.Loader` that are a change as it was asked for.
_AS_ASKED: Final[Mapping[str, str]] = {
    "policy": "policy",
    "strategy": "io_strategy",
    "fanout": "fanouts",
    "batch-size": "batch_size",
    "threads": "threads",
    "buffers": "buffers",
}


def recorded_settings(header: RunHeader) -> LoaderSettings:
    """Return the settings of a run, within the budget that its loader had.

    Raises
    ------
    ReplayError
        They are not those of a loader of this version.
    """
    values: dict[str, Any] = {_NAMES.get(name, name): value for name, value in header.settings.items()}
    stream = header.state["stream"]
    values |= {name: stream[name] for name in _OF_STATE if name in stream}
    values.setdefault("rank", 0)  # the first one writes the recording of several
    values |= {
        "memory_budget": header.budget_bytes,
        "device": header.device,
        "threads": header.shape.sampler_threads,
        "world_size": header.state["global_batch_size"] // max(int(values.get("batch_size", 1)), 1),
    }
    if strange := sorted(set(values) - set(loader_defaults())):
        raise ReplayError(
            f"the run was recorded with the settings {', '.join(strange)}, which this version does not know"
        )
    try:
        settings = LoaderSettings.of(**values)
        settings.check()
    except (ConfigError, TypeError, ValueError) as error:
        raise ReplayError(f"the settings of the recording cannot be read: {error}") from error
    return settings


def changed_keywords(settings: LoaderSettings, header: RunHeader, changes: Changes) -> dict[str, Any]:
    """Return the keywords of `gloader.Loader` that make ``changes``; those of rates and threads alone make none.

    Parameters
    ----------
    settings : of the run as it was
    header : what it had
    changes : what is asked

    Raises
    ------
    ConfigError
        A change is relative to what the run had not.
    """
    values = changes.values
    found: dict[str, Any] = {keyword: values[name] for name, keyword in _AS_ASKED.items() if name in values}
    if "memory" in values:
        found["memory_budget"] = _scaled(values["memory"], header.budget_bytes)
    if "superbatch" in values:
        if isinstance(values["superbatch"], Ratio) and header.shape.features != "ssd":
            raise ConfigError(
                "the run had its features in memory and no superbatches: give a number, such as superbatch=64"
            )
        size = values["superbatch"]
        found["superbatch"] = None if size is None else max(_scaled(size, header.superbatch), 1)
    if "cache" in values:
        found["cache"] = _cache(values["cache"], settings, header, changes)
    return found


def _cache(value: Value, settings: LoaderSettings, header: RunHeader, changes: Changes) -> int | float | None:
    """Return a host cache in bytes, or as a share of the features; None: as the memory plan chooses."""
    if changes.values.get("policy", settings.memory.policy) == "none":
        raise ConfigError(
            "with policy=none nothing is cached: name another one beside cache=, such as policy=belady"
        )
    if value is None:
        return None
    if not isinstance(value, Ratio):
        assert isinstance(value, int | float)  # noqa: S101 - a size or a share
        return value
    cached = sum(table.cache_rows * table.row_bytes for table in header.tables)
    if not cached:
        raise ConfigError("the run had no host cache to be compared with: give a size, such as cache=2GB")
    return round(value.factor * cached)


def _scaled(value: Value, before: int) -> int:
    if isinstance(value, Ratio):
        return round(value.factor * before)
    assert isinstance(value, int)  # noqa: S101 - what is no factor is a number
    return value
