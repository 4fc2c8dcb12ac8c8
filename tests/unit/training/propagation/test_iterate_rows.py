"""`iterate` equals a dense product in float64, and its bits do not depend on the budget."""

from __future__ import annotations

import numpy as np
import pytest
from propagation_oracle import hop, neighbours, random_relation

from gloader.errors import BudgetError
from gloader.training.propagation.iterate_rows import iterate
from gloader.training.propagation.state_rows import HeldRows

NODES, EDGES, WIDTH = 3000, 9000, 5


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(3)
    graph = random_relation(rng, NODES, NODES, EDGES, weighted=False)
    return graph, rng.standard_normal((NODES, WIDTH)).astype(np.float32)


def least_budget(graph, x) -> int:
    with pytest.raises(BudgetError) as raised:
        iterate(
            graph, HeldRows(x), width=WIDTH, norm="gcn", alpha=0.8, hops=3, anchor=None, memory_budget_bytes=0
        )
    return raised.value.short_bytes


@pytest.mark.parametrize("norm", ["gcn", "mean"])
def test_repeated_hops_equal_a_dense_product(world, norm):
    graph, x = world
    lists, z = neighbours(graph, "in"), x.astype(np.float64)
    for _ in range(3):
        z = 0.8 * hop(lists, z, "mean", norm, loops=norm == "gcn") + 0.2 * x
        z[:7] = 1.0

    def clamp(start, columns, rows):
        assert rows.shape[1] == columns.stop - columns.start
        rows[: max(7 - start, 0)] = 1.0

    rows = HeldRows(x)
    with iterate(
        graph,
        rows,
        width=WIDTH,
        norm=norm,
        alpha=0.8,
        hops=3,
        anchor=rows,
        memory_budget_bytes=1 << 30,
        after_hop=clamp,
    ) as made:
        np.testing.assert_allclose(made.read(0, NODES), z, rtol=1e-5, atol=1e-6)
    assert rows.num_rows == NODES


def test_bits_do_not_depend_on_the_budget(world, tmp_path, monkeypatch):
    # The buffers of files would outweigh these small rows.
    monkeypatch.setattr("gloader.training.propagation.iterate_rows.WRITER_BYTES", 0)
    graph, x = world
    results = []
    # The narrow budget has room for one column at a time.
    narrow = least_budget(graph, x) - 4 * NODES * (2 * WIDTH - 1)
    for budget, scratch in ((1 << 30, None), (narrow, tmp_path)):
        with iterate(
            graph, HeldRows(x), width=WIDTH, norm="gcn", alpha=0.8, hops=3, anchor=HeldRows(x),
            memory_budget_bytes=budget, scratch=scratch,
        ) as made:  # fmt: skip
            results.append(made.read(0, NODES))
    np.testing.assert_array_equal(*results)
    assert list(tmp_path.iterdir())


def test_rows_that_do_not_fit_are_refused_with_the_bytes_to_add(world):
    graph, x = world
    with pytest.raises(
        BudgetError, match=r"3 hops over 3,000 nodes with 5 columns need .* raise it by \d+MB or more"
    ):
        iterate(
            graph,
            HeldRows(x),
            width=WIDTH,
            norm="gcn",
            alpha=0.8,
            hops=3,
            anchor=None,
            memory_budget_bytes=1000,
        )
