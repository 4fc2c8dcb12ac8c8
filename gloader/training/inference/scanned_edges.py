"""In-edges for inference, in pieces of bounded size, read on the host or held on the device.

Targets are the nodes whose rows a layer computes (`layer_pass`). They are cut into spans: consecutive targets whose
edges fit the limits together. The edges of a span are one piece. Only a node that exceeds the limit alone is a span
with several pieces. A `Part` is a span on the computing device. `HostEdges` makes parts for the CPU, and `DeviceEdges`
for a GPU. Offsets are CSC offsets: the in-edges of node v are the positions ``offsets[v]`` to ``offsets[v + 1]``.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch

from gloader.core.offsets import degrees_between, offsets_of
from gloader.device.seam import CpuDevice
from gloader.models.adjacency import Adjacency, Part
from gloader.samplers import CscGraph
from gloader.training.inference.row_stream import send_ahead

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from gloader.device import Device
    from gloader.samplers import Topology
    from gloader.training.inference.row_stream import Sent
    from gloader.types import FeatureSource, IdArray


_NODES_PER_CUT: Final = 1 << 16  # targets that are cut into spans together
_ROWS_PER_READ: Final = 1 << 14  # rows of edge features read together


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceLimits:
    """The largest numbers of edges and target rows that are computed together."""

    max_edges: int  # a node with more edges is split into several pieces
    max_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeFeatures:
    """The edge features that a layer takes."""

    source: FeatureSource  # (E, F_e): row i belongs to the edge at position i

    def of(self, piece: Span) -> NDArray[np.float32]:
        """Read the features of a piece's edges, (num_edges, F_e)."""
        rows = np.empty((piece.num_edges, self.source.dim), dtype=np.float32)
        # The reads are made in portions, because all ids and row positions together may take more memory than the rows.
        for first in range(0, len(rows), _ROWS_PER_READ):
            portion = rows[first : first + _ROWS_PER_READ]
            self.source.read_into(piece.positions(first, first + len(portion)), portion)
        return rows


class Edges(Protocol):
    """The in-edges of all nodes of one relation, for the computing device."""

    def degree(self, start: int, stop: int) -> torch.Tensor:
        """Return the in-degrees of nodes ``start`` to ``stop`` as float32."""
        ...

    def parts(
        self, targets: IdArray | range, limits: PieceLimits, features: EdgeFeatures | None = None
    ) -> Generator[Part]:
        """Yield ``targets`` (n,) in consecutive parts.

        Parameters
        ----------
        targets : ids of the nodes
        limits : bounds of a piece
        features : edge features for the pieces, read once, in piece order; None for pieces without features
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Consecutive output rows that are computed together."""

    start: int
    stop: int  # exclusive


def cut_rows(counts: IdArray, *, max_edges: int, max_rows: int) -> tuple[RowRange, ...]:
    """Cut rows into ranges that are computed together. A row with too many edges has its own range. Pure.

    Parameters
    ----------
    counts : (n,) each row's number of in-edges
    max_edges : largest number of edges in a range with several rows
    max_rows : largest number of rows in a range
    """
    ends = np.cumsum(counts)
    ranges = []
    start = 0
    while start < len(counts):
        before = ends[start] - counts[start]
        stop = int(np.searchsorted(ends, before + max_edges, side="right"))
        # A range has at least one row, so that a node with more edges than ``max_edges`` does not stop the loop.
        stop = min(max(stop, start + 1), start + max_rows, len(counts))
        ranges.append(RowRange(start=start, stop=stop))
        start = stop
    return tuple(ranges)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Span:
    """Target nodes that are computed together, with the positions of their in-edges, on the host."""

    nodes: IdArray  # (n,)
    starts: IdArray  # (n,) position of each node's first in-edge
    counts: IdArray  # (n,) number of each node's in-edges

    @property
    def num_edges(self) -> int:
        """The in-edges of all the nodes."""
        return int(self.counts.sum())

    @property
    def is_range(self) -> bool:
        """True if the nodes, and therefore their edges, are consecutive."""
        return bool((np.diff(self.nodes) == 1).all())

    def positions(self, first: int, stop: int) -> IdArray:
        """Return the graph positions of the span's edges with the numbers ``first`` to ``stop``, (stop - first,).

        The numbers count the span's edges from 0, node after node.
        """
        ends = np.cumsum(self.counts)
        # The nodes with at least one of these edges.
        nodes = slice(
            int(np.searchsorted(ends, first, side="right")), int(np.searchsorted(ends, stop, side="left")) + 1
        )
        counts, before = self.counts[nodes], (ends - self.counts)[nodes]
        taken = np.minimum(before + counts, stop) - np.maximum(before, first)
        shift = np.repeat(self.starts[nodes] - before, taken)
        positions: IdArray = shift + np.arange(first, stop, dtype=np.int64)
        return positions

    def pieces(self, max_edges: int) -> Iterator[Span]:
        """Yield the span itself, or a single node's edges in parts of ``max_edges``. Yields nothing without edges."""
        if len(self.nodes) > 1:
            if self.num_edges:
                yield self
            return
        for first in range(0, self.num_edges, max_edges):
            count = min(max_edges, self.num_edges - first)
            yield Span(nodes=self.nodes, starts=self.starts + first, counts=np.array([count]))


