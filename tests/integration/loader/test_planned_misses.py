"""A run misses what Belady's algorithm misses that sees the next superbatch, and no more."""

from itertools import pairwise

import numpy as np

import gloader
from gloader.cache import make_planner
from gloader.ssd_store.cost.strategy import ramp

from .conftest import NUM_NODES, Written
from .streams import ROW, SAMPLING

CAPACITY, SUPERBATCH, EPOCHS = 120, 2, 3


def _planned(traces: list[list[np.ndarray]], *, looks_ahead: bool) -> int:
    planner = make_planner("belady", num_nodes=NUM_NODES, capacity=CAPACITY)
    pairs = [*pairwise(traces), (traces[-1], [])]
    # The first superbatch, of one batch, is planned without waiting for the next.
    return sum(
        planner.plan(trace, beyond if looks_ahead and number else ()).num_misses
        for number, (trace, beyond) in enumerate(pairs)
    )


def test_a_run_reads_what_the_plan_with_look_ahead_misses(tiny: Written) -> None:
    with gloader.Loader(
        tiny.dataset, **SAMPLING, features="ssd", cache=CAPACITY * ROW, superbatch=SUPERBATCH, memory_budget="200MB",
        epochs=EPOCHS, io_strategy="direct",
    ) as loader:  # fmt: skip
        nodes, rows_read = [], 0
        for _ in range(EPOCHS):
            nodes += [np.sort(batch.nodes) for batch in loader]
            rows_read += loader.stats.rows_read
    sizes, traces, start = ramp(SUPERBATCH), [], 0
    while start < len(nodes):
        stop = start + next(sizes)
        traces.append(nodes[start:stop])
        start = stop
    assert rows_read == _planned(traces, looks_ahead=True)
    assert rows_read < _planned(traces, looks_ahead=False), "the trace must be one where looking ahead pays"
