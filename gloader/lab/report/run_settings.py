"""The settings of a run, by the names that people use, from its ``config.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED, shown
from gloader.core.units import format_bytes
from gloader.core.yaml_file import read_yaml_mapping
from gloader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SEED: Final = "loader seed"
_BUDGET: Final = "loader memory_budget_bytes"
# Which run it was, how many there were, and where the dataset was: no settings.
_NO_SETTINGS: Final = ("run id", "runs", "dataset path", _SEED)
_FINGERPRINT: Final = "dataset fingerprint"
_FINGERPRINT_SHOWN: Final = 12  # characters that tell datasets of one name apart


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a run was told."""

    named: Mapping[str, str]  # without the seed
    seed: str  # empty: not known
    budget_bytes: int | None


def read_settings(path: Path) -> RunSettings:
    """Read the settings of a run; nothing is known where there is no file.

    Raises
    ------
    FormatError
        It is no YAML, or a value is none that a run has.
    """
    content = (
        read_yaml_mapping(
            path, what="the settings of a run", holds="what gloader train wrote", error=FormatError
        )
        if path.is_file()
        else {}
    )
    try:
        return _settings_of(dict(_flat("", content)))
    except MALFORMED as error:
        raise FormatError(f"{path} is not what `gloader train` writes: {shown(error)}") from error


def _settings_of(config: Mapping[str, Any]) -> RunSettings:
    """Return the settings of a run; one of `MALFORMED` where a value is none that a run has."""
    named: dict[str, str] = {}
    for name, value in config.items():
        short = _short_name(name)
        if name not in _NO_SETTINGS:
            named[name if short in named else short] = _text(name, value)
    budget = config.get(_BUDGET)
    return RunSettings(
        named=named,
        seed=str(config.get(_SEED, "")),
        budget_bytes=None if budget is None else int(budget),
    )


def _flat(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings, "loader fanouts" for those within those."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name} ", value)
        else:
            yield f"{prefix}{name}", value


def _short_name(name: str) -> str:
    """Return "memory budget" of "loader memory_budget_bytes", and "model" of "model name"."""
    part, _, rest = name.partition(" ")
    short = part if rest == "name" else rest or part
    return short.removesuffix("_bytes").replace("_", " ")


def _text(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, list):
        return ",".join(map(str, value))
    if name == _FINGERPRINT:
        return str(value)[:_FINGERPRINT_SHOWN]
    return "not set" if value is None else str(value)
