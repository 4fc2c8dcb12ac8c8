"""Seeds from another library's loop: nodes with several types in one numbering, and pairs with negatives.

The bridges to GraphBolt and PyG use these functions. A pair is an edge to predict, as (source, destination). gloader's
own loaders take pairs from a link table of the dataset, which also has their edges in the graph. Pairs from another
library are in no such table. So `draw_beside` draws their negatives (random pairs as counterexamples), and
`edges_of_pairs` finds the graph edges between their ends, which a sample must not use.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.errors import ConfigError, SeedError
from gloader.samplers import HeteroGraph
from gloader.samplers.arguments import checked_seed
from gloader.samplers.link_draws import NegativeDraws
from gloader.samplers.link_seeds import NEGATIVES_LAYER, LinkExclusion
from gloader.samplers.rng import layer_key
from gloader.types import EDGE, NO_EDGE, LinkRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gloader.config import Exclude
    from gloader.core.negatives import Negatives
    from gloader.samplers import Topology
    from gloader.types import IdArray, Relation


def number_through(graph: HeteroGraph, nodes: Mapping[str, NDArray[Any]]) -> IdArray:
    """Return the nodes (n,) of all types in one numbering, with the types in the graph's order. Pure.

    A node's number is the first number of its type plus its id.

    Raises
    ------
    SeedError
        A type is unknown, or ids are not integers or exceed their type's nodes.
    """
    if unknown := [name for name in nodes if name not in graph.num_nodes]:
        raise SeedError(
            f"nodes have the type {unknown[0]!r}; this graph has {', '.join(map(repr, graph.node_types))}"
        )
    numbers = [np.empty(0, dtype=np.int64)]
    for (name, num_nodes), start in zip(graph.num_nodes.items(), graph.type_starts, strict=False):
        ids = as_ids(nodes.get(name, numbers[0]), noun=f"nodes of type {name!r}", error=SeedError)
        # An id beyond its type would be a node of the next type.
        if len(bad := outside(ids, num_nodes)):
            raise SeedError(
                f"{len(bad)} nodes of type {name!r} are not in 0..{num_nodes - 1}, among them {bad[:5].tolist()}"
            )
        numbers.append(ids + start)
    return np.concatenate(numbers)


# (B, 2) pairs by relation; the key None means the only relation.
GivenPairs: TypeAlias = "Mapping[Relation | None, NDArray[Any]]"


def digest_of(ids: NDArray[Any]) -> int:
    """Return a hash of ``ids`` that fits a non-negative int64. Pure."""
    digest = hashlib.blake2b(np.ascontiguousarray(ids, np.int64).tobytes(), digest_size=7).digest()
    return int.from_bytes(digest, "little")


def draw_beside(
    graph: Topology | HeteroGraph,
    pairs: NDArray[Any],
    relation: Relation | None,
    *,
    negatives: Negatives,
    seed: int,
    epoch: int,
) -> tuple[IdArray, IdArray]:
    """Return all P pairs (P, 2), first the given ones and then their negatives, and each pair's positive (P,). Pure.

    A pair's positive is the index of the given pair for which it was drawn, or its own index for a given pair. The
    random key is made of ``seed``, ``epoch`` and a digest of the pairs.

    Parameters
    ----------
    graph : the topology
    pairs : (B, 2) source and destination ids
    relation : the pairs' relation; None for a graph with one type
    negatives : kind and number of the negatives
    seed, epoch : any integers

    Raises
    ------
    SeedError
        An end is not a graph node, or the graph has no such relation.
    ConfigError
        There are too many pairs, or a strict negative does not exist.
    """
    typed = HeteroGraph.of(graph)
    known_relation = _known(typed, relation)
    draws = NegativeDraws(
        negatives=negatives,
        graph=typed.relations[known_relation],
        num_ends=(typed.num_nodes[known_relation[0]], typed.num_nodes[known_relation[2]]),
        relation=known_relation,
    )
    rows = _rows(typed, pairs, known_relation)
    key = layer_key(checked_seed(seed), epoch, digest_of(pairs), NEGATIVES_LAYER)
    ends = draws.pairs(key, np.arange(len(pairs)), rows)
    columns = ends.sources[ends.source_places], ends.destinations[ends.destination_places]
    return np.stack(columns, axis=1), ends.owners.astype(np.int64)


def edges_of_pairs(
    graph: Topology | HeteroGraph,
    pairs: GivenPairs,
    *,
    exclude: Exclude,
    reverse: Mapping[Relation, Relation],
) -> tuple[IdArray, ...]:
    """Return for each relation the positions of the edges between the ends of ``pairs``. Pure.

    A position is an edge's index in the relation's ``indices``. Returns () if there are no such edges.

    Parameters
    ----------
    graph : the searched graph
    pairs : the pairs by relation
    exclude : "self", or "reverse" to include the reverse edges
    reverse : each relation's reverse; a one-type graph's relation is its own reverse

    Raises
    ------
    SeedError
        An end is not a graph node, or the graph has no such relation.
    ConfigError
        ``reverse`` lacks a relation.
    """
    typed = HeteroGraph.of(graph)
    relations = list(typed.relations)
    parts: list[list[IdArray]] = [[] for _ in relations]
    for relation, relation_pairs in pairs.items():
        known_relation = _known(typed, relation)
        rows = _rows(typed, relation_pairs, known_relation)
        reverse_relation = known_relation if typed.is_one_type else reverse.get(known_relation)
        if exclude == "reverse" and reverse_relation not in relations:
            raise ConfigError(
                f"exclude='reverse': name the reverse relation of {':'.join(known_relation)} in reverse=, or pass "
                "exclude='self'"
            )
        exclusion = LinkExclusion.of_table(
            tuple(typed.relations.values()),
            (
                relations.index(known_relation),
                relations.index(reverse_relation) if exclude == "reverse" and reverse_relation else None,
            ),
            relation=known_relation,
            exclude=exclude,
            duplicates=True,
        )
        for part, positions in zip(parts, exclusion.of(rows), strict=False):
            part.append(positions)
    if not any(map(len, (one for part in parts for one in part))):
        return ()
    none = np.empty(0, dtype=np.int64)
    return tuple(np.unique(np.concatenate([none, *part])) for part in parts)


def _known(graph: HeteroGraph, relation: Relation | None) -> Relation:
    """Return the pairs' relation. Raise SeedError if a graph with several types lacks it."""
    if graph.is_one_type:
        return EDGE
    if relation is None or relation not in graph.relations:
        given = "no relation" if relation is None else ":".join(relation)
        allowed = ", ".join(map(":".join, graph.relations))
        raise SeedError(f"the pairs have {given}; this graph has {allowed}")
    return relation


def _rows(graph: HeteroGraph, pairs: NDArray[Any], relation: Relation) -> LinkRows:
    """Return ``pairs`` (B, 2) as rows of a link table, without edge positions. Raise SeedError for an unknown end."""
    topology, of_which = graph.relations[relation], "" if graph.is_one_type else f" of {':'.join(relation)}"
    limits = {"sources": topology.num_sources, "destinations": topology.num_nodes}
    ends = []
    for end, (name, limit) in enumerate(limits.items()):
        ids = as_ids(np.ascontiguousarray(pairs[:, end]), noun=f"{name} of pairs", error=SeedError)
        if len(bad := outside(ids, limit)):
            raise SeedError(
                f"{len(bad)} {name} of pairs{of_which} are not in 0..{limit - 1}, among them {bad[:5].tolist()}"
            )
        ends.append(ids)
    no_positions = np.full(len(pairs), NO_EDGE, dtype=np.int64)
    return LinkRows(sources=ends[0], destinations=ends[1], positions=no_positions, reverses=no_positions)
