"""Edge and feature streams over array files (.npy and .npz).

A stream yields edges or feature rows in chunks, and can be read several times. Edges come from pairs
(`pair_file_edges`) or from CSC (`csc_file_edges`), features from dense rows (`npy_features`) or from CSR
(`csr_features`). The shapes and dtypes are checked when a stream is made, the values when they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.csc_kernels import add_sparse_rows
from gloader.convert.readers.edge_columns import check_offsets, csc_edges, file_column, pair_edges
from gloader.convert.readers.node_arrays import check_id_array, check_id_dtype, to_ids
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.source import FeatureStream
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.edge_columns import EdgeColumn
    from gloader.convert.source import EdgeStream


def pair_file_edges(file: NpyFile, *, prefers_rows: bool | None, weight: NpyFile | None = None) -> EdgeStream:
    """Return the edges in an array file with sources and destinations.

    Parameters
    ----------
    file : (E, 2) or (2, E) integers
    prefers_rows : True if a (2, 2) array has one edge per row, False if one per column. None refuses such an array
    weight : (E,) real numbers, or None for unweighted edges

    Raises
    ------
    GraphError
        The ids are not native integers.
    ShapeError
        The array does not have pairs, or is ambiguous, or there is not one weight per edge.
    """
    shape, num_edges = file.shape, file.size // 2
    check_id_dtype(file.dtype, file.where)
    if len(shape) != 2 or 2 not in shape:
        raise ShapeError(f"{file.where} has shape {shape}; edges are an (E, 2) or a (2, E) array")
    if prefers_rows is None and shape == (2, 2):
        raise ShapeError(
            f"{file.where} has shape (2, 2): an edge in each row, or sources and then destinations? Write a table "
            "with the columns src and dst in its place"
        )
    # `NpyFile` presents a Fortran array as its transpose. So the preference for a (2, 2) array is reversed too.
    if file.is_fortran:
        prefers_rows = not prefers_rows
    # An (E, 2) array has one edge per row.
    is_rowwise = shape[1] == 2 and (prefers_rows or shape[0] != 2)

    def pairs(max_edges: int) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        if is_rowwise:
            for rows in file.rows(max_edges):
                yield rows[:, 0], rows[:, 1]
            return
        # Sources are in the first half of the file, destinations in the second, so two readers run together.
        yield from zip(
            file.flat(max_edges, stop=num_edges), file.flat(max_edges, start=num_edges), strict=True
        )

    return pair_edges(
        pairs, num_edges, where=(file.where, file.where), weight=_weight_column(weight, num_edges)
    )


def csc_file_edges(
    indptr: NpyFile, indices: NpyFile, weight: NpyFile | None = None, *, budget_bytes: int | None = None
) -> EdgeStream:
    """Return the edges of a CSC topology in files, in order of destinations. The indices stay on disk.

    Parameters
    ----------
    indptr : (N + 1,) offsets with any integer dtype
    indices : (E,) sources with any integer dtype
    weight : (E,) real numbers, or None for unweighted edges
    budget_bytes : memory for the offsets, or None for no limit

    Raises
    ------
    GraphError
        As `csc_edges`.
    ShapeError
        An array is not one-dimensional, or there is not one weight per edge.
    BudgetError
        The offsets take more than ``budget_bytes``.
    """
    for file in (indptr, indices):
        check_id_array(file.dtype, file.shape, file.where)
    column = _weight_column(weight, indices.size)
    offsets = indptr.read(budget_bytes=budget_bytes)
    return csc_edges(offsets, file_column(indices), where=indptr.where, weight=column)


def _weight_column(weight: NpyFile | None, num_edges: int) -> EdgeColumn | None:
    """Return the weights as a column. Raises ShapeError without exactly one number per edge."""
    if weight is None:
        return None
    if weight.size != num_edges or weight.dtype.kind not in "fiu":
        raise ShapeError(
            f"{weight.where} has shape {weight.shape} and dtype {weight.dtype}; edge weights are {num_edges} numbers, "
            "one per edge"
        )
    return file_column(weight)


_MAX_SMALL_BYTES = 256  # maximum size in bytes of an array that `_read_small` reads


def npy_features(file: NpyFile) -> FeatureStream:
    """Return the rows in an (N, F) array file.

    Raises
    ------
    ShapeError
        The array is not two-dimensional, does not have real numbers, or is not stored row by row.
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
    num_rows, dim = file.shape
    return FeatureStream(chunks=file.rows, num_rows=num_rows, dim=dim, dtype=file.dtype)


def csr_features(path: Path, *, budget_bytes: int | None = None) -> FeatureStream:
    """Return the dense rows of a scipy CSR matrix, which was saved with `scipy.sparse.save_npz`.

    The row offsets are read and checked. Columns and values stay on disk. A chunk of rows is made dense when it is
    read. Duplicate entries are added.

    Parameters
    ----------
    path : the archive
    budget_bytes : memory for the offsets, or None for no limit

    Raises
    ------
    SourceError
        The archive is missing or corrupt, or does not have a CSR matrix.
    GraphError
        The row offsets do not fit the number of entries.
    BudgetError
        The row offsets take more than ``budget_bytes``.
    """
    members = npz_members(path)
    if "format" not in members:
        raise SourceError(
            f"{path} holds the arrays {', '.join(members) or '(none)'}; features in a .npz are one sparse "
            "CSR matrix, saved with scipy.sparse.save_npz. Save dense ones as a .npy (N, F)"
        )
    # scipy writes the format's name as bytes. Older versions write text.
    kind = _read_small(path, "format", 1).item()
    name = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    if name != "csr":
        raise SourceError(f"{path} holds a sparse matrix of format {name!r}; save features.tocsr()")
    shape = _read_small(path, "shape", 2)
    columns, values = NpyFile.open(path, "indices"), NpyFile.open(path, "data")
    # Each array is a separate member of the archive, so columns and values can be read side by side.
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
    num_rows, dim = indptr.shape[0] - 1, int(shape[1])
    # Rows are float32 if float32 holds every value of the stored dtype. Otherwise, they have the kind's widest dtype.
    stored = values.dtype
    dtype = np.dtype(np.float32 if np.can_cast(stored, np.float32) else f"{stored.kind}8")

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        with columns.reader() as column_reader, values.reader() as value_reader:
            for start in range(0, num_rows, max_rows):
                offsets = indptr[start : start + max_rows + 1]
                first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
                ids = to_ids(column_reader.take(count), first=first, where=columns.where)
                data = np.ascontiguousarray(value_reader.take(count), dtype)
                rows = np.zeros((offsets.shape[0] - 1, dim), dtype)
                # The kernel adds duplicates, as scipy does, and stops at the first bad column.
                bad = int(add_sparse_rows(offsets, ids, data, rows))
                if bad >= 0:
                    raise SourceError(
                        f"{columns.where}: entry {first + bad} is column {ids[bad]}; columns are 0..{dim - 1}"
                    )
                yield rows

    return FeatureStream(chunks=chunks, num_rows=num_rows, dim=dim, dtype=dtype, held_bytes=indptr.nbytes)


def _read_small(path: Path, member: str, num_elements: int) -> NDArray[np.generic]:
    """Read a short array that describes a matrix. Its size is checked first, because the archive may be malicious."""
    file = NpyFile.open(path, member)
    if file.size != num_elements or file.num_bytes > _MAX_SMALL_BYTES:
        raise SourceError(
            f"{file.where} has shape {file.shape} and dtype {file.dtype}; {num_elements} short elements were expected"
        )
    return file.read()
