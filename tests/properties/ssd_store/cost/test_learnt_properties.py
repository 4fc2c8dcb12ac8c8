"""Properties of learnt rates, for any runs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.ssd_store.cost.device_profile import (
    ACCESSES,
    MOST_RUNS,
    RATIO_LIMIT,
    Access,
    LearntRates,
    Lesson,
    Observation,
    from_json,
    lesson_of,
    rebased,
    to_json,
    weighted_median,
)
from gloader.ssd_store.cost.io_rates import STRATEGIES, IoRates, ReadTimes
from gloader.ssd_store.cost.strategy import MissCounts, predict_seconds

_SECONDS = st.one_of(st.floats(0, 1e9), st.sampled_from([math.nan, math.inf, -1.0, 1e-300]))
_PARTS = st.dictionaries(st.sampled_from(ACCESSES), st.floats(0, 1e3), min_size=1)
observations = st.lists(st.builds(Observation, predicted=_PARTS, measured_s=_SECONDS), max_size=5)
runs = st.lists(st.tuples(observations, st.integers(0, 10**9).map(float)), max_size=MOST_RUNS + 2)
_RATE = st.sampled_from([1e3, 1e4, 1e5, 1e6])
rates = st.builds(
    IoRates,
    random_reads_per_s=_RATE,
    medium_reads_per_s=st.one_of(st.just(0.0), _RATE),
    wide_reads_per_s=st.one_of(st.just(0.0), _RATE),
    read_bytes_per_s=st.sampled_from([1e8, 1e9, 1e10]),
    write_bytes_per_s=st.sampled_from([1e8, 1e9]),
    pack_read_bytes_per_s=st.sampled_from([1e8, 1e9]),
    dealt_bytes_per_s=st.sampled_from([0.0, 1e9]),
)
COUNTS = MissCounts(
    num_batches=8,
    rows=400_000,
    unique_rows=300_000,
    row_bytes=512,
    direct_requests=300_000,
    direct_bytes=300_000 * 12_288,
    sweep_requests=9_000,
    sweep_bytes=9_000 * 100_000,
    pack_bytes=400_000 * 512,
)


def learnt_from(found: list[tuple[list[Observation], float]]) -> LearntRates:
    learnt = LearntRates()
    for seen, when in found:
        learnt = learnt.after(lesson_of(seen, when=when))
    return learnt


@given(runs)
def test_no_history_takes_a_ratio_beyond_what_was_seen_or_beyond_the_limit(
    found: list[tuple[list[Observation], float]],
) -> None:
    learnt = learnt_from(found)
    for access in ACCESSES:
        seen = [one.known[access].ratio for one in learnt.lessons if access in one.known]
        ratio = learnt.ratio(access)
        assert 1 / RATIO_LIMIT <= ratio <= RATIO_LIMIT
        assert min([1.0, *seen]) * (1 - 1e-9) <= ratio <= max([1.0, *seen]) * (1 + 1e-9)


@given(observations, st.randoms(use_true_random=False))
def test_the_order_in_which_superbatches_came_does_not_matter(
    seen: list[Observation], chance: object
) -> None:
    shuffled = list(seen)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = lesson_of(seen, when=0.0).known, lesson_of(shuffled, when=0.0).known
    assert one.keys() == other.keys()
    for access, known in one.items():
        assert known == pytest.approx(other[access])


@given(runs, st.sampled_from(ACCESSES), st.floats(1, RATIO_LIMIT))
def test_superbatches_that_took_longer_never_make_a_disk_look_faster(
    found: list[tuple[list[Observation], float]], access: Access, slower: float
) -> None:
    before, after = (
        learnt_from([([seen_slower(one, by) for one in seen], when) for seen, when in found])
        for by in (1.0, slower)
    )
    assert after.ratio(access) >= before.ratio(access) * (1 - 1e-9)


def seen_slower(one: Observation, by: float) -> Observation:
    return replace(one, measured_s=one.measured_s * by)


@given(runs, rates)
def test_learnt_rates_are_rates(found: list[tuple[list[Observation], float]], probed: IoRates) -> None:
    corrected = learnt_from(found).correct(probed)
    for name in ("random_reads_per_s", "read_bytes_per_s", "write_bytes_per_s", "pack_read_bytes_per_s"):
        assert 0 < getattr(corrected, name) < math.inf
    for name in ("medium_reads_per_s", "wide_reads_per_s", "dealt_bytes_per_s"):
        assert (getattr(corrected, name) == 0) == (getattr(probed, name) == 0)
    seconds = predict_seconds(COUNTS, corrected)
    assert all(0 < seconds[strategy] < math.inf for strategy in STRATEGIES)


@given(st.lists(st.tuples(st.floats(1 / 16, 16), st.floats(0.01, 8)), min_size=1, max_size=9), st.data())
def test_a_value_that_grows_never_lowers_the_middle(
    values: list[tuple[float, float]], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(values) - 1))
    by = data.draw(st.floats(1, 100))
    grown = [(value * by if at == which else value, weight) for at, (value, weight) in enumerate(values)]
    assert weighted_median(grown) >= weighted_median(values) * (1 - 1e-9)


@given(runs)
def test_what_is_written_is_read_back_and_small(found: list[tuple[list[Observation], float]]) -> None:
    learnt = learnt_from(found)
    text = json.dumps(to_json(learnt))
    assert len(text) < 12_000
    for lesson, again in zip(learnt.lessons, from_json(json.loads(text)).lessons, strict=True):
        assert again.when == lesson.when
        assert again.known.keys() == lesson.known.keys()
        for access, known in lesson.known.items():
            assert again.known[access] == pytest.approx(known, rel=1e-3)


@given(observations, st.dictionaries(st.sampled_from(ACCESSES), st.floats(1e-6, 1e6)))
def test_another_probe_leaves_ratios_within_the_limit(
    seen: list[Observation], faster: dict[Access, float]
) -> None:
    lesson: Lesson = rebased(lesson_of(seen, when=0.0), faster)
    assert all(1 / RATIO_LIMIT <= one.ratio <= RATIO_LIMIT for one in lesson.known.values())


@given(
    st.builds(
        ReadTimes,
        small_per_s=_RATE,
        medium_per_s=st.one_of(st.just(0.0), _RATE),
        wide_per_s=st.one_of(st.just(0.0), _RATE),
        bytes_per_s=st.sampled_from([1e8, 1e10]),
    ),
    st.integers(1, 2**20),
)
def test_the_parts_of_a_read_are_all_of_it(times: ReadTimes, size: int) -> None:
    shares = times.shares(size)
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in shares.values())
