"""The source ``tables:DIR`` with keys: node and edge tables that a ``graph.yaml`` describes, as a `KeyedGraph`.

A key is a value that identifies a node. `open_keyed` opens every file that the description names, finds the columns and
their types, and refuses a description that does not fit its files. It reads no rows, except to count those of text
files with feature columns. The conversion reads the rows, when it numbers the keys.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gloader.convert.columns.specs import column_specs, kind_in
from gloader.convert.keyed_edges import KeyedTable, column_where
from gloader.convert.keyed_graph import KeyedGraph, KeyedNodes, KeyedRelation, LabelChoice
from gloader.convert.keys.values import key_kind
from gloader.convert.readers.column_names import listed
from gloader.convert.readers.node_tables import id_column
from gloader.convert.readers.open_table import PartedTable, is_table, open_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.convert.source import only_labelled
from gloader.convert.sources.edge_files import open_edge_files, open_edge_table
from gloader.convert.sources.edge_list import (
    count_labels,
    held_bytes,
    open_node_features,
    read_label_file,
    read_split_files,
)
from gloader.core.malformed import shown
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.convert.columns.specs import ColumnSpec
    from gloader.convert.keys.values import KeyKind
    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.convert.sources.graph_yaml import EdgeEntry, GraphYaml, NodeEntry
    from gloader.types import Relation


def open_keyed(
    graph: GraphYaml, origin: str, options: SourceOptions, *, unused: tuple[str, ...]
) -> KeyedGraph:
    """Open the files of a description with keys.

    Parameters
    ----------
    graph : the description
    origin : the source as the user wrote it
    options : columns of times and features for all tables, the seed, and the memory budget
    unused : files of the folder that the description does not name

    Raises
    ------
    SourceError, ShapeError, GraphError, ConfigError
        A file is missing or malformed, lacks a column, or key columns of one type have different types. The message
        starts with the description's path and the key.
    """
    opening = _Opening(graph, options)
    tables = {
        name: opening.node_table(name, entry.file, entry.key)
        for name, entry in graph.nodes.items()
        if entry.file is not None
    }
    relations = tuple(opening.relation(relation, entry) for relation, entry in graph.edges.items())
    options.edge_names.require(
        has_times=any(each.has_times for each in relations),
        has_features=any(each.has_features for each in relations),
        there={name for each in relations for name in each.columns_there},
        where=str(graph.path),
    )
    kinds = _kinds(graph, tables, relations)
    nodes = tuple(
        opening.nodes(name, entry, tables.get(name), kinds.get(name)) for name, entry in graph.nodes.items()
    )
    nodes += tuple(KeyedNodes(name=name, kind=kinds[name]) for name in graph.unlisted)
    labelled = [each.name for each in nodes if each.is_labelled]
    # Several labelled types, or missing labels, are refused before the keys are read.
    if labelled or options.needs_labels:
        only_labelled(labelled, where=str(graph.path))
    return KeyedGraph(
        name=graph.name,
        origin=origin,
        where=str(graph.path),
        nodes=nodes,
        relations=relations,
        notes=opening.notes,
        unused=unused,
        dangling=graph.dangling or "error",
        seed=options.seed,
        needs_labels=options.needs_labels,
    )


class _Opening:
    """Opens the files of one description. ``notes`` collects the receipt's lines on their columns."""

    def __init__(self, graph: GraphYaml, options: SourceOptions) -> None:
        self.notes = ColumnNotes()
        self._graph = graph
        self._options = options

    def node_table(self, name: str, file: Path, key: str | None) -> NumberTable:
        """Open a type's table, and check that it has the column of keys."""
        graph = self._graph
        with graph.naming("nodes", name, "file"):
            if not is_table(file) and not _is_pattern_of_tables(file):
                raise SourceError(f"{file} is no table; keys and columns of nodes are in CSV or Parquet files")
            table = open_table(file)
        if key is not None and key not in table.names:
            raise SourceError(
                f"{graph.where('nodes', name, 'key')} is {shown(key)}; the columns of {file} are {listed(table.names)}"
            )
        where = f"joined by {key}" if key is not None else "row i is node i"
        self.notes.add(f"{name} nodes: the rows of {file.name}, {where}", table, [key])
        return table
