"""The source ``tables:DIR`` with keys: node and edge tables that a ``graph.yaml`` describes, as a `KeyedGraph`.

`open_keyed` opens every file that the description names, finds the columns and their types, and refuses a description
that does not fit its files. No rows are read, except to count those of text files. A key is a value that identifies a
node. The rows are read when the conversion numbers the keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gloader.convert.columns.specs import column_specs, kind_in
from gloader.convert.keyed_edges import KeyedTable, column_where
from gloader.convert.keyed_graph import KeyedGraph, KeyedNodes, KeyedRelation, LabelChoice
from gloader.convert.keys.values import key_kind
from gloader.convert.options import NONE
from gloader.convert.readers.column_names import listed
from gloader.convert.readers.node_tables import id_column
from gloader.convert.readers.open_table import is_table, open_table
from gloader.convert.readers.table_streams import ColumnNotes, TableEdges
from gloader.convert.source import only_labelled
from gloader.convert.sources.edge_list import (
    count_labels,
    open_edge_features,
    open_node_features,
    read_label_file,
    read_split_files,
)
from gloader.core.malformed import shown
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
    return _Opening(graph, options).graph(origin, unused)


class _Opening:
    """Opens the files of one description. ``notes`` collects the receipt's lines on their columns."""

    def __init__(self, graph: GraphYaml, options: SourceOptions) -> None:
        self._graph = graph
        self._options = options
        self._notes = ColumnNotes()
        # The tables of nodes, by type.
        self._tables: dict[str, NumberTable] = {}

    def graph(self, origin: str, unused: tuple[str, ...]) -> KeyedGraph:
        """Open all files."""
        graph, options = self._graph, self._options
        for name, entry in graph.nodes.items():
            if entry.file is not None:
                with graph.naming("nodes", name, "file"):
                    self._tables[name] = _table_of(entry.file)
        edges = {relation: self._edges(relation, entry) for relation, entry in graph.edges.items()}
        options.edge_names.require(
            has_times=...,
        )
        kinds = self._kinds(edges)
