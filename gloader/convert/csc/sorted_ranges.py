"""Second pass of the external sort: the edges of a spill, range by range, in order of their destinations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.csc_kernels import (
    count_in_degrees,
    mark_sources,
    merge_segments,
    merge_weighted_segments,
    scatter_sources,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from gloader.convert.csc.edge_spill import EdgeSpill
    from gloader.types import IdArray

PIECE_BYTES = 4 << 20  # records read from a spill file at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRange:
    """The in-edges of consecutive nodes, or a part of those of one node."""

    degrees: IdArray  # (n,) edges of each node; empty where the nodes were counted by an earlier part
    indices: NDArray[Any]
    weights: NDArray[np.float32] | None
    edges_taken: int  # edges of the spill that went into it


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRanges:
    """The ranges of a spill in order: an iterable that sorts, merges if asked to, and drops each file behind it."""

    spill: EdgeSpill
    num_nodes: int  # destinations
    num_sources: int
    max_edges: int  # sorted at a time
    merges: bool  # parallel edges into one

    @property
    def has_weights(self) -> bool:
        """Whether edges carry weights."""
        return "weight" in (self.spill.dtype.names or ())

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """The dtype of the sources."""
        return self.spill.dtype["src"]

    def __iter__(self) -> Iterator[SortedRange]:
        for bucket in range(self.spill.num_buckets):
            first_node = bucket << self.spill.shift
            # Degrees first: they say which nodes of the bucket can be sorted together.
            degrees = np.zeros(min(self.num_nodes - first_node, 1 << self.spill.shift), np.int64)
            for piece in self._pieces(bucket):
                count_in_degrees(piece, degrees)
            for start, stop in cut_ranges(degrees, self.max_edges):
                if stop == start + 1 and degrees[start] > self.max_edges:
                    yield from self._hub(bucket, start, int(degrees[start]))
                else:
                    yield self._sort(bucket, start, stop, degrees[start:stop])
            self.spill.drop(bucket)

    def _pieces(self, bucket: int) -> Iterator[NDArray[Any]]:
        return self.spill.pieces(bucket, PIECE_BYTES // self.spill.dtype.itemsize)

    def _sort(self, bucket: int, start: int, stop: int, degrees: IdArray) -> SortedRange:
        """Sort the edges to nodes ``start`` ... ``stop - 1`` of a bucket by counting."""
        # A counting sort: each node's sources go to its own segment, in input order, which keeps the sort stable.
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        indices = np.empty(int(indptr[-1]), self.index_dtype)
        weights = np.empty(int(indptr[-1]), np.float32) if self.has_weights else None
        cursor = np.zeros(stop, np.int64)
        cursor[start:] = indptr[:-1]
        for piece in self._pieces(bucket):
            scatter_sources(piece, start, stop, cursor, indices, weights)
        if not self.merges:
            return SortedRange(
                degrees=degrees, indices=indices, weights=weights, edges_taken=indices.shape[0]
            )
        merged = np.empty_like(degrees)
        if weights is None:
            left = merge_segments(indptr, indices, merged)
        else:
            left = merge_weighted_segments(indptr, indices, weights, merged)
            weights = weights[:left]
        return SortedRange(
            degrees=merged, indices=indices[:left], weights=weights, edges_taken=indices.shape[0]
        )

    def _hub(self, bucket: int, node: int, degree: int) -> Iterator[SortedRange]:
        """Pass on the edges of a node that has more of them than can be sorted at once."""
        # Without a merge the input order is the result: the edges pass through piece by piece.
        if not self.merges:
            yield self._part(degree, [], None, taken=0)
            for piece in self._pieces(bucket):
                mine = piece[piece["dst"] == node]
                weights = mine["weight"] if self.has_weights else None
                yield self._part(None, mine["src"], weights, taken=mine.shape[0])
            return
        # With a merge the sources themselves are counted, range of ids by range of ids. The spill is read twice for
        # each, as the degree has to be known before the first edge is written.
        parts = list(self._source_ranges())
        count = sum(int(self._mark(bucket, node, first, stop)[0].sum()) for first, stop in parts)
        yield self._part(count, [], None, taken=degree)
        for first, stop in parts:
            seen, weights = self._mark(bucket, node, first, stop)
            yield self._part(
                None, np.flatnonzero(seen) + first, weights[seen] if self.has_weights else None, taken=0
            )

    def _part(
        self, degree: int | None, sources: ArrayLike, weights: ArrayLike | None, *, taken: int
    ) -> SortedRange:
        return SortedRange(
            degrees=np.array([] if degree is None else [degree], np.int64),
            indices=np.ascontiguousarray(sources, self.index_dtype),
            weights=None if weights is None else np.ascontiguousarray(weights, np.float32),
            edges_taken=taken,
        )

    def _source_ranges(self) -> Iterator[tuple[int, int]]:
        """Cut the sources into ranges whose marks and sums take no more than the sort may."""
        # 17 bytes for a source: a mark, and two sums of 8.
        step = max(1, self.max_edges // 8)
        for first in range(0, self.num_sources, step):
            yield first, min(self.num_sources, first + step)

    def _mark(
        self, bucket: int, node: int, first: int, stop: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Return which of the sources ``first`` ... ``stop - 1`` a node has, and the weight of each."""
        seen = np.zeros(stop - first, np.bool_)
        own = np.zeros(stop - first if self.has_weights else 0)
        reverse = np.zeros_like(own)
        for piece in self._pieces(bucket):
            mark_sources(piece, node, first, seen, own if self.has_weights else None, reverse)
        return seen, np.maximum(own, reverse)


def cut_ranges(degrees: IdArray, max_edges: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of nodes of at most ``max_edges`` edges; a larger node stands alone. Pure."""
    ends = np.cumsum(degrees)
    start = 0
    while start < degrees.shape[0]:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_edges, side="right")))
        yield start, stop
        start = stop
