"""What a report says of a run in words and figures. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.config import loader_defaults
from gloader.core.flag_values import as_flags
from gloader.core.units import format_bytes, format_seconds
from gloader.lab.report.text_table import TextTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.lab.report.training import Epoch, Training

_HEADER: Final = (
    "epoch",
    "seconds",
    "waited",
    "loss",
    "train acc",
    "valid acc",
    "rows",
    "from memory",
    "read",
    "written",
    "memory",
)


def metric_words(metric: str) -> str:
    """Return what people call a metric."""
    return "accuracy" if metric == "acc" else metric


def epochs_of(run: Training) -> str:
    """Return how many epochs there are, and of how many, where these are more."""
    planned = run.settings.get("epochs", "")
    return str(len(run.epochs)) + (f" of {planned}" if planned not in ("", str(len(run.epochs))) else "")


def facts_of(run: Training) -> tuple[tuple[str, str], ...]:
    """Return the figures of the run, the same for every run."""
    words = metric_words(run.metric)
    state = [] if run.result else [("state", "not finished")]
    return (
        (f"test {words}", _figure(run.test)),
        (f"best validation {words}", _best(run)),
        ("last loss", f"{run.epochs[-1].loss:.4f}" if run.epochs else "-"),
        ("epochs", epochs_of(run)),
        ("median epoch", "-" if run.epoch_s is None else format_seconds(run.epoch_s)),
        ("waiting for data", "-" if run.waiting is None else f"{run.waiting:.0%}"),
        ("whole run", format_seconds(run.total_seconds) if run.epochs or run.result else "-"),
        ("peak memory", _memory(run)),
        ("read from the SSD", format_bytes(run.bytes_read)),
        ("written to the SSD", format_bytes(run.bytes_written)),
        ("rows from memory", "-" if run.hit_rate is None else f"{run.hit_rate:.1%}"),
        *_tables(run.result),
        *state,
    )


def circumstances_of(run: Training) -> tuple[tuple[str, str], ...]:
    """Return what the figures depend on, as far as it is recorded."""
    versions, machine = run.result.get("versions", {}), run.result.get("machine", {})
    known = [
        ("dataset", run.settings.get("dataset", "")),
        ("model", run.settings.get("model", "")),
        ("features", _features(run.result)),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("machine", _machine(machine) if machine else ""),
    ]
    return tuple((name, text) for name, text in known if text)


def table_of(run: Training) -> TextTable:
    """Return a row for each epoch."""
    return TextTable(header=_HEADER, rows=tuple(_cells(epoch) for epoch in run.epochs))


def waits_of(run: Training) -> tuple[str, ...]:
    """Return each sentence on what epochs waited for, once, behind the numbers of its epochs."""
    epochs_of: dict[str, list[int]] = {}
    for epoch in run.epochs:
        epochs_of.setdefault(epoch.bottleneck, []).append(epoch.number)
    return tuple(
        f"{_epochs(numbers)}: {as_flags(sentence, loader_defaults())}"
        for sentence, numbers in epochs_of.items()
    )


def _tables(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what came from memory of each table, where there are several."""
    return [
        (
            f"rows of {name} from memory",
            f"{counts['hit_rate']:.1%} of {counts['rows_gathered']:,}, {format_bytes(counts['bytes_read'])} read",
        )
        for name, counts in result.get("tables", {}).items()
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _best(run: Training) -> str:
    if run.best is None:
        return "-"
    number = next(epoch.number for epoch in run.epochs if epoch.valid == run.best)
    return f"{run.best:.4f} (epoch {number})"


def _memory(run: Training) -> str:
    resident = (
        f"{format_bytes(run.result['peak_rss_bytes'])} resident" if "peak_rss_bytes" in run.result else ""
    )
    if run.peak_bytes is None:  # a run of an earlier version
        return resident or "-"
    peak, budget = format_bytes(run.peak_bytes), ""
    if run.budget_bytes is not None:
        relation = "above its" if run.peak_bytes > run.budget_bytes else "of a"
        budget = f" {relation} budget of {format_bytes(run.budget_bytes)}"
    return ", ".join(filter(None, [f"{peak}{budget}", resident]))


def _features(result: Mapping[str, Any]) -> str:
    if not result:
        return ""
    if result["features"] == "ram":
        return "in memory"
    return f"{result['features']}, policy {result['policy']}, I/O {result['io_strategy']}"


def _machine(machine: Mapping[str, Any]) -> str:
    device = "" if machine["device"] == "cpu" else f"{machine['device']}, "
    memory = format_bytes(machine["memory_bytes"])
    return f"{device}{machine['processor']}, {machine['cores']} cores, {memory} of memory"


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


def _cells(epoch: Epoch) -> tuple[str, ...]:
    return (
        str(epoch.number),
        f"{epoch.seconds:.2f}",
        "" if epoch.wait_s is None else f"{epoch.wait_s:.2f}",
        f"{epoch.loss:.4f}",
        f"{epoch.train_acc:.4f}",
        "" if epoch.valid is None else f"{epoch.valid:.4f}",
        f"{epoch.rows:,}",
        f"{epoch.hit_rate:.1%}",
        format_bytes(epoch.bytes_read),
        format_bytes(epoch.bytes_written),
        format_bytes(max(epoch.memory_bytes)) if epoch.memory_bytes else "",
    )
