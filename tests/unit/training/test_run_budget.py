from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.training.run_budget import share_budget

MB = 1_000_000


def test_the_parts_are_the_whole() -> None:
    (budget,) = share_budget(total_bytes=1000 * MB, parameter_bytes=MB, step_bytes=300 * MB)
    assert budget.model_bytes == 4 * MB
    assert budget.phase_bytes == budget.step_bytes == 375 * MB
    parts = budget.loader_bytes + budget.phase_bytes + budget.model_bytes + budget.slack_bytes
    assert parts == budget.total_bytes


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(("total_mb", "slack_mb"), [(300, 60), (350, 64 * 1.048576), (8000, 64 * 1.048576)])
def test_a_run_of_a_small_budget_has_room_for_its_modules_and_kernels(total_mb: int, slack_mb: float) -> None:
    budget, *_ = share_budget(total_bytes=total_mb * MB, parameter_bytes=0, step_bytes=0)
    assert budget.slack_bytes == pytest.approx(slack_mb * MB, rel=1e-3)


@pytest.mark.reliability("J11")
def test_a_rank_of_several_has_room_for_what_torch_brings_to_it_and_gives_way_where_there_is_none() -> None:
    alone = share_budget(total_bytes=400 * MB, parameter_bytes=0, step_bytes=0)
    ranks = share_budget(total_bytes=400 * MB, parameter_bytes=0, step_bytes=0, is_alone=False)
    slack = alone[0].slack_bytes
    assert [one.loader_bytes for one in ranks[:-1]] == [one.loader_bytes - slack for one in alone]
    assert ranks[-1] == alone[-1]


def test_an_evaluation_has_a_quarter_and_gives_way_down_to_what_a_step_needs() -> None:
    budgets = share_budget(total_bytes=1000 * MB, parameter_bytes=0, step_bytes=80 * MB)
    assert [budget.phase_bytes for budget in budgets] == [250 * MB, 125 * MB, 100 * MB]


def test_saving_a_large_model_is_a_phase_too() -> None:
    *_, budget = share_budget(total_bytes=1000 * MB, parameter_bytes=60 * MB, step_bytes=90 * MB)
    assert budget.step_bytes == 360 * MB


@pytest.mark.reliability("C14")
def test_a_step_that_does_not_fit_is_refused_with_the_numbers_and_the_advice() -> None:
    with pytest.raises(
        BudgetError,
        match=r"the model takes 4 MB and a training step 125 MB of the memory budget of 100 MB.*smaller --batch-size",
    ):
        share_budget(total_bytes=100 * MB, parameter_bytes=MB, step_bytes=100 * MB)


@given(st.integers(0, 10**12), st.integers(0, 10**9), st.integers(0, 10**11))
def test_nothing_is_given_twice(total, parameters, step) -> None:
    try:
        budgets = share_budget(total_bytes=total, parameter_bytes=parameters, step_bytes=step)
    except BudgetError:
        return
    for budget in budgets:
        assert budget.loader_bytes > 0
        assert budget.phase_bytes >= step
        assert budget.loader_bytes + budget.phase_bytes + budget.model_bytes <= total
