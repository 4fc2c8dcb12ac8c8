"""`iterate` equals a dense product in float64, and its bits do not depend on the budget."""

from __future__ import annotations

import numpy as np
import pytest
from propagation_oracle import hop, neighbours, random_relation

from gloader.errors import BudgetError
from gloader.training.inference.layer_rows import RamRows
from gloader.training.propagation.iterate_rows import Repeats, iterate, slab_width
from gloader.training.propagation.state_rows import HeldMatrix

NODES, EDGES, WIDTH = 3000, 9000, 5
ENOUGH = 1 << 30


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(3)
    graph = random_relation(rng, NODES, NODES, EDGES, weighted=False)
    return graph, rng.random((NODES, WIDTH)).astype(np.float32)


def spread(world, budget, hops):
    graph, x = world
    made, shares = RamRows(num_rows=NODES, width=WIDTH), []
    iterate(
        graph,
        HeldMatrix(x.copy()),
        made,
        hops,
        width=WIDTH,
        memory_budget_bytes=budget,
        on_progress=shares.append,
    )
    assert shares == sorted(shares)
    assert shares[-1] == 1
    return made.columns(slice(0, WIDTH))


@pytest.mark.parametrize("loops", [True, False])
def test_repeated_hops_equal_a_dense_product_within_their_range(world, loops):
    graph, x = world
    lists, z = neighbours(graph, "in"), x.astype(np.float64)
    for _ in range(3):
        z = np.clip(0.8 * hop(lists, z, "mean", "gcn", loops=loops) + 0.2 * x, 0.1, 1.0)
    made = spread(world, ENOUGH, Repeats(number=3, share=0.8, low=0.1, add_self_loops=loops))
    np.testing.assert_allclose(made, z, rtol=1e-5, atol=1e-6)


def test_bits_do_not_depend_on_the_budget(world):
    graph, _ = world
    with pytest.raises(BudgetError, match="for one column") as raised:
        slab_width(graph, width=WIDTH, memory_budget_bytes=0)
    least = raised.value.short_bytes
    assert slab_width(graph, width=WIDTH, memory_budget_bytes=least) == 1
    hops = Repeats(number=3, share=0.8, low=0.0, add_self_loops=True)
    np.testing.assert_array_equal(spread(world, least, hops), spread(world, ENOUGH, hops))
