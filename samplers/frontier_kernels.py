"""Kernels over the positions that a frontier's nodes take: count the positions, mark their pages, list them in order.

A frontier is the nodes, ascending, that take edges in one hop of one batch. A position is an edge's index in the graph.
These kernels draw as the sampler draws, so the positions are identical, but here each node's positions are sorted and
distinct. A node that takes all its edges is a range, which is never expanded in memory: the range of a node with very
many edges may have millions of positions.

`UniformPickRule` calls the kernels for an edge pass, which reads the edge file once, in file order. One pass serves
many owners. An owner is one batch in one hop; it has a frontier, and a row of memory for positions. The owner receives
its positions in portions, as many as fit the row. A cursor stores its progress: the next node, and how many of the
node's positions were written.

A batch may have excluded edges, which its hops must not take, see `Excluded`. A "place" is an index in the list of
nodes with excluded edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import array_at
from gloader.core.offsets import Offsets, offset_at, prefetch_offset
from gloader.samplers.distinct_kernels import order_distinct
from gloader.samplers.exclusion_kernels import Excluded, advance, pass_over_node
from gloader.samplers.pick_kernels import SLACK, bit_set, pick_uniform, pick_with_replacement, takes_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

_AHEAD = 32  # nodes between the prefetch and the read of an offset, see `pick_kernels`
# Maximum numbers of draws and of nodes in a block. With these sizes a block's draws stay in the fastest cache.
_BLOCK_DRAWS, _MOST_BLOCK_NODES = 2048, 256
ADDRESS, LENGTH, FANOUT = range(3)  # columns in the frontiers' table: nodes, their number, fan-out
NODE, DONE = range(2)  # columns in the cursors' table: the next node, and its positions written so far


class Picks(NamedTuple):
    """The rule by which nodes pick, and scratch for one thread. A named tuple, because numba accepts no other class.

    The kernels draw for blocks of up to B consecutive nodes, because a call with all these arrays for each node would
    take longer than the node's draws.
    """

    offsets: Offsets  # the graph's offsets: the position of each node's first in-edge
    num_edges: int  # E
    replace: bool  # True draws with replacement
    nodes: IdArray  # (B,) the block's nodes
    starts: IdArray  # (B,) each node's first in-edge
    degrees: IdArray  # (B,) in-edges to draw from; 0 if the node draws nothing
    sizes: IdArray  # (B,) in-edges of a node that takes all of them; -1 for a node that draws
    indptr: LocalArray  # (B + 1,) the index in ``drawn`` at which each node's draws begin
    drawn: IdArray  # the positions that the block draws, followed by `SLACK` spare entries
    ordered: IdArray  # scratch: one node's distinct positions, ascending
    ranks: IdArray  # (`SLACK`,) scratch of `order_distinct`
    bits: NDArray[np.uint64]  # scratch of `pick_kernels.pick_uniform`
    excluded: Excluded  # the excluded edges, frontier after frontier
    spans: IdArray  # (O, 2) each frontier's first place and end in ``excluded``
    places: IdArray  # (B,) the place of each node of the block in ``excluded``; -1 without excluded edges


def new_picks(
    offsets: Offsets,
    num_edges: int,
    *,
    replace: bool,
    largest_fanout: int,
    excluded: tuple[Excluded, IdArray],
) -> Picks:
    """Return a rule with new scratch. Pure.

    Parameters
    ----------
    offsets, num_edges : the graph's offsets and number of edges
    replace : draw with replacement
    largest_fanout : the largest fan-out of all hops
    excluded : the excluded edges of all frontiers, and their spans, from `join_excluded`
    """
    fanout = max(largest_fanout, 1)
    block = min(max(_BLOCK_DRAWS // fanout, 1), _MOST_BLOCK_NODES)
    return Picks(
        offsets=offsets,
        num_edges=num_edges,
        replace=replace,
        nodes=np.empty(block, dtype=np.int64),
        starts=np.empty(block, dtype=np.int64),
        degrees=np.empty(block, dtype=np.int64),
        sizes=np.empty(block, dtype=np.int64),
        indptr=np.zeros(block + 1, dtype=np.int32),
        drawn=np.empty(block * fanout + SLACK, dtype=np.int64),
        ordered=np.empty(fanout, dtype=np.int64),
        ranks=np.empty(SLACK, dtype=np.int64),
        bits=bit_set(largest_fanout),
        excluded=excluded[0],
        spans=excluded[1],
        places=np.empty(block, dtype=np.int64),
    )


@njit(cache=True, nogil=True)
def count_positions(picks: Picks, nodes: NDArray[Any], fanout: int, key: np.uint64) -> int:
    """Return the number of distinct positions that ``nodes`` take, or -1 - i if node i has edges outside the graph.

    A node's count follows from its degree and the fan-out. Only draws with replacement must be drawn to be counted,
    because positions may repeat.

    Parameters
    ----------
    picks : the rule, with ``nodes`` as the only frontier
    nodes : (D,) the frontier's nodes, int32 or int64
    fanout, key : the hop's fan-out, and its random key
    """
    offsets, num_edges, replace = picks.offsets, picks.num_edges, picks.replace
    of_nodes, begins = picks.excluded.nodes, picks.excluded.begins
    next_place, end = picks.spans[0, 0], picks.spans[0, 1]
    # Excluded edges lower a node's degree. The loop advances ``next_place`` together with the nodes; both ascend.
    total, size, last = 0, 0, nodes.shape[0] - 1
    for i in range(nodes.shape[0]):
        prefetch_offset(offsets, nodes[min(i + _AHEAD, last)])
        start, stop = offset_at(offsets, nodes[i]), offset_at(offsets, nodes[i] + 1)
        if start < 0 or stop < start or stop > num_edges:
            return -1 - i
        degree, place = stop - start, -1
        if next_place < end:  # false if no edge is excluded
            next_place = advance(of_nodes, next_place, end, nodes[i])
            if next_place < end and of_nodes[next_place] == nodes[i]:
                degree, place = degree - (begins[next_place + 1] - begins[next_place]), next_place
        if takes_all(degree, fanout, replace):
            total += degree
        elif not replace:
            total += fanout
        else:
            # Only the draws show how many positions repeat.
            size = _enter(picks, size, nodes[i], start, degree, fanout, place)
            if size == picks.nodes.shape[0]:  # the block is full
                total += _count_block(picks, size, fanout, key)
                size = 0
    return total + _count_block(picks, size, fanout, key)


@njit(cache=True, nogil=True)
def mark_positions(
    picks: Picks,
    nodes: NDArray[Any],
    fanout: int,
    key: np.uint64,
    pages: NDArray[np.uint64],
    per_page: int,
    shift: int,
) -> int:
    """Set the bit of each page from which ``nodes`` take a position.

    A list within one page, or taken entirely, needs no draws. The other nodes are collected into blocks and drawn.

    Parameters
    ----------
    picks, nodes, fanout, key : as in `count_positions`
    pages : output, a bit for each page
    per_page : positions in a page
    shift : base-2 logarithm of ``per_page``; -1 if ``per_page`` is no power of two

    Returns
    -------
    int
        -1, or the first i whose node has edges outside the graph.
    """
    offsets, num_edges, replace = picks.offsets, picks.num_edges, picks.replace
    of_nodes, begins = picks.excluded.nodes, picks.excluded.begins
    next_place, end = picks.spans[0, 0], picks.spans[0, 1]
    size, last = 0, nodes.shape[0] - 1
    for i in range(nodes.shape[0]):
        prefetch_offset(offsets, nodes[min(i + _AHEAD, last)])
        start, stop = offset_at(offsets, nodes[i]), offset_at(offsets, nodes[i] + 1)
        if start < 0 or stop < start or stop > num_edges:
            return i
        degree, place = stop - start, -1
        if next_place < end:  # false if no edge is excluded
            next_place = advance(of_nodes, next_place, end, nodes[i])
            if next_place < end and of_nodes[next_place] == nodes[i]:
                degree, place = degree - (begins[next_place + 1] - begins[next_place]), next_place
        if degree == 0 or fanout == 0:
            continue
        first_page, last_page = _page_of(start, per_page, shift), _page_of(stop - 1, per_page, shift)
        # Most lists lie in one page; the page is then known without draws.
        if first_page == last_page:
            _set_bit(pages, first_page)
            continue
        if takes_all(degree, fanout, replace):
            _mark_rest(picks.excluded, place, start, stop, pages, per_page, shift)
            continue
        size = _enter(picks, size, nodes[i], start, degree, fanout, place)
        if size == picks.nodes.shape[0]:
            _mark_block(picks, size, key, pages, per_page, shift)
            size = 0
    _mark_block(picks, size, key, pages, per_page, shift)
    return -1


@njit(cache=True, nogil=True)
def fill_portions(
    picks: Picks,
    frontiers: IdArray,
    like: NDArray[Any],
    keys: NDArray[np.uint64],
    cursors: IdArray,
    ids: IdArray,
    taken: IdArray,
    ends: IdArray,
    has_more: NDArray[np.bool_],
) -> int:
    """Write the next positions of every owner, see `IdPortions.fill`.

    Parameters
    ----------
    picks : the rule
    frontiers : (O, 3) each owner's frontier: the memory address of its nodes, their number, and the hop's fan-out
    like : an array with the nodes' dtype, so that the kernel can read the nodes at their address
    keys : (O,) each hop's random key
    cursors : (O, 2) each owner's next node, and how many of the node's positions were written; updated
    ids, taken, ends, has_more : as in `IdPortions.fill`

    Returns
    -------
    int
        -1, or the first owner with a node whose edges are outside the graph. The owner's cursor is at this node.
    """
    for o in range(ids.shape[0]):
        row = ids[o]
        end = 0
        # Move the positions that the pass has not read yet to the front of the row.
        for column in range(taken[o], ends[o]):
            row[end] = row[column]
            end += 1
        taken[o] = 0
        if cursors[o, NODE] < frontiers[o, LENGTH]:
            nodes = array_at(frontiers[o, ADDRESS], frontiers[o, LENGTH], like)
            end = _fill(picks, nodes, frontiers[o, FANOUT], keys[o], picks.spans[o], cursors[o], row, end)
            if end < 0:
                return o
        ends[o] = end
        has_more[o] = cursors[o, NODE] < frontiers[o, LENGTH]
    return -1


@njit(cache=True, nogil=True)
def _fill(
    picks: Picks,
    nodes: NDArray[Any],
    fanout: int,
    key: np.uint64,
    span: IdArray,
    cursor: IdArray,
    row: IdArray,
    end: int,
) -> int:
    """Write an owner's next positions into its ``row`` from column ``end`` on, while they fit.

    Each iteration collects and draws a block of nodes, and writes their positions. If the last node's positions do not
    fit, the cursor stays at this node and counts the written positions. Returns the new end, or -1 if a node has edges
    outside the graph.
    """
    starts, sizes, indptr, drawn = picks.starts, picks.sizes, picks.indptr, picks.drawn
    replace, ranks, ordered = picks.replace, picks.ranks, picks.ordered
    excluded, places = picks.excluded, picks.places
    while cursor[NODE] < nodes.shape[0]:
        size = _gather(picks, nodes, fanout, span, cursor, row.shape[0] - end)
        if size < 0:
            return -1
        _draw(picks, size, key)
        for i in range(size):
            # ``done`` of the node's ``all_of_node`` positions were written, and ``room`` columns are free.
            done, room, all_of_node = cursor[DONE], row.shape[0] - end, sizes[i]
            if all_of_node >= 0:  # the node takes all its edges
                count = min(all_of_node - done, room)
                for j in range(count):
                    row[end + j] = starts[i] + done + j
                if places[i] >= 0:
                    pass_over_node(excluded, places[i], row, end, end + count)
            elif done == 0 and fanout <= room:  # all draws fit: sort them directly into the row
                count = order_distinct(drawn, indptr[i], fanout, replace, ranks, row, end)
                all_of_node = count
            else:
                # The draws of a node at a portion's end are drawn again for the next portion. To keep them would take
                # memory for a fan-out in every owner.
                all_of_node = order_distinct(drawn, indptr[i], fanout, replace, ranks, ordered, 0)
                count = min(all_of_node - done, room)
                for j in range(count):
                    row[end + j] = ordered[done + j]
            end += count
            # Only a block's last node may have more positions than fit.
            if done + count < all_of_node:
                cursor[NODE] += i
                cursor[DONE] = done + count
                return end
            cursor[DONE] = 0
        cursor[NODE] += size
    return end


@njit(cache=True, nogil=True)
def _gather(picks: Picks, nodes: NDArray[Any], fanout: int, span: IdArray, cursor: IdArray, room: int) -> int:
    """Collect a block of the next nodes, until their positions fill ``room``; the last node may fit only in part.

    For each node, the arrays of ``picks`` get its first in-edge, its number of edges and its place.

    Returns
    -------
    int
        The number of nodes, or -1 if the node at the cursor has edges outside the graph.
    """
    offsets, num_edges, replace, sizes = picks.offsets, picks.num_edges, picks.replace, picks.sizes
    block, starts, degrees, indptr = picks.nodes, picks.starts, picks.degrees, picks.indptr
    of_nodes, begins = picks.excluded.nodes, picks.excluded.begins
    next_place, end, places = span[0], span[1], picks.places
    first, size, num_positions = cursor[NODE], 0, -cursor[DONE]
    if next_place < end:  # start at the first node's place among the excluded edges
        next_place += np.searchsorted(of_nodes[next_place:end], nodes[first])
    most = min(picks.nodes.shape[0], nodes.shape[0] - first)
    # Prefetch for the entire block: the previous portion was long ago, and its cache lines are gone.
    for ahead in range(first, first + min(most, room // max(fanout, 1) + 1)):
        prefetch_offset(offsets, nodes[ahead])
    while size < most:
        node = nodes[first + size]
        start, stop = offset_at(offsets, node), offset_at(offsets, node + 1)
        if start < 0 or stop < start or stop > num_edges:
            cursor[NODE] += size
            return -1
        degree, place = stop - start, -1
        if next_place < end:  # false if no edge is excluded
            next_place = advance(of_nodes, next_place, end, node)
            if next_place < end and of_nodes[next_place] == node:
                degree, place = degree - (begins[next_place + 1] - begins[next_place]), next_place
        if takes_all(degree, fanout, replace):
            num_positions += degree
            sizes[size], degrees[size], count = degree, 0, 0
        else:
            num_positions += fanout
            sizes[size], degrees[size], count = -1, degree, fanout
        block[size], starts[size], places[size] = node, start, place
        indptr[size + 1] = indptr[size] + count
        size += 1
        if num_positions > room:
            break
    return size


@njit(cache=True, nogil=True)
def _enter(picks: Picks, index: int, node: int, start: int, degree: int, count: int, place: int) -> int:
    """Add a node with ``count`` draws to the block at ``index``; return the block's new size, ``index`` + 1."""
    picks.nodes[index] = node
    picks.starts[index] = start
    picks.degrees[index] = degree
    picks.places[index] = place
    picks.indptr[index + 1] = picks.indptr[index] + count
    return index + 1


