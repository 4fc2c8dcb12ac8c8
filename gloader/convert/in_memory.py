"""Conversion of graphs in memory into datasets, and back: numpy arrays, PyG's data and DGL's graphs.

Graphs have one node type or several. ``Dataset.from_...`` calls the functions ``write_...``: these check the arrays,
make a source of them, and run `gloader.convert.prepare.prepare`. ``Dataset.to_...`` calls the functions ``to_...``.
`Dataset` imports this module only when it is needed, and this module does not import `Dataset`, to avoid an import
circle. A source is a graph as the conversion reads it: streams of edges and feature rows, with labels and splits. A
relation is an edge type. A link table lists edges to predict. The receipt is a conversion's list of the data that the
conversion found and used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.links.link_rows import array_tables
from gloader.convert.options import NO_NEIGHBOURS, NOT_USED, EdgeNames, PrepareOptions, edge_shares
from gloader.convert.prepare import prepare
from gloader.convert.readers.arrays import EdgeArrays, array_csc_edges, array_edges, array_features
from gloader.convert.readers.attributes import Attributes, EdgeStore, NodeStore, SavedGraph, stored_source
from gloader.convert.readers.node_arrays import count_classes, random_splits
from gloader.convert.receipt import NO_SPLIT
from gloader.convert.source import Source
from gloader.convert.task_tables import array_row_times, array_tasks
from gloader.core.fanouts import parse_relation
from gloader.core.ids import RangePart
from gloader.core.near_names import near_options
from gloader.core.units import parse_bytes
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError
from gloader.samplers import CscGraph
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    from numpy.typing import NDArray

    from gloader.convert.keyed_graph import KeyedGraph
    from gloader.convert.options import LabelsAs
    from gloader.convert.source import AnySource, EdgeStream
    from gloader.types import Relation


# Names of the edge columns: keys in the arrays of `Dataset.to_numpy`, and keywords of the functions here.
WEIGHTS: Final = "edge_weight"
EDGE_FEATURES: Final = "edge_features"
EDGE_TIMES: Final = "edge_time"
# The edge columns' names in messages.
_COLUMN_TEXTS: Final = {WEIGHTS: "weights", EDGE_FEATURES: "edge features", EDGE_TIMES: "edge times"}
# The splits, each with its mask's name in PyG and DGL.
MASKS = (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask"))
_LOG = logging.getLogger(__name__)
# Keywords that ``write_...`` functions take only in their ``**`` arguments: arrays, splits, and options of the
# conversion. For a misspelled keyword, `near_options` suggests one of them.
_TOPOLOGY = ("edge_index", "indptr", "indices", "edge_weight")
_COLUMNS = (EDGE_FEATURES, EDGE_TIMES)
_SPLITS = ("train", "valid", "test")
_LABELS = ("labels_as", "label_names")
_OPTIONS = (*_LABELS, "memory_budget", *PrepareOptions.__dataclass_fields__)
_TABLES = ("links", "tables", "row_time")
_OF_HETERO = (*_SPLITS, "seed", "name", "num_classes", "feature_dtype", *_TABLES, *_OPTIONS)


def tensor_of(array: NDArray[Any]) -> Any:
    """Return an array as a tensor. A read-only array is copied, because torch has no read-only tensors."""
    import torch

    return torch.from_numpy(array) if array.flags.writeable else torch.tensor(array)


def mask(ids: NDArray[np.int64], num_nodes: int) -> NDArray[np.bool_]:
    """Return node ``ids`` as a mask (N,). Pure."""
    is_in = np.zeros(num_nodes, dtype=np.bool_)
    is_in[ids] = True
    return is_in


def _counts(
    features: Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]],
    edges: Mapping[Relation, NDArray[Any]],
) -> dict[str, int]:
    """Return each type's number of nodes: the number of rows in its arrays, or else its largest id plus one."""
    # Arrays of a wrong shape are not refused here, because the reader refuses them later with a clear message.
    counts = {
        name: np.size(array, 0) for name, array in (*labels.items(), *features.items()) if np.ndim(array)
    }
    needed: dict[str, int] = {}
    for (source, _, destination), pair in edges.items():
        ends = pair if pair.ndim == 2 and pair.dtype.kind in "iu" else ()
        # The lengths differ if ``pair`` is malformed: then there are no ids, or other than two rows.
        for node_type, ids in zip((source, destination), ends, strict=False):
            needed[node_type] = max(needed.get(node_type, 0), int(ids.max(initial=-1)) + 1)
    return counts | {name: count for name, count in needed.items() if name not in counts}


