"""The inspection of a small skewed graph: what must hold between the policies, and what is refused."""

from __future__ import annotations

import json
from typing import Any, get_args
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from gloader.cache import MissCurve, OnlineName, plan_belady
from gloader.core.order import EpochOrder
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.lab.bench.graphs import synthetic_graph
from gloader.lab.inspect import AccessTrace, Inspection, inspect_trace, sample_trace
from gloader.lab.inspect.policy_misses import knee, superbatch_misses
from gloader.lab.report.inspection import draw_inspection
from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId

NUM_NODES, BATCH_SIZE, FANOUTS = 2000, 20, (4, 3)
SEEDS = np.arange(0, NUM_NODES, 4)


@pytest.fixture(scope="module")
def graph() -> CscGraph:
    return synthetic_graph("powerlaw", num_nodes=NUM_NODES, num_edges=20_000)


ORDER = EpochOrder(seeds=SEEDS, num_nodes=NUM_NODES, batch_size=BATCH_SIZE, seed=0)


def _sampler(graph: CscGraph) -> NeighborSampler:
    return NeighborSampler(graph, FANOUTS, seed=0)


def _sample(graph: CscGraph, **settings: Any) -> AccessTrace:
    return sample_trace(_sampler(graph), ORDER, **settings)


@pytest.fixture(scope="module")
def trace(graph: CscGraph) -> AccessTrace:
    return _sample(graph)


@pytest.fixture(scope="module")
def inspection(graph: CscGraph, trace: AccessTrace) -> Inspection:
    return inspect_trace(trace, _sample(graph, epoch=1), _sampler(graph), ORDER, row_bytes=512, superbatch=6)


def test_a_trace_is_what_a_loader_samples(graph: CscGraph, trace: AccessTrace) -> None:
    order = EpochOrder(seeds=SEEDS, num_nodes=NUM_NODES, batch_size=BATCH_SIZE, seed=0)
    sampler, ordered = NeighborSampler(graph, FANOUTS, seed=0), order.epoch_seeds(0)
    assert len(trace.accesses) == trace.epoch_batches == order.num_batches == 25
    for index, nodes in enumerate(trace.accesses):
        batch = sampler.sample(BatchId(epoch=0, index=index), order.batch_seeds(ordered, index))
        assert np.array_equal(nodes, batch.nodes)
        assert nodes.dtype == np.int32


def test_threads_do_not_change_a_trace_and_batches_cut_it(graph: CscGraph, trace: AccessTrace) -> None:
    part = _sample(graph, batches=7, threads=3)
    assert all(map(np.array_equal, part.accesses, trace.accesses[:7]))
    assert (len(part.accesses), part.epoch_batches) == (7, 25)
    assert len(_sample(graph, batches=1000).accesses) == 25


def test_a_trace_that_cannot_be_is_refused(graph: CscGraph) -> None:
    with pytest.raises(
        BudgetError, match=r"the trace of 25 batches takes .* allowed are 8\.19 KB.* --batches \d+"
    ):
        _sample(graph, budget_bytes=8192)
    with pytest.raises(ConfigError, match="0 batches of 500 training nodes"):
        _sample(graph, batches=0)


def test_belady_is_the_floor_and_superbatches_cost_little(inspection: Inspection) -> None:
    whole, carried, reset = (
        np.array(inspection.misses[f"belady{kind}"]) for kind in ("", ", S=6", ", S=6 reset")
    )
    for name in ("lru", "sieve", "s3fifo", "none", "belady, S=6", "belady, S=6 reset"):
        assert (np.array(inspection.misses[name]) >= whole).all()
    assert (carried <= reset).all()
    seen_ahead = np.array(inspection.slots) <= 0.15 * NUM_NODES
    assert (carried[seen_ahead] <= 1.02 * whole[seen_ahead]).all()
    best = np.array(inspection.misses["static, best"])
    for score in ("degree", "presample", "vip"):
        assert (np.array(inspection.misses[f"static, {score}"]) >= best).all()
    tenth = inspection.slots.index(NUM_NODES // 10)
    assert whole[tenth] < best[tenth] < inspection.misses["none"][tenth]


def test_online_policies_stand_in_the_order_of_their_names(inspection: Inspection) -> None:
    online = [name for name in get_args(OnlineName) if name in inspection.misses]
    assert [name for name in inspection.misses if name in online] == online
    # FIFO and CLOCK are left out on purpose; a policy that is added is not.
    assert set(get_args(OnlineName)) - set(online) == {"fifo", "clock"}


def test_with_room_for_everything_each_row_is_read_once(inspection: Inspection) -> None:
    assert inspection.slots[-1] == NUM_NODES
    for name in ("belady", "belady, S=6", "lru", "sieve", "s3fifo"):
        assert inspection.misses[name][-1] == inspection.num_distinct
    assert inspection.misses["static, best"][-1] == 0


def test_one_superbatch_is_the_whole_trace(trace: AccessTrace) -> None:
    capacities = (0, 50, 400)
    planned = tuple(plan_belady(trace.accesses, capacity=capacity).num_misses for capacity in capacities)
    assert superbatch_misses(trace, capacities, 1000) == planned


def test_numbers_for_programs_are_json_in_bytes_per_epoch(inspection: Inspection) -> None:
    report = json.loads(json.dumps(inspection.to_json()))
    assert report["policies"]["none"]["ssd_bytes_per_epoch"] == [512 * inspection.num_accesses] * len(
        report["slots"]
    )
    assert report["memory_bytes"] == [512 * slots for slots in report["slots"]]
    assert report["knee"]["memory_bytes"] == inspection.knee_bytes > 0


def test_a_part_of_an_epoch_stands_for_the_whole(graph: CscGraph) -> None:
    part = _sample(graph, batches=5)
    inspected = inspect_trace(part, part, _sampler(graph), ORDER, row_bytes=10, shares=(0.1,))
    assert inspected.epoch_bytes("none") == [part.num_accesses * 10 * 25 // 5]
    with pytest.raises(ConfigError, match="superbatch is 0"):
        inspect_trace(part, part, _sampler(graph), ORDER, row_bytes=10, superbatch=0)


def _curve(capacities: list[int], misses: list[int]) -> MissCurve:
    return MissCurve(capacities=np.array(capacities), misses=np.array(misses), num_accesses=misses[0])


def test_the_knee_is_where_the_curve_turns() -> None:
    assert knee(_curve([0, 10, 100], [1000, 200, 100])) == 10
    assert knee(_curve([0], [7])) == 0
    assert knee(_curve([0, 5], [7, 7])) == 0


def test_the_chart_has_a_curve_for_each_policy_and_the_knee(inspection: Inspection) -> None:
    chart = draw_inspection(inspection, "inspect")
    assert chart is not None
    root = ET.fromstring(chart.svg)  # noqa: S314 - our own
    assert len(list(root.iter("polyline"))) == len(inspection.misses)
    texts = {element.text for element in root.iter("text")}
    assert {"belady", "lru", "none", f"knee {format_bytes(inspection.knee_bytes)}"} <= texts
