"""Plans keep within the budget, say the least budget, and read no more than a slab of rows and the edges in a pass."""

from __future__ import annotations

import re

import pytest

from gloader.core.units import parse_bytes
from gloader.errors import BudgetError
from gloader.training.propagation.chains import PropagateSpec, grow_chains
from gloader.training.propagation.propagation_plan import EdgeSizes, GraphSizes, plan_propagation
from gloader.types import EDGE, NODE

NODES, EDGES, WIDTH = 2_000_000, 32_000_000, 128
ROWS = 4 * NODES * WIDTH
SIZES = GraphSizes(
    num_nodes={NODE: NODES},
    edges={
        EDGE: EdgeSizes(num_edges=EDGES, source_bytes=4 * EDGES, weight_bytes=0, offset_bytes=8 * NODES + 8)
    },
    input_bytes={NODE: ROWS},
)


def plan(budget, *, hops=3, stats=("mean",), directions=("in",), **settings):
    spec = PropagateSpec(hops=hops, stats=stats, directions=directions)
    trees = grow_chains(spec, widths={NODE: WIDTH}, relations=(EDGE,), target=NODE)
    return plan_propagation(trees, SIZES, budget_bytes=budget, **settings)


@pytest.mark.parametrize("budget", [80_000_000, 120_000_000, 500_000_000, 2_000_000_000, 8_000_000_000])
@pytest.mark.parametrize("num_kept", [None, 100_000])
def test_plans_keep_within_the_budget_and_read_rows_once_per_pass(budget, num_kept):
    made = plan(budget, num_kept=num_kept)
    assert made.held_bytes <= budget
    slabs = made.slabs[NODE]
    assert [slab.start for slab in slabs[1:]] == [slab.stop for slab in slabs[:-1]]
    assert (slabs[0].start, slabs[-1].stop) == (0, WIDTH)
    # The input, the cut rows, and the state before each hop.
    assert made.cost.rows_read <= (2 + 3) * ROWS
    assert made.cost.edges_read <= 3 * len(slabs) * 4 * EDGES
    assert made.cost.seconds > 0


def test_more_memory_makes_fewer_slabs_until_everything_is_held():
    plans = [plan(budget) for budget in (80_000_000, 200_000_000, 1_000_000_000, 6_000_000_000)]
    counts = [made.num_slabs for made in plans]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 1
    assert [made.is_held for made in plans] == [False, False, False, True]
    assert plans[-1].cost.edges_read == 0


def test_too_small_a_budget_is_refused_with_the_least_one_that_fits():
    with pytest.raises(
        BudgetError, match=r"the narrowest slab of columns needs .* Give memory_budget=\"[\d.]+ ?MB\" or more"
    ) as raised:
        plan(20_000_000)
    least = parse_bytes(re.search(r"\"(.*)\"", str(raised.value))[1])
    assert plan(least + 4_000_000).held_bytes <= least + 4_000_000


def test_without_a_disk_everything_must_fit():
    with pytest.raises(BudgetError, match="a propagation in memory needs"):
        plan(2_000_000_000, has_disk=False)
    made = plan(8_000_000_000, has_disk=False)
    assert (made.is_held, made.disk_bytes, made.cost.rows_written) == (True, 0, 0)


def test_the_slabs_of_a_begun_propagation_are_kept_or_refused():
    assert {slab.stop - slab.start for slab in plan(500_000_000, widths={NODE: 8}).slabs[NODE]} == {8}
    with pytest.raises(BudgetError, match="the begun propagation needs"):
        plan(80_000_000, widths={NODE: 64})
