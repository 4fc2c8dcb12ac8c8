"""Labels from the columns of a node table: classes of any values, or numbers to predict.

The columns' types and values decide between the two. `read_label_columns` notes the choice for the receipt. Classes are
int64 numbers (N,), and may have names. Values are float32 numbers (N, k), NaN where unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gloader.convert.columns.fits import COUNTED_BYTES
from gloader.convert.readers.column_names import ALMOST, LISTS
from gloader.convert.readers.table_streams import placed_columns
from gloader.core.malformed import shown
from gloader.core.near_names import near_advice
from gloader.core.units import format_bytes
from gloader.dataset.column_values import (
    Place,
    in_order,
    is_list,
    is_real,
    is_text,
    numbers,
    texts,
    truths,
)
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import BudgetError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.convert.options import LabelsAs
    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable

# The labels and their names, as `read_label_columns` returns them, and the end of the receipt's line on them.
_Labels: TypeAlias = tuple[NDArray[Any], tuple[str, ...], str]

# Most bytes of the names of classes, which are stored in the commit record of at most 16 MiB.
_MOST_NAME_BYTES: Final = 4 << 20
# Whole numbers with more different values than this may be classes or amounts.
_MOST_SURE_CLASSES: Final = 1000
_MOST_SHOWN: Final = 8  # classes that a note shows with their counts
_WHOLE: Final = re.compile(r"-?\d{1,15}")
_LONG_NAME: Final = 40  # characters of a name in a note
# Bytes per label while labels are read: float64 numbers, their sorted copy, classes and marks.
_SUM_BYTES: Final = 34


def read_label_columns(
    table: NumberTable,
    columns: Sequence[str],
    *,
    as_: LabelsAs | None,
    num_rows: int,
    budget_bytes: int,
    notes: ColumnNotes,
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the labels in the ``columns``, and the names of the classes or of the label columns.

    Labels are int64 (N,) classes, -1 where unknown, or float32 (N, k) numbers, NaN where unknown. Classes that are the
    numbers 0..C-1 have no names.

    Of one column, texts are classes in the order of their values. Bools are the classes false and true. Whole numbers
    0..C-1 are classes as they are, with -1 where unknown; other whole numbers are classes in their order. Numbers with
    fractions are values. In several columns, or in a column of lists, 0 and 1 are several labels per node
    (multilabel), and other numbers are values. A missing value is an unknown label.

    Parameters
    ----------
    table : the table, with a row per node
    columns : the names of one column or of several
    as_ : "classes" or "values" for numbers that may be both; None decides as above
    num_rows : N
    budget_bytes : memory for the labels
    notes : receives the receipt's line on the columns

    Raises
    ------
    SourceError
        A column is missing, its type or a value cannot be a label, or labels may be both classes and values.
    ShapeError
        The table has other than ``num_rows`` rows.
    BudgetError
        The labels take more than ``budget_bytes``.
    """
    for name in columns:
        if name not in table.names:
            raise SourceError(
                f"{table.path} has no column {shown(name)} for labels: {near_advice(name, table.names)}"
            )
    width = _width(table, columns)
    needed = label_bytes(table, columns, num_rows)
    if needed > budget_bytes:
        raise BudgetError(
            f"{table.path}: {width} label{'s' * (width != 1)} for each of {num_rows:,} rows take "
            f"{format_bytes(needed)} while they are read; the memory budget is {format_bytes(budget_bytes)}. Raise "
            "--memory-budget",
            short_bytes=needed - budget_bytes,
        )
    reader = _Reader(table=table, num_rows=num_rows, budget_bytes=budget_bytes - needed)
    if len(columns) > 1 or is_list(table.arrow_type(columns[0])):
        labels, names, text = _several(reader, columns, as_)
    else:
        labels, names, text = _single(reader, columns[0], as_)
    notes.add(f"labels: {', '.join(columns)} of {table.path.name}, {text}", table, columns)
    return labels, names


