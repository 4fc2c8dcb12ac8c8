"""Edge and feature streams over arrays that are in memory, or mapped into it.

`EdgeArrays` are the weights, times and features of edges that a library keeps for a graph or relation, in its order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.csc_kernels import expand_rows
from gloader.convert.readers.checked_rows import to_weights
from gloader.convert.readers.file_streams import check_offsets
from gloader.convert.readers.node_arrays import check_id_array, to_ids
from gloader.convert.readers.timed_edges import ArrayTimes, TimedEdges
from gloader.convert.source import ChangedEdges, EdgeChunk
from gloader.core.aligned_memory import plain_array
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows:
    """Each row twice: of edges whose reverse is streamed right behind them."""

    rows: FeatureStream

    @property
    def num_rows(self) -> int:
        """Twice as many."""
        return 2 * self.rows.num_rows

    @property
    def dim(self) -> int:
        """F."""
        return self.rows.dim

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.rows.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``, but at least a pair."""
        for chunk in self.rows.chunks(max(1, max_rows // 2)):
            yield np.repeat(chunk, 2, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedRows:
    """The rows of an array by number."""

    rows: NDArray[np.generic]  # (M, F)
    numbers: NDArray[np.integer]  # (N,)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.numbers.shape[0])

    @property
    def dim(self) -> int:
        """F."""
        return int(self.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.rows.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for start in range(0, self.num_rows, max_rows):
            yield self.rows[self.numbers[start : start + max_rows]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayEdges:
    """The edge stream over two id arrays; ids may have any integer dtype and are widened chunk by chunk."""

    src: NDArray[np.generic]  # (E,)
    dst: NDArray[np.generic]  # (E,)
    where: str  # what holds them, for messages
    weight: NDArray[np.generic] | None = None  # (E,)

    @classmethod
    def of(
        cls, edge_index: NDArray[np.generic], *, where: str, weight: NDArray[np.generic] | None = None
    ) -> ArrayEdges:
        """Check one array of sources and destinations.

        Parameters
        ----------
        edge_index : (2, E) integers
        where : what holds it, for messages
        weight : (E,) real numbers; None: unweighted

        Raises
        ------
        ShapeError
            The array has another shape or other numbers, or the weights are not one per edge.
        """
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
            cure = ", as .T makes it" if edge_index.shape[1:] == (2,) else ""
            raise ShapeError(
                f"{where} has shape {edge_index.shape} and dtype {edge_index.dtype}; expected ids of shape (2, E)"
                f"{cure}, whole numbers as .astype('int64') makes them"
            )
        if weight is not None and weight.shape != edge_index.shape[1:]:
            raise ShapeError(f"edge_weight has shape {weight.shape} for {edge_index.shape[1]} edges")
        return cls(src=edge_index[0], dst=edge_index[1], where=where, weight=weight)

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.src.shape[0])

    @property
    def has_weights(self) -> bool:
        """True if every chunk carries weights."""
        return self.weight is not None

    @property
    def has_times(self) -> bool:
        """Never; `TimedEdges` adds them."""
        return False

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        for start in range(0, self.num_edges, max_edges):
            part = slice(start, start + max_edges)
            yield EdgeChunk(
                src=to_ids(self.src[part], first=start, where=f"{self.where} sources"),
                dst=to_ids(self.dst[part], first=start, where=f"{self.where} destinations"),
                weight=_weight_part(self.weight, part, self.where),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCscEdges:
    """The edge stream over a compressed topology: ``indices[indptr[v] : indptr[v + 1]]`` are the in-neighbours of v."""

    indptr: IdArray  # (N + 1,), checked
    indices: NDArray[np.generic]  # (E,)
    where: str  # what holds them, for messages
    weight: NDArray[np.generic] | None = None  # (E,)

    @classmethod
    def of(
        cls,
        indptr: NDArray[np.generic],
        indices: NDArray[np.generic],
        *,
        where: str,
        weight: NDArray[np.generic] | None = None,
    ) -> ArrayCscEdges:
        """Check the arrays of a topology.

        Parameters
        ----------
        indptr : (N + 1,) offsets of any integer dtype
        indices : (E,) sources of any integer dtype
        where : what holds them, for messages
        weight : (E,) real numbers; None: unweighted

        Raises
        ------
        GraphError
            The offsets are not monotone, do not start at 0 or do not end at E, or ids are no native integers.
        ShapeError
            An array is not one-dimensional, or the weights are not one per edge.
        """
        for name, array in (("indptr", indptr), ("indices", indices)):
            check_id_array(array.dtype, array.shape, f"{where} {name}")
        if weight is not None and weight.shape != indices.shape:
            raise ShapeError(f"{where}: weights have shape {weight.shape} for {len(indices)} edges")
        offsets = to_ids(indptr, first=0, where=f"{where} indptr")
        check_offsets(offsets, len(indices), where=f"{where} indptr")
        return cls(indptr=offsets, indices=indices, where=where, weight=weight)

    @property
    def num_edges(self) -> int:
        """E."""
        return int(self.indices.shape[0])

    @property
    def has_weights(self) -> bool:
        """True if every chunk carries weights."""
        return self.weight is not None

    @property
    def has_times(self) -> bool:
        """Never; `TimedEdges` adds them."""
        return False

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order of their destinations, at most ``max_edges`` at a time."""
        # A chunk begins in the row in which the one before it ended, or later: rows are found in one walk.
        row = 0
        for start in range(0, self.num_edges, max_edges):
            part = slice(start, start + max_edges)
            src = to_ids(self.indices[part], first=start, where=f"{self.where} indices")
            dst = np.empty(len(src), np.int64)
            row = int(expand_rows(self.indptr, start, row, dst))
            yield EdgeChunk(
                src=src,
                dst=dst,
                weight=_weight_part(self.weight, part, self.where),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedEdges(ChangedEdges):
    """The edges of a stream with weights from an array, which may be memory-mapped."""

    weight: NDArray[np.generic]  # (E,)
    # (E,) of each edge's weight in ``weight``; None: the edges are in its order
    numbers: NDArray[np.integer] | None

    @property
    def has_weights(self) -> bool:
        """Always."""
        return True

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        done = 0
        for chunk in self.edges.chunks(max_edges):
            part = slice(done, done + chunk.src.shape[0])
            done = part.stop
            values = self.weight[part] if self.numbers is None else self.weight[self.numbers[part]]
            yield replace(chunk, weight=to_weights(values, first=part.start, where="edge weights"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFeatures:
    """The feature stream over one (N, F) array, which may be memory-mapped."""

    rows: NDArray[np.generic]  # (N, F)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.rows.shape[0])

    @property
    def dim(self) -> int:
        """F."""
        return int(self.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.rows.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for start in range(0, self.num_rows, max_rows):
            yield plain_array(self.rows[start : start + max_rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRows:
    """A sparse matrix (N, F) in memory, whose rows are dense where they are taken; stands for an array of features."""

    indptr: IdArray  # (N + 1,), checked
    columns: IdArray  # (nnz,), checked
    values: NDArray[np.generic]  # (nnz,)
    shape: tuple[int, int]

    @classmethod
    def of(
        cls,
        indptr: NDArray[np.generic],
        columns: NDArray[np.generic],
        values: NDArray[np.generic],
        *,
        shape: tuple[int, int],
        where: str,
    ) -> SparseRows:
        """Check the arrays of a compressed matrix; raises SourceError and GraphError where they contradict it."""
        offsets = to_ids(indptr, first=0, where=f"{where}, row offsets")
        check_offsets(offsets, len(columns), where=f"{where}, row offsets")
        ids = to_ids(columns, first=0, where=f"{where}, columns")
        if len(offsets) != shape[0] + 1 or (len(ids) and not 0 <= ids.min() <= ids.max() < shape[1]):
            raise SourceError(f"{where} contradicts itself: rows or columns lie outside of {shape}")
        return cls(indptr=offsets, columns=ids, values=values, shape=shape)

    @property
    def ndim(self) -> int:
        """Of a matrix."""
        return 2

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of the rows."""
        return self.values.dtype

    @property
    def size(self) -> int:
        """Elements of the dense matrix."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.indptr.nbytes + self.columns.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[np.generic]:
        """Return the dense rows (n, F) of a range; entries given twice are added."""
        first, stop, _ = rows.indices(len(self))
        offsets = self.indptr[first : stop + 1]
        part = slice(int(offsets[0]), int(offsets[-1]))
        dense = np.zeros((stop - first, self.shape[1]), self.dtype)
        np.add.at(
            dense,
            (np.repeat(np.arange(stop - first), np.diff(offsets)), self.columns[part]),
            self.values[part],
        )
        return dense


def _weight_part(weight: NDArray[np.generic] | None, part: slice, where: str) -> NDArray[np.float32] | None:
    return None if weight is None else to_weights(weight[part], first=part.start, where=where)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """The arrays of the edges of one kind."""

    weight: NDArray[np.generic] | None  # (E,)
    times: NDArray[np.generic] | None  # (E,)
    features: NDArray[np.generic] | None  # (E, F_e)
    where: str  # what holds them, for messages

    @property
    def num_bytes(self) -> int:
        """Bytes of times and features."""
        return sum(array.nbytes for array in (self.times, self.features) if array is not None)

    def timed(self, edges: EdgeStream, *, order: NDArray[np.integer] | None = None) -> EdgeStream:
        """Return ``edges`` with their times, where there are any.

        Parameters
        ----------
        edges : as they are streamed
        order : the number of each in the arrays; None: they are in their order

        Raises
        ------
        SourceError, ShapeError
            As `TimedEdges.of`.
        """
        if self.times is None:
            return edges
        times = ArrayTimes(values=self.times, where=f"{self.where}: times", numbers=order)
        return TimedEdges.of(edges, times)

    def feature_rows(self, *, order: NDArray[np.integer] | None = None) -> FeatureStream | None:
        """Return the features as a stream; None: there are none. ``order`` is as of `timed`."""
        if self.features is None:
            return None
        return (
            ArrayFeatures(rows=self.features)
            if order is None
            else PickedRows(rows=self.features, numbers=order)
        )