@njit(cache=True, nogil=True)
def _draw(picks: Picks, size: int, key: np.uint64) -> None:
    """Draw the positions of a block's nodes into ``picks.drawn``, as a hop draws them."""
    if picks.replace:
        pick_with_replacement(
            picks.nodes, picks.starts, picks.degrees, 0, size, False, key, picks.indptr, picks.drawn
        )
    else:
        pick_uniform(
            picks.nodes, picks.starts, picks.degrees, 0, size, key, picks.indptr, picks.drawn, picks.bits
        )
    if picks.excluded.nodes.shape[0]:
        for i in range(size):
            if picks.places[i] >= 0:
                first, last = picks.indptr[i], picks.indptr[i + 1]
                pass_over_node(picks.excluded, picks.places[i], picks.drawn, first, last)


@njit(cache=True, nogil=True)
def _count_block(picks: Picks, size: int, fanout: int, key: np.uint64) -> int:
    """Return the number of distinct positions that a block's nodes draw with replacement."""
    drawn, ranks, ordered, indptr, total = picks.drawn, picks.ranks, picks.ordered, picks.indptr, 0
    _draw(picks, size, key)
    for i in range(size):
        total += order_distinct(drawn, indptr[i], fanout, True, ranks, ordered, 0)
    return total


@njit(cache=True, nogil=True)
def _mark_rest(
    excluded: Excluded,
    place: int,
    start: int,
    stop: int,
    pages: NDArray[np.uint64],
    per_page: int,
    shift: int,
) -> None:
    """Set the bits of the pages in ``start:stop``, except for positions excluded at ``place``."""
    first = excluded.begins[place] if place >= 0 else 0
    left = excluded.begins[place + 1] - first if place >= 0 else 0
    begin = start
    for j in range(left + 1):
        # Each range ends before the next excluded position; the last range ends at ``stop``.
        until = excluded.positions[first + j] if j < left else stop
        if begin < until:
            last_page = _page_of(until - 1, per_page, shift)
            for page in range(_page_of(begin, per_page, shift), last_page + 1):
                _set_bit(pages, page)
        begin = until + 1


@njit(cache=True, nogil=True)
def _mark_block(
    picks: Picks, size: int, key: np.uint64, pages: NDArray[np.uint64], per_page: int, shift: int
) -> None:
    """Set the bit of each page from which a block's nodes draw a position."""
    drawn = picks.drawn
    _draw(picks, size, key)
    for j in range(picks.indptr[size]):
        _set_bit(pages, _page_of(drawn[j], per_page, shift))


@njit(cache=True, nogil=True)
def _page_of(position: int, per_page: int, shift: int) -> int:
    """Return the page of ``position``; for parameters see `mark_positions`."""
    # A shift is used if possible, because a 64-bit division takes as long as a draw.
    return position >> shift if shift >= 0 else position // per_page


@njit(cache=True, nogil=True)
def _set_bit(bits: NDArray[np.uint64], index: int) -> None:
    """Set bit ``index`` in ``bits``."""
    bits[index >> 6] |= np.uint64(1) << np.uint64(index & 63)
