"""The check of a source before a conversion: its parts must fit together.

`gloader.convert.prepare` calls `check_source` first, before it reads edges and features, which may take hours. Only
numbers of rows, labels and splits are checked here, as these are in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.derived import derivation_order
from gloader.convert.readers.node_arrays import check_splits, count_classes, few_classes
from gloader.convert.task_tables import check_tasks
from gloader.dataset.schema import checked_schema
from gloader.dataset.values import MAX_CLASSES, first_infinite
from gloader.errors import ConfigError, ShapeError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.source import AnySource, EdgeStream, FeatureStream
    from gloader.types import IdArray

# With more than `_MANY_CLASSES` classes, at least the share `_LEAST_SHARE` of the classes must occur among the labels.
# Otherwise, the labels are probably not class numbers, but years or ids for example.
_MANY_CLASSES = 4096
_LEAST_SHARE = 1 / 8


def check_source(source: AnySource) -> None:
    """Raise an error if the source's parts contradict each other. Edges and features are not read. Pure.

    Raises
    ------
    GraphError
        A name cannot be stored, a relation occurs twice, or a relation names an unknown type.
    ShapeError
        There is not one feature row or label per node, or one feature row per edge. Or a row has no columns, or
        columns of a task table do not fit.
    SourceError
        A type occurs twice, a label is not a class, the splits are malformed, or derived features have no source.
    ConfigError
        The labelled type has no nodes, or there are no classes or too many.
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
    if graph.labels.ndim == 2:
        _check_values(graph.labels, count, graph.num_classes, where)
    else:
        _check_classes(graph.labels, count, graph.num_classes, where)
    _check_names(graph.label_names, graph.num_classes, where)
    check_splits(graph.splits, graph.labels, where=where)
    check_tasks(graph)


def _check_counts(num_nodes: int, num_classes: int, where: str) -> None:
    """Raise ConfigError if the labelled type has no nodes, or the number of classes is out of range."""
    if num_nodes < 1 or not 1 <= num_classes <= MAX_CLASSES:
        raise ConfigError(
            f"{where} has {num_nodes} nodes and {num_classes} classes; at least one of each, and "
            f"at most {MAX_CLASSES} classes"
        )


def _check_features(features: FeatureStream, num_nodes: int, where: str) -> None:
    """Raise ShapeError if there is not one feature row per node, or a row has no columns."""
    if features.num_rows != num_nodes:
        raise ShapeError(f"{where}: features have {features.num_rows} rows for {num_nodes} nodes")
    if features.dim < 1:
        raise ShapeError(f"{where}: features have {features.dim} columns; at least 1 is needed")


def _check_edge_features(edges: EdgeStream, features: FeatureStream | None, where: str) -> None:
    """Raise ShapeError if there is not one feature row per edge, or a row has no columns."""
    if features is None:
        return
    # If the number of edges is unknown, the check follows after the edges were read.
    if edges.num_edges is not None and features.num_rows != edges.num_edges:
        raise ShapeError(f"{where}: edge features have {features.num_rows} rows for {edges.num_edges} edges")
    if features.dim < 1:
        raise ShapeError(f"{where}: edge features have {features.dim} columns; at least 1 is needed")


def _check_names(names: tuple[str, ...], count: int, where: str) -> None:
    """Raise SourceError if labels have names, but not one for each class or column, or a name occurs twice."""
    if names and not len(names) == len(set(names)) == count:
        raise SourceError(
            f"{where}: {len(names)} names for {count} classes or label columns ({', '.join(map(repr, names[:8]))}); "
            "there must be one for each, all different"
        )


def _check_values(labels: NDArray[Any], num_nodes: int, num_columns: int, where: str) -> None:
    """Raise an error if label values (N, k) have the wrong shape or dtype, or are infinite."""
    if labels.shape[0] != num_nodes or labels.shape[1] < 1 or labels.dtype != np.float32:
        raise ShapeError(
            f"{where}: labels have shape {labels.shape} and dtype {labels.dtype}; they must be ({num_nodes}, k) float32"
        )
    if labels.shape[1] != num_columns:
        raise ConfigError(
            f"{where}: num_classes is {num_columns}, and the labels are {labels.shape[1]} columns of values instead of "
            "classes; leave num_classes out"
        )
    index = first_infinite(labels.reshape(-1))
    if index >= 0:
        row, column = divmod(index, labels.shape[1])
        raise SourceError(
            f"{where}: node {row} has label {labels[row, column]} in column {column}; a label is finite, or NaN where "
            "it is unknown"
        )


def _check_classes(labels: IdArray, num_nodes: int, num_classes: int, where: str) -> None:
    """Raise an error if labels (N,) have the wrong shape, are out of range, or are probably not class numbers."""
    if labels.shape != (num_nodes,):
        raise ShapeError(f"{where}: labels have shape {labels.shape}; they must be ({num_nodes},)")
    bad = np.flatnonzero((labels < -1) | (labels >= num_classes))
    if bad.size:
        raise SourceError(
            f"{where}: node {bad[0]} has label {labels[bad[0]]}; labels are 0..{num_classes - 1}, or -1"
        )
    # The last check is only for a number of classes that was counted as the largest label plus one. A source may state
    # a larger number itself, for classes that do not occur yet.
    if num_classes <= _MANY_CLASSES or num_classes != count_classes(labels):
        return
    occurs = np.zeros(num_classes + 1, np.bool_)
    occurs[labels] = True  # a label of -1 sets the extra last entry, which is not counted below
    if np.count_nonzero(occurs[:-1]) < _LEAST_SHARE * num_classes:
        raise SourceError(
            f"{where}: labels go up to {num_classes - 1}, for which a model has {num_classes:,} outputs; "
            f"{few_classes(labels)}"
        )
