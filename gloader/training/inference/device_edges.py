"""The in-edges of many nodes on the device: held there, or cut on the host and sent a piece ahead."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import torch

from gloader.models.adjacency import Adjacency
from gloader.training.inference.edge_pieces import Part, iter_pieces, iter_spans
from gloader.training.inference.overlap import send_ahead

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gloader.device import Device
    from gloader.samplers import Topology
    from gloader.training.inference.edge_pieces import EdgeFeatures, PieceLimits, Span
    from gloader.training.inference.overlap import Sent
    from gloader.types import IdArray


class DeviceEdges:
    """The in-edges of all nodes, on a device. They are cut by the host's offsets, so that nothing is waited for.

    Parameters
    ----------
    graph : the whole topology
    device : computes
    indptr : (N + 1,) int64, on the device
    indices : (E,) the source of each edge, on the device; None: pieces of them are sent by a thread
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
        targets, limits, features : as of `Edges.parts`
        """
        with ExitStack() as stack:
            sent = None
            if self._indices is None or features is not None:
                # Its thread starts at the first piece that is asked for: a layer without edges asks for none.
                sent = stack.enter_context(closing(self._send(targets, limits, features)))
            for span in iter_spans(self._graph, targets, limits):
                ids = self._ids(span)
                counts = self._counts(span, ids)
                yield Part(
                    nodes=ids, degree=counts.float(), pieces=self._pieces(span, ids, counts, limits, sent)
                )

    def _ids(self, span: Span) -> torch.Tensor:
        if span.is_range:
            first = int(span.nodes[0])
            return torch.arange(first, first + len(span.nodes), device=self._device.place)
        with self._device.sending():
            sent = self._device.upload((span.nodes,))
            mark = self._device.mark()
        mark.precede(sent)
        return sent[0]

    def _counts(self, span: Span, ids: torch.Tensor) -> torch.Tensor:
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
        for piece in span.pieces(limits.max_edges):
            if piece is span:
                indptr = counts.new_zeros(len(ids) + 1)
                torch.cumsum(counts, 0, out=indptr[1:])
            else:
                indptr = torch.arange(0, piece.num_edges + 1, piece.num_edges, device=self._device.place)
            values = () if sent is None else next(sent)
            if self._indices is not None:
                values = (self._held(piece, ids, counts, indptr), *values)
            indices, *told = values
            yield Adjacency(
                indptr.to(indices.dtype),
                indices,
                num_src=self._graph.num_sources,
                features=told[0] if told else None,
            )

    def _held(
        self, span: Span, ids: torch.Tensor, counts: torch.Tensor, indptr: torch.Tensor
    ) -> torch.Tensor:
        assert self._indices is not None  # noqa: S101 - by `parts`
        if span.is_range:
            start = int(span.starts[0])
            return self._indices[start : start + span.num_edges]
        # The number of edges is known on the host: a size that depended on data would wait for the device.
        shift = (self._indptr[ids] - indptr[:-1]).repeat_interleave(counts, output_size=span.num_edges)
        return self._indices[shift + torch.arange(span.num_edges, device=self._device.place)]

    def _send(
        self, targets: IdArray | range, limits: PieceLimits, features: EdgeFeatures | None
    ) -> Generator[tuple[torch.Tensor, ...]]:
        """Send the sources of each piece, where the device has none of its own, and features that are asked for."""
        scan = self._graph.sources.scan() if self._indices is None else None

        def send(piece: Span, slot: int) -> Sent:  # noqa: ARG001 - pinned memory is the device's
            sources = () if scan is None else (scan.lists(piece.starts, piece.counts),)
            found = () if features is None else (features.of(piece),)
            with self._device.sending():
                return self._device.upload((*sources, *found)), self._device.mark()

        pieces = iter_pieces(self._graph, targets, limits)
        return send_ahead(pieces, send, self._device, name="infer-edges")
