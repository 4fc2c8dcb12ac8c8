"""Graphs whose nodes have keys: tables of nodes, edges and tasks that become a `GraphSource` once keys are numbered.

A *key* is a value that identifies a node, such as an account's name. `KeyedGraph` describes the tables. A conversion
numbers the keys (`gloader.convert.key_numbers`), and then reads a graph with plain ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.convert.read_ahead import ITEMS_AT_A_TIME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.columns.specs import ColumnSpec
    from gloader.convert.columns.split_column import SplitSpec
    from gloader.convert.keyed_edges import KeyedTable
    from gloader.convert.keyed_links import KeyedLinks
    from gloader.convert.keys.numbering import Dangling
    from gloader.convert.options import Fill, LabelsAs
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.convert.source import EdgeStream, FeatureStream, Splits
    from gloader.core.keys import KeyKind
    from gloader.types import IdArray, Relation

# Memory for the batches of keys that are read and numbered at a time, besides the readers' own buffers.
_BATCH_BYTES: Final = 8 << 20
# Memory for the further batches that exist if a thread reads them ahead of their use.
AHEAD_BYTES: Final = (ITEMS_AT_A_TIME - 1) * _BATCH_BYTES
_ID_BYTES: Final = 8  # bytes of an edge's end, or of a row's node, in the temporary files


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """The columns of a table of nodes that hold the labels."""

    columns: tuple[str, ...]
    as_: LabelsAs | None = None  # None means that the columns' values decide


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNodes:
    """A node type of a graph with keys.

    Its nodes are the rows of a table, or the keys of the edges, or plain numbers as in a graph without keys.
    """

    name: str
    table: NumberTable | None = None  # the table with a row per node
    key: str | None = None  # the table's column of keys. None means that row i is node i
    kind: KeyKind | None = None  # the kind of the keys. None means that edges have plain node ids
    time: str | None = None  # the table's column of times
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: Fill | None = (
        None  # the fill for missing values in ``columns``. None means the conversion's option
    )
    # Feature rows in the order of the nodes, and each row's node or None.
    features: FeatureStream | None = None
    row_ids: IdArray | None = None
    labels: LabelChoice | None = None  # columns of ``table``
    read_labels: Callable[[int], NDArray[Any]] | None = None  # reads the labels of N nodes from another file
    split: SplitSpec | None = None  # columns of ``table``
    read_splits: Callable[[int], Splits] | None = None  # reads the splits of N nodes from another file
    num_nodes: int | None = None  # nodes of a type without keys; None means that it follows from the edges
    num_classes: int | None = None  # None means that it follows from the labels

    @property
    def is_labelled(self) -> bool:
        """True if the type has labels."""
        return self.labels is not None or self.read_labels is not None

    @property
    def has_features(self) -> bool:
        """True if the type has features."""
        return bool(self.columns) or self.features is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRelation:
    """A relation of a graph with keys."""

    relation: Relation
    edge_file: Path  # the edges' file, for messages
    table: KeyedTable | None = None  # the edges' table; None for an array of edges
    plain: EdgeStream | None = None  # the edges, if both ends are plain node ids; None with keys
    features: FeatureStream | None = None  # one row for each row of the table
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: Fill | None = None  # the fill for missing values in ``columns``
    is_row_timed: bool = False  # True if edges get the times of their source rows

    @property
    def has_times(self) -> bool:
        """True if edges have times."""
        plain = self.plain is not None and self.plain.has_times
        return plain or (self.table is not None and self.table.edges.time is not None)

    @property
    def has_features(self) -> bool:
        """True if edges have features."""
        return bool(self.columns) or self.features is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """A part of a task: a table with rows to predict, and the roles of its columns."""

    name: str  # the name of the task table, such as "churn.train"
    table: NumberTable
    node: str  # the column with the node of each row: its key, or its id in a type without keys
    time: str | None = None
    labels: LabelChoice | None = None
    weight: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTask:
    """A task of a graph with keys: rows of one node type to predict."""

    name: str
    node_type: str
    where: str  # the place in the description, for messages
    parts: tuple[KeyedRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedGraph:
    """A graph with keys for a conversion, whose numbers of nodes are known only after its keys were read."""

    name: str  # a short display name
    origin: str  # the source as the user wrote it
    where: str  # the description, for messages
    nodes: tuple[KeyedNodes, ...]
    relations: tuple[KeyedRelation, ...]
    notes: ColumnNotes
    unused: tuple[str, ...] = ()  # parts of the source that the dataset will not have, besides columns
    # What becomes of an edge whose key is in no row of the type's table: an error, nothing, or a new node.
    dangling: Dangling = "error"
    seed: int = 0  # seed of random splits
    needs_labels: bool = True  # False if edges or rows are predicted, so that nodes may be unlabelled
    tasks: tuple[KeyedTask, ...] = ()
    links: tuple[KeyedLinks, ...] = ()  # tables of triples, in a graph without edges

    @property
    def keyed(self) -> tuple[KeyedNodes, ...]:
        """The types with keys."""
        return tuple(nodes for nodes in self.nodes if nodes.kind is not None)

    @property
    def keyed_rows(self) -> tuple[tuple[str, KeyedRows], ...]:
        """The parts of tasks whose nodes are keys, each with its node type."""
        keyed = {nodes.name for nodes in self.keyed}
        tasks = [task for task in self.tasks if task.node_type in keyed]
        return tuple((task.node_type, rows) for task in tasks for rows in task.parts)

    @property
    def id_bytes(self) -> int:
        """Bytes of temporary files with the ids of edges and rows, as far as the numbers of rows are known."""
        tables = [each.table for each in self.relations if each.table is not None]
        ids = sum(len(each.key_columns) * (each.edges.num_edges or 0) for each in tables)
        ids += sum(len(each.columns) * (each.table.num_rows or 0) for each in self.links)
        return _ID_BYTES * (ids + sum(rows.table.num_rows or 0 for _, rows in self.keyed_rows))

    @property
    def reading_bytes(self) -> int:
        """Bytes of memory to read keys, besides their numberings. Tables are read one after another."""
        tables = [(nodes.table, [nodes.key]) for nodes in self.nodes if nodes.table is not None and nodes.key]
        tables += [(rows.table, [rows.node]) for _, rows in self.keyed_rows]
        tables += [(each.table, [*each.columns]) for each in self.links]
        tables += [
            (each.table.edges.table, [column for _, column in each.table.key_columns])
            for each in self.relations
            if each.table is not None
        ]
        return _BATCH_BYTES + max(table.reading_bytes(filter(None, columns)) for table, columns in tables)
