"""Check that the parts of a source fit together, before edges and features are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.derived import derivation_order
from gloader.convert.readers.node_arrays import check_splits, count_classes, few_classes
from gloader.convert.source import MeanOf
from gloader.dataset.schema import checked_schema
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import ConfigError, ShapeError, SourceError

if TYPE_CHECKING:
    from gloader.convert.source import EdgeStream, FeatureStream, HeteroSource, Source
    from gloader.types import IdArray

# As many may have few nodes each; of more, an eighth at least is there, or the labels are numbers of another kind.
_MANY_CLASSES = 4096
_LEAST_SHARE = 1 / 8


def check_source(source: Source) -> None:
    """Refuse a source whose parts contradict each other; edges and features are not read. Pure.

    Raises
    ------
    ShapeError
        Features or labels are not one per node, features of edges not one per edge, or a row has no columns.
    SourceError
        A label is no class, or the splits are malformed.
    ConfigError
        There are no nodes, no classes, or too many classes.
    """
    _check_counts(source.num_nodes, source.num_classes, source.origin)
    _check_features(source.features, source.num_nodes, source.origin)
    _check_edge_features(source.edges, source.edge_features, source.origin)
    _check_labels(source.labels, source.num_nodes, source.num_classes, source.origin)
    check_splits(source.splits, source.labels, where=source.origin)


def check_hetero(source: HeteroSource) -> None:
    """Refuse a typed source whose parts contradict each other; edges and features are not read. Pure.

    Raises
    ------
    GraphError
        A name cannot be stored, a type or relation is there twice, or a relation names a type that is not there.
    ShapeError
        Features or labels are not one per node of their type, or a feature row has no columns.
    SourceError
        A type is there twice, a label is no class, the splits are malformed, or derived features have nothing to be
        derived from.
    ConfigError
        The labelled type has no nodes, or there are no or too many classes.
    """
    names = [nodes.name for nodes in source.nodes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SourceError(f"{source.origin} has the node type {twice!r} twice")
    num_nodes = {nodes.name: nodes.num_nodes for nodes in source.nodes}
    checked_schema(num_nodes, [each.relation for each in source.relations])
    for nodes in source.nodes:
        if nodes.features is not None and not isinstance(nodes.features, MeanOf):
            _check_features(nodes.features, nodes.num_nodes, f"{source.origin}, node type {nodes.name!r}")
    for each in source.relations:
        _check_edge_features(each.edges, each.edge_features, source.where(each))
    derivation_order(source)
    count = source.num_nodes_of(source.labelled)
    where = f"{source.origin}, node type {source.labelled!r}"
    _check_counts(count, source.num_classes, where)
    _check_labels(source.labels, count, source.num_classes, where)
    check_splits(source.splits, source.labels, where=where)


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
