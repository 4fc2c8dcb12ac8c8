"""Node tables: files with one row per node, and columns for features, labels or both.

The source ``edges:FILE`` reads its features and labels from such tables. A row belongs to the node in its id column. A
pandas index is an id column too. Without ids, row i belongs to node i. `node_features` and `node_labels` find the
columns by their names and kinds (numbers, text, ...), and read them. They add a line on the columns to `ColumnNotes`,
for the receipt: the record of the data that a conversion found and used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.readers.column_names import (
    ALMOST,
    LABEL_NAMES,
    OWN_LABELS,
    id_columns,
    listed,
    named_column,
    plain,
)
from gloader.convert.readers.label_values import to_values
from gloader.convert.readers.table_streams import column_text, is_feature, is_number, table_features
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.options import LabelsAs
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable
    from gloader.convert.source import FeatureStream
    from gloader.types import IdArray

# Bytes per node for the check of ids: the id, a mark, and a chunk's copies.
_CHECK_BYTES = 24
# Minimum number of rows for the check `_refuse_counting`, which finds a column with 0, 1, ... In fewer rows, a feature
# may have these values by chance.
_MIN_COUNTED = 3
_ROWS_READ: Final = 1 << 12  # rows of several labels that are read together


def node_features(
    table: NumberTable, *, budget_bytes: int, notes: ColumnNotes, has_labels: bool = False
) -> tuple[FeatureStream, IdArray | None]:
    """Return a node table's feature rows, in file order, and each row's node.

    If there is an id column or a pandas index, it joins the rows to nodes. Otherwise, rows are in node order. All other
    number columns are features.

    Parameters
    ----------
    table : the table, with a row per node
    budget_bytes : memory for the ids
    notes : receives the receipt's lines on columns
    has_labels : True if the table also has the labels, so that their column is not a feature

    Returns
    -------
    features : the rows
    row_ids : (N,) each row's node; None means that row i belongs to node i

    Raises
    ------
    SourceError
        The table is empty, has no column of numbers, or its first row or column is ambiguous. Or the ids are not
        0..N-1, each once.
    BudgetError
        The ids take more than ``budget_bytes``.
    """
    path = table.path
    if not table.names:
        raise SourceError(f"{path} is empty; features are a table with a row per node, or an (N, F) array")
    if table.counts_columns:
        raise SourceError(
            f"{path} has 0, 1 and so on in its first row: the header that pandas writes for columns without names, or "
            "features? Write the table with names: DataFrame(x).add_prefix('f')"
        )
    column = id_column(table)
    candidates = [name for name in table.names if name != column and name not in table.index]
    # Without ``has_labels``, only columns named "label" or "labels" are left out of the features.
    label = label_columns(table)[0] if has_labels else None
    columns = [
        name
        for name in candidates
        if is_feature(table, name) and plain(name) not in OWN_LABELS and name != label
    ]
    if (text := next((name for name in candidates if table.kind(name) == ALMOST), None)) is not None:
        raise SourceError(
            f"{path}: {column_text(table, text)} holds text that is almost a number, such as '[0.1, 0.2]', '1,5' or "
            "'7%'. Write plain numbers (for a list, one column per number, or Parquet), or leave the column out"
        )
    if not columns:
        raise SourceError(
            f"{path} has no columns of numbers that are features: {described(table, table.names)}. Turn them into "
            "numbers, or lists of numbers (Parquet)"
        )
    num_rows = table.count_rows()
    if not num_rows:
        raise SourceError(f"{path} has names and no rows; features are a table with a row per node")
    if column is None and len(columns) > 1:
        _refuse_counting(table, columns[0], num_rows)
    ids = read_ids(table, column, num_rows=num_rows, num_nodes=num_rows, budget_bytes=budget_bytes)
    rows = table_features(table, num_rows, tuple(columns))
    joined = (
        "in the order of the rows" if column is None and ids is None else f"joined by {column or 'the index'}"
    )
    texts = [column_text(table, name) for name in columns]
    notes.add(f"features: {_first_texts(texts)} of {path.name}, {joined}", table, [*columns, column])
    return rows, ids


def node_labels(
    table: NumberTable,
    *,
    num_nodes: int,
    budget_bytes: int,
    notes: ColumnNotes,
    labels_as: LabelsAs | None = None,
) -> NDArray[np.generic]:
    """Return a node table's labels as float64, not yet checked: (N,), or (N, k) of several columns.

    The label column is the only column of numbers, or the one with a name such as "label". If several columns of
    numbers are left, the user may ask for values: all of them are labels then. A table with ids may lack some nodes.
    Their labels are NaN.

    Parameters
    ----------
    table : the table, with a row per node
    num_nodes : N
    budget_bytes : memory for ids, and for several columns of labels
    notes : receives the receipt's lines on columns
    labels_as : the user's choice of classes or values

    Raises
    ------
    BudgetError
        Several columns of labels take more than ``budget_bytes``.
    SourceError
        No column has labels, or the ids are not 0..N-1, each once.
    ShapeError
        There are more rows than nodes, or fewer rows without ids.
    """
    path = table.path
    if not table.names:
        raise SourceError(f"{path} is empty; labels are a table with a row per node")
    column, labels = id_column(table), label_columns(table, labels_as)
    if table.num_rows is not None and table.num_rows > num_nodes:
        raise ShapeError(f"{path} has {table.num_rows} rows for {num_nodes} nodes; labels are one for each")
    # Each column is in memory as read, as a part of the whole, and perhaps in another order.
    if len(labels) > 1 and (needed := 3 * 8 * len(labels) * num_nodes) > budget_bytes:
        raise BudgetError(
            f"{path}: {len(labels)} labels of {num_nodes:,} nodes take {format_bytes(needed)}; the memory budget is "
            f"{format_bytes(budget_bytes)}. Raise --memory-budget"
        )
    columns = [np.concatenate([np.empty(0), *_column(table, label, num_nodes)]) for label in labels]
    values = columns[0] if len(columns) == 1 else np.column_stack(columns)
    if not len(values):
        raise SourceError(f"{path} has names and no rows; labels are a table with a row per node")
    if len(values) == num_nodes + 1 and table.counts_columns:
        raise ShapeError(
            f"{path} has {len(values)} rows for {num_nodes} nodes, and the first is 0: the header that pandas writes "
            "without a name? Write it with one, such as label"
        )
    if len(values) > num_nodes:
        raise ShapeError(f"{path} has more than {num_nodes} rows, and at most {num_nodes} are allowed")
    ids = read_ids(table, column, num_rows=len(values), num_nodes=num_nodes, budget_bytes=budget_bytes)
    # An index that only counts the rows does not identify nodes.
    is_joined = ids is not None or (column is not None and column not in table.index)
    if len(values) < num_nodes and not is_joined:
        raise ShapeError(
            f"{path} has {len(values)} rows for {num_nodes} nodes, and no column with the nodes' ids: add a column "
            "named id, or write a row for each node, with -1 where the label is unknown"
        )
    joined = (
        "in the order of the rows" if column is None and ids is None else f"joined by {column or 'the index'}"
    )
    left = "" if len(values) == num_nodes else f", {num_nodes - len(values):,} nodes are not in it"
    texts = _first_texts([column_text(table, label) for label in labels])
    notes.add(f"labels: {texts} of {path.name}, {joined}{left}", table, [*labels, column])
    if ids is None and not left:
        return values
    ids = np.arange(len(values)) if ids is None else ids
    placed = np.full((num_nodes, *values.shape[1:]), np.nan)  # the labels in node order
    placed[ids] = values
    return placed


def table_labels(table: NumberTable, *, num_nodes: int, budget_bytes: int) -> NDArray[np.float32]:
    """Return all columns of a table as labels, float32 (N, k), NaN where unknown. Row i belongs to node i.

    Parameters
    ----------
    table : the table, with a row per node
    num_nodes : N
    budget_bytes : memory for the labels

    Raises
    ------
    BudgetError
        The labels take more than ``budget_bytes``. Nothing was read.
    ShapeError
        The table has more or fewer than N rows.
    SourceError
        The file is malformed, or a label is infinite.
    FeatureValueError
        A number is beyond float32, or float32 would round a whole number.
    """
    stream = table_features(table, num_nodes)
    if (needed := 4 * num_nodes * stream.dim) > budget_bytes:
        raise BudgetError(
            f"{table.path}: {stream.dim} labels of {num_nodes:,} nodes take {format_bytes(needed)}; the memory budget "
            f"is {format_bytes(budget_bytes)}. Raise --memory-budget"
        )
    labels, count = np.empty((num_nodes, stream.dim), np.float32), 0
    for rows in stream.chunks(_ROWS_READ):
        if count + len(rows) > num_nodes:
            raise ShapeError(f"{table.path} has more than {num_nodes} rows; labels are one row per node")
        labels[count : count + len(rows)] = rows
        count += len(rows)
    if count < num_nodes:
        raise ShapeError(f"{table.path} has {count} rows for {num_nodes} nodes; labels are one row per node")
    return to_values(labels, where=str(table.path), allows_any=True)


def label_columns(table: NumberTable, labels_as: LabelsAs | None = None) -> list[str]:
    """Return the columns of a node table's labels, one or several; see `node_labels`.

    Raises
    ------
    SourceError
        No column has labels, or several may have them and ``labels_as`` is not "values".
    """
    column = id_column(table)
    candidates = [name for name in table.names if name != column and name not in table.index]
    numbers = [name for name in candidates if is_number(table, name)]
    what = f"the labels of {table.path}"
    label = numbers[0] if len(numbers) == 1 else named_column(numbers, LABEL_NAMES, what=what)
    if label is not None:
        return [label]
    if numbers and labels_as == "values":
        return numbers
    texts = [name for name in candidates if name not in numbers]
    if (text := named_column(texts, LABEL_NAMES, what=what)) is not None:
        raise SourceError(
            f"{table.path}: column {text!r} holds {table.kind(text)}s; classes are whole numbers from 0, and -1 where "
            "unknown: write pandas.factorize(labels)[0] in its place"
        )
    problem, several = "no column of numbers", ""
    if numbers:
        problem = f"{len(numbers)} columns that may be labels"
        several = '; for several labels per node give --labels-as values, in Python labels_as="values"'
    raise SourceError(
        f"{table.path} has {problem}: {described(table, table.names)}; labels are one column, a row per node: name it "
        f"label{several}"
    )


def id_column(table: NumberTable) -> str | None:
    """Return a node table's id column, or else its index. None means that rows are in node order. Pure.

    Raises
    ------
    SourceError
        Several columns may be the id column, or it does not have whole numbers.
    """
    candidates = id_columns(table.names) if table.has_names else []
    candidates = candidates or list(table.index)[:2]
    if len(candidates) > 1:
        raise SourceError(
            f"{table.path} has several columns that may be the ids of nodes: {listed(candidates)}; name one of them "
            "id, and the others otherwise"
        )
    if not candidates:
        return None
    # A column of floats is accepted for now. The reader refuses it, with an error that names the row without an id.
    if table.kind(candidates[0]) not in {"integer", "number", "empty"}:
        raise SourceError(
            f"{table.path}: column {candidates[0]!r} holds {table.kind(candidates[0])}s; the ids of nodes are the "
            "whole numbers 0..N-1, in edges too. Number the nodes, or give the column another name"
        )
    return candidates[0]


def read_ids(
    table: NumberTable, column: str | None, *, num_rows: int, num_nodes: int, budget_bytes: int
) -> IdArray | None:
    """Return each row's node id (n,). None means that row i belongs to node i.

    Parameters
    ----------
    table : the table, with a row per node
    column : the id column, or None without one; the table may still have an index
    num_rows : n
    num_nodes : N, at least n
    budget_bytes : memory for the ids

    Raises
    ------
    SourceError
        The ids are not 0..N-1, each once. The message names the row.
    BudgetError
        The ids take more than ``budget_bytes``.
    """
    if column is None and table.row_ids is None:
        return None
    if _CHECK_BYTES * num_nodes > budget_bytes:
        raise BudgetError(
            f"{table.path} is joined by the ids of its {num_rows:,} rows, which takes "
            f"{format_bytes(_CHECK_BYTES * num_nodes)}; the memory budget is {format_bytes(budget_bytes)}. Raise "
            "--memory-budget, or sort the table by id and leave the column out"
        )
    ids = np.empty(num_rows, np.int64)
    is_used, done = np.zeros(num_nodes, np.bool_), 0  # nodes that have a row, and the number of rows
    name = "the pandas index" if column is None else f"column {column!r}"
    for part in _ids(table, column):
        bad = (part < 0) | (part >= num_nodes)
        bad[~bad] |= is_used[part[~bad]]  # ids of earlier parts
        is_used[part[~bad]] = True
        # If an id occurs twice in one part, fewer nodes are marked than there are rows.
        if bad.any() or np.count_nonzero(is_used) != done + len(part):
            row = int(bad.argmax()) if bad.any() else _first_repeat(part)
            raise SourceError(
                f"{table.path}: row {done + row} has {part[row]} in {name}, which joins rows to nodes: ids are "
                f"0..{num_nodes - 1} for {num_nodes} nodes, each once. Number the nodes so, or leave the column out"
            )
        ids[done : done + len(part)] = part
        done += len(part)
    return None if np.array_equal(ids, np.arange(num_rows)) else ids


def described(table: NumberTable, columns: tuple[str, ...]) -> str:
    """Return columns with their kinds, for messages. Pure."""
    return _first_texts([f"{name} ({table.kind(name)})" for name in columns])


def _ids(table: NumberTable, column: str | None) -> Iterator[IdArray]:
    """Yield the node ids of consecutive rows, from a column or from the pandas index."""
    if column is None:
        yield np.array(table.row_ids, np.int64)
        return
    for (part,) in table.read({column: "int64"}, error=SourceError):
        # Unsigned ids beyond int64 become negative, and the caller refuses them.
        yield part.astype(np.int64, copy=False)


def _column(table: NumberTable, column: str, num_nodes: int) -> Iterator[NDArray[np.generic]]:
    """Yield a column's values as float64, and stop early after more than ``num_nodes`` + 1 rows."""
    done = 0
    for (part,) in table.read({column: "float64"}, error=SourceError):
        yield part.astype(np.float64, copy=False)
        done += len(part)
        if done > num_nodes + 1:
            return


