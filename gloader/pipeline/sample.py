"""Sample: the batch at a position of the stream, for its trace or to be executed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import encode_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.observe.instruments import Instruments
    from gloader.pipeline.positions import BatchStream
    from gloader.types import IdArray, SampledBatch, Sampler

_LOW_BITS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBatch:
    """A sampled batch and its nodes in ascending order, which is the order in which plans and stores count."""

    sampled: SampledBatch
    ascending: IdArray  # (U,) node ids
    order: NDArray[np.int64]  # (U,) position in ``sampled.nodes`` of each of ``ascending``


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """The ascending node ids of one batch, coded."""

    code: NDArray[np.uint8]
    count: int  # U


class SampleBatch:
    """Samples the batch at a position. Thread-safe.

    Parameters
    ----------
    sampler : draws the neighbours
    stream : gives seeds and address of each position
    instruments : measure it
    """

    name: Final = "sample"

    def __init__(self, sampler: Sampler, stream: BatchStream, instruments: Instruments) -> None:
        self._sampler = sampler
        self._stream = stream
        self._instruments = instruments

    def process(self, position: int) -> SampledBatch:
        """Return the batch at ``position`` of the stream."""
        batch_id, seeds = self._stream.id_of(position), self._stream.seeds_at(position)
        with self._instruments.working("sample", batch_id):
            return self._sampler.sample(batch_id, seeds)


class SampleTrace:
    """Samples a batch for its trace, and keeps it for `SampleOrdered` as far as ``kept`` has room. Thread-safe."""

    name: Final = "sample"

    def __init__(self, sample: SampleBatch, kept: KeptBatches) -> None:
        self._sample = sample
        self._kept = kept

    def process(self, position: int) -> TraceEntry:
        """Return the nodes of the batch at ``position`` of the stream."""
        batch = self._sample.process(position)
        self._kept.offer(position, batch)
        return TraceEntry(code=encode_ids(np.sort(batch.nodes)), count=len(batch.nodes))


class SampleOrdered:
    """Brings a batch that is executed next: the one that was kept, or the same one sampled again. Thread-safe.

    Sampling is a pure function of the batch's address, and costs less than writing the blocks to a disk and
    reading them back.
    """

    name: Final = "sample"

    def __init__(self, sample: SampleBatch, kept: KeptBatches) -> None:
        self._sample = sample
        self._kept = kept

    def process(self, position: int) -> OrderedBatch:
        """Return the batch at ``position`` of the stream, and the order of its nodes."""
        batch = self._kept.take(position)
        return ordered(self._sample.process(position) if batch is None else batch)


class KeptBatches:
    """Sampled batches that wait in memory between their trace and their execution. Thread-safe.

    Parameters
    ----------
    max_bytes : of all of them together
    """

    def __init__(self, max_bytes: int) -> None:
        # Reentrant: dropping a batch may run the garbage collector, and that may close the run that asks here.
        self._lock = threading.RLock()
        self._batches: dict[int, SampledBatch] = {}
        self._left_bytes = max_bytes

    def offer(self, position: int, batch: SampledBatch) -> None:
        """Keep ``batch`` where there is room."""
        size = _num_bytes(batch)
        with self._lock:
            # First come, first kept: which batch it is makes no difference, all are executed once.
            if size <= self._left_bytes:
                self._batches[position] = batch
                self._left_bytes -= size

    def take(self, position: int) -> SampledBatch | None:
        """Return the batch at ``position`` and keep it no longer; None: it was not kept."""
        with self._lock:
            batch = self._batches.pop(position, None)
            if batch is not None:
                self._left_bytes += _num_bytes(batch)
        return batch

    def cancel(self) -> None:
        """Drop everything and keep nothing more. Idempotent."""
        with self._lock:
            # Too little for any batch, and it stays so: nothing is left that could be taken.
            self._left_bytes = -1
            self._batches.clear()


def ordered(batch: SampledBatch) -> OrderedBatch:
    """Return ``batch`` with the order of its nodes. Pure."""
    count = len(batch.nodes)
    if count and int(batch.nodes.max()) < 2 ** (63 - _LOW_BITS):
        # One sort of (id, position) pairs in one word is several times faster than an indirect sort.
        pairs = (batch.nodes << _LOW_BITS) | np.arange(count)
        pairs.sort()
        return OrderedBatch(sampled=batch, ascending=pairs >> _LOW_BITS, order=pairs & (2**_LOW_BITS - 1))
    order = np.argsort(batch.nodes, kind="stable").astype(np.int64)
    return OrderedBatch(sampled=batch, ascending=batch.nodes[order], order=order)


def _num_bytes(batch: SampledBatch) -> int:
    weights = sum(block.edge_weight.nbytes for block in batch.blocks if block.edge_weight is not None)
    blocks = sum(block.indptr.nbytes + block.indices.nbytes + block.edge_ids.nbytes for block in batch.blocks)
    return batch.nodes.nbytes + blocks + weights