def _require_known(what: str, kind: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise GraphError if an array is given for a type or relation that is not ``known``.

    The message has ``what``, such as "features", and ``kind``, such as "node type".
    """
    for name in given:
        if name not in known:
            raise GraphError(f"{what} are given for {kind} {name!r}; there are {', '.join(map(repr, known))}")


def _edge_store(relation: Relation, pair: NDArray[Any], arrays: Mapping[str, NDArray[Any]]) -> EdgeStore:
    """Return a relation's edges: the ends ``pair`` (2, E), and its columns in ``arrays``."""
    where = f"relation {relation_text(relation)}"
    edges = array_edges(pair, where=where, weight=arrays.get(WEIGHTS))
    columns = given_columns(arrays, where=where, num_edges=edges.num_edges)
    # `EdgeArrays.timed` joins the edge times, if any, to the stream of edges.
    return EdgeStore(relation=relation, edges=columns.timed(edges), features=columns.feature_rows())


def given_columns(arrays: Mapping[str, NDArray[Any]], *, where: str, num_edges: int | None) -> EdgeArrays:
    """Return the edge features and times in ``arrays``, whose keys are `EDGE_FEATURES` and `EDGE_TIMES`.

    ``where`` names the arrays in messages. ``num_edges`` is the number in the stream of edges. None, an unknown number,
    counts as 0, so that no features or times are accepted.

    Raises
    ------
    ShapeError
        There is not exactly one row, or one time, per edge.
    """
    names, num_edges = EdgeNames(time=EDGE_TIMES, features=EDGE_FEATURES), num_edges or 0
    attributes = Attributes(arrays=arrays, where=where)
    return EdgeArrays(
        weight=None,
        times=attributes.edge_times(names, num_edges=num_edges),
        # No usual names are passed: only the key EDGE_FEATURES counts.
        features=attributes.edge_features(names, (), num_edges=num_edges),
        where=where,
    )


@near_options("Dataset.from_numpy", (*_TOPOLOGY, *_COLUMNS, *_SPLITS, *_TABLES, *_OPTIONS))
def write_numpy(
    path: str | os.PathLike[str],
    *,
    features: NDArray[Any],
    labels: NDArray[Any] | None = None,
    num_classes: int | None = None,
    seed: int = 0,
    **arrays_and_options: Any,
) -> None:
    """Write arrays as a dataset directory at ``path``.

    The parameters from ``edge_index`` on are keywords of ``arrays_and_options``.

    Parameters
    ----------
    path : the folder to make
    features : (N, F) real numbers, may be memory-mapped
    labels : (N,) classes, -1 or NaN where unknown, or values to predict, (N,) with fractions or (N, k), NaN where
        unknown; optional with link tables
    num_classes : number of classes. By default, the largest label plus one
    seed : seed for random splits
    edge_index : (2, E) sources and destinations, an alternative to ``indptr`` and ``indices``
    indptr, indices : (N + 1,) and (E,), each node's in-neighbours
    edge_weight : (E,) real numbers, at least 0. By default, edges are unweighted
    edge_features : (E, F_e) real numbers in edge order, may be memory-mapped
    edge_time : (E,) int64 seconds or datetime64; each node's in-edges are stored in time order
    train, valid, test : ids or masks, all three or none. Without them, labelled nodes are split 60/20/20 at random
    labels_as : "classes" or "values" for labels (N,); see `gloader.convert.readers.node_arrays.to_labels`
    label_names : names of the classes, or of the k columns
    links : link tables by name. Each is a mapping with "edge_index" (2, n) and optional "labels" (n,), "times" (n,) and
        "negatives" (n, k) destinations
    tables : task tables by name, such as "churn.train", whose rows are to be predicted. Each is a mapping with "nodes"
        (n,) and optional "times" (n,) in seconds, "labels" (n,) or (n, k), "weights" (n,), "kind" of the labels
        ("classes", "binary", "multilabel" or "values"), "names" and "num_classes"
    row_time : (N,) int64 seconds, -2**63 where there is none, or datetime64, the time of each node
    edge_split : shares for train, valid and test, such as (0.8, 0.1, 0.1); ``seed`` decides each edge's part
    ranges : "0/4" or (0, 4) to write only the first quarter of each matrix's rows. By default, all rows are written
    symmetrize, self_loops, deduplicate, dtype, allow_nan, missing, order, edge_split_by, overwrite : fields of
        `PrepareOptions`
    memory_budget : memory for the conversion, such as "4GB". By default, half of the free memory

    Raises
    ------
    TypeError
        An option is unknown.
    ConfigError
        Neither or both topology forms are given.
    SourceError, ShapeError, GraphError, BudgetError, StoreExistsError, StoreWriteError
        As `gloader.convert.prepare.prepare`.
    """
    times = arrays_and_options.pop("row_time", None)
    # All other keywords are options. The preparation refuses unknown options.
    arrays = {name: arrays_and_options.pop(name, None) for name in (*_TOPOLOGY, *_COLUMNS, *_SPLITS)}
    # `Attributes` finds arrays by PyG's and OGB's names, such as "train_idx", which takes both ids and masks.
    given = {"x": features, "y": labels} | {f"{name}_idx": arrays[name] for name in _SPLITS}
    attributes = Attributes(
        arrays={name: np.asanyarray(array) for name, array in given.items() if array is not None},
        where="from_numpy",
    )
    rows = attributes.features("x")
    classes = attributes.labels(
        "y",
        num_nodes=len(rows),
        needs_labels=needs_labels(arrays_and_options),
        labels_as=take_labels_as(arrays_and_options),
    )
    edges = _edges(arrays, num_nodes=len(rows))
    columns = given_columns(
        {name: np.asanyarray(arrays[name]) for name in _COLUMNS if arrays[name] is not None},
        where="from_numpy",
        num_edges=edges.num_edges,
    )
    source = Source(
        name=Path(path).name,
        origin="numpy",
        num_nodes=len(rows),
        num_classes=count_classes(classes) if num_classes is None else num_classes,
        edges=columns.timed(edges),
        edge_features=columns.feature_rows(),
        features=array_features(rows),
        labels=classes,
        splits=attributes.splits(len(rows)) or random_splits(classes, seed=seed),
        links=array_tables(arrays_and_options.pop("links", None) or {}),
        tables=array_tasks(arrays_and_options.pop("tables", None) or {}),
        row_times=None if times is None else array_row_times(times, where="from_numpy: row_time"),
    )
    _write(source, path, arrays_and_options, seed=seed)


@near_options("Dataset.from_numpy_hetero", _OF_HETERO)
def write_hetero(
    path: str | os.PathLike[str],
    *,
    edges: Mapping[Relation, NDArray[Any]] | Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]] | None = None,
    num_nodes: Mapping[str, int] | None = None,
    features: Mapping[str, NDArray[Any]] | None = None,
    edge_weight: Mapping[Relation, NDArray[Any]] | Mapping[str, NDArray[Any]] | None = None,
    edge_features: Mapping[Relation, NDArray[Any]] | Mapping[str, NDArray[Any]] | None = None,
    edge_time: Mapping[Relation, NDArray[Any]] | Mapping[str, NDArray[Any]] | None = None,
    **splits_and_options: Any,
) -> None:
    """Write a graph with several types as a dataset directory at ``path``.

    The order of types and relations matters. The parameters from ``train`` on are keywords of ``splits_and_options``.

    Parameters
    ----------
    path : the folder to make
    edges : (2, E) sources and destinations by relation, with ids within the types. A relation is (source type, name,
        destination type) or "source:name:destination"
    labels : labels in one type, as in `write_numpy`; optional with link tables
    num_nodes : number of nodes by type. By default, the number of labels or feature rows, or the largest id plus one
    features : (N, F) real numbers by type, may be memory-mapped; optional for each type
    edge_weight : (E,) real numbers, at least 0, by relation; optional for each relation
    edge_features : (E, F_e) real numbers by relation; optional for each relation
    edge_time : (E,) int64 seconds or datetime64 by relation; optional for each relation
    train, valid, test : ids or masks in the labelled type, all three or none. Without them, labelled nodes are split
        60/20/20 at random
    num_classes : number of classes. By default, the largest label plus one
    seed : seed for random splits
    labels_as, label_names : as in `write_numpy`
    name : a short display name. By default, the folder's name
    feature_dtype : the stored dtype: float32, float16, bfloat16 or int8
    add_reverse : add (b, "rev_" + r, a) for each relation (a, r, b) without a reverse, after all others
    links : link tables by name; see `write_numpy`. With several relations, each has its "relation", and optionally its
        "reverse" relation
    tables : task tables by name; see `write_numpy`. Each has the "type" of its nodes
    row_time : (N,) times of the nodes by type; see `write_numpy`
    edge_split : shares for train, valid and test, which divide the edges of ``edge_split_relation``, a relation or its
        name
    reverse : reverse relations, such as {"buys": "bought_by"}. They lose the held-out edges too, which they would
        otherwise reveal to the model. A relation that is named rev_NAME, or that holds the same pairs in the other
        direction, is found without this
    symmetrize : relations within a type, or their names, that store both directions of each edge once. True means all
        relations within a type
    ranges, memory_budget : as in `write_numpy`
    deduplicate, allow_nan, missing, edge_split_by, overwrite : fields of `PrepareOptions`

    Raises
    ------
    GraphError
        A relation, features or labels name an unknown type, or an id is outside its type's range.
    ShapeError
        There is not exactly one feature row, label, weight or time per node or edge.
    SourceError
        Not exactly one type has labels, a label is not a class, or the splits are malformed.
    TypeError
        An option is unknown.
    ConfigError
        A relation to symmetrize is not within one type.
    BudgetError, StoreExistsError, StoreWriteError
        As `gloader.convert.prepare.prepare`.
    """
    options = {"seed": 0, **splits_and_options}
    if "feature_dtype" in options:
        options["dtype"] = options.pop("feature_dtype")
    splits = {f"{name}_idx": options.pop(name, None) for name in _SPLITS}
    seed, name = options.pop("seed"), options.pop("name", Path(path).name)
    num_classes = options.pop("num_classes", None)
    given, classes = features or {}, labels or {}  # both by node type
    pairs = {parse_relation(relation): np.asanyarray(pair) for relation, pair in edges.items()}
    # For each edge column, such as the weights, its array by relation.
    columns = {
        column: {parse_relation(relation): np.asanyarray(array) for relation, array in (arrays or {}).items()}
        for column, arrays in (
            (WEIGHTS, edge_weight),
            (EDGE_FEATURES, edge_features),
            (EDGE_TIMES, edge_time),
        )
    }
    counts = _counts(given, classes, pairs) if num_nodes is None else dict(num_nodes)
    times = options.pop("row_time", None) or {}
    _require_known("row times", "node type", times, counts)
    _require_known("features", "node type", given, counts)
    _require_known("labels", "node type", classes, counts)
    texts = [relation_text(relation) for relation in pairs]
    for column, arrays in columns.items():
        _require_known(_COLUMN_TEXTS[column], "relation", [relation_text(each) for each in arrays], texts)
    source = stored_source(
        {
            node_type: _node_store(node_type, count, given, classes, splits)
            for node_type, count in counts.items()
        },
        [
            _edge_store(
                relation,
                pair,
                {column: arrays[relation] for column, arrays in columns.items() if relation in arrays},
            )
            for relation, pair in pairs.items()
        ],
        SavedGraph(
            name=name,
            origin="numpy",
            where="from_numpy_hetero",
            seed=seed,
            needs_labels=bool(labels) or needs_labels(options),
            labels_as=take_labels_as(options),
        ),
    )
    # The receipt gets no notes on the roles of columns, because the user gave each array under the keyword of its role.
    source = replace(
        source,
        nodes=tuple(
            replace(each, row_times=array_row_times(times[each.name], where=f"row_time[{each.name!r}]"))
            if each.name in times
            else each
            for each in source.nodes
        ),
        links=array_tables(options.pop("links", None) or {}),
        tables=array_tasks(options.pop("tables", None) or {}),
        column_notes=(),
    )
    _write(source, path, options, num_classes=num_classes, seed=seed)


