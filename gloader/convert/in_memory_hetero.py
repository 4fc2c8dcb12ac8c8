"""Graphs of several types in memory: arrays as a source, and a dataset's arrays as PyG's and DGL's graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.readers.arrays import ArrayEdges
from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.edge_names import EdgeNames
from gloader.convert.readers.edge_store import EdgeArrays
from gloader.convert.sources.typed_stores import EdgeStore, NodeStore, stored_source
from gloader.core.fanouts import parse_relation
from gloader.dataset.schema import relation_text
from gloader.errors import GraphError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from numpy.typing import NDArray

    from gloader.convert.hetero_source import HeteroSource
    from gloader.types import Relation

WEIGHTS: Final = "edge_weight"
EDGE_FEATURES: Final = "edge_features"
EDGE_TIMES: Final = "edge_time"
_SAID: Final = {WEIGHTS: "weights", EDGE_FEATURES: "edge features", EDGE_TIMES: "edge times"}
# The names of the masks in PyG and DGL.
MASKS = (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask"))


def arrays_source(
    *,
    name: str,
    edges: Mapping[Relation, NDArray[Any]] | Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]] | None,
    num_nodes: Mapping[str, int] | None,
    features: Mapping[str, NDArray[Any]],
    edge_arrays: Mapping[str, Mapping[Relation, NDArray[Any]] | Mapping[str, NDArray[Any]]],
    splits: Mapping[str, NDArray[Any]],
    seed: int,
) -> HeteroSource:
    """Return the source over the arrays of `gloader.convert.in_memory.write_hetero`, which are shared.

    ``labels`` are None where none are needed.

    Raises
    ------
    ConfigError
        What edges, or arrays beside them, are given for names no relation.
    GraphError
        Features, labels or arrays beside edges are those of a type or relation that is not there.
    ShapeError
        An array has the wrong shape or dtype.
    SourceError
        Labels are on no type, or on several; some splits are there and some are not.
    """
    pairs = {parse_relation(relation): np.asanyarray(pair) for relation, pair in edges.items()}
    beside = {
        what: {parse_relation(relation): np.asanyarray(array) for relation, array in arrays.items()}
        for what, arrays in edge_arrays.items()
    }
    classes = labels or {}
    counts = _counts(features, classes, pairs) if num_nodes is None else dict(num_nodes)
    for what, given in (("features", features), ("labels", classes)):
        _require_known(what, "node type", given, counts)
    texts = [relation_text(relation) for relation in pairs]
    for what, by_relation in beside.items():
        _require_known(_SAID[what], "relation", [relation_text(each) for each in by_relation], texts)
    stores = {}
    for node_type, count in counts.items():
        found = {"x": features.get(node_type), "y": classes.get(node_type)}
        if node_type in classes:
            found |= splits
        place = f"node type {node_type!r}"
        arrays = {key: np.asanyarray(array) for key, array in found.items() if array is not None}
        for key in ("x", "y"):
            if key in arrays and arrays[key].shape[:1] != (count,):
                what = "features" if key == "x" else "labels"
                raise ShapeError(f"{place} has {count} nodes, and {what} of shape {arrays[key].shape}")
        stores[node_type] = NodeStore(num_nodes=count, arrays=Attributes(arrays=arrays, where=place))
    streams = [
        _edge_store(relation, pair, {what: of[relation] for what, of in beside.items() if relation in of})
        for relation, pair in pairs.items()
    ]
    return stored_source(
        stores,
        streams,
        name=name,
        origin="numpy",
        where="from_numpy_hetero",
        seed=seed,
        needs_labels=labels is not None,
    )


def to_hetero_data(arrays: Mapping[str, Any]) -> Any:
    """Return the arrays of `Dataset.to_numpy` of several types as a `torch_geometric.data.HeteroData`, with masks.

    Raises
    ------
    MissingDependencyError
        PyG is not installed.
    """
    import torch

    from gloader.convert.sources.pyg import import_data

    import_data("to_pyg returns a HeteroData of torch-geometric")
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for node_type, count in arrays["num_nodes"].items():
        # Also where rows say it: what has neither features nor edges is known by nothing else.
        data[node_type].num_nodes = count
        if node_type in arrays["features"]:
            data[node_type].x = torch.from_numpy(arrays["features"][node_type])
    for node_type, labels in arrays["labels"].items():
        data[node_type].y = torch.tensor(labels)
        for name, key in MASKS:
            data[node_type][key] = torch.from_numpy(mask(arrays[name], len(labels)))
    for relation, pair in arrays["edges"].items():
        data[relation].edge_index = torch.from_numpy(pair)
        for name, key in ((WEIGHTS, "edge_weight"), (EDGE_FEATURES, "edge_attr"), (EDGE_TIMES, "edge_time")):
            if relation in arrays.get(name, ()):
                data[relation][key] = tensor_of(arrays[name][relation])
    return data


def to_heterograph(arrays: Mapping[str, Any]) -> Any:
    """Return the arrays of `Dataset.to_numpy` of several types as a heterogeneous `dgl.DGLGraph`, with masks.

    DGL puts types and relations into alphabetical order.

    Raises
    ------
    MissingDependencyError
        DGL is not installed.
    """
    import torch

    from gloader.convert.sources.dgl import quiet_dgl

    with quiet_dgl("converting to DGL needs") as dgl:
        graph = dgl.heterograph(
            {relation: tuple(map(torch.from_numpy, pair)) for relation, pair in arrays["edges"].items()},
            num_nodes_dict=dict(arrays["num_nodes"]),
        )
    for node_type, rows in arrays["features"].items():
        graph.nodes[node_type].data["feat"] = torch.from_numpy(rows)
    for node_type, labels in arrays["labels"].items():
        data = graph.nodes[node_type].data
        data["label"] = torch.tensor(labels)
        for name, key in MASKS:
            data[key] = torch.from_numpy(mask(arrays[name], len(labels)))
    for name, key in ((WEIGHTS, "weight"), (EDGE_FEATURES, "feat"), (EDGE_TIMES, "edge_time")):
        for relation, array in arrays.get(name, {}).items():
            graph.edges[relation].data[key] = tensor_of(array)
    return graph


def tensor_of(array: NDArray[Any]) -> Any:
    """Return an array as a tensor, shared where anybody may write to it: torch has no read-only tensors."""
    import torch

    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)


def mask(ids: NDArray[np.int64], num_nodes: int) -> NDArray[np.bool_]:
    """Return the (N,) mask of node ``ids``. Pure."""
    is_in = np.zeros(num_nodes, dtype=np.bool_)
    is_in[ids] = True
    return is_in


def _counts(
    features: Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]],
    edges: Mapping[Relation, NDArray[Any]],
) -> dict[str, int]:
    """Return the number of nodes of each type: as many as its arrays have rows, else as its edges need."""
    # What is of another shape is refused by whoever reads it.
    counts = {
        name: np.size(array, 0) for name, array in (*labels.items(), *features.items()) if np.ndim(array)
    }
    needed: dict[str, int] = {}
    for (source, _, destination), pair in edges.items():
        are_ids = pair.ndim == 2 and pair.dtype.kind in "iu"
        for node_type, ids in zip((source, destination), pair if are_ids else (), strict=False):
            needed[node_type] = max(needed.get(node_type, 0), int(ids.max(initial=-1)) + 1)
    return counts | {name: count for name, count in needed.items() if name not in counts}


def _require_known(what: str, kind: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise GraphError(f"{what} are given for {kind} {name!r}; there are {', '.join(map(repr, known))}")


def _edge_store(relation: Relation, pair: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> EdgeStore:
    place = f"relation {relation_text(relation)}"
    edges = ArrayEdges.of(pair, where=place, weight=arrays.get(WEIGHTS))
    columns = given_columns(arrays, where=place, num_edges=edges.num_edges)
    return EdgeStore(relation=relation, edges=columns.timed(edges), features=columns.feature_rows())


def given_columns(arrays: Mapping[str, NDArray[Any]], *, where: str, num_edges: int) -> EdgeArrays:
    """Return features and times of edges that were given as arrays under `EDGE_FEATURES` and `EDGE_TIMES`.

    Raises
    ------
    ShapeError
        They are not one row, and one time, for each edge.
    """
    names = EdgeNames(time=EDGE_TIMES, features=EDGE_FEATURES)
    found = Attributes(arrays=arrays, where=where)
    return EdgeArrays(
        weight=None,
        times=found.edge_times(names, num_edges=num_edges),
        features=found.edge_features(names, (), num_edges=num_edges),
        where=where,
    )
