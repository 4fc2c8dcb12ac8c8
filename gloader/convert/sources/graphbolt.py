"""The source ``graphbolt:DIR``: a raw data folder of DGL's GraphBolt, described by its ``metadata.yaml``.

The description lists node types with their numbers of nodes, and for each relation a file of edges: CSV with two
columns, or a numpy array (2, E). Features are numpy or torch files. A task has training, validation and test sets of
nodes with labels, or of node pairs, which become link tables (DGL's "YAML specification" of ``OnDiskDataset``). The
folder ``preprocessed``, which GraphBolt writes, is never read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.links.link_rows import array_rows
from gloader.convert.readers.arrays import EdgeArrays
from gloader.convert.readers.attributes import (
    DGL_NAMES,
    Attributes,
    EdgeStore,
    NodeStore,
    SavedGraph,
    one_type_source,
    stored_source,
)
from gloader.convert.readers.column_names import WEIGHT_NAMES
from gloader.convert.readers.csv_table import CsvTable
from gloader.convert.readers.file_streams import pair_file_edges
from gloader.convert.readers.node_arrays import (
    no_labels,
    require_node_memory,
    require_split_size,
    to_ids,
    to_labels,
)
from gloader.convert.readers.npy_file import NpyFile
from gloader.convert.readers.table_streams import TableEdges
from gloader.convert.source import LinkSource
from gloader.convert.sources.graphbolt_file import Metadata, type_of
from gloader.core.malformed import shown
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ShapeError, SourceError
from gloader.types import EDGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.source import AnySource, EdgeStream
    from gloader.convert.sources.graphbolt_file import SeedSet
    from gloader.types import IdArray, Relation


# Memory for pairs whose negatives stand between them: order, positions and two columns of ids.
_PAIR_COPIES: Final = 6
_KNOWN_KEYS: Final = frozenset({"dataset_name", "graph", "feature_data", "tasks"})


def open_graphbolt(argument: str, options: SourceOptions) -> AnySource:
    """Open ``graphbolt:argument``, the raw folder of an ``OnDiskDataset``.

    Raises
    ------
    SourceError
        The description or a file is missing or malformed, or not exactly one node type has labels.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    BudgetError
        Arrays with an entry per node take more than the memory budget.
    """
    metadata = Metadata.read(Path(argument).expanduser())
    counts, features = metadata.types(), metadata.features("node")
    tasks = metadata.sets()
    nodes = {
        name: _node_arrays(metadata, name, count, features.pop(name, {})) for name, count in counts.items()
    }
    for name in features:
        raise SourceError(
            f"{metadata.where('feature_data')} names the type {shown(name)}; types are {_listed(counts)}"
        )
    node_tasks = [[each for each in task if not each.has_pairs] for task in tasks]
    chosen = next(filter(None, node_tasks), [])
    resident, num_classes = 0, _num_classes(metadata, node_tasks)
    for name in {each.type: None for each in chosen}:
        if name not in nodes:
            raise SourceError(f"{chosen[0].where} names the type {shown(name)}; types are {_listed(counts)}")
        sets = [each for each in chosen if each.type == name]
        nodes[name], num_bytes = _with_task(nodes[name], sets, counts[name], options.budget_bytes)
        resident += num_bytes
    edges, reading_bytes = _edges(metadata, options)
    links = tuple(_links(tasks, options.budget_bytes))
    unused = [
        f"{name} of {each.part} of another task"
        for task in node_tasks
        if task is not chosen
        for each in task
        for name in each.arrays
    ]
    unused += [f"{key} of {metadata.path.name}" for key in metadata.content if key not in _KNOWN_KEYS]
    saved = SavedGraph(
        name=str(metadata.content.get("dataset_name") or metadata.folder.resolve().name),
        origin=f"graphbolt:{argument}",
        where=metadata.path,
        seed=options.seed,
        edge_names=options.edge_names,
        needs_labels=options.needs_labels and not links,
    )
    source: AnySource
    if list(counts) == [None]:
        source = one_type_source(
            nodes[None], edges[0], saved, names=DGL_NAMES, num_nodes=counts[None], resident_bytes=resident
        )
    else:
        stores = {
            str(name): NodeStore(num_nodes=counts[name], arrays=arrays) for name, arrays in nodes.items()
        }
        source = stored_source(stores, edges, saved, names=DGL_NAMES, resident_bytes=resident)
    return replace(
        source,
        links=links,
        num_classes=max(num_classes, source.num_classes),
        resident_bytes=source.resident_bytes + reading_bytes,
        unused=(*source.unused, *unused),
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the description, and every file that it names. Raises SourceError."""
    del options
    return Metadata.read(Path(argument).expanduser()).files()


