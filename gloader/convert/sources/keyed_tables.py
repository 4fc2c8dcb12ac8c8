"""The source ``tables:DIR`` with keys: node and edge tables that a ``graph.yaml`` describes, as a `KeyedGraph`.

A key is a value that identifies a node. `open_keyed` opens every file that the description names, finds the columns and
their types, and refuses a description that does not fit its files. It reads no rows, except to count those of text
files with feature columns. The conversion reads the rows, when it numbers the keys.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.specs import column_specs, kind_in
from gloader.convert.columns.split_column import SplitSpec
from gloader.convert.keyed_edges import KeyedTable, column_where
from gloader.convert.keyed_graph import (
    KeyedGraph,
    KeyedNodes,
    KeyedRelation,
    KeyedRows,
    KeyedTask,
    LabelChoice,
)
from gloader.convert.keys.values import key_kind
from gloader.convert.readers.column_names import id_columns, listed
from gloader.convert.readers.node_tables import id_column
from gloader.convert.readers.open_table import is_table, is_text_table, open_table
from gloader.convert.readers.table_streams import NUMBER_KINDS, ColumnNotes
from gloader.convert.source import only_labelled
from gloader.convert.sources.edge_files import open_edge_files, open_edge_table
from gloader.convert.sources.edge_list import (
    count_labels,
    open_node_features,
    read_label_file,
    read_split_files,
)
from gloader.core.malformed import shown
from gloader.dataset.schema import relation_text
from gloader.errors import GloaderError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.columns.specs import ColumnSpec
    from gloader.convert.options import LabelsAs, SourceOptions
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.convert.source import Splits
    from gloader.convert.sources.graph_yaml import EdgeEntry, GraphYaml, NodeEntry, TaskEntry
    from gloader.core.keys import KeyKind
    from gloader.types import Relation

_LABEL_KEYS: Final = ("column", "columns", "as")


def open_keyed(
    graph: GraphYaml, origin: str, options: SourceOptions, *, unused: tuple[str, ...] = ()
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
    opened = {name: opening.node_table(name, entry) for name, entry in graph.nodes.items()}
    tables = {name: table for name, table in opened.items() if table is not None}
    relations = tuple(opening.relation(relation, entry) for relation, entry in graph.edges.items())
    opening.notes.lines.extend(
        f"{relation_text(each.relation)}: the time of an edge is that of its {each.relation[0]} row"
        for each in relations
        if each.is_row_timed
    )
    tasks = tuple(opening.task(name, entry) for name, entry in graph.tables.items())
    options.edge_names.require(
        has_times=any(each.has_times for each in relations),
        has_features=any(each.has_features for each in relations),
        there={name for each in relations if each.table is not None for name in each.table.other_columns},
        where=str(graph.path),
    )
    kinds = _kinds(graph, tables, relations, tasks)
    nodes = tuple(
        opening.nodes(name, entry, tables.get(name), kinds.get(name)) for name, entry in graph.nodes.items()
    )
    nodes += tuple(KeyedNodes(name=name, kind=kinds[name]) for name in graph.unlisted)
    labelled = [each.name for each in nodes if each.is_labelled]
    needs_labels = options.needs_labels and not tasks
    # Several labelled types, or missing labels, are refused before the keys are read.
    if labelled or needs_labels:
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
        needs_labels=needs_labels,
        tasks=tasks,
    )


class _Opening:
    """Opens the files of one description. ``notes`` collects the receipt's lines on their columns."""

    def __init__(self, graph: GraphYaml, options: SourceOptions) -> None:
        self.notes = ColumnNotes(lines=list(graph.notes))
        self._graph = graph
        self._options = options

    def node_table(self, name: str, entry: NodeEntry) -> NumberTable | None:
        """Open a type's table, and check that it has the column of keys. Return None without a table."""
        graph, key = self._graph, entry.key
        with graph.naming("nodes", name, "file"):
            table = entry.open()
        if table is None:
            return None
        for role, column in (("key", key), ("time", entry.time)):
            _require_column(table, column, graph.where("nodes", name, role))
        if key is None:
            _refuse_ids(table, graph.where("nodes", name))
        joined = f"joined by {key}" if key is not None else "row i is node i, because no key is named"
        self.notes.add(f"{name} nodes: the rows of {table.path.name}, {joined}", table, [key])
        return table

    def nodes(
        self, name: str, entry: NodeEntry, table: NumberTable | None, kind: KeyKind | None
    ) -> KeyedNodes:
        """Return a type with its columns, and open its other files."""
        where = self._graph.where("nodes", name)
        labels, label_file = self._labels(name, entry, table)
        features, row_ids = None, None
        if entry.features is not None:
            self._refuse_joined(entry.features, f"{where}.features", table)
            with self._graph.naming("nodes", name, "features"):
                features, row_ids = open_node_features(
                    entry.features,
                    budget_bytes=self._options.budget_bytes,
                    notes=self.notes,
                    labels=entry.labels,
                )
        num_nodes = entry.num_nodes
        if table is not None and kind is None:
            num_nodes = table.count_rows()
        elif features is not None and kind is None:
            num_nodes = features.num_rows if num_nodes is None else num_nodes
        elif num_nodes is None and label_file is not None and table is None:
            with self._graph.naming("nodes", name, "labels"):
                num_nodes = count_labels(label_file)
        return KeyedNodes(
            name=name,
            table=table,
            key=entry.key,
            kind=kind,
            time=entry.time,
            columns=self._columns(entry.columns, f"{where}.columns", table),
            missing=entry.missing,
            features=features,
            row_ids=row_ids,
            labels=labels,
            read_labels=None if label_file is None else partial(self._read_labels, name, label_file),
            split=None if entry.split is None else SplitSpec.parse(entry.split, where=where),
            read_splits=None if entry.splits is None else partial(self._read_splits, name, entry.splits),
            num_nodes=num_nodes,
            num_classes=entry.num_classes,
        )

    def relation(self, relation: Relation, entry: EdgeEntry) -> KeyedRelation:
        """Open the edges of a relation, and find their columns."""
        graph, options = self._graph, self._options
        where = graph.where("edges", graph.texts[relation])
        has_keys = self._has_key(relation[0]), self._has_key(relation[2])
        if not entry.is_table or entry.is_matrix:
            if any(has_keys):
                raise SourceError(
                    f"{where}: {entry.file} is no table with named columns, and an end of its edges is a key; "
                    "keys are in columns of CSV or Parquet files"
                )
            edges, rows = open_edge_files(
                entry,
                where=where,
                names=options.edge_names,
                budget_bytes=options.budget_bytes,
                notes=self.notes,
            )
            return KeyedRelation(
                relation=relation,
                edge_file=entry.file,
                plain=edges,
                is_row_timed=self._is_row_timed(relation, has_times=edges.has_times),
                features=rows,
            )
        try:
            found, rows = open_edge_table(entry, options.edge_names, options.budget_bytes, self.notes)
        except GloaderError as error:
            raise type(error)(f"{where}: {error}") from error
        table = KeyedTable(relation=relation, edges=found, has_keys=has_keys)
        return KeyedRelation(
            relation=relation,
            edge_file=entry.file,
            table=table,
            plain=None if any(has_keys) else found.stream(),
            is_row_timed=self._is_row_timed(relation, has_times=found.time is not None),
            features=rows,
            columns=self._columns(entry.columns, f"{where}.columns", found.table),
            missing=entry.missing,
        )

    def _is_row_timed(self, relation: Relation, *, has_times: bool) -> bool:
        """True if edges get the times of their source rows: the rows have times, and the edges have none."""
        source = self._graph.nodes.get(relation[0])
        row_time = None if source is None else source.time
        return row_time is not None and not has_times and self._options.edge_names.takes_times

    def task(self, name: str, entry: TaskEntry) -> KeyedTask:
        """Open the tables of a task, and find their columns."""
        graph = self._graph
        if graph.dangling == "node":
            raise SourceError(
                f"{graph.path}: dangling: node makes a node for each key that no row has, and a row to predict "
                f"(tables.{name}) needs a row of its node; write dangling: drop, or error"
            )
        parts: list[KeyedRows] = []
        files: dict[Path, str] = {}
        for part, rows in entry.parts.items():
            where = graph.where("tables", name, part)
            with graph.naming("tables", name, part, "file"):
                table = rows.table or open_table(rows.file)
            if (other := files.setdefault(table.path, part)) != part:
                raise SourceError(
                    f"{where}: its file is that of {other}, {table.path}; each part has rows of its own"
                )
            labels = (
                None
                if rows.label is None
                else label_choice(rows.label, f"{where}.label", self._options.labels_as)
            )
            roles = [("node", rows.node), ("time", rows.time), ("weight", rows.weight)]
            roles += [("label", column) for column in (labels.columns if labels is not None else ())]
            for role, column in roles:
                _require_column(table, column, f"{where}.{role}")
            parts.append(
                KeyedRows(
                    name=f"{name}.{part}",
                    table=table,
                    node=rows.node,
                    time=rows.time,
                    labels=labels,
                    weight=rows.weight,
                )
            )
        _refuse_unlike(parts, graph.where("tables", name))
        return KeyedTask(
            name=name, node_type=entry.type, where=graph.where("tables", name), parts=tuple(parts)
        )

    def _has_key(self, name: str) -> bool:
        """True if edges name nodes of this type by keys."""
        return name in self._graph.unlisted or self._graph.nodes[name].key is not None

    def _columns(self, given: object, where: str, table: NumberTable | None) -> tuple[ColumnSpec, ...]:
        """Return feature columns, after a check that the table has them and that their kinds fit."""
        if given is None or table is None:
            return ()
        # Flags are parsed already.
        specs = given if isinstance(given, tuple) else column_specs(given, where=where)
        return tuple(kind_in(each, table) for each in specs)

    def _labels(
        self, name: str, entry: NodeEntry, table: NumberTable | None
    ) -> tuple[LabelChoice | None, Path | None]:
        """Return the columns of labels in the type's table, or else the file of labels."""
        given, where = entry.label_columns, self._graph.where("nodes", name, "labels")
        if table is None or given is None:
            return None, entry.labels
        if isinstance(given, str) and given not in table.names:
            path = self._graph.path.parent / given
            if not path.exists():
                raise SourceError(
                    f"{where} is {shown(given)}, which is neither a column of {table.path} nor a file; the columns are "
                    f"{listed(table.names)}"
                )
            self._refuse_joined(path, where, table)
            return None, path
        return label_choice(given, where, self._options.labels_as), None

    def _refuse_joined(self, path: Path, where: str, table: NumberTable | None) -> None:
        """Raise SourceError for a file with ids beside a table of nodes: it is unclear whether these are keys."""
        if table is None or not is_table(path) or (column := id_column(open_table(path))) is None:
            return
        raise SourceError(
            f"{where}: {path} has the column {column!r}, which may be keys or numbers of rows; beside {table.path}, "
            "such a file lies in the order of its rows, without ids. Put the columns into one table"
        )

    def _read_labels(self, name: str, path: Path, num_nodes: int) -> NDArray[Any]:
        """Read the labels of N nodes from a file."""
        with self._graph.naming("nodes", name, "labels"):
            return read_label_file(
                path,
                num_nodes=num_nodes,
                budget_bytes=self._options.budget_bytes,
                notes=self.notes,
                labels_as=self._options.labels_as,
            )

    def _read_splits(self, name: str, path: Path, num_nodes: int) -> Splits:
        """Read the splits of N nodes from a file."""
        with self._graph.naming("nodes", name, "splits"):
            return read_split_files(path, num_nodes=num_nodes, budget_bytes=self._options.budget_bytes)


