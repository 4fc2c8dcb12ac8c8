from __future__ import annotations

import pytest

from gloader.config import ModelConfig
from gloader.errors import BudgetError
from gloader.models import build_model
from gloader.training.inference.layer_plan import plan_inference

N, F, H, C = 10_000, 50, 64, 7


def _convs(name="graphsage", num_layers=3):
    config = ModelConfig(name=name, hidden=H)
    return build_model(config, in_dim=F, num_classes=C, num_layers=num_layers).layers


def _held_bytes(convs, plans, num_outputs) -> int:
    """The most that a layer holds at once: its inputs, its outputs, its table and its buffers."""
    worst, inputs = 0, 0
    for depth, (conv, plan) in enumerate(zip(convs, plans, strict=True)):
        rows = N if depth < len(plans) - 1 else num_outputs
        outputs = 0 if plan.is_on_disk else 4 * rows * conv.out_dim
        table = 4 * N * max(sum(conv.table_widths(s.stop - s.start)) for s in plan.slabs)
        reads = 4 * plan.rows_per_read * 3 * conv.in_dim
        worst = max(worst, inputs + outputs + table + reads + 32 * plan.edges_per_piece)
        inputs = outputs
    return worst


@pytest.mark.parametrize("budget", [1 << 20, 3 << 20, 8 << 20, 64 << 20])
@pytest.mark.parametrize("name", ["graphsage", "gcn", "mlp"])
def test_everything_held_fits_the_budget(name, budget) -> None:
    convs = _convs(name)
    for num_outputs in (1, 500, N):
        plans = plan_inference(convs, num_nodes=N, num_outputs=num_outputs, budget_bytes=budget)
        assert _held_bytes(convs, plans, num_outputs) <= budget


def test_the_slabs_cover_every_column_once() -> None:
    for conv, plan in zip(
        _convs(), plan_inference(_convs(), num_nodes=N, num_outputs=N, budget_bytes=2 << 20), strict=True
    ):
        columns = [column for slab in plan.slabs for column in range(slab.start, slab.stop)]
        assert columns == list(range(conv.out_dim))


def test_a_large_budget_needs_neither_slabs_nor_the_disk() -> None:
    for plan in plan_inference(_convs(), num_nodes=N, num_outputs=N, budget_bytes=1 << 30):
        assert len(plan.slabs) == 1
        assert not plan.is_on_disk


def test_a_small_budget_takes_both() -> None:
    first = plan_inference(_convs(), num_nodes=N, num_outputs=10, budget_bytes=2 << 20)[0]
    assert len(first.slabs) > 1
    assert first.is_on_disk


def test_attention_is_cut_between_heads_only() -> None:
    convs = _convs("gat", num_layers=2)
    plan = plan_inference(convs, num_nodes=N, num_outputs=10, budget_bytes=2_500_000)[0]
    assert [(slab.start, slab.stop) for slab in plan.slabs] == [(0, 32), (32, 64)]


@pytest.mark.reliability("C14")
def test_a_budget_below_the_narrowest_table_is_refused_with_both_sizes() -> None:
    with pytest.raises(
        BudgetError, match=r"at least 80 KB for 10,000 nodes; the memory budget of 50 KB leaves"
    ):
        plan_inference(_convs(), num_nodes=N, num_outputs=10, budget_bytes=50_000)


@pytest.mark.reliability("J11")
def test_nodes_whose_class_is_asked_for_count() -> None:
    """Ids, positions, labels and classes: with a million of them, what else fits is refused."""
    few, many = 10, 1_000_000
    plan_inference(_convs(), num_nodes=N, num_outputs=few, budget_bytes=30_000_000)
    with pytest.raises(BudgetError, match="leaves 0 B"):
        plan_inference(_convs(), num_nodes=N, num_outputs=many, budget_bytes=30_000_000)


@pytest.mark.reliability("J11")
def test_edges_that_are_fetched_make_pieces_smaller() -> None:
    held, fetched = (
        plan_inference(_convs(), num_nodes=N, num_outputs=N, budget_bytes=2 << 20, fetch_edge_bytes=size)[0]
        for size in (0, 32)
    )
    assert fetched.edges_per_piece == held.edges_per_piece // 2
