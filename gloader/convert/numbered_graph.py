"""A graph with numbered keys as a `GraphSource`: numbers of nodes, edges, labels, splits and features with plain ids.

A key is a value that identifies a node. `gloader.convert.key_numbers` numbers the keys of all tables, and then makes a
`NumberedGraph`. `NumberedGraph.source` reads labels and splits, fits the encoders of feature columns to the training
rows, and returns the graph. Nodes that were made from keys of edges follow the rows of the table of nodes. They have no
labels, and their features are 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.feature_columns import encoded_features
from gloader.convert.columns.label_columns import read_label_columns
from gloader.convert.columns.split_column import read_split_column
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.keyed_edges import NumberedEdges, column_where
from gloader.convert.keyed_tasks import key_at, read_seconds, read_task, task_bytes
from gloader.convert.readers.node_arrays import (
    count_classes,
    no_labels,
    random_splits,
    require_memory,
    require_node_memory,
)
from gloader.convert.source import (
    GraphSource,
    NodeKeys,
    NodeSource,
    RelationSource,
    only_labelled,
    row_timed,
)
from gloader.convert.sources.edge_list import reading_bytes
from gloader.core.malformed import shown
from gloader.dataset.schema import MAX_NODES, relation_text
from gloader.dataset.values import has_label
from gloader.errors import ShapeError, SourceError
from gloader.types import EDGE, NO_TIME, NODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.convert.keyed_edges import EdgeKeys
    from gloader.convert.keyed_graph import KeyedGraph, KeyedNodes, KeyedRelation, KeyedTask
    from gloader.convert.keys.numbering import KeyStream, Numbering
    from gloader.convert.options import PrepareOptions
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.convert.source import EdgeStream, FeatureStream, Splits, TaskSource
    from gloader.dataset.encoders import Encoders
    from gloader.types import IdArray, Relation

_COUNTED_EDGES: Final = 1 << 18  # edges per chunk while the largest id is found
_TIME_BYTES: Final = 8  # bytes of the time of a node


class NumberedGraph:
    """Makes the graph with plain ids.

    Parameters
    ----------
    graph : the tables
    numberings : the numbered keys, by node type
    keys : the keys of each relation with keys
    row_keys : the stream of keys of each task table with keys
    options : the conversion's options
    budget_bytes : the memory budget
    """

    def __init__(
        self,
        graph: KeyedGraph,
        numberings: Mapping[str, Numbering],
        keys: Mapping[Relation, EdgeKeys],
        row_keys: Mapping[str, KeyStream],
        options: PrepareOptions,
        budget_bytes: int,
    ) -> None:
        self._graph = graph
        self._numberings = numberings
        self._row_keys = row_keys
        self._options = options
        self._budget_bytes = budget_bytes  # without the bytes that are held
        self._held_bytes = 0  # of the times of nodes and of task tables
        self._nodes = {nodes.name: nodes for nodes in graph.nodes}
        self._edges = {
            each.relation: NumberedEdges.of(each.table, keys[each.relation])
            for each in graph.relations
            if each.table is not None and each.relation in keys
        }
        self._given = {nodes.name: self._count_given(nodes) for nodes in graph.nodes}
        self._counts = {
            name: count if name not in numberings else numberings[name].resolve().num_nodes
            for name, count in self._given.items()
        }

    def source(self) -> GraphSource:
        """Return the graph. Raises as `numbered` in `gloader.convert.key_numbers`."""
        graph = self._graph
        if not any(self._counts.values()):
            raise SourceError(
                f"{graph.where} has no nodes: its tables have no rows that are used, or a stream was read before"
            )
        labelled = only_labelled(
            [nodes.name for nodes in graph.nodes if nodes.is_labelled],
            # Without labels, the first type with nodes counts as the labelled type, and gets labels of -1. Types of
            # tasks come first.
            otherwise=None
            if graph.needs_labels
            else next(
                filter(self._counts.get, [*(task.node_type for task in graph.tasks), *self._counts]), None
            ),
            where=graph.where,
        )
        row_times = {nodes.name: self._times(nodes) for nodes in graph.nodes}
        tables = tuple(table for task in graph.tasks for table in self._task(task))
        require_node_memory(self._counts[labelled], self._budget_bytes, graph.where)
        labels, names = self._labels(self._nodes[labelled])
        splits = self._splits(self._nodes[labelled], labels)
        nodes = tuple(
            replace(
                self._node_source(each, splits if each.name == labelled else None),
                row_times=row_times[each.name],
            )
            for each in graph.nodes
        )
        relations = tuple(
            replace(found, edges=row_timed(found.edges, row_times[each.relation[0]]), is_row_timed=True)
            if each.is_row_timed
            else found
            for each, found in zip(graph.relations, map(self._relation_source, graph.relations), strict=True)
        )
        resident = self._resident_bytes(nodes, relations) + self._held_bytes
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
            tables=tables,
            resident_bytes=resident,
            column_notes=tuple(graph.notes.lines),
            unused=(*graph.notes.unused, *graph.unused),
            key_note=self._key_note(),
        )

    def _times(self, nodes: KeyedNodes) -> IdArray | None:
        """Return the times of a type's nodes, or None without times. Made nodes have no time."""
        if nodes.time is None or nodes.table is None:
            return None
        given, count = self._given[nodes.name], self._counts[nodes.name]
        where = column_where(nodes.table, nodes.time)
        # While they are read, there may be a second copy.
        self._require(2 * _TIME_BYTES * count, f"the times of {where}")
        seconds = read_seconds(nodes.table, nodes.time, given, may_lack=True)
        lacking = np.count_nonzero(seconds == NO_TIME)
        self._graph.notes.add(
            f"{nodes.name}: {nodes.time} of {nodes.table.path.name} is the time of the row, in seconds, rounded down"
            + (f", {lacking:,} rows without a time" if lacking else ""),
            nodes.table,
            [nodes.time],
        )
        self._hold(_TIME_BYTES * count)
        return seconds if given == count else np.append(seconds, np.full(count - given, NO_TIME))

    def _task(self, task: KeyedTask) -> tuple[TaskSource, ...]:
        """Return the tables of a task."""
        numbering = self._numberings.get(task.node_type)
        counts = [rows.table.count_rows() for rows in task.parts]
        self._require(task_bytes(task, counts), f"the rows of {task.where}")
        tables = read_task(
            task,
            counts,
            node_type=NODE if self._is_plain() else task.node_type,
            keys=None if numbering is None else (numbering, self._row_keys),
            budget_bytes=self._budget_bytes,
            notes=self._graph.notes,
        )
        self._hold(sum(table.num_bytes for table in tables))
        return tables

    def _require(self, num_bytes: int, what: str) -> None:
        """Raise BudgetError if ``num_bytes`` for ``what`` do not fit the memory that is left."""
        require_memory(num_bytes, what, self._budget_bytes, held_bytes=self._held_bytes)

    def _hold(self, num_bytes: int) -> None:
        """Take bytes that stay in memory from the budget. A check by `_require` was for more."""
        self._budget_bytes -= num_bytes
        self._held_bytes += num_bytes

    def _is_plain(self) -> bool:
        """True for one type with keys and features, and one relation. Its dataset has no names of types."""
        (first, *others), relations = self._graph.nodes, self._graph.relations
        return not others and len(relations) == 1 and first.kind is not None and first.has_features

    def _count_given(self, nodes: KeyedNodes) -> int:
        """Return a type's number of nodes without those that were made from keys."""
        if nodes.name in self._numberings:
            return self._numberings[nodes.name].resolve().num_given
        if nodes.num_nodes is not None:
            return nodes.num_nodes
        return self._largest_id(nodes.name) + 1

    def _largest_id(self, name: str) -> int:
        """Return a type's largest id in the edges, or -1 without edges. Reads all edges of the type."""
        largest = -1
        for each in self._graph.relations:
            first, _, last = each.relation
            if name not in (first, last):
                continue
            for chunk in self._stream(each).chunks(_COUNTED_EDGES):
                for node_type, ids in ((first, chunk.src), (last, chunk.dst)):
                    if node_type == name:
                        largest = max(largest, int(ids.max(initial=-1)))
        if largest >= MAX_NODES:
            raise SourceError(
                f"{name!r} nodes have ids up to {largest} in the edges; give num_nodes, or a key"
            )
        return largest

    def _stream(self, each: KeyedRelation, ends: EdgeEnds | None = None) -> EdgeStream:
        """Return a relation's edges with plain ids. ``ends`` are its nodes, if these are counted."""
        return self._edges[each.relation].stream(ends) if each.plain is None else each.plain

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
        numbered = self._edges.get(each.relation)
        if each.columns and each.table is not None:
            table = each.table.edges.table
            count = table.count_rows() if numbered is None else numbered.keys.num_rows
            rows, encoders = self._encoded(table, each, count, None, "edge features")
        if rows is not None and numbered is not None:
            self._require_rows(rows, numbered.keys.num_rows, str(each.edge_file), "edges")
            rows = numbered.kept_rows(rows)
        return RelationSource(
            relation=each.relation,
            edges=edges,
            edge_features=rows,
            edge_file=each.edge_file,
            encoders=encoders,
        )

    def _node_source(self, nodes: KeyedNodes, splits: Splits | None) -> NodeSource:
        """Return a type's keys and features. Encoders are fitted to the training nodes of ``splits``, if any."""
        given, features, encoders = self._given[nodes.name], nodes.features, None
        if nodes.columns and nodes.table is not None:
            is_train = None
            if splits is not None and len(splits.train):
                is_train = np.zeros(given, np.bool_)
                is_train[splits.train] = True
            what = "features" if self._is_plain() else f"features of {nodes.name}"
            features, encoders = self._encoded(nodes.table, nodes, given, is_train, what)
        if features is not None:
            self._require_rows(features, given, self._graph.where, f"{nodes.name} nodes")
            features = with_zero_rows(features, self._counts[nodes.name])
        return NodeSource(
            name=nodes.name,
            num_nodes=self._counts[nodes.name],
            features=features,
            row_ids=nodes.row_ids,
            keys=self._keys(nodes.name),
            encoders=encoders,
        )

    def _encoded(
        self,
        table: NumberTable,
        described: KeyedNodes | KeyedRelation,
        num_rows: int,
        is_train: NDArray[np.bool_] | None,
        what: str,
    ) -> tuple[FeatureStream, Encoders]:
        """Return the features in the columns of a type's or relation's table; see `encoded_features`."""
        return encoded_features(
            table,
            described.columns,
            num_rows=num_rows,
            train_rows=is_train,
            missing=described.missing or self._options.missing_rule,
            budget_bytes=self._budget_bytes,
            notes=self._graph.notes,
            what=what,
        )

    def _keys(self, name: str) -> NodeKeys | None:
        """Return a type's keys, or None without keys."""
        if name not in self._numberings:
            return None
        numbering = self._numberings[name]
        return NodeKeys(kind=numbering.kind, num_bytes=numbering.resolve().key_bytes, chunks=numbering.keys)

    def _require_rows(self, features: FeatureStream, count: int, where: str, what: str) -> None:
        """Raise ShapeError unless there is one feature row for each of ``count`` rows of a table."""
        if features.num_rows != count:
            raise ShapeError(
                f"{features.where or where} has {features.num_rows} feature rows for {count} {what}; rows of features "
                "lie in the order of the table"
            )

    def _labels(self, nodes: KeyedNodes) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Return a type's labels, and the names of the classes or columns. Made nodes have no label."""
        given, count = self._given[nodes.name], self._counts[nodes.name]
        names: tuple[str, ...] = ()
        if nodes.labels is not None and nodes.table is not None:
            labels, names = read_label_columns(
                nodes.table,
                nodes.labels.columns,
                as_=nodes.labels.as_,
                num_rows=given,
                budget_bytes=self._budget_bytes,
                notes=self._graph.notes,
            )
        elif nodes.read_labels is not None:
            labels = nodes.read_labels(given)
        else:
            labels = no_labels(given)
        if count == given:
            return labels, names
        padded = np.full((count, *labels.shape[1:]), -1 if labels.dtype.kind == "i" else np.nan, labels.dtype)
        padded[:given] = labels
        return padded, names

    def _splits(self, nodes: KeyedNodes, labels: NDArray[Any]) -> Splits:
        """Return the splits of a type: of columns, of a file, or at random over the labelled nodes."""
        if nodes.split is not None and nodes.table is not None:
            return read_split_column(
                nodes.table,
                nodes.split,
                num_rows=self._given[nodes.name],
                has_label=has_label(labels[: self._given[nodes.name]]),
                budget_bytes=self._budget_bytes,
                notes=self._graph.notes,
            )
        if nodes.read_splits is not None:
            return nodes.read_splits(self._given[nodes.name])
        return random_splits(labels, seed=self._graph.seed)

    def _resident_bytes(self, nodes: tuple[NodeSource, ...], relations: tuple[RelationSource, ...]) -> int:
        """Return the memory that the streams keep all the time, and the memory for reading the largest table."""
        held = sum(each.memory_bytes for each in self._numberings.values())
        features = [each.given for each in nodes] + [each.edge_features for each in relations]
        held += sum(each.held_bytes for each in features if each is not None)
        return held + reading_bytes(*features, *(each.edges for each in relations))

    def _key_note(self) -> str:
        """Return the receipt's line on keys: the keys of each type, and edges that were dropped."""
        keyed = [nodes for nodes in self._graph.nodes if nodes.name in self._numberings]
        texts = [("" if self._is_plain() else f"{nodes.name}: ") + self._type_note(nodes) for nodes in keyed]
        texts += [_dropped_note(edges) for edges in self._edges.values() if edges.first_dropped is not None]
        return "; ".join(texts)

    def _type_note(self, nodes: KeyedNodes) -> str:
        """Return the text on the keys of one type: their column, kind and number."""
        report, kind = self._numberings[nodes.name].resolve(), self._numberings[nodes.name].kind
        if nodes.table is None:
            where = "triples" if self._graph.links else "edges"
            return f"of the {where}, in order of first appearance, {kind}, {report.num_nodes:,}"
        lacking = ["features 0"] * nodes.has_features + ["no label"] * nodes.is_labelled
        made = f" and {report.num_made:,} made for keys of edges" if report.num_made else ""
        if made and lacking:
            made += f": {', '.join(lacking)}"
        return f"{nodes.key} of {nodes.table.path.name}, {kind}, {report.num_given:,}{made}"


def _dropped_note(edges: NumberedEdges) -> str:
    """Return the text on a relation's dropped edges, with the first key that no node has."""
    table = edges.table.edges.table
    if edges.first_dropped is None:
        return ""
    row, column = edges.first_dropped
    return (
        f"dangling: {edges.num_dropped:,} edges of {table.path.name} dropped, first {key_at(table, column, row)} of "
        f"column {shown(column)} in row {row:,}"
    )


def with_zero_rows(features: FeatureStream, num_rows: int) -> FeatureStream:
    """Return the feature rows, and rows of 0 up to ``num_rows``. Pure."""
    missing = num_rows - features.num_rows
    if not missing:
        return features

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        yield from features.chunks(max_rows)
        for start in range(0, missing, max_rows):
            yield np.zeros((min(max_rows, missing - start), features.dim), features.dtype)

    rounded = None if features.rounded is None else with_zero_rows(features.rounded, num_rows)
    return replace(features, chunks=chunks, num_rows=num_rows, rounded=rounded)
