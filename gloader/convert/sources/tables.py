"""``tables:DIR``: a folder of edge tables and arrays, whose ``graph.yaml`` names node types and relations.

.. code-block:: yaml

    nodes:
      paper: {features: paper.npy, labels: labels.npy, splits: splits.npz}
      author: {num_nodes: 1200}
    edges:
      author:writes:paper: writes.parquet
      paper:cites:paper: {file: cites.csv, src: citing, dst: cited, weight: times, time: day, features: [kind, place]}
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.hetero_source import HeteroSource, NodeSource, RelationSource, only_labelled
from gloader.convert.readers.node_arrays import count_classes, no_labels, random_splits, require_node_memory
from gloader.convert.readers.part_files import is_pattern
from gloader.convert.readers.tables import TableEdges
from gloader.convert.readers.told import Told
from gloader.convert.sources.array_files import (
    count_labels,
    held_bytes,
    open_node_features,
    read_label_file,
    read_split_files,
    reading_bytes,
)
from gloader.convert.sources.graph_yaml import GRAPH_FILE, GraphYaml, NodeEntry, read_graph_yaml
from gloader.convert.sources.relation_tables import open_edge_table
from gloader.dataset.schema import MAX_NODES
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.edge_names import EdgeNames
    from gloader.convert.source import FeatureStream, Splits
    from gloader.types import IdArray, Relation

_DATA_FILES = frozenset({".npy", ".npz", ".csv", ".tsv", ".parquet"})
_CHUNK_EDGES = 1 << 18  # looked at in one go where the edges are to tell how many nodes there are


def open_tables(argument: str, options: SourceOptions) -> HeteroSource:
    """Open the folder ``argument``, as its ``graph.yaml`` describes it.

    A type's number of nodes is ``num_nodes``, or that of its features or labels, or the largest id in the edges plus
    one. Without splits, ``options.seed`` decides a random one.

    Raises
    ------
    SourceError
        The description or a file is missing or malformed; names the file and the key that names it.
    ShapeError, GraphError
        An array has the wrong shape or dtype.
    ConfigError
        No table has a column of times or features that was asked for.
    BudgetError
        The labels alone are larger than the memory budget.
    """
    graph = read_graph_yaml(Path(argument).expanduser())
    given = [name for name, entry in graph.nodes.items() if entry.labels is not None]
    if given or options.needs_labels:
        only_labelled(given, where=str(graph.path))
    told = Told()
    rows = {
        name: _features(graph, name, entry, options.budget_bytes, told)
        for name, entry in graph.nodes.items()
        if entry.features is not None
    }
    features = {name: stream for name, (stream, _) in rows.items()}
    relations = tuple(
        _relation(graph, relation, options.edge_names, options.budget_bytes, told) for relation in graph.edges
    )
    options.edge_names.require(
        has_times=any(each.edges.has_times for each in relations),
        has_features=any(each.edge_features is not None for each in relations),
        there=_edge_columns(relations),
        where=str(graph.path),
    )
    counts = _counts(graph, features, relations)
    labelled = only_labelled(
        given, otherwise=next((name for name in counts if counts[name]), None), where=str(graph.path)
    )
    require_node_memory(counts[labelled], options.budget_bytes, str(graph.path))
    labels = _labels(graph, labelled, counts[labelled], options.budget_bytes, told)
    return HeteroSource(
        name=graph.name,
        origin=f"tables:{argument}",
        nodes=tuple(
            NodeSource(
                name=name,
                num_nodes=counts[name],
                features=features.get(name),
                row_ids=rows[name][1] if name in rows else None,
            )
            for name in graph.nodes
        ),
        relations=relations,
        labelled=labelled,
        num_classes=graph.nodes[labelled].num_classes or count_classes(labels),
        labels=labels,
        splits=_splits(graph, labelled, labels, options),
        resident_bytes=sum(held_bytes(*each) for each in rows.values())
        + sum(held_bytes(each.edge_features) for each in relations)
        + reading_bytes(
            *features.values(), *(part for each in relations for part in (each.edges, each.edge_features))
        ),
        said=tuple(told.said),
        unused=(*told.unused, *_unused(graph)),
    )


def _unused(graph: GraphYaml) -> tuple[str, ...]:
    """Return the tables and arrays of the folder that the description does not name."""
    named = {
        part.resolve()
        for path in graph.files()
        for part in (path.parent.glob(path.name) if is_pattern(path) else [path])
    }
    return tuple(
        sorted(
            path.name
            for path in graph.path.parent.iterdir()
            if path.suffix in _DATA_FILES and path.is_file() and path.resolve() not in named
        )
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the description and every file that it names; raises SourceError as `open_tables`."""
    del options
    folder = Path(argument).expanduser()
    if not (folder / GRAPH_FILE).is_file():
        return []
    graph = read_graph_yaml(folder)
    return [graph.path, *graph.files()]


