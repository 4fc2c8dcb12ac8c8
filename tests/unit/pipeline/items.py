"""Hand-made items for the verbs: a graph of 20 nodes, rows of 3 elements, superbatches of two batches."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gloader.cache import CachePlan, Trace, make_planner
from gloader.core.order import EpochOrder
from gloader.observe.instruments import Instruments
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.pipeline.sample import ordered
from gloader.pipeline.seeds import BatchStream
from gloader.pipeline.superbatch import OrderedBatch, StagedSuperbatch, StagedTable
from gloader.samplers import CscGraph
from gloader.ssd_store import DirectMisses, RamFeatures
from gloader.ssd_store.cost.strategy import Choice
from gloader.types import BatchId, SampledBatch

NUM_NODES, DIM, BATCH_SIZE = 20, 3, 4
FEATURES = np.arange(NUM_NODES * DIM, dtype=np.float32).reshape(NUM_NODES, DIM)
GRAPH = CscGraph(
    indptr=np.arange(NUM_NODES + 1, dtype=np.int64), indices=np.arange(NUM_NODES, dtype=np.int32)
)
NODES = ([9, 4, 2, 17], [2, 4, 11])  # of the two batches of a superbatch
ORDER = EpochOrder(seeds=np.arange(NUM_NODES), num_nodes=NUM_NODES, batch_size=BATCH_SIZE, seed=1)


def instruments() -> Instruments:
    return Instruments()


def ring(num_buffers: int = 4) -> BufferRing:
    row = 4 * DIM
    return BufferRing(forms=[RowForm(dim=DIM)], rows=[4], max_bytes=num_buffers * 4 * row, patience_s=0.1)


def stream(end_epoch: int | None = 1) -> BatchStream:
    return BatchStream(ORDER, BatchId(epoch=0, index=0), end_epoch=end_epoch)


def sampled(index: int, nodes: list[int] | None = None) -> SampledBatch:
    ids = np.array(NODES[index % len(NODES)] if nodes is None else nodes, dtype=np.int64)
    return SampledBatch(id=BatchId(epoch=0, index=index), nodes=ids, num_seeds=1, blocks=())


def degrees(index: int) -> NDArray[np.float32]:
    """Return other degrees than those of `GRAPH`, so that it shows where a batch has them from."""
    return np.arange(len(sampled(index).nodes), dtype=np.float32)


def in_order(index: int) -> OrderedBatch:
    return ordered(sampled(index), degrees(index))


def trace() -> Trace:
    return Trace(np.sort(np.array(nodes)) for nodes in NODES)


def plan(capacity: int = 2) -> CachePlan:
    return make_planner("belady", num_nodes=NUM_NODES, capacity=capacity).plan(trace(), Trace())


def staged(number: int = 1, misses: Any = None) -> StagedSuperbatch:
    return StagedSuperbatch(
        number=number,
        first=BatchId(epoch=0, index=0),
        tables=(
            StagedTable(
                plan=plan().without_trace(),
                misses=DirectMisses(RamFeatures(FEATURES)) if misses is None else misses,  # type: ignore[arg-type]
                choice=Choice(strategy="direct", predicted={"direct": 1.0}, reason="by hand"),
            ),
        ),
    )


class OneSampler:
    """Samples by rule, and counts."""

    def __init__(self) -> None:
        self.calls: list[BatchId] = []

    def sample(self, batch_id: BatchId, seeds: Any) -> SampledBatch:
        self.calls.append(batch_id)
        nodes = np.append(seeds[::-1], (seeds[0] + 7) % NUM_NODES)
        return SampledBatch(id=batch_id, nodes=np.unique(nodes)[::-1].copy(), num_seeds=len(seeds), blocks=())


def seconds_of(found: Instruments, stage: str, epoch: int = 0) -> float:
    return found.recorder(epoch).snapshot().stage_seconds[stage]


def closing() -> Any:
    """Return a source of misses that knows whether it was closed."""
    source = SimpleNamespace(is_closed=False)
    source.close = lambda: setattr(source, "is_closed", True)
    return source
