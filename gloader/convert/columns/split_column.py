"""Splits from the columns of a node table: words, folds, columns of bools, or times.

A split puts nodes into the parts train, valid and test. `SplitSpec.parse` reads the entry ``split:`` of ``graph.yaml``,
and `read_split_column` reads the columns that it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.specs import microseconds_text
from gloader.convert.options import PARTS, EdgeShares, edge_shares
from gloader.convert.readers.table_streams import placed_columns
from gloader.convert.source import Splits
from gloader.core.malformed import shown
from gloader.core.near_names import near_advice
from gloader.core.units import format_bytes
from gloader.dataset.column_values import texts, times, truths
from gloader.errors import BudgetError, ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import ColumnNotes, NumberTable

# The words for the parts, in lower case, and the words for a node in no part.
_WORDS: Final[Mapping[str, str]] = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "test": "test",
    "testing": "test",
}
_NO_PART: Final = frozenset({"", "none", "no", "unused", "unlabeled", "unlabelled", "-", "nan", "null"})
_EXAMPLE: Final = (
    "write a column's name, or {column: fold, train: [0, 1, 2], valid: 3, test: 4}, or {train: is_train, valid: "
    "is_valid, test: is_test}, or {by: time, column: joined, shares: 60/20/20}"
)
_MOST_SHOWN: Final = 8  # values that a message lists
# Bytes per node while a split is read: its part, its time and the order of times, and the ids of the parts.
_NODE_BYTES: Final = 33


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSpec:
    """The columns of a split, as the user describes it. One of ``column`` and ``masks`` is given."""

    column: str | None = None  # words, folds or times
    # The part of each value of ``column``, by its text. None means the known words.
    parts: tuple[tuple[str, str], ...] | None = None
    masks: tuple[str, str, str] | None = None  # columns of bools for train, valid and test
    shares: EdgeShares | None = None  # of a split by time: the earliest nodes are train

    @classmethod
    def parse(cls, entry: object, *, where: str) -> SplitSpec:
        """Return the split of the entry ``split:``. Pure.

        Parameters
        ----------
        entry : a column's name, or a mapping as in the messages
        where : the file and its entry, for messages

        Raises
        ------
        ConfigError
            The entry is malformed.
        """
        if isinstance(entry, str) and entry:
            return cls(column=entry)
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: split: {shown(entry)}; {_EXAMPLE}")
        allowed = ("column", *PARTS, "by", "shares")
        for key in entry:
            if key not in allowed:
                raise ConfigError(
                    f"{where}: split: has the key {shown(key)}; {near_advice(str(key), allowed)}"
                )
        column = entry.get("column")
        if column is not None and not isinstance(column, str):
            raise ConfigError(f"{where}: split: column: {shown(column)}; {_EXAMPLE}")
        if "by" in entry or "shares" in entry:
            return cls._by_time(entry, column, where)
        given = {part: entry[part] for part in PARTS if part in entry}
        if column is None:
            if list(given) != list(PARTS) or not all(isinstance(each, str) for each in given.values()):
                raise ConfigError(f"{where}: split: {shown(entry)} names no columns; {_EXAMPLE}")
            train, valid, test = given.values()
            return cls(masks=(train, valid, test))
        return cls(column=column, parts=_value_parts(given, where) if given else None)

    @classmethod
    def _by_time(cls, entry: Mapping[Any, Any], column: str | None, where: str) -> SplitSpec:
        """Return a split by time. Raises ConfigError for a malformed entry."""
        if entry.get("by") != "time" or column is None or any(part in entry for part in PARTS):
            raise ConfigError(
                f"{where}: split: {shown(entry)}; a split by time is {{by: time, column: joined, shares: 60/20/20}}"
            )
        try:
            return cls(column=column, shares=edge_shares(entry.get("shares", "60/20/20")))
        except ConfigError as error:
            text = str(error).replace("edge split", "shares").replace("table", "part")
            raise ConfigError(f"{where}: split: {text}") from error

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return self.masks or ((self.column,) if self.column is not None else ())


def _value_parts(given: Mapping[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a value's text and its part. Raises ConfigError for another value, or one in two parts."""
    parts: dict[str, str] = {}
    for part, values in given.items():
        for value in values if isinstance(values, list) else [values]:
            if type(value) not in {int, str}:
                raise ConfigError(
                    f"{where}: split: {part}: {shown(value)}; the values of a part are whole numbers or texts"
                )
            if str(value) in parts:
                raise ConfigError(
                    f"{where}: split: the value {shown(value)} is in {parts[str(value)]} and in {part}; it may be in "
                    "one part"
                )
            parts[str(value)] = part
    return tuple(parts.items())