def iter_spans(graph: Topology, targets: IdArray | range, limits: PieceLimits) -> Iterator[Span]:
    """Yield ``targets`` (n,) in order, in the largest spans that ``limits`` allow."""
    for first in range(0, len(targets), _NODES_PER_CUT):
        nodes = np.array(targets[first : first + _NODES_PER_CUT], dtype=np.int64)
        starts = offsets_of(graph.offsets, nodes)
        counts = offsets_of(graph.offsets, nodes + 1) - starts
        for rows in cut_rows(counts, max_edges=limits.max_edges, max_rows=limits.max_rows):
            part = slice(rows.start, rows.stop)
            yield Span(nodes=nodes[part], starts=starts[part], counts=counts[part])


def iter_pieces(graph: Topology, targets: IdArray | range, limits: PieceLimits) -> Iterator[Span]:
    """Yield all spans' pieces for ``targets`` (n,), in order."""
    return (piece for span in iter_spans(graph, targets, limits) for piece in span.pieces(limits.max_edges))


class HostEdges:
    """In-edges on the host, for computation on the CPU. Each piece is cut on demand.

    If the edges are on the SSD, a thread reads the next piece during the computation.
    """

    def __init__(self, graph: Topology) -> None:
        self._graph = graph

    def degree(self, start: int, stop: int) -> torch.Tensor:
        """Return the in-degrees of nodes ``start`` to ``stop``."""
        return torch.from_numpy(degrees_between(self._graph.offsets, start, stop).astype(np.float32))

    def parts(
        self, targets: IdArray | range, limits: PieceLimits, features: EdgeFeatures | None = None
    ) -> Generator[Part]:
        """Yield ``targets`` (n,) in consecutive parts.

        Parameters
        ----------
        targets, limits, features : see `Edges.parts`
        """
        with closing(self._values(targets, limits, features)) as values:
            for span in iter_spans(self._graph, targets, limits):
                yield Part(
                    nodes=torch.from_numpy(span.nodes),
                    degree=torch.from_numpy(span.counts.astype(np.float32)),
                    pieces=(self._adjacency(piece, *next(values)) for piece in span.pieces(limits.max_edges)),
                )

    def _values(
        self, targets: IdArray | range, limits: PieceLimits, features: EdgeFeatures | None
    ) -> Generator[tuple[torch.Tensor, ...]]:
        """Yield each piece's sources, and its edge features if requested.

        Nothing is read before the first piece is requested.
        """
        scan = self._graph.sources.scan()
        pieces = iter_pieces(self._graph, targets, limits)
        if isinstance(self._graph, CscGraph) and features is None:
            yield from ((_shared(scan.lists(piece.starts, piece.counts)),) for piece in pieces)
            return
        device = CpuDevice()

        def read(piece: Span, slot: int) -> Sent:  # noqa: ARG001 - each piece has memory of its own
            sources = _shared(scan.lists(piece.starts, piece.counts))
            edge_x = () if features is None else (torch.from_numpy(features.of(piece)),)
            return (sources, *edge_x), device.mark()

        yield from send_ahead(pieces, read, device, name="infer-edges")

    def _adjacency(
        self, span: Span, sources: torch.Tensor, features: torch.Tensor | None = None
    ) -> Adjacency:
        """Return a piece's edges as a CSC adjacency of its nodes."""
        indptr = np.zeros(len(span.nodes) + 1, dtype=sources.numpy().dtype)
        np.cumsum(span.counts, out=indptr[1:])
        return Adjacency(
            torch.from_numpy(indptr), sources, num_src=self._graph.num_sources, features=features
        )


def _shared(sources: NDArray[Any]) -> torch.Tensor:
    """Return a tensor with the memory of ``sources`` if it is writable, otherwise with a copy."""
    # torch does not share read-only memory, and a graph's memory is read-only.
    return torch.from_numpy(sources if sources.flags.writeable else sources.copy())


