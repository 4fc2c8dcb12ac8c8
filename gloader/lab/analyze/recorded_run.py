"""A recorded run's dataset, batch stream and loader settings.

`gloader.lab.analyze.recorded_load` opens a recorded run by these functions. The recording's header has the run's
settings and its loader state. The stream is the sequence of batches that the random seed, the order of the training
nodes, the sampling and the links (edges to predict) determine. Dataset and stream are opened again and checked against
the recording, so that a new sampling gives the recorded batches. `recorded_settings` returns the settings as recorded,
and `changed_keywords` those of a what-if.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.cache.static import cache_bytes
from gloader.config import RECORDED_AS, LoaderSettings, loader_defaults
from gloader.core.dtypes import STORED_DTYPES
from gloader.core.loader_state import LoaderState
from gloader.core.malformed import read_yaml_mapping
from gloader.dataset import Dataset
from gloader.errors import ConfigError, ReplayError, SeedError, StateError, StoreError
from gloader.pipeline.link_task import LinkTask
from gloader.pipeline.open.disk import feature_rows
from gloader.pipeline.seeds import named_facts, plan_training_seeds, stream_fingerprint
from gloader.replay.changes import KEYWORDS, Ratio
from gloader.training.class_weights import balanced_seeds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.pipeline.seeds import SeedPlan
    from gloader.replay.changes import Changes, Value
    from gloader.replay.recording import RunHeader


_CONFIG: Final = "config.yaml"  # the run folder's file with all settings


def read_config(run: Path | None) -> Mapping[str, Any]:
    """Return a run folder's config.yaml. The result is empty without a folder or a file.

    Raises
    ------
    ReplayError
        The file cannot be read.
    """
    if run is None or not (run / _CONFIG).exists():
        return {}
    return read_yaml_mapping(
        run / _CONFIG, what="the settings of a run", holds="what gloader train wrote", error=ReplayError
    )


def open_recorded_dataset(header: RunHeader, config: Mapping[str, Any]) -> Dataset:
    """Open a recorded run's dataset.

    Parameters
    ----------
    header : the recording's header
    config : the run's config.yaml; it has the mirror settings for a dataset at a URL

    Raises
    ------
    ReplayError
        The dataset is missing, or has changed.
    """
    try:
        dataset = Dataset.open(header.dataset, **config.get("objects", {}))
    except (StoreError, ConfigError) as error:
        raise ReplayError(f"the dataset of the run cannot be opened: {error}") from error
    if dataset.fingerprint != header.fingerprint:
        dataset.close()
        raise ReplayError(
            f"{header.dataset} is not the dataset that the run was recorded on: it has the fingerprint "
            f"{dataset.fingerprint}, the recording has {header.fingerprint}; record the run again"
        )
    return dataset


def plan_recorded_seeds(dataset: Dataset, settings: LoaderSettings, header: RunHeader) -> SeedPlan:
    """Return a loader's seeds with ``settings``, for the recorded run's task.

    Parameters
    ----------
    dataset : the dataset with the nodes or links
    settings : the run's settings, possibly with changes
    header : the recording's header, whose state names the task

    Raises
    ------
    ReplayError
        The dataset has no such seeds.
    """
    stream, ranks = header.state["stream"], settings.ranks
    try:
        return plan_training_seeds(
            dataset,
            settings.sampling,
            # True for batches of a `HeteroLoader`, which name their types. With one relation, they are the same as a
            # `Loader`'s batches.
            are_named=dataset.kind == "hetero" or not isinstance(settings.sampling.fanouts, tuple),
            links=_links_of(dataset, stream) if "links" in stream else None,
            table=stream.get("table"),
            # The draws of --balance classes. `require_same_stream` refuses a run whose program drew from other groups.
            drawn=balanced_seeds(dataset) if stream.get("is_grouped") else None,
            rank=ranks.rank or 0,
            world_size=ranks.world_size or 1,
        )
    except (ConfigError, SeedError) as error:
        raise ReplayError(f"the batches of the run cannot be sampled again: {error}") from error


def require_same_stream(
    dataset: Dataset, seeds: SeedPlan, settings: LoaderSettings, header: RunHeader
) -> None:
    """Raise ReplayError if ``seeds`` and ``settings`` do not reproduce the recorded batches."""
    facts = None if seeds.task is None else seeds.task.facts()
    recorded = LoaderState.from_json(header.state)
    present = LoaderState(
        next=recorded.next,
        seed=settings.sampling.seed,
        global_batch_size=seeds.order.global_batch_size,
        fingerprint=stream_fingerprint(dataset, seeds.order, settings.sampling, facts),
        stream=named_facts(dataset, seeds.order, settings.sampling, facts),
    )
    try:
        present.require_same_stream(recorded)
    except StateError as error:
        raise ReplayError(
            f"the batches of the run cannot be sampled again: {error}. Seeds, or times, that a program gave its loader "
            "are not in a recording"
        ) from error


def with_recorded_device(settings: LoaderSettings, header: RunHeader, dataset: Dataset) -> LoaderSettings:
    """Return ``settings`` with the recorded number of device rows. The device's free memory may differ now."""
    if settings.device.device_cache != "auto":
        return settings
    num_bytes = 0
    for rows, table in zip(feature_rows(dataset, settings), header.tables, strict=False):
        has_scale = STORED_DTYPES[rows.feature_dtype].has_scale
        num_bytes += cache_bytes(
            table.device_rows,
            num_nodes=table.num_rows,
            row_bytes=table.row_bytes,
            has_scale=has_scale,
            has_all_scales=has_scale and header.shape.is_sending,
        )
    return settings.changed(device_cache=num_bytes)


