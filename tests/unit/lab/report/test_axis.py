from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gloader.lab.report.svg import can_be_drawn, fit_axis

VALUES = st.lists(st.floats(-1e90, 1e90, allow_nan=False), min_size=1, max_size=5)


@given(VALUES, st.booleans())
@example([5e-324], True)
@example([0.0, 5e-324], False)
def test_every_value_and_tick_lies_between_the_ends(values: list[float], from_zero: bool) -> None:
    axis = fit_axis(values, start=10.0, end=110.0, kind="zero" if from_zero and min(values) >= 0 else "fit")
    assert axis.low < axis.high
    assert axis.low == 0 or not from_zero or min(values) < 0
    for value in values:
        assert -1e-6 <= axis.place(value) - 10.0 <= 100.0 + 1e-6
    slack = 1e-9 * (axis.high - axis.low)
    assert all(axis.low - slack <= tick <= axis.high + slack for tick in axis.ticks)
    assert len(axis.ticks) <= 11


def test_ticks_are_round() -> None:
    assert fit_axis([0.0, 4.42], start=0, end=1, kind="zero").ticks == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert fit_axis([0.0, 9.0], start=0, end=1, kind="zero").ticks == (0.0, 2.0, 4.0, 6.0, 8.0)
    assert fit_axis([0.0, 37.0], start=0, end=1, kind="zero").ticks == (0.0, 10.0, 20.0, 30.0)


def test_between_whole_numbers_there_is_no_tick() -> None:
    assert fit_axis([1, 2, 3], start=0, end=1, kind="whole", most_ticks=8).ticks == (1.0, 2.0, 3.0)
    assert fit_axis([1, 2, 3], start=0, end=1, most_ticks=8).ticks[1] % 1


def test_values_that_are_alike_and_none_at_all_have_an_axis() -> None:
    alike = fit_axis([0.5, 0.5], start=0, end=100)
    assert alike.place(0.5) == pytest.approx(50)
    assert fit_axis([], start=0, end=100).place(1.0) <= 100


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, 1e200])
def test_what_a_run_that_diverged_has_is_not_drawn(value: float | None) -> None:
    assert not can_be_drawn(value)
    assert can_be_drawn(0.0)
