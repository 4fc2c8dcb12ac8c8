"""Tables whose file stores the columns' types: Parquet and Arrow files, read through pyarrow.

`TypedTable` implements `NumberTable`, the interface through which edges, features and labels are read from tables. It
knows the columns' names, kinds and widths, and converts batches of pyarrow to numbers, number lists or plain values. A
`BatchFile` is the file format behind it: it reads the batches.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from gloader.convert.readers.column_names import LISTS, is_unnamed, no_whole_numbers, require_different
from gloader.core.malformed import MALFORMED
from gloader.dataset.column_values import is_list, is_real
from gloader.errors import GloaderError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import Columns, Number, TableError

# Number of rows at the file's start from which the length of a column's lists is taken.
_FIRST_ROWS = 100
# Numbers per batch: 2 MB of int64, and large enough for pyarrow's full speed.
_BATCH_NUMBERS = 1 << 18
# Most rows, and about the most bytes, per batch with a column of texts or other values of unknown size. Several copies
# of a batch exist at a time while keys are numbered.
_BATCH_TEXTS, _BATCH_TEXT_BYTES = 1 << 14, 1 << 20
# Kinds whose values have a known size of at most 8 bytes.
_SHORT: Final = frozenset({"integer", "number", "bool", "empty"})


class BatchFile(Protocol):
    """A file in a format that stores the columns' types. Every method opens the file again."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns' names and types."""
        ...

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        ...

    def batches(self, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns, in any order, in batches of at most ``max_rows``. Raises SourceError."""
        ...

    def reading_bytes(self, num_columns: int) -> int:
        """Return the bytes of memory for reading ``num_columns`` columns, in addition to the batches."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTable:
    """A file's columns with stored types; see `NumberTable`."""

    file: BatchFile
    names: tuple[str, ...]  # the columns' names
    kinds: tuple[str, ...]  # the columns' kinds, as in `NumberTable.kind`
    widths: tuple[int, ...]  # the columns' widths, as in `NumberTable.width`
    index: tuple[str, ...]  # the columns of a pandas index
    row_ids: range | None  # a pandas index that is stored as a range instead of a column, or None
    # Such a file always has the columns' names, and no header row. Its columns need no explanation.
    has_names: bool = field(default=True, init=False)
    counts_columns: bool = field(default=False, init=False)
    remark: str = field(default="", init=False)

    @classmethod
    def over(cls, file: BatchFile) -> TypedTable:
        """Return the table over a file, after a look at its first rows for the lengths of lists.

        Raises
        ------
        SourceError
            Two columns share a name, or the file is truncated or corrupt.
        """
        schema = file.schema
        names = tuple(schema.names)
        require_different(names, str(file.path))
        index, row_ids = _pandas_index(schema.pandas_metadata, file.num_rows)
        widths = _widths(file)
        return cls(
            file=file,
            names=names,
            kinds=tuple(
                _kind(each, widths.get(name)) for name, each in zip(names, schema.types, strict=True)
            ),
            widths=tuple(max(1, widths.get(name, 1)) for name in names),
            index=tuple(name for name in names if name in index or is_unnamed(name)),
            row_ids=row_ids,
        )

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.file.num_rows

    def count_rows(self) -> int:
        """Return the number of rows."""
        return self.file.num_rows

    def kind(self, column: str) -> str:
        """Return a column's kind; see `NumberTable.kind`."""
        return self.kinds[self.names.index(column)]

    def width(self, column: str) -> int:
        """Return a column's numbers per row: 1, or the length of its lists."""
        return self.widths[self.names.index(column)]

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the bytes of memory to read ``columns``, without the results."""
        return self.file.reading_bytes(sum(1 for _ in columns))

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `NumberTable.read`. Only integer columns can be read as int64."""
        # Types are checked before the first row, because a wrong type is a wrong column, not a wrong value.
        for name, number in columns.items():
            self._check_type(name, number, error)
        done = 0
        for batch in self._batches(list(columns)):
            yield tuple(
                self._numbers(name, batch.column(name), number, done, error)
                for name, number in columns.items()
            )
            done += batch.num_rows

    def arrow_type(self, column: str) -> pa.DataType:
        """Return a column's stored type, or the type of the values in its dictionary."""
        return plain_type(self.file.schema.field(column).type)

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named ``columns`` with their stored values; see `NumberTable.read_arrow`."""
        del error  # these formats have no bad rows
        types = [self.arrow_type(name) for name in columns]
        for batch in self._batches(columns):
            arrays = [
                plain_column(batch.column(name), kind) for name, kind in zip(columns, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return batches of the named columns that take a few megabytes."""
        rows = max(1, _BATCH_NUMBERS // max(1, sum(map(self.width, columns))))
        if all(self.kind(name) in _SHORT or self.kind(name).startswith(LISTS) for name in columns):
            return self.file.batches(columns, rows)
        # Types do not bound the length of texts, so the first rows decide. A dictionary would count whole.
        first = next(self.file.batches(columns, _FIRST_ROWS), None)
        if first is not None and first.num_rows:
            plain = [plain_column(first.column(name), self.arrow_type(name)) for name in columns]
            row_bytes = sum(each.nbytes for each in plain) // first.num_rows
            rows = min(rows, _BATCH_TEXT_BYTES // max(1, row_bytes))
        return self.file.batches(columns, max(1, min(rows, _BATCH_TEXTS)))

    def _check_type(self, name: str, number: Number, error: TableError) -> None:
        """Raise ``error`` if a column's type cannot be read as ``number``."""
        kind: Any = self.arrow_type(name)
        element = kind.value_type if is_list(kind) else kind
        is_date = number == "time" and (pa.types.is_timestamp(element) or pa.types.is_date(element))
        is_float = pa.types.is_floating(element)
        is_number = is_float or (number != "time" and _is_real_or_bool(element))
        if is_date or pa.types.is_integer(element) or (number != "int64" and is_number):
            return
        if is_float:
            row = _first_missing(self._batches([name]))
            raise error(f"{self.path}: column {name!r} has type {kind}; {no_whole_numbers(row)}")
        wanted = {"int64": "integers", "time": "seconds or timestamps"}.get(number, "numbers")
        raise error(f"{self.path}: column {name!r} has type {kind}; it must hold {wanted}")

    def _numbers(self, name: str, column: Any, number: Number, done: int, error: TableError) -> NDArray[Any]:
        """Return the numbers (n,), or lists (n, k), in pyarrow's array ``column``, a batch of the column ``name``.

        ``done`` is the number of earlier rows, for messages. Raises ``error`` for a missing value.
        """
        column = plain_column(column, self.arrow_type(name))
        if is_list(column.type):
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


@contextmanager
def naming_file(path: Path, problem: str) -> Iterator[None]:
    """Turn pyarrow's errors into a SourceError that names the file and the problem."""
    try:
        yield
    except GloaderError:
        raise
    except (pa.ArrowException, OSError, *MALFORMED) as error:
        raise SourceError(f"{path} {problem}: {error}") from error


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values in an encoded type: of a dictionary, of runs, or of views into buffers. Pure."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def plain_column(column: Any, kind: pa.DataType) -> Any:
    """Return pyarrow's array ``column`` with the type ``kind`` of `plain_type`. Pure."""
    return column if column.type.equals(kind) else column.cast(kind)


def _first_missing(batches: Iterable[pa.RecordBatch]) -> int | None:
    """Return the first row with a missing value in the only column of ``batches``, or None."""
    done = 0
    for batch in batches:
        is_missing = batch.column(0).is_null(nan_is_null=True)
        if is_missing.true_count:
            return done + int(is_missing.index(pa.scalar(value=True)).as_py())
        done += batch.num_rows
    return None


def _widths(file: BatchFile) -> dict[str, int]:
    """Return the list length for each column with number lists, or 0 if its first rows have no list."""
    fields = {each.name: each.type for each in file.schema if is_list(each.type)}
    names = [name for name, kind in fields.items() if _is_real_or_bool(kind.value_type)]
    first = next(file.batches(names, _FIRST_ROWS), None) if names else None
    if first is None:
        return dict.fromkeys(names, 0)
    widths = dict[str, int]()
    for name in names:
        lists: Any = first.column(name)
        widths[name] = next(filter(None, lists.value_lengths().drop_null().to_pylist()), 0)
    return widths


def _is_real_or_bool(kind: pa.DataType) -> bool:
    """True for pyarrow's types of real numbers, and for bools."""
    return is_real(kind) or bool(pa.types.is_boolean(kind))


def _kind(stored: pa.DataType, width: int | None) -> str:
    """Return a column's kind, see `NumberTable.kind`.

    ``width`` is the length of its lists, 0 if it is unknown, or None for a column without number lists.
    """
    kind = plain_type(stored)
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


def kept_rows(table: TypedTable, is_kept: NDArray[np.bool_]) -> TypedTable:
    """Return the rows of a table that the mask ``is_kept`` (n,) selects, as a table."""
    if is_kept.all():
        return table
    count = int(np.count_nonzero(is_kept))
    return TypedTable.over(_KeptRows(file=table.file, is_kept=is_kept, num_rows=count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptRows:
    """A file without the rows that a mask leaves out, as a `BatchFile`."""

    file: BatchFile
    is_kept: NDArray[np.bool_]  # (rows of the file,)
    num_rows: int  # selected rows

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    @property
    def schema(self) -> pa.Schema:
        """The columns' names and types, without remarks on the file's own rows."""
        return self.file.schema.remove_metadata()

    def batches(self, columns: Sequence[str], max_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the named columns of the selected rows; see `BatchFile.batches`."""
        first = 0
        for batch in self.file.batches(columns, max_rows):
            chosen = self.is_kept[first : first + batch.num_rows]
            first += batch.num_rows
            if chosen.any():
                yield batch if chosen.all() else batch.filter(pa.array(chosen))

    def reading_bytes(self, num_columns: int) -> int:
        """Return the bytes for reading; see `BatchFile.reading_bytes`."""
        return self.file.reading_bytes(num_columns)