def require_all_rows(dataset: Dataset) -> None:
    """Raise ReplayError if ``dataset`` has only a range of the rows on this machine."""
    if dataset.ranges is not None:
        raise ReplayError(
            f"{dataset.location} has a range of the rows, and the others come from other machines: what they exchange "
            "cannot be planned here"
        )


def require_own_rows(header: RunHeader, settings: LoaderSettings) -> None:
    """Raise ReplayError if, in the recorded run, rows may have come from other machines."""
    ranks = settings.ranks
    others = (ranks.world_size or 1) > header.shape.num_ranks
    if others and ranks.sharing != "private" and ranks.exchange != "never":
        raise ReplayError(
            "the run was one of several machines, which may have exchanged rows: what they would exchange cannot be "
            "planned here"
        )


def _links_of(dataset: Dataset, stream: Mapping[str, Any]) -> LinkTask:
    """Return the link prediction task that a recorded ``stream`` describes."""
    negatives = stream["negatives"]
    return LinkTask.of(
        dataset,
        stream["links"],
        negatives=None if negatives == str(None) else negatives,
        exclude=stream["exclude"],
        duplicates=stream["exclude_duplicates"],
    )


# Loader keywords by their names in recordings, for the keywords that have another name there.
_NAMES: Final = {recorded: name for name, recorded in RECORDED_AS.items()}
# Settings without a flag. They are not in the recorded settings, but in the recorded loader state.
_STATE_SETTINGS: Final = ("shuffle", "drop_last")


def recorded_settings(header: RunHeader) -> LoaderSettings:
    """Return a run's settings, within its loader's budget.

    Raises
    ------
    ReplayError
        A loader in this version cannot have these settings.
    """
    values: dict[str, Any] = {_NAMES.get(name, name): value for name, value in header.settings.items()}
    stream = header.state["stream"]
    values |= {name: stream[name] for name in _STATE_SETTINGS if name in stream}
    values.setdefault("rank", 0)  # with several ranks, the first one writes the recording
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
    """Return the keywords of `gloader.Loader` for ``changes``. Changes to the machine and the stored rows have none.

    Parameters
    ----------
    settings : the unchanged run's settings
    header : the recording's header
    changes : the requested changes

    Raises
    ------
    ConfigError
        A change is relative to a setting that the run did not have.
    """
    values = changes.values
    found: dict[str, Any] = {keyword: values[name] for name, keyword in KEYWORDS.items() if name in values}
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
    """Return a host cache in bytes, or as a share of the features. None means the memory plan's choice."""
    if changes.values.get("policy", settings.memory.policy) == "none":
        raise ConfigError(
            "with policy=none nothing is cached: add another policy to cache=, such as policy=belady"
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
    """Return a what-if's value: a factor is applied to the recorded value ``before``, a number stands alone."""
    if isinstance(value, Ratio):
        return round(value.factor * before)
    assert isinstance(value, int)  # noqa: S101 - a value that is no factor is a number
    return value
