"""All arrays of a dataset in memory, under the names by which they are written as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.dataset.edge_table import EdgeTable
    from gloader.dataset.link_table import LinkTable
    from gloader.dataset.node_table import NodeTable
    from gloader.samplers import CscGraph
    from gloader.types import IdArray, Relation


def homogeneous_arrays(nodes: NodeTable, edges: EdgeTable, links: Mapping[str, LinkTable]) -> dict[str, Any]:
    """Return the arrays of a dataset of one type, as `Dataset.from_numpy` takes them."""
    graph = edges.load_graph()
    arrays: dict[str, Any] = {
        "features": nodes.all_features(),
        "labels": nodes.labels,
        "indptr": graph.indptr,
        "indices": graph.indices,
        **_splits(nodes),
    }
    columns = {
        "edge_weight": graph.edge_weight,
        "edge_features": None if edges.feature_rows is None else edges.feature_rows.all_rows(),
        "edge_time": graph.edge_time,
        "links": {name: _links(table) for name, table in links.items()} or None,
    }
    return arrays | {name: column for name, column in columns.items() if column is not None}


def hetero_arrays(
    nodes: Mapping[str, NodeTable],
    edges: Mapping[Relation, EdgeTable],
    links: Mapping[str, LinkTable],
    *,
    num_classes: int,
) -> dict[str, Any]:
    """Return the arrays of a dataset of several types, as `Dataset.from_numpy_hetero` takes them.

    The edges of a relation stand in the order of its lists: by destination. So do their weights, features and times.
    """
    graphs = {relation: table.load_graph() for relation, table in edges.items()}
    weights = {relation: graph.edge_weight for relation, graph in graphs.items()}
    labelled = next(table for table in nodes.values() if table.has_labels)
    features = {relation: table.feature_rows for relation, table in edges.items()}
    times = {relation: graph.edge_time for relation, graph in graphs.items()}
    columns: dict[str, dict[Any, Any]] = {
        "edge_features": {relation: rows.all_rows() for relation, rows in features.items() if rows},
        "edge_time": {relation: time for relation, time in times.items() if time is not None},
        "links": {
            name: {"relation": table.relation, "reverse": table.reverse_relation, **_links(table)}
            for name, table in links.items()
        },
    }
    return {
        "num_nodes": {name: table.num_nodes for name, table in nodes.items()},
        "features": {name: table.all_features() for name, table in nodes.items() if table.has_features},
        "edges": {relation: _edge_index(graph) for relation, graph in graphs.items()},
        "edge_weight": {relation: weight for relation, weight in weights.items() if weight is not None},
        "labels": {labelled.name: labelled.labels},
        "num_classes": num_classes,
        **_splits(labelled),
        **{name: column for name, column in columns.items() if column},
    }


def _splits(nodes: NodeTable) -> dict[str, IdArray]:
    return {"train": nodes.train, "valid": nodes.valid, "test": nodes.test}


def _links(table: LinkTable) -> dict[str, Any]:
    with table.open(max_bytes=table.num_bytes + table.negative_bytes) as links:
        rows = links.read(np.arange(table.num_rows))
    columns = {"labels": rows.labels, "times": rows.times, "negatives": rows.negatives}
    return {
        "edge_index": np.stack([rows.sources, rows.destinations]),
        **{name: column for name, column in columns.items() if column is not None},
    }


def _edge_index(graph: CscGraph) -> IdArray:
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return np.stack([graph.indices.astype(np.int64), destinations])
