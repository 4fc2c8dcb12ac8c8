"""Rows that a batch has of a table: nodes of a type, or edges of a relation.

A table has a number: that of its node type, or, behind all of these, that of its relation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gloader.pipeline.buffers import RowMatrix
    from gloader.types import AnyBatch, IdArray

_LOW_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedRows:
    """The rows of a batch in a table in ascending order, which is the order in which plans and stores count."""

    rows: IdArray  # (U,) as the batch has them
    ascending: IdArray  # (V,) the same, each once
    order: IdArray  # (V,) where each of ``ascending`` is in ``rows``, for the first time
    repeats: IdArray | None = (
        None  # (2, U - V) places in ``rows`` that repeat a row, and where it is first; None: none
    )

    def copy_repeats(self, x: RowMatrix) -> None:
        """Put rows of ``x`` (U, F) that are there once in the other places that they have."""
        if self.repeats is not None:
            again, first = self.repeats
            x[again] = x[first]


def is_of_edges(batch: AnyBatch, number: int) -> bool:
    """Return whether table ``number`` is of edges. Pure."""
    return number >= len(batch.node_arrays)


def rows_of(batch: AnyBatch, number: int) -> IdArray:
    """Return the rows (U,) of a batch in table ``number``. Pure.

    Of edges these are the positions of block after block, as `AnyBatch.edges_of` has them; they may repeat.
    """
    nodes = batch.node_arrays
    if number < len(nodes):
        return nodes[number]
    return np.concatenate([block.edge_ids for block in batch.edges_of(number - len(nodes))])


def count_rows(batch: AnyBatch, number: int) -> int:
    """Return U, how many rows `rows_of` returns. Pure."""
    nodes = batch.node_arrays
    if number < len(nodes):
        return len(nodes[number])
    return sum(block.num_edges for block in batch.edges_of(number - len(nodes)))


def distinct_rows(batch: AnyBatch, number: int) -> IdArray:
    """Return the rows (V,) of a batch in table ``number``, ascending, each once. Pure."""
    ascending = np.sort(rows_of(batch, number))
    return ascending[_is_first(ascending)] if _may_repeat(batch, number) else ascending


def ordered_rows(batch: AnyBatch, number: int) -> OrderedRows:
    """Return the rows of a batch in table ``number`` in ascending order. Pure."""
    rows = rows_of(batch, number)
    ascending, order = _ascending(rows)
    if _may_repeat(batch, number):
        is_first = _is_first(ascending)
        if not is_first.all():
            # Of equal rows the first place comes first: the sort is by both.
            first = order[is_first]
            owners = np.cumsum(is_first) - 1
            again = ~is_first
            repeats = np.stack([order[again], first[owners[again]]])
            return OrderedRows(rows=rows, ascending=ascending[is_first], order=first, repeats=repeats)
    return OrderedRows(rows=rows, ascending=ascending, order=order)


def _may_repeat(batch: AnyBatch, number: int) -> bool:
    return batch.may_repeat or is_of_edges(batch, number)


def _is_first(ascending: IdArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    is_first = np.ones(len(ascending), dtype=np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return is_first


def _ascending(rows: IdArray) -> tuple[IdArray, IdArray]:
    """Return ``rows`` in ascending order, and the place of each of them; of equal ones the first comes first. Pure."""
    count = len(rows)
    if count and int(rows.max()) < 2 ** (63 - _LOW_BITS):
        # One sort of (row, place) pairs in one word is several times faster than an indirect sort.
        pairs = (rows << _LOW_BITS) | np.arange(count)
        pairs.sort()
        return pairs >> _LOW_BITS, pairs & (2**_LOW_BITS - 1)
    order = np.argsort(rows, kind="stable").astype(np.int64)
    return rows[order], order