def _node_store(
    node_type: str,
    num_nodes: int,
    features: Mapping[str, NDArray[Any]],
    labels: Mapping[str, NDArray[Any]],
    splits: Mapping[str, NDArray[Any] | None],
) -> NodeStore:
    """Return one type's features and labels. The splits belong to the type with labels."""
    given = {"x": features.get(node_type), "y": labels.get(node_type)}
    given |= splits if node_type in labels else {}
    where = f"node type {node_type!r}"
    arrays = {key: np.asanyarray(array) for key, array in given.items() if array is not None}
    for key, text in (("x", "features"), ("y", "labels")):
        if key in arrays and arrays[key].shape[:1] != (num_nodes,):
            raise ShapeError(f"{where} has {num_nodes} nodes, and {text} of shape {arrays[key].shape}")
    return NodeStore(num_nodes=num_nodes, arrays=Attributes(arrays=arrays, where=where))


@near_options("Dataset.from_pyg", (*_COLUMNS, *_OPTIONS))
def write_pyg(
    data: Any, path: str | os.PathLike[str], *, num_classes: int | None = None, seed: int = 0, **options: Any
) -> None:
    """Write a `torch_geometric.data.Data` or ``HeteroData`` as a dataset directory.

    Parameters
    ----------
    data : the data with x, edge_index or adj_t, y and masks, and optional edge_weight. With several types, any type may
        have x, and one type has y and masks. Without masks, labelled nodes are split 60/20/20 by ``seed``. The log
        reports such a split, and the parts of ``data`` that the dataset does not have
    path : the folder to make
    num_classes, seed, options : as in `write_numpy`, but ``edge_features`` and ``edge_time`` are names of edge
        attributes. The defaults are edge_attr, unless it is a weight, and edge_time. "none" leaves them out

    Raises
    ------
    GloaderError
        As `write_numpy`.
    """
    from gloader.convert.sources.pyg import pyg_source

    # The tensors belong to the caller, so they do not count as the conversion's memory (``is_mapped``).
    source = pyg_source(data, _saved(path, "pyg", "data", options, seed=seed), is_mapped=True)
    _write(source, path, options, num_classes=num_classes, seed=seed)