def _listed(types: Mapping[str | None, int]) -> str:
    """Return the types' names, for messages."""
    return ", ".join(map(str, types))


def _node_arrays(
    metadata: Metadata, name: str | None, count: int, arrays: dict[str, NDArray[Any]]
) -> Attributes:
    """Return the arrays of a node type. Raises ShapeError for an array without one row per node."""
    where = metadata.where("feature_data") + ("" if name is None else f" of {name}")
    for key, array in arrays.items():
        if array.shape[:1] != (count,):
            raise ShapeError(f"{where}: {key} has shape {array.shape} for {count} nodes")
    # GraphBolt reads features (N,) as (N, 1).
    rows = {
        key: array.reshape(-1, 1) if array.ndim == 1 and key in DGL_NAMES.features else array
        for key, array in arrays.items()
    }
    return Attributes(arrays=rows, where=where)


def _num_classes(metadata: Metadata, node_tasks: Sequence[Sequence[SeedSet]]) -> int:
    """Return the number of classes of the first task with nodes, or 0 if it is not given."""
    tasks = metadata.entries(metadata.content, "tasks", "tasks")
    task = next((task for task, sets in zip(tasks, node_tasks, strict=True) if sets), {})
    count = task.get("num_classes")
    return count if type(count) is int else 0


def _with_task(
    nodes: Attributes, sets: Sequence[SeedSet], num_nodes: int, budget_bytes: int
) -> tuple[Attributes, int]:
    """Return a node type's arrays with the labels and splits in a task's sets, and the bytes of the new arrays."""
    require_node_memory(num_nodes, budget_bytes, sets[0].where)
    labels = no_labels(num_nodes)
    parts: dict[str, list[IdArray]] = {}
    for each in sets:
        require_split_size(len(each.seeds), num_nodes, each.where)
        ids = to_ids(np.asarray(each.seeds), first=0, where=each.where)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
            raise SourceError(
                f"{each.where} has nodes {ids.min()} to {ids.max()}; nodes are 0..{num_nodes - 1}"
            )
        parts.setdefault(each.part, []).append(ids)
        if "labels" in each.arrays:
            values = to_labels(np.asarray(each.arrays["labels"]), where=f"{each.where}, labels")
            if len(values) != len(ids):
                raise ShapeError(f"{each.where} has {len(values)} labels for {len(ids)} nodes")
            labels[ids] = values
    added = {f"{part}_idx": np.concatenate(ids) for part, ids in parts.items()}
    if any("labels" in each.arrays for each in sets):
        added["label"] = labels
    # Node data with a name of labels or splits stays in the list, so that the receipt names it as unused.
    hidden = {*added, *(DGL_NAMES.labels if "label" in added else ())}
    arrays = {
        f"{name} (feature_data)" if name in hidden else name: array for name, array in nodes.arrays.items()
    }
    return replace(nodes, arrays=arrays | added), sum(array.nbytes for array in added.values())


def _edges(metadata: Metadata, options: SourceOptions) -> tuple[list[EdgeStore], int]:
    """Return the edges of each relation, and the bytes of memory for reading the largest file."""
    data, stores, reading = metadata.features("edge"), list[EdgeStore](), 0
    types = metadata.types()
    for entry in metadata.entries(metadata.graph, "edges", "graph.edges"):
        name = type_of(entry)
        where = metadata.where("graph.edges") + ("" if name is None else f" of {name}")
        arrays = Attributes(arrays=data.pop(name, {}), where=where)
        stream = _edge_file(metadata, entry, where, must_count=bool(arrays.arrays))
        reading = max(reading, stream.reading_bytes)
        count = stream.num_edges or 0
        columns = EdgeArrays(
            weight=arrays.weights(*WEIGHT_NAMES, "edge_weight", num_edges=count),
            times=arrays.edge_times(options.edge_names, num_edges=count),
            features=arrays.edge_features(options.edge_names, DGL_NAMES.features, num_edges=count),
            where=where,
        )
        stores.append(
            EdgeStore(
                relation=_relation(name, types, where),
                edges=columns.timed(columns.weighted(stream)),
                features=columns.feature_rows(),
                arrays=arrays,
                names=arrays.of_edges(count),
            )
        )
    if not stores or (list(types) == [None] and len(stores) > 1):
        raise SourceError(
            f"{metadata.where('graph.edges')} lists {len(stores)} files of edges; give one for each relation"
        )
    for name in data:
        raise SourceError(
            f"{metadata.where('feature_data')} names the relation {shown(name)}, which graph.edges lacks"
        )
    return stores, reading