def read_split_column(
    table: NumberTable,
    spec: SplitSpec,
    *,
    num_rows: int,
    has_label: NDArray[np.bool_] | None = None,
    budget_bytes: int,
    notes: ColumnNotes,
) -> Splits:
    """Return the splits in a table's columns, as numbers of rows.

    Parameters
    ----------
    table : the table, with a row per node
    spec : the columns
    num_rows : N
    has_label : (N,) mask of rows with a label; a split by time divides these rows alone. None means all rows
    budget_bytes : memory for the split
    notes : receives the receipt's line on the columns

    Raises
    ------
    SourceError
        A column is missing, a value belongs to no part, a node is in two parts, or no node is in train. Or a column
        has a value that is no text, bool or time.
    ShapeError
        The table has other than ``num_rows`` rows.
    BudgetError
        The split takes more than ``budget_bytes``.
    """
    for name in spec.columns:
        if name not in table.names:
            raise SourceError(
                f"{table.path} has no column {shown(name)} for the split: {near_advice(name, table.names)}"
            )
    needed = _NODE_BYTES * num_rows
    if needed > budget_bytes:
        raise BudgetError(
            f"{table.path}: the split of {num_rows:,} rows takes {format_bytes(needed)} while it is read; the memory "
            f"budget is {format_bytes(budget_bytes)}. Raise --memory-budget",
            short_bytes=needed - budget_bytes,
        )
    if spec.masks is not None:
        owner, text = _of_masks(table, spec.masks, num_rows), "bools"
    elif spec.shares is not None:
        owner, text = _of_times(table, spec, num_rows, has_label)
    else:
        owner, text = _of_values(table, spec, num_rows)
    ids = [np.flatnonzero(owner == number) for number in range(1, len(PARTS) + 1)]
    if not len(ids[0]):
        raise SourceError(
            f"{table.path}: no row is in train by {', '.join(spec.columns)}; a model needs nodes to learn from"
        )
    counts = ", ".join(f"{part} {len(part_ids):,}" for part, part_ids in zip(PARTS, ids, strict=True))
    left = num_rows - sum(map(len, ids))
    rest = f", {left:,} in no part" if left else ""
    notes.add(
        f"split: {', '.join(spec.columns)} of {table.path.name}, {text}: {counts}{rest}", table, spec.columns
    )
    train, valid, test = ids
    return Splits(train=train, valid=valid, test=test)


def _of_masks(table: NumberTable, masks: tuple[str, str, str], num_rows: int) -> NDArray[np.uint8]:
    """Return each row's part (N,) by three columns of bools: 1, 2 or 3, and 0 for none. A missing bool is false.

    Raises SourceError for a row in two parts.
    """
    owner = np.zeros(num_rows, np.uint8)
    for columns in placed_columns(table, masks, num_rows):
        for number, (column, place) in enumerate(columns, 1):
            is_in = truths(column, place=place) == 1
            taken = owner[place.first : place.first + len(is_in)]
            twice = np.flatnonzero(is_in & (taken > 0))
            if twice.size:
                other = taken[twice[0]] - 1
                raise SourceError(
                    f"{table.path}: row {place.first + int(twice[0])} is in {PARTS[other]} and in "
                    f"{PARTS[number - 1]}, by {shown(masks[other])} and {shown(place.column)}; a node may be in one "
                    "part"
                )
            taken[is_in] = number
    return owner


