"""A Parquet file as a stream of numbers and number lists, batch by batch.

`ParquetTable` implements `NumberTable`, the interface through which edges, features and labels are read from tables.
`ParquetTable.open` reads the columns' types. A Parquet file consists of row groups, and a row group has pages for each
column. `ParquetTable.read` unpacks a few pages at a time, so that memory does not depend on the file's size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gloader.convert.readers.column_names import LISTS, is_unnamed, no_whole_numbers, twice_in
from gloader.core.malformed import MALFORMED, shown
from gloader.errors import GloaderError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import Columns, Number, TableError

# Numbers per batch: 2 MB of int64, and large enough for pyarrow's full speed.
_BATCH_NUMBERS = 1 << 18
# Read buffer per column, in bytes.
_BUFFER_BYTES = 1 << 16
# Number of rows at the file's start from which the length of a column's lists is taken.
_FIRST_ROWS = 100
# Number of row groups at the file's start. The largest of them gives the size of a group.
_FIRST_GROUPS = 8
# Bytes of memory per column during reading: a page, its dictionary and the packed page, of 1 MiB each.
_PAGE_BYTES = 3 << 20
# The errors of pyarrow for a damaged file.
_DAMAGED = (pa.ArrowException, OSError, *MALFORMED)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file for reading in pieces. By default, pyarrow would buffer all requested columns."""
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """A Parquet file's columns with numbers or number lists."""

    path: Path
    names: tuple[str, ...]  # the columns' names
    num_rows: int
    kinds: tuple[str, ...] = ()  # the columns' kinds, as in `NumberTable.kind`
    widths: tuple[int, ...] = ()  # the columns' widths, as in `NumberTable.width`
    group_bytes: int = 0  # unpacked bytes of a row group
    index: tuple[str, ...] = ()  # the columns of a pandas index
    row_ids: range | None = None  # a pandas index that is stored as a range instead of a column, or None
    # A Parquet file always has the columns' names, and no header row.
    has_names: bool = field(default=True, init=False)
    counts_columns: bool = field(default=False, init=False)

    @classmethod
    def open(cls, path: Path) -> ParquetTable:
        """Read the file's schema.

        Raises
        ------
        SourceError
            The file is not a Parquet file, or two columns share a name.
        """
        try:
            with open_parquet(path) as file:
                schema, num_rows = file.schema_arrow, file.metadata.num_rows
                index, row_ids = _pandas_index(schema.pandas_metadata, num_rows)
                widths, group_bytes = _widths(file), _group_bytes(file)
        except _DAMAGED as error:
            raise SourceError(f"{path} is not a Parquet file, or is truncated: {error}") from error
        names = tuple(schema.names)
        twice = twice_in(names)
        if twice is not None:
            raise SourceError(f"{path} has the column {shown(twice)} twice; give each column another name")
        return cls(
            path=path,
            names=names,
            num_rows=num_rows,
            kinds=tuple(
                _kind(each, widths.get(name)) for name, each in zip(names, schema.types, strict=True)
            ),
            widths=tuple(max(1, widths.get(name, 1)) for name in names),
            group_bytes=group_bytes,
            index=tuple(name for name in names if name in index or is_unnamed(name)),
            row_ids=row_ids,
        )

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def kind(self, column: str) -> str:
        """Return a column's kind; see `NumberTable.kind`."""
        return self.kinds[self.names.index(column)]

    def width(self, column: str) -> int:
        """Return a column's numbers per row: 1, or the length of its lists."""
        return self.widths[self.names.index(column)]

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the memory to read ``columns``, without the results: a packed and an unpacked page per column."""
        return min(_PAGE_BYTES * sum(1 for _ in columns), 2 * self.group_bytes)

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `NumberTable.read`. Only integer columns can be read as int64."""
        done = 0
        try:
            with open_parquet(self.path) as file:
                # Types are checked before the first row, because a wrong type is a wrong column, not a wrong value.
                for name, number in columns.items():
                    self._check_type(file, name, number, error)
                batch_rows = max(1, _BATCH_NUMBERS // sum(map(self.width, columns)))
                for batch in file.iter_batches(
                    batch_size=batch_rows, columns=list(columns), use_threads=False
                ):
                    yield tuple(
                        self._numbers(name, batch.column(name), number, done, error)
                        for name, number in columns.items()
                    )
                    done += batch.num_rows
        except GloaderError:
            raise
        except _DAMAGED as failure:
            raise SourceError(f"{self.path} is truncated or corrupt: {failure}") from failure

    def _check_type(self, file: pq.ParquetFile, name: str, number: Number, error: TableError) -> None:
        """Raise ``error`` if a column's type cannot be read as ``number``."""
        kind = file.schema_arrow.field(name).type
        element = kind.value_type if _is_list(kind) else kind
        is_date = number == "time" and (pa.types.is_timestamp(element) or pa.types.is_date(element))
        is_real = pa.types.is_floating(element) or (number != "time" and _is_real(element))
        if is_date or pa.types.is_integer(element) or (number != "int64" and is_real):
            return
        if pa.types.is_floating(element):
            row = self._first_missing(file, name)
            raise error(f"{self.path}: column {name!r} has type {kind}; {no_whole_numbers(row)}")
        wanted = {"int64": "integers", "time": "seconds or timestamps"}.get(number, "numbers")
        raise error(f"{self.path}: column {name!r} has type {kind}; it must hold {wanted}")

    def _first_missing(self, file: pq.ParquetFile, name: str) -> int | None:
        """Return the first row with a missing value in column ``name``, or None."""
        done = 0
        for batch in file.iter_batches(columns=[name]):
            is_missing = batch.column(0).is_null(nan_is_null=True)
            if is_missing.true_count:
                return done + int(is_missing.index(pa.scalar(value=True)).as_py())
            done += batch.num_rows
        return None

    def _numbers(self, name: str, column: Any, number: Number, done: int, error: TableError) -> NDArray[Any]:
        """Return the numbers (n,), or lists (n, k), in pyarrow's array ``column``, a batch of the column ``name``.

        ``done`` is the number of earlier rows, for messages. Raises ``error`` for a missing value.
        """
        if _is_list(column.type):
            column = self._flat(name, column, done)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        # A missing float becomes NaN. The caller decides whether NaN is valid.
        is_float = number.startswith("float") and not pa.types.is_boolean(column.type)
        width = self.width(name)
        if column.null_count and not is_float:
            row = done + column.is_null().index(pa.scalar(value=True)).as_py() // width
            raise error(
                f"{self.path}: row {row}, column {name!r} is null; every row needs a value: leave such rows out"
            )
        values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
        return values if width == 1 else values.reshape(-1, width)

    def _flat(self, name: str, lists: Any, done: int) -> Any:
        """Return the entries of all ``lists`` in a batch, one after another. Each list must be as long as the first."""
        width = self.width(name)
        lengths = lists.value_lengths().fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != width)
        if wrong.size:
            length = int(lengths[wrong[0]])
            entry = "no list" if length < 0 else f"a list of {length}"
            raise ShapeError(
                f"{self.path}: row {done + int(wrong[0])} has {entry} in column {name!r}; every row must have a list "
                f"of {width}, as the first list. Pad the lists, or leave the column out"
            )
        return lists.flatten()