def label_bytes(table: NumberTable, columns: Sequence[str], num_rows: int) -> int:
    """Return the memory to read the labels of ``num_rows`` rows, without the names of classes. Pure."""
    return _SUM_BYTES * _width(table, columns) * num_rows


def _width(table: NumberTable, columns: Sequence[str]) -> int:
    """Return the labels of a row: a list counts as many."""
    return sum(max(1, table.width(name)) for name in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads columns of a table as labels."""

    table: NumberTable
    num_rows: int
    budget_bytes: int  # memory for the names of classes

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column's numbers (N, width), NaN where missing. Raises SourceError for infinity."""
        width = max(1, self.table.width(name))
        values = np.empty((self.num_rows, width))
        for ((column, place),) in placed_columns(self.table, [name], self.num_rows):
            if self.table.kind(name) == "bool":
                part = truths(column, place=place)[:, None]
            else:
                read = numbers(column, width=width, place=place)
                part = read.values
                is_beyond = ~np.isnan(part) & (np.abs(part) > np.finfo(np.float32).max)
                for is_bad, advice in (
                    (np.isinf(part), "a label must be finite, or missing where it is unknown"),
                    (is_beyond, "it is beyond float32: divide the labels by one number"),
                    (read.is_inexact, "such a large number is a key and no label; or divide all of them"),
                ):
                    if is_bad.any():
                        row, entry = np.unravel_index(int(is_bad.argmax()), is_bad.shape)
                        raise place.refused(int(row), f"{part[row, entry]:.17g}", advice)
            values[place.first : place.first + len(part)] = part
        return values

    def coded(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """Return each row's class (N,) by its text, -1 where missing, and the texts in order."""
        codes = np.empty(self.num_rows, np.int64)
        found: dict[str, int] = {}
        held = 0  # memory that the names take
        for ((column, place),) in placed_columns(self.table, [name], self.num_rows):
            read = texts(column, place=place).dictionary_encode()
            # The numbers of the block's values among all values so far, and -1 for a missing one.
            numbers_of = np.empty(len(read.dictionary) + 1, np.int64)
            numbers_of[-1] = -1
            for index, value in enumerate(read.dictionary.to_pylist()):
                if value not in found:
                    found[value] = len(found)
                    held += COUNTED_BYTES + len(value)
                numbers_of[index] = found[value]
            self._require_few(found, held, place)
            part = numbers_of[read.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
            codes[place.first : place.first + len(part)] = part
        names = in_order(found)
        rank = np.empty(len(names) + 1, np.int64)
        rank[-1] = -1
        rank[[found[value] for value in names]] = np.arange(len(names))
        return rank[codes], names

    def _require_few(self, found: dict[str, int], held: int, place: Place) -> None:
        """Raise SourceError or BudgetError for too many classes, or for names that are too long."""
        if len(found) > MAX_CLASSES or sum(map(len, found)) > _MOST_NAME_BYTES:
            raise SourceError(
                f"{place.where}: column {shown(place.column)} has more than {len(found) - 1:,} different values, which "
                f"are too many for named classes ({format_bytes(_MOST_NAME_BYTES)} of names): a column of texts as "
                "labels has a value for each class"
            )
        if held > self.budget_bytes:
            raise BudgetError(
                f"{place.where}: the classes of column {shown(place.column)} take more than "
                f"{format_bytes(self.budget_bytes)}, which is the rest of the memory budget. Raise --memory-budget",
                short_bytes=held - self.budget_bytes,
            )


def _single(reader: _Reader, name: str, as_: LabelsAs | None) -> _Labels:
    """Return the labels of one column, and the end of their note."""
    table = reader.table
    kind, arrow = table.kind(name), table.arrow_type(name)
    place = f"{table.path}: column {shown(name)}"
    # A text file's kinds come from its first rows. An empty kind may hold anything.
    is_number = is_real(arrow) or (is_text(arrow) and kind in {"integer", "number", "empty"})
    if kind == "bool" or (is_number and not (is_text(arrow) and as_ == "classes")):
        return _of_numbers(reader, name, as_)
    if not is_text(arrow) or kind.startswith(LISTS):
        raise SourceError(f"{place} has type {arrow}; labels are numbers, texts or bools")
    if as_ == "values" or (kind == ALMOST and as_ is None):
        raise SourceError(
            f"{place} holds texts; values are numbers, such as 1.5: write plain numbers"
            + ("" if as_ else ", or take the texts as classes")
        )
    codes, names = reader.coded(name)
    if not names:
        raise SourceError(f"{place} has no label in any row")
    if all(_WHOLE.fullmatch(value) is not None for value in names):
        # Whole numbers of a text file are the classes that they are in a typed file.
        flat = np.append(np.array(names, np.float64), np.nan)[codes]
        return _of_whole_numbers(flat, codes >= 0, place, as_)
    return codes, tuple(names), f"text -> {_classes_text(codes, names)}"


def _of_numbers(reader: _Reader, name: str, as_: LabelsAs | None) -> _Labels:
    """Return the labels of one column of bools or numbers: classes, or values if they have fractions."""
    place, is_bool = f"{reader.table.path}: column {shown(name)}", reader.table.kind(name) == "bool"
    values = reader.numbers(name)
    flat = values[:, 0]
    is_known = ~np.isnan(flat)
    if not is_known.any():
        raise SourceError(f"{place} has no label in any row")
    if as_ == "values":
        return _values(values, (name,), "bool -> values 0 and 1" if is_bool else "numbers -> values")
    if is_bool:
        codes, names = np.where(is_known, flat, -1).astype(np.int64), ("false", "true")
        return codes, names, f"bool -> {_classes_text(codes, names)}"
    is_fraction = is_known & (np.floor(flat) != flat)
    if is_fraction.any():
        row = int(is_fraction.argmax())
        if as_ == "classes":
            raise SourceError(
                f"{place}: row {row} is {flat[row]:.17g}; classes are whole numbers, texts or bools"
            )
        return _values(values, (name,), f"numbers with fractions (row {row}: {flat[row]:g}) -> values")
    return _of_whole_numbers(flat, is_known, place, as_)


def _of_whole_numbers(
    flat: NDArray[np.float64], is_known: NDArray[np.bool_], place: str, as_: LabelsAs | None
) -> _Labels:
    """Return whole numbers (N,) as classes. -1 is an unknown label.

    ``place`` is the file and its column, for messages.
    """
    is_known = is_known & (flat != -1)
    different = np.unique(flat[is_known])
    if different.size and different[0] < -1:
        row = int((is_known & (flat < -1)).argmax())
        raise SourceError(
            f"{place}: row {row} is {flat[row]:.0f}; classes are whole numbers from 0, and -1 is an unknown one. For "
            "numbers to predict write as: values; for classes write them as texts"
        )
    if different.size <= 1 and (flat == -1).any():
        only = f"{different[0]:.0f}" if different.size else "none"
        raise SourceError(
            f"{place}: the labels are -1 and {only}, and -1 means unknown, so one class would be left: write 0 in "
            "place of -1 if it is a class"
        )
    count = len(different)
    is_plain = bool(different[0] == 0 and different[-1] == count - 1)
    if as_ is None and not is_plain and count > _MOST_SURE_CLASSES:
        raise SourceError(
            f"{place} has {count:,} different whole numbers, {different[0]:.0f} to {different[-1]:.0f}: are they "
            "classes, or numbers to predict? Write as: classes or as: values"
        )
    if count > MAX_CLASSES:
        raise SourceError(f"{place} has {count:,} classes; at most {MAX_CLASSES:,} are allowed")
    codes = np.full(len(flat), -1, np.int64)
    codes[is_known] = np.searchsorted(different, flat[is_known])
    texts_of = [f"{value:.0f}" for value in different] if not is_plain or count <= _MOST_SHOWN else []
    if not is_plain and sum(map(len, texts_of)) > _MOST_NAME_BYTES:
        raise SourceError(
            f"{place} has {count:,} classes, whose names are too long: number them 0..{count - 1}"
        )
    text = _classes_text(codes, texts_of or [str(value) for value in range(count)])
    if is_plain:
        return codes, (), text
    return codes, tuple(texts_of), f"whole numbers, renumbered in their order -> {text}"


def _several(reader: _Reader, names: Sequence[str], as_: LabelsAs | None) -> _Labels:
    """Return the labels of several columns, or of a column of lists, and the end of their note."""
    if as_ == "classes":
        raise SourceError(
            f"{reader.table.path}: labels {', '.join(names)} as classes; one column has the class of a node. Several "
            "columns are as: values"
        )
    all_names: list[str] = []
    for name in names:
        arrow, kind = reader.table.arrow_type(name), reader.table.kind(name)
        is_texts = is_text(arrow) and kind not in {"integer", "number", "empty", "bool"}
        if is_texts or not (is_real(arrow) or is_list(arrow) or is_text(arrow) or kind == "bool"):
            raise SourceError(
                f"{reader.table.path}: column {shown(name)} has type {arrow}; several label columns are numbers or "
                "bools"
            )
        width = max(1, reader.table.width(name))
        all_names += [name] if width == 1 else [f"{name}[{entry}]" for entry in range(width)]
    values = np.column_stack([reader.numbers(name) for name in names])
    is_known = ~np.isnan(values)
    empty = np.flatnonzero(~is_known.any(axis=0))
    if empty.size:
        raise SourceError(
            f"{reader.table.path}: label {shown(all_names[empty[0]])} is unknown in every row: leave it out"
        )
    is_binary = bool((~is_known | (values == 0) | (values == 1)).all())
    # The values decide the recorded kind, with `as: values` too.
    if not is_binary:
        return _values(values, tuple(all_names), f"{len(all_names)} columns of numbers -> values")
    ones = np.count_nonzero(values == 1, axis=0).tolist()
    counts = [f"{name} {count:,}" for name, count in zip(all_names, ones, strict=True)]
    more = f" and {len(ones) - _MOST_SHOWN} more" if len(ones) > _MOST_SHOWN else ""
    shares = f"ones: {', '.join(counts[:_MOST_SHOWN])}{more}"
    text = f"{len(ones)} columns of 0 and 1 -> multilabel ({shares}){_unknown_text(~is_known)}"
    return values.astype(np.float32), tuple(all_names), text


def _values(values: NDArray[Any], names: tuple[str, ...], text: str) -> _Labels:
    """Return numbers (N, k) as values, and the end of their note, which begins with ``text``."""
    known = ~np.isnan(values)
    narrow = values.astype(np.float32)
    rounded = int(np.count_nonzero(known & (np.floor(values) == values) & (narrow != values)))
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    rounding = f", {rounded:,} whole numbers rounded to float32" if rounded else ""
    return narrow, names, f"{text}, {low:g} to {high:g}{rounding}{_unknown_text(~known)}"


def _classes_text(codes: NDArray[np.int64], names: Sequence[str]) -> str:
    """Return the number of classes, with their counts if they are few."""
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    text = f"{len(names):,} class{'es' * (len(names) != 1)}"
    if len(names) <= _MOST_SHOWN:
        cut = [name if len(name) <= _LONG_NAME else f"{name[:_LONG_NAME]}..." for name in names]
        text += (
            f" ({', '.join(f'{name} {count:,}' for name, count in zip(cut, counts.tolist(), strict=True))})"
        )
    return text + _unknown_text(codes[:, None] < 0)


def _unknown_text(is_unknown: NDArray[np.bool_]) -> str:
    """Return the text on rows without any label, from a mask (N, k) of unknown labels."""
    rows = int(np.count_nonzero(is_unknown.all(axis=1)))
    partly = int(np.count_nonzero(is_unknown.any(axis=1))) - rows
    return (f", {rows:,} rows without a label" if rows else "") + (
        f", {partly:,} rows with unknown labels among others" if partly else ""
    )
