"""The shares of a memory budget that finding the rows of link tables in a graph takes."""

from __future__ import annotations

from dataclasses import dataclass

from gloader.core.units import format_bytes
from gloader.errors import BudgetError

# Of a row on its way: it is widest before it is put in order, with its number, its ends and what was found.
SPILLED_ROW_BYTES = 40
# Each bucket is a file that is opened and closed once per chunk: more of them would cost more than they help.
_MAX_BUCKETS = 1024
# Bytes per destination of a bucket: where its list starts, where its rows do, and the sum that says so.
_NODE_BYTES = 24
# Bytes per row that is read: as it comes, as it goes to the spill, in the order of the buckets, and what sorts it.
_CHUNK_BYTES = 160
# Bytes per row that is looked up: the row and another one beside it, its sorted columns, the sort, what is known of its
# group, and the result as it goes to the next spill.
_JOIN_BYTES = 320
# Bytes per row that is put in order: of the table, twice as it is handed on, of the spill, and its place.
_ORDER_BYTES = 120
_MAX_CHUNK_ROWS = 1 << 20
_MIN_ROWS = 4_096
_PIECE_BYTES = 4 << 20  # of a list, read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatePlan:
    """Shares of a memory budget that finding the rows of link tables in a graph takes."""

    chunk_rows: int  # read from a table at a time
    held_bytes: int  # of dealt-out rows, before they go to files; two such are alive at once
    join_rows: int  # looked up at a time
    list_edges: int  # of a list, read at a time
    range_rows: int  # put in the order of the table at a time
    bucket_nodes: int  # of a bucket, at most
    memory_bytes: int

    def shift(self, num_nodes: int, num_rows: int | None) -> int:
        """Return how many low bits of a destination's id say where it is in its bucket. Pure.

        Parameters
        ----------
        num_nodes : destinations
        num_rows : of the table; None: unknown, and taken to be many
        """
        # Half of what may be looked up at once, because real destinations are skewed.
        by_rows = _MAX_BUCKETS // 4 if num_rows is None else -(-2 * num_rows // self.join_rows)
        # Ranges are powers of two, and so up to twice as large as they need be.
        by_nodes = 1 if num_nodes <= self.bucket_nodes else -(-2 * num_nodes // self.bucket_nodes)
        buckets = min(_MAX_BUCKETS, max(1, by_rows, by_nodes))
        return max(0, (max(1, num_nodes) - 1).bit_length() - (buckets - 1).bit_length())


def plan_locate(num_nodes: int, *, budget_bytes: int, num_rows: int | None = None) -> LocatePlan:
    """Divide a memory budget between the parts of a search. Pure.

    Parameters
    ----------
    num_nodes : of the larger end of the relation
    budget_bytes : memory that it stays within
    num_rows : of the table; None: unknown

    Raises
    ------
    BudgetError
        Not even the smallest useful buffers fit; says needed and allowed.
    """
    least_nodes = -(-2 * num_nodes // _MAX_BUCKETS)
    needed = _PIECE_BYTES + 2 * (_NODE_BYTES * least_nodes + _JOIN_BYTES * _MIN_ROWS)
    if needed > budget_bytes:
        raise BudgetError(
            f"finding link tables in a graph of {num_nodes} nodes needs at least {format_bytes(needed)}; the memory "
            f"budget leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    free = budget_bytes - _PIECE_BYTES
    # Reading, looking up and putting in order come one after another; what two spills hold is alive beside them.
    held = free // 8
    work = free - 2 * held
    node_bytes = max(_NODE_BYTES * least_nodes, work // 4)
    most = budget_bytes if num_rows is None else num_rows
    chunk = min(_MAX_CHUNK_ROWS, work // _CHUNK_BYTES)
    join, ordered = (work - node_bytes) // _JOIN_BYTES, work // _ORDER_BYTES
    return LocatePlan(
        chunk_rows=chunk,
        held_bytes=held,
        join_rows=join,
        list_edges=_PIECE_BYTES // 8,
        range_rows=ordered,
        bucket_nodes=node_bytes // _NODE_BYTES,
        # Without the buffers of the files that are read, which a conversion has room for.
        memory_bytes=min(2 * held, 2 * most * SPILLED_ROW_BYTES)
        + max(
            min(chunk, most) * _CHUNK_BYTES,
            _PIECE_BYTES + min(node_bytes, _NODE_BYTES * num_nodes) + min(join, most) * _JOIN_BYTES,
            _PIECE_BYTES + min(ordered, most) * _ORDER_BYTES,
        ),
    )
