"""Task tables and row times of a conversion: checked against the nodes, and written in the nodes' new order.

A task table lists rows to predict, each of them a node. The sources of a conversion hold them in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.readers.edge_columns import to_seconds
from gloader.convert.readers.node_arrays import to_labels
from gloader.convert.source import TaskSource
from gloader.core.ids import as_ids, outside
from gloader.core.malformed import shown
from gloader.dataset.values import label_kind_of
from gloader.errors import ConfigError, GraphError, ShapeError
from gloader.types import NO_TIME, NODE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.convert.node_order import NodeOrder
    from gloader.convert.source import GraphSource
    from gloader.dataset.writer import DatasetWriter
    from gloader.types import IdArray

_CHUNK_ROWS: Final = 1 << 16  # rows of a table that are renumbered and written at a time
# Keys of the mapping that a user gives for a task table.
_KEYS: Final = ("nodes", "type", "times", "labels", "weights", "kind", "names", "num_classes")


def task_bytes(source: GraphSource) -> int:
    """Return the bytes of all task tables and row times in the dataset. Pure."""
    times = sum(nodes.row_times.nbytes for nodes in source.nodes if nodes.row_times is not None)
    return times + sum(table.num_bytes for table in source.tables)


def task_arrays(source: GraphSource) -> int:
    """Return an upper bound for the number of arrays of all task tables and row times. Pure."""
    return 4 * len(source.tables) + len(source.nodes)


def check_tasks(source: GraphSource) -> None:
    """Check the nodes of all task tables, and the number of row times.

    Raises
    ------
    GraphError
        A node is not one of its type. The message names the table and the row.
    ShapeError
        There is not one row time per node.
    SourceError
        There is no such type.
    """
    for nodes in source.nodes:
        if nodes.row_times is not None and nodes.row_times.shape != (nodes.num_nodes,):
            raise ShapeError(
                f"{source.where_nodes(nodes.name)}: row times have shape {nodes.row_times.shape}; there must be one "
                f"for each of {nodes.num_nodes} nodes"
            )
    for table in source.tables:
        count = source.num_nodes_of(table.node_type)
        if len(wrong := outside(table.nodes, count)):
            row = int(np.flatnonzero((table.nodes < 0) | (table.nodes >= count))[0])
            raise GraphError(
                f"{table.where}, table {table.name!r}: row {row} has node {wrong[0]}; nodes must be in 0..{count - 1}"
            )


def write_tasks(source: GraphSource, writer: DatasetWriter, order: NodeOrder | None) -> None:
    """Write all task tables and row times.

    Parameters
    ----------
    source : the graph, with nodes as in the source
    writer : the dataset's writer
    order : the new order of the nodes of a graph of one type, or None

    Raises
    ------
    GraphError, ShapeError, StoreWriteError
        As `DatasetWriter.table` and its writers.
    """
    for nodes in source.nodes:
        if nodes.row_times is not None:
            with writer.nodes(nodes.name).row_time() as column:
                for which in _spans(nodes.num_nodes):
                    column.append(nodes.row_times[which if order is None else order.original_ids[which]])
    for table in source.tables:
        out = writer.table(
            table.name,
            node_type=table.node_type,
            label_kind=table.label_kind,
            num_classes=table.num_classes,
            label_names=table.label_names or None,
        )
        num_rows = len(table.nodes)
        with out.nodes(num_rows) as column:
            for which in _spans(num_rows):
                ids = table.nodes[which]
                column.append(ids if order is None else order.new_ids[ids])
        columns = ((table.times, out.times), (table.labels, out.labels), (table.weights, out.weights))
        for values, begin in columns:
            if values is not None:
                with begin(num_rows) as column:
                    for which in _spans(num_rows):
                        column.append(np.ascontiguousarray(values[which]))


def array_tasks(tables: Mapping[str, Mapping[str, Any]]) -> tuple[TaskSource, ...]:
    """Return the task tables over a user's arrays.

    Parameters
    ----------
    tables : tables by name, each with "nodes" (n,), and optional "type" (needed with several types), "times" (n,),
        "labels" (n,) or (n, k), "weights" (n,), "kind" and "names" of the labels, and "num_classes"

    Raises
    ------
    ConfigError
        A table lacks its nodes, or has an unknown key.
    ShapeError, GraphError, SourceError
        An array has the wrong shape, dtype or values.
    """
    return tuple(_table(name, table) for name, table in tables.items())


def _table(name: str, table: Mapping[str, Any]) -> TaskSource:
    """Return one of the tables of `array_tasks`."""
    where = f"tables[{shown(name)}]"
    unknown = [key for key in table if key not in _KEYS]
    if unknown or "nodes" not in table:
        problem = f"the key {shown(unknown[0])}" if unknown else "no nodes"
        raise ConfigError(f"{where} has {problem}; it takes {', '.join(_KEYS)}, of which nodes must be there")
    nodes = as_ids(table["nodes"], noun=f"nodes of {where}", error=GraphError)
    given = {key: None if table.get(key) is None else np.asanyarray(table[key]) for key in _KEYS[2:5]}
    for key, array in given.items():
        if array is not None and array.shape[:1] != nodes.shape:
            raise ShapeError(f"{where}: {key} have shape {array.shape} for {len(nodes)} rows")
    times, values, weights = given.values()
    kind, classes, labels = table.get("kind"), int(table.get("num_classes") or 0), None
    if values is not None:
        as_values = "values" if kind not in (None, "classes") else kind
        labels = to_labels(values, where=f"{where}: labels", labels_as=as_values)
        kind = kind or label_kind_of(labels)
        classes = classes or (labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=0)) + 1)
    return TaskSource(
        name=name,
        node_type=table.get("type") or NODE,
        nodes=nodes,
        where=where,
        times=None if times is None else to_seconds(times, first=0, where=f"{where}: times"),
        labels=labels,
        weights=None if weights is None else np.ascontiguousarray(weights, np.float32),
        label_kind=kind if labels is not None else None,
        label_names=tuple(map(str, table.get("names") or ())),
        num_classes=classes if labels is not None else 0,
    )


def array_row_times(times: Any, *, where: str) -> IdArray:
    """Return row times (N,) as int64 seconds, the least int64 for a date that is missing (NaT).

    Raises
    ------
    SourceError, ShapeError
        As `to_seconds`, or the array does not have one dimension.
    """
    values = np.asanyarray(times)
    if values.ndim != 1:
        raise ShapeError(f"{where} has shape {values.shape}; it must have one time per node")
    seconds = np.full(values.shape, NO_TIME, np.int64)
    known = ~np.isnat(values) if values.dtype.kind == "M" else np.ones(values.shape, np.bool_)
    seconds[known] = to_seconds(values[known], first=0, where=where)
    return seconds


def _spans(num_rows: int) -> Iterator[slice]:
    """Yield consecutive ranges of ``num_rows`` rows."""
    for first in range(0, num_rows, _CHUNK_ROWS):
        yield slice(first, first + _CHUNK_ROWS)