def _refuse_counting(table: NumberTable, column: str, num_rows: int) -> None:
    """Raise SourceError if the first column has 0..N-1, each once, but no name of ids. It may be ids or a feature."""
    if table.kind(column) not in {"integer", "number"} or column != table.names[0] or num_rows < _MIN_COUNTED:
        return
    is_used, done = np.zeros(num_rows, np.bool_), 0
    # The loop ends at the first value that cannot be an id. For a feature, this is mostly within the first rows.
    for (part,) in table.read({column: "float64"}, error=SourceError):
        if not ((part >= 0) & (part < num_rows) & (np.floor(part) == part)).all():
            return
        is_used[part.astype(np.int64)] = True
        done += len(part)
        if np.count_nonzero(is_used) < done:
            return
    place = f"column {column!r}" if table.has_names else "the first column (no header)"
    raise SourceError(
        f"{table.path}: {place} holds 0..{num_rows - 1}, each once: the ids of the nodes, or a feature? Name it id "
        "to join the rows by it, or put it behind another column"
    )


def _first_texts(texts: list[str]) -> str:
    """Join the first eight texts, and count the others."""
    shown = ", ".join(texts[:8])
    return shown if len(texts) <= 8 else f"{shown} and {len(texts) - 8} more"


def _first_repeat(ids: IdArray) -> int:
    """Return the position of the first id that equals an earlier one."""
    _, first = np.unique(ids, return_index=True)
    is_first = np.zeros(len(ids), np.bool_)
    is_first[first] = True
    return int(np.argmin(is_first))
