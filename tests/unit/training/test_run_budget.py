from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.training.run_budget import ProcessKind, share_budget

MB = 1_000_000


def test_the_parts_are_the_whole() -> None:
    (budget,) = share_budget(total_bytes=1000 * MB, parameter_bytes=MB, step_bytes=300 * MB)
    assert budget.model_bytes == 4 * MB
    assert budget.phase_bytes == budget.step_bytes == 450 * MB
    parts = (
        budget.loader_bytes
        + budget.phase_bytes
        + budget.model_bytes
        + budget.process_bytes
        + budget.slack_bytes
    )
    assert parts == budget.total_bytes


@pytest.mark.reliability("J11")
@pytest.mark.parametrize("total_mb", [150, 350, 8000])
def test_the_code_of_a_run_is_counted_whatever_the_budget(total_mb: int) -> None:
    budget, *_ = share_budget(total_bytes=total_mb * MB, parameter_bytes=0, step_bytes=0)
    assert budget.process_bytes == 74 * MB
    assert 20 << 20 <= budget.slack_bytes <= 64 << 20


@pytest.mark.reliability("J11")
def test_what_a_program_held_before_its_first_run_counts_too() -> None:
    plain, *_ = share_budget(total_bytes=400 * MB, parameter_bytes=0, step_bytes=0, first_bytes=64 * MB)
    full, *_ = share_budget(total_bytes=400 * MB, parameter_bytes=0, step_bytes=0, first_bytes=102 * MB)
    assert full.process_bytes - plain.process_bytes == 38 * MB


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(("has_types", "more_mb"), [(False, 90), (True, 146)])
def test_every_rank_has_its_code_its_model_and_its_step(has_types: bool, more_mb: int) -> None:
    given: Any = {
        "total_bytes": 2500 * MB,
        "parameter_bytes": MB,
        "step_bytes": 400 * MB,
    }
    alone, *_ = share_budget(**given, process=ProcessKind(has_types=has_types))
    ranks, *_ = share_budget(**given, process=ProcessKind(has_types=has_types, num_ranks=2))
    assert ranks.model_bytes == 2 * alone.model_bytes
    assert ranks.step_bytes == 2 * alone.step_bytes
    assert ranks.process_bytes == 2 * (alone.process_bytes + more_mb * MB)


@pytest.mark.reliability("J11")
def test_links_over_several_types_take_more() -> None:
    nodes, links = (
        share_budget(
            total_bytes=400 * MB,
            parameter_bytes=0,
            step_bytes=0,
            process=ProcessKind(has_types=True, has_links=has_links),
        )[0]
        for has_links in (False, True)
    )
    assert links.process_bytes - nodes.process_bytes == 20 * MB


def test_an_evaluation_has_a_quarter_and_gives_way_down_to_what_a_step_needs() -> None:
    budgets = share_budget(total_bytes=1000 * MB, parameter_bytes=0, step_bytes=60 * MB)
    assert [budget.phase_bytes for budget in budgets] == [250 * MB, 125 * MB, 90 * MB]


def test_a_share_that_no_loader_fits_in_is_not_tried_beside_larger_ones() -> None:
    """It would be planned in vain: with edges swept for it, whose kernels the run then compiled in its own memory."""
    given: Any = {"parameter_bytes": 0, "step_bytes": 0}
    assert len(share_budget(total_bytes=165 * MB, **given)) == 3
    few = share_budget(total_bytes=150 * MB, **given)
    assert [budget.phase_bytes for budget in few] == [150 * MB // 8, 150 * MB // 16]
    (last,) = share_budget(total_bytes=110 * MB, **given)  # which says best what is lacking
    assert last.loader_bytes < 24 << 20


def test_saving_a_large_model_is_a_phase_too() -> None:
    *_, budget = share_budget(total_bytes=1000 * MB, parameter_bytes=60 * MB, step_bytes=90 * MB)
    assert budget.step_bytes == 360 * MB


@pytest.mark.reliability("C14")
def test_a_step_that_does_not_fit_is_refused_with_the_numbers_and_the_advice() -> None:
    with pytest.raises(
        BudgetError,
        match=r"the model takes 4 MB, a training step 150 MB and the code of the run 74 MB of the memory budget of "
        "100 MB.*smaller batch size",
    ) as refused:
        share_budget(total_bytes=100 * MB, parameter_bytes=MB, step_bytes=100 * MB)
    enough = 100 * MB + refused.value.short_bytes
    # What the reserve grows by is not in it.
    assert share_budget(total_bytes=enough * 16 // 15, parameter_bytes=MB, step_bytes=100 * MB)


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


@pytest.mark.reliability("J11")
def test_a_step_over_several_types_counts_more() -> None:
    sizes = {"total_bytes": 10**9, "parameter_bytes": 10**6, "step_bytes": 10**8}
    plain, typed = (
        share_budget(**sizes, process=ProcessKind(has_types=has_types))[0] for has_types in (False, True)
    )
    assert (plain.step_bytes, typed.step_bytes) == (150_000_000, 175_000_000)


@pytest.mark.reliability("J11")
def test_a_rank_that_is_alone_on_its_machine_has_the_code_of_a_rank() -> None:
    alone, *_ = share_budget(total_bytes=400 * MB, parameter_bytes=0, step_bytes=0)
    joined, *_ = share_budget(
        total_bytes=400 * MB, parameter_bytes=0, step_bytes=0, process=ProcessKind(is_joined=True)
    )
    assert joined.process_bytes - alone.process_bytes == 90 * MB


def test_learned_rows_that_do_not_fit_are_told_with_the_flag_for_them() -> None:
    told = r"80% of the model are learned rows of nodes without features: --embed DIM keeps such rows on the SSD\. Use"
    with pytest.raises(BudgetError, match=told):
        share_budget(total_bytes=10**9, parameter_bytes=10**9, step_bytes=0, learned_bytes=8 * 10**8)
    with pytest.raises(BudgetError) as caught:
        share_budget(total_bytes=10**9, parameter_bytes=10**9, step_bytes=0, learned_bytes=10**8)
    assert "--embed" not in str(caught.value)