def _require_column(table: NumberTable, column: str | None, where: str) -> None:
    """Raise SourceError if a table lacks the column that the description names at ``where``."""
    if column is not None and column not in table.names:
        raise SourceError(
            f"{where} is {shown(column)}; the columns of {table.path} are {listed(table.names)}"
        )


def _refuse_unlike(parts: Sequence[KeyedRows], where: str) -> None:
    """Raise SourceError if some parts of a task have times and others none, or labels have several columns."""
    first = parts[0]
    for rows in parts[1:]:
        if (rows.time is None) != (first.time is None):
            lacking, timed = (rows, first) if rows.time is None else (first, rows)
            raise SourceError(
                f"{where}: {timed.name} has times and {lacking.name} has none; name the column of times of "
                f"{lacking.table.path} with time: COLUMN"
            )
    labelled = [rows for rows in parts if rows.labels is not None]
    for rows in labelled[1:]:
        if rows.labels != labelled[0].labels:
            raise SourceError(
                f"{where}: the labels of {rows.name} and {labelled[0].name} are described differently; all parts have "
                "one column of labels, of one name"
            )


def _refuse_ids(table: NumberTable, where: str) -> None:
    """Raise SourceError if a table without a named key has numbers as ids, which are not the numbers of its rows.

    Texts cannot be mistaken: edges that name nodes by texts are refused without a key.
    """
    named = id_columns(table.names) if table.has_names else []
    numbered = [name for name in dict.fromkeys([*named, *table.index]) if table.kind(name) in NUMBER_KINDS]
    columns = [name for name in numbered if not _counts_rows(table, name)]
    if columns:
        raise SourceError(
            f"{where}: {table.path} has the column {shown(columns[0])}, and the entry names no key, so row i would be "
            f"node i; write key: {shown(columns[0])}, or leave the column out of the table"
        )
    if table.row_ids is not None:
        raise SourceError(
            f"{where}: {table.path} has a pandas index of {table.row_ids}, and the entry names no key, so row i would "
            "be node i; make the index a column with .reset_index(), and name it with key"
        )


