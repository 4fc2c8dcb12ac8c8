"""How the memory of passes over long arrays is shared out. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gloader.errors import BudgetError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.sweep.sweep import MAX_RING_BYTES, num_pieces

MIN_PASS_BYTES: Final = 4 * 2**20
_LANE_BYTES: Final = 8 * 2**20 + 64 * PAGE_BYTES  # 64 chunks, not a power of two apart
_PORTION_BYTES: Final = 6 * 2**20  # of all owners: they are filled in a few milliseconds
_PIECE_BYTES: Final = 4 * PAGE_BYTES  # of what an owner writes at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBuffers:
    """The buffers of a pass."""

    sweep_bytes: int  # for extents that were read and pieces that are written
    lane_bytes: int  # for reading back
    portion_bytes: int  # for positions


def plan_pass_buffers(memory_bytes: int) -> PassBuffers:
    """Share ``memory_bytes`` out between the buffers of a pass. Pure.

    Raises
    ------
    BudgetError
        The memory is too small.
    """
    if memory_bytes < MIN_PASS_BYTES:
        raise BudgetError(
            f"passes over the edges need {MIN_PASS_BYTES} bytes of buffers and {memory_bytes} are allowed; raise "
            "memory_budget"
        )
    lane = min(_LANE_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
    portions = min(_PORTION_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
    sweep = (memory_bytes - lane - portions) // PAGE_BYTES * PAGE_BYTES
    return PassBuffers(sweep_bytes=sweep, lane_bytes=lane, portion_bytes=portions)


def pass_memory_bytes(num_owners: int) -> int:
    """Return the buffers with which a pass for so many owners runs at full speed. Pure."""
    return _LANE_BYTES + _PORTION_BYTES + MAX_RING_BYTES + num_pieces(num_owners) * _PIECE_BYTES
