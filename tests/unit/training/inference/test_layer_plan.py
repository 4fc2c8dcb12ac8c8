from __future__ import annotations

import pytest

from gloader.config import ModelConfig
from gloader.errors import BudgetError
from gloader.models import CodeColumn, build_model
from gloader.training.inference.layer_plan import (
    Extent,
    plan_inference,
    plan_on_device,
    reasonable_device_bytes,
)
from gloader.types import EDGE, NODE

N, F, H, C = 10_000, 50, 64, 7


def _convs(name="graphsage", num_layers=3):
    config = ModelConfig(name=name.split()[-1], hidden=H, residual=name.startswith("residual"))
    return _layers(build_model(config, in_dim=F, out_dim=C, num_layers=num_layers))


def _layers(model):
    return model.layers


def _conv(layer):
    return layer.relations[EDGE]


def _extent(num_outputs: int) -> Extent:
    return Extent(num_nodes={NODE: N}, relations=(EDGE,), outputs={NODE: num_outputs})


def _plan(layers, *, num_outputs: int, budget_bytes: int):
    plans = plan_inference(layers, _extent(num_outputs), budget_bytes=budget_bytes)
    return tuple(types[NODE] for types in plans)


def _held_bytes(convs, plans, num_outputs) -> int:
    """The most that a layer holds at once: its inputs, its outputs, its table and its buffers."""
    worst, inputs = 0, 0
    for depth, (conv, plan) in enumerate(zip(convs, plans, strict=True)):
        rows = N if depth < len(plans) - 1 else num_outputs
        outputs = 0 if plan.is_on_disk else 4 * rows * conv.sum_dim
        table = 4 * N * max(sum(_conv(conv).table_widths(s.stop - s.start)) for s in plan.slabs)
        read = convs[depth - 1].sum_dim if depth else F
        # Two chunks as they are read, and the rows that are computed from one: all that is left of the layer below.
        reads = 4 * plan.rows_per_read * (2 * read + conv.in_dims[NODE] + _conv(conv).row_floats)
        worst = max(worst, inputs + outputs + table + reads + 32 * plan.edges_per_piece)
        inputs = outputs
    return worst


@pytest.mark.parametrize("budget", [1 << 20, 3 << 20, 8 << 20, 64 << 20])
@pytest.mark.parametrize("name", ["graphsage", "gcn", "mlp", "residual graphsage", "residual gcn"])
def test_everything_held_fits_the_budget(name, budget) -> None:
    convs = _convs(name)
    for num_outputs in (1, 500, N):
        plans = _plan(convs, num_outputs=num_outputs, budget_bytes=budget)
        assert _held_bytes(convs, plans, num_outputs) <= budget


def test_the_slabs_cover_every_column_once() -> None:
    for conv, plan in zip(_convs(), _plan(_convs(), num_outputs=N, budget_bytes=2 << 20), strict=True):
        columns = [column for slab in plan.slabs for column in range(slab.start, slab.stop)]
        assert columns == list(range(conv.out_dim))


def test_a_large_budget_needs_neither_slabs_nor_the_disk() -> None:
    for plan in _plan(_convs(), num_outputs=N, budget_bytes=1 << 30):
        assert len(plan.slabs) == 1
        assert not plan.is_on_disk


def test_a_small_budget_takes_both() -> None:
    first = _plan(_convs(), num_outputs=10, budget_bytes=2 << 20)[0]
    assert len(first.slabs) > 1
    assert first.is_on_disk


def test_the_slabs_of_residual_layers_have_columns_of_both_rows_that_are_kept() -> None:
    plans = _plan(_convs("residual gat"), num_outputs=N, budget_bytes=4 << 20)
    assert [layer.sum_dim for layer in _convs("residual gat")] == [2 * H] * 3
    # A head of 16 columns, and as many of the rows that the layer's result is added to.
    assert {slab.stop - slab.start for plan in plans for slab in plan.slabs} == {32}
    assert all(plan.slabs[-1].stop == 2 * H for plan in plans)


def test_rows_that_a_layer_computes_before_its_table_make_chunks_smaller() -> None:
    plain, residual = (
        _plan(_convs(name), num_outputs=10, budget_bytes=1 << 30)[0] for name in ("mlp", "residual mlp")
    )
    # Half of the buffers. A row: three of the features, and the table; a residual row also has two rows of its own.
    assert plain.rows_per_read == (64 << 20) // (4 * (3 * F + H))
    assert residual.rows_per_read == (64 << 20) // (4 * (3 * F + 2 * H + 2 * H))


