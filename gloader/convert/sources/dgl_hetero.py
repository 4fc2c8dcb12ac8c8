"""``dgl:FILE`` with several types: the stores of a heterogeneous `dgl.DGLGraph`."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gloader.convert.readers.arrays import ArrayEdges
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.edge_names import USUAL_NAMES
from gloader.convert.readers.torch_tensors import dense_tensors, numpy_arrays
from gloader.convert.sources.dgl_homogeneous import dgl_edge_columns
from gloader.convert.sources.typed_stores import (
    LABEL_NAMES,
    EdgeStore,
    NodeStore,
    require_columns,
    stored_source,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.convert.hetero_source import HeteroSource
    from gloader.convert.readers.edge_names import EdgeNames


def hetero_source(
    graph: Any,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    extra: Mapping[str, Any] = MappingProxyType({}),
    edge_names: EdgeNames = USUAL_NAMES,
    needs_labels: bool = True,
) -> HeteroSource:
    """Return the source over a heterogeneous graph in memory, whose tensors are shared.

    Edges come in DGL's numbering. A type's features are ``feat``, its labels ``label``, its splits masks; a
    relation's weights ``weight``, its edges' features ``feat``, their times ``edge_time``.

    Parameters
    ----------
    graph : a `dgl.DGLGraph` on the CPU
    name, origin : of the source
    where : what holds it, for messages; a path: the file that it came from
    seed : of the random split where there are no masks
    extra : tensors that stand beside the graph, such as the ids of splits; they go to the type that has labels
    edge_names : of times and features of edges
    needs_labels : whether nodes without labels are refused

    Raises
    ------
    SourceError
        Labels are on no type, or on several.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        No relation has anything by a name of ``edge_names``.
    """
    beside = numpy_arrays(dense_tensors(extra))
    nodes: dict[str, NodeStore] = {}
    for node_type in graph.ntypes:
        place = f"{where} (data of {node_type!r} nodes)"
        arrays = numpy_arrays(dense_tensors(graph.nodes[node_type].data))
        if any(key in arrays for key in LABEL_NAMES):
            arrays = beside | arrays
        nodes[node_type] = NodeStore(
            num_nodes=graph.num_nodes(node_type), arrays=Attributes(arrays=arrays, where=place)
        )
    edges: list[EdgeStore] = []
    there: set[str] = set()
    resident = 0
    for relation in graph.canonical_etypes:
        found = dgl_edge_data(graph.edges[relation].data, f"{where} (data of {':'.join(relation)} edges)")
        src, dst = (ids.numpy() for ids in graph.edges(order="eid", etype=relation))
        columns = dgl_edge_columns(found, edge_names, num_edges=len(src))
        there.update(found.arrays)
        resident += columns.num_bytes
        stream = ArrayEdges(src=src, dst=dst, where=found.where, weight=columns.weight)
        edges.append(
            EdgeStore(
                relation=relation, edges=columns.timed(stream), features=columns.feature_rows(), arrays=found
            )
        )
    require_columns(edges, edge_names, there=there, where=where)
    source = stored_source(
        nodes, edges, name=name, origin=origin, where=where, seed=seed, needs_labels=needs_labels
    )
    # Unlike a PyG file, a DGL file is not mapped: features and edges lie in memory while the source is open.
    held = sum(array.nbytes for store in nodes.values() for array in store.arrays.arrays.values())
    return replace(source, resident_bytes=held + resident + 16 * graph.num_edges())


def dgl_edge_data(data: Mapping[str, Any], where: str) -> Attributes:
    """Return the edge data of a graph or of a relation as arrays; ``where`` is for messages."""
    return Attributes(arrays=numpy_arrays(dense_tensors(data)), where=where)
