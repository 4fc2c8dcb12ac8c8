"""Edge and feature streams over array files: pairs, CSC, dense rows and compressed sparse rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.csc_kernels import add_sparse_rows, expand_rows
from gloader.convert.readers.checked_rows import to_weights
from gloader.convert.readers.node_arrays import check_id_array, check_id_dtype, to_ids
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.source import EdgeChunk
from gloader.errors import GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEdges:
    """The edges of an (E, 2) or a (2, E) array of sources and destinations."""

    file: NpyFile
    is_rowwise: bool  # (E, 2) on disk
    weight: NpyFile | None = None  # (E,)
    add_inverse: bool = False  # the reverse of each edge right behind it, as OGB does

    @classmethod
    def open(
        cls,
        file: NpyFile,
        *,
        prefers_rows: bool | None,
        weight: NpyFile | None = None,
        add_inverse: bool = False,
    ) -> PairEdges:
        """Check the arrays' shapes and dtypes.

        Parameters
        ----------
        file : (E, 2) or (2, E) integers
        prefers_rows : a (2, 2) array has an edge in each row, or in each column; None: nothing says so, it is refused
        weight : (E,) real numbers; None: unweighted
        add_inverse : stream the reverse of each edge right behind it

        Raises
        ------
        GraphError
            The ids are no native integers.
        ShapeError
            The array holds no pairs, or may be read both ways, or the weights are not one per edge.
        """
        shape = file.shape
        check_id_dtype(file.dtype, file.where)
        if len(shape) != 2 or 2 not in shape:
            raise ShapeError(f"{file.where} has shape {shape}; edges are an (E, 2) or a (2, E) array")
        if prefers_rows is None and shape == (2, 2):
            raise ShapeError(
                f"{file.where} has shape (2, 2): an edge in each row, or sources and then destinations? Write a table "
                "with the columns src and dst in its place"
            )
        # The shape of such a file is reversed, and so is what the reader of a (2, 2) array prefers.
        if file.is_fortran:
            prefers_rows = not prefers_rows
        is_rowwise = shape[1] == 2 and (prefers_rows or shape[0] != 2)
        edges = cls(file=file, is_rowwise=is_rowwise, weight=weight, add_inverse=add_inverse)
        if weight is not None:
            check_weight_file(weight, edges.num_given)
        return edges

    @property
    def num_given(self) -> int:
        """Edges in the file."""
        return self.file.size // 2

    @property
    def num_edges(self) -> int:
        """E."""
        return self.num_given * (2 if self.add_inverse else 1)

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
        count = max(1, max_edges // 2) if self.add_inverse else max_edges
        first = 0
        for (src, dst), weight in zip(self._pairs(count), weight_chunks(self.weight, count), strict=False):
            chunk = EdgeChunk(
                src=to_ids(src, first=first, where=self.file.where),
                dst=to_ids(dst, first=first, where=self.file.where),
                weight=weight,
            )
            first += src.shape[0]
            yield with_inverse(chunk) if self.add_inverse else chunk

    def _pairs(self, count: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        if self.is_rowwise:
            for rows in self.file.rows(count):
                yield rows[:, 0], rows[:, 1]
            return
        # Sources fill the first half of the file, destinations the second: two readers walk side by side.
        half = self.num_given
        yield from zip(self.file.flat(count, stop=half), self.file.flat(count, start=half), strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CscEdges:
    """The edges of a compressed topology: ``indices[indptr[v] : indptr[v + 1]]`` are the in-neighbours of v."""

    indptr: IdArray  # (N + 1,), checked
    indices: NpyFile  # (E,)
    weight: NpyFile | None = None  # (E,)

    @classmethod
    def open(
        cls,
        indptr: NpyFile,
        indices: NpyFile,
        weight: NpyFile | None = None,
        *,
        budget_bytes: int | None = None,
    ) -> CscEdges:
        """Read and check the offsets; the indices stay on disk.

        Parameters
        ----------
        indptr : (N + 1,) offsets of any integer dtype
        indices : (E,) sources of any integer dtype
        weight : (E,) real numbers; None: unweighted
        budget_bytes : memory that the offsets may take; None: any

        Raises
        ------
        GraphError
            The offsets are not monotone, do not start at 0 or do not end at E, or ids are no native integers.
        ShapeError
            An array is not one-dimensional, or the weights are not one per edge.
        BudgetError
            The offsets take more memory.
        """
        for file in (indptr, indices):
            check_id_array(file.dtype, file.shape, file.where)
        if weight is not None:
            check_weight_file(weight, indices.size)
        offsets = to_ids(indptr.read(budget_bytes=budget_bytes), first=0, where=indptr.where)
        check_offsets(offsets, indices.size, where=indptr.where)
        return cls(indptr=offsets, indices=indices, weight=weight)

    @property
    def num_edges(self) -> int:
        """E."""
        return self.indices.size

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
        first, row = 0, 0
        pieces = zip(self.indices.flat(max_edges), weight_chunks(self.weight, max_edges), strict=False)
        for sources, weight in pieces:
            dst = np.empty(sources.shape[0], np.int64)
            row = int(expand_rows(self.indptr, first, row, dst))
            yield EdgeChunk(
                src=to_ids(sources, first=first, where=self.indices.where), dst=dst, weight=weight
            )
            first += sources.shape[0]


def check_offsets(indptr: IdArray, num_entries: int, *, where: str) -> None:
    """Refuse offsets that do not cut the entries of a compressed matrix into rows. Pure.

    Parameters
    ----------
    indptr : (n + 1,) offsets
    num_entries : entries to cut
    where : what holds the offsets, for messages

    Raises
    ------
    GraphError
        Names ``where``, the position and the value.
    """
    if indptr.shape[0] == 0 or indptr[0] != 0:
        first = int(indptr[0]) if indptr.shape[0] else "missing"
        raise GraphError(f"{where}: entry 0 is {first}; offsets must start with 0")
    descents = np.flatnonzero(indptr[1:] < indptr[:-1])
    if descents.size:
        at = int(descents[0])
        raise GraphError(
            f"{where}: entry {at + 1} is {indptr[at + 1]}, less than entry {at}, {indptr[at]}; offsets must not descend"
        )
    if indptr[-1] != num_entries:
        raise GraphError(
            f"{where}: the last entry, number {indptr.shape[0] - 1}, is {indptr[-1]}; it must be the number of "
            f"entries, {num_entries}"
        )


def check_weight_file(weight: NpyFile, num_edges: int) -> None:
    """Refuse weights that are not one number per edge. Pure.

    Raises
    ------
    ShapeError
        Names the file and its shape.
    """
    if weight.size != num_edges or weight.dtype.kind not in "fiu":
        raise ShapeError(
            f"{weight.where} has shape {weight.shape} and dtype {weight.dtype}; edge weights are {num_edges} numbers, "
            "one per edge"
        )


def weight_chunks(weight: NpyFile | None, max_edges: int) -> Iterator[NDArray[np.float32] | None]:
    """Yield the weights chunk by chunk; for no file, None without end, to be zipped with chunks of edges."""
    while weight is None:
        yield None
    done = 0
    for piece in weight.flat(max_edges):
        yield to_weights(piece, first=done, where=weight.where)
        done += len(piece)


def with_inverse(chunk: EdgeChunk) -> EdgeChunk:
    """Return the edges of ``chunk``, the reverse of each right behind it. Pure."""
    return EdgeChunk(
        src=np.column_stack([chunk.src, chunk.dst]).ravel(),
        dst=np.column_stack([chunk.dst, chunk.src]).ravel(),
        weight=None if chunk.weight is None else np.repeat(chunk.weight, 2),
        time=None if chunk.time is None else np.repeat(chunk.time, 2),
    )


_MAX_SMALL_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyFeatures:
    """The rows of an (N, F) array file."""

    file: NpyFile

    @classmethod
    def open(cls, file: NpyFile) -> NpyFeatures:
        """Check the array's shape and dtype.

        Raises
        ------
        ShapeError
            The array is not two-dimensional, not of real numbers, or not stored row after row.
        """
        if len(file.shape) != 2 or file.dtype.kind not in "fiub" or file.is_fortran:
            order = "column after column" if file.is_fortran else "row after row"
            cure = "features.reshape(N, -1)" if len(file.shape) != 2 else "np.ascontiguousarray(features)"
            if file.dtype.kind not in "fiub":
                cure = "its numbers with .astype('float32')"
            raise ShapeError(
                f"{file.where} has shape {file.shape} and dtype {file.dtype}, stored {order}; features are an (N, F) "
                f"array of real numbers, stored row after row: save {cure}"
            )
        return cls(file=file)

    @property
    def num_rows(self) -> int:
        """N."""
        return self.file.shape[0]

    @property
    def dim(self) -> int:
        """F."""
        return self.file.shape[1]

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.file.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        return self.file.rows(max_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsrFeatures:
    """The rows of a scipy CSR matrix that was saved with `scipy.sparse.save_npz`, made dense chunk by chunk."""

    indptr: IdArray  # (N + 1,), checked
    columns: NpyFile  # (nnz,)
    values: NpyFile  # (nnz,)
    num_columns: int

    @classmethod
    def open(cls, path: Path, *, budget_bytes: int | None = None) -> CsrFeatures:
        """Read and check the row offsets; columns and values stay on disk.

        Parameters
        ----------
        path : of the archive
        budget_bytes : memory that the offsets may take; None: any

        Raises
        ------
        SourceError
            The archive is missing, corrupt or not of a CSR matrix.
        GraphError
            The row offsets contradict the columns.
        BudgetError
            The row offsets take more memory.
        """
        members = npz_members(path)
        if "format" not in members:
            raise SourceError(
                f"{path} holds the arrays {', '.join(members) or '(none)'}; features in a .npz are one sparse "
                "CSR matrix, saved with scipy.sparse.save_npz. Save dense ones as a .npy (N, F)"
            )
        # scipy writes the format's name as bytes, older versions as text.
        kind = _read_small(path, "format", 1).item()
        name = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
        if name != "csr":
            raise SourceError(f"{path} holds a sparse matrix of format {name!r}; save features.tocsr()")
        shape = _read_small(path, "shape", 2)
        columns, values = NpyFile.open(path, "indices"), NpyFile.open(path, "data")
        # Each array is a member of its own, so that columns and values are streamed side by side.
        offsets_file = NpyFile.open(path, "indptr")
        indptr = to_ids(offsets_file.read(budget_bytes=budget_bytes), first=0, where=offsets_file.where)
        check_offsets(indptr, columns.size, where=offsets_file.where)
        if values.dtype.kind not in "fiub":
            raise SourceError(
                f"{values.where} has dtype {values.dtype}; features are real numbers: save them with "
                ".astype('float32')"
            )
        is_whole = shape.shape == (2,) and shape.dtype.kind in "iu"
        if not is_whole or indptr.shape[0] != int(shape[0]) + 1 or values.size != columns.size:
            raise SourceError(
                f"{path} contradicts itself: shape {shape.tolist()}, {indptr.shape[0] - 1} rows, "
                f"{columns.size} columns and {values.size} values"
            )
        return cls(indptr=indptr, columns=columns, values=values, num_columns=int(shape[1]))

    @property
    def num_rows(self) -> int:
        """N."""
        return self.indptr.shape[0] - 1

    @property
    def dim(self) -> int:
        """F."""
        return self.num_columns

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks: float32 where it holds all that the values may be, else the widest of their kind."""
        given = self.values.dtype
        return np.dtype(np.float32 if np.can_cast(given, np.float32) else f"{given.kind}8")

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``; entries given twice are added."""
        with self.columns.reader() as columns, self.values.reader() as values:
            for start in range(0, self.num_rows, max_rows):
                offsets = self.indptr[start : start + max_rows + 1]
                first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
                ids = to_ids(columns.take(count), first=first, where=self.columns.where)
                data = np.ascontiguousarray(values.take(count), self.dtype)
                rows = np.zeros((offsets.shape[0] - 1, self.dim), self.dtype)
                # The kernel adds, so that duplicates count as in scipy, and stops at the first bad column.
                bad = int(add_sparse_rows(offsets, ids, data, rows))
                if bad >= 0:
                    raise SourceError(
                        f"{self.columns.where}: entry {first + bad} is column {ids[bad]}; columns are "
                        f"0..{self.dim - 1}"
                    )
                yield rows


def _read_small(path: Path, member: str, num_elements: int) -> NDArray[np.generic]:
    """Read the few elements that describe a matrix; an archive may hold anything under their name."""
    file = NpyFile.open(path, member)
    if file.size != num_elements or file.num_bytes > _MAX_SMALL_BYTES:
        raise SourceError(
            f"{file.where} has shape {file.shape} and dtype {file.dtype}; {num_elements} short elements were expected"
        )
    return file.read()