def _edge_file(metadata: Metadata, entry: Mapping[str, Any], where: str, *, must_count: bool) -> EdgeStream:
    """Open a relation's file. ``must_count`` is True if edges have data, whose rows are compared with the edges."""
    path, form = metadata.file(entry, where), entry.get("format")
    if form == "numpy":
        return pair_file_edges(NpyFile.open(path), prefers_rows=False)
    if form != "csv":
        raise SourceError(f"{where} has the format {shown(form)}; it must be csv or numpy")
    if not path.is_file():
        raise SourceError(f"{where}: {path} is missing, or is not a file")
    table = CsvTable.open(path)
    if len(table.names) > 2:
        raise SourceError(
            f"{path} has {len(table.names)} columns; GraphBolt's edges are two, source and destination"
        )
    return TableEdges.open(table, num_edges=table.count_rows() if must_count else None).stream()


def _relation(name: str | None, types: Mapping[str | None, int], where: str) -> Relation:
    """Return the relation in a text such as "author:writes:paper". Raises SourceError for an unknown type."""
    if name is None and list(types) == [None]:
        return EDGE
    parts = str(name).split(":")
    if len(parts) != 3 or parts[0] not in types or parts[2] not in types:
        raise SourceError(
            f"{where}: an edge type is source:name:destination, with types among {_listed(types)}"
        )
    return parts[0], parts[1], parts[2]


def _links(tasks: Sequence[Sequence[SeedSet]], budget_bytes: int) -> list[LinkSource]:
    """Return the link tables of the first task with node pairs: a table for each part, and each relation."""
    pairs = [[each for each in task if each.has_pairs] for task in tasks]
    sets = next(filter(None, pairs), [])
    relations = list(dict.fromkeys(each.type for each in sets))
    return [
        LinkSource(
            name=each.part if len(relations) == 1 else f"{each.part}_{relations.index(each.type)}",
            rows=array_rows(where=each.where, **_link_columns(each, budget_bytes)),
            where=each.where,
            relation=each.type,
        )
        for each in sets
    ]


def _link_columns(each: SeedSet, budget_bytes: int) -> dict[str, NDArray[Any]]:
    """Return the arguments of `array_rows` for a set of pairs.

    In a set with ``indexes``, a row with label 0 is a negative of the row with label 1 and the same index. Other sets
    have negatives in ``negative_dsts``.
    """
    seeds, labels, indexes = each.seeds, each.arrays.get("labels"), each.arrays.get("indexes")
    if indexes is None or labels is None:
        columns = {"src": seeds[:, 0], "dst": seeds[:, 1]}
        if labels is not None:
            columns["label"] = labels
        if "negative_dsts" in each.arrays:
            columns["negatives"] = each.arrays["negative_dsts"].reshape(len(seeds), -1)
        return columns
    if (needed := _PAIR_COPIES * 8 * len(seeds)) > budget_bytes:
        raise BudgetError(
            f"{each.where} has {len(seeds):,} pairs with negatives between them: they take {format_bytes(needed)}, the "
            f"memory budget is {format_bytes(budget_bytes)}. Raise --memory-budget"
        )
    indexes = to_ids(np.asarray(indexes).reshape(-1), first=0, where=f"{each.where}, indexes")
    is_edge = np.asarray(labels).reshape(-1) > 0
    rows, others = np.flatnonzero(is_edge), np.flatnonzero(~is_edge)
    rows = rows[np.argsort(indexes[rows], kind="stable")]
    others = others[np.argsort(indexes[others], kind="stable")]
    per_row = len(others) // max(1, len(rows))
    is_once = bool((np.diff(indexes[rows]) > 0).all())
    if not is_once or not np.array_equal(np.repeat(indexes[rows], per_row), indexes[others]):
        raise SourceError(
            f"{each.where} has {len(others)} negative pairs for {len(rows)} edges; every index must have one pair with "
            "label 1, and equally many with label 0"
        )
    if (np.repeat(seeds[rows, 0], per_row) != seeds[others, 0]).any():
        raise SourceError(
            f"{each.where} has negative pairs with other sources than their edges; negatives are destinations"
        )
    columns = {"src": seeds[rows, 0], "dst": seeds[rows, 1]}
    return columns | ({"negatives": seeds[others, 1].reshape(len(rows), per_row)} if per_row else {})
