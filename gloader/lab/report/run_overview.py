"""Runs in a row each: the figures by which they are compared. Pure."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes, format_seconds
from gloader.lab.report.run_facts import epochs_of, metric_words
from gloader.lab.report.run_groups import differing_settings, shortened
from gloader.lab.report.text_table import TextTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gloader.lab.report.run_groups import RunGroup
    from gloader.lab.report.training import Training

_COLUMNS: Final = (
    "epochs", "median epoch", "waiting", "peak memory", "budget", "read", "written", "rows from memory"
)  # fmt: skip
_ELSEWHERE: Final = ("model", "epochs", "memory budget")
_UNBROKEN: Final = "\u00a0"


def overview(groups: Sequence[RunGroup]) -> TextTable:
    """Return a row for each group: of one run its figures, of several their means and standard deviations."""
    settings = differing_settings(groups)
    rows = [
        (group.name, _description(group, differing), *_figures(group.runs))
        for group, differing in zip(groups, settings, strict=True)
    ]
    return TextTable(header=_header(groups), rows=tuple(rows))


def each_seed(groups: Sequence[RunGroup]) -> TextTable | None:
    """Return a row for each run of the groups of several seeds; None where there are none."""
    several = [group for group in groups if len(group.runs) > 1]
    rows = [
        (run.name, f"seed{_UNBROKEN}{run.seed}", *_figures([run])) for group in several for run in group.runs
    ]
    return TextTable(header=_header(several), rows=tuple(rows)) if rows else None


def _header(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    metrics = {group.runs[0].metric for group in groups}
    # Of several metrics, what a run is says which.
    words = f" {metric_words(*metrics)}" if len(metrics) == 1 else ""
    return ("run", "what it is", f"test{words}", f"best validation{words}", *_COLUMNS)


def _description(group: RunGroup, differing: Mapping[str, str]) -> str:
    """Return the model, and the settings that have no column of their own."""
    model = group.runs[0].settings.get("model", "")
    told = [f"{name} {text}" for name, text in differing.items() if name not in _ELSEWHERE]
    # A cell is as narrow as its longest setting, and breaks between them.
    return shortened(", ".join(text.replace(" ", _UNBROKEN) for text in [model, *told] if text))


def _figures(runs: Sequence[Training]) -> tuple[str, ...]:
    return (
        _mean((run.test for run in runs), "{:.4f}".format),
        _mean((run.best for run in runs), "{:.4f}".format),
        ", ".join(dict.fromkeys(map(epochs_of, runs))),
        _mean((run.epoch_s for run in runs), format_seconds),
        _mean((run.waiting for run in runs), "{:.0%}".format),
        _mean((run.peak_bytes for run in runs), format_bytes),
        _mean((run.budget_bytes for run in runs), format_bytes),
        _mean((run.bytes_read for run in runs), format_bytes),
        _mean((run.bytes_written for run in runs), format_bytes),
        _mean((run.hit_rate for run in runs), "{:.1%}".format),
    )


def _mean(values: Iterable[float | None], written: Callable[[float], str]) -> str:
    """Return "mean ± standard deviation" of what is known; what is the same of all stands alone."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    is_same = len(set(map(written, known))) == 1
    spread = "" if is_same else f" ± {written(stdev(known))}"
    return f"{written(fmean(known))}{spread}"
