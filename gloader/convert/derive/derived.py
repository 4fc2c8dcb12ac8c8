"""Which types have derived features, in which order they are made, and from which edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.scratch_csc import UnweightedEdges
from gloader.convert.hetero_source import MeanOf, ReversedEdges
from gloader.dataset.schema import relation_text
from gloader.errors import SourceError

if TYPE_CHECKING:
    from gloader.convert.hetero_source import HeteroSource, NodeSource, RelationSource


def feature_dims(source: HeteroSource) -> dict[str, int]:
    """Return the columns of the features of each type that has some; derived ones have those that they average. Pure.

    Raises
    ------
    SourceError
        As `derivation_order`.
    """
    given = {
        nodes.name: nodes.features.dim
        for nodes in source.nodes
        if nodes.features is not None and not isinstance(nodes.features, MeanOf)
    }
    for nodes, other in derivation_order(source):
        given[nodes.name] = given[other]
    return given


def derivation_order(source: HeteroSource) -> list[tuple[NodeSource, str]]:
    """Return the types with derived features, each with the type that it averages and after it. Pure.

    Raises
    ------
    SourceError
        Features would be a mean over a type without any, or over a relation that does not lead to another type.
    """
    has_rows = {
        nodes.name
        for nodes in source.nodes
        if nodes.features is not None and not isinstance(nodes.features, MeanOf)
    }
    waiting = [nodes for nodes in source.nodes if isinstance(nodes.features, MeanOf)]
    order: list[tuple[NodeSource, str]] = []
    while waiting:
        ready = [nodes for nodes in waiting if _other_end(source, nodes) in has_rows]
        if not ready:
            first = waiting[0].name
            raise SourceError(
                f"{source.origin}: features of {first!r} are to be means over {_other_end(source, waiting[0])!r}, "
                "which has no features"
            )
        order += [(nodes, _other_end(source, nodes)) for nodes in ready]
        has_rows.update(nodes.name for nodes in ready)
        waiting = [nodes for nodes in waiting if nodes not in ready]
    return order


def derivation_depth(source: HeteroSource) -> int:
    """Return how many means are one of another, in the longest row of such; 0: none are derived. Pure."""
    depths: dict[str, int] = {}
    for nodes, other in derivation_order(source):
        depths[nodes.name] = 1 + depths.get(other, 0)
    return max(depths.values(), default=0)


def averaged_edges(source: HeteroSource, nodes: NodeSource) -> tuple[UnweightedEdges, EdgeEnds]:
    """Return the edges that a mean of ``nodes`` runs over, with them as the destinations, and their ends. Pure.

    Raises
    ------
    SourceError
        As `derivation_order`.
    """
    relation = _relation(source, nodes)
    other = source.num_nodes_of(_other_end(source, nodes))
    is_forward = relation.relation[2] == nodes.name
    edges = relation.edges if is_forward else ReversedEdges(edges=relation.edges)
    ends = EdgeEnds(num_nodes=nodes.num_nodes, num_sources=other, where=source.where(relation), is_typed=True)
    return UnweightedEdges(edges=edges), ends


def _relation(source: HeteroSource, nodes: NodeSource) -> RelationSource:
    if not isinstance(nodes.features, MeanOf):
        raise TypeError(f"the features of {nodes.name!r} are not derived")
    wanted = nodes.features.relation
    found = next((each for each in source.relations if each.relation == wanted), None)
    if found is None or found.relation[0] == found.relation[2] or nodes.name not in found.relation[::2]:
        raise SourceError(
            f"{source.origin}: features of {nodes.name!r} are to be means over {relation_text(wanted)}, which is no "
            "relation between it and another type"
        )
    return found


def _other_end(source: HeteroSource, nodes: NodeSource) -> str:
    first, _, last = _relation(source, nodes).relation
    return first if last == nodes.name else last
