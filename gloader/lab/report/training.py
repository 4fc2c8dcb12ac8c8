"""A `gloader train` run as report values: settings, epochs, and each epoch's seconds by cause.

`gloader.lab.report.build_page` reads the run's folder into a `Training`. The settings come from config.yaml, the epochs
from metrics.jsonl, the result from result.json, and its scores from scores.json. Here are `read_settings` for the first
file, `split_seconds` for the parts of an epoch's time, and the dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from gloader.core.malformed import MALFORMED, read_yaml_mapping, shown
from gloader.core.units import format_bytes
from gloader.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


# Names of settings, as `_flat` writes them: the keys in config.yaml from the outer to the inner one.
_SEED: Final = "loader seed"
_BUDGET: Final = "loader memory_budget_bytes"
# Keys of config.yaml that describe the run itself. They do not appear among its settings.
# The run's number, the number of runs, and the dataset's path are no settings. The seed has a field of its own.
_NO_SETTINGS: Final = ("run id", "runs", "dataset path", _SEED)
_FINGERPRINT: Final = "dataset fingerprint"  # hexadecimal digits that identify the dataset
_FINGERPRINT_SHOWN: Final = 12  # characters that distinguish datasets with the same name


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A run's settings."""

    named: Mapping[str, str]  # settings by name, without the seed
    seed: str  # empty if unknown
    budget_bytes: int | None  # memory budget; None if it is not set


def read_settings(path: Path) -> RunSettings:
    """Read a run's settings. The result is empty without a file.

    Raises
    ------
    FormatError
        The file is not YAML, or a value does not occur in a run.
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
    """Return a run's settings. Raises an error in `MALFORMED` for a value that does not occur in a run."""
    named: dict[str, str] = {}
    for name, value in config.items():
        short = _short_name(name)
        if name not in _NO_SETTINGS:
            # Two settings may have the same short name. The second one keeps its full name.
            named[name if short in named else short] = _text(name, value)
    budget = config.get(_BUDGET)
    return RunSettings(
        named=named,
        seed=str(config.get(_SEED, "")),
        budget_bytes=None if budget is None else int(budget),
    )