@near_options("Dataset.from_dgl", (*_COLUMNS, *_OPTIONS))
def write_dgl(
    graph: Any, path: str | os.PathLike[str], *, num_classes: int | None = None, seed: int = 0, **options: Any
) -> None:
    """Write a `dgl.DGLGraph` as a dataset directory.

    Parameters
    ----------
    graph : the graph with feat, label and masks, and optional edge weights. With several types, any type may have feat,
        and one type has label and masks
    path : the folder to make
    num_classes, seed, options : as in `write_numpy`, but ``edge_features`` and ``edge_time`` are names of edge data.
        The defaults are feat and edge_time. "none" leaves them out

    Raises
    ------
    GloaderError
        As `write_numpy`.
    """
    from gloader.convert.sources.dgl import DglGraph

    if not hasattr(graph, "is_homogeneous"):
        raise SourceError(f"graph holds a {type(graph).__name__}; expected a dgl.DGLGraph")
    source = DglGraph.of(graph.cpu()).source(_saved(path, "dgl", "graph", options, seed=seed))
    _write(source, path, options, num_classes=num_classes, seed=seed)


def needs_labels(options: Mapping[str, Any]) -> bool:
    """True if no option makes link tables or task tables, so that the dataset's task needs node labels. Pure."""
    return not any(options.get(key) for key in ("links", "tables", "edge_split", "edge_tables"))


