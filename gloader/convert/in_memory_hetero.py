"""Graphs of several types in memory into a dataset directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.node_arrays import check_splits, count_classes, random_splits, to_ids
from gloader.dataset.hetero_writer import HeteroDatasetWriter
from gloader.dataset.schema import checked_schema, relation_text
from gloader.errors import ConfigError, GraphError, ShapeError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.dataset.table_writers import EdgeTableWriter
    from gloader.types import Relation

_SPLITS = ("train", "valid", "test")


def write_hetero(  # noqa: PLR0913 - keywords, as a caller names them
    path: str | os.PathLike[str],
    *,
    edges: Mapping[Relation, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]],
    num_nodes: Mapping[str, int] | None = None,
    features: Mapping[str, NDArray[Any]] | None = None,
    edge_weight: Mapping[Relation, NDArray[Any]] | None = None,
    train: NDArray[Any] | None = None,
    valid: NDArray[Any] | None = None,
    test: NDArray[Any] | None = None,
    num_classes: int | None = None,
    name: str | None = None,
    feature_dtype: str = "float32",
    add_reverse: bool = False,
    symmetrize: Sequence[Relation | str] = (),
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Write a graph of several types as a dataset directory at ``path``.

    Parameters
    ----------
    path : the folder to make
    edges : (2, E) sources and destinations of each relation (source type, name, destination type), ids within the types
    labels : (N,) classes of one type, -1 or NaN where unlabelled
    num_nodes : of each type; left out: as many as rows of features or labels, else the largest id of an edge plus one
    features : (N, F) real numbers of each type that has any
    edge_weight : (E,) real numbers of at least 0, of each relation that has any
    train, valid, test : ids or masks of the labelled type; all three or none, which splits its labelled nodes 60/20/20
    num_classes : None: the largest label plus one
    name : a short name for people; None: the folder's
    feature_dtype : of the stored features: float32, float16, bfloat16 or int8
    add_reverse : add (b, "rev_" + r, a) for each relation (a, r, b), behind all others
    symmetrize : relations within a type, as they are or their names, of which both directions of each edge are stored
    seed : of the random splits
    overwrite : replace a dataset at ``path``

    Raises
    ------
    GraphError
        A relation, features or labels name a type that is not there, or an id is out of its type's range.
    ShapeError
        Features, labels or weights are not one for each node or edge.
    ConfigError
        Labels are not those of exactly one type, or what is to be symmetrized is no relation within a type.
    SourceError
        A label is no class, or the splits are malformed.
    StoreExistsError, StoreWriteError
        ``path`` exists, or the disk refuses.
    """
    rows = features or {}
    counts = _counts(num_nodes, rows, labels, edges)
    schema = checked_schema(counts, list(edges))
    if len(labels) != 1:
        said = " and ".join(map(repr, labels)) or "none"
        raise ConfigError(f"labels must be those of exactly one node type; given are those of {said}")
    for what, types in (("features", rows), ("labels", labels)):
        for node_type, array in types.items():
            _check_rows(what, node_type, array, schema.num_nodes)
    ((labelled, _),) = labels.items()
    given = {"y": labels[labelled], "train_idx": train, "valid_idx": valid, "test_idx": test}
    found = Attributes(
        arrays={key: np.asanyarray(array) for key, array in given.items() if array is not None},
        where=f"node type {labelled!r}",
    )
    classes = found.labels("y")
    splits = found.splits(len(classes)) or random_splits(classes, seed=seed)
    check_splits(splits, classes, where=found.where)
    arrays = _all_edges(edges, edge_weight or {}, add_reverse=add_reverse, symmetrize=symmetrize)
    with HeteroDatasetWriter(
        path,
        name=Path(path).name if name is None else name,
        num_nodes=schema.num_nodes,
        relations=list(arrays),
        num_classes=count_classes(classes) if num_classes is None else num_classes,
        overwrite=overwrite,
        metadata={"source": "numpy"},
    ) as writer:
        for node_type, array in rows.items():
            with writer.nodes(node_type).features(array.shape[1], feature_dtype) as column:
                column.append(np.asarray(array, dtype=np.float32))
        writer.nodes(labelled).labels(classes)
        writer.nodes(labelled).splits(train=splits.train, valid=splits.valid, test=splits.test)
        for relation, (pair, weight) in arrays.items():
            _write_edges(writer.edges(relation), relation, pair, weight, schema.num_nodes)


