"""Tables of rows to predict, and the times of nodes, once the keys of a graph are numbered.

A *key* is a value that identifies a node. A *task* has the parts train, valid and test, each of them a table with rows
to predict (`KeyedRows`). `read_task` reads a task: the labels of all parts together, so that classes have one number in
all of them. `read_seconds` reads a column of times.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.label_columns import label_bytes, read_label_columns
from gloader.convert.keyed_edges import column_where
from gloader.convert.readers.node_arrays import count_classes, to_ids
from gloader.convert.readers.parted_table import PartedTable
from gloader.convert.readers.table_streams import ColumnNotes, placed_columns
from gloader.convert.source import TaskSource
from gloader.core.malformed import shown
from gloader.dataset.column_values import MICROSECONDS, times
from gloader.dataset.values import label_kind_of
from gloader.errors import GraphError, SourceError
from gloader.types import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.keyed_graph import KeyedTask
    from gloader.convert.keys.numbering import KeyStream, Numbering
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.types import IdArray

_CHUNK_ROWS: Final = 1 << 16  # ids of rows that are read at a time
# Bytes per row of a part while it is read: node, time and weight, in batches, as one array, and those that are left.
_ROW_BYTES: Final = 3 * (8 + 8 + 4)


def task_bytes(task: KeyedTask, counts: Sequence[int]) -> int:
    """Return the memory to read a task whose parts have ``counts`` rows, without the names of classes. Pure."""
    labels = [
        label_bytes(rows.table, rows.labels.columns, count)
        for rows, count in zip(task.parts, counts, strict=True)
        if rows.labels is not None
    ]
    return _ROW_BYTES * sum(counts) + sum(labels)


def read_task(
    task: KeyedTask,
    counts: Sequence[int],
    *,
    node_type: str,
    keys: tuple[Numbering, Mapping[str, KeyStream]] | None,
    budget_bytes: int,
    notes: ColumnNotes,
) -> tuple[TaskSource, ...]:
    """Read the tables of a task. Rows whose key no node has are left out, and the notes count them.

    Parameters
    ----------
    task : the tables
    counts : the number of rows of each part
    node_type : the type's name in the dataset
    keys : the numbered keys of the type, and the stream of each part by its name; None if the rows have ids
    budget_bytes : memory for the task, at least `task_bytes`
    notes : receives the receipt's lines on the columns

    Raises
    ------
    SourceError
        A time is missing, a weight is negative or not finite, or labels or other values are malformed. The message
        names file and row.
    GraphError
        An id is no whole number.
    BudgetError
        The names of classes do not fit the memory.
    """
    # While labels are read, they take more than later, together with the part of them that is kept.
    labels, names = _labels(task, counts, budget_bytes - _ROW_BYTES * sum(counts), notes)
    kind = label_kind_of(labels)
    sources, start = [], 0
    for rows, count in zip(task.parts, counts, strict=True):
        table = rows.table
        if keys is None:
            nodes, is_kept = _ids(table, rows.node), np.ones(count, np.bool_)
        else:
            ids = keys[0].ids(keys[1][rows.name], _CHUNK_ROWS)
            nodes = np.concatenate([np.empty(0, np.int64), *ids])
            is_kept = nodes >= 0
        seconds, own = None, None
        if rows.time is not None:
            seconds = read_seconds(table, rows.time, count, may_lack=False)[is_kept]
        if rows.labels is not None:
            own, start = labels[start : start + count][is_kept], start + count
        sources.append(
            TaskSource(
                name=rows.name,
                node_type=node_type,
                nodes=nodes[is_kept],
                times=seconds,
                labels=own,
                weights=None if rows.weight is None else _weights(table, rows.weight)[is_kept],
                label_kind=None if own is None else kind,
                label_names=() if own is None else names,
                num_classes=0 if own is None else max(count_classes(labels), len(names)),
                where=str(table.path),
            )
        )
        notes.add(
            f"{rows.name}: {np.count_nonzero(is_kept):,} rows of {table.path.name}, {rows.node} is the node"
            + ("" if rows.time is None else f", {rows.time} the time in seconds, rounded down")
            + ("" if rows.weight is None else f", {rows.weight} the weight")
            + _left_out(table, rows.node, is_kept)
            + (", without labels" if own is None else ""),
            table,
            [rows.node, rows.time, rows.weight, *(rows.labels.columns if rows.labels is not None else ())],
        )
    return tuple(sources)


def read_seconds(table: NumberTable, column: str, num_rows: int, *, may_lack: bool) -> IdArray:
    """Return the times (N,) in a column in seconds since 1970, rounded down, `NO_TIME` where missing.

    Raises
    ------
    SourceError
        A value is no time, or is missing without ``may_lack``. The message names file, row and column.
    ShapeError
        The table has other than ``num_rows`` rows.
    """
    seconds = np.empty(num_rows, np.int64)
    for ((array, place),) in placed_columns(table, [column], num_rows):
        read = times(array, place=place)
        if not may_lack and read.is_missing.any():
            raise place.refused(int(read.is_missing.argmax()), "missing", "each row to predict has a time")
        seconds[place.first : place.first + len(array)] = np.where(
            read.is_missing, NO_TIME, read.values // MICROSECONDS
        )
    return seconds


def key_at(table: NumberTable, column: str, row: int) -> str:
    """Return the value of a row in a column of keys, for messages. Reads the column up to this row."""
    done = 0
    for batch in table.read_arrow([column], error=SourceError):
        if row < done + batch.num_rows:
            return shown(batch.column(0)[row - done].as_py())
        done += batch.num_rows
    return ""


def _left_out(table: NumberTable, column: str, is_kept: NDArray[np.bool_]) -> str:
    """Return the text on rows of a part whose key no node has, empty if there are none."""
    if is_kept.all():
        return ""
    row, count = int(is_kept.argmin()), np.count_nonzero(~is_kept)
    return f", dangling: {count:,} rows left out, first {key_at(table, column, row)} in row {row:,}"


def _labels(
    task: KeyedTask, counts: Sequence[int], budget_bytes: int, notes: ColumnNotes
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the labels of the parts with labels, one part after the other, and the names of classes or columns."""
    choice = next((rows.labels for rows in task.parts if rows.labels is not None), None)
    if choice is None:
        return np.empty(0, np.int64), ()
    # A part without labels is left out. All others have the same columns of labels.
    parts = [(rows.table, count) for rows, count in zip(task.parts, counts, strict=True) if rows.labels]
    found = ColumnNotes()

    def read(table: NumberTable, num_rows: int) -> tuple[NDArray[Any], tuple[str, ...]]:
        return read_label_columns(
            table,
            choice.columns,
            as_=choice.as_,
            num_rows=num_rows,
            budget_bytes=budget_bytes,
            notes=found,
        )

    whole = PartedTable(
        path=Path(", ".join(table.path.name for table, _ in parts)),
        parts=tuple(table for table, _ in parts),
        chosen=choice.columns,
    )
    whole.require_one_kind(choice.columns, SourceError)
    try:
        labels, names = read(whole, sum(count for _, count in parts))
    except SourceError:
        # The error counts rows over all files. That of a file itself has its name and the number of its row.
        for part in parts:
            read(*part)
        raise
    notes.lines.extend(f"{task.name} {line}" for line in found.lines)
    return labels, names


def _ids(table: NumberTable, column: str) -> IdArray:
    """Return the node ids (n,) in a column. Raises GraphError for a value that is no whole number."""
    where = column_where(table, column)
    return np.concatenate(
        [np.empty(0, np.int64)]
        + [to_ids(ids, first=0, where=where) for (ids,) in table.read({column: "int64"}, error=GraphError)]
    )


def _weights(table: NumberTable, column: str) -> NDArray[np.float32]:
    """Return the weights (n,) in a column. Raises SourceError for one that is negative or not finite."""
    read = [values for (values,) in table.read({column: "float64"}, error=SourceError)]
    weights = np.concatenate([np.empty(0), *read]).astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        raise SourceError(
            f"{column_where(table, column)}: row {wrong[0]} has weight {weights[wrong[0]]}; weights are finite and at "
            "least 0"
        )
    return weights
