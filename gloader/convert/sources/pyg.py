"""The source ``pyg:FILE``: a PyTorch Geometric graph, saved with ``torch.save(data, FILE)``.

The file has a ``Data``, a ``HeteroData``, or the dictionary form of either. A *store* is PyG's mapping of names to
arrays, one for each node type and relation. `open_pyg` loads the file without executing code in it, and `pyg_source`
makes the source from the loaded object. `pyg_source` also serves graphs in memory.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.arrays import (
    EdgeArrays,
    SparseRows,
    array_csc_edges,
    array_edges,
)
from gloader.convert.readers.attributes import (
    EdgeStore,
    NodeStore,
    SavedGraph,
    StoreNames,
    one_type_source,
    stored_source,
)
from gloader.convert.readers.npy_file import tell_where_cut
from gloader.convert.readers.torch_file import attributes_of, require_plain_archive
from gloader.core.malformed import shown
from gloader.dataset.schema import MAX_NODES
from gloader.errors import MissingDependencyError, SourceError
from gloader.types import EDGE

if TYPE_CHECKING:
    from gloader.convert.options import EdgeNames, SourceOptions
    from gloader.convert.readers.attributes import Attributes
    from gloader.convert.source import AnySource
    from gloader.types import Relation


# Names of arrays with one entry per node, as in PyG's own `num_nodes`, the most reliable first.
_PER_NODE = ("x", "y", "n_id", "node_id", "pos", "train_mask", "val_mask", "test_mask")
_GLOBAL = "_global_store"  # the store of arrays that belong to no type or relation
_OF_ONE_TYPE = StoreNames(("x",), ("y",))  # names of features and labels in a graph of one type


def pyg_source(data: object, saved: SavedGraph, *, is_mapped: bool) -> AnySource:
    """Return the source for a ``Data``, a ``HeteroData``, a dictionary of tensors, or a result of `torch.load`.

    A node type's features are in ``x``, its labels in ``y``, and its splits in masks or ids. A relation's edges are in
    ``edge_index`` or ``adj_t``, and its edge times in ``edge_time``. Edge weights are in ``edge_weight``, or in an
    ``edge_attr`` with one number per edge. Any other ``edge_attr`` is edge features.

    Parameters
    ----------
    data : the object; only its tensors and numbers of nodes are used
    saved : the graph's name and options
    is_mapped : True if the tensors take no memory, because they are memory-mapped or belong to the caller

    Raises
    ------
    SourceError
        A relation has no edges, a type has no number of nodes, or not exactly one type has labels.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        No relation has an array with a requested name of edge times or edge features.
    """
    where = saved.where
    stores = _entries(data, where)
    has_types = type(_unwrapped(data, where)).__name__ == "HeteroData"
    if not has_types and not any(isinstance(key, tuple) for key in stores):
        attributes = attributes_of(stores, str(where))
        # Features and labels are read once before the edges, so that an error about a missing x or y comes first.
        # `one_type_source` reads them again.
        rows = attributes.features("x")
        attributes.labels(
            "y", num_nodes=len(rows), needs_labels=saved.needs_labels, labels_as=saved.labels_as
        )
        edges = replace(_edge_store(attributes, EDGE, saved.edge_names), arrays=None)
        return one_type_source(
            attributes,
            edges,
            saved,
            names=_OF_ONE_TYPE,
            resident_bytes=0 if is_mapped else attributes.num_bytes,
        )
    nodes: dict[str, NodeStore] = {}
    relations: list[EdgeStore] = []
    unused: list[str] = []
    resident = 0
    for key, store in stores.items():
        if not isinstance(store, Mapping):
            unused.append(f"{key} ({type(store).__name__}) of no type")
            continue
        if key == _GLOBAL:
            unused += [f"{each} of no type" for each in attributes_of(store, str(where)).unused()]
            continue
        attributes = attributes_of(store, f"{where}[{_key_text(key)}]")
        resident += 0 if is_mapped else attributes.num_bytes
        if isinstance(key, tuple):
            relations.append(_edge_store(attributes, _relation(key, where), saved.edge_names))
        else:
            nodes[str(key)] = NodeStore(num_nodes=_num_nodes(store, attributes), arrays=attributes)
    source = stored_source(nodes, relations, saved, resident_bytes=resident)
    return replace(source, unused=(*source.unused, *unused))


def _relation(key: tuple[Any, ...], where: Path | str) -> Relation:
    """Return a store's key as a relation. Raises SourceError if it is not three texts."""
    if len(key) != 3 or not all(isinstance(part, str) for part in key):
        raise SourceError(
            f"{where}: {shown(key)} is no relation; one is (source type, name, destination type)"
        )
    return key


