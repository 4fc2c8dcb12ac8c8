"""Kernels that choose in-edges while a graph's edges stream by in the order of their positions.

`ListDraws` in `list_rule` calls these kernels for each part of a sweep, which reads all edges once, in file order. A
position is an edge's index in the graph. A node's list is its in-edges; a place is an edge's index in its list. The
choice depends on a list's values (weights, sources), so no position is known before the list is read. An owner is one
batch in one hop, with its nodes ascending. An owner reads from a part the edges in its current node's list; a list may
be longer than a part.

Weighted draws give each edge an arrival, a random number divided by the weight; the node takes the edges with the
smallest arrivals, as many as the fan-out. An edge is kept while it is among the smallest so far. The taken edges become
records of two or three words (32 bits, or 64 if the ids need them):

- the edge's place. A node's first record holds -1 minus the place, or `NONE` if no edge is taken;
- the source;
- with importance, the number of edges that the edge stands for, a float. This word is not set if the node has at most
  as many in-edges as the fan-out: the reader then computes the number.

A node's records are in the order in which the sampler takes its edges; nodes without in-edges have no record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gloader.core.kernels import njit
from gloader.core.offsets import Offsets, offset_at
from gloader.samplers.poisson_kernels import limit_of, number_of
from gloader.samplers.rng import node_key, unit
from gloader.samplers.weighted_kernels import insert_arrival

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

NONE: Final = -(2**31)  # marks the only record of a node that takes no edge
MOST_EDGES: Final = 2**31 - 1  # maximum length of a list: places have 31 bits
# The statuses of an owner after a part: it has finished with the part, it needs more nodes, its memory for words is
# full, a weight is damaged, or it missed an edge.
FINISHED, NODES_WANTED, WORDS_FULL, BAD_WEIGHT, PASSED = range(5)
# Rows in the owners' table. AT, END: the current node's index in the owner's portion of nodes, and the portion's
# length. HAS_MORE: nodes follow the portion. EDGE, STOP: the next edge's position, and the end of the current list.
# KEPT: kept edges. POSITIVE: edges with positive weight so far. IS_READ: the whole list was read. WRITTEN: the current
# node's records. FILL: words in memory.
AT, END, HAS_MORE, EDGE, STOP, KEPT, POSITIVE, IS_READ, WRITTEN, FILL, FANOUT, STATUS = range(12)
NUM_ROWS: Final = 12
ARRIVAL, WEIGHT = range(2)  # rows in `Lists.numbers`
SLOT, PLACE, SOURCE = range(3)  # rows in `Lists.edges`
FAR: Final = 2**62  # in row EDGE: the owner has no further list
UNKNOWN: Final = -1  # in row EDGE: the owner has not looked up its current node's list


class Lists(NamedTuple):
    """The state of O owners, with their taken edges. A named tuple, because numba accepts no other class."""

    table: IdArray  # (12, O) one number per owner in each of the rows AT to STATUS
    nodes: IdArray  # (O, W) a portion of each owner's nodes
    keys: NDArray[np.uint64]  # (O,) each hop's random key
    beyond: NDArray[np.float64]  # (O,) the current node's smallest arrival that is not taken
    # The kept edges of the current list (K = 0 without weights). In the order of arrival: each edge's arrival and slot.
    # By slot: the weight, the place and the source.
    numbers: NDArray[np.float64]  # (O, 2, K)
    edges: IdArray  # (O, 3, K)
    words: NDArray[Any]  # (O, C + words of a record) int32 or int64, the records
    floats: NDArray[Any]  # the same memory as float32 or float64
    capacity: int  # C, number of words at which the caller must move an owner's records away
    has_importance: bool  # True if a record has a third word


@njit(cache=True, nogil=True)
def mark_lists(
    offsets: Offsets, nodes: NDArray[Any], fanout: int, per_page: int, pages: NDArray[np.uint64]
) -> tuple[int, int]:
    """Set the bit for each page with in-edges of ``nodes``; a page is ``per_page`` positions.

    Returns the largest in-degree, and an estimate of the number of edges that all nodes take.
    """
    longest, taken = 0, 0
    for i in range(nodes.shape[0]):
        start, stop = offset_at(offsets, nodes[i]), offset_at(offsets, nodes[i] + 1)
        longest = max(longest, stop - start)
        taken += stop - start if fanout < 0 else min(stop - start, fanout)
        if stop > start:
            for page in range(start // per_page, (stop - 1) // per_page + 1):
                pages[page >> 6] |= np.uint64(1) << np.uint64(page & 63)
    return longest, taken


@njit(cache=True, nogil=True)
def offer(
    lists: Lists,
    offsets: Offsets,
    begin: int,
    sources: NDArray[Any],
    weights: NDArray[Any],
    is_weighted: bool,
    owners: IdArray,
) -> int:
    """Let ``owners`` choose among the edges from position ``begin`` on; return the number of stopped owners.

    Stopped owners move to the front of ``owners``, and their STATUS is the reason. At `NODES_WANTED` supply more nodes,
    at `WORDS_FULL` move the words away; then call again with the stopped owners. At `PASSED` the owner waits for an
    edge before ``begin``, and at `BAD_WEIGHT` it met a damaged weight: both are errors.
    """
    count = 0
    for i in range(owners.shape[0]):
        o = owners[i]
        status = _offer_to(lists, offsets, begin, sources, weights, is_weighted, o)
        if status != FINISHED:
            lists.table[STATUS, o] = status
            owners[count] = o
            count += 1
    return count


@njit(cache=True, nogil=True)
def _offer_to(
    lists: Lists,
    offsets: Offsets,
    begin: int,
    sources: NDArray[Any],
    weights: NDArray[Any],
    is_weighted: bool,
    o: int,
) -> int:
    """Let owner ``o`` choose among the edges from position ``begin`` on; return its status. See `offer`."""
    table = lists.table
    end = begin + sources.shape[0]
    while table[EDGE, o] < end:
        if table[EDGE, o] == UNKNOWN:
            if not _find_list(lists, offsets, o):
                return NODES_WANTED
            continue
        if table[EDGE, o] < begin:
            return PASSED
        status = _read_list(lists, offsets, begin, sources, weights, is_weighted, o)
        if status != FINISHED:
            return status
    return FINISHED


@njit(cache=True, nogil=True)
def _find_list(lists: Lists, offsets: Offsets, o: int) -> bool:
    """Advance owner ``o`` to its next node with in-edges; return False if it needs more nodes."""
    table, nodes = lists.table, lists.nodes
    while table[AT, o] < table[END, o]:
        node = nodes[o, table[AT, o]]
        start, stop = offset_at(offsets, node), offset_at(offsets, node + 1)
        if stop > start:
            table[EDGE, o], table[STOP, o] = start, stop
            table[KEPT, o] = table[POSITIVE, o] = table[IS_READ, o] = table[WRITTEN, o] = 0
            lists.beyond[o] = math.inf
            return True
        table[AT, o] += 1
    if table[HAS_MORE, o]:
        return False
    table[EDGE, o] = FAR
    return True


@njit(cache=True, nogil=True)
def _read_list(
    lists: Lists,
    offsets: Offsets,
    begin: int,
    sources: NDArray[Any],
    weights: NDArray[Any],
    is_weighted: bool,
    o: int,
) -> int:
    """Let the owner's current node choose among the present part of its list; return the owner's status.

    Weighted draws keep the edges with the smallest arrivals, and write their records after the end of the list. Other
    choices are final at each edge, whose record is written at once. A node that takes no edge gets the record `NONE`.
    """
    table = lists.table
    node = lists.nodes[o, table[AT, o]]
    first, stop, fanout = offset_at(offsets, node), table[STOP, o], table[FANOUT, o]
    takes_all = fanout < 0 or stop - first <= fanout
    if not table[IS_READ, o]:
        if is_weighted and not takes_all:
            status = _keep_earliest(lists, begin, sources, weights, node_key(lists.keys[o], node), first, o)
        else:
            chance = 1.0 if takes_all else fanout / (stop - first)
            status = _take_passing(lists, begin, sources, weights, is_weighted, chance, first, o)
        if status != FINISHED:
            return status
        if table[EDGE, o] < stop:
            return FINISHED
        # All edges of the list were read. The records follow, perhaps in another call with the same part. EDGE stays
        # at the last edge meanwhile, so that the owner is not yet finished with the part.
        table[IS_READ, o] = 1
        table[EDGE, o] = stop - 1
        # A node that takes all its edges with positive weight takes them in the graph's order, not by arrival.
        if table[POSITIVE, o] <= fanout:
            for i in range(table[KEPT, o]):
                lists.edges[o, SLOT, i] = i
    while table[WRITTEN, o] < table[KEPT, o]:
        if table[FILL, o] >= lists.capacity:
            return WORDS_FULL
        slot = lists.edges[o, SLOT, table[WRITTEN, o]]
        # The chance and the importance as in `weighted_kernels.pick_weighted`.
        chance = -math.expm1(-lists.numbers[o, WEIGHT, slot] * lists.beyond[o])
        importance = (stop - first) / (table[POSITIVE, o] * chance)
        _write(lists, o, lists.edges[o, PLACE, slot], lists.edges[o, SOURCE, slot], importance)
    if table[WRITTEN, o] == 0:
        if table[FILL, o] >= lists.capacity:
            return WORDS_FULL
        # `_write` turns the first place of a node into -1 - place, so this word becomes NONE.
        _write(lists, o, -1 - NONE, 0, 0.0)
    table[AT, o] += 1
    table[EDGE, o] = UNKNOWN
    return FINISHED


@njit(cache=True, nogil=True)
def _take_passing(
    lists: Lists,
    begin: int,
    sources: NDArray[Any],
    weights: NDArray[Any],
    is_weighted: bool,
    chance: float,
    first: int,
    o: int,
) -> int:
    """Write records for edges that are taken as they pass, up to the end of the part or of the list.

    With weights these are the edges with positive weight. Without weights, an edge is taken by its source's random
    number, as in `poisson_kernels.pick_by_fanout`.
    """
    table, words = lists.table, lists.words[o]
    end = min(begin + sources.shape[0], table[STOP, o])
    key, limit = lists.keys[o], limit_of(chance)
    at, written, size = table[FILL, o], table[WRITTEN, o], 3 if lists.has_importance else 2
    edge, status = table[EDGE, o], FINISHED
    while edge < end:
        if is_weighted:
            weight = np.float64(weights[edge - begin])
            if not 0 <= weight < math.inf:
                status = BAD_WEIGHT
                break
            is_taken = bool(weight > 0)
        else:
            is_taken = bool(chance == 1.0 or number_of(key, sources[edge - begin]) < limit)
        if at >= lists.capacity:
            status = WORDS_FULL
            break
        # The words are always written, and count only if the edge is taken: a branch on a hash is unpredictable.
        words[at] = edge - first if written else -1 - (edge - first)
        words[at + 1] = sources[edge - begin]
        at += size * is_taken
        written += is_taken
        edge += 1
    table[FILL, o], table[WRITTEN, o], table[EDGE, o] = at, written, edge
    return status


@njit(cache=True, nogil=True)
def _keep_earliest(
    lists: Lists,
    begin: int,
    sources: NDArray[Any],
    weights: NDArray[Any],
    this: np.uint64,
    first: int,
    o: int,
) -> int:
    """Keep the edges with the smallest arrivals, in exactly the steps of `weighted_kernels.pick_weighted`.

    ``this`` is the node's random key, ``first`` the position of its first edge. ``arrivals`` and ``slots`` are sorted
    by arrival. ``beyond`` is the smallest arrival that is not kept.
    """
    table, arrivals, slots = lists.table, lists.numbers[o, ARRIVAL], lists.edges[o, SLOT]
    end, fanout = min(begin + sources.shape[0], table[STOP, o]), table[FANOUT, o]
    kept, positive, beyond = table[KEPT, o], table[POSITIVE, o], lists.beyond[o]
    for edge in range(table[EDGE, o], end):
        weight = np.float64(weights[edge - begin])
        if not 0 <= weight < math.inf:
            return BAD_WEIGHT
        if weight == 0:
            continue
        positive += 1
        number = unit(this, edge - first)
        if 1.0 - number >= beyond * weight:
            continue
        arrival = -math.log(number) / weight
        slot = kept
        if kept == fanout:
            beyond = min(beyond, max(arrival, arrivals[kept - 1]))
            if arrival >= arrivals[kept - 1]:
                continue
            slot = slots[kept - 1]
        kept = insert_arrival(arrivals, slots, 0, kept, fanout, arrival, slot)
        lists.edges[o, PLACE, slot] = edge - first
        lists.edges[o, SOURCE, slot] = sources[edge - begin]
        lists.numbers[o, WEIGHT, slot] = weight
    table[KEPT, o], table[POSITIVE, o], lists.beyond[o] = kept, positive, beyond
    table[EDGE, o] = end
    return FINISHED


@njit(cache=True, nogil=True)
def _write(lists: Lists, o: int, place: int, source: int, importance: float) -> None:
    """Write a record for owner ``o``; the record must fit. A node's first record has -1 - ``place``."""
    table, at = lists.table, lists.table[FILL, o]
    lists.words[o, at] = place if table[WRITTEN, o] else -1 - place
    lists.words[o, at + 1] = source
    if lists.has_importance:
        lists.floats[o, at + 2] = importance
    table[FILL, o] = at + (3 if lists.has_importance else 2)
    table[WRITTEN, o] += 1


