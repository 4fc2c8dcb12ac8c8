"""The tasks of a RelBench database as tables of a dataset: NAME.train, NAME.valid and NAME.test.

A task on one table becomes task tables: rows (node, time, label). A recommendation becomes link tables: a row for each
destination in the list of a source. The labels of all parts are read together, so that classes have one number in all
of them. Rows that name no node of the graph are left out and counted, as RelBench does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.label_columns import read_label_columns
from gloader.convert.readers.column_names import listed
from gloader.convert.readers.node_arrays import count_classes, require_memory
from gloader.convert.readers.parquet_table import open_parquet_table
from gloader.convert.readers.parted_table import PartedTable
from gloader.convert.readers.table_streams import ColumnNotes, placed_columns, regroup
from gloader.convert.source import LinkChunk, LinkSource, LinkStream, TaskSource
from gloader.convert.sources.relbench_tables import integers, whole_numbers
from gloader.core.malformed import shown
from gloader.dataset.column_values import MICROSECONDS, is_list, times
from gloader.dataset.values import label_kind_of
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from gloader.convert.options import LabelsAs
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.convert.sources.relbench_manifest import Database, DatabaseTask, TaskType
    from gloader.convert.sources.relbench_tables import Rows
    from gloader.dataset.column_values import Place
    from gloader.dataset.values import LabelKind
    from gloader.types import IdArray

# The parts of a task by the names of their files.
_PARTS: Final = {"train": "train", "val": "valid", "test": "test"}
# How each type's labels are read, and the kind that they have.
_KINDS: Final[dict[TaskType, tuple[LabelsAs, LabelKind]]] = {
    "regression": ("values", "values"),
    "binary_classification": ("values", "binary"),
    "multiclass_classification": ("classes", "classes"),
    "multilabel_classification": ("values", "multilabel"),
}
# Bytes per row of a task while it is read: node and time, in batches and as one array, and those that are left.
_ROW_BYTES: Final = 3 * 16
_ALLOWED: Final = {"binary": "0 and 1", "multilabel": "lists of 0 and 1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """The tables of one task, and texts on it for the receipt."""

    tables: tuple[TaskSource, ...] = ()
    links: tuple[LinkSource, ...] = ()
    unused: tuple[str, ...] = ()  # a text on each part without a file, or without labels


def task_parts(
    task: DatabaseTask, database: Database, rows: Mapping[str, Rows], *, budget_bytes: int, notes: ColumnNotes
) -> TaskParts:
    """Read a task's files. Raises SourceError for a malformed file, and BudgetError for labels beyond the budget."""
    tables, unused = {}, []
    for file, part in _PARTS.items():
        path = task.folder / f"{file}.parquet"
        if path.is_file():
            tables[part] = open_parquet_table(path)
            _require_columns(task, tables[part])
        else:
            unused.append(f"{task.name}.{part}: {path} is missing{_cure(task, database, file)}")
    if task.is_recommendation:
        return _link_parts(task, tables, rows, notes, unused)
    return TaskParts(
        tables=_row_parts(task, tables, rows[task.tables[0]], budget_bytes, notes), unused=tuple(unused)
    )


def _require_columns(task: DatabaseTask, table: NumberTable) -> None:
    """Raise SourceError if a file lacks the column of nodes or of times. Destinations and labels may be masked."""
    for column in filter(None, (task.columns[0], task.time)):
        if column not in table.names:
            raise SourceError(
                f"{table.path} has no column {shown(column)}; its columns are {listed(table.names)}"
            )


def _cure(task: DatabaseTask, database: Database, file: str) -> str:
    """Return how to make a missing file, as the end of a text."""
    if task.kind == "external":
        return ", and RelBench has no query for its labels"
    return (
        f"; RelBench makes it: relbench.load_dataset({str(database.folder)!r}).load_task({task.name!r})"
        f".get_table({file!r}, mask_input_cols=False).df.to_parquet({f'{task.folder}/{file}.parquet'!r})"
    )


def _row_parts(
    task: DatabaseTask, tables: Mapping[str, NumberTable], rows: Rows, budget_bytes: int, notes: ColumnNotes
) -> tuple[TaskSource, ...]:
    """Return the task tables of a task on one table."""
    target = str(task.target)
    count = sum(table.count_rows() for table in tables.values())
    require_memory(_ROW_BYTES * count, f"the rows of {task.folder}", budget_bytes)
    labelled = tuple(table for table in tables.values() if target in table.names)
    labels, names = _labels(task, target, labelled, budget_bytes, notes) if labelled else (np.empty(0), ())
    num_classes = max(count_classes(labels), len(names))
    sources, start = [], 0
    for part, table in tables.items():
        count = table.count_rows()
        nodes = np.concatenate([np.empty(0, np.int64), *_nodes(table, task.columns[0], rows)])
        seconds = None
        if task.time is not None:
            timed = placed_columns(table, [task.time], count)
            seconds = np.concatenate([np.empty(0, np.int64), *(_seconds(*each) for (each,) in timed)])
        kept = nodes >= 0
        of_labels: dict[str, Any] = {}
        if target in table.names:
            of_labels = {
                "labels": labels[start : start + count][kept],
                "label_kind": _KINDS[task.type][1],
                "label_names": names,
                "num_classes": num_classes,
            }
            start += count
        notes.add(
            f"{task.name}.{part}: {np.count_nonzero(kept):,} rows of {table.path.name}"
            + _left_out(int(np.count_nonzero(~kept)), rows.entry.name)
            + ("" if of_labels else ", without labels"),
            table,
            [task.columns[0], task.time, target],
        )
        sources.append(
            TaskSource(
                name=f"{task.name}.{part}",
                node_type=rows.entry.name,
                nodes=nodes[kept],
                times=None if seconds is None else seconds[kept],
                where=str(table.path),
                **of_labels,
            )
        )
    return tuple(sources)