class DeviceEdges:
    """In-edges of all nodes for computation on a GPU.

    Spans and pieces are cut with the host's copy of the offsets, so that the host never waits for the device.

    Parameters
    ----------
    graph : the full topology
    device : the computing device
    indptr : (N + 1,) int64, on the device
    indices : (E,) source of each edge, on the device. If None, a thread sends them in pieces
    """

    def __init__(
        self, graph: Topology, device: Device, indptr: torch.Tensor, indices: torch.Tensor | None
    ) -> None:
        self._graph = graph
        self._device = device
        self._indptr = indptr
        self._indices = indices

    def degree(self, start: int, stop: int) -> torch.Tensor:
        """Return the in-degrees of nodes ``start`` to ``stop``."""
        return self._indptr[start : stop + 1].diff().float()

    def parts(
        self, targets: IdArray | range, limits: PieceLimits, features: EdgeFeatures | None = None
    ) -> Generator[Part]:
        """Yield ``targets`` (n,) in consecutive parts.

        Parameters
        ----------
        targets, limits, features : see `Edges.parts`
        """
        with ExitStack() as stack:
            sent = None
            if self._indices is None or features is not None:
                # The thread starts at the first requested piece: a layer without edges requests none.
                sent = stack.enter_context(closing(self._send(targets, limits, features)))
            for span in iter_spans(self._graph, targets, limits):
                ids = self._ids(span)
                counts = self._counts(span, ids)
                yield Part(
                    nodes=ids, degree=counts.float(), pieces=self._pieces(span, ids, counts, limits, sent)
                )

    def _ids(self, span: Span) -> torch.Tensor:
        """Return the span's nodes on the device, (n,)."""
        if span.is_range:
            first = int(span.nodes[0])
            return torch.arange(first, first + len(span.nodes), device=self._device.place)
        with self._device.sending():
            sent = self._device.upload((span.nodes,))
            mark = self._device.mark()
        mark.precede(sent)
        return sent[0]

    def _counts(self, span: Span, ids: torch.Tensor) -> torch.Tensor:
        """Return the nodes' in-degrees on the device, (n,). ``ids`` are the nodes."""
        if span.is_range:
            first = int(span.nodes[0])
            return self._indptr[first : first + len(ids) + 1].diff()
        return self._indptr[ids + 1] - self._indptr[ids]

    def _pieces(
        self,
        span: Span,
        ids: torch.Tensor,
        counts: torch.Tensor,
        limits: PieceLimits,
        sent: Iterator[tuple[torch.Tensor, ...]] | None,
    ) -> Iterator[Adjacency]:
        """Yield the adjacency of each piece.

        Parameters
        ----------
        span : the nodes
        ids, counts : (n,) the nodes and their in-degrees, on the device
        limits : bounds of a piece
        sent : sources and edge features of the pieces, as far as the host sends them; None if it sends nothing
        """
        for piece in span.pieces(limits.max_edges):
            if piece is span:
                # The span has one piece. Otherwise a piece has one node.
                indptr = counts.new_zeros(len(ids) + 1)
                torch.cumsum(counts, 0, out=indptr[1:])
            else:
                indptr = torch.arange(0, piece.num_edges + 1, piece.num_edges, device=self._device.place)
            values = () if sent is None else next(sent)
            if self._indices is not None:
                values = (self._held(piece, ids, counts, indptr), *values)
            indices, *edge_x = values
            yield Adjacency(
                indptr.to(indices.dtype),
                indices,
                num_src=self._graph.num_sources,
                features=edge_x[0] if edge_x else None,
            )

    def _held(
        self, span: Span, ids: torch.Tensor, counts: torch.Tensor, indptr: torch.Tensor
    ) -> torch.Tensor:
        """Return the sources of a piece from the device's copy of all edges, (num_edges,)."""
        assert self._indices is not None  # noqa: S101 - `_pieces` has checked it
        if span.is_range:
            start = int(span.starts[0])
            return self._indices[start : start + span.num_edges]
        # The number of edges is given from the host. A size that depends on device data would wait for the device.
        shift = (self._indptr[ids] - indptr[:-1]).repeat_interleave(counts, output_size=span.num_edges)
        return self._indices[shift + torch.arange(span.num_edges, device=self._device.place)]

    def _send(
        self, targets: IdArray | range, limits: PieceLimits, features: EdgeFeatures | None
    ) -> Generator[tuple[torch.Tensor, ...]]:
        """Yield each piece's sources if the device does not hold them, and its edge features if requested.

        A thread sends them ahead of the computation.
        """
        scan = self._graph.sources.scan() if self._indices is None else None

        def send(piece: Span, slot: int) -> Sent:  # noqa: ARG001 - pinned memory is the device's
            sources = () if scan is None else (scan.lists(piece.starts, piece.counts),)
            edge_x = () if features is None else (features.of(piece),)
            with self._device.sending():
                return self._device.upload((*sources, *edge_x)), self._device.mark()

        pieces = iter_pieces(self._graph, targets, limits)
        return send_ahead(pieces, send, self._device, name="infer-edges")
