"""The analysis of a recorded run: where an epoch goes, what it waits for, and what would help."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.curve import belady_curve, next_use_counts
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.lab.analyze.result import Analysis, CurvePoint, Prediction
from gloader.replay.calibrate import seconds_of
from gloader.replay.changes import parse_changes
from gloader.replay.floor import find_floor
from gloader.replay.path import mean_parts
from gloader.replay.stalls import find_stalls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gloader.lab.analyze.predict import Predictor
    from gloader.replay.changes import Changes

# What is tried where nobody asks for anything: what can be bought, and what can be set.
_IN_GENERAL: Final = (
    "cache=2x",
    "memory=2x",
    "superbatch=2x",
    "superbatch=16x",
    "superbatch=0.5x",
    "disk=2x",
    "dtype=float16",
)
# Of the batches of a run, those whose next uses say what a cache of any size misses: two superbatches of the largest.
_MOST_OF_CURVE: Final = 512
_NUM_POINTS: Final = 24
# A byte of cache beyond the knee saves less than this part of what the first ones save.
_KNEE: Final = 0.1


def analyse(predictor: Predictor, run: Path, *, what_if: Sequence[Changes] = ()) -> Analysis:
    """Return the findings about a recorded run.

    Parameters
    ----------
    predictor : of the run
    run : its folder, or the trace
    what_if : changes that were asked for; empty: those that are tried in general

    Raises
    ------
    ConfigError, BudgetError
        The run cannot have a change that was asked for.
    ReplayError
        Likewise, or its batches cannot be sampled again.
    """
    base, measured = predictor.base, predictor.measured
    floor = find_floor(base.work, base.machine, base.shape, epochs=measured.counted)
    found = Analysis(
        run=str(run),
        measured_s=measured.seconds,
        base=base,
        unexplained=predictor.unexplained,
        lags=predictor.lags,
        parts=mean_parts(base.replayed, measured.counted),
        stalls=find_stalls(
            base.work, base.machine, base.shape, seconds_of=lambda replayed: seconds_of(replayed, measured)
        ),
        floor_s=floor.seconds,
        floor_of=floor.resource,
        what_if=(),
        was_asked=bool(what_if),
    )
    if found.doubt:
        return found
    predictions = [predictor.predict(changes) for changes in what_if] if what_if else _useful(predictor)
    curve = _curve(predictor)
    return replace(
        found,
        what_if=tuple(sorted(predictions, key=lambda one: one.replayed_s)),
        curve=curve,
        knee_bytes=_knee(curve),
    )


def _useful(predictor: Predictor) -> list[Prediction]:
    """Return what is tried where nobody asked, as far as the run can have it."""
    header = predictor.recording.header
    threads = header.shape.sampler_threads
    asked = [
        *_IN_GENERAL,
        *([] if header.device == "cpu" else ["gpu=4x"]),
        f"cores={2 * header.cores}",
        f"threads={threads + 1}",
        *([f"threads={threads - 1}"] if threads > 1 else []),
    ]
    found = []
    for text in asked:
        try:
            found.append(predictor.predict(parse_changes(text)))
        except (BudgetError, ConfigError, ReplayError):
            continue  # a run in memory has no cache, and one on this machine may not have twice its memory
    return found


def _curve(predictor: Predictor) -> tuple[CurvePoint, ...]:
    """Return what a host cache of any size misses with Belady's policy; nothing where no rows are read."""
    header = predictor.recording.header
    if header.shape.features != "ssd" or len(header.tables) != 1:
        return ()
    try:
        traces = predictor.replanner.traces(num_batches=_MOST_OF_CURVE)[0]
    except ReplayError:
        return ()
    table = header.tables[0]
    counts = next_use_counts(traces, table.num_rows)
    accesses = sum(len(trace) for trace in traces)
    curve = belady_curve(counts, accesses)
    most = int(curve.capacities[-1])
    rows = sorted({most * number // _NUM_POINTS for number in range(_NUM_POINTS + 1)} | {table.cache_rows})
    return tuple(
        CurvePoint(
            cache_bytes=count * table.row_bytes,
            miss_rate=float(curve.misses_at(np.array([count]))[0]) / max(accesses, 1),
        )
        for count in rows
    )


def _knee(curve: Sequence[CurvePoint]) -> int | None:
    """Return the size beyond which a byte saves less than a tenth of what the first ones save. Pure."""
    if len(curve) < 3:
        return None
    first = (curve[0].miss_rate - curve[1].miss_rate) / max(curve[1].cache_bytes - curve[0].cache_bytes, 1)
    for before, after in pairwise(curve):
        slope = (before.miss_rate - after.miss_rate) / max(after.cache_bytes - before.cache_bytes, 1)
        if slope < _KNEE * first:
            return before.cache_bytes
    return curve[-1].cache_bytes
