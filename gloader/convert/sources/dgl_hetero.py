"""DGL's graphs of several types, in memory or in a file of `dgl.save_graphs`: a source over their stores."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gloader.convert.readers.arrays import ArrayEdges
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.edge_names import USUAL_NAMES
from gloader.convert.readers.torch_tensors import dense_tensors, numpy_arrays
from gloader.convert.sources.dgl_homogeneous import (
    DglEdges,
    dgl_edge_columns,
    resident_bytes,
    stored_edges,
    stored_values,
)
from gloader.convert.sources.typed_stores import (
    DGL_NAMES,
    EdgeStore,
    NodeStore,
    require_columns,
    stored_source,
)
from gloader.dataset.schema import relation_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.hetero_source import HeteroSource
    from gloader.convert.readers.dgl_file import DglFile
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.types import Relation


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
    columns = {
        node_type: numpy_arrays(dense_tensors(graph.nodes[node_type].data)) for node_type in graph.ntypes
    }
    counts = [graph.num_nodes(node_type) for node_type in columns]
    edges = {}
    for relation in graph.canonical_etypes:
        src, dst = (ids.numpy() for ids in graph.edges(order="eid", etype=relation))
        data = numpy_arrays(dense_tensors(graph.edges[relation].data))
        edges[relation] = DglEdges(
            stream=ArrayEdges(src=src, dst=dst, where=_place(where, relation_text(relation), "edges")),
            data=data,
            order=None,
            resident_bytes=src.nbytes + dst.nbytes + sum(array.nbytes for array in data.values()),
        )
    source = _source(
        _node_stores(columns, counts, numpy_arrays(dense_tensors(extra)), where=where),
        edges,
        name=name,
        origin=origin,
        where=where,
        seed=seed,
        edge_names=edge_names,
        needs_labels=needs_labels,
    )
    held = sum(array.nbytes for arrays in columns.values() for array in arrays.values())
    return replace(source, resident_bytes=source.resident_bytes + held)


def stored_hetero_source(
    file: DglFile, *, name: str, origin: str, seed: int, edge_names: EdgeNames, needs_labels: bool
) -> HeteroSource:
    """Return the source over a graph in a file, whose arrays are mapped; takes and raises as `hetero_source`."""
    columns = dict(zip(file.node_types, map(stored_values, file.node_columns), strict=True))
    source = _source(
        _node_stores(columns, file.num_nodes, stored_values(file.beside), where=file.path),
        {relation: stored_edges(file, number) for number, relation in enumerate(file.edge_types)},
        name=name,
        origin=origin,
        where=file.path,
        seed=seed,
        edge_names=edge_names,
        needs_labels=needs_labels,
    )
    held = sum(resident_bytes(each.values()) for each in (file.beside, *file.node_columns))
    return replace(source, resident_bytes=source.resident_bytes + held)


def _node_stores(
    columns: Mapping[str, Mapping[str, NDArray[np.generic]]],
    counts: Sequence[int],
    beside: Mapping[str, NDArray[np.generic]],
    *,
    where: Path | str,
) -> dict[str, NodeStore]:
    """Return the stores of the types; what stands ``beside`` the graph goes to those that have labels."""
    return {
        node_type: NodeStore(
            num_nodes=count,
            arrays=Attributes(
                arrays={**beside, **found} if any(key in found for key in DGL_NAMES.labels) else found,
                where=_place(where, repr(node_type), "nodes"),
            ),
        )
        for (node_type, found), count in zip(columns.items(), counts, strict=True)
    }


def _source(
    nodes: Mapping[str, NodeStore],
    edges: Mapping[Relation, DglEdges],
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    edge_names: EdgeNames,
    needs_labels: bool,
) -> HeteroSource:
    """Return the source over the stores of the types, and the edges; others are as of `hetero_source`."""
    edge_stores: list[EdgeStore] = []
    for relation, of in edges.items():
        data = Attributes(arrays=of.data, where=_place(where, relation_text(relation), "edges"))
        columns = dgl_edge_columns(data, edge_names, num_edges=of.stream.num_edges or 0)
        edge_stores.append(
            EdgeStore(
                relation=relation,
                edges=columns.timed(of.weighted(columns.weight), order=of.order),
                features=columns.feature_rows(order=of.order),
                arrays=data,
            )
        )
    there = {key for of in edges.values() for key in of.data}
    require_columns(edge_stores, edge_names, there=there, where=where)
    source = stored_source(
        nodes,
        edge_stores,
        name=name,
        origin=origin,
        where=where,
        seed=seed,
        names=DGL_NAMES,
        needs_labels=needs_labels,
    )
    return replace(source, resident_bytes=sum(of.resident_bytes for of in edges.values()))


def _place(where: Path | str, kind: str, of: str) -> str:
    return f"{where} (data of {kind} {of})"