def _saved(
    path: str | os.PathLike[str], origin: str, where: str, options: dict[str, Any], *, seed: int
) -> SavedGraph:
    """Return the facts about a PyG or DGL graph that its reader needs.

    Parameters
    ----------
    path : the dataset's folder, whose name is the dataset's name
    origin, where : the library and the argument, for the dataset's record and for messages
    options : the caller's options. The names of the edge columns are removed from them
    seed : seed of random splits
    """
    return SavedGraph(
        name=Path(path).name,
        origin=origin,
        where=where,
        seed=seed,
        edge_names=EdgeNames(time=options.pop(EDGE_TIMES, None), features=options.pop(EDGE_FEATURES, None)),
        needs_labels=needs_labels(options),
        labels_as=take_labels_as(options),
    )


def take_labels_as(options: dict[str, Any]) -> LabelsAs | None:
    """Remove "labels_as" from the caller's ``options``, and return it. Raises ConfigError for an unknown value."""
    given: LabelsAs | None = options.pop("labels_as", None)
    if given not in (None, "classes", "values"):
        raise ConfigError(f"labels_as={given!r}: it must be 'classes' or 'values', or left out")
    return given


def to_pyg(arrays: Mapping[str, Any]) -> Any:
    """Return the arrays of `Dataset.to_numpy` as a `torch_geometric.data.Data` or ``HeteroData``, with masks.

    Raises
    ------
    MissingDependencyError
        PyG is not installed.
    """
    import torch

    from gloader.convert.sources.pyg import import_data

    # Only the arrays of a graph with named types have the key "num_nodes".
    typed, has_names = _by_type(arrays), "num_nodes" in arrays
    # `import_data` returns the class ``Data`` and raises if PyG is missing, so it is called in both cases.
    data = import_data(f"to_pyg returns a {'HeteroData' if has_names else 'Data'} of torch-geometric")()
    if has_names:
        from torch_geometric.data import HeteroData

        data = HeteroData()

    def store(key: Any) -> Any:
        """Return PyG's store for the arrays of a node type or a relation; `Data` has only one, itself."""
        return data[key] if has_names else data

    for node_type, count in typed["num_nodes"].items():
        if has_names:
            # The number is always set, because a type may have neither features nor edges.
            data[node_type].num_nodes = count
        if node_type in typed["features"]:
            store(node_type).x = torch.from_numpy(typed["features"][node_type])
    for node_type, labels in typed["labels"].items():
        # The labels are the dataset's own read-only array, so they are copied. For read-only edge columns, `tensor_of`
        # does the same. All other arrays are new.
        store(node_type).y = torch.tensor(labels)
        for name, key in MASKS:
            store(node_type)[key] = torch.from_numpy(mask(arrays[name], len(labels)))
    for relation, pair in typed["edges"].items():
        store(relation).edge_index = torch.from_numpy(pair)
        for name, key in ((WEIGHTS, "edge_weight"), (EDGE_FEATURES, "edge_attr"), (EDGE_TIMES, "edge_time")):
            if relation in typed.get(name, ()):
                store(relation)[key] = tensor_of(typed[name][relation])
    return data


