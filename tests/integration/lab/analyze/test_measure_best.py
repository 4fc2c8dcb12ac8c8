"""The best of a search beside the start, trained in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gloader.errors import BudgetError
from gloader.lab.analyze.autotune import Searched, Tried, Tuned
from gloader.lab.analyze.trial import RunExtent, measure_best
from gloader.replay.changes import NO_CHANGES, parse_changes
from gloader.replay.floor import Floor

from .test_short_run import settings

if TYPE_CHECKING:
    import gloader
    from gloader.config import TrainSettings
    from gloader.lab.analyze.trial import Autotuned

EXTENT = RunExtent(num_epochs=1, num_batches=2)
START = settings(features="ssd", cache=100_000, memory_budget=150_000_000)
TOO_LARGE = "cache=30000000"


def tried(text: str, seconds: float) -> Tried:
    return Tried(changes=parse_changes(text) if text else NO_CHANGES, seconds=seconds)


def searched(*found: Tried) -> Tuned:
    start, best = tried("", 9.0), min(found, key=lambda one: one.seconds, default=None)
    return Tuned(
        searched=Searched(start=start, best=best or start, tried=(start, *found), is_at_floor=False),
        floor=Floor(seconds=0.5, resource="disk"),
    )


def measured(
    dataset: gloader.Dataset, tuned: Tuned, *, start: TrainSettings = START, rounds: int = 1
) -> tuple[Autotuned, list[str]]:
    said: list[str] = []
    found = measure_best(
        tuned,
        dataset,
        start,
        device=torch.device("cpu"),
        extent=EXTENT,
        rounds=rounds,
        says=said.append,
    )
    return found, said


def test_both_are_trained_in_turns_the_other_way_round_each_time(wide: gloader.Dataset) -> None:
    found, said = measured(wide, searched(tried("threads=2,superbatch=2", 3.0)), rounds=2)
    start, best = "measuring the start", "measuring threads=2,superbatch=2"
    assert said == [start, best, best, start]
    assert found.best is not None
    assert (found.start.predicted_s, found.best.predicted_s) == (9.0, 3.0)
    assert (len(found.start.measured_s), len(found.best.measured_s)) == (2, 2)
    assert found.start.settings == START
    loader = found.best.settings.loader
    assert (loader.stages.threads, loader.memory.superbatch) == (2, 2)
    assert loader == START.loader.changed(threads=2, superbatch=2)


def test_what_does_not_fit_gives_way_to_the_next_best(wide: gloader.Dataset) -> None:
    found, _ = measured(
        wide, searched(tried(TOO_LARGE, 1.0), tried("threads=2", 4.0), tried("threads=3", 8.0))
    )
    assert found.best is not None
    assert found.best.change == "threads=2"
    (misfit,) = found.misfits
    assert misfit.startswith("cache=30000000: a host cache of 30 MB does not fit")


def test_without_a_candidate_the_start_alone_is_measured(wide: gloader.Dataset) -> None:
    found, said = measured(wide, searched())
    assert said == ["measuring the start"]
    assert (found.best, found.kept) == (None, found.start)


def test_where_nothing_fits_the_start_is_kept_and_its_own_error_is_raised(wide: gloader.Dataset) -> None:
    found, _ = measured(wide, searched(tried(TOO_LARGE, 1.0)))
    assert (found.best, len(found.misfits)) == (None, 1)
    with pytest.raises(BudgetError, match="a host cache of 31 MB does not fit"):
        start = settings(features="ssd", cache=31_000_000, memory_budget=150_000_000)
        measured(wide, searched(), start=start)
