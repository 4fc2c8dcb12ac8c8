"""Edges that no hop of a batch takes: those that it predicts must not reach the model by messages.

A node with d in-edges, x of them excluded, draws among d - x ranks. The rank r stands for the r-th edge that is left:
its position is r plus the excluded ones up to there, which is a search among the excluded ones of that node alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import njit

from gloader.core.ids import as_ids, outside
from gloader.core.offsets import Offsets, offset_at, prefetch_offset
from gloader.errors import ConfigError, SeedError
from gloader.samplers import graph_errors
from gloader.samplers.graph import float_in_degrees
from gloader.samplers.rng import to_int
from gloader.types import BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.errors import GraphError
    from gloader.samplers.graph import HeteroGraph, Topology
    from gloader.types import AnySeeds, IdArray, LocalArray


_AHEAD = 32  # nodes between asking for an offset and reading it, see `pick_kernels`
_NEAR = 8  # places that are looked at one by one, before the others are searched
_FEW = 8  # excluded edges of a node that are passed over one by one
_LOW_IDS = 1 << 16  # a byte for each, in the second level of the caches


class Excluded(NamedTuple):
    """The edges of a relation that no hop of a batch takes, by the nodes that they lead to.

    A tuple, because numba takes only that. Its arrays are read-only, so that every kernel is compiled for one kind.
    """

    nodes: IdArray  # (n,) ascending: those that have excluded in-edges
    begins: IdArray  # (n + 1,) where those of each begin in ``positions``
    positions: IdArray  # (X,) ascending


@njit(cache=True, nogil=True)
def group_by_node(
    offsets: Offsets,
    num_nodes: int,
    num_edges: int,
    positions: IdArray,
    likely: IdArray,
    nodes: IdArray,
    begins: IdArray,
) -> int:
    """Write the nodes that edges lead to, and where those of each begin.

    Parameters
    ----------
    offsets, num_nodes, num_edges : of the graph
    positions : (X,) of the edges, which should ascend
    likely : nodes of the graph that most of them lead to: the rest is searched for
    nodes : (X,) written
    begins : (X + 1,) written

    Returns
    -------
    int
        How many nodes there are, or -1 - i: position i is not above the one before, not in the graph, or, with the node
        in ``nodes[0]``, in no list of it.
    """
    before = -1
    for i in range(positions.shape[0]):
        if positions[i] <= before or positions[i] >= num_edges:
            return -1 - i
        before = positions[i]
    ends = np.full(positions.shape[0], -1, dtype=np.int64)
    _look_in_lists(offsets, positions, likely, ends)
    _search(offsets, num_nodes, positions, ends)
    count = 0
    for i in range(positions.shape[0]):
        node = ends[i]
        if count and nodes[count - 1] == node:
            continue
        is_behind = count == 0 or nodes[count - 1] < node
        if not (is_behind and offset_at(offsets, node) <= positions[i] < offset_at(offsets, node + 1)):
            nodes[0] = node
            return -1 - i
        nodes[count] = node
        begins[count] = i
        count += 1
    begins[count] = positions.shape[0]
    return count


@njit(cache=True, nogil=True)
def _look_in_lists(offsets: Offsets, positions: IdArray, likely: IdArray, ends: IdArray) -> None:
    """Write to ``ends`` which of ``likely`` the edge at each position leads to, if any."""
    at, count, last = 0, positions.shape[0], likely.shape[0] - 1
    for i in range(likely.shape[0]):
        prefetch_offset(offsets, likely[min(i + _AHEAD, last)])
        start, stop = offset_at(offsets, likely[i]), offset_at(offsets, likely[i] + 1)
        # Of ascending nodes the next positions are never far.
        near = min(at + _NEAR, count)
        if at and positions[at - 1] >= start:
            at = _lower_bound(positions, 0, at, start)
        else:
            while at < near and positions[at] < start:
                at += 1
            if at == near:
                at = _lower_bound(positions, at, count, start)
        while at < count and positions[at] < stop:
            ends[at] = likely[i]
            at += 1


@njit(cache=True, nogil=True)
def _lower_bound(positions: IdArray, first: int, last: int, position: int) -> int:
    """Return the first place in ``positions[first:last]`` that is not below ``position``."""
    while first < last:
        middle = (first + last) // 2
        if positions[middle] < position:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def _search(offsets: Offsets, num_nodes: int, positions: IdArray, ends: IdArray) -> None:
    """Write to ``ends`` the node that each position leads to that has none yet."""
    left = np.flatnonzero(ends < 0)
    for i in left:
        ends[i] = 0
    # A step of all searches, then the next step: the reads of a step wait for the memory together.
    span = num_nodes if left.shape[0] else 0
    while span > 1:
        half = span // 2
        for i in left:
            middle = ends[i] + half
            ends[i] = middle if offset_at(offsets, middle) <= positions[i] else ends[i]
        span -= half


@njit(cache=True, nogil=True)
def lower_degrees(excluded: Excluded, local: IdArray, first: int, last: int, degrees: IdArray) -> int:
    """Take the excluded edges off the degrees of the destinations ``first:last``; return how many nodes come later.

    Parameters
    ----------
    excluded : the edges
    local : (n,) position in the batch of each of ``excluded.nodes``; -1: it is not in it
    first, last : destinations
    degrees : (>= last,) written
    """
    later = 0
    for at in range(local.shape[0]):
        if first <= local[at] < last:
            degrees[local[at]] -= excluded.begins[at + 1] - excluded.begins[at]
        later += local[at] < 0 or local[at] >= last
    return later


@njit(cache=True, nogil=True)
def pass_over(
    excluded: Excluded, local: IdArray, first: int, last: int, indptr: LocalArray, edge_ids: IdArray
) -> None:
    """Turn ranks into positions in what the destinations ``first:last`` of a hop took.

    Parameters
    ----------
    excluded, local, first, last : as of `lower_degrees`
    indptr : (last - first + 1,) where the edges of each destination begin
    edge_ids : written; as if the first edges of a node were those that are left
    """
    for at in range(local.shape[0]):
        if first <= local[at] < last:
            row = local[at] - first
            pass_over_node(excluded, at, edge_ids, to_int(indptr[row]), to_int(indptr[row + 1]))


@njit(cache=True, nogil=True)
def pass_over_node(excluded: Excluded, at: int, edge_ids: IdArray, first: int, last: int) -> None:
    """Turn ranks into positions in ``edge_ids[first:last]``, which ``excluded.nodes[at]`` took."""
    positions, begin, end = excluded.positions, excluded.begins[at], excluded.begins[at + 1]
    if end - begin <= _FEW:
        # Without branches on values, several positions at a time.
        for i in range(begin, end):
            position = positions[i]
            for j in range(first, last):
                edge_ids[j] += to_int(edge_ids[j] >= position)
        return
    for j in range(first, last):
        # How many are excluded up to there: the first of them that lies behind, itself counted without those before it.
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            if positions[middle] - (middle - begin) <= edge_ids[j]:
                low = middle + 1
            else:
                high = middle
        edge_ids[j] += low - begin


@njit(cache=True, nogil=True, inline="always")
def advance(nodes: IdArray, at: int, last: int, node: int) -> int:
    """Return the first place in ``nodes[at:last]``, ascending, that is not below ``node``; ``last``: there is none."""
    while at < last and nodes[at] < node:
        at += 1
    return at


@njit(cache=True, nogil=True)
def lower_counts(nodes: IdArray, owners: IdArray, begins: IdArray, degrees: NDArray[np.float32]) -> None:
    """Take the edges that are excluded of ``owners`` (V,), ascending, off the ``degrees`` (U,) of ``nodes`` (U,)."""
    # A search for each node of a batch would take longer than sampling it: few share the low bits of an owner.
    may_own = np.zeros(_LOW_IDS, dtype=np.bool_)
    for owner in owners:
        may_own[owner & (_LOW_IDS - 1)] = True
    for i in range(nodes.shape[0]):
        if not may_own[nodes[i] & (_LOW_IDS - 1)]:
            continue
        at = np.searchsorted(owners, nodes[i])
        if at < owners.shape[0] and owners[at] == nodes[i]:
            degrees[i] -= begins[at + 1] - begins[at]


_NOBODY: IdArray = np.empty(0, dtype=np.int64)


def seeds_of(seeds: AnySeeds) -> BatchSeeds:
    """Return ``seeds`` with what is said of them: of an array, nothing. Pure.

    Raises
    ------
    ConfigError
        They ask at a time, which samplers of one time do not look at.
    """
    if not isinstance(seeds, BatchSeeds):
        return BatchSeeds(nodes=seeds)
    if seeds.times is not None:
        raise ConfigError(
            "the seeds have times, and this sampler takes edges of all times; use make_temporal_sampler, or leave the "
            "times out"
        )
    return seeds


def unexcluded_seeds(seeds: AnySeeds, *, sampler: str, instead: str = "the sampler 'neighbor'") -> BatchSeeds:
    """Return ``seeds`` as `seeds_of` does, for a sampler that cannot exclude edges. Pure.

    Parameters
    ----------
    seeds : of a batch
    sampler : what the user knows it as
    instead : what can

    Raises
    ------
    ConfigError
        Edges are excluded, or as of `seeds_of`.
    """
    given = seeds_of(seeds)
    if count := sum(map(len, given.excluded)):
        raise _unable(count, sampler, instead)
    return given


def _unable(count: int, sampler: str, instead: str) -> ConfigError:
    return ConfigError(
        f"{count} edges are excluded, and {sampler} cannot leave edges out while it picks; use {instead}, or "
        "exclude='none'"
    )


def excluded_edges(
    excluded: tuple[IdArray, ...], graph: Topology, seeds: IdArray = _NOBODY
) -> Excluded | None:
    """Return the edges that are excluded of a graph of one relation; None: none. Pure.

    Parameters
    ----------
    excluded : (X,) ascending positions of its one relation, or () for none
    graph : the topology, of which the offsets are read
    seeds : (B,) nodes that most of these edges lead to; others are searched for

    Raises
    ------
    SeedError
        There are arrays of several relations, positions do not ascend, or one is not in the graph.
    GraphError
        The in-edges of a node do not lie within the graph's.
    """
    if not excluded:
        return None
    _require_relations(excluded, 1)
    return _of_relation(excluded[0], graph, seeds)


def excluded_of_relations(
    excluded: tuple[IdArray, ...],
    graph: HeteroGraph,
    unable: Sequence[str | None],
    seeds: Sequence[IdArray] = (),
) -> tuple[Excluded | None, ...]:
    """Return the edges that are excluded of each relation (K,), None: none; () where none is at all. Pure.

    Parameters
    ----------
    excluded : of each relation (X,) ascending positions, or () for none
    graph : the topology, of which the offsets are read
    unable : of each relation what its sampler is called, where it cannot exclude edges; None: it can
    seeds : of each type, see `excluded_edges`; (): none are known

    Raises
    ------
    ConfigError
        Edges of a relation are excluded whose sampler cannot.
    SeedError, GraphError
        As of `excluded_edges`.
    """
    if not excluded:
        return ()
    _require_relations(excluded, len(graph.relations))
    seeds_of_type = dict(zip(graph.node_types, seeds, strict=False))
    found = []
    for positions, (relation, topology), sampler in zip(
        excluded, graph.relations.items(), unable, strict=True
    ):
        if sampler is not None and len(positions):
            raise _unable(len(positions), sampler, "the sampler 'neighbor'")
        text = "" if graph.is_one_type else f" of relation {':'.join(relation)!r}"
        found.append(_of_relation(positions, topology, seeds_of_type.get(relation[2], _NOBODY), text))
    return tuple(found) if any(of_relation is not None for of_relation in found) else ()


def degrees_without(excluded: Excluded | None, graph: Topology, nodes: IdArray) -> NDArray[np.float32] | None:
    """Return of each of ``nodes`` (U,) the in-edges that are not excluded; None: no edge is. Pure.

    A model that saw the others counted would see which of its seeds have an edge that it is to predict.

    Parameters
    ----------
    excluded : as of `excluded_edges`
    graph : the topology, of which the offsets are read
    nodes : ids, repeats allowed
    """
    if excluded is None:
        return None
    degrees = float_in_degrees(graph.offsets, nodes)
    lower_counts(nodes, excluded.nodes, excluded.begins, degrees)
    return degrees


def join_excluded(parts: Sequence[Excluded | None]) -> tuple[Excluded, IdArray]:
    """Return the edges that are excluded of several batches behind one another, and where those of each lie. Pure.

    Parameters
    ----------
    parts : of each batch; None: none

    Returns
    -------
    tuple
        All of them, and (len(parts), 2) the first and the last place of each batch.
    """
    counts = [0 if part is None else len(part.nodes) for part in parts]
    ends = np.cumsum(counts, dtype=np.int64)
    places = np.stack([ends - counts, ends], axis=1) if parts else np.empty((0, 2), dtype=np.int64)
    some = [part for part in parts if part is not None]
    if len(some) <= 1:
        return (some[0] if some else NOTHING_EXCLUDED), places
    shifts = np.cumsum([0, *(len(part.positions) for part in some)])
    begins = [part.begins[:-1] + shift for part, shift in zip(some, shifts, strict=False)]
    joined = _excluded(
        np.concatenate([part.nodes for part in some]),
        np.concatenate([*begins, shifts[-1:]]),
        np.concatenate([part.positions for part in some]),
    )
    return joined, places


def _require_relations(excluded: tuple[IdArray, ...], num_relations: int) -> None:
    if len(excluded) != num_relations:
        raise SeedError(
            f"excluded edges of {len(excluded)} relations in a graph of {num_relations}; pass an array for each, in "
            "the order of the dataset's record, or () for none"
        )


def _of_relation(
    positions: IdArray, graph: Topology, likely: IdArray, of_relation: str = ""
) -> Excluded | None:
    ids = as_ids(positions, noun=f"excluded edges{of_relation}", error=SeedError)
    if len(ids) == 0:
        return None
    ids = _read_only(ids)
    nodes, begins = np.empty(len(ids), dtype=np.int64), np.empty(len(ids) + 1, dtype=np.int64)
    count = group_by_node(graph.offsets, graph.num_nodes, graph.num_edges, ids, likely, nodes, begins)
    if count < 0:
        raise _bad_position(ids, -1 - count, graph, int(nodes[0]), of_relation)
    return _excluded(nodes[:count], begins[: count + 1], ids)


def _bad_position(
    ids: IdArray, at: int, graph: Topology, node: int, of_relation: str
) -> SeedError | GraphError:
    """Return the error for ``ids[at]``, which cannot be, or whose node is none of a sound graph."""
    if len(bad := outside(ids, graph.num_edges)):
        return SeedError(
            f"{len(bad)} excluded edges{of_relation} are not in 0..{graph.num_edges - 1}, among them {bad[:5].tolist()}"
        )
    if at and ids[at] <= ids[at - 1]:
        return SeedError(
            f"excluded edges{of_relation} are not ascending: {ids[at]} follows {ids[at - 1]}; pass the sorted distinct "
            "positions"
        )
    return graph_errors.bad_degree(graph, node)


def _excluded(nodes: IdArray, begins: IdArray, positions: IdArray) -> Excluded:
    return Excluded(nodes=_read_only(nodes), begins=_read_only(begins), positions=_read_only(positions))


def _read_only(array: IdArray) -> IdArray:
    view = array.view()
    view.flags.writeable = False
    return view


NOTHING_EXCLUDED: Final = _excluded(_NOBODY, np.zeros(1, dtype=np.int64), _NOBODY)