def _edge_store(attributes: Attributes, relation: Relation, names: EdgeNames) -> EdgeStore:
    """Return a store's edges, from ``edge_index`` or ``adj_t`` (destinations by sources), and the edge features.

    Raises
    ------
    SourceError, ShapeError
        Edges are missing or malformed, or the number of times or feature rows is not the number of edges.
    """
    name = attributes.require("edge_index", "adj_t", what="edges")
    attributes.used[name] = "edges"
    pairs = attributes.arrays[name]
    where = f"{attributes.where}: {name}"
    if isinstance(pairs, SparseRows):  # adj_t, a sparse matrix with a row per destination
        # PyG's transform that makes adj_t also sorts the edge attributes into the order of adj_t's rows.
        columns = _edge_columns(attributes, names, num_edges=len(pairs.columns))
        weight = columns.weight
        if weight is None and (pairs.values != 1).any():
            weight = pairs.values
            attributes.used[name] = "edges and edge weights"
        stream = array_csc_edges(pairs.indptr, pairs.columns, where=where, weight=weight)
    else:
        columns = _edge_columns(attributes, names, num_edges=pairs.size // 2)
        stream = array_edges(pairs, where=where, weight=columns.weight)
    return EdgeStore(
        relation=relation,
        edges=columns.timed(stream),
        features=columns.feature_rows(),
        arrays=attributes,
        names=attributes.of_edges(stream.num_edges or 0),
    )


def _edge_columns(attributes: Attributes, names: EdgeNames, *, num_edges: int) -> EdgeArrays:
    """Return a store's edge weights, times and features.

    Without ``edge_weight``, an ``edge_attr`` with one number per edge is the weight, unless it was requested as
    features.

    Raises
    ------
    ShapeError
        The number of times or feature rows is not the number of edges.
    """
    weight_names = [name for name in ("edge_weight", "edge_attr") if name != names.features]
    weight = attributes.weights(*weight_names, num_edges=num_edges)
    attr_is_weight = weight is not None and attributes.find(*weight_names) == "edge_attr"
    feature_names = () if attr_is_weight else ("edge_attr",)
    return EdgeArrays(
        weight=weight,
        times=attributes.edge_times(names, num_edges=num_edges),
        features=attributes.edge_features(names, feature_names, num_edges=num_edges),
        where=attributes.where,
    )


def _num_nodes(store: Mapping[str, Any], attributes: Attributes) -> int:
    """Return a type's number of nodes: ``num_nodes``, or the length of an array with one entry per node."""
    given = store.get("num_nodes")
    if isinstance(given, int | np.integer) and not isinstance(given, bool) and 0 <= given <= MAX_NODES:
        return int(given)
    name = attributes.find(*_PER_NODE)
    if name is None or attributes.arrays[name].ndim == 0:
        raise SourceError(
            f"{attributes.where} has no number of nodes; set num_nodes, because edges do not show nodes without edges"
        )
    return int(attributes.arrays[name].shape[0])


def _key_text(key: object) -> str:
    """Return a store's key for messages: a node type, or a relation with colons."""
    return shown(":".join(map(str, key)) if isinstance(key, tuple) else key)


def open_pyg(argument: str, options: SourceOptions) -> AnySource:
    """Open a saved ``Data``, ``HeteroData`` or dictionary of tensors, with x, edge_index, y and masks or ids.

    Without masks, nodes are split at random by ``options.seed``. No code in the file is executed: it is read with
    ``weights_only=True`` and PyTorch Geometric's own data classes. Other files are refused.

    Raises
    ------
    SourceError
        The file is missing, is not such a file, has other objects, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        No relation has an array with a name of times or features that ``options`` request.
    """
    path = Path(argument).expanduser()
    saved = SavedGraph.in_file(path, f"pyg:{argument}", options)
    return pyg_source(_load(path), saved, is_mapped=zipfile.is_zipfile(path))


def _load(path: Path) -> object:
    """Load a file of `torch.save`, without executing code in it. Raises SourceError for any other file."""
    import torch

    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; pyg: takes a file of torch.save(data)")
    require_plain_archive(path)
    tell_where_cut(path)  # for the message if the mapped file becomes shorter
    try:
        # Zip files, torch's format since 1.6, are mapped, so that features may be larger than memory.
        with torch.serialization.safe_globals(_data_classes()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # an unpickler may raise anything on a damaged or hostile file
        raise SourceError(
            f"{path} cannot be read as a saved torch_geometric Data ({_reason(error)}); if it holds other "
            "objects, save the plain tensors with torch.save(data.to_dict(), FILE)"
        ) from error


def _reason(error: Exception) -> str:
    """Return the sentence with the refused object from torch's long message, shortened to 200 characters."""
    lines = str(error).splitlines() or [type(error).__name__]
    line = next((line for line in lines if "unsupported global" in line.lower()), lines[0])
    return line.rpartition("WeightsUnpickler error:")[2].strip().split(". ")[0].rstrip(".")[:200]


def import_data(need: str) -> Any:
    """Return PyG's class ``Data``. ``need`` begins the message if PyG is missing.

    Raises
    ------
    MissingDependencyError
        PyG is not installed.
    """
    with warnings.catch_warnings():
        # torch_geometric warns about torch's own deprecations at import.
        warnings.simplefilter("ignore")
        try:
            from torch_geometric.data import Data
        except ImportError as error:
            raise MissingDependencyError.of_extra(need, "pyg") from error
    return Data


def _data_classes() -> list[Any]:
    """Return PyG's classes that a saved file may contain, or none without PyG."""
    # A file with plain tensors needs no PyG. Without PyG, a file with a Data is refused with advice.
    try:
        data_class = import_data("a saved Data needs torch-geometric")
    except MissingDependencyError:
        return []
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.hetero_data import HeteroData
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    storages = [BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    return [data_class, HeteroData, DataEdgeAttr, DataTensorAttr, *storages]


def _unwrapped(loaded: object, path: Path | str) -> object:
    """Return the graph in a result of `torch.load`. Raises SourceError if it has several graphs."""
    # A processed InMemoryDataset is a tuple: data, slices, class.
    if isinstance(loaded, tuple | list) and loaded:
        if len(loaded) > 1 and loaded[1] is not None:
            raise SourceError(f"{path} holds several graphs; save one Data")
        return loaded[0]
    return loaded


def _entries(loaded: object, where: Path | str) -> Mapping[Any, Any]:
    """Return the stores of a graph with types, or the arrays of a graph without types, by name."""
    loaded = _unwrapped(loaded, where)
    to_dict = getattr(loaded, "to_dict", None)
    if type(loaded).__name__ in {"Data", "HeteroData"} and to_dict is not None:
        loaded = to_dict()
    if not isinstance(loaded, Mapping):
        raise SourceError(
            f"{where} holds a {type(loaded).__name__}; expected a torch_geometric Data or HeteroData"
        )
    return loaded