def _counts(
    num_nodes: Mapping[str, int] | None,
    features: Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]],
    edges: Mapping[Relation, NDArray[Any]],
) -> dict[str, int]:
    """Return the number of nodes of each type: as given, as its arrays have rows, else as its edges need."""
    if num_nodes is not None:
        return dict(num_nodes)
    counts = {name: len(array) for name, array in (*features.items(), *labels.items())}
    needed: dict[str, int] = {}
    for (source, _, destination), pair in edges.items():
        for node_type, ids in zip((source, destination), np.asarray(pair), strict=True):
            needed[node_type] = max(needed.get(node_type, 0), int(ids.max(initial=-1)) + 1)
    return counts | {name: count for name, count in needed.items() if name not in counts}


def _check_rows(what: str, node_type: str, array: NDArray[Any], num_nodes: Mapping[str, int]) -> None:
    if node_type not in num_nodes:
        allowed = ", ".join(map(repr, num_nodes))
        raise GraphError(f"{what} are those of node type {node_type!r}; there are {allowed}")
    if len(array) != num_nodes[node_type] or (what == "features" and np.ndim(array) != 2):
        raise ShapeError(
            f"{what} of node type {node_type!r} have shape {np.shape(array)}; it has {num_nodes[node_type]} nodes"
        )


def _all_edges(
    edges: Mapping[Relation, NDArray[Any]],
    weights: Mapping[Relation, NDArray[Any]],
    *,
    add_reverse: bool,
    symmetrize: Sequence[Relation | str],
) -> dict[Relation, tuple[NDArray[Any], NDArray[Any] | None]]:
    both_ways = {_relation(wanted, edges) for wanted in symmetrize}
    found: dict[Relation, tuple[NDArray[Any], NDArray[Any] | None]] = {}
    for relation, pair in edges.items():
        array = np.asarray(pair)
        if array.ndim != 2 or array.shape[0] != 2:
            raise ShapeError(f"edges of {relation_text(relation)} have shape {array.shape}; expected (2, E)")
        weight = weights.get(relation)
        if relation in both_ways:
            if weight is not None:
                raise ConfigError(
                    f"relation {relation_text(relation)} has weights and is not symmetrized here"
                )
            array = np.unique(np.concatenate([array, array[::-1]], axis=1), axis=1)
        found[relation] = (array, weight)
    if add_reverse:
        for relation in [each for each in edges if each not in both_ways]:
            source, name, destination = relation
            array, weight = found[relation]
            found[destination, f"rev_{name}", source] = (array[::-1], weight)
    return found


def _relation(wanted: Relation | str, edges: Mapping[Relation, NDArray[Any]]) -> Relation:
    found = [each for each in edges if wanted in (each, relation_text(each), each[1])]
    if len(found) != 1 or found[0][0] != found[0][2]:
        allowed = ", ".join(relation_text(each) for each in edges if each[0] == each[2]) or "none"
        raise ConfigError(f"symmetrize names {wanted!r}; relations within a type are {allowed}")
    return found[0]


def _write_edges(
    writer: EdgeTableWriter,
    relation: Relation,
    pair: NDArray[Any],
    weight: NDArray[Any] | None,
    num_nodes: Mapping[str, int],
) -> None:
    text = relation_text(relation)
    src, dst = (to_ids(ids, first=0, where=f"relation {text}") for ids in pair)
    for noun, node_type, ids in (("source", relation[0], src), ("destination", relation[2], dst)):
        bad = np.flatnonzero((ids < 0) | (ids >= num_nodes[node_type]))
        if bad.size:
            raise GraphError(
                f"relation {text}: edge {bad[0]} (counted from 0) has {noun} {ids[bad[0]]}; nodes of type "
                f"{node_type!r} are 0..{num_nodes[node_type] - 1}"
            )
    if weight is not None and np.shape(weight) != src.shape:
        raise ShapeError(f"weights of {text} have shape {np.shape(weight)}; there are {len(src)} edges")
    order = np.argsort(dst, kind="stable")
    degrees = np.bincount(dst, minlength=num_nodes[relation[2]])
    with writer.indptr() as offsets:
        offsets.append(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
    dtype = "int32" if num_nodes[relation[0]] < 2**31 else "int64"
    with writer.indices(len(src), dtype) as indices:
        indices.append(src[order].astype(dtype))
    if weight is not None:
        with writer.edge_weight(len(src)) as weights:
            weights.append(np.asarray(weight, dtype=np.float32)[order])
