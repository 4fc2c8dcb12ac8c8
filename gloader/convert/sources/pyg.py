"""``pyg:FILE``: a graph that PyTorch Geometric saved with ``torch.save(data, FILE)``.

The file holds a ``Data``, a ``HeteroData``, or the dictionaries that either is made of.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.options import USUAL_NAMES
from gloader.convert.readers.arrays import ArrayCscEdges, ArrayEdges, ArrayFeatures, EdgeArrays, SparseRows
from gloader.convert.readers.attributes import EdgeStore, NodeStore, require_columns, stored_source
from gloader.convert.readers.node_arrays import count_classes, random_splits
from gloader.convert.readers.npy_file import tell_where_cut
from gloader.convert.readers.torch_file import attributes_of, require_plain_archive
from gloader.convert.source import Source
from gloader.core.malformed import shown
from gloader.dataset.schema import MAX_NODES
from gloader.errors import MissingDependencyError, SourceError

if TYPE_CHECKING:
    from gloader.convert.options import EdgeNames, SourceOptions
    from gloader.convert.readers.attributes import Attributes
    from gloader.convert.source import AnySource, EdgeStream, FeatureStream, GraphSource
    from gloader.types import Relation


# Names under which PyG's own `num_nodes` finds one entry per node, most telling first.
_PER_NODE = ("x", "y", "n_id", "node_id", "pos", "train_mask", "val_mask", "test_mask")
_GLOBAL = "_global_store"


def is_hetero(data: object) -> bool:
    """True if an object is a ``HeteroData``, or the dictionary of one. Pure."""
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
) -> GraphSource:
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


def open_pyg(argument: str, options: SourceOptions) -> AnySource:
    """Open a saved ``Data`` or ``HeteroData`` (or a dictionary of its tensors) with x, edge_index, y and masks or ids.

    Without masks, ``options.seed`` decides a random split. Nothing in the file is executed: it is read with
    ``weights_only=True`` and PyTorch Geometric's own data classes, and refused otherwise.

    Raises
    ------
    SourceError
        The file is missing, is not such a file, holds other things, or lacks a key.
    ShapeError
        A tensor has the wrong shape or dtype.
    ConfigError
        Edges have nothing by a name that ``options`` ask for.
    """
    path = Path(argument).expanduser()
    data = _unwrapped(_load(path), path)
    make = hetero_source if is_hetero(data) else data_source
    return make(
        data,
        name=path.stem,
        origin=f"pyg:{argument}",
        where=path,
        seed=options.seed,
        is_mapped=zipfile.is_zipfile(path),
        edge_names=options.edge_names,
        needs_labels=options.needs_labels,
    )


def data_source(
    data: object,
    *,
    name: str,
    origin: str,
    where: Path | str,
    seed: int,
    is_mapped: bool,
    edge_names: EdgeNames = USUAL_NAMES,
    needs_labels: bool = True,
) -> Source:
    """Return the source over a ``Data``, a dictionary of tensors or what `torch.load` made of either.

    Parameters
    ----------
    data : the object; its tensors count
    name, origin : of the source
    where : what holds it, for messages; a path: the file that it came from
    seed : of the random split where there are no masks
    is_mapped : whether its tensors take no memory of their own
    edge_names : of times and features of edges
    needs_labels : whether nodes without labels are refused

    Raises
    ------
    SourceError, ShapeError, ConfigError
        As `open_pyg`.
    """
    found = attributes_of(_entries(data, where), str(where))
    rows = found.features("x")
    labels = found.labels("y", num_nodes=len(rows), needs_labels=needs_labels)
    edges, edge_features = pyg_edges(found, edge_names)
    num_edges = edges.num_edges or 0
    edge_names.require(
        has_times=edges.has_times,
        has_features=edge_features is not None,
        there=found.of_edges(num_edges),
        where=str(where),
    )
    splits = found.splits(len(rows)) or random_splits(labels, seed=seed)
    return Source(
        name=name,
        origin=origin,
        num_nodes=len(rows),
        num_classes=count_classes(labels),
        edges=edges,
        features=ArrayFeatures(rows=rows),
        labels=labels,
        splits=splits,
        edge_features=edge_features,
        edge_file=where if isinstance(where, Path) else None,
        resident_bytes=0 if is_mapped else sum(found.arrays[each].nbytes for each in found.used),
        said=found.said(),
        unused=tuple(found.unused(num_nodes=len(rows), num_edges=num_edges)),
    )


def _load(path: Path) -> object:
    import torch

    if not path.is_file():
        raise SourceError(f"{path} does not exist or is not a file; pyg: takes a file of torch.save(data)")
    require_plain_archive(path)
    tell_where_cut(path)
    try:
        # Zip files, which torch has written since 1.6, are mapped, so that features larger than memory stream.
        with torch.serialization.safe_globals(_data_classes()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # an unpickler may raise anything on a damaged or hostile file
        raise SourceError(
            f"{path} cannot be read as a saved torch_geometric Data ({_reason(error)}); if it holds other "
            "objects, save the plain tensors with torch.save(data.to_dict(), FILE)"
        ) from error


def _reason(error: Exception) -> str:
    """Return the sentence of torch's long message that says what was refused; it may quote any length of the file."""
    lines = str(error).splitlines() or [type(error).__name__]
    line = next((line for line in lines if "unsupported global" in line.lower()), lines[0])
    return line.rpartition("WeightsUnpickler error:")[2].strip().split(". ")[0].rstrip(".")[:200]


def import_data(need: str) -> Any:
    """Return PyG's class ``Data``; ``need`` says what it is for.

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
    # A file of plain tensors needs no PyG; one with a Data is then refused with the advice to save it as such.
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
    # A processed InMemoryDataset is a tuple: data, slices, class.
    if isinstance(loaded, tuple | list) and loaded:
        if len(loaded) > 1 and loaded[1] is not None:
            raise SourceError(f"{path} holds several graphs; save one Data")
        return loaded[0]
    return loaded


def _entries(loaded: object, path: Path | str) -> Mapping[Any, Any]:
    loaded = _unwrapped(loaded, path)
    to_dict = getattr(loaded, "to_dict", None)
    if type(loaded).__name__ == "Data" and to_dict is not None:
        loaded = to_dict()
    if not isinstance(loaded, Mapping):
        raise SourceError(
            f"{path} holds a {type(loaded).__name__}; expected a torch_geometric Data or HeteroData"
        )
    return loaded
