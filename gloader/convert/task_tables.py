"""Writing task tables and the times of rows into a dataset.

A *task table* lists rows to predict, each of them a node, perhaps with a time, labels and a weight. `check_tasks`
checks the values of a source's tables and row times, and `write_tasks` writes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.edge_rules import MAX_SECONDS, NO_TIME
from gloader.core.malformed import shown
from gloader.dataset.values import first_infinite
from gloader.errors import GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gloader.convert.source import GraphSource, TaskSource
    from gloader.dataset.writer import DatasetWriter
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.types import IdArray

_STEP: Final = 1 << 19  # entries per step of a check or of a copy


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
