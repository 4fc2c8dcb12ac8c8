"""Offsets of the in-edges of each node: 8 bytes a node, or about 2 in the compact form."""

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

BLOCK_NODES: Final = 64
_SHIFT, _MASK = 6, 63
_LOW_END: Final = 2**16


class Offsets(NamedTuple):
    """The N + 1 offsets of a graph, in one of two forms. Kernels read them with `offset_at`, others with `offsets_of`.

    Plain: ``low`` alone. Compact, 2.125 bytes a node: blocks of 64 nodes have a base, and ``low`` is what each node
    lies above it. A block of 2**16 edges or more is written out in ``wide``: at most a byte for 128 edges.

    A named tuple and not a dataclass, because numba takes only the former. Its arrays are read-only, so that every
    kernel is compiled for two kinds of it and no more.
    """

    low: NDArray[Any]  # (N + 1,) int64, or uint16 of the compact form
    base: IdArray  # (blocks,); below 0: ~r, and the block is row r of ``wide``
    wide: IdArray  # (64 r,)

    @property
    def num_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self)


def plain_offsets(indptr: IdArray) -> Offsets:
    """Return ``indptr`` (N + 1,) int64 as it is. Pure."""
    none = _read_only(np.empty(0, dtype=np.int64))
    return Offsets(low=_read_only(indptr), base=none, wide=none)


def compact_offsets(pieces: Iterable[IdArray], num_nodes: int) -> Offsets:
    """Return the offsets that ``pieces`` give in order, in the compact form.

    Parameters
    ----------
    pieces : of the N + 1 offsets, int64, ascending; of a multiple of `BLOCK_NODES` each, but for the last. Each is done
        with when the next is asked for
    num_nodes : N
    """
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
    written_out = np.concatenate(wide).reshape(-1)
    return Offsets(low=_read_only(low), base=_read_only(base), wide=_read_only(written_out))


def compact_bytes(num_nodes: int) -> int:
    """Return the bytes of the compact form where no block is written out. Pure."""
    return 2 * (num_nodes + 1) + 8 * ((num_nodes >> _SHIFT) + 1)


def offsets_of(offsets: Offsets, nodes: IdArray) -> IdArray:
    """Return the positions of the first in-edges of ``nodes`` (n,), 0..N, as (n,) int64. Pure."""
    low, base, wide = offsets
    if low.dtype == np.int64:
        plain: IdArray = low[nodes]
        return plain
    found = base[nodes >> _SHIFT]
    is_wide = found < 0
    rows = (~found[is_wide] << _SHIFT) + (nodes[is_wide] & _MASK)
    found += low[nodes]
    found[is_wide] = wide[rows]
    return found


def degrees_between(offsets: Offsets, start: int, stop: int) -> IdArray:
    """Return the in-degrees of the nodes ``start`` to ``stop`` as (stop - start,) int64. Pure.

    Parameters
    ----------
    offsets : of all nodes
    start, stop : ids, at most N
    """
    return np.diff(offsets_of(offsets, np.arange(start, stop + 1)))


def offset_at(offsets: Offsets, node: int) -> Any:
    """Return the position of the first in-edge of ``node``, 0..N. For kernels."""
    return offsets_of(offsets, np.array([node]))[0]


def prefetch_offset(offsets: Offsets, node: int) -> None:
    """Ask for the offset of ``node`` before it is read. For kernels."""


# By type: with a look at the base of the plain form too, degrees in memory took 1.14 times as long to count.
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
    """Return whether this numba type is that of the plain form."""
    low = offsets.types[Offsets._fields.index("low")]
    return bool(low.dtype == types.int64)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