@njit(cache=True, nogil=True)
def find_records(places: NDArray[Any], degrees: IdArray, begins: IdArray, counts: IdArray) -> bool:
    """Find each node's first record, and the number of edges that it takes; return True if all records fit.

    Parameters
    ----------
    places : (M,) every record's first word, which is negative at each node's first record
    degrees : (D,) the in-degrees of the D nodes, in ascending order of the nodes
    begins, counts : (D,) output, each node's first record and number of taken edges
    """
    at = 0
    for i in range(degrees.shape[0]):
        begins[i], counts[i] = at, 0
        if degrees[i] == 0:
            continue
        if at == places.shape[0] or places[at] >= 0:
            return False
        if places[at] == NONE:
            at += 1
            continue
        at += 1
        while at < places.shape[0] and places[at] >= 0:
            at += 1
        counts[i] = at - begins[i]
    return at == places.shape[0]


@njit(cache=True, nogil=True)
def place_records(
    places: NDArray[Any],
    begins: IdArray,
    starts: IdArray,
    indptr: LocalArray,
    records: IdArray,
    edge_ids: IdArray,
) -> None:
    """Write the indices of the records of D nodes into ``records``, and their edges' positions into ``edge_ids``.

    Parameters
    ----------
    places : (M,) every record's first word
    begins, starts : (D,) each node's first record, and the position of its first in-edge
    indptr : (D + 1,) the index in the outputs at which each node's edges begin
    records, edge_ids : output, an entry per edge
    """
    for i in range(begins.shape[0]):
        for out in range(indptr[i], indptr[i + 1]):
            record = begins[i] + out - indptr[i]
            place = np.int64(places[record])
            records[out] = record
            edge_ids[out] = starts[i] + (-1 - place if place < 0 else place)
