"""The summary of a contender's runs. Pure.

A run counts with the mean of its later epochs, since what works ahead of one epoch is missing from another.
"""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from pipeline_runs import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from compare_contenders import Contender

_TARGET_SHARE = 0.99
_PARTS = (
    "sample_s",
    "gather_s",
    "compute_s",
    "wait_s",
    "bytes_read",
    "bytes_written",
    "retrieval_s",
    "hit_rate",
)


def later_seconds(run: Mapping[str, Any]) -> float:
    """Return the seconds of a later epoch of a run, or of the first where there is no other; infinite without any."""
    _, later = _first_and_later(run)
    chosen = later or [epoch for epoch in run["epochs"][:1] if epoch["batches"]]
    return fmean(map(_seconds, chosen)) if chosen else math.inf


def choose_target(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> float | None:
    """Return 99% of the best accuracy that gloader in memory reached (median), or the best of all without it."""
    best = {
        name: [max(run["accuracy"]) for run in runs if run.get("accuracy")] for name, runs in rows.items()
    }
    medians: dict[str, float] = {name: median(values) for name, values in best.items() if values}
    if not medians:
        return None
    return _TARGET_SHARE * medians.get("gloader-memory", max(medians.values()))


def seconds_to(target: float, run: Mapping[str, Any]) -> float | None:
    """Return the seconds of training until an epoch ended with that accuracy; None where none did."""
    passed: float = 0.0
    for epoch, accuracy in zip(run["epochs"], run.get("accuracy", ()), strict=False):
        passed += float(epoch["seconds"])
        if accuracy >= target:
            return passed
    return None


def summarize(
    contender: Contender,
    runs: Sequence[Mapping[str, Any]],
    tried: Sequence[Mapping[str, Any]],
    target: float | None,
) -> dict[str, Any]:
    """Return the row of a contender: medians and spreads over ``runs``, which have the same settings."""
    row: dict[str, Any] = {
        "name": contender.name,
        "system": contender.system,
        "home": contender.home,
        "is_limited": runs[0]["is_limited"],
        "outcome": _worst(runs),
        "settings": runs[0]["settings"],
        "tried": [
            {
                "settings": run["settings"],
                "outcome": run["outcome"],
                "later_epoch_s": _finite(later_seconds(run)),
            }
            for run in tried
        ],
        "repeats": len(runs),
        "peak_resident_bytes": _largest(runs, "peak_resident_bytes"),
        "group_peak_bytes": _largest(runs, "group_peak_bytes"),
    }
    setups = [run["setup_s"] for run in runs if "setup_s" in run]
    row["setup_s"] = spread(setups) if setups else None
    split = [_first_and_later(run) for run in runs]
    firsts = [_seconds(first) for first, _ in split if first is not None]
    laters = [fmean(map(_seconds, later)) for _, later in split if later]
    row["first_epoch_s"] = spread(firsts) if firsts else None
    row["later_epoch_s"] = spread(laters) if laters else None
    shown = [later or [first] for first, later in split if first is not None]
    row["is_extrapolated"] = any(e["batches"] < e["num_batches"] for epochs in shown for e in epochs)
    for part in _PARTS:
        means = [fmean(_whole(epoch, part) for epoch in epochs) for epochs in shown if part in epochs[0]]
        row[part] = median(means) if means else None
    row["accuracy"] = [
        median(values) for values in zip(*(run.get("accuracy", ()) for run in runs), strict=False)
    ]
    times = [] if target is None else [seconds_to(target, run) for run in runs]
    reached = [seconds for seconds in times if seconds is not None]
    row["seconds_to_target"] = spread(reached) if reached and len(reached) == len(times) else None
    return row


def _first_and_later(run: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, list[Mapping[str, Any]]]:
    """Return the first epoch and the later ones; an unfinished one counts only where no other does."""
    begun = [epoch for epoch in run["epochs"] if epoch["batches"]]
    whole = [epoch for epoch in begun[1:] if epoch["batches"] == epoch["num_batches"]]
    return (begun[0] if begun else None), whole or begun[1:]


def _seconds(epoch: Mapping[str, Any]) -> float:
    return _whole(epoch, "seconds")


def _whole(epoch: Mapping[str, Any], name: str) -> float:
    """Return a figure of an epoch, in proportion where it was not finished."""
    value = float(epoch[name])
    return value if name == "hit_rate" else value * epoch["num_batches"] / epoch["batches"]


def _worst(runs: Sequence[Mapping[str, Any]]) -> str:
    return next((run["outcome"] for run in runs if run["outcome"] != "done"), "done")


def _largest(runs: Sequence[Mapping[str, Any]], name: str) -> int | None:
    return max((int(run[name]) for run in runs if name in run), default=None)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
