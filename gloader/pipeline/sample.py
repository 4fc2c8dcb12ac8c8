"""Sample: the batch at a position of the stream, for its trace or to be executed."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from gloader.cache import encode_ids
from gloader.pipeline.table_rows import OrderedRows, distinct_rows, ordered_rows
from gloader.samplers import HeteroGraph
from gloader.samplers.graph import float_in_degrees
from gloader.types import HeteroBatch, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.positions import BatchStream
    from gloader.samplers import Topology
    from gloader.types import AnyBatch, AnySampler, IdArray

_NO_DEGREES: Final = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeBatch:
    """A sampled batch and the degrees of its nodes."""

    sampled: AnyBatch
    # (U,) in-degree, see `SampledBatch.in_degrees`; (0,) of a batch on the device, which has them, or of several types
    src_degree: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBatch:
    """A sampled batch, with its rows in each table in ascending order too."""

    sampled: AnyBatch
    src_degree: NDArray[np.float32]  # as of `WholeBatch`
    tables: tuple[OrderedRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedRows:
    """The ascending rows of one batch in a table, coded."""

    code: NDArray[np.uint8]
    count: int  # V

    @classmethod
    def of(cls, ascending: IdArray) -> CodedRows:
        """Return ``ascending`` (V,), each there once, coded."""
        return cls(code=encode_ids(ascending), count=len(ascending))


TraceEntry: TypeAlias = tuple[CodedRows, ...]  # of one batch, in each table


class BatchSource(Protocol):
    """Makes the batch at a position, as a part of what is measured as one piece of work. Thread-safe."""

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``: of making it, and of all that is made of it."""
        ...

    def make(self, position: int, work: Work) -> AnyBatch:
        """Return the batch at ``position`` of the stream, as a part of ``work``."""
        ...


class SampleBatch:
    """Samples the batch at a position. Thread-safe.

    Parameters
    ----------
    sampler : draws the neighbours
    stream : gives seeds and address of each position
    instruments : measure it
    """

    def __init__(self, sampler: AnySampler, stream: BatchStream, instruments: Instruments) -> None:
        self._sampler = sampler
        self._stream = stream
        self._instruments = instruments

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self._instruments.working("sample", self._stream.id_of(position))

    def make(self, position: int, work: Work) -> AnyBatch:
        """Return the batch at ``position`` of the stream."""
        # Measured too, as rows of a link table are read and looked up for the seeds.
        return self._sampler.sample(work.batch, self._stream.seeds_at(position))


class SampleWhole:
    """Samples the batch that is gathered next. Thread-safe.

    Degrees are looked up by the threads that sample, of which there are several: the one that gathers has its hands
    full.

    Parameters
    ----------
    sample : the batch of a position
    topology : gives the in-degrees, which batches of several types do without
    """

    name: Final = "sample"

    def __init__(self, sample: BatchSource, topology: Topology | HeteroGraph) -> None:
        self._sample = sample
        self._topology = topology

    def process(self, position: int) -> WholeBatch:
        """Return the batch at ``position`` of the stream, and the degrees of its nodes."""
        with self._sample.working(position) as work:
            batch = self._sample.make(position, work)
            return WholeBatch(sampled=batch, src_degree=_degrees(batch, self._topology))


class SampleTrace:
    """Samples a batch for its trace, and keeps it for `SampleOrdered` as far as ``kept`` has room. Thread-safe.

    Parameters
    ----------
    sample : the batch of a position
    kept : takes it
    types : the number of each table, see `table_rows`
    """

    name: Final = "sample"

    def __init__(self, sample: BatchSource, kept: KeptBatches, types: Sequence[int] = (0,)) -> None:
        self._sample = sample
        self._kept = kept
        self._types = types

    def process(self, position: int) -> TraceEntry:
        """Return the nodes of the batch at ``position`` of the stream."""
        with self._sample.working(position) as work:
            work.note(ahead=True)
            batch = self._sample.make(position, work)
            self._kept.offer(position, batch)
            return trace_entry(batch, self._types)


