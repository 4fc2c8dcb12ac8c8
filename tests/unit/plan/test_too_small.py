"""The search for a budget that is enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.plan.too_small import least_enough


def _needing(fixed: int, share: float, tried: list[int]):
    """Return an attempt that needs ``fixed`` bytes and a share of the budget, as plans do."""

    def attempt(budget: int) -> None:
        tried.append(budget)
        needed = int(fixed + share * budget)
        if needed > budget:
            raise BudgetError("too small", short_bytes=needed - budget)

    return attempt


@pytest.mark.reliability("S11")
@given(st.integers(17 << 20, 10**13), st.floats(0, 0.6))
def test_the_budget_is_enough_and_a_little_less_is_not(fixed: int, share: float) -> None:
    tried: list[int] = []
    attempt = _needing(fixed, share, tried)
    enough = least_enough(attempt, first=16 << 20)
    attempt(enough)
    with pytest.raises(BudgetError):
        attempt(int(0.95 * enough))
    assert len(tried) < 20


def test_what_more_memory_does_not_help_has_no_such_budget() -> None:
    tried = []

    def attempt(budget: int) -> None:
        tried.append(budget)
        raise BudgetError("the disk is full")

    assert least_enough(attempt, first=1) == 0
    assert tried == [1]
