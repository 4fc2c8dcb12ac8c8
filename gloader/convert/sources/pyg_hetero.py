"""``pyg:FILE`` with several types: PyTorch Geometric's ``HeteroData``, or the dictionaries that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.arrays import ArrayCscEdges, ArrayEdges, SparseRows
from gloader.convert.readers.edge_names import USUAL_NAMES
from gloader.convert.readers.edge_store import EdgeArrays
from gloader.convert.readers.torch_tensors import attributes_of
from gloader.convert.sources.typed_stores import EdgeStore, NodeStore, require_columns, stored_source
from gloader.core.malformed import shown
from gloader.dataset.schema import MAX_NODES
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.convert.hetero_source import HeteroSource
    from gloader.convert.readers.attributes import Attributes
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.source import EdgeStream, FeatureStream
    from gloader.types import Relation

# Names under which PyG's own `num_nodes` finds one entry per node, most telling first.
_PER_NODE = ("x", "y", "n_id", "node_id", "pos", "train_mask", "val_mask", "test_mask")
_GLOBAL = "_global_store"


def is_hetero(data: object) -> bool:
    """Whether an object is a ``HeteroData``, or the dictionary of one. Pure."""
    if isinstance(data, Mapping):
        return any(isinstance(key, tuple) for key in data)
    return type(data).__name__ == "HeteroData"


def hetero_source(
    data: Any,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    is_mapped: bool,
    edge_names: EdgeNames = USUAL_NAMES,
    needs_labels: bool = True,
) -> HeteroSource:
    """Return the source over a ``HeteroData``, or a dictionary as `HeteroData.to_dict` makes it.

    A type's features are ``x``, its labels ``y``, its splits masks or ids. A relation's edges are ``edge_index`` or
    ``adj_t``, its weights ``edge_weight`` or an ``edge_attr`` of one number per edge, its features any other
    ``edge_attr``, its times ``edge_time``.

    Parameters
    ----------
    data : the object; its tensors and numbers of nodes count
    name, origin : of the source
    where : what holds it, for messages; a path: the file that it came from
    seed : of the random split where there are no masks
    is_mapped : whether its tensors take no memory of their own
    edge_names : of times and features of edges
    needs_labels : whether nodes without labels are refused

    Raises
    ------
    SourceError
        A relation has no edges, a type no number of nodes, labels are on no type or on several.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        No relation has anything by a name of ``edge_names``.
    """
    stores = data if isinstance(data, Mapping) else data.to_dict()
    nodes: dict[str, NodeStore] = {}
    edges: list[EdgeStore] = []
    resident, there = 0, set()
    for key, store in stores.items():
        if key == _GLOBAL or not isinstance(store, Mapping):
            continue
        found = attributes_of(store, f"{where}[{_key_text(key)}]")
        resident += 0 if is_mapped else sum(array.nbytes for array in found.arrays.values())
        if isinstance(key, tuple):
            stream, features = pyg_edges(found, edge_names)
            there.update(found.of_edges(stream.num_edges or 0))
            edges.append(
                EdgeStore(relation=_relation(key, where), edges=stream, features=features, arrays=found)
            )
        else:
            nodes[str(key)] = NodeStore(num_nodes=_num_nodes(store, found), arrays=found)
    require_columns(edges, edge_names, there=there, where=where)
    source = stored_source(
        nodes, edges, name=name, origin=origin, where=where, seed=seed, needs_labels=needs_labels
    )
    return replace(source, resident_bytes=resident)


def _relation(key: tuple[Any, ...], where: Path | str) -> Relation:
    if len(key) != 3 or not all(isinstance(part, str) for part in key):
        raise SourceError(
            f"{where}: {shown(key)} is no relation; one is (source type, name, destination type)"
        )
    return key


def pyg_edges(found: Attributes, names: EdgeNames) -> tuple[EdgeStream, FeatureStream | None]:
    """Return the edges of a store, of ``edge_index`` or of ``adj_t`` (destinations by sources), and their features.

    Raises
    ------
    SourceError, ShapeError
        There are none, or they are malformed; or there are not as many times, or rows of features, as edges.
    """
    name = found.require("edge_index", "adj_t", what="edges")
    found.used[name] = "edges"
    pairs = found.arrays[name]
    where = f"{found.where}: {name}"
    if isinstance(pairs, SparseRows):
        # Edges of a store with adj_t, which a transform sorted, are in the order of its rows.
        columns = pyg_edge_columns(found, names, num_edges=len(pairs.columns))
        weight = columns.weight
        if weight is None and (pairs.values != 1).any():
            weight = pairs.values
            found.used[name] = "edges and edge weights"
        stream: EdgeStream = ArrayCscEdges.of(pairs.indptr, pairs.columns, where=where, weight=weight)
    else:
        columns = pyg_edge_columns(found, names, num_edges=pairs.size // 2)
        stream = ArrayEdges.of(pairs, where=where, weight=columns.weight)
    return columns.timed(stream), columns.feature_rows()


def pyg_edge_columns(found: Attributes, names: EdgeNames, *, num_edges: int) -> EdgeArrays:
    """Return weights, times and features of the edges of a store.

    An ``edge_attr`` of one number per edge is the weight where there is no ``edge_weight``, unless it was asked for as
    features.

    Raises
    ------
    ShapeError
        There are not as many times, or rows of features, as edges.
    """
    of_weight = [name for name in ("edge_weight", "edge_attr") if name != names.features]
    weight = found.weights(*of_weight, num_edges=num_edges)
    is_taken = weight is not None and found.find(*of_weight) == "edge_attr"
    return EdgeArrays(
        weight=weight,
        times=found.edge_times(names, num_edges=num_edges),
        features=found.edge_features(names, () if is_taken else ("edge_attr",), num_edges=num_edges),
        where=found.where,
    )


def _num_nodes(store: Mapping[str, Any], found: Attributes) -> int:
    given = store.get("num_nodes")
    if isinstance(given, int | np.integer) and not isinstance(given, bool) and 0 <= given <= MAX_NODES:
        return int(given)
    name = found.find(*_PER_NODE)
    if name is None or found.arrays[name].ndim == 0:
        raise SourceError(
            f"{found.where} does not say how many nodes it has; set num_nodes, as edges alone leave out nodes "
            "without any"
        )
    return int(found.arrays[name].shape[0])


def _key_text(key: object) -> str:
    return shown(":".join(map(str, key)) if isinstance(key, tuple) else key)
