"""The folder of a `gloader train` run, read into the values that a report shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gloader.core.units import format_bytes, format_seconds
from gloader.errors import FormatError
from gloader.report.text_table import TextTable

if TYPE_CHECKING:
    from pathlib import Path

METRICS = "metrics.jsonl"
_HEADER = (
    "epoch",
    "seconds",
    "loss",
    "train acc",
    "valid acc",
    "rows",
    "from memory",
    "read",
    "written",
)


_ACCURACY = "acc"
_ERRORS = ("rmse",)  # metrics of which less is better


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One line of ``metrics.jsonl``."""

    number: int  # from 1, as on the screen; the file counts from 0
    seconds: float
    evaluate_seconds: float
    loss: float
    train_acc: float
    valid: float | None
    rows: int
    hit_rate: float
    bytes_read: int
    bytes_written: int
    bottleneck: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run of `gloader train`, finished or not."""

    name: str
    epochs: tuple[Epoch, ...]
    metric: str  # what validation and the test measured: acc, or of links hits@K, mrr, auc
    test: float | None  # None as long as the run was not finished, or without anything to test with
    facts: tuple[tuple[str, str], ...]

    def table(self) -> TextTable:
        """Return a row for each epoch."""
        return TextTable(header=_HEADER, rows=tuple(_cells(epoch) for epoch in self.epochs))

    def waits(self) -> tuple[str, ...]:
        """Return each sentence on what epochs waited for, once, behind the numbers of its epochs."""
        epochs_of: dict[str, list[int]] = {}
        for epoch in self.epochs:
            epochs_of.setdefault(epoch.bottleneck, []).append(epoch.number)
        return tuple(f"{_epochs(numbers)}: {sentence}" for sentence, numbers in epochs_of.items())


def read_training(folder: Path) -> Training:
    """Read the figures of a run.

    Raises
    ------
    FormatError
        ``metrics.jsonl`` or ``result.json`` is not what `gloader train` writes.
    """
    path = folder / METRICS
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        metric = _metric_of(lines)
        epochs = tuple(_epoch(line, metric) for line in lines)
        path = folder / "result.json"
        result = json.loads(path.read_text()) if path.exists() else {}
        return Training(
            name=folder.resolve().name,
            epochs=epochs,
            metric=metric,
            test=result.get(f"test_{metric}"),
            facts=(*_last_figures(epochs, metric), *_facts(result, metric)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} is not what `gloader train` writes: {error!r}") from error


def _metric_of(lines: list[dict[str, Any]]) -> str:
    """Return what validation measured, by the name that the lines have for it."""
    names = (name.removeprefix("valid_") for line in lines for name in line if name.startswith("valid_"))
    return next(names, _ACCURACY)


def metric_words(metric: str) -> str:
    """Return what people call a metric."""
    return "accuracy" if metric == _ACCURACY else metric


def _epoch(line: dict[str, Any], metric: str) -> Epoch:
    same = (
        "seconds",
        "evaluate_seconds",
        "loss",
        "train_acc",
        "hit_rate",
        "bytes_read",
        "bytes_written",
    )
    return Epoch(
        number=line["epoch"] + 1,
        valid=line[f"valid_{metric}"],
        rows=line["rows_gathered"],
        bottleneck=line["bottleneck"],
        **{name: line[name] for name in same},
    )


def _facts(result: dict[str, Any], metric: str) -> list[tuple[str, str]]:
    """Return what ``result.json`` says of the whole run; nothing while there is none."""
    if not result:
        return [("state", "not finished")]
    test = result[f"test_{metric}"]
    return [
        (f"test {metric_words(metric)}", "-" if test is None else f"{test:.4f}"),
        ("features", f"{result['features']}, policy {result['policy']}, I/O {result['io_strategy']}"),
        ("rows from memory", f"{result['hit_rate']:.1%} of {result['rows_gathered']:,}"),
        *_tables(result),
        ("read", f"{format_bytes(result['bytes_read'])} in {result['requests']:,} requests"),
        *_edges(result),
        ("peak memory", _memory(result)),
        ("whole run", format_seconds(result["total_seconds"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in result["versions"].items())),
    ]


def _tables(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what came from memory of each table, where there are several."""
    return [
        (
            f"rows of {name} from memory",
            f"{counts['hit_rate']:.1%} of {counts['rows_gathered']:,}, {format_bytes(counts['bytes_read'])} read",
        )
        for name, counts in result.get("tables", {}).items()
    ]


def _edges(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what passes over the edges moved; nothing where there were none, or in a run of an earlier version."""
    if not result.get("edge_passes"):
        return []
    read, written = (format_bytes(result[name]) for name in ("edge_bytes_read", "edge_bytes_written"))
    return [("edges", f"{read} read in {result['edge_passes']:,} passes, {written} written")]


def _last_figures(epochs: tuple[Epoch, ...], metric: str) -> list[tuple[str, str]]:
    """Return what the epochs say of the whole run."""
    if not epochs:
        return []
    valid = [epoch.valid for epoch in epochs if epoch.valid is not None]
    best = min if metric in _ERRORS else max
    return [
        ("epochs", str(len(epochs))),
        ("median epoch", format_seconds(median(epoch.seconds for epoch in epochs))),
        ("last loss", f"{epochs[-1].loss:.4f}"),
        (f"best validation {metric_words(metric)}", f"{best(valid):.4f}" if valid else "-"),
    ]


def _epochs(numbers: list[int]) -> str:
    """Return "epoch 3" or "epochs 1, 4 to 30" for ascending numbers. Pure."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return f"epoch{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


def _memory(result: dict[str, Any]) -> str:
    resident = f"{format_bytes(result['peak_rss_bytes'])} resident"
    if "peak_anonymous_bytes" not in result:  # a run of an earlier version
        return resident
    taken, budget = (format_bytes(result[name]) for name in ("peak_anonymous_bytes", "memory_budget_bytes"))
    return f"{taken} of a budget of {budget}, {resident}"


def _cells(epoch: Epoch) -> tuple[str, ...]:
    return (
        str(epoch.number),
        f"{epoch.seconds:.2f}",
        f"{epoch.loss:.4f}",
        f"{epoch.train_acc:.4f}",
        "" if epoch.valid is None else f"{epoch.valid:.4f}",
        f"{epoch.rows:,}",
        f"{epoch.hit_rate:.1%}",
        format_bytes(epoch.bytes_read),
        format_bytes(epoch.bytes_written),
    )
