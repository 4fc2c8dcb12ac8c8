"""The source ``relbench:DIR``: a database of tables with times, in the folder format of RelBench 3.

The folder has ``manifest.yaml``, ``db/TABLE.parquet``, and for each task ``tasks/NAME/manifest.yaml`` with
``train.parquet``, ``val.parquet`` and ``test.parquet``. Each table is a node type, and each foreign key makes two
relations (`gloader.convert.sources.relbench_tables`). Each task makes tables of rows to predict
(`gloader.convert.sources.relbench_tasks`). Columns become features by their types
(`gloader.convert.columns.default_kinds`), fitted to the rows up to the time of validation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.columns.default_kinds import default_columns
from gloader.convert.columns.feature_columns import encoded_features
from gloader.convert.readers.node_arrays import no_labels, require_node_memory
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.convert.source import FeatureStream, GraphSource, NodeSource, Splits
from gloader.convert.sources.edge_list import reading_bytes
from gloader.convert.sources.relbench_manifest import MANIFEST, read_database, read_tasks
from gloader.convert.sources.relbench_tables import foreign_key, open_rows
from gloader.convert.sources.relbench_tasks import task_parts
from gloader.dataset.column_values import MICROSECONDS
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.sources.relbench_manifest import Database, DatabaseTask
    from gloader.convert.sources.relbench_tables import Rows

_NO_SPLIT: Final = Splits(**{part: np.empty(0, np.int64) for part in ("train", "valid", "test")})

# Options that name files or columns, which the folder itself has.
_OTHERS: Final = ("features", "labels", "splits", "edge_time", "edge_features")


def open_relbench(argument: str, options: SourceOptions) -> GraphSource:
    """Open ``relbench:argument``. Times, keys and rows of tasks are held in memory, and encoders are fitted.

    If a task completes a column of rows (kind ``autocomplete``), all rows are nodes, since its test rows are later than
    the test time. Otherwise rows after the test time are left out, as RelBench's ``get_db`` does.

    Raises
    ------
    SourceError
        A description or a file is missing or malformed.
    ConfigError
        An option names no task, or names files or columns, which the folder itself has.
    FeatureValueError, ShapeError
        A value or a list of a column cannot be a feature.
    BudgetError
        Times, keys, labels or encoders do not fit the memory budget.
    """
    given = [name for name in _OTHERS if getattr(options, name) is not None]
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(
            f"relbench:{argument}: {flags}: a database has its features, labels and times in its own tables, and edges "
            "have the times of rows; leave this out"
        )
    names = None if options.task_tables is None else tuple(filter(None, options.task_tables.split(",")))
    database = read_database(Path(argument).expanduser())
    tasks = read_tasks(database, names)
    keeps_later = any(task.kind == "autocomplete" for task in tasks)
    budget, notes = options.budget_bytes, ColumnNotes()
    rows: dict[str, Rows] = {}
    for entry in database.tables.values():
        rows[entry.name] = open_rows(database, entry, keeps_later=keeps_later, budget_bytes=budget)
        budget -= rows[entry.name].held_bytes
    keys = [
        foreign_key(each, column, rows[parent])
        for each in rows.values()
        for column, parent in each.entry.parents.items()
    ]
    nodes = tuple(_nodes(each, database, tasks, notes, budget) for each in rows.values())
    parts = []
    for task in tasks:
        parts.append(task_parts(task, database, rows, budget_bytes=budget, notes=notes))
        budget -= sum(table.num_bytes for table in parts[-1].tables)
    tables = tuple(table for part in parts for table in part.tables)
    labelled = next((table.node_type for table in tables), next(iter(rows)))
    require_node_memory(rows[labelled].num_rows, budget, str(database.path))
    relations = tuple(relation for key in keys for relation in key.relations())
    features = [each.given for each in nodes]
    return GraphSource(
        name=database.name,
        origin=f"relbench:{argument}",
        nodes=nodes,
        relations=relations,
        labelled=labelled,
        num_classes=1,
        labels=no_labels(rows[labelled].num_rows),
        splits=_NO_SPLIT,
        links=tuple(link for part in parts for link in part.links),
        tables=tables,
        resident_bytes=options.budget_bytes
        - budget
        + sum(each.held_bytes for each in features if each is not None)
        + reading_bytes(*features, *(each.edges for each in relations)),
        column_notes=tuple(notes.lines),
        unused=(
            *notes.unused,
            *(text for each in rows.values() for text in each.left_out),
            *(text for part in parts for text in part.unused),
        ),
        key_note="; ".join(filter(None, (each.note for each in keys))),
    )


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the folders and files of a database."""
    del options
    folder = Path(argument).expanduser()
    return [folder / MANIFEST, folder / "db", folder / "tasks"]


def _nodes(
    rows: Rows, database: Database, tasks: Sequence[DatabaseTask], notes: ColumnNotes, budget_bytes: int
) -> NodeSource:
    """Return a table as a node type, with its columns as features."""
    entry, table = rows.entry, rows.table
    hidden = {
        column: [task.name for task in tasks if (entry.name, column) in task.hidden] for column in table.names
    }
    roles = {entry.key, entry.time, *entry.parents, *table.index}
    names = [column for column in table.names if column not in roles and not hidden[column]]
    is_fitted = None if rows.times is None else rows.times <= database.valid_time // MICROSECONDS
    columns = default_columns(table, names, num_rows=rows.num_rows, is_fitted=is_fitted)
    notes.add(_line(rows, columns.left_out, hidden), table, roles)
    features, encoders = _ones(rows.num_rows), None
    if columns.specs:
        features, encoders = encoded_features(
            table,
            columns.specs,
            num_rows=rows.num_rows,
            train_rows=is_fitted,
            budget_bytes=budget_bytes,
            notes=notes,
            what=f"features of {entry.name}",
        )
    return NodeSource(
        name=entry.name,
        num_nodes=rows.num_rows,
        features=features,
        keys=rows.node_keys(),
        encoders=encoders,
        row_times=rows.times,
    )


def _line(rows: Rows, left_out: Sequence[str], hidden: dict[str, list[str]]) -> str:
    """Return the receipt's line on a table: the roles of its columns, and the columns that are left out."""
    entry = rows.entry
    texts = [f"{entry.name}: the rows of {rows.table.path.name}, {rows.num_rows:,}"]
    texts += [f"key {entry.key}"] if entry.key is not None else []
    texts += [f"time {entry.time} in seconds, rounded down"] if entry.time is not None else []
    texts += [f"{column} hidden for {', '.join(by)}" for column, by in hidden.items() if by]
    texts += [f"left out: {', '.join(left_out)}"] if left_out else []
    return ", ".join(texts)


def _ones(num_rows: int) -> FeatureStream:
    """Return one feature that is 1 for every row, for a table without columns. Pure."""

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        for start in range(0, num_rows, max_rows):
            yield np.ones((min(max_rows, num_rows - start), 1), np.float32)

    return FeatureStream(chunks=chunks, num_rows=num_rows, dim=1, dtype=np.dtype(np.float32), names=("1",))
