"""S_t: as many batches as memory, disk and the run allow, and never more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.errors import BudgetError
from gloader.plan.memory_plan import plan_memory
from gloader.plan.sweep_plan import SweepDemand, SweepPlan, plan_sweeps
from gloader.ssd_store.sweep.passes import pass_memory_bytes, plan_pass_buffers
from gloader.ssd_store.sweep.sweeper import plan_buffers

from .test_plan import MB, RATES, WORK, _demand

GB = 1000 * 10**6
# An undirected papers100M: fan-out 10,10,10 of 1,024 seeds.
PAPERS = SweepDemand(
    file_bytes=12_930_000_000,
    node_bytes=4,
    hop_nodes=(1_024, 10_400, 95_000),
    hop_bytes=(40_000, 400_000, 3_560_000),
    touched_pages=160_000,
)
_DEMANDS = st.builds(
    SweepDemand,
    file_bytes=st.integers(1, 10**11),
    node_bytes=st.sampled_from([4, 8]),
    hop_nodes=st.lists(st.integers(1, 10**6), min_size=1, max_size=4).map(tuple),
    hop_bytes=st.lists(st.integers(1, 10**8), min_size=1, max_size=4).map(tuple),
    touched_pages=st.integers(0, 10**6),
    num_batches=st.none() | st.integers(1, 2000),
)


def test_a_budget_of_4_gb_sweeps_512_batches_of_papers100m_and_a_pass_costs_a_batch_25_mb() -> None:
    plan = plan_sweeps(PAPERS, budget_bytes=4 * GB, spill_bytes=50 * GB)
    assert (plan.num_batches, plan.reason) == (512, "the most that are tried")
    assert plan.read_bytes == pytest.approx(25.3e6 + 8e6, rel=0.01)
    assert plan.pass_seconds(RATES) == pytest.approx((25.3e6 + 8e6) / 1.1e9 + 4e6 / 1.7e9, rel=0.01)


def test_choosing_by_weight_needs_memory_for_every_frontier() -> None:
    few = replace(PAPERS, kept_bytes=200_000)
    plan = plan_sweeps(few, budget_bytes=4 * GB, spill_bytes=50 * GB)
    assert (plan.num_batches, plan.reason) == (256, "a tenth of the memory budget has room for no more")
    assert plan.buffer_bytes > plan_sweeps(PAPERS, budget_bytes=4 * GB, spill_bytes=50 * GB).buffer_bytes
    with pytest.raises(BudgetError, match=r"to choose by weight for 2 batches, and the memory budget is 4"):
        plan_sweeps(replace(PAPERS, kept_bytes=10**9), budget_bytes=4 * GB, spill_bytes=50 * GB)


@pytest.mark.parametrize(
    ("changes", "budget", "spill", "expected", "reason"),
    [
        ({}, 2 * GB, 50 * GB, 256, "a tenth of the memory budget has room for no more"),
        ({}, 50 * GB, 4 * GB, 128, "half of the spill budget has room for no more"),
        ({"num_batches": 100}, 50 * GB, 50 * GB, 128, "as many as the run has"),
        ({"num_batches": 1}, 50 * GB, 50 * GB, 2, "as many as the run has"),
        ({}, 0, 50 * GB, 2, "a tenth of the memory budget has room for no more"),
    ],
)
def test_the_smallest_of_the_limits_is_named(
    changes: dict[str, int], budget: int, spill: int, expected: int, reason: str
) -> None:
    plan = plan_sweeps(replace(PAPERS, **changes), budget_bytes=budget, spill_bytes=spill)
    assert (plan.num_batches, plan.reason) == (expected, reason)


@pytest.mark.reliability("C14")
def test_a_disk_without_room_for_two_batches_is_refused_with_what_works() -> None:
    with pytest.raises(
        BudgetError,
        match=r"need 25 MB on the spill disk for 2 batches, and 24 MB are allowed; raise spill_budget, .* or "
        r"topology='direct'",
    ):
        plan_sweeps(PAPERS, budget_bytes=4 * GB, spill_bytes=24_000_000)


def _sweeps(demand: SweepDemand, budget: int, spill: int) -> SweepPlan | None:
    try:
        return plan_sweeps(demand, budget_bytes=budget, spill_bytes=spill)
    except BudgetError:
        return None


@settings(max_examples=60, deadline=None)
@given(
    _DEMANDS, st.integers(0, 10**11), st.integers(0, 10**11), st.integers(0, 10**11), st.integers(0, 10**12)
)
def test_a_sweep_fits_and_more_of_anything_never_makes_it_smaller(
    demand, budget, spill, more, more_spill
) -> None:  # type: ignore[no-untyped-def]
    plan = _sweeps(demand, budget, spill)
    large = _sweeps(demand, budget + more, spill + more_spill)
    if plan is None:
        return
    size = plan.num_batches
    assert size & (size - 1) == 0
    assert plan.spill_bytes <= spill
    # The buffers suffice for a pass: it is planned with them.
    buffers = plan_pass_buffers(plan.buffer_bytes)
    plan_buffers(size * len(demand.hop_nodes), buffers.sweep_bytes)
    assert plan.buffer_bytes <= pass_memory_bytes(size * len(demand.hop_nodes))
    assert size == 2 or (plan.frontier_bytes <= budget / 10 and plan.spill_bytes <= spill / 2)
    assert demand.num_batches is None or size <= max(2 * demand.num_batches - 1, 2)
    assert large is not None
    assert large.num_batches >= size
    assert large.pass_seconds(RATES) <= plan.pass_seconds(RATES)


def test_a_plan_with_sweeps_counts_their_memory_and_leaves_their_disk_alone() -> None:
    sweeps = plan_sweeps(
        SweepDemand(
            file_bytes=10**9,
            node_bytes=4,
            hop_nodes=(1_000, 8_000),
            hop_bytes=(20_000, 180_000),
            touched_pages=50_000,
            num_batches=8,
        ),
        budget_bytes=200 * MB,
        spill_bytes=10_000 * MB,
    )
    demand = _demand(
        sweeps=sweeps,
        work=replace(WORK, edges_s=sweeps.pass_seconds(RATES), edge_bytes=sweeps.read_bytes),
    )
    plan = plan_memory(demand, budget_bytes=200 * MB, spill_bytes=10_000 * MB, features="ssd")
    assert dict(plan.parts)["edge sweeps of 8 batches"] == sweeps.memory_bytes
    assert plan.total_bytes <= 200 * MB
    assert plan.sweeps is sweeps
    assert plan.superbatch.num_batches <= 4
    assert plan.keep_bytes == 0
    # Packs have what sweeps leave: with nothing left there are none.
    full = plan_memory(demand, budget_bytes=200 * MB, spill_bytes=sweeps.spill_bytes, features="ssd")
    assert full.pack_buffer_bytes == 0
    asked = plan_memory(demand, budget_bytes=200 * MB, superbatch=64, features="ssd")
    assert asked.superbatch.num_batches == 4
    assert asked.superbatch.reason == "half of the batches that an edge sweep serves; 64 were asked for"


def test_a_step_waits_for_the_one_thread_that_makes_passes() -> None:
    # However many cores there are, and however fast the disk is.
    work = replace(WORK, cores=1000, sample_s=0.2, edges_s=1e-9, edge_bytes=1.0)
    assert plan_memory(_demand(work=work), budget_bytes=2000 * MB).predicted_step_s > 0.4


def test_a_step_waits_for_the_disk_that_reads_its_edges() -> None:
    alone = plan_memory(_demand(), budget_bytes=2000 * MB)
    swept = plan_memory(_demand(work=replace(WORK, edges_s=0.5, edge_bytes=10**6)), budget_bytes=2000 * MB)
    assert (alone.features, swept.features) == ("ram", "ram")
    assert swept.predicted_step_s > 0.5 > alone.predicted_step_s
    assert "edges in 500 ms" in swept.candidates[0]
    assert "edges" not in alone.candidates[0]
