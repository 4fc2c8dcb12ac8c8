"""Offsets of each node's in-edges: 8 bytes per node, or about 2 in the compact form.

A graph's edges are sorted by destination, so a node's in-edges are consecutive. The offset of node v is the position of
its first in-edge; offset N is the number of edges. `plain_offsets` and `compact_offsets` make the two forms, and
`offset_at` reads either one in a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from gloader.core.numba_ops import prefetch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gloader.types import IdArray

BLOCK_NODES: Final = 64  # nodes per block of the compact form
_SHIFT, _MASK = 6, 63  # node >> 6 is the block, node & 63 the node's number in the block
_LOW_END: Final = 2**16  # end of the range of uint16


class Offsets(NamedTuple):
    """A graph's N + 1 offsets in one of two forms. Kernels read them with `offset_at`, other code with `offsets_of`.

    The plain form has only ``low``, the offsets. The compact form takes 2.125 bytes per node. Each block of 64 nodes
    has a base, which is the offset of its first node, and ``low`` has each offset minus the base. A block is wide if
    these differences do not fit in 16 bits. Then a row of ``wide`` has its 64 full offsets, 512 bytes. A wide block has
    at least 65,536 edges, so ``wide`` takes at most one byte for 128 edges.

    This is a named tuple, because numba accepts no dataclass. Its arrays are read-only, so that every kernel is
    compiled for only two types.
    """

    low: NDArray[Any]  # (N + 1,) int64, or uint16 in the compact form
    base: IdArray  # (blocks,) each block's base; for a wide block with row r in ``wide``, the negative number ~r
    wide: IdArray  # (64 W,) for W wide blocks, 64 offsets per row

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self)


def plain_offsets(indptr: IdArray) -> Offsets:
    """Return ``indptr`` (N + 1,) int64 as plain offsets. Pure."""
    none = _read_only(np.empty(0, dtype=np.int64))
    return Offsets(low=_read_only(indptr), base=none, wide=none)


def compact_offsets(pieces: Iterable[IdArray], num_nodes: int) -> Offsets:
    """Return the offsets in ``pieces`` in compact form.

    Parameters
    ----------
    pieces : consecutive pieces of the N + 1 offsets, int64, ascending. Each piece but the last has a multiple of
        `BLOCK_NODES` entries. The memory of a piece may be reused for the next piece.
    num_nodes : N
    """
    # For each piece: the bases are its blocks' first offsets, and ``low`` is each offset minus its base. A block is
    # wide if its last offset is too far from its base. Its offsets are copied to ``wide``, and its base becomes ~row.
    # Differences in a wide block wrap around in ``low``, and are not used.
    low = np.empty(num_nodes + 1, dtype=np.uint16)
    base = np.empty((num_nodes >> _SHIFT) + 1, dtype=np.int64)
    wide: list[NDArray[Any]] = [np.empty((0, BLOCK_NODES), dtype=np.int64)]
    first = num_wide = 0
    for piece in pieces:
        begins = np.arange(0, len(piece), BLOCK_NODES)
        starts = piece[begins]
        low[first : first + len(piece)] = piece - np.repeat(starts, BLOCK_NODES)[: len(piece)]
        last = len(piece) - 1
        is_wide = piece[np.minimum(begins + _MASK, last)] - starts >= _LOW_END
        rows = begins[is_wide, None] + np.arange(BLOCK_NODES)
        starts[is_wide] = ~np.arange(num_wide, num_wide + len(rows))
        wide.append(piece[np.minimum(rows, last)])
        base[first >> _SHIFT : (first >> _SHIFT) + len(starts)] = starts
        first, num_wide = first + len(piece), num_wide + len(rows)
    wide_offsets = np.concatenate(wide).reshape(-1)
    return Offsets(low=_read_only(low), base=_read_only(base), wide=_read_only(wide_offsets))


def compact_bytes(num_nodes: int) -> int:
    """Return the bytes of the compact form of N = ``num_nodes``, if no block is wide. Pure."""
    return 2 * (num_nodes + 1) + 8 * ((num_nodes >> _SHIFT) + 1)


def offsets_of(offsets: Offsets, nodes: IdArray) -> IdArray:
    """Return the offsets (n,) int64 of ``nodes`` (n,), which are 0..N. Pure."""
    low, base, wide = offsets
    if low.dtype == np.int64:
        plain: IdArray = low[nodes]
        return plain
    positions = base[nodes >> _SHIFT]
    is_wide = positions < 0
    rows = (~positions[is_wide] << _SHIFT) + (nodes[is_wide] & _MASK)
    positions += low[nodes]
    positions[is_wide] = wide[rows]
    return positions


def degrees_between(offsets: Offsets, start: int, stop: int) -> IdArray:
    """Return the in-degrees of nodes ``start`` to ``stop`` as (stop - start,) int64. Pure.

    Parameters
    ----------
    offsets : all nodes' offsets
    start, stop : range of the ids, with stop <= N; stop is not included
    """
    return np.diff(offsets_of(offsets, np.arange(start, stop + 1)))


def offset_at(offsets: Offsets, node: int) -> Any:
    """Return the offset of ``node``, which is 0..N. For kernels, in which numba uses `_offset_at` instead."""
    return offsets_of(offsets, np.array([node]))[0]


def prefetch_offset(offsets: Offsets, node: int) -> None:
    """Prefetch ``node``'s offset. For kernels, in which numba uses `_prefetch_offset`. In Python, it does nothing."""


# numba calls this function at compilation, and chooses the form by the type of ``low``. With a test at run time,
# counting degrees took 1.14 times as long.
@overload(offset_at, strict=False)
def _offset_at(offsets: Any, node: Any) -> Any:  # noqa: ARG001 - numba gives the types of all arguments
    if _is_plain(offsets):
        return lambda offsets, node: offsets.low[node]

    def compact(offsets: Any, node: Any) -> Any:
        base = offsets.base[node >> _SHIFT]
        if base < 0:
            return offsets.wide[(~base << _SHIFT) + (node & _MASK)]
        return base + np.int64(offsets.low[node])

    return compact


@overload(prefetch_offset, strict=False)
def _prefetch_offset(offsets: Any, node: Any) -> Any:  # noqa: ARG001 - as above
    if _is_plain(offsets):
        return lambda offsets, node: prefetch(offsets.low, node)

    def compact(offsets: Any, node: Any) -> None:
        prefetch(offsets.base, node >> _SHIFT)
        prefetch(offsets.low, node)

    return compact


def _is_plain(offsets: Any) -> bool:
    """Return True if this numba type is the plain form."""
    low = offsets.types[Offsets._fields.index("low")]
    return bool(low.dtype == types.int64)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view of ``array``."""
    view = array.view()
    view.flags.writeable = False
    return view