def _of_values(table: NumberTable, spec: SplitSpec, num_rows: int) -> tuple[NDArray[np.uint8], str]:
    """Return each row's part (N,) by the words or folds of a column, and a text on the values.

    Raises SourceError for an unknown word, and for a fold that no row has.
    """
    import pyarrow.compute as pc

    column = spec.column or ""
    known = dict(_WORDS) if spec.parts is None else dict(spec.parts)
    numbers = {part: number for number, part in enumerate(PARTS, 1)}
    owner = np.zeros(num_rows, np.uint8)
    unknown: dict[str, int] = {}  # the first row of each unknown value
    seen: set[str] = set()
    for ((values, place),) in placed_columns(table, (column,), num_rows):
        read: Any = pc.utf8_trim_whitespace(texts(values, place=place)).dictionary_encode()
        part_of = np.zeros(len(read.dictionary) + 1, np.uint8)  # the last entry is for a missing value
        indices = read.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        for index, value in enumerate(read.dictionary.to_pylist()):
            word = value.lower() if spec.parts is None else value
            if word in known:
                part_of[index] = numbers[known[word]]
                seen.add(value)
            # Values of a fold column that no part names are left out, as the user's list says.
            elif spec.parts is None and word not in _NO_PART:
                unknown.setdefault(value, place.first + int(np.argmax(indices == index)))
            if len(unknown) > _MOST_SHOWN:
                break
        if unknown:
            break
        owner[place.first : place.first + len(indices)] = part_of[indices]
    if unknown:
        listed = ", ".join(shown(value) for value in list(unknown)[:_MOST_SHOWN])
        more = " and more" if len(unknown) > _MOST_SHOWN else ""
        row = next(iter(unknown.values()))
        raise SourceError(
            f"{table.path}: row {row}, column {shown(column)} is {shown(next(iter(unknown)))}; the words of a split "
            f"are train, valid, test, and none for a node in no part; unknown here: {listed}{more}. Name the values of "
            f"each part: {{column: {column}, train: [...], valid: [...], test: [...]}}"
        )
    absent = [value for value, _ in spec.parts or () if value not in seen]
    if absent:
        raise SourceError(
            f"{table.path}: column {shown(column)} has no value {shown(absent[0])}, which the split names for "
            f"{known[absent[0]]}"
        )
    return owner, "words" if spec.parts is None else f"by value ({_listed_parts(spec.parts)})"


def _listed_parts(parts: tuple[tuple[str, str], ...]) -> str:
    """Return the values of each part as text."""
    groups = {part: [value for value, of in parts if of == part] for part in PARTS}
    return "; ".join(f"{part} {', '.join(values)}" for part, values in groups.items() if values)


def _of_times(
    table: NumberTable, spec: SplitSpec, num_rows: int, has_label: NDArray[np.bool_] | None
) -> tuple[NDArray[np.uint8], str]:
    """Return each row's part (N,) by its time, earliest rows first, and a text on the first and last times of parts.

    Raises SourceError for a row that needs a time and has none.
    """
    column, shares = spec.column or "", spec.shares or (0.6, 0.2, 0.2)
    values = np.empty(num_rows, np.int64)
    is_used = np.ones(num_rows, np.bool_) if has_label is None else has_label
    for ((part, place),) in placed_columns(table, (column,), num_rows):
        rows = slice(place.first, place.first + len(part))
        read = times(part, place=place)
        wrong = np.flatnonzero(read.is_missing & is_used[rows])
        if wrong.size:
            raise place.refused(
                int(wrong[0]), "missing", "a split by time needs the time of every node with a label"
            )
        values[rows] = read.values
    used = np.flatnonzero(is_used)
    # Of equal times, the earlier row comes first.
    used = used[np.argsort(values[used], kind="stable")]
    ends = [round(shares[0] * len(used)), round((shares[0] + shares[1]) * len(used))]
    owner = np.zeros(num_rows, np.uint8)
    texts_of = []
    for number, ids in enumerate(np.split(used, ends), 1):
        owner[ids] = number
        if len(ids):
            span = microseconds_text(int(values[ids[0]])), microseconds_text(int(values[ids[-1]]))
            texts_of.append(f"{PARTS[number - 1]} {span[0]} to {span[1]}")
    return owner, f"by time ({'; '.join(texts_of)})"
