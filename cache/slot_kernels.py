"""The slot cache's loops, which copy rows from and to their slots, unchanged or converted.

Each loop checks its arguments and stops at the first contradiction. Positions and slots must be in range, and the tag
of a hit's slot must be the hit's node. ``tags`` (C,) is the id of the row in each slot, -1 if empty. ``nodes`` (U,) are
the batch's ids. ``rows`` are the cached rows and ``out`` the batch buffer, both flat; ``width`` is the number of
elements per row. ``pos`` are positions in the batch. ``way`` is the conversion between the stored dtype and float32:
BRAIN (bfloat16), HALF (float16), or else int8 with a scale. `SlotCache` calls the loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.core.dtypes import BRAIN, HALF
from gloader.core.kernels import njit
from gloader.core.numba_ops import copy_block, prefetch
from gloader.core.value_kernels import (
    dequantize_int8,
    narrow_to_bfloat16,
    narrow_to_float16,
    requantize_int8,
    widen_bfloat16,
    widen_float16,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray

# The slots of hits are in random order, so a row's first cache lines are prefetched eight rows early. The hardware
# prefetches the rest of the row.
_AHEAD: Final = 8  # rows
_LINES: Final = 8  # maximum number of cache lines to prefetch per row
_LINE_BYTES: Final = 64  # bytes per cache line


@njit(cache=True, nogil=True)
def copy_hits(
    rows: NDArray[Any],
    width: int,
    tags: IdArray,
    nodes: NDArray[np.integer],
    hit_pos: IdArray,
    hit_slot: IdArray,
    out: NDArray[Any],
    start: int,
    stop: int,
) -> int:
    """Copy hits ``start:stop``. Return the first hit that is out of range or in a slot with another row, or -1."""
    line = _LINE_BYTES // rows.itemsize
    lines = min(_LINES, (width + line - 1) // line)
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(tags, hit_slot[i + _AHEAD])
            ahead = hit_slot[i + _AHEAD] * width
            for j in range(lines):
                prefetch(rows, ahead + j * line)
        position, slot = hit_pos[i], hit_slot[i]
        if not (0 <= position < nodes.shape[0] and 0 <= slot < tags.shape[0]):
            return i
        if tags[slot] != nodes[position]:
            return i
        copy_block(out, position * width, rows, slot * width, width)
    return -1


@njit(cache=True, nogil=True)
def copy_held(
    octets: NDArray[np.uint8],
    row_bytes: int,
    tags: IdArray,
    rows: IdArray,
    slots: IdArray,
    requests: NDArray[np.integer],
    out: NDArray[np.uint8],
    is_held: NDArray[np.bool_],
) -> int:
    """Copy the rows among ``requests`` that are still in their slots, and return their number.

    ``rows`` are the cached rows' ids. They and ``requests`` ascend, so one pass over both finds the common ids.
    ``slots`` has the slot of each of ``rows`` when the caller listed them. The tags show whether the row is still in
    it. ``octets`` are the cached rows' bytes. Sets ``is_held`` (M,) for each request.
    """
    count, held = 0, 0
    for i in range(requests.shape[0]):
        row = requests[i]
        while held < rows.shape[0] and rows[held] < row:
            held += 1
        is_held[i] = held < rows.shape[0] and rows[held] == row and tags[slots[held]] == row
        if is_held[i]:
            copy_block(out, i * row_bytes, octets, slots[held] * row_bytes, row_bytes)
            count += 1
    return count


@njit(cache=True, nogil=True)
def admit(
    rows: NDArray[Any],
    width: int,
    tags: IdArray,
    nodes: NDArray[np.integer],
    admit_pos: IdArray,
    admit_slot: IdArray,
    out: NDArray[Any],
) -> int:
    """Copy admitted rows from ``out`` into their slots. Return the index of the first one out of range, or -1."""
    for i in range(admit_pos.shape[0]):
        position, slot = admit_pos[i], admit_slot[i]
        if not (0 <= position < nodes.shape[0] and 0 <= slot < tags.shape[0]):
            return i
        copy_block(rows, slot * width, out, position * width, width)
        tags[slot] = nodes[position]
    return -1


@njit(cache=True, nogil=True)
def widen_hits(
    halves: NDArray[np.uint16],
    octets: NDArray[np.uint8],
    scale: NDArray[np.float32],
    way: int,
    row_bytes: int,
    dim: int,
    tags: IdArray,
    nodes: NDArray[np.integer],
    hit_pos: IdArray,
    hit_slot: IdArray,
    out: NDArray[np.float32],
    start: int,
    stop: int,
) -> int:
    """Copy hits like `copy_hits`, converted to float32. ``halves`` and ``octets`` are views on the same rows."""
    fetched = min(row_bytes, _LINES * _LINE_BYTES)
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(tags, hit_slot[i + _AHEAD])
            for byte in range(0, fetched, _LINE_BYTES):
                prefetch(octets, hit_slot[i + _AHEAD] * row_bytes + byte)
        position, slot = hit_pos[i], hit_slot[i]
        if not (0 <= position < nodes.shape[0] and 0 <= slot < tags.shape[0]):
            return i
        if tags[slot] != nodes[position]:
            return i
        # Each conversion has a function of its own, because a loop is vectorized only without a branch on the
        # conversion inside.
        if way == BRAIN:
            widen_bfloat16(out, position * dim, halves, slot * dim, dim)
        elif way == HALF:
            widen_float16(out, position * dim, halves, slot * dim, dim)
        else:
            dequantize_int8(out, position * dim, octets, slot * dim, dim, scale[tags[slot]])
    return -1


@njit(cache=True, nogil=True)
def narrow_admissions(
    halves: NDArray[np.uint16],
    octets: NDArray[np.uint8],
    scale: NDArray[np.float32],
    way: int,
    dim: int,
    tags: IdArray,
    nodes: NDArray[np.integer],
    admit_pos: IdArray,
    admit_slot: IdArray,
    out: NDArray[np.float32],
    bits: NDArray[np.uint32],
) -> tuple[int, bool]:
    """Admit rows like `admit`, converted from float32. ``bits`` is a view on ``out``.

    Returns the index of the first bad admission, or -1, and a flag. The flag is False if the admission is out of range,
    and True if its row has no exact stored form. The slot of such a row is left empty.
    """
    for i in range(admit_pos.shape[0]):
        position, slot = admit_pos[i], admit_slot[i]
        if not (0 <= position < nodes.shape[0] and 0 <= slot < tags.shape[0]):
            return i, False
        node = nodes[position]
        # The slot stays empty until the complete row is stored, because an inexact row would be stored in part.
        tags[slot] = -1
        if way == BRAIN:
            is_exact = narrow_to_bfloat16(halves, slot * dim, bits, position * dim, dim)
        elif way == HALF:
            is_exact = narrow_to_float16(halves, slot * dim, bits, position * dim, dim)
        elif 0 <= node < scale.shape[0]:
            is_exact = requantize_int8(octets, slot * dim, out, position * dim, dim, scale[node])
        else:
            return i, False
        if not is_exact:
            return i, True
        tags[slot] = node
    return -1, False