class SampleOrdered:
    """Brings a batch that is executed next: the one that was kept, or the same one sampled again. Thread-safe.

    Sampling is a pure function of the batch's address, and costs less than writing the blocks to a disk and
    reading them back.

    Parameters
    ----------
    sample : the batch of a position
    kept : those that were sampled for their trace and kept
    topology : gives the in-degrees, which batches of several types do without
    types : the number of each table, see `table_rows`
    """

    name: Final = "sample"

    def __init__(
        self,
        sample: BatchSource,
        kept: KeptBatches,
        topology: Topology | HeteroGraph,
        types: Sequence[int] = (0,),
    ) -> None:
        self._sample = sample
        self._kept = kept
        self._topology = topology
        self._types = types

    def process(self, position: int) -> OrderedBatch:
        """Return the batch at ``position`` of the stream, and the order and degrees of its nodes."""
        with self._sample.working(position) as work:
            batch = self._kept.take(position)
            if batch is None:
                batch = self._sample.make(position, work)
            else:
                work.note(kept=True)
            return ordered(batch, _degrees(batch, self._topology), self._types)


class KeptBatches:
    """Sampled batches that wait in memory between their trace and their execution. Thread-safe.

    Parameters
    ----------
    max_bytes : of all of them together
    """

    def __init__(self, max_bytes: int) -> None:
        # Reentrant: dropping a batch may run the garbage collector, and that may close the run that asks here.
        self._lock = threading.RLock()
        self._batches: dict[int, AnyBatch] = {}
        self._left_bytes = max_bytes

    def offer(self, position: int, batch: AnyBatch) -> None:
        """Keep ``batch`` where there is room, unless it lies on the device, where there is none for so many."""
        if batch.on_device is not None:
            return
        size = _num_bytes(batch)
        with self._lock:
            # First come, first kept: which batch it is makes no difference, all are executed once.
            if size <= self._left_bytes:
                self._batches[position] = batch
                self._left_bytes -= size

    def take(self, position: int) -> AnyBatch | None:
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


def trace_entry(batch: AnyBatch, types: Sequence[int]) -> TraceEntry:
    """Return the rows of ``batch`` in each table of these numbers. Pure."""
    return tuple(CodedRows.of(distinct_rows(batch, number)) for number in types)


def ordered(batch: AnyBatch, src_degree: NDArray[np.float32], types: Sequence[int] = (0,)) -> OrderedBatch:
    """Return ``batch`` with the order of its rows and the degrees of its nodes. Pure.

    Parameters
    ----------
    batch : as sampled
    src_degree : as of `WholeBatch`
    types : the number of each table, see `table_rows`
    """
    tables = tuple(ordered_rows(batch, number) for number in types)
    return OrderedBatch(sampled=batch, src_degree=src_degree, tables=tables)


def _degrees(batch: AnyBatch, topology: Topology | HeteroGraph) -> NDArray[np.float32]:
    """Return the degrees (U,) of the batch's nodes; none where the device has them, or there are several types."""
    if isinstance(batch, HeteroBatch) or isinstance(topology, HeteroGraph):
        return _NO_DEGREES
    if batch.in_degrees is not None:
        return batch.in_degrees
    nodes = batch.nodes if batch.on_device is None else batch.nodes[:0]
    return float_in_degrees(topology.offsets, nodes)


def beside_bytes(batch: AnyBatch) -> int:
    """Return the bytes of what a batch has beside its nodes and edges: links, trees and degrees of its nodes. Pure."""
    found: list[NDArray[Any] | None]
    found = (
        [batch.trees, batch.in_degrees]
        if isinstance(batch, SampledBatch)
        else [*(batch.trees or {}).values()]
    )
    links = batch.links
    of_links = () if links is None else (links.pairs, links.labels, links.edge_ids)
    return sum(array.nbytes for array in (*found, *of_links) if array is not None)


def _num_bytes(batch: AnyBatch) -> int:
    blocks = batch.all_blocks
    weights = sum(block.edge_weight.nbytes for block in blocks if block.edge_weight is not None)
    edges = sum(block.indptr.nbytes + block.indices.nbytes + block.edge_ids.nbytes for block in blocks)
    return sum(nodes.nbytes for nodes in batch.node_arrays) + edges + weights + beside_bytes(batch)
