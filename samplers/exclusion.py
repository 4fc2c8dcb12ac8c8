"""Excluded edges: a batch's hops must not take the edges that the batch predicts.

A position is an edge's index in its relation (edge type). The excluded edges of a batch are an array of positions for
each relation (`BatchSeeds.excluded`). Samplers call this module to check them and to group them by destination
(`Excluded`), which the kernels need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.errors import ConfigError, SeedError
from gloader.samplers import graph_errors
from gloader.samplers.exclusion_kernels import Excluded, group_by_node, lower_counts
from gloader.samplers.graph import float_in_degrees
from gloader.types import BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.errors import GraphError
    from gloader.samplers.graph import HeteroGraph, Topology
    from gloader.types import AnySeeds, IdArray

__all__ = [
    "NOTHING_EXCLUDED",
    "Excluded",
    "degrees_without",
    "excluded_edges",
    "excluded_of_relations",
    "join_excluded",
    "seeds_of",
    "unexcluded_seeds",
]

_NO_NODES: IdArray = np.empty(0, dtype=np.int64)  # also used as an array without positions


def seeds_of(seeds: AnySeeds) -> BatchSeeds:
    """Wrap plain seeds in `BatchSeeds`. Pure.

    Raises
    ------
    ConfigError
        The seeds have times, and the sampler takes edges at all times.
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
    """Wrap plain seeds in `BatchSeeds` for a sampler that cannot exclude edges. Pure.

    Parameters
    ----------
    seeds : a batch's seeds
    sampler : the sampler's name for the user
    instead : for the message, a sampler that can exclude edges

    Raises
    ------
    ConfigError
        Edges are excluded. For the other cause see `seeds_of`.
    """
    given = seeds_of(seeds)
    if count := sum(map(len, given.excluded)):
        raise _unable(count, sampler, instead)
    return given


def _unable(count: int, sampler: str, instead: str) -> ConfigError:
    """Return the error for ``count`` excluded edges with a ``sampler`` that cannot exclude edges."""
    return ConfigError(
        f"{count} edges are excluded, and {sampler} cannot leave edges out while it picks; use {instead}, or "
        "exclude='none'"
    )