def _flat(prefix: str, content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings, with names such as "loader fanouts" for nested ones."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(f"{prefix}{name} ", value)
        else:
            yield f"{prefix}{name}", value


def _short_name(name: str) -> str:
    """Return "memory budget" for "loader memory_budget_bytes", and "model" for "model name"."""
    part, _, rest = name.partition(" ")
    short = part if rest == "name" else rest or part
    return short.removesuffix("_bytes").replace("_", " ")


def _text(name: str, value: Any) -> str:
    """Return a setting's value for the report, for example 8 GB for a number of bytes."""
    if name.endswith("_bytes") and isinstance(value, int):
        return format_bytes(value)
    if isinstance(value, list):
        return ",".join(map(str, value))
    if name == _FINGERPRINT:
        return str(value)[:_FINGERPRINT_SHOWN]
    return "not set" if value is None else str(value)


# The parts of an epoch's seconds: the loop computes, waits, does other things, and evaluates.
_COMPUTE: Final = "the model's step"
_OTHER_WAIT: Final = "waiting for the loader"
_REST: Final = "the rest of the loop"
_EVALUATION: Final = "evaluation"
# Words in the sentence on an epoch's bottleneck (`gloader.observe.bottleneck`), and the cause that they stand for. The
# loop's wait is one measurement per epoch, so all of it counts for the cause in that epoch's sentence.
_CAUSES: Final = (
    ("waits for the SSD", "waiting for the SSD"),
    ("the object store", "waiting for the object store"),
    ("the samplers", "waiting for samplers"),  # includes the samplers' own waits for passes over the edges
    ("the CPU cores", "waiting for a core"),
    ("kernels are compiled", "compiling kernels"),
)
# The parts in drawing order. The number is the colour's style, see `gloader.lab.report.svg`.
PARTS: Final[tuple[tuple[str, int], ...]] = (
    (_COMPUTE, 0),
    ("waiting for the SSD", 1),
    ("waiting for the object store", 2),
    ("waiting for samplers", 3),
    ("waiting for a core", 6),
    ("compiling kernels", 5),
    (_OTHER_WAIT, 4),
    (_REST, 7),
    (_EVALUATION, 8),
)


def cause_of(sentence: str) -> str:
    """Return the name of the part for an epoch's wait, from the ``sentence`` on its bottleneck. Pure."""
    finding = sentence.partition(";")[0]  # the advice follows the semicolon
    return next((cause for words, cause in _CAUSES if words in finding), _OTHER_WAIT)


def split_seconds(
    seconds: float, evaluate_seconds: float, stage_seconds: Mapping[str, float], sentence: str
) -> tuple[float, ...]:
    """Return an epoch's seconds, with its evaluation, in the order of `PARTS`. Pure.

    Parameters
    ----------
    seconds, evaluate_seconds : the training's seconds, and the following evaluation's seconds
    stage_seconds : seconds by stage; "compute" and "wait" are the loop's, other stages run at the same time
    sentence : the sentence on the epoch's bottleneck
    """
    compute, wait = stage_seconds["compute"], stage_seconds["wait"]
    parts = {_COMPUTE: compute, cause_of(sentence): wait, _EVALUATION: evaluate_seconds}
    parts[_REST] = max(seconds - compute - wait, 0.0)
    return tuple(parts.get(name, 0.0) for name, _ in PARTS)


_ERRORS: Final = ("mae", "rmse")  # metrics that are better if smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One line of ``metrics.jsonl``."""

    number: int  # starts at 1, as on the screen; the file starts at 0
    seconds: float  # training
    evaluate_seconds: float  # the evaluation after the training; 0 without one
    loss: float  # mean training loss
    train_acc: float | None  # share of right predictions in training; None for predicted values
    valid: float | None  # the validation metric; None without an evaluation
    rows: int  # gathered feature rows
    hit_rate: float  # share of the rows that came from memory
    bytes_read: int  # from the SSD, includes passes over the edges
    bytes_written: int  # to the SSD, includes passes over the edges
    bottleneck: str  # a sentence on the epoch's slowest part
    wait_s: float | None  # the loop's wait for the loader; None if an earlier version did not record it
    parts: tuple[float, ...]  # seconds by part, as in `PARTS`; empty if not recorded
    memory_bytes: tuple[int, ...]  # peaks in equal parts of the epoch's time; empty if not recorded

    @property
    def all_seconds(self) -> float:
        """The epoch's seconds, with its evaluation."""
        return self.seconds + self.evaluate_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A `gloader train` run, finished or not."""

    name: str  # name in the report
    source: str  # the run's folder
    epochs: tuple[Epoch, ...]
    metric: str  # validation and test metric: acc, or for links hits@K, mrr, auc
    settings: Mapping[str, str]  # settings in config.yaml; empty without the file
    seed: str  # empty if unknown
    budget_bytes: int | None  # memory budget; None if not recorded
    result: Mapping[str, Any]  # content of result.json; empty until the run is finished
    scores: Mapping[str, Any] | None = None  # content of scores.json; None without the file

    @property
    def test(self) -> float | None:
        """The test figure. None before the test, or without test data."""
        value = self.result.get(f"test_{self.metric}")
        return None if value is None else float(value)

    @property
    def best(self) -> float | None:
        """The best validation figure. NaN does not count."""
        known = [each.valid for each in self.epochs if each.valid is not None and not isnan(each.valid)]
        return (min if self.metric in _ERRORS else max)(known) if known else None

    @property
    def epoch_s(self) -> float | None:
        """Median seconds per epoch, without its evaluation."""
        return median(epoch.seconds for epoch in self.epochs) if self.epochs else None

    @property
    def waiting(self) -> float | None:
        """Share of the epochs' seconds in which the loop waited for the loader. None if not recorded."""
        known = [epoch for epoch in self.epochs if epoch.wait_s is not None]
        total = sum(epoch.seconds for epoch in known)
        return sum(epoch.wait_s or 0.0 for epoch in known) / total if total > 0 else None

    @property
    def total_seconds(self) -> float:
        """Seconds for the whole run, or for its epochs so far."""
        return float(self.result.get("total_seconds", sum(epoch.all_seconds for epoch in self.epochs)))

    @property
    def bytes_read(self) -> int:
        """Bytes read from the SSD."""
        return sum(epoch.bytes_read for epoch in self.epochs)

    @property
    def bytes_written(self) -> int:
        """Bytes written to the SSD."""
        return sum(epoch.bytes_written for epoch in self.epochs)

    @property
    def hit_rate(self) -> float | None:
        """Share of the rows that came from memory."""
        rows = sum(epoch.rows for epoch in self.epochs)
        return sum(epoch.rows * epoch.hit_rate for epoch in self.epochs) / rows if rows else None

    @property
    def peak_bytes(self) -> int | None:
        """Peak anonymous memory (memory without a file, which the budget counts). None if not recorded."""
        largest = max((most for epoch in self.epochs for most in epoch.memory_bytes), default=None)
        known = self.result.get("peak_anonymous_bytes", largest)
        return None if known is None else int(known)

    def named(self, name: str) -> Training:
        """Return the same run under another name."""
        return replace(self, name=name)
