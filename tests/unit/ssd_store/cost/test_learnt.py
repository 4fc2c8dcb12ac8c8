"""Rates learnt from runs on a device: medians of ratios, most weight on the newest, and none kept for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gloader.ssd_store.cost.device_profile import (
    ACCESSES,
    MOST_RUNS,
    RATIO_LIMIT,
    Access,
    Known,
    LearntRates,
    Lesson,
    Observation,
    from_json,
    lesson_of,
    to_json,
    weighted_median,
)
from gloader.ssd_store.cost.io_rates import IoRates

DAY_S = 86_400.0
PROBED = IoRates(
    random_reads_per_s=60_000.0,
    read_bytes_per_s=3e9,
    write_bytes_per_s=2e9,
    pack_read_bytes_per_s=3e9,
    medium_reads_per_s=40_000.0,
    wide_reads_per_s=16_000.0,
    dealt_bytes_per_s=1e9,
)


def run(when: float = 0.0, *, share: float = 1.0, times: float = 8.0, **ratios: float) -> Lesson:
    known: dict[Any, Known] = {
        name: Known(ratio=ratio, share=share, times=times) for name, ratio in ratios.items()
    }
    return Lesson(when=when, known=known)


def taught(*lessons: Lesson) -> LearntRates:
    learnt = LearntRates()
    for lesson in lessons:
        learnt = learnt.after(lesson)
    return learnt


def seen(predicted_s: float, measured_s: float, access: Access = "in_order") -> Observation:
    return Observation(predicted={access: predicted_s}, measured_s=measured_s)


def test_nothing_learnt_leaves_the_probe_as_it_is() -> None:
    assert all(LearntRates().ratio(access) == 1 for access in ACCESSES)
    assert LearntRates().correct(PROBED) == PROBED


def test_the_next_run_begins_with_what_the_last_one_saw() -> None:
    """A probe of a burst said 3 GB/s; the sweeps of the run took 2.5 times as long."""
    lesson = lesson_of([seen(1.0, 2.5), seen(2.0, 5.2), seen(4.0, 9.8)], when=1.0)
    assert lesson.known == {"in_order": (2.5, 1.0, 3)}
    assert taught(lesson).correct(PROBED).read_bytes_per_s == pytest.approx(1.2e9)


def test_each_kind_of_access_corrects_its_own_rate() -> None:
    ratios = dict(zip(ACCESSES, [3.0, 5.0, 4.0, 2.0, 6.0, 7.0, 8.0], strict=True))
    found = taught(run(**ratios)).correct(PROBED)
    assert found.random_reads_per_s == 20_000
    assert found.medium_reads_per_s == 8_000
    assert found.wide_reads_per_s == 4_000
    assert found.read_bytes_per_s == 1.5e9
    assert found.write_bytes_per_s == pytest.approx(2e9 / 6)
    assert found.pack_read_bytes_per_s == pytest.approx(3e9 / 7)
    assert found.dealt_bytes_per_s == 1e9 / 8


def test_reads_of_which_nothing_was_learnt_give_way_to_what_was() -> None:
    """The probe was made in a burst: what passes in file order now is less than its long reads at random."""
    found = taught(run(in_order=10.0)).correct(PROBED)
    assert found.read_bytes_per_s == 0.3e9
    assert found.wide_reads_per_s == pytest.approx(0.3e9 / 65536)
    assert found.medium_reads_per_s == pytest.approx(0.3e9 / 16384)
    assert found.random_reads_per_s == 60_000  # of 4 KiB: they bring less in any case
    # And where short reads came faster than a probe on a busy disk had found, so do the longer ones.
    found = taught(run(small=0.1)).correct(PROBED)
    assert found.random_reads_per_s == pytest.approx(600_000)
    assert found.medium_reads_per_s == pytest.approx(150_000)
    assert found.wide_reads_per_s == pytest.approx(37_500)
    assert found.read_bytes_per_s == 3e9


@pytest.mark.parametrize(("times", "ratio"), [(1, 1.0), (2, 3.0), (3, 9.0)])
def test_a_superbatch_is_not_believed_two_are_half_and_three_are(times: int, ratio: float) -> None:
    for parts in ({"in_order": 1.0}, {"in_order": 0.3, "write": 0.7}):  # however little of each it is
        one = Observation(predicted=parts, measured_s=9.0)  # type: ignore[arg-type]
        learnt = taught(lesson_of([one] * times, when=1.0))
        assert learnt.ratio("in_order") == pytest.approx(ratio)


def test_a_superbatch_on_a_busy_machine_does_not_count() -> None:
    lesson = lesson_of([seen(1.0, 1.2), seen(1.0, 1.3), seen(1.0, 40.0), seen(1.0, 1.25)], when=1.0)
    assert lesson.known["in_order"].ratio < 1.31


def test_a_run_on_a_busy_machine_moves_little() -> None:
    before = [run(when=k, in_order=ratio) for k, ratio in enumerate((1.2, 1.3, 1.25))]
    assert taught(*before, run(when=3.0, in_order=12.0)).ratio("in_order") < 1.31


def test_a_device_that_has_changed_is_followed_within_a_few_runs() -> None:
    learnt = taught(*(run(when=k, in_order=1.0) for k in range(MOST_RUNS)))
    for number in range(4):
        learnt = learnt.after(run(when=MOST_RUNS + number, in_order=3.0))
    assert learnt.ratio("in_order") == 3.0


def test_a_long_run_counts_for_no_more_than_eight_superbatches() -> None:
    long_ago = run(when=0.0, times=10_000.0, in_order=1.0)
    assert taught(long_ago, *(run(when=float(k), in_order=3.0) for k in (1, 2))).ratio("in_order") == 3.0


def test_what_took_several_accesses_tells_of_each_by_its_share() -> None:
    packing = Observation(predicted={"in_order": 3.0, "write": 1.0}, measured_s=8.0)
    assert lesson_of([packing], when=0.0).known == {"in_order": (2.0, 0.75, 1), "write": (2.0, 0.25, 1)}


def test_those_that_are_mostly_something_else_say_little_of_it() -> None:
    read = [seen(1.0, 1.5)] * 2
    packed = [Observation(predicted={"in_order": 0.1, "write": 0.9}, measured_s=8.0)] * 6
    assert lesson_of([*read, *packed], when=0.0).known["in_order"].ratio == 1.5
    learnt = taught(run(when=0.0, in_order=1.5), run(when=1.0, in_order=8.0, share=0.1))
    assert learnt.ratio("in_order") == 1.5


@pytest.mark.parametrize(
    "nothing",
    [seen(0.0, 1.0), seen(1.0, 0.0), seen(1.0, float("nan")), seen(float("inf"), 1.0), seen(1.0, -1.0)],
)
def test_seconds_that_say_nothing_teach_nothing(nothing: Observation) -> None:
    assert lesson_of([nothing], when=0.0).known == {}


def test_runs_of_long_ago_are_forgotten() -> None:
    learnt = taught(run(when=0.0, small=2.0), run(when=20 * DAY_S, small=3.0))
    assert len(learnt.at(25 * DAY_S).lessons) == 2
    assert learnt.at(31 * DAY_S).ratio("small") == 3.0
    assert learnt.at(60 * DAY_S).lessons == ()


def test_the_table_keeps_the_newest_runs_in_their_order() -> None:
    learnt = taught(*(run(when=k, small=1.0) for k in (5, 1, 9, *range(20, 40))))
    times = [lesson.when for lesson in learnt.lessons]
    assert times == sorted(times, reverse=True)
    assert (len(times), times[0]) == (MOST_RUNS, 39)


def test_another_probe_of_the_device_changes_no_rate_that_was_learnt() -> None:
    """The first probe read a burst: what was learnt beside it is right still when the next one reads none."""
    learnt = taught(run(in_order=2.5, small=1.5))
    slower = learnt.rebased({"in_order": 0.5})
    assert slower.ratio("in_order") == 1.25
    assert slower.ratio("small") == 1.5
    assert learnt.rebased({"in_order": 1e9}).ratio("in_order") == RATIO_LIMIT


def test_what_is_remembered_is_read_again() -> None:
    learnt = taught(
        run(when=3.0, small=1.234567, write=0.5), run(when=7.0, pack_read=RATIO_LIMIT, share=0.25)
    )
    found = from_json(json.loads(json.dumps(to_json(learnt))))
    assert [lesson.when for lesson in found.lessons] == [7.0, 3.0]
    assert found.lessons[1].known == {"small": (1.235, 1.0, 8.0), "write": (0.5, 1.0, 8.0)}
    assert found.lessons[0].known == {"pack_read": (RATIO_LIMIT, 0.25, 8.0)}


@pytest.mark.parametrize(
    "lesson",
    [
        {"when": 1.0, "small": [17.0, 1.0, 1.0]},
        {"when": 1.0, "small": [0.0, 1.0, 1.0]},
        {"when": 1.0, "small": [float("nan"), 1.0, 1.0]},
        {"when": 1.0, "small": [1.0, 0.0, 1.0]},
        {"when": 1.0, "small": [1.0, 1.5, 1.0]},
        {"when": 1.0, "small": [1.0, 1.0, 0.0]},
        {"when": 1.0, "small": [1.0, 1.0, float("inf")]},
        {"when": 1.0, "small": [1.0, 1.0]},
        {"when": float("nan")},
        {"when": 1.0, "small": 3.0},
        {"small": [1.0, 1.0, 1.0]},
        [1.0],
        "text",
    ],
)
def test_what_nobody_could_have_learnt_is_refused(lesson: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        from_json([lesson])


def test_the_middle_of_the_weight() -> None:
    assert weighted_median([(1.0, 1.0), (4.0, 1.0)]) == 2.0
    assert weighted_median([(4.0, 1.0), (1.0, 2.0), (9.0, 1.5)]) == 4.0
    assert weighted_median([(3.0, 5.0)]) == 3.0
