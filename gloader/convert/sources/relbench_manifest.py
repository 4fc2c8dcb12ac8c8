"""The descriptions in a folder of RelBench's format: its tables with keys and times, and its tasks.

RelBench (version 3.0.2, `relbench/manifest.py`) describes a database in ``manifest.yaml``, and each task in
``tasks/NAME/manifest.yaml``. `read_database` and `read_tasks` read the two, and check them against each other. A
*primary key* is a table's column that identifies its rows. A *foreign key* is a column with primary keys of another
table, its *parent*. A *task* is a column to predict for the rows of a table, or pairs of rows of two tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from gloader.core.malformed import read_yaml_mapping, shown
from gloader.core.near_names import near_advice
from gloader.dataset.column_values import MICROSECONDS
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MANIFEST: Final = "manifest.yaml"
_VERSION: Final = 1  # the only version of the format so far
TaskType = Literal[
    "regression",
    "binary_classification",
    "multiclass_classification",
    "multilabel_classification",
    "recommendation",
]
TaskKind = Literal["forecast", "autocomplete", "external"]
# The column that numbers the rows of a table without a primary key, in the tables of an autocomplete task.
_ROW_NUMBER: Final = "primary_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """A table of the database."""

    name: str
    key: str | None = None  # the column of primary keys
    time: str | None = None  # the column of the rows' times
    parents: Mapping[str, str] = field(default_factory=dict)  # the named table, by column of foreign keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database: its tables, and the times that divide it."""

    folder: Path
    name: str
    valid_time: int  # microseconds since 1970; later rows are not known when a model is trained
    test_time: int  # microseconds since 1970; later rows are not known when a model is tested
    tables: Mapping[str, TableEntry]

    @property
    def path(self) -> Path:
        """The description."""
        return self.folder / MANIFEST


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseTask:
    """A task of a database."""

    name: str
    folder: Path
    kind: TaskKind
    type: TaskType
    # The table of the rows to predict. A recommendation also has the table of the destinations.
    tables: tuple[str, ...]
    columns: tuple[str, ...]  # the columns of the task's files with the rows of ``tables``
    target: str | None  # the column of labels; None for a recommendation
    time: str | None  # the column of times
    hidden: tuple[tuple[str, str], ...]  # tables and their columns from which the label follows

    @property
    def is_recommendation(self) -> bool:
        """True if the task predicts pairs."""
        return self.type == "recommendation"


def read_database(folder: Path) -> Database:
    """Return the database that ``folder/manifest.yaml`` describes.

    Raises
    ------
    SourceError
        The description is missing or malformed, has an unknown version, or a foreign key names no table.
    """
    path = folder / MANIFEST
    content = _read(path, "tables, their keys and times")
    listed = content.get("tables")
    if not isinstance(listed, dict) or not listed:
        raise SourceError(
            f"{path}: tables is {shown(listed)}; it maps each table to its pkey, time_col and fkeys"
        )
    tables = {str(name): _table(str(name), given, path) for name, given in listed.items()}
    for table in tables.values():
        for column, parent in table.parents.items():
            if parent not in tables:
                raise SourceError(
                    f"{path}: fkeys of {table.name}: {column} names the table {shown(parent)}; "
                    f"{near_advice(parent, tables)}"
                )
    return Database(
        folder=folder,
        name=str(content.get("name", folder.resolve().name)),
        valid_time=_time(content.get("val_timestamp"), f"{path}: val_timestamp"),
        test_time=_time(content.get("test_timestamp"), f"{path}: test_timestamp"),
        tables=tables,
    )


def read_tasks(database: Database, names: tuple[str, ...] | None) -> tuple[DatabaseTask, ...]:
    """Return the tasks with the ``names``, or all tasks of the folder for None, in the order of their names.

    Raises
    ------
    ConfigError
        There is no task with one of the names.
    SourceError
        A description is malformed, or does not fit the tables.
    """
    there = sorted(path.parent.name for path in database.folder.glob(f"tasks/*/{MANIFEST}"))
    for name in names or ():
        if name not in there:
            advice = near_advice(name, there) if there else "it has no tasks"
            raise ConfigError(f"--task-tables {name}: {database.folder} has no such task; {advice}")
    return tuple(_task(name, database) for name in there if names is None or name in names)


