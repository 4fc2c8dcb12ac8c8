"""Feature streams over array files: dense, and compressed sparse rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.csc_kernels import add_sparse_rows
from gloader.convert.readers.file_edges import check_offsets
from gloader.convert.readers.node_arrays import to_ids
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray

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
