"""Hop columns by dense matrices in float64, for graphs of a few hundred nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.training.propagation.label_rows import NUM_FOLDS, folds_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.dataset import Dataset

    Matrix = NDArray[np.float64]


def adjacency(dataset: Dataset) -> Matrix:
    """Return the weights (N, N) of the edges of a graph of one type: row v has the edges into v."""
    graph = dataset.load_graph()
    dense = np.zeros((dataset.num_nodes, dataset.num_nodes))
    targets = np.repeat(np.arange(dataset.num_nodes), np.diff(graph.indptr))
    weights = np.ones(dataset.num_edges) if graph.edge_weight is None else graph.edge_weight
    np.add.at(dense, (targets, graph.indices), weights)
    return dense


def operator(edges: Matrix, norm: str, *, adds_loops: bool = True) -> Matrix:
    """Return the matrix of a hop, for gcn and mean."""
    if norm == "gcn":
        looped = edges + np.eye(len(edges)) * adds_loops
        # A node without edges has degree 0, and only zeros in its row.
        degrees = looped.sum(axis=1)
        scale = np.divide(1, np.sqrt(degrees), out=np.zeros(len(edges)), where=degrees > 0)
        return scale[:, None] * looped * scale
    degrees = edges.sum(axis=1, keepdims=True)
    return np.divide(edges, degrees, out=np.zeros_like(edges), where=degrees > 0)


def hop_means(step: Matrix, rows: Any, hops: int) -> list[Matrix]:
    """Return the rows of hops 0 to ``hops``."""
    found = [np.asarray(rows, np.float64)]
    for _ in range(hops):
        found.append(step @ found[-1])
    return found


def label_means(step: Matrix, dataset: Dataset, hops: int) -> list[Matrix]:
    """Return, for hops 1 to ``hops``, the propagated labels of the training nodes in other folds."""
    nodes = np.arange(dataset.labelled.num_nodes)
    is_train = np.isin(nodes, dataset.train)
    labels = dataset.labels
    if labels.ndim == 1:
        given = np.eye(dataset.num_classes)[np.maximum(labels, 0)] * (labels >= 0)[:, None]
    else:
        given = np.hstack([np.nan_to_num(labels), np.isfinite(labels)]).astype(np.float64)
    given = given * is_train[:, None]
    found = [np.zeros_like(given) for _ in range(hops)]
    for fold in range(NUM_FOLDS):
        rows = hop_means(step, given * (folds_of(nodes) == fold)[:, None], hops)
        for hop in range(hops):
            found[hop] += rows[hop + 1] * (folds_of(nodes) != fold)[:, None]
    return found