def to_dgl(arrays: Mapping[str, Any]) -> Any:
    """Return the arrays of `Dataset.to_numpy` as a `dgl.DGLGraph`, with masks, and with int64 ids as usual in DGL.

    DGL puts a heterogeneous graph's types and relations into alphabetical order.

    Raises
    ------
    MissingDependencyError
        DGL is not installed.
    """
    import torch

    from gloader.convert.sources.dgl import quiet_dgl, to_graph

    typed = _by_type(arrays)
    if has_names := "num_nodes" in arrays:
        with quiet_dgl("converting to DGL needs") as dgl:
            graph = dgl.heterograph(
                {relation: tuple(map(torch.from_numpy, pair)) for relation, pair in typed["edges"].items()},
                num_nodes_dict=dict(typed["num_nodes"]),
            )
    else:
        graph = to_graph(CscGraph(indptr=arrays["indptr"], indices=arrays["indices"], validate=False))
    # DGL's names for the only type and the only relation are "_N" and "_E".
    for node_type, rows in typed["features"].items():
        graph.nodes[node_type if has_names else "_N"].data["feat"] = torch.from_numpy(rows)
    for node_type, labels in typed["labels"].items():
        data = graph.nodes[node_type if has_names else "_N"].data
        data["label"] = torch.tensor(labels)
        for name, key in MASKS:
            data[key] = torch.from_numpy(mask(arrays[name], len(labels)))
    for name, key in ((WEIGHTS, "weight"), (EDGE_FEATURES, "feat"), (EDGE_TIMES, "edge_time")):
        for relation, array in typed.get(name, {}).items():
            graph.edges[relation if has_names else "_E"].data[key] = tensor_of(array)
    return graph


