"""Copy kernels: bytes of a stored row to their place in the caller's array, converted on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from gloader.core.dtype_kernels import dequantize_int8, widen_bfloat16, widen_float16
from gloader.core.numba_ops import copy_block, prefetch
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_AHEAD = 8  # rows; their first cache lines are fetched early, the hardware follows within a row
_LINE_BYTES = 64
_FETCHED_BYTES = 8 * _LINE_BYTES
RAW, HALF, BRAIN, SCALED = 0, 1, 2, 3  # as stored; float16, bfloat16 or int8 * scale to float32


class Target(NamedTuple):
    """Where the rows of one call go, as views that a kernel can take. Owns nothing.

    A named tuple and not a dataclass, because numba takes only the former.
    """

    rows: IdArray  # (M,) stored rows, ascending
    position: IdArray  # (M,) row of the output for each of them; empty: its own rank
    out_bytes: NDArray[np.uint8]  # the output as bytes; used by RAW
    out_floats: NDArray[np.float32]  # the output as floats; used by the other modes
    scale: NDArray[np.float32]  # (N,) factor of each stored row; used by SCALED
    mode: int  # RAW, HALF, BRAIN or SCALED
    row_bytes: int  # bytes of one stored row
    dim: int  # elements of one row


def make_target(
    rows: IdArray,
    position: IdArray,
    out: NDArray[Any],
    *,
    dtype: np.dtype[Any],
    is_bfloat16: bool = False,
    scale: NDArray[np.float32] | None = None,
) -> Target:
    """Describe the copy of stored ``rows`` into ``out``. Pure.

    Parameters
    ----------
    rows : (M,) int64
        Stored rows in ascending order.
    position : (M,) int64 or empty
        Row of ``out`` for each of ``rows``; empty when row i goes to row i.
    out : (>= M, F)
        C-contiguous, of ``dtype`` or float32.
    dtype : dtype
        Of the stored elements; bfloat16 is stored as uint16.
    is_bfloat16 : bool
        Whether uint16 elements are bfloat16.
    scale : (N,) float32, optional
        Factor of each stored int8 row.

    Raises
    ------
    ShapeError
        ``out`` is not C-contiguous, or the stored dtype cannot become its dtype.
    """
    if out.ndim != 2 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ShapeError(
            f"out must be a writable C-contiguous matrix, got shape {out.shape}, strides {out.strides}"
        )
    # Kernels see the output as bytes or as floats, never as its own dtype: one compiled kernel serves all dtypes.
    flat = out.reshape(-1)
    mode = _mode(dtype, out.dtype, is_bfloat16=is_bfloat16, has_scale=scale is not None)
    return Target(
        mode=mode,
        row_bytes=out.shape[1] * dtype.itemsize,
        dim=out.shape[1],
        rows=rows,
        position=position,
        out_bytes=flat.view(np.uint8),
        out_floats=flat if mode != RAW else np.empty(0, np.float32),
        scale=scale if scale is not None else np.empty(0, np.float32),
    )


def _mode(stored: np.dtype[Any], wanted: np.dtype[Any], *, is_bfloat16: bool, has_scale: bool) -> int:
    if wanted == stored:
        return RAW
    if wanted == np.float32:
        if stored == np.float16:
            return HALF
        if stored == np.uint16 and is_bfloat16:
            return BRAIN
        if stored == np.int8 and has_scale:
            return SCALED
    allowed = (
        str(stored) if not (is_bfloat16 or has_scale or stored == np.float16) else f"{stored} or float32"
    )
    raise ShapeError(f"out has dtype {wanted}, but rows stored as {stored} can be read as {allowed}")


@njit(cache=True, nogil=True)
def copy_extent(
    rows: IdArray,
    position: IdArray,
    out_bytes: NDArray[np.uint8],
    out_floats: NDArray[np.float32],
    scale: NDArray[np.float32],
    mode: int,
    row_bytes: int,
    dim: int,
    begin: int,
    end: int,
    start: int,
    stop: int,
    shift: int,
    source: NDArray[np.uint8],
    words: NDArray[np.uint16],
) -> None:
    """Copy what bytes ``start`` to ``stop`` of the matrix hold of rows ``rows[begin:end]``.

    The first arguments are the fields of `Target`, which as a tuple would be slower: taking an array out of
    it counts references, and threads would fight for the counters. Byte b of the matrix is
    ``source[b + shift]``; ``words`` is ``source`` seen as 16-bit words. Nothing is checked: it was planned.
    """
    fetched = min(row_bytes, _FETCHED_BYTES)
    for i in range(begin, end):
        if i + _AHEAD < end:
            ahead = rows[i + _AHEAD] * row_bytes + shift
            for byte in range(0, fetched, _LINE_BYTES):
                prefetch(source, ahead + byte)
        first = rows[i] * row_bytes
        # A row that straddles two reads is copied in two parts: ``skip`` bytes of it came with the read before.
        at = max(first, start)
        count = min(first + row_bytes, stop) - at
        skip = at - first
        at += shift
        where = position[i] if position.shape[0] > 0 else np.int64(i)
        if mode == RAW:
            copy_block(out_bytes, where * row_bytes + skip, source, at, count)
        elif mode == HALF:
            widen_float16(out_floats, where * dim + skip // 2, words, at // 2, count // 2)
        elif mode == BRAIN:
            widen_bfloat16(out_floats, where * dim + skip // 2, words, at // 2, count // 2)
        else:
            dequantize_int8(out_floats, where * dim + skip, source, at, count, scale[rows[i]])