def _relation(
    graph: GraphYaml, relation: Relation, names: EdgeNames, budget_bytes: int, told: Told
) -> RelationSource:
    entry = graph.edges[relation]
    where = graph.where("edges", ":".join(relation))
    edges, rows = open_edge_table(entry, where=where, names=names, budget_bytes=budget_bytes, told=told)
    return RelationSource(relation=relation, edges=edges, edge_features=rows, edge_file=entry.file)


def _edge_columns(relations: tuple[RelationSource, ...]) -> set[str]:
    """Return the columns of all tables of edges besides their ends."""
    tables = [each.edges for each in relations if isinstance(each.edges, TableEdges)]
    return {name for edges in tables for name in edges.table.names if name not in (edges.src, edges.dst)}


def _features(
    graph: GraphYaml, name: str, entry: NodeEntry, budget_bytes: int, told: Told
) -> tuple[FeatureStream, IdArray | None]:
    if entry.features is None:
        raise TypeError(f"type {name!r} has no features")
    with graph.naming("nodes", name, "features"):
        return open_node_features(entry.features, budget_bytes=budget_bytes, told=told, labels=entry.labels)


def _labels(graph: GraphYaml, name: str, num_nodes: int, budget_bytes: int, told: Told) -> IdArray:
    path = graph.nodes[name].labels
    if path is None:
        return no_labels(num_nodes)
    with graph.naming("nodes", name, "labels"):
        return read_label_file(path, num_nodes=num_nodes, budget_bytes=budget_bytes, told=told)


def _splits(graph: GraphYaml, name: str, labels: IdArray, options: SourceOptions) -> Splits:
    path = graph.nodes[name].splits
    if path is None:
        return random_splits(labels, seed=options.seed)
    with graph.naming("nodes", name, "splits"):
        return read_split_files(path, num_nodes=labels.shape[0], budget_bytes=options.budget_bytes)


def _counts(
    graph: GraphYaml, features: dict[str, FeatureStream], relations: tuple[RelationSource, ...]
) -> dict[str, int]:
    """Return the number of nodes of each type."""
    counts: dict[str, int] = {}
    for name, entry in graph.nodes.items():
        said = entry.num_nodes
        rows = features[name].num_rows if name in features else None
        if said is not None and rows is not None and said != rows:
            raise ShapeError(
                f"{graph.where('nodes', name, 'num_nodes')} is {said}; {entry.features} has {rows} rows"
            )
        if said is None and rows is None and entry.labels is not None:
            with graph.naming("nodes", name, "labels"):
                rows = count_labels(entry.labels)
        found = said if said is not None else rows
        counts[name] = _largest_id(name, relations) + 1 if found is None else found
    return counts


def _largest_id(name: str, relations: tuple[RelationSource, ...]) -> int:
    """Return the largest id of a type in the edges, which are read for it; -1: there is none."""
    largest = -1
    for each in relations:
        first, _, last = each.relation
        if name not in (first, last):
            continue
        for chunk in each.edges.chunks(_CHUNK_EDGES):
            ends = [chunk.src] * (first == name) + [chunk.dst] * (last == name)
            largest = max(largest, *(int(ids.max(initial=-1)) for ids in ends))
    if largest >= MAX_NODES:
        raise SourceError(f"{name!r} nodes have ids up to {largest} in the edges; give num_nodes")
    return largest
