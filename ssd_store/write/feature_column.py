"""Columns of feature rows before the write: float rows are cast to the format's dtypes, then written.

The stored dtypes are float32, float16, bfloat16 (as uint16 bits) and int8 with one float32 scale per row. `cast_rows`
and `quantize_rows` convert rows, and `FeatureColumnWriter` writes them through an `ArrayWriter`. The method
`NewDirectory.features` makes the column writers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.dtypes import STORED_DTYPES
from gloader.errors import FeatureValueError, ShapeError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.write.array_writer import ArrayWriter


_INT8_MAX: Final = 127  # largest magnitude of an int8 value, so that the range is symmetric


def check_finite_rows(chunk: NDArray[Any], first_row: int) -> None:
    """Check that ``chunk`` (n, F), which begins at the store's row ``first_row``, holds no NaN and no infinity.

    Raises
    ------
    FeatureValueError
        A row holds such a value; the message names the first such row.
    """
    is_bad = ~np.isfinite(chunk).all(axis=1)
    if is_bad.any():
        row = int(is_bad.argmax())
        column = int((~np.isfinite(chunk[row])).argmax())
        raise FeatureValueError(
            f"row {first_row + row}, column {column} is {chunk[row, column]}; int8, and any dtype with check_finite, "
            "holds only finite values: clean the features, or store them in another dtype without check_finite"
        )


def cast_rows(chunk: NDArray[Any], dtype: str, first_row: int) -> NDArray[Any]:
    """Return ``chunk`` (n, F), float16, float32 or float64, in the stored form for a float ``dtype``.

    Rows with the stored dtype pass bit by bit; rows for bfloat16 may come as uint16, its bits. NaN and infinity are
    kept.

    Parameters
    ----------
    chunk : (n, F)
    dtype : stored dtype: float32, float16 or bfloat16
    first_row : the chunk's first row in the store, for messages

    Returns
    -------
    (n, F) with the stored dtype, bfloat16 as uint16; ``chunk`` itself if it has this dtype

    Raises
    ------
    ShapeError
        The chunk does not hold floats.
    FeatureValueError
        A finite value is too large for ``dtype``; the message names the row.
    """
    # Rows with the stored dtype pass unchecked, because their creator has already rounded them.
    if chunk.dtype == STORED_DTYPES[dtype].stored:
        return chunk
    _require_floats(chunk, dtype, first_row)
    _require_range(chunk, dtype, first_row)
    if dtype != "bfloat16":
        return chunk.astype(dtype)
    return round_bfloat16(chunk.astype(np.float32))


def round_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return float32 ``values`` rounded to nearest even as bfloat16 bits; a NaN stays a (quiet) NaN."""
    bits = values.view(np.uint32)
    # bfloat16 is the upper half of a float32. The sum adds half of the last kept bit (0x8000), less one if this bit is
    # even, so that ties go to even. A NaN's carry could give another number, so NaNs are truncated, and made quiet by
    # the bit 0x0040.
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x0040)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def quantize_rows(chunk: NDArray[Any], first_row: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return ``chunk`` (n, F) as int8 (n, F) and one float32 scale per row (n,): value = int8 * scale.

    The scale is the row's largest magnitude over 127, 0 for a row of zeros.

    Raises
    ------
    ShapeError
        The chunk holds no floats.
    FeatureValueError
        A value is not finite, which int8 cannot hold; the message names the row.
    """
    _require_floats(chunk, "int8", first_row)
    check_finite_rows(chunk, first_row)
    _require_range(chunk, "float32", first_row)
    # float64 is needed, because a quotient of float32 numbers can round to the other side of a half.
    wide = chunk.astype(np.float64)
    # The steps work in place, because a conversion has a memory budget.
    largest = np.abs(np.maximum(wide.max(axis=1, initial=0.0), -wide.min(axis=1, initial=0.0)))
    scale = (largest / _INT8_MAX).astype(np.float32)
    inverse = np.divide(1.0, scale, out=np.zeros(scale.shape, np.float64), where=scale > 0)
    wide *= inverse[:, None]
    np.rint(wide, out=wide)
    np.clip(wide, -_INT8_MAX, _INT8_MAX, out=wide)
    return wide.astype(np.int8), scale


def _require_floats(chunk: NDArray[Any], dtype: str, first_row: int) -> None:
    """Raise `ShapeError` if ``chunk`` holds no floats."""
    if chunk.dtype not in (np.float16, np.float32, np.float64):
        raise ShapeError(
            f"row {first_row}: features stored as {dtype} must come as float16, float32 or float64, not "
            f"{chunk.dtype}; convert them"
        )


def _require_range(chunk: NDArray[Any], dtype: str, first_row: int) -> None:
    """Raise `FeatureValueError` if a finite value in ``chunk`` is too large for ``dtype``."""
    largest = STORED_DTYPES[dtype].largest
    # A float16 fits every dtype, and float32 fits itself, so these rows need no check.
    if chunk.dtype.itemsize <= 2 or (dtype == "float32" and chunk.dtype == np.float32):
        return
    is_bad = np.isfinite(chunk) & (np.abs(chunk) > largest)
    if is_bad.any():
        row, column = np.unravel_index(int(is_bad.argmax()), is_bad.shape)
        wider = "; scale the features" + (
            ", or store them as float32 or bfloat16" if dtype == "float16" else ""
        )
        raise FeatureValueError(
            f"row {first_row + row}, column {column} is {chunk[row, column]:g}, beyond the largest {dtype} "
            f"{largest:g}{wider}"
        )


INT8_FEATURE: Final = "int8-row-scale"  # required feature in the commit record of a directory with int8 rows
_STEP_BYTES: Final = 1 << 20  # bytes of rows that are cast together


class FeatureColumnWriter:
    """A matrix of feature rows in a new directory, cast to the stored dtype on arrival. Made by `NewDirectory`.

    Parameters
    ----------
    rows : writer for the (N, F) array
    scales : writer for the int8 rows' (N,) float32 scales; None for rows stored as floats
    check_finite : refuse NaN and infinity (int8 always does)
    """

    def __init__(
        self, rows: ArrayWriter, scales: ArrayWriter | None = None, *, check_finite: bool = False
    ) -> None:
        self._rows = rows
        self._scales = scales
        self._check_finite = check_finite

    @property
    def rows_written(self) -> int:
        """Number of rows appended so far."""
        return self._rows.rows_written

    @property
    def path(self) -> Path:
        """The path of the rows' file until the commit; complete after `close`."""
        return self._rows.path

    @property
    def scale_path(self) -> Path | None:
        """The path of the file with int8 rows' scales until the commit; None for rows stored as floats."""
        return None if self._scales is None else self._scales.path

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, F), as floats or with the stored dtype (bfloat16 as uint16).

        Raises
        ------
        ShapeError
            The width or dtype is wrong, or there are more rows than declared; carries the row number.
        FeatureValueError
            A value is not finite, or does not fit the stored dtype; carries the row number.
        StoreWriteError
            The device refuses; the column will not be committed.
        """
        shape, dim = np.shape(chunk), self._rows.shape[1]
        if len(shape) != 2 or shape[1] != dim:
            raise ShapeError(
                f"{self._rows.name!r}, row {self.rows_written}: rows must have shape (n, {dim}), not {shape}"
            )
        # The chunk is split, so that a cast takes a few MB of memory whatever its size.
        step = max(1, _STEP_BYTES // max(1, dim * chunk.dtype.itemsize))
        for start in range(0, chunk.shape[0], step):
            self._append_step(chunk[start : start + step])

    def close(self) -> None:
        """Complete the column. Idempotent.

        Raises
        ------
        ShapeError, StoreWriteError
            See `ArrayWriter.close`.
        """
        self._rows.close()
        if self._scales is not None:
            self._scales.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _append_step(self, chunk: NDArray[Any]) -> None:
        """Cast and append a few MB of rows; raises as `append`."""
        first_row = self.rows_written
        if self._check_finite and chunk.dtype.kind == "f":
            check_finite_rows(chunk, first_row)
        if self._scales is None:
            self._rows.append(cast_rows(chunk, self._rows.dtype, first_row))
            return
        # Both writes come together, so that both files always hold equally many rows.
        levels, scales = quantize_rows(chunk, first_row)
        self._rows.append(levels)
        self._scales.append(scales)
