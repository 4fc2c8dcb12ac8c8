"""Offsets in a quarter of the memory are the same offsets."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.core.offsets import (
    Offsets,
    compact_bytes,
    compact_offsets,
    degrees_between,
    offsets_of,
    plain_offsets,
)
from gloader.samplers.graph import in_degrees

FEW = 2**16 - 1  # what a node may lie above the first of its block, and its block is not written out


def folded(indptr: np.ndarray, *, piece: int = 128) -> Offsets:
    """Return the compact form, made of one buffer that is used again and again."""

    def pieces():
        buffer = np.empty(piece, dtype=np.int64)
        for start in range(0, len(indptr), piece):
            part = buffer[: len(indptr) - start]
            part[:] = indptr[start : start + piece]
            yield part

    return compact_offsets(pieces(), len(indptr) - 1)


def check(indptr: np.ndarray, offsets: Offsets) -> None:
    num_nodes = len(indptr) - 1
    nodes = np.random.default_rng(1).permutation(num_nodes + 1)
    assert offsets_of(offsets, nodes).tolist() == indptr[nodes].tolist()
    nodes = nodes[nodes < num_nodes]
    assert in_degrees(offsets, nodes).tolist() == np.diff(indptr)[nodes].tolist()
    for start in (0, num_nodes // 3):
        assert degrees_between(offsets, start, num_nodes).tolist() == np.diff(indptr[start:]).tolist()


@pytest.mark.parametrize("num_nodes", [0, 1, 62, 63, 64, 65, 127, 128, 1000])
@pytest.mark.parametrize("hub", [0, FEW, 2**31, 2**40])
def test_both_forms_say_what_indptr_says(num_nodes: int, hub: int) -> None:
    """Offsets of late nodes need more than 32 bits, and so do degrees."""
    degrees = np.random.default_rng(num_nodes).integers(0, 9, num_nodes)
    degrees[:: 3 if hub == 2**31 else 100] += hub
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    compact = folded(indptr)
    assert compact.low.dtype == np.uint16
    check(indptr, compact)
    check(indptr, plain_offsets(indptr))


@pytest.mark.parametrize("first", [0, 64, 640, 960])
def test_only_a_block_of_too_many_edges_is_written_out(first: int) -> None:
    """The last of a block's nodes lies behind the edges of the others; behind its own, the next block begins."""
    indptr = np.full(1001, 5, dtype=np.int64)
    indptr[first + 1 :] += FEW
    indptr[first + 64 :] += 2**40
    compact = folded(indptr)
    assert len(compact.wide) == 0
    assert compact.num_bytes == compact_bytes(1000) == 2 * 1001 + 8 * 16
    check(indptr, compact)
    indptr[min(first + 63, 1000) :] += 1
    compact = folded(indptr)
    assert len(compact.wide) == 64
    assert compact.num_bytes == compact_bytes(1000) + 8 * 64
    check(indptr, compact)


def test_ids_beyond_31_bits_are_looked_up_where_they_lie() -> None:
    """Of 2**31 + 130 nodes; almost all pages of the arrays are never written, and so take no memory."""
    num_nodes = 2**31 + 130
    low, base = np.zeros(num_nodes + 1, np.uint16), np.zeros((num_nodes >> 6) + 1, np.int64)
    low[-3:], base[-2:] = [1, 4, 9], [~0, 2**33]
    wide = np.arange(64, dtype=np.int64) ** 2 + 2**33 - 63**2
    for array in (low, base, wide):
        array.flags.writeable = False
    offsets = Offsets(low=low, base=base, wide=wide)
    nodes = np.array([num_nodes - 1, 2**31 + 64, 2**31 + 127, 2**31, 7])
    assert in_degrees(offsets, nodes).tolist() == [5, 1, 1, 0, 0]
    assert offsets_of(offsets, nodes).tolist() == [2**33 + 4, 2**33 - 63**2, 2**33, 0, 0]
