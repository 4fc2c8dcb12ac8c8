"""Features that fit in memory, behind the same interface as those on the SSD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ShapeError
from gloader.ssd_store.read.copy_kernels import copy_extent, make_target
from gloader.ssd_store.read.row_request import check_request
from gloader.types import IdArray, ReadStats

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RamFeatures:
    """A `FeatureSource` over a matrix in memory. Thread-safe; holds a reference to ``array``, no copy.

    Parameters
    ----------
    array : (N, F)
        C-contiguous; bfloat16 as uint16 with ``is_bfloat16``.
    is_bfloat16 : bool
        Whether uint16 elements are bfloat16.
    scale : (N,) float32, optional
        Factor of each int8 row.

    Raises
    ------
    ShapeError
        The matrix is not two-dimensional, has no column or is not C-contiguous, or ``scale`` does not fit.
    """

    def __init__(
        self, array: NDArray[Any], *, is_bfloat16: bool = False, scale: NDArray[np.float32] | None = None
    ) -> None:
        if array.ndim != 2 or array.shape[1] < 1 or not array.flags.c_contiguous:
            raise ShapeError(
                f"features must be a C-contiguous (N, F) matrix with F >= 1, got shape {array.shape}, "
                f"strides {array.strides}; use numpy.ascontiguousarray"
            )
        if scale is not None and (scale.shape != array.shape[:1] or scale.dtype != np.float32):
            raise ShapeError(
                f"scale must be float32 of shape {array.shape[:1]}, got {scale.dtype} of {scale.shape}"
            )
        self._array = array
        self._is_bfloat16 = is_bfloat16
        self._scale = scale
        bytes_view = array.reshape(-1).view(np.uint8)
        # Elements of 16 bits leave no odd byte; of those of 8 bits nobody looks at the halves.
        even = bytes_view.shape[0] // 2 * 2
        self._bytes = bytes_view
        self._halves = bytes_view[:even].view(np.uint16)

    @property
    def array(self) -> NDArray[Any]:
        """The matrix (N, F), as it is stored."""
        return self._array

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self._array.shape[0])

    @property
    def dim(self) -> int:
        """F."""
        return int(self._array.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of a stored element; uint16 for bfloat16."""
        return self._array.dtype

    def read_into(self, rows: IdArray, out: NDArray[Any], /, *, at: IdArray | None = None) -> ReadStats:
        """Copy ``rows`` into ``out``. Thread-safe.

        Parameters
        ----------
        rows : (M,) int64
            Row ids, in any order, repeats allowed.
        out : (M, F), or (K, F) with ``at``
            C-contiguous, of the stored dtype or float32.
        at : (M,) int64, optional
            Row of ``out`` for each of ``rows``; defaults to 0..M-1.

        Raises
        ------
        ShapeError
            A row is out of range, or a shape or dtype does not fit.
        """
        request = check_request(rows, out, num_rows=self.num_rows, dim=self.dim, at=at)
        target = make_target(
            request.rows,
            request.position,
            out,
            dtype=self.dtype,
            is_bfloat16=self._is_bfloat16,
            scale=self._scale,
        )
        copy_extent(*target, 0, target.rows.shape[0], 0, self._bytes.shape[0], 0, self._bytes, self._halves)
        return ReadStats(rows=request.rows.shape[0], requests=0, bytes_read=0)

    def close(self) -> None:
        """Do nothing; the array belongs to whoever made it."""