def _labels(
    task: DatabaseTask, target: str, parts: tuple[NumberTable, ...], budget_bytes: int, notes: ColumnNotes
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the labels of all ``parts``, one after the other, and the names of their classes or columns."""
    as_, kind = _KINDS[task.type]
    whole, found = PartedTable(path=task.folder, parts=parts, chosen=(target,)), ColumnNotes()
    labels, names = read_label_columns(
        whole, [target], as_=as_, num_rows=whole.count_rows(), budget_bytes=budget_bytes, notes=found
    )
    if kind in _ALLOWED and label_kind_of(labels) != kind:
        raise SourceError(
            f"{task.folder}: the labels of a task of type {task.type} are {_ALLOWED[kind]}, and column "
            f"{shown(target)} has other values"
        )
    notes.lines.extend(f"{task.type} {line}" for line in found.lines)
    return labels, names


def _left_out(count: int, tables: str) -> str:
    """Return the text on ``count`` rows of a task without a node, empty if there are none."""
    return f", {count:,} left out that name no row of {tables}" if count else ""


def _nodes(table: NumberTable, column: str, rows: Rows) -> Iterator[IdArray]:
    """Yield the nodes of a task's rows, batch by batch, -1 for a row that names none."""
    for keys, is_there in whole_numbers(table, column):
        yield np.where(is_there, rows.find(keys), -1)


def _seconds(array: pa.Array[Any], place: Place) -> IdArray:
    """Return the times (n,) of a task's rows in seconds, rounded down. Raises SourceError for a missing one. Pure."""
    read = times(array, place=place)
    if read.is_missing.any():
        raise place.refused(int(read.is_missing.argmax()), "missing", "each row of a task has a time")
    return read.values // MICROSECONDS


def _link_parts(
    task: DatabaseTask,
    tables: Mapping[str, NumberTable],
    rows: Mapping[str, Rows],
    notes: ColumnNotes,
    unused: list[str],
) -> TaskParts:
    """Return the link tables of a recommendation. A part whose destinations are masked has none."""
    links = []
    for part, table in tables.items():
        if task.columns[1] not in table.names:
            unused.append(f"{task.name}.{part}: {table.path} has no column {shown(task.columns[1])}")
            continue
        pairs = _Pairs(table=table, task=task, first=rows[task.tables[0]], last=rows[task.tables[1]])
        kept, dropped = pairs.counts()
        notes.add(
            f"{task.name}.{part}: {kept:,} pairs of {table.path.name}"
            + _left_out(dropped, " or ".join(dict.fromkeys(task.tables))),
            table,
            [*task.columns, task.time],
        )
        links.append(
            LinkSource(
                name=f"{task.name}.{part}",
                rows=LinkStream(chunks=pairs.chunks, num_rows=kept, has_times=task.time is not None),
                where=str(table.path),
                relation=":".join((task.tables[0], task.name, task.tables[1])),
                is_free=True,
            )
        )
    return TaskParts(links=tuple(links), unused=tuple(unused))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """The pairs in a file of a recommendation: each row has a source, a list of destinations, and perhaps a time."""

    table: NumberTable
    task: DatabaseTask
    first: Rows  # the table of the sources
    last: Rows  # the table of the destinations

    def counts(self) -> tuple[int, int]:
        """Return the number of pairs of nodes, and of pairs that name no node. Reads the file."""
        kept = total = 0
        for src, dst, _ in self._read():
            kept += int(np.count_nonzero((src >= 0) & (dst >= 0)))
            total += len(src)
        return kept, total - kept

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the pairs of nodes; see `LinkStream.chunks`."""
        kept = (
            tuple(column[(columns[0] >= 0) & (columns[1] >= 0)] for column in columns)
            for columns in self._read()
        )
        for src, dst, time in regroup(kept, max_rows):
            yield LinkChunk(src=src, dst=dst, time=None if self.task.time is None else time)

    def _read(self) -> Iterator[tuple[IdArray, IdArray, NDArray[Any]]]:
        """Yield source, destination and time of all pairs, batch by batch; -1 for an end that is no node."""
        import pyarrow.compute as pc

        names = [*self.task.columns, *filter(None, [self.task.time])]
        for (array, place), (lists, list_place), *timed in placed_columns(
            self.table, names, self.table.count_rows()
        ):
            keys, is_there = integers(array, place)
            nodes = np.where(is_there, self.first.find(keys), -1)
            lengths: Any = 1
            if is_list(lists.type):
                lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
            ends, is_end = integers(pc.list_flatten(lists) if is_list(lists.type) else lists, list_place)
            seconds = np.zeros(len(nodes), np.int64)
            for each in timed:
                seconds = _seconds(*each)
            yield (
                np.repeat(nodes, lengths),
                np.where(is_end, self.last.find(ends), -1),
                np.repeat(seconds, lengths),
            )