def _counts_rows(table: NumberTable, column: str) -> bool:
    """True if a column has the numbers 0, 1, 2 and so on. Reads the column. Raises SourceError for a damaged file."""
    done = 0
    if table.kind(column) != "integer":
        return False
    for (numbers,) in table.read({column: "int64"}, error=SourceError):
        if not np.array_equal(numbers, np.arange(done, done + len(numbers))):
            return False
        done += len(numbers)
    return True


def label_choice(given: object, where: str, labels_as: LabelsAs | None) -> LabelChoice:
    """Return the columns of labels in a description: a name, a list of names, or {columns: ..., as: ...}. Pure.

    ``labels_as`` is the user's flag, for a description without ``as``. Raises SourceError for other values.
    """
    as_: object = labels_as
    if isinstance(given, dict):
        unknown = next((key for key in given if key not in _LABEL_KEYS), None)
        if unknown is not None:
            raise SourceError(f"{where} has the key {shown(unknown)}; allowed are {', '.join(_LABEL_KEYS)}")
        as_, given = given.get("as", labels_as), given.get("columns", given.get("column"))
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise SourceError(
            f"{where} is {shown(given)}; it must be a column, a list of columns, or {{column: NAME, as: values}}"
        )
    if as_ not in {None, "classes", "values"}:
        raise SourceError(f"{where}.as is {shown(as_)}; it must be classes or values")
    return LabelChoice(columns=tuple(names), as_=as_)


