"""Properties of every choice of the cost model, for any counts, rates and budgets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.ssd_store.cost.io_rates import STRATEGIES, Calibration, IoRates, Strategy
from gloader.ssd_store.cost.strategy import PACK_GAIN, MissCounts, choose_strategy, predict_seconds

_RATES = st.sampled_from([1e8, 1e9, 1e10])
_FACTORS = st.floats(1 / 3, 3)
_READS = st.sampled_from([1e2, 1e4, 1e5, 1e6])
rates = st.builds(
    IoRates,
    random_reads_per_s=_READS,
    read_bytes_per_s=_RATES,
    write_bytes_per_s=_RATES,
    pack_read_bytes_per_s=_RATES,
    medium_reads_per_s=st.one_of(st.just(0.0), _READS),
    is_one_device=st.booleans(),
)
calibrations = st.builds(Calibration, direct=_FACTORS, staged=_FACTORS, packed=_FACTORS)
budgets = st.sampled_from([0, 10**9, 10**12])


@st.composite
def counts(draw: st.DrawFn) -> MissCounts:
    rows = draw(st.one_of(st.just(0), st.integers(1, 10**8)))
    unique = rows // draw(st.sampled_from([1, 10])) + (rows > 0)
    row_bytes = draw(st.sampled_from([4, 512, 6528]))
    direct, sweep = (count // draw(st.sampled_from([1, 3, 1000])) + (rows > 0) for count in (rows, unique))
    return MissCounts(
        num_batches=draw(st.integers(1, 512)),
        rows=rows,
        unique_rows=unique,
        row_bytes=row_bytes,
        direct_requests=direct,
        direct_bytes=direct * draw(st.sampled_from([4096, 8192, 40_960, 262_144, 10**6])),
        sweep_requests=sweep,
        sweep_bytes=sweep * draw(st.sampled_from([4096, 40_960, 262_144])),
        pack_bytes=-(-rows * row_bytes // 4096) * 4096,
    )


@given(counts(), rates, budgets, budgets, calibrations)
def test_a_choice_keeps_its_budgets_and_is_the_fastest_that_does(
    count: MissCounts, rate: IoRates, staging: int, spill: int, calibration: Calibration
) -> None:
    choice = choose_strategy(count, rate, memory_bytes=staging, spill_bytes=spill, calibration=calibration)
    fits = {"direct": True, "staged": count.in_ram_bytes <= staging, "packed": count.pack_bytes <= spill}
    assert fits[choice.strategy]
    assert choice.predicted == predict_seconds(count, rate, calibration)
    if count.rows == 0:
        assert choice.strategy == "direct"
        return
    others = [choice.predicted[name] for name in STRATEGIES if fits[name] and name != choice.strategy]
    if choice.strategy == "packed":
        assert all(choice.predicted_s * PACK_GAIN <= seconds for seconds in others)
    else:
        assert all(choice.predicted_s <= seconds * PACK_GAIN for seconds in others)
        assert choice.predicted_s <= choice.predicted["direct"]


@given(counts(), rates, budgets, budgets, st.sampled_from(STRATEGIES))
def test_a_forced_strategy_is_taken_or_refused(
    count: MissCounts, rate: IoRates, staging: int, spill: int, forced: Strategy
) -> None:
    needed, allowed = {
        "direct": (0, 0),
        "staged": (count.in_ram_bytes, staging),
        "packed": (count.pack_bytes, spill),
    }[forced]
    if needed > allowed:
        with pytest.raises(BudgetError, match=rf"needs {needed} bytes .* and {allowed} "):
            choose_strategy(count, rate, memory_bytes=staging, spill_bytes=spill, forced=forced)
    else:
        choice = choose_strategy(count, rate, memory_bytes=staging, spill_bytes=spill, forced=forced)
        assert choice.strategy == forced


@given(counts(), rates, calibrations)
def test_a_byte_too_much_is_too_much(count: MissCounts, rate: IoRates, calibration: Calibration) -> None:
    def choose(staging: int, spill: int) -> Strategy:
        return choose_strategy(
            count, rate, memory_bytes=staging, spill_bytes=spill, calibration=calibration
        ).strategy

    if count.rows:
        assert choose(count.in_ram_bytes - 1, count.pack_bytes) != "staged"
        assert choose(0, count.pack_bytes - 1) == "direct"
        assert choose(count.in_ram_bytes, count.pack_bytes - 1) != "packed"


@given(counts(), rates)
def test_more_work_never_takes_less_time(count: MissCounts, rate: IoRates) -> None:
    before = predict_seconds(count, rate)
    for field in ("direct_requests", "direct_bytes", "sweep_requests", "sweep_bytes", "pack_bytes"):
        after = predict_seconds(replace(count, **{field: 2 * getattr(count, field) + 1}), rate)
        assert all(after[name] >= before[name] * (1 - 1e-9) for name in STRATEGIES)


@given(rates)
def test_reads_of_any_size_take_longer_the_more_and_the_larger_they_are(rate: IoRates) -> None:
    for size in (4096, 6000, 8192, 16_384, 30_000, 262_144, 10**6):
        seconds = rate.read_seconds(1000, 1000 * size) * (1 - 1e-9)
        assert rate.read_seconds(2000, 1000 * size) >= seconds
        assert rate.read_seconds(1000, 2000 * size) >= seconds


@given(
    counts(),
    rates,
    st.sampled_from(["random_reads_per_s", "write_bytes_per_s", "pack_read_bytes_per_s"]),
)
def test_a_faster_device_never_takes_more_time(count: MissCounts, rate: IoRates, field: str) -> None:
    faster = replace(rate, **{field: 2 * getattr(rate, field)})
    before, after = predict_seconds(count, rate), predict_seconds(count, faster)
    assert all(after[name] <= before[name] * (1 + 1e-9) for name in STRATEGIES)


@given(st.sampled_from(STRATEGIES), st.floats(1 / 3, 3), st.integers(3, 8))
def test_predictions_are_within_a_fifth_after_a_few_superbatches(
    strategy: Strategy, truth: float, times: int
) -> None:
    calibration = Calibration()
    for _ in range(times):
        calibration = calibration.after(strategy, calibration.factor(strategy), truth)
    assert calibration.factor(strategy) / truth == pytest.approx(1, abs=0.2)


@given(st.lists(st.tuples(st.sampled_from(STRATEGIES), st.floats(0, 1e9), st.floats(0, 1e9)), max_size=30))
def test_no_measurement_takes_a_factor_beyond_three(seen: list[tuple[Strategy, float, float]]) -> None:
    calibration = Calibration()
    for strategy, predicted, measured in seen:
        calibration = calibration.after(strategy, predicted, measured)
        assert all(1 / 3 <= calibration.factor(name) <= 3 for name in STRATEGIES)