def test_learned_numbers_in_place_of_codes_make_chunks_smaller() -> None:
    codes = (CodeColumn(name="city", column=0, num_values=900, digest="", dim=H),)
    config = ModelConfig(name="graphsage", hidden=H)
    layers = build_model(config, in_dim=F, out_dim=C, num_layers=3, codes=codes).layers
    assert layers[0].read_dims == {NODE: F}
    assert layers[0].in_dims == {NODE: F - 1 + H}
    plain, coded = (_plan(each, num_outputs=10, budget_bytes=1 << 30) for each in (_convs(), layers))
    # Half of the buffers. A row: the numbers that are looked up and the joined row, next to chunks that are read.
    assert plain[0].rows_per_read == (64 << 20) // (4 * (3 * F + 2 * H))
    assert coded[0].rows_per_read == (64 << 20) // (4 * (3 * 2 * (F - 1 + H) + 2 * H))
    assert coded[1:] == plain[1:]


def test_attention_is_cut_between_heads_only() -> None:
    convs = _convs("gat", num_layers=2)
    plan = _plan(convs, num_outputs=10, budget_bytes=2_500_000)[0]
    assert [(slab.start, slab.stop) for slab in plan.slabs] == [(0, 32), (32, 64)]


@pytest.mark.reliability("C14")
def test_a_budget_below_the_narrowest_table_is_refused_with_both_sizes() -> None:
    with pytest.raises(
        BudgetError, match=r"at least 80 KB for 10,000 nodes; the memory budget leaves 30.9 KB for that"
    ):
        _plan(_convs(), num_outputs=10, budget_bytes=50_000)


@pytest.mark.reliability("J11")
def test_nodes_whose_class_is_asked_for_count() -> None:
    """Ids, positions, labels and classes: with a million of them, what else fits is refused."""
    few, many = 10, 1_000_000
    _plan(_convs(), num_outputs=few, budget_bytes=30_000_000)
    with pytest.raises(BudgetError, match="leaves 0 B"):
        _plan(_convs(), num_outputs=many, budget_bytes=30_000_000)


def _on_device(convs, device_bytes, *, num_outputs=N, budget=1 << 30):
    plans = plan_on_device(convs, _extent(num_outputs), device_bytes=device_bytes, budget_bytes=budget)
    return None if plans is None else tuple(types[NODE] for types in plans)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("device_bytes", [2 << 20, 4 << 20, 8 << 20, 64 << 20])
def test_everything_held_on_a_device_fits_it(name, device_bytes) -> None:
    convs = _convs(name)
    plans = _on_device(convs, device_bytes)
    if plans is None:
        assert (name, device_bytes) == ("gat", 2 << 20)
        return
    worst, inputs = 0, 0
    for conv, plan in zip(convs, plans, strict=True):
        outputs = 4 * N * conv.out_dim if plan.is_on_device else 0
        widths = sum(_conv(conv).table_widths(plan.slabs[0].stop))
        rows = 4 * plan.rows_per_read * (3 * conv.in_dims[NODE] + widths)
        pieces = 3 * 8 * plan.edges_per_piece + 4 * plan.rows_per_piece * plan.slabs[0].stop
        worst = max(worst, inputs + outputs + 4 * N * widths + max(rows, pieces))
        inputs = outputs
    assert worst <= device_bytes


def test_slabs_get_narrower_with_the_devices_memory_until_one_step_does_not_fit() -> None:
    convs = _convs()
    sizes = [64 << 20, 4 << 20, 2 << 20, 1 << 20, 200_000]
    counts = [sum(len(plan.slabs) for plan in _on_device(convs, size)) for size in sizes]
    assert counts == sorted(set(counts))
    assert counts[0] == len(convs)
    # A step takes 8 bytes a node, a quarter of all is for buffers.
    assert _on_device(convs, 8 * N * 4 // 3 + 1) is not None
    assert _on_device(convs, 8 * N * 4 // 3 - 1) is None


def test_activations_leave_the_device_before_a_layer_does() -> None:
    """Averaged heads are not cut: their table fits alone, and not beside the few columns of its inputs."""
    config = ModelConfig(name="gat", hidden=16, heads=4)
    convs = _layers(build_model(config, in_dim=F, out_dim=47, num_layers=2))
    table = 4 * N * sum(_conv(convs[1]).table_widths(47))
    plans = _on_device(convs, (table + 4 * N * 8) * 4 // 3)
    assert plans is not None
    assert not plans[0].is_on_device
    assert _on_device(convs, (table + 4 * N * 17) * 4 // 3)[0].is_on_device


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp"])
def test_the_reasonable_memory_gives_slabs_of_16_columns_and_no_less_does(name) -> None:
    convs = _convs(name)

    def narrowest(device_bytes: int) -> bool:
        plans = _on_device(convs, device_bytes)
        return plans is not None and all(
            plan.slabs[0].stop >= min(16, conv.out_dim) for conv, plan in zip(convs, plans, strict=True)
        )

    needed = reasonable_device_bytes(convs, _extent(N))
    assert narrowest(needed)
    # Activations that stay on the device may take a third of what slabs would be wider by.
    assert not narrowest(needed * 98 // 100)
