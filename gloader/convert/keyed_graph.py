"""Graphs whose nodes have keys: node and edge tables that become a `GraphSource` once all keys are numbered.

A *key* is a value that identifies a node, such as an account's name. `KeyedGraph` describes the tables. A conversion
enters `KeyedGraph.numbered` with a folder for temporary files. It numbers the keys within the memory budget, reads
labels and splits, fits the encoders of columns to the training rows, and yields the graph with plain ids. The temporary
files hold the ids of all edges, so they stay until the conversion ends.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.keyed_edges import KeyedTable, NumberedEdges, column_where
from gloader.convert.keys.numbering import Numbering
from gloader.convert.keys.values import key_chunk
from gloader.convert.readers.node_arrays import (
    no_labels,
    random_splits,
    require_node_memory,
)
from gloader.convert.source import GraphSource, NodeSource, RelationSource, only_labelled
from gloader.core.malformed import shown
from gloader.dataset.schema import MAX_NODES, relation_text
from gloader.errors import BudgetError, ConfigError, SourceError
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.keys.numbering import NumberingReport
    from gloader.convert.keys.values import KeyKind
    from gloader.convert.options import PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.convert.source import EdgeStream, FeatureStream, Splits
    from gloader.convert.sources.graph_yaml import Dangling
    from gloader.types import IdArray, Relation

# Memory for batches of keys and for the buffers of one table while keys are read.
READING_BYTES: Final = 24 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """The columns of a node table with the labels."""

    columns: tuple[str, ...]
    as_: str | None = None  # "classes" or "values"; None means that the columns' values decide


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedNodes:
    """A node type of a graph with keys.

    The nodes are the rows of a table, or the keys of the edges, or they are numbered as in a graph without keys.
    """

    name: str
    table: NumberTable | None = None  # the table with a row per node
    key: str | None = None  # the table's column of keys. None means that row i is node i
    kind: KeyKind | None = None  # the kind of the keys. None means that edges have plain node ids
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: str | None = None  # what missing values in ``columns`` become. None means that the conversion decides
    # Feature rows in the order of the nodes, and each row's node or None.
    features: FeatureStream | None = None
    row_ids: IdArray | None = None
    labels: LabelChoice | None = None  # columns of ``table``
    label_file: Callable[[int], NDArray[Any]] | None = None  # function of N that reads the labels from another file
    split: object = None  # columns of ``table``, as in a ``graph.yaml``
    split_file: Callable[[int], Splits] | None = None  # function of N that reads the splits from another file
    num_nodes: int | None = None  # the number of nodes without keys; None means that it follows from the edges
    num_classes: int | None = None  # None means that it follows from the labels

    @property
    def is_labelled(self) -> bool:
        """True if the type has labels."""
        return self.labels is not None or self.label_file is not None

    @property
    def has_features(self) -> bool:
        """True if the type has features."""
        return bool(self.columns) or self.features is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRelation:
    """A relation of a graph with keys."""

    relation: Relation
    table: KeyedTable | None = None  # the edges' table; None if neither end has keys
    plain: EdgeStream | None = None  # the edges with plain node ids; None with keys
    features: FeatureStream | None = None  # one row for each row of the table
    columns: tuple[ColumnSpec, ...] = ()  # the table's columns that become features
    missing: str | None = None  # what missing values in ``columns`` become
    edge_file: Path | None = None  # the edges' file, for messages


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
    # What happens to an edge whose key is in no row of the type's table.
    dangling: Dangling = "error"
    seed: int = 0  # seed of random splits
    needs_labels: bool = True  # False if edges are predicted, so that nodes may be unlabelled

    @contextmanager
    def numbered(
        self, folder: Path, options: PrepareOptions, *, budget_bytes: int, progress: PrepareProgress
    ) -> Iterator[GraphSource]:
        """Number the keys, and yield the graph with plain ids. Its streams are valid within the block.

        Parameters
        ----------
        folder : an existing folder for temporary files
        options : the conversion's options
        budget_bytes : the memory budget
        progress : receives the steps

        Raises
        ------
        SourceError
            A key is missing, is twice in a table of nodes, is in no such table, or has the wrong form. Or labels, a
            split or a column are malformed. The message names file, row and value.
        BudgetError
            The budget is too small. The message gives a sufficient one.
        StoreWriteError
            The disk has no room for the temporary files.
        """
        with ExitStack() as held:
            numberings = self._numberings(held, folder, budget_bytes)
            for nodes in self.nodes:
                if nodes.name in numberings and nodes.table is not None:
                    _append_nodes(nodes, nodes.table, numberings[nodes.name], progress)
            keys = {
                each.relation: each.table.append_keys(numberings, progress)
                for each in self.relations
                if each.table is not None
            }
            reports = {name: numbering.resolve() for name, numbering in numberings.items()}
            yield _Numbered(self, numberings, reports, keys, options, budget_bytes).graph()

    def _numberings(self, held: ExitStack, folder: Path, budget_bytes: int) -> dict[str, Numbering]:
        """Return a numbering for each type with keys. ``held`` closes them."""
        keyed = [nodes for nodes in self.nodes if nodes.kind is not None]
        numberings = {}
        for number, nodes in enumerate(keyed):
            place = folder / f"keys-{number}"
            place.mkdir()
            numberings[nodes.name] = held.enter_context(
                Numbering(
                    nodes.name,
                    nodes.kind,
                    folder=place,
                    budget_bytes=(budget_bytes - READING_BYTES) // len(keyed),
                    # Without a table of nodes, every key makes a node, whatever the description says.
                    dangling=self.dangling if nodes.table is not None else "node",
                )
            )
        return numberings


def _append_nodes(
    nodes: KeyedNodes, table: NumberTable, numbering: Numbering, progress: PrepareProgress
) -> None:
    """Give the keys in a table of nodes to the type's numbering: row i gets id i."""
    column = str(nodes.key)
    where, done = column_where(table, column), 0

    def chunks() -> Iterator[KeyChunk]:
        nonlocal done
        for batch in table.read_arrow([column], error=SourceError):
            yield key_chunk(batch.column(0), numbering.kind, first_row=done, where=where)
            done += batch.num_rows
            progress.advance(f"reading the keys of {table.path.name}", done, table.num_rows, "rows")

    numbering.add_nodes(chunks(), where=where)


