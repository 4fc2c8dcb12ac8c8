"""The inference of several types fits its memory; slabs and the SSD come before a refusal."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gloader.errors import BudgetError
from gloader.training.inference.layer_plan import (
    Extent,
    LayerPlan,
    plan_inference,
    plan_on_device,
    reasonable_device_bytes,
)
from gloader.types import Relation

F, H, STEP = 40, 64, 16
NUM_NODES = {"paper": 10_000, "author": 14_000, "institute": 300, "field": 900}
RELATIONS: tuple[Relation, ...] = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "written_by", "author"),
    ("institute", "employs", "author"),
    ("paper", "has", "field"),
)


@dataclass(frozen=True)
class Conv:
    """Attention with heads of 16 columns."""

    column_step: int = STEP
    edge_dim: int = 0
    edge_floats: int = 0
    is_rowwise: bool = False
    row_floats: int = 0

    def table_widths(self, n: int) -> tuple[int, ...]:
        return (n, n // self.column_step)

    def own_widths(self, n: int) -> tuple[int, ...]:
        return (n // self.column_step,)


class Layer:
    sum_dim = H
    head = None
    roots = dict.fromkeys(NUM_NODES, "a Linear")

    def __init__(self, in_dim: int, *, step: int = STEP) -> None:
        self.read_dims = self.in_dims = dict.fromkeys(NUM_NODES, in_dim)
        self.relations = {relation: Conv(step) for relation in RELATIONS}

    def relations_into(self, node_type: str) -> dict[Relation, Conv]:
        return {relation: conv for relation, conv in self.relations.items() if relation[2] == node_type}


BUDGETS = range(4 << 20, 40 << 20, 1 << 19)
LAYERS = [Layer(F), Layer(H), Layer(H)]
FINE_LAYERS = [Layer(F, step=1), Layer(H, step=1)]


def extent(num_outputs: int) -> Extent:
    return Extent(num_nodes=NUM_NODES, relations=RELATIONS, outputs={"paper": num_outputs})


def many_sources(num_outputs: int) -> Extent:
    """Few nodes are made of many: tables are larger than what comes of them."""
    counts = {"paper": 10_000, "author": 60_000, "institute": 90_000, "field": 0}
    return Extent(num_nodes=counts, relations=RELATIONS, outputs={"paper": num_outputs})


def held_bytes(layers, given: Extent, plans, *, is_near) -> int:
    """The most that is held at once beside the buffers."""
    worst, inputs = 0, {}
    for depth, (layer, types) in enumerate(zip(layers, plans, strict=True)):
        made = {}
        for name, plan in types.items():
            rows = (given.outputs if depth == len(plans) - 1 else given.num_nodes)[name]
            made[name] = 4 * rows * H if is_near(plan) else 0
            width = plan.slabs[0].stop
            into = {key: conv for key, conv in layer.relations.items() if key[2] == name}
            own = sum(sum(conv.own_widths(width)) for conv in into.values())
            tables = [given.num_nodes[key[0]] * sum(conv.table_widths(width)) for key, conv in into.items()]
            sums = 0 if is_near(plan) else rows * width
            work = 4 * (max(tables, default=0) + rows * own + sums)
            after = list(types)[list(types).index(name) :]
            alive = {source for source, _, end in given.relations if end in after} | set(after)
            worst = max(worst, sum(inputs.get(key, 0) for key in alive) + sum(made.values()) + work)
        inputs = made
    return worst


def buffer_bytes(plans) -> int:
    """The most that is read or propagated at once."""
    return max(
        max(4 * plan.rows_per_read * 3 * H, 32 * plan.edges_per_piece)
        for types in plans
        for plan in types.values()
    )


@pytest.mark.parametrize("num_outputs", [1, 500, 10_000])
def test_everything_held_fits_the_budget(num_outputs) -> None:
    for layers, given in ((LAYERS, extent(num_outputs)), (FINE_LAYERS, many_sources(num_outputs))):
        for budget in BUDGETS:
            plans = plan_inference(layers, given, budget_bytes=budget)
            held = held_bytes(layers, given, plans, is_near=lambda plan: not plan.is_on_disk)
            # A quarter is for buffers, an eighth for those of files.
            assert held <= budget - budget // 4 - budget // 8
            assert buffer_bytes(plans) <= budget // 4


def test_everything_held_on_a_device_fits_it() -> None:
    for layers, given in ((LAYERS, extent(500)), (FINE_LAYERS, many_sources(500))):
        for device_bytes in BUDGETS:
            plans = plan_on_device(layers, given, device_bytes=device_bytes, budget_bytes=1 << 30)
            assert plans is not None
            held = held_bytes(layers, given, plans, is_near=lambda plan: plan.is_on_device)
            assert held <= device_bytes - device_bytes // 4
            assert buffer_bytes(plans) <= device_bytes // 4
            assert not any(plan.is_on_device for plan in plans[-1].values())


def test_the_reasonable_memory_gives_slabs_of_16_columns_and_less_does_not() -> None:
    layers = FINE_LAYERS
    needed = reasonable_device_bytes(layers, extent(10_000))

    def narrowest(device_bytes: int) -> int:
        plans = plan_on_device(layers, extent(10_000), device_bytes=device_bytes, budget_bytes=1 << 30)
        assert plans is not None
        return min(plan.slabs[0].stop for types in plans for plan in types.values())

    assert narrowest(needed) >= 16
    assert narrowest(needed * 9 // 10) < 16


def test_only_types_that_lead_to_the_target_in_the_layers_that_are_left_have_a_plan() -> None:
    plans = plan_inference(LAYERS, extent(500), budget_bytes=1 << 30)
    assert [list(types) for types in plans] == [
        ["paper", "author", "institute"],
        ["paper", "author"],
        ["paper"],
    ]


def slabs(plans) -> list[LayerPlan]:
    return [plan for types in plans for plan in types.values()]


def test_much_memory_needs_neither_slabs_nor_the_disk_and_little_both() -> None:
    much = slabs(plan_inference(LAYERS, extent(500), budget_bytes=1 << 30))
    assert all(len(plan.slabs) == 1 and not plan.is_on_disk for plan in much)
    little = plan_inference(LAYERS, extent(500), budget_bytes=4 << 20)
    assert max(len(plan.slabs) for plan in slabs(little)) > 1
    # The smallest type stays in memory.
    assert [name for name, plan in little[0].items() if not plan.is_on_disk] == ["institute"]
    for plan in slabs(little):
        columns = [column for slab in plan.slabs for column in range(slab.start, slab.stop)]
        assert columns == list(range(H))
        assert all(slab.start % STEP == 0 for slab in plan.slabs)


@pytest.mark.reliability("C14")
def test_a_budget_below_the_narrowest_table_is_refused_with_the_type_and_both_sizes() -> None:
    with pytest.raises(
        BudgetError,
        match=r"of type 'paper' keeps at least 1\.\d+ MB beside its inputs; the memory budget leaves \d+ KB for that",
    ):
        plan_inference(LAYERS, extent(10), budget_bytes=1_000_000)
    assert plan_on_device(LAYERS, extent(10), device_bytes=1_000_000, budget_bytes=1 << 30) is None


def test_nodes_whose_rows_are_asked_for_count() -> None:
    plan_inference(LAYERS, extent(10), budget_bytes=4 << 20)
    with pytest.raises(BudgetError, match="leaves 0 B"):
        plan_inference(LAYERS, extent(90_000), budget_bytes=4 << 20)
