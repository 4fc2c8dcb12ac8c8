"""Errors for impossible entries in a graph, which a kernel finds while it samples. Pure.

A kernel returns the index of the wrong entry. The sampler then raises the error that one of these functions makes. A
position is an edge's index in the graph. Datasets are checked earlier, so these errors mostly concern a `CscGraph` with
``validate=False``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.offsets import offsets_of
from gloader.errors import GraphError

if TYPE_CHECKING:
    from gloader.samplers.graph import Topology
    from gloader.types import IdArray, LocalArray

_ADVICE = "the topology is damaged: `gloader verify` lists the places; restore the file or prepare it again"


def bad_degree(graph: Topology, node: int) -> GraphError:
    """Return the error for ``node``, whose in-edges do not lie within the graph's edges."""
    start, stop = offsets_of(graph.offsets, np.array([node, node + 1])).tolist()
    return GraphError(
        f"indptr[{node}:{node + 2}] = [{start}, {stop}], the in-edges of node {node}, is not a range within "
        f"0..{graph.num_edges}; {_ADVICE}"
    )


def bad_neighbor(
    graph: Topology,
    nodes: IdArray,
    indptr: IdArray | LocalArray,
    edge_ids: IdArray,
    at: int,
    *,
    source: int | None = None,
) -> GraphError:
    """Return the error for edge ``at`` in a hop, whose source is not a node.

    Parameters
    ----------
    graph : the topology
    nodes : (D,) the hop's destinations
    indptr : (>= D + 1,) the index in ``edge_ids`` at which each destination's edges begin
    edge_ids : (>= at + 1,) positions in the graph
    at : the edge's index in ``edge_ids``
    source : the edge's source; None reads it from the graph
    """
    position = int(edge_ids[at])
    row = int(np.searchsorted(indptr[: len(nodes) + 1], at, side="right")) - 1  # index of the destination
    return bad_source(
        graph, int(nodes[row]), position, _source(graph, position) if source is None else source
    )


def bad_source(graph: Topology, node: int, position: int, source: int) -> GraphError:
    """Return the error for the in-edge of ``node`` at ``position``, whose ``source`` is not a node."""
    return GraphError(
        f"indices[{position}] = {source}, an in-neighbour of node {node}, is not in 0..{graph.num_sources - 1}; "
        f"{_ADVICE}"
    )


def bad_edge(graph: Topology, position: int) -> GraphError:
    """Return the error for an edge whose source is not a node, or for a position outside the graph."""
    if not 0 <= position < graph.num_edges:
        return GraphError(
            f"indptr names edge {position}, which is not in 0..{graph.num_edges - 1}; {_ADVICE}"
        )
    return GraphError(
        f"indices[{position}] = {_source(graph, position)} is not in 0..{graph.num_sources - 1}; {_ADVICE}"
    )


def bad_weights(graph: Topology, node: int) -> GraphError:
    """Return the error for ``node`` with an impossible weight, or with weights that changed during the read."""
    start, stop = offsets_of(graph.offsets, np.array([node, node + 1])).tolist()
    return GraphError(
        f"edge_weight[{start}:{stop}], the in-edges of node {node}: one is below 0 or not finite, or they changed "
        f"while they were read; {_ADVICE}"
    )


def bad_time(position: int, time: int) -> GraphError:
    """Return the error for the edge at ``position``, whose ``time`` is out of order in its list."""
    return GraphError(
        f"edge_time[{position}] = {time} is smaller than an earlier entry in the list of its node, or larger than a "
        f"later one; lists must be sorted by time; {_ADVICE}"
    )


def _source(graph: Topology, position: int) -> int:
    """Return the source of the edge at ``position``."""
    values, places = graph.sources.at(np.array([position]))
    return int(values[places[0]])