class _NumberedGraph:
    """Makes the graph with plain ids, when all keys are numbered.

    Parameters
    ----------
    graph : the description
    numberings, reports : by node type with keys
    keys : the numbered keys of each relation with keys
    options : the conversion's options
    budget_bytes : the memory budget
    """

    def __init__(
        self,
        graph: KeyedGraph,
        numberings: Mapping[str, Numbering],
        reports: Mapping[str, NumberingReport],
        keys: Mapping[Relation, EdgeKeys],
        options: PrepareOptions,
        budget_bytes: int,
    ) -> None:
        self._graph = graph
        self._numberings = numberings
        self._reports = reports
        self._options = options
        self._budget_bytes = budget_bytes
        self._nodes = {nodes.name: nodes for nodes in graph.nodes}
        self._edges = {
            each.relation: NumberedEdges.of(
                each.table, keys[each.relation], has_dropped=any(_dropped(report) for report in reports.values())
            )
            for each in graph.relations
            if each.table is not None
        }
        self._counts = {nodes.name: self._count(nodes) for nodes in graph.nodes}

    def graph(self) -> GraphSource:
        """Return the graph."""
        graph = self._graph
        labelled = only_labelled(
            [nodes.name for nodes in graph.nodes if nodes.is_labelled],
            # Without labels, the first type with nodes counts as the labelled type, and gets labels of -1.
            otherwise=None
            if graph.needs_labels
            else next((name for name, count in self._counts.items() if count), None),
            where=graph.where,
        )
        require_node_memory(self._counts[labelled], self._budget_bytes, graph.where)
        labels, names = self._labels(self._nodes[labelled])
        splits = self._splits(self._nodes[labelled], labels)
        nodes = tuple(
            self._node_source(each, splits if each.name == labelled else None) for each in graph.nodes
        )
        relations = tuple(map(self._relation_source, graph.relations))
        if is_plain := self._is_plain():
            nodes = tuple(replace(each, name=NODE) for each in nodes)
            relations = tuple(replace(each, relation=EDGE) for each in relations)
        return GraphSource(
            name=graph.name,
            origin=graph.origin,
            kind="homogeneous" if is_plain else "hetero",
            nodes=nodes,
            relations=relations,
            labelled=NODE if is_plain else labelled,
            num_classes=self._nodes[labelled].num_classes or count_classes(labels),
            labels=labels,
            label_names=names,
            splits=splits,
            resident_bytes=self._resident_bytes(nodes, relations),
            column_notes=tuple(graph.notes.lines),
            unused=(*graph.notes.unused, *graph.unused),
            notes=self._key_notes(),
        )

    def _is_plain(self) -> bool:
        """True for one type with keys and features, and one relation. Its dataset has no names of types."""
        (first, *others), relations = self._graph.nodes, self._graph.relations
        return not others and len(relations) == 1 and first.kind is not None and first.has_features

    def _count(self, nodes: KeyedNodes) -> int:
        """Return a type's number of nodes."""
        if nodes.name in self._reports:
            return self._reports[nodes.name].num_nodes
        if (rows := nodes.num_rows) is not None:
            return rows
        return largest_id(nodes.name, [(each.relation, self._stream(each)) for each in self._graph.relations]) + 1

    def _stream(self, each: KeyedRelation, ends: EdgeEnds | None = None) -> EdgeStream:
        """Return a relation's edges with plain ids. ``ends`` are its nodes, if their numbers are known."""
        if each.plain is not None:
            return each.plain
        return self._edges[each.relation].stream(ends)

    def _relation_source(self, each: KeyedRelation) -> RelationSource:
        """Return a relation's edges and edge features."""
        first, _, last = each.relation
        ends = EdgeEnds(
            num_nodes=self._counts[last],
            num_sources=self._counts[first],
            where=f"{each.edge_file}, relation {relation_text(each.relation)}",
            has_names=True,
        )
        edges, rows, encoders = self._stream(each, ends), each.features, None
        if each.table is not None:
            numbered = self._edges[each.relation]
            if each.columns:
                rows, encoders = encoded_features(
                    each.table.edges.table, each.columns, num_rows=numbered.keys.num_rows, ...
                )
            rows = None if rows is None else numbered.kept_rows(rows)
        return RelationSource(
            relation=each.relation, edges=edges, edge_features=rows, edge_file=each.edge_file, encoders=encoders
        )

    def _node_source(self, nodes: KeyedNodes, splits: Splits | None) -> NodeSource:
        """Return a type's features, fitted to the training nodes of ``splits``, and its keys."""
        count = self._counts[nodes.name]
        features, encoders = nodes.features, None
        if nodes.columns and nodes.table is not None:
            is_train = None
            if splits is not None and len(splits.train):
                is_train = np.zeros(given, np.bool_)
                is_train[splits.train] = True
            features, encoders = encoded_features(...)
        return NodeSource(
            name=nodes.name,
            num_nodes=count,
            features=None if features is None else padded_rows(features, count),
            row_ids=nodes.row_ids,
            keys=self._numberings.get(nodes.name),
            encoders=encoders,
        )

    def _labels(self, nodes: KeyedNodes) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return a type's labels, and the names of the classes or columns. Nodes without a row have no label."""
        count = self._counts[nodes.name]
        if nodes.labels is not None and nodes.table is not None:
            read = read_label_columns(nodes.table, nodes.labels.columns, as_=nodes.labels.as_, ...)
            return padded_labels(read.values, count), read.names
        if nodes.label_file is not None:
            return padded_labels(nodes.label_file(self._given(nodes)), count), ()
        return no_labels(count), ()