def _kinds(
    graph: GraphYaml,
    tables: Mapping[str, NumberTable],
    relations: Sequence[KeyedRelation],
    tasks: Sequence[KeyedTask],
) -> dict[str, KeyKind]:
    """Return the kind of keys of each type with keys. Raises SourceError if columns of one type disagree."""
    places: dict[str, list[tuple[str, NumberTable, str]]] = {}
    for name, table in tables.items():
        if (key := graph.nodes[name].key) is not None:
            places.setdefault(name, []).append((column_where(table, key), table, key))
    for each in relations:
        if each.table is None:
            continue
        for name, column in each.table.key_columns:
            table = each.table.edges.table
            places.setdefault(name, []).append((column_where(table, column), table, column))
    for task in tasks:
        if task.node_type in places:
            places[task.node_type] += [
                (column_where(rows.table, rows.node), rows.table, rows.node) for rows in task.parts
            ]
    kinds: dict[str, KeyKind] = {}
    for name, found in places.items():
        try:
            kinds[name] = key_kind(
                [(place, table.arrow_type(column)) for place, table, column in found],
                text_places={place for place, table, _ in found if is_text_table(table)},
            )
        except SourceError as error:
            raise SourceError(f"{graph.path}: keys of {name!r}: {error}") from error
    return kinds
