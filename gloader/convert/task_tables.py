"""Writing task tables and the times of rows into a dataset.

A *task table* lists rows to predict, each of them a node, perhaps with a time, labels and a weight. `check_tasks`
checks the values of a source's tables and row times, and `write_tasks` writes them. `array_tasks` makes tables of a
user's arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.edge_rules import MAX_SECONDS
from gloader.convert.readers.edge_columns import to_seconds
from gloader.convert.readers.node_arrays import to_labels
from gloader.convert.source import TaskSource
from gloader.core.ids import as_ids
from gloader.core.malformed import shown
from gloader.dataset.values import first_infinite, label_kind_of
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError
from gloader.types import NO_TIME, NODE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gloader.convert.options import LabelsAs
    from gloader.convert.source import GraphSource
    from gloader.dataset.writer import DatasetWriter
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.types import IdArray

_STEP: Final = 1 << 19  # entries per step of a check or of a copy
# Keys of the mapping that a user gives for a task table.
_KEYS: Final = ("nodes", "type", "times", "labels", "weights", "kind", "names", "num_classes")


def task_bytes(graph: GraphSource) -> int:
    """Return the bytes of all task tables and row times in the dataset. Pure."""
    times = sum(nodes.row_times.nbytes for nodes in graph.nodes if nodes.row_times is not None)
    return times + sum(table.num_bytes for table in graph.tables)


def task_arrays(graph: GraphSource) -> int:
    """Return an upper bound for the number of arrays of all task tables and row times. Pure."""
    return 4 * len(graph.tables) + len(graph.nodes)


def check_tasks(graph: GraphSource) -> None:
    """Raise an error if task tables or the times of rows are malformed. Pure.

    Raises
    ------
    ShapeError
        A column does not have one entry per row, or another dtype or width.
    SourceError
        A name occurs twice, a label is no class or is infinite, or a weight is negative or not finite.
    GraphError
        An id is not one of the type's nodes, or a time is out of range. The message names the row.
    """
    for nodes in graph.nodes:
        if nodes.row_times is not None:
            where = f"{graph.where_nodes(nodes.name)}: row_time"
            _require_shape(nodes.row_times, (nodes.num_nodes,), "int64", where)
            _check_times(nodes.row_times, where, may_lack=True)
    names = [table.name for table in graph.tables]
    for table in graph.tables:
        if names.count(table.name) > 1:
            raise SourceError(f"{table.where}: the task table {shown(table.name)} is there twice")
        _check_table(table, graph.num_nodes_of(table.node_type))


def write_tasks(graph: GraphSource, writer: DatasetWriter, *, new_ids: IdArray | None) -> None:
    """Write the times of rows, and all task tables, after `check_tasks`.

    Parameters
    ----------
    graph : the source
    writer : the dataset's writer
    new_ids : (N,) the dataset's id of each node of the source; None if nodes keep their ids

    Raises
    ------
    GraphError, StoreWriteError
        As `DatasetWriter.table` and `NodeTableWriter.row_time`.
    """
    for nodes in graph.nodes:
        if nodes.row_times is not None:
            times = nodes.row_times if new_ids is None else nodes.row_times[np.argsort(new_ids)]
            _write(writer.nodes(nodes.name).row_time(), times)
    for table in graph.tables:
        to = writer.table(
            table.name,
            node_type=table.node_type,
            label_kind=table.label_kind,
            num_classes=table.num_classes,
            label_names=table.label_names or None,
        )
        count = len(table.nodes)
        _write(to.nodes(count), table.nodes if new_ids is None else new_ids[table.nodes])
        for start, column in (
            (to.times, table.times),
            (to.labels, table.labels),
            (to.weights, table.weights),
        ):
            if column is not None:
                _write(start(count), column)


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
        as_values: LabelsAs | None = None if kind is None else "classes" if kind == "classes" else "values"
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


def _write(writer: AbstractContextManager[ArrayWriter], values: NDArray[Any]) -> None:
    """Write a whole array."""
    with writer as column:
        for start in range(0, len(values), _STEP):
            column.append(values[start : start + _STEP])


def _check_table(table: TaskSource, num_nodes: int) -> None:
    """Check the columns of one table."""
    where, count = f"{table.where}, task table {shown(table.name)}", len(table.nodes)
    _require_shape(table.nodes, (count,), "int64", f"{where}: nodes")
    wrong = np.flatnonzero((table.nodes < 0) | (table.nodes >= num_nodes))
    if wrong.size:
        raise GraphError(
            f"{where}: row {wrong[0]} has node {table.nodes[wrong[0]]}; nodes of {table.node_type} are "
            f"0..{num_nodes - 1}"
        )
    if table.times is not None:
        _require_shape(table.times, (count,), "int64", f"{where}: times")
        _check_times(table.times, f"{where}: times", may_lack=False)
    if table.weights is not None:
        _require_shape(table.weights, (count,), "float32", f"{where}: weights")
        wrong = np.flatnonzero(~(np.isfinite(table.weights) & (table.weights >= 0)))
        if wrong.size:
            raise SourceError(
                f"{where}: row {wrong[0]} has weight {table.weights[wrong[0]]}; weights are finite and at least 0"
            )
    if (labels := table.labels) is None:
        return
    if table.label_kind != "classes":
        _require_shape(labels, (count, table.num_classes), "float32", f"{where}: labels")
        if (index := first_infinite(labels.reshape(-1))) >= 0:
            row, column = divmod(index, table.num_classes)
            raise SourceError(
                f"{where}: row {row} has label {labels[row, column]}; labels are finite, or NaN if unknown"
            )
        return
    _require_shape(labels, (count,), "int64", f"{where}: labels")
    wrong = np.flatnonzero((labels < -1) | (labels >= table.num_classes))
    if wrong.size:
        raise SourceError(
            f"{where}: row {wrong[0]} has label {labels[wrong[0]]}; classes are 0..{table.num_classes - 1}, and -1 if "
            "unknown"
        )


def _require_shape(values: NDArray[Any], shape: tuple[int, ...], dtype: str, where: str) -> None:
    """Raise ShapeError for another shape or dtype."""
    if values.shape != shape or values.dtype != dtype:
        raise ShapeError(
            f"{where} has shape {values.shape} and dtype {values.dtype}; it must be {shape} {dtype}"
        )


def _check_times(times: IdArray, where: str, *, may_lack: bool) -> None:
    """Raise GraphError for a time out of range. If ``may_lack``, the least int64 means that a row has no time."""
    for start in range(0, len(times), _STEP):
        part = times[start : start + _STEP]
        is_bad = (part < -MAX_SECONDS) | (part > MAX_SECONDS)
        wrong = np.flatnonzero(is_bad & (part != NO_TIME) if may_lack else is_bad)
        if wrong.size:
            row = int(wrong[0])
            raise GraphError(
                f"{where}: row {start + row} is {part[row]}; times are seconds in {-MAX_SECONDS}..{MAX_SECONDS}"
            )