def _widths(file: pq.ParquetFile) -> dict[str, int]:
    """Return the list length for each column with number lists, or 0 if its first rows have no list."""
    fields = {each.name: each.type for each in file.schema_arrow if _is_list(each.type)}
    names = [name for name, kind in fields.items() if _is_real(kind.value_type)]
    first = next(file.iter_batches(batch_size=_FIRST_ROWS, columns=names), None) if names else None
    if first is None:
        return dict.fromkeys(names, 0)
    widths = dict[str, int]()
    for name in names:
        lists: Any = first.column(name)
        widths[name] = next(filter(None, lists.value_lengths().drop_null().to_pylist()), 0)
    return widths


def _group_bytes(file: pq.ParquetFile) -> int:
    """Return the unpacked bytes in the largest of the first row groups."""
    metadata = file.metadata
    # The size is read per group, because reading a damaged column's metadata would crash pyarrow.
    groups = (metadata.row_group(each) for each in range(min(metadata.num_row_groups, _FIRST_GROUPS)))
    return max([0, *(each.total_byte_size for each in groups)])


def _is_list(kind: pa.DataType) -> bool:
    """True for pyarrow's types of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_real(kind: pa.DataType) -> bool:
    """True for pyarrow's types of real numbers, bools included."""
    is_plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(is_plain or pa.types.is_decimal(kind))


def _kind(kind: pa.DataType, width: int | None) -> str:
    """Return a column's kind, see `NumberTable.kind`.

    ``width`` is the length of its lists, 0 if it is unknown, or None for a column without number lists.
    """
    if width:
        return f"{LISTS} {width}"
    if pa.types.is_integer(kind):
        return "integer"
    if width == 0 or pa.types.is_null(kind):
        return "empty"
    is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "number" if is_number else str(kind).removeprefix("large_")


def _pandas_index(metadata: Any, num_rows: int) -> tuple[frozenset[str], range | None]:
    """Return the names of pandas' index columns, and an index that is stored as a range, or None without such a range.

    The range 0..N-1 counts as no index, because it only counts the rows. ``metadata`` is pandas' part of the schema.
    """
    described = metadata.get("index_columns", []) if isinstance(metadata, dict) else []
    ranges = [each for each in described if isinstance(each, dict) and each.get("kind") == "range"]
    for each in ranges:
        row_ids = range(int(each["start"]), int(each["stop"]), int(each["step"]))
        if len(row_ids) == num_rows and row_ids != range(num_rows):
            return frozenset(), row_ids
    return frozenset(name for name in described if isinstance(name, str)), None