def _read(path: Path, holds: str) -> Mapping[str, Any]:
    """Return a description. Raises SourceError for other versions."""
    content = read_yaml_mapping(path, what="the description", holds=holds, error=SourceError)
    version = content.get("manifest_version", _VERSION)
    if version != _VERSION:
        raise SourceError(
            f"{path} has manifest_version {shown(version)}; this build reads {_VERSION}, the version of RelBench 3"
        )
    return content


def _table(name: str, given: object, path: Path) -> TableEntry:
    """Return an entry of ``tables``."""
    entry: Any = {} if given is None else given
    parents = entry.get("fkeys") or {} if isinstance(entry, dict) else None
    if not isinstance(parents, dict):
        raise SourceError(
            f"{path}: the table {shown(name)} is {shown(given)}; it has pkey, time_col, and fkeys as a mapping from "
            "columns to tables"
        )
    key, time = (entry.get(word) for word in ("pkey", "time_col"))
    return TableEntry(
        name=name,
        key=None if key is None else str(key),
        time=None if time is None else str(time),
        parents={str(column): str(parent) for column, parent in parents.items()},
    )


def _task(name: str, database: Database) -> DatabaseTask:
    """Return a task with RelBench's defaults: an autocomplete task has the key and time of its table."""
    folder = database.folder / "tasks" / name
    path = folder / MANIFEST
    content = _read(path, "a task")
    for word, allowed in (("kind", get_args(TaskKind)), ("task_type", get_args(TaskType))):
        if content.get(word) not in allowed:
            raise SourceError(f"{path}: {word} is {shown(content.get(word))}; allowed: {', '.join(allowed)}")
    kind, task_type = cast("TaskKind", content["kind"]), cast("TaskType", content["task_type"])
    is_pair = task_type == "recommendation"
    ends = ("src_entity", "dst_entity") if is_pair else ("entity",)
    tables = tuple(str(content.get(f"{end}_table")) for end in ends)
    for end, table in zip(ends, tables, strict=True):
        if table not in database.tables:
            raise SourceError(f"{path}: {end}_table is {shown(table)}; {near_advice(table, database.tables)}")
    columns = tuple(content.get(f"{end}_col") for end in ends)
    target, time, first = content.get("target_col"), content.get("time_col"), database.tables[tables[0]]
    hidden = _hidden(content.get("remove_columns") or [], path)
    if kind == "autocomplete":
        columns, time = (first.key or _ROW_NUMBER,), first.time
        hidden = (*hidden, (tables[0], str(target)))
    needed = {f"{end}_col": column for end, column in zip(ends, columns, strict=True)}
    needed |= {} if is_pair else {"target_col": target}
    for word, value in needed.items():
        if not isinstance(value, str):
            raise SourceError(
                f"{path}: {word} is {shown(value)}; a {kind} task of type {task_type} names a column"
            )
    return DatabaseTask(
        name=name,
        folder=folder,
        kind=kind,
        type=task_type,
        tables=tables,
        columns=tuple(map(str, columns)),
        target=None if is_pair else str(target),
        time=None if time is None else str(time),
        hidden=hidden,
    )


def _hidden(given: object, path: Path) -> tuple[tuple[str, str], ...]:
    """Return the pairs of table and column in ``remove_columns``."""
    pairs: list[Any] = given if isinstance(given, list) else [given]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise SourceError(f"{path}: remove_columns has {shown(pair)}; it is a list of [table, column]")
    return tuple((str(table), str(column)) for table, column in pairs)


def _time(given: object, where: str) -> int:
    """Return the microseconds since 1970 of a date in ISO 8601. A time without a zone is in UTC."""
    try:
        read = datetime.fromisoformat(str(given))
    except ValueError as failure:
        raise SourceError(f"{where} is {shown(given)}; it is a date such as 2005-01-01") from failure
    distance = read.replace(tzinfo=read.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (distance.days * 86_400 + distance.seconds) * MICROSECONDS + distance.microseconds