def excluded_edges(
    excluded: tuple[IdArray, ...], graph: Topology, seeds: IdArray = _NO_NODES
) -> Excluded | None:
    """Return a one-relation graph's excluded edges, or None if no edge is excluded. Pure.

    Parameters
    ----------
    excluded : one array (X,) of ascending positions, or () without excluded edges
    graph : the topology; only its offsets are read
    seeds : (B,) likely destinations of the excluded edges, tried first to save time; a search finds the others

    Raises
    ------
    SeedError
        There are arrays for several relations, positions do not ascend, or a position is not in the graph.
    GraphError
        A node's in-edges do not lie within the graph's edges.
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
    """Return the excluded edges of each of the K relations, or () if no edge is excluded. Pure.

    The entry of a relation without excluded edges is None.

    Parameters
    ----------
    excluded : ascending positions (X,) by relation, or () without excluded edges
    graph : the topology; only its offsets are read
    unable : by relation, the sampler's name if the sampler cannot exclude edges, else None
    seeds : seeds by type, see `excluded_edges`; () if unknown

    Raises
    ------
    ConfigError
        A relation's sampler cannot exclude its edges.
    SeedError, GraphError
        See `excluded_edges`.
    """
    if not excluded:
        return ()
    _require_relations(excluded, len(graph.relations))
    seeds_of_type = dict(zip(graph.node_types, seeds, strict=False))
    by_relation = []
    for positions, (relation, topology), sampler in zip(
        excluded, graph.relations.items(), unable, strict=True
    ):
        if sampler is not None and len(positions):
            raise _unable(len(positions), sampler, "the sampler 'neighbor'")
        text = "" if graph.is_one_type else f" of relation {':'.join(relation)!r}"
        likely = seeds_of_type.get(relation[2], _NO_NODES)  # seeds of the destination type
        by_relation.append(_of_relation(positions, topology, likely, text))
    return tuple(by_relation) if any(edges is not None for edges in by_relation) else ()


def degrees_without(excluded: Excluded | None, graph: Topology, nodes: IdArray) -> NDArray[np.float32] | None:
    """Return each node's number of remaining in-edges, for ``nodes`` (U,); None if no edge is excluded. Pure.

    Full degrees would reveal to a model which seeds have an edge to predict.

    Parameters
    ----------
    excluded : as in `excluded_edges`
    graph : the topology; only its offsets are read
    nodes : ids, repeats allowed
    """
    if excluded is None:
        return None
    degrees = float_in_degrees(graph.offsets, nodes)
    lower_counts(nodes, excluded.nodes, excluded.begins, degrees)
    return degrees


def join_excluded(parts: Sequence[Excluded | None]) -> tuple[Excluded, IdArray]:
    """Join several batches' excluded edges, for kernels that handle many batches in one call. Pure.

    Parameters
    ----------
    parts : by batch; None for a batch without excluded edges

    Returns
    -------
    tuple
        All excluded edges, and (len(parts), 2) int64: the range of each batch's nodes in ``Excluded.nodes``.
    """
    counts = [0 if part is None else len(part.nodes) for part in parts]
    ends = np.cumsum(counts, dtype=np.int64)
    places = np.stack([ends - counts, ends], axis=1) if parts else np.empty((0, 2), dtype=np.int64)
    some = [part for part in parts if part is not None]
    if len(some) <= 1:
        return (some[0] if some else NOTHING_EXCLUDED), places
    # ``begins`` are indices in the positions, which move by the number of positions in earlier batches.
    shifts = np.cumsum([0, *(len(part.positions) for part in some)])
    begins = [part.begins[:-1] + shift for part, shift in zip(some, shifts, strict=False)]
    joined = _excluded(
        np.concatenate([part.nodes for part in some]),
        np.concatenate([*begins, shifts[-1:]]),
        np.concatenate([part.positions for part in some]),
    )
    return joined, places


def _require_relations(excluded: tuple[IdArray, ...], num_relations: int) -> None:
    """Raise SeedError unless ``excluded`` has one array for each relation."""
    if len(excluded) != num_relations:
        raise SeedError(
            f"excluded edges of {len(excluded)} relations in a graph of {num_relations}; pass an array for each, in "
            "the order of the dataset's record, or () for none"
        )


def _of_relation(
    positions: IdArray, graph: Topology, likely: IdArray, of_relation: str = ""
) -> Excluded | None:
    """Return one relation's excluded edges, or None if ``positions`` is empty.

    ``likely`` are probable destinations, see `excluded_edges`. ``of_relation`` names the relation in messages.
    """
    ids = as_ids(positions, noun=f"excluded edges{of_relation}", error=SeedError)
    if len(ids) == 0:
        return None
    ids = _read_only(ids)
    nodes, begins = np.empty(len(ids), dtype=np.int64), np.empty(len(ids) + 1, dtype=np.int64)
    count = group_by_node(graph.offsets, graph.num_nodes, graph.num_edges, ids, likely, nodes, begins)
    if count < 0:  # an error at index -1 - count, whose node is nodes[0]
        raise _bad_position(ids, -1 - count, graph, int(nodes[0]), of_relation)
    return _excluded(nodes[:count], begins[: count + 1], ids)


def _bad_position(
    ids: IdArray, at: int, graph: Topology, node: int, of_relation: str
) -> SeedError | GraphError:
    """Return the error for a wrong position ``ids[at]``, or for its damaged node."""
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
    """Return the three arrays as an `Excluded` with read-only views."""
    return Excluded(nodes=_read_only(nodes), begins=_read_only(begins), positions=_read_only(positions))


def _read_only(array: IdArray) -> IdArray:
    """Return a read-only view of ``array``. The kernels are compiled for read-only arrays only."""
    view = array.view()
    view.flags.writeable = False
    return view


NOTHING_EXCLUDED: Final = _excluded(_NO_NODES, np.zeros(1, dtype=np.int64), _NO_NODES)
