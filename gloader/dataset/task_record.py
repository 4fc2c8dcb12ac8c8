"""Records of task tables: sets of rows to predict, each of them a node, perhaps with a time.

A task table is a link table with one end. Its array ``nodes`` (n,) has the node of each row. Optional arrays have the
rows' times (n,), labels and weights (n,). Labels are classes (n,), -1 where unknown, or values (n, k), NaN where
unknown, as the labels of a dataset are (see `gloader.dataset.values`). The commit record ``dataset.json`` lists each
task table's arrays, its node type, and the kind of its labels. `read_tasks` checks them when a dataset is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.core.malformed import shown
from gloader.dataset.schema import TaskRecord
from gloader.dataset.values import LABEL_KINDS, MAX_CLASSES, TASK_DTYPES, are_names
from gloader.errors import FormatError
from gloader.ssd_store.format.manifest import ALLOWED, SEPARATOR, TASKS_FEATURE, is_of_tasks, is_type_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gloader.dataset.schema import DatasetSchema
    from gloader.ssd_store.format.format import ArrayRecord, Manifest

TASKS_ENTRY: Final = "tables"  # the record's entry that describes the task tables
# The plain names of a task table's arrays, without the table's folder.
ROW_NODES, ROW_TIMES, ROW_LABELS, ROW_WEIGHTS = "nodes", "times", "labels", "weights"
_MEMBERS: Final = {"type", "labels"}  # keys of a task table's entry in the record
_LABEL_MEMBERS: Final = {"kind", "names", "num_classes"}


def task_error(name: object, message: str) -> str:
    """Return ``message`` with the task table's name in front. Pure."""
    return f"table {repr(name)[:120]}: {message}"


def wrong_task(table: TaskRecord, schema: DatasetSchema) -> str | None:
    """Return a message about an invalid name, type or kind of labels of a task table, or None. Pure."""
    kind, classes, names = table.label_kind, table.num_classes, table.label_names
    most = 1 if kind == "binary" else MAX_CLASSES
    message = None
    if not is_type_name(table.name):
        message = f"a name has {ALLOWED}, no '{SEPARATOR}' inside, and neither a dot nor a dash at its ends"
    elif table.node_type not in schema.num_nodes:
        allowed = ", ".join(map(repr, list(schema.num_nodes)[:20]))
        message = f"there is no node type {shown(table.node_type)}; there are {allowed}"
    elif kind is None:
        pass
    elif kind not in LABEL_KINDS:
        message = f"the kind of its labels is {shown(kind)}; it must be {' or '.join(LABEL_KINDS)}"
    elif type(classes) is not int or not 1 <= classes <= most:
        message = f"num_classes is {shown(classes)}; with {kind} it must be a whole number in 1..{most}"
    elif names is not None and not are_names(list(names), classes):
        message = f"the names of the labels must be {classes} different texts"
    return None if message is None else task_error(table.name, message)


def wrong_columns(table: TaskRecord, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return a message about a wrong shape among a table's arrays, or None. Pure.

    Parameters
    ----------
    table : the table's record
    shapes : the arrays' shapes, by plain name
    """
    num_rows = shapes.get(ROW_NODES, next(iter(shapes.values())))[0]
    for name, shape in shapes.items():
        if shape[0] != num_rows:
            message = (
                f"{name} has {shape[0]} rows, and {ROW_NODES} has {num_rows}; it must have one for each row"
            )
            return task_error(table.name, message)
        width = (table.num_classes,) if name == ROW_LABELS and table.has_label_values else ()
        if shape[1:] != width:
            allowed = f"({num_rows}, {width[0]})" if width else f"({num_rows},)"
            return task_error(table.name, f"{name} has shape {shape}; it must be {allowed}")
    return None


def read_tasks(root: Path, manifest: Manifest, schema: DatasetSchema) -> tuple[TaskRecord, ...]:
    """Return a commit record's task tables in record order, after a check of their arrays. Pure.

    Parameters
    ----------
    root : the dataset's directory, for messages
    manifest : the commit record, not yet checked
    schema : the record's types

    Raises
    ------
    FormatError
        A table or one of its arrays is invalid, or an array belongs to no table.
    """
    # Task tables need the format feature. Without it, a "tables" entry in the metadata is a user's note.
    if TASKS_FEATURE not in manifest.required_features:
        return ()
    entries = manifest.metadata.get(TASKS_ENTRY)
    if not isinstance(entries, dict):
        raise FormatError(f"{root}: {TASKS_ENTRY!r} must list type and labels of each table")
    tables = tuple(_read_entry(root, name, entry, schema) for name, entry in entries.items())
    left = {name for name in manifest.arrays if is_of_tasks(name)}  # arrays that no table has yet
    for table in tables:
        arrays = task_arrays(manifest.arrays, table)
        left.difference_update(record.name for record in arrays.values())
        _check_arrays(root, table, arrays)
    if left:
        raise FormatError(f"{root}: array {min(left)!r} belongs to no task table in the record")
    return tables


def task_arrays(arrays: Mapping[str, ArrayRecord], table: TaskRecord) -> dict[str, ArrayRecord]:
    """Return a table's array records, by plain name. Pure."""
    return {name: arrays[table.folder + name] for name in TASK_DTYPES if table.folder + name in arrays}


def _read_entry(root: Path, name: str, entry: object, schema: DatasetSchema) -> TaskRecord:
    """Return the checked record of the task table ``name`` from its entry in the commit record."""

    def refuse(message: str) -> FormatError:
        return FormatError(f"{root}: {task_error(name, message)}")

    if not isinstance(entry, dict) or entry.keys() != _MEMBERS:
        raise refuse("it must have type and labels")
    labels = {} if entry["labels"] is None else entry["labels"]
    if not isinstance(labels, dict) or (labels and labels.keys() != _LABEL_MEMBERS):
        raise refuse("its labels must have kind, names and num_classes, or be null")
    names = labels.get("names")
    if names is not None and not isinstance(names, list):
        raise refuse("the names of the labels must be a list of texts")
    table = TaskRecord(
        name=name,
        node_type=entry["type"],
        label_kind=labels.get("kind"),
        label_names=None if names is None else tuple(names),
        num_classes=labels.get("num_classes", 0),
    )
    if (wrong := wrong_task(table, schema)) is not None:
        raise FormatError(f"{root}: {wrong}")
    return table


def _check_arrays(root: Path, table: TaskRecord, arrays: Mapping[str, ArrayRecord]) -> None:
    """Raise FormatError if an array is missing, or has a wrong dtype or shape."""
    needed = [ROW_NODES, *([] if table.label_kind is None else [ROW_LABELS])]
    for name in needed:
        if name not in arrays:
            message = f"the array {table.folder}{name} is missing"
            raise FormatError(f"{root}: {task_error(table.name, message)}")
    for name, record in arrays.items():
        allowed = table.dtypes(name)
        if record.dtype not in allowed:
            message = f"{name} has dtype {record.dtype}; it must be {' or '.join(allowed) or 'left out'}"
            raise FormatError(f"{root}: {task_error(table.name, message)}")
    wrong = wrong_columns(table, {name: record.shape for name, record in arrays.items()})
    if wrong is not None:
        raise FormatError(f"{root}: {wrong}")