def _by_type(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arrays of `Dataset.to_numpy` by node type and relation. Pure.

    For a graph of one type, these are under the names `NODE` and `EDGE`, and CSC becomes pairs of ids (2, E).
    """
    if "num_nodes" in arrays:
        return arrays
    num_nodes = len(arrays["labels"])
    destinations = np.repeat(np.arange(num_nodes), np.diff(arrays["indptr"]))
    columns = {name: {EDGE: arrays[name]} for name in (WEIGHTS, *_COLUMNS) if name in arrays}
    return {
        "num_nodes": {NODE: num_nodes},
        "features": {NODE: arrays["features"]},
        "labels": {NODE: arrays["labels"]},
        "edges": {EDGE: np.stack([arrays["indices"].astype(np.int64), destinations])},
        **columns,
    }


def _edges(arrays: Mapping[str, NDArray[Any] | None], *, num_nodes: int) -> EdgeStream:
    """Return the edges, with weights, in one of the two topology forms of `write_numpy`. Raises as `write_numpy`."""
    edge_index, indptr, indices, weight = (arrays[name] for name in _TOPOLOGY)
    if edge_index is not None and indptr is None and indices is None:
        return array_edges(edge_index, where="edge_index", weight=weight)
    if edge_index is None and indptr is not None and indices is not None:
        if indptr.shape != (num_nodes + 1,):
            raise ShapeError(
                f"indptr has shape {indptr.shape}; features have {num_nodes} rows, so it must be ({num_nodes + 1},)"
            )
        return array_csc_edges(indptr, indices, where="from_numpy", weight=weight)
    raise ConfigError("give the topology as edge_index=, or as indptr= and indices=")


def _write(
    source: AnySource,
    path: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    num_classes: int | None = None,
    seed: int = 0,
) -> None:
    """Write the source as a dataset, as `write_source`.

    ``num_classes`` replaces the source's number of classes, unless it is None. The option "label_names" replaces the
    source's names.
    """
    settings = dict(options)
    if num_classes is not None:
        source = replace(source, num_classes=num_classes)
    if (names := settings.pop("label_names", None)) is not None:
        source = replace(source, label_names=tuple(map(str, names)))
    write_source(source, path, settings, seed=seed)


def write_source(
    source: AnySource | KeyedGraph,
    path: str | os.PathLike[str],
    options: Mapping[str, Any],
    *,
    seed: int = 0,
) -> None:
    """Parse the values of ``options``, write the source as a dataset, and log its receipt.

    Parameters
    ----------
    source : the graph
    path : the folder to make
    options : fields of `PrepareOptions`, as the user wrote them, and optionally "memory_budget"
    seed : the default for ``edge_split_seed``, from which a random edge split follows
    """
    settings = dict(options)
    if (budget := settings.pop("memory_budget", None)) is not None:
        settings["memory_budget_bytes"] = parse_bytes(budget)
    if not isinstance(relations := settings.get("symmetrize", False), bool):
        settings["symmetrize"] = tuple(
            map(_name_of, [relations] if isinstance(relations, str) else relations)
        )
    if settings.get("edge_split_relation") is not None:
        settings["edge_split_relation"] = _name_of(settings["edge_split_relation"])
    if settings.get("ranges") is not None:
        settings["ranges"] = RangePart.parse(settings["ranges"])
    if settings.get("edge_split") is not None:
        settings["edge_split"] = edge_shares(settings["edge_split"])
        settings.setdefault("edge_split_seed", seed)
    if isinstance(reverse := settings.get("reverse"), Mapping):
        settings["reverse"] = tuple(
            (_name_of(relation), _name_of(back)) for relation, back in reverse.items()
        )
    report = prepare(source, Path(path), PrepareOptions(**settings))
    for name, text in report.receipt.items():
        # Unused input, nodes without neighbours and a random split are warnings. Other lines are information.
        is_warning = name in {NOT_USED, NO_NEIGHBOURS} or (name == "split" and NO_SPLIT in text)
        _LOG.log(logging.WARNING if is_warning else logging.INFO, "%s: %s: %s", path, name, text)


def _name_of(relation: str | Relation) -> str:
    """Return a relation as text, or its name unchanged. Raises `ConfigError` for other values. Pure."""
    return relation if isinstance(relation, str) else relation_text(parse_relation(relation))
