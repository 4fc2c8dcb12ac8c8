"""Edge and feature streams over arrays that are in memory or memory-mapped.

A stream yields edges or feature rows in chunks, and can be read several times. Sources over arrays, PyG's data and
DGL's graphs call these functions. `SparseRows` is a sparse feature matrix. `EdgeArrays` holds a relation's edge
weights, times and features, in the order of the library that made the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.readers.edge_columns import (
    array_column,
    check_offsets,
    csc_edges,
    pair_edges,
    timed_edges,
    weighted_edges,
)
from gloader.convert.readers.node_arrays import check_id_array, to_ids
from gloader.convert.readers.npy_file import MappedFile, StoredArray
from gloader.convert.source import FeatureStream
from gloader.core.aligned_memory import plain_array
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.readers.npy_file import NpyFile
    from gloader.convert.source import EdgeStream
    from gloader.types import IdArray


def paired_rows(rows: FeatureStream) -> FeatureStream:
    """Return each row twice, for edges from `doubled_edges`, in which each edge is followed by its reverse. Pure."""

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        for chunk in rows.chunks(max(1, max_rows // 2)):
            yield np.repeat(chunk, 2, axis=0)

    return FeatureStream(chunks=chunks, num_rows=2 * rows.num_rows, dim=rows.dim, dtype=rows.dtype)


def array_edges(
    edge_index: NDArray[np.generic], *, where: str, weight: NDArray[np.generic] | None = None
) -> EdgeStream:
    """Return the stream over one array with sources and destinations.

    Parameters
    ----------
    edge_index : (2, E) integers
    where : the file or array, for messages
    weight : (E,) real numbers, or None for unweighted edges

    Raises
    ------
    ShapeError
        The array has another shape or dtype, or there is not one weight per edge.
    """
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        cure = ", as .T makes it" if edge_index.shape[1:] == (2,) else ""
        raise ShapeError(
            f"{where} has shape {edge_index.shape} and dtype {edge_index.dtype}; expected ids of shape (2, E)"
            f"{cure}, and whole numbers, as .astype('int64') makes them"
        )
    if weight is not None and weight.shape != edge_index.shape[1:]:
        raise ShapeError(f"edge_weight has shape {weight.shape} for {edge_index.shape[1]} edges")
    return ends_edges(edge_index[0], edge_index[1], where=where, weight=weight)


def mapped_array(file: NpyFile) -> NDArray[np.generic]:
    """Return the array in a ``.npy`` file as a view of the mapped file. No element is read here.

    Raises
    ------
    SourceError
        The file cannot be mapped, or became shorter.
    """
    stored = StoredArray(
        file=MappedFile(file.path),
        offset=file.data_offset,
        shape=file.shape,
        dtype=file.dtype,
        is_bfloat16=False,
    )
    values: NDArray[np.generic] = stored.values()
    return values.T if file.is_fortran else values


def ends_edges(
    src: NDArray[np.generic],
    dst: NDArray[np.generic],
    *,
    where: str,
    weight: NDArray[np.generic] | None = None,
) -> EdgeStream:
    """Return the stream over sources (E,), destinations (E,) and weights (E,). Pure."""

    def pairs(max_edges: int) -> Iterator[tuple[NDArray[np.generic], NDArray[np.generic]]]:
        for start in range(0, len(src), max_edges):
            yield src[start : start + max_edges], dst[start : start + max_edges]

    return pair_edges(
        pairs,
        len(src),
        where=(f"{where} sources", f"{where} destinations"),
        weight=None if weight is None else array_column(weight, where=where),
    )


def array_csc_edges(
    indptr: NDArray[np.generic],
    indices: NDArray[np.generic],
    *,
    where: str,
    weight: NDArray[np.generic] | None = None,
) -> EdgeStream:
    """Return the stream over a CSC topology's arrays, in order of destinations.

    Parameters
    ----------
    indptr : (N + 1,) offsets with any integer dtype
    indices : (E,) sources with any integer dtype
    where : the file or array, for messages
    weight : (E,) real numbers, or None for unweighted edges

    Raises
    ------
    GraphError
        As `csc_edges`.
    ShapeError
        An array is not one-dimensional, or there is not one weight per edge.
    """
    for name, array in (("indptr", indptr), ("indices", indices)):
        check_id_array(array.dtype, array.shape, f"{where} {name}")
    if weight is not None and weight.shape != indices.shape:
        raise ShapeError(f"{where}: weights have shape {weight.shape} for {len(indices)} edges")
    return csc_edges(
        indptr,
        array_column(indices, where=f"{where} indices"),
        where=f"{where} indptr",
        weight=None if weight is None else array_column(weight, where=where),
    )


def array_features(rows: NDArray[np.generic], numbers: NDArray[np.integer] | None = None) -> FeatureStream:
    """Return the stream over an array of rows, which may be memory-mapped. Pure.

    Parameters
    ----------
    rows : (M, F) rows
    numbers : (N,) numbers of the rows to stream, in order, or None for all rows
    """
    num_rows = len(rows) if numbers is None else len(numbers)

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        for start in range(0, num_rows, max_rows):
            part = slice(start, start + max_rows)
            yield plain_array(rows[part]) if numbers is None else rows[numbers[part]]

    return FeatureStream(chunks=chunks, num_rows=num_rows, dim=int(rows.shape[1]), dtype=rows.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRows:
    """A sparse matrix (N, F) in memory. It behaves like a feature array: indexing by a slice returns dense rows."""

    indptr: IdArray  # (N + 1,) offsets of the rows, checked
    columns: IdArray  # (nnz,) the column of each stored value, checked
    values: NDArray[np.generic]  # (nnz,) stored values
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
        """Check the arrays of a CSR matrix, and return the matrix.

        Raises SourceError or GraphError if the arrays do not fit together. ``where`` names them in the message.
        """
        offsets = to_ids(indptr, first=0, where=f"{where}, row offsets")
        check_offsets(offsets, len(columns), where=f"{where}, row offsets")
        ids = to_ids(columns, first=0, where=f"{where}, columns")
        if len(offsets) != shape[0] + 1 or (len(ids) and not 0 <= ids.min() <= ids.max() < shape[1]):
            raise SourceError(f"{where} is malformed: rows or columns lie outside of its shape {shape}")
        return cls(indptr=offsets, columns=ids, values=values, shape=shape)

    @property
    def ndim(self) -> int:
        """2, the number of dimensions."""
        return 2

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The rows' dtype."""
        return self.values.dtype

    @property
    def size(self) -> int:
        """Number of elements in the dense matrix."""
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.indptr.nbytes + self.columns.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[np.generic]:
        """Return a range's dense rows (n, F). Duplicate entries are added."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """The edge weights, times and features of one relation."""

    weight: NDArray[np.generic] | None  # (E,)
    times: NDArray[np.generic] | None  # (E,)
    features: NDArray[np.generic] | None  # (E, F_e)
    where: str  # the file or array, for messages

    @property
    def num_bytes(self) -> int:
        """Bytes of times and features."""
        return sum(array.nbytes for array in (self.times, self.features) if array is not None)

    def timed(self, edges: EdgeStream, *, order: NDArray[np.integer] | None = None) -> EdgeStream:
        """Return ``edges`` with times, if there are any.

        Parameters
        ----------
        edges : the stream of edges
        order : (E,) each edge's row in the arrays; None means that edge e has row e

        Raises
        ------
        SourceError, ShapeError
            As `timed_edges`.
        """
        if self.times is None:
            return edges
        return timed_edges(edges, array_column(self.times, where=f"{self.where}: times", numbers=order))

    def weighted(self, edges: EdgeStream, *, order: NDArray[np.integer] | None = None) -> EdgeStream:
        """Return ``edges`` with weights, if there are any. Takes the parameters of `timed`, and raises as `timed`."""
        if self.weight is None:
            return edges
        return weighted_edges(edges, array_column(self.weight, where="edge weights", numbers=order))

    def feature_rows(self, *, order: NDArray[np.integer] | None = None) -> FeatureStream | None:
        """Return the features as a stream, or None without features. For ``order``, see `timed`."""
        return None if self.features is None else array_features(self.features, order)
