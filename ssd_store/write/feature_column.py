"""A column of feature rows, written into a new directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store.write.cast import FEATURE_DTYPES, cast_rows, check_finite_rows, quantize_rows

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.write.array_writer import ArrayWriter

SCALE_SUFFIX: Final = ".scale"
INT8_FEATURE: Final = "int8-row-scale"
_STEP_BYTES: Final = 1 << 20


def check_feature_type(num_rows: int, dim: int, dtype: str) -> None:
    """Check that a matrix of features can be stored. Pure.

    Parameters
    ----------
    num_rows : N, 0 or more
    dim : F, 1 or more
    dtype : float32, float16, bfloat16 or int8

    Raises
    ------
    ConfigError
        The dtype is none of these.
    ShapeError
        The shape is not that of a matrix.
    """
    if dtype not in FEATURE_DTYPES:
        raise ConfigError(f"features cannot be stored as {dtype!r}; allowed: {', '.join(FEATURE_DTYPES)}")
    if num_rows < 0 or dim < 1:
        raise ShapeError(f"features need num_rows >= 0 and dim >= 1, not {num_rows} and {dim}")


class FeatureColumnWriter:
    """A matrix of feature rows in a new directory, cast to the stored dtype as they come. Made by `NewDirectory`.

    Parameters
    ----------
    rows : writer of the (N, F) array
    scales : writer of the (N,) float32 scales of int8 rows; None: the rows are stored as floats
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
        """Rows appended so far."""
        return self._rows.rows_written

    @property
    def path(self) -> Path:
        """The file of the rows, where it lies until the commit; whole once the writer is closed."""
        return self._rows.path

    @property
    def scale_path(self) -> Path | None:
        """The file of the scales of int8 rows, likewise."""
        return None if self._scales is None else self._scales.path

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, F), floats or already of the stored dtype (bfloat16 as uint16).

        Raises
        ------
        ShapeError
            Wrong width or dtype, or more rows than declared; carries the row number.
        FeatureValueError
            A value is not finite, or does not fit the stored dtype; carries the row number.
        StoreWriteError
            The device refuses; nothing will be committed.
        """
        shape, dim = np.shape(chunk), self._rows.shape[1]
        if len(shape) != 2 or shape[1] != dim:
            raise ShapeError(
                f"{self._rows.name!r}, row {self.rows_written}: rows must have shape (n, {dim}), not {shape}"
            )
        # In steps, so that a cast needs a few MB of memory, whatever the chunk.
        step = max(1, _STEP_BYTES // max(1, dim * chunk.dtype.itemsize))
        for start in range(0, chunk.shape[0], step):
            self._append_step(chunk[start : start + step])

    def close(self) -> None:
        """Complete the column. Idempotent.

        Raises
        ------
        ShapeError, StoreWriteError
            As `ArrayWriter.close`.
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
        first_row = self.rows_written
        if self._check_finite and chunk.dtype.kind == "f":
            check_finite_rows(chunk, first_row)
        if self._scales is None:
            self._rows.append(cast_rows(chunk, self._rows.dtype, first_row))
            return
        # Together, so that both files always hold equally many rows.
        levels, scales = quantize_rows(chunk, first_row)
        self._rows.append(levels)
        self._scales.append(scales)
