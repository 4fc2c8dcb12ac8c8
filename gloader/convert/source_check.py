"""Check that the parts of a source fit together, before edges and features are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.derived import derivation_order
from gloader.convert.readers.node_arrays import check_splits, count_classes, few_classes
from gloader.dataset.schema import checked_schema
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import ConfigError, ShapeError, SourceError

if TYPE_CHECKING:
    from gloader.convert.source import AnySource, EdgeStream, FeatureStream
    from gloader.types import IdArray

# As many may have few nodes each; of more, an eighth at least is there, or the labels are numbers of another kind.
_MANY_CLASSES = 4096
_LEAST_SHARE = 1 / 8


def check_source(source: AnySource) -> None:
    """Refuse a source whose parts contradict each other; edges and features are not read. Pure.

    Raises
    ------
    GraphError
        A name cannot be stored, a relation is there twice, or a relation names a type that is not there.
    ShapeError
        Features or labels are not one per node of their type, features of edges not one per edge, or a row has no
        columns.
    SourceError
        A type is there twice, a label is no class, the splits are malformed, or derived features have nothing to be
        derived from.
    ConfigError
        The labelled type has no nodes, or there are no classes, or too many.
    """
    graph = source.graph()
    names = [nodes.name for nodes in graph.nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{graph.origin} has the node type {twice!r} twice")
    checked_schema(graph.num_nodes, [each.relation for each in graph.relations])
    count, where = graph.num_nodes_of(graph.labelled), graph.where_nodes(graph.labelled)
    _check_counts(count, graph.num_classes, where)
    for nodes in graph.nodes:
        if nodes.given is not None:
            _check_features(nodes.given, nodes.num_nodes, graph.where_nodes(nodes.name))
    for each in graph.relations:
        _check_edge_features(each.edges, each.edge_features, graph.where(each))
    derivation_order(graph)
    _check_labels(graph.labels, count, graph.num_classes, where)
    check_splits(graph.splits, graph.labels, where=where)


def _check_counts(num_nodes: int, num_classes: int, where: str) -> None:
    if num_nodes < 1 or not 1 <= num_classes <= MAX_CLASSES:
        raise ConfigError(
            f"{where} has {num_nodes} nodes and {num_classes} classes; at least one of each, and "
            f"at most {MAX_CLASSES} classes"
        )


def _check_features(features: FeatureStream, num_nodes: int, where: str) -> None:
    if features.num_rows != num_nodes:
        raise ShapeError(f"{where}: features have {features.num_rows} rows for {num_nodes} nodes")
    if features.dim < 1:
        raise ShapeError(f"{where}: features have {features.dim} columns; at least 1 is needed")


def _check_edge_features(edges: EdgeStream, features: FeatureStream | None, where: str) -> None:
    if features is None:
        return
    # What is only known when the edges have been read is checked then.
    if edges.num_edges is not None and features.num_rows != edges.num_edges:
        raise ShapeError(f"{where}: edge features have {features.num_rows} rows for {edges.num_edges} edges")
    if features.dim < 1:
        raise ShapeError(f"{where}: edge features have {features.dim} columns; at least 1 is needed")


def _check_labels(labels: IdArray, num_nodes: int, num_classes: int, where: str) -> None:
    if labels.shape != (num_nodes,):
        raise ShapeError(f"{where}: labels have shape {labels.shape}; they must be ({num_nodes},)")
    bad = np.flatnonzero((labels < -1) | (labels >= num_classes))
    if bad.size:
        raise SourceError(
            f"{where}: node {bad[0]} has label {labels[bad[0]]}; labels are 0..{num_classes - 1}, or -1"
        )
    # Their number may also be said, of classes that are not there yet.
    if num_classes <= _MANY_CLASSES or num_classes != count_classes(labels):
        return
    is_there = np.zeros(num_classes + 1, np.bool_)
    is_there[labels] = True  # of -1, the last
    if np.count_nonzero(is_there[:-1]) < _LEAST_SHARE * num_classes:
        raise SourceError(
            f"{where}: labels go up to {num_classes - 1}, for which a model has {num_classes:,} outputs; "
            f"{few_classes(labels)}"
        )
