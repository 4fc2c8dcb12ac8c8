"""`gloader inspect` counts the misses of the planner that a run builds."""

import numpy as np
import pytest

import gloader
from gloader.cache import Trace
from gloader.core.order import EpochOrder
from gloader.lab.inspect import inspect_trace, sample_trace
from gloader.samplers import NeighborSampler

from .conftest import NUM_NODES, Written
from .streams import ROW, SAMPLING


@pytest.mark.parametrize("superbatch", [1, 2, 4])
@pytest.mark.parametrize("rows", [60, 200, 400])
def test_inspected_misses_are_those_of_the_planner_of_a_run(
    tiny: Written, rows: int, superbatch: int
) -> None:
    with gloader.Loader(
        tiny.dataset, **SAMPLING, features="ssd", cache=rows * ROW, superbatch=superbatch, memory_budget="200MB"
    ) as loader:  # fmt: skip
        assert loader.memory_plan.cache_rows == (rows,)
        planner = loader._held.tier.require_ssd()[0].planner
        sampler = NeighborSampler(loader.graph, SAMPLING["fanouts"], seed=0)
        order = EpochOrder(
            seeds=tiny.dataset.train, num_nodes=NUM_NODES, batch_size=SAMPLING["batch_size"], seed=0
        )
        trace, presampled = (sample_trace(sampler, order, epoch=epoch) for epoch in range(2))
        parts = [
            Trace([np.sort(nodes) for nodes in trace.accesses[start : start + superbatch]])
            for start in range(0, len(trace.accesses), superbatch)
        ]
        planned = sum(
            planner.plan(part, beyond).num_misses
            for part, beyond in zip(parts, [*parts[1:], ()], strict=True)
        )
        inspection = inspect_trace(
            trace, presampled, sampler, order, row_bytes=ROW, superbatch=superbatch,
            shares=(rows / NUM_NODES,),
        )  # fmt: skip
    assert inspection.slots == (rows,)
    assert inspection.misses[f"belady, S={superbatch}"] == (planned,)
