"""Feature rows that a conversion has just written, read back in ascending stretches before they are committed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.convert.readers.npy_file import NpyFile, NpyReader

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.write.feature_column import FeatureColumnWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """The files of one type's features as they are stored."""

    rows: Path  # (N, F)
    scales: Path | None  # (N,) float32, of int8 rows
    dtype: str  # float32, float16, bfloat16 or int8
    num_rows: int
    dim: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, its scale included."""
        return stored_row_bytes(self.dim, self.dtype)

    def open(self, chunk_rows: int) -> StoredRows:  # noqa: ARG002 - a stretch is read as it lies there
        """Return the rows, of which at most ``chunk_rows`` will be read at a time."""
        return StoredRows(self)


class StoredRows:
    """The rows of a column as float32. Owns its open files until ``close()``; a context manager. Not thread-safe."""

    def __init__(self, column: StoredColumn) -> None:
        self._column = column
        self._stack = ExitStack()
        self._rows: NpyReader = self._stack.enter_context(NpyFile.open(column.rows).reader())
        self._scales: NpyReader | None = None
        if column.scales is not None:
            self._scales = self._stack.enter_context(NpyFile.open(column.scales).reader())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._stack.close()

    def read(self, start: int, stop: int, wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read rows ``start`` ... ``stop - 1`` and return those at ``start + wanted`` (u,), as float32 (u, F).

        Raises
        ------
        SourceError
            The file ends before, or the system refuses.
        """
        dim = self._column.dim
        self._rows.seek(start * dim)
        stored = self._rows.take((stop - start) * dim).reshape(-1, dim)[wanted]
        scales = None
        if self._scales is not None:
            self._scales.seek(start)
            scales = self._scales.take(stop - start)[wanted]
        return widened(stored, scales, dtype=self._column.dtype)


def stored_row_bytes(dim: int, dtype: str) -> int:
    """Return the bytes of a stored row of ``dim`` elements, its scale included. Pure."""
    width = {"float32": 4, "int8": 1}.get(dtype, 2)
    return dim * width + 4 * (dtype == "int8")


def widened(
    stored: NDArray[Any], scales: NDArray[np.float32] | None = None, *, dtype: str
) -> NDArray[np.float32]:
    """Return stored rows (n, F) as float32; those of float32 are not copied. Pure.

    Parameters
    ----------
    stored : (n, F) elements as they lie in the file
    scales : (n,) of int8 rows
    dtype : that they are stored as
    """
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    rows = stored.astype(np.float32, copy=False)
    if scales is not None:
        rows *= scales[:, None]
    return rows


def stored_column(writer: FeatureColumnWriter, *, dtype: str, num_rows: int, dim: int) -> StoredColumn:
    """Return the column that a closed `FeatureColumnWriter` has written.

    Parameters
    ----------
    writer : closed
    dtype, num_rows, dim : of the column
    """
    return StoredColumn(rows=writer.path, scales=writer.scale_path, dtype=dtype, num_rows=num_rows, dim=dim)
