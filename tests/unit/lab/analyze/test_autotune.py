"""Tuning: what is searched, and within which memory."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from replayed_runs import SHAPE, header
from tunable_run import BUDGET, TunableRun

from gloader.errors import BudgetError, ReplayError
from gloader.lab.analyze.autotune import Searched, Tried, Tuned, keywords_of, knobs_of, tune
from gloader.replay.changes import count_of, parse_changes
from gloader.replay.floor import Floor
from gloader.replay.recording import RecordedTable

IN_MEMORY = replace(SHAPE, features="ram")
LARGE = RecordedTable(name="features", num_rows=10**6, row_bytes=512, cache_rows=0)
_THIRTEENTHS = ("400KB", "500KB", "600KB", "700KB", "800KB", "900KB", "1MB", "1.1MB", "1.2MB", "1.3MB")


def test_a_run_on_the_ssd_is_tuned_by_superbatches_cache_ways_and_threads() -> None:
    found = {
        knob.name: knob.values for knob in knobs_of(header(cores=6, budget_bytes=1_600_000, tables=(LARGE,)))
    }
    assert list(found)[:4] == ["superbatch", "cache", "strategy", "threads"]
    assert found["superbatch"] == ("1", "2", "4", "8")
    assert found["cache"] == ("0B", "100KB", "200KB", *_THIRTEENTHS)
    assert found["strategy"] == ("auto", "direct", "staged", "packed")
    assert found["threads"] == ("1", "2", "3", "4", "6")


def test_a_cache_is_tried_up_to_all_rows_and_none_where_nothing_is_cached() -> None:
    caches = {knob.name: knob.values for knob in knobs_of(header())}["cache"]
    assert caches == ("0B", "512KB")
    assert "cache" not in {knob.name for knob in knobs_of(header(policy="none"))}


def test_superbatches_are_of_whole_units_and_no_longer_than_an_epoch() -> None:
    found = {knob.name: knob.values for knob in knobs_of(header(superbatch_unit=3, num_batches=1000))}
    assert found["superbatch"] == ("3", "6", "12", "24", "48", "96", "192", "384")


def test_a_run_in_memory_is_tuned_by_its_threads() -> None:
    names = [knob.name for knob in knobs_of(header(shape=IN_MEMORY))]
    assert names[0] == "threads"
    assert not {"superbatch", "cache", "strategy"} & set(names)


def test_changes_become_keywords_of_a_loader() -> None:
    changes = parse_changes("threads=3,superbatch=16,cache=2MB,strategy=packed")
    assert keywords_of(changes) == {
        "threads": 3,
        "superbatch": 16,
        "cache": 2_000_000,
        "io_strategy": "packed",
    }
    planned = parse_changes("superbatch=auto,cache=auto,strategy=auto,buffers=auto")
    assert keywords_of(planned) == {
        "superbatch": None,
        "cache": None,
        "io_strategy": "auto",
        "buffers": None,
    }


@pytest.mark.parametrize("read_s", [0.005, 0.030, 0.090])
def test_what_is_found_is_within_the_tolerance_of_the_best_of_all(read_s: float) -> None:
    run = TunableRun(read_s=read_s)
    found = tune(run).searched
    seconds = []
    knobs = [knob for knob in knobs_of(run.recording.header) if knob.name != "buffers"]
    for texts in itertools.product(*(knob.values for knob in knobs)):
        words = ",".join(f"{knob.name}={text}" for knob, text in zip(knobs, texts, strict=True))
        try:
            seconds.append(run.predict(parse_changes(words)).replayed_s)
        except BudgetError:
            continue
    assert found.start.seconds == pytest.approx(run.base.replayed_s)
    assert found.best.seconds <= 1.03 * min(seconds)
    assert found.best.seconds < found.start.seconds


def test_the_floor_is_between_the_computation_and_all_that_was_tried() -> None:
    tuned = tune(TunableRun(compute_s=0.012, read_s=0.090))
    assert tuned.floor.seconds >= 8 * 0.012 * (1 - 1e-9)
    assert tuned.floor.seconds <= min(one.seconds for one in tuned.searched.tried) * (1 + 1e-9)


def test_a_run_that_computes_ends_where_it_began() -> None:
    run = TunableRun(compute_s=0.2)
    tuned = tune(run)
    assert tuned.searched.is_at_floor
    assert tuned.candidates == ()
    assert (len(tuned.searched.tried), tuned.floor.resource) == (1, "loop")


def test_a_run_at_the_floor_of_its_own_reads_is_tuned_all_the_same() -> None:
    # The disk is never idle, and a cache makes less of its work.
    run = TunableRun(read_s=0.030, is_one_epoch=True)
    found = tune(run).searched
    assert found.best.seconds < 0.8 * found.start.seconds


def test_candidates_are_faster_than_the_start_and_the_best_is_first() -> None:
    tuned = tune(TunableRun())
    start, seconds = tuned.searched.start.seconds, [one.seconds for one in tuned.candidates]
    assert tuned.candidates[0] is tuned.searched.best
    assert seconds[1:] == sorted(seconds[1:])
    assert max(seconds) < start


def test_what_gains_too_little_to_replace_the_best_comes_behind_it() -> None:
    start, best, close = (
        Tried(changes=parse_changes(text), seconds=seconds)
        for text, seconds in (("threads=1", 9.0), ("threads=2", 5.0), ("threads=3", 4.999))
    )
    searched = Searched(start=start, best=best, tried=(start, best, close), is_at_floor=False)
    tuned = Tuned(searched=searched, floor=Floor(seconds=1.0, resource="disk"))
    assert tuned.candidates == (best, close)


def test_more_memory_than_the_run_had_is_never_tried() -> None:
    run = TunableRun()
    tune(run)
    assert not any("memory" in text for text in run.asked)
    for text in run.asked[1:]:
        changes = parse_changes(text)
        assert count_of(changes, "cache", 0) < BUDGET


def test_a_run_that_predicts_nothing_is_not_tuned() -> None:
    with pytest.raises(ReplayError, match="12% that it cannot explain"):
        tune(TunableRun(is_trusted=False))


def test_a_run_that_cannot_be_planned_again_is_tuned_by_its_threads_and_says_why() -> None:
    found = tune(TunableRun(can_plan=False)).searched
    assert found.best.changes.values.keys() <= {"threads"}
    reasons = {one.reason for one in found.tried if "cache" in one.changes.values}
    assert reasons == {"its batches cannot be sampled again"}
