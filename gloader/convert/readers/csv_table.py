"""A CSV file as a stream of numbers, gzipped or not, with or without a header."""

from __future__ import annotations

import csv
import gzip
import io
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from gloader.core.malformed import MALFORMED, shown
from gloader.errors import GloaderError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.tables import Columns, Number, TableError

# As finely as numpy has them, so that none is rounded to a second unseen.
_DATE, _UTC_DATE = pa.timestamp("ns"), pa.timestamp("ns", tz="UTC")
# As long as a line may be. The reader holds several of them, and each is several times as large as numbers.
_BLOCK_BYTES = 1 << 20
_DELIMITERS = (",", "\t", ";", " ")
_COMMENTS = ("#", "%")
# Of text: a row of 100,000 numbers is shorter. Packed, a line without an end takes next to nothing.
MAX_LINE_CHARACTERS: Final = 1 << 20
# More comment lines than this before the first row are taken for a file of another kind.
_SNIFFED_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTable:
    """Rows of numbers as text. Lines of ``#`` or ``%`` before the first row are skipped.

    The separator is a comma, tab, semicolon or space, whichever the first row has. The first row is a header if
    one of its fields is no number.
    """

    path: Path
    names: tuple[str, ...]
    has_names: bool
    delimiter: str
    skipped_lines: int  # before the first row of numbers

    @classmethod
    def open(cls, path: Path) -> CsvTable:
        """Look at the first lines of the file.

        Raises
        ------
        SourceError
            The file cannot be read.
        """
        comments, first = _first_line(path)
        delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
        with _reading(path):
            fields = next(csv.reader([first], delimiter=delimiter), []) if first else []
        has_names = any(not _is_number(field) for field in fields)
        names = (
            tuple(field.strip() for field in fields)
            if has_names
            else tuple(f"c{i}" for i in range(len(fields)))
        )
        return cls(
            path=path,
            names=names,
            has_names=has_names,
            delimiter=delimiter,
            skipped_lines=comments + has_names,
        )

    @property
    def num_rows(self) -> None:
        """Unknown: only reading tells."""
        return

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `TableFile.read`."""
        try:
            with _reading(self.path):
                yield from self._read(columns)
        except pa.ArrowInvalid as failure:
            with _reading(self.path):
                explained = self._explained(columns, error, failure)
            raise explained from failure

    def count_rows(self) -> int:
        """Return the number of rows by reading them.

        Raises
        ------
        SourceError
            The file is malformed.
        """
        return sum(chunk[0].shape[0] for chunk in self.read({self.names[0]: "float64"}, error=SourceError))

    def _read(self, columns: Mapping[str, Number]) -> Iterator[Columns]:
        # pyarrow refuses an empty file, which is an empty table to us.
        if not self._has_rows():
            return
        kinds = {name: self._kind(name, number) for name, number in columns.items()}
        reader = pacsv.open_csv(
            self.path,
            read_options=pacsv.ReadOptions(
                block_size=_BLOCK_BYTES, skip_rows=self.skipped_lines, column_names=list(self.names)
            ),
            parse_options=pacsv.ParseOptions(delimiter=self.delimiter),
            # Without nulls of its own, pyarrow would take words such as "null" for missing numbers.
            convert_options=pacsv.ConvertOptions(
                column_types=kinds,
                include_columns=list(columns),
                null_values=["", "nan", "NaN"],
            ),
        )
        with reader:
            for batch in reader:
                for name in columns:
                    # Floats become NaN where empty; integers have no such value.
                    if kinds[name] == pa.int64() and batch.column(name).null_count:
                        raise pa.ArrowInvalid(f"column {name} has empty fields")
                yield tuple(_numbers(batch.column(name), columns[name]) for name in columns)

    def _kind(self, name: str, number: Number) -> pa.DataType:
        """Return the type as which a column is read: of times, the one that the first row's is."""
        if number != "time":
            return pa.type_for_alias(number)
        with _text(self.path) as file:
            lines = islice(_lines(file, self.path), self.skipped_lines, None)
            row = next((fields for fields in csv.reader(lines, delimiter=self.delimiter) if fields), [])
        field = dict(zip(self.names, row, strict=False)).get(name, "")
        if _is_valid(field, pa.int64()):
            return pa.int64()
        if _is_number(field):
            return pa.float64()
        return _UTC_DATE if field.strip().endswith("Z") else _DATE

    def _has_rows(self) -> bool:
        with _text(self.path) as file:
            lines = _lines(file, self.path)
            return any(line.strip() for line in islice(lines, self.skipped_lines, None))

    def _explained(self, columns: Mapping[str, Number], error: TableError, failure: Exception) -> Exception:
        """Return the error for the first bad row, found by reading the text line by line."""
        # pyarrow's message does not always name the row, and never the line.
        kinds = {name: self._kind(name, number) for name, number in columns.items()}
        with _text(self.path) as file:
            lines = islice(_lines(file, self.path), self.skipped_lines, None)
            rows = csv.reader(lines, delimiter=self.delimiter)
            for row, fields in enumerate(fields for fields in rows if fields):
                line = row + self.skipped_lines + 1
                if len(fields) != len(self.names):
                    return error(
                        f"{self.path}: row {row} (line {line}) has {len(fields)} fields; the first row has "
                        f"{len(self.names)}"
                    )
                for name, number in columns.items():
                    field = fields[self.names.index(name)]
                    if not _is_valid(field, kinds[name]):
                        return error(
                            f"{self.path}: row {row} (line {line}), column {shown(name)} is {shown(field)}; expected "
                            f"{_MEANING[number]}"
                        )
        return SourceError(f"{self.path} cannot be parsed: {failure}")


_MEANING = {
    "int64": "a whole number below 2**63",
    "float32": "a number",
    "float64": "a number",
    "time": "whole seconds, or in every row a date such as 2024-01-31 12:30:00",
}


def _numbers(column: Any, number: Number) -> NDArray[np.generic]:
    values: NDArray[np.generic] = column.to_numpy(zero_copy_only=False)
    return values if number == "time" else values.astype(number, copy=False)


def _is_valid(field: str, kind: pa.DataType) -> bool:
    try:
        if pa.types.is_timestamp(kind):
            return bool(pa.scalar(field.strip()).cast(kind).is_valid)
        return -(2**63) <= int(field) < 2**63 if kind == pa.int64() else _is_number(field)
    except (ValueError, pa.ArrowInvalid):
        return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as raw:
        if path.suffix != ".gz":
            with io.TextIOWrapper(raw, "utf-8", errors="replace") as text:
                yield text
            return
        with gzip.open(raw, "rt", encoding="utf-8", errors="replace") as text:
            yield cast("IO[str]", text)


def _lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the lines of a text, none of which is read further than a line may be long."""
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        number += 1
        if len(line) > MAX_LINE_CHARACTERS:
            raise SourceError(
                f"{path}: line {number} has more than {MAX_LINE_CHARACTERS} characters; a line is a row of numbers"
            )
        yield line


def _first_line(path: Path) -> tuple[int, str]:
    """Return the number of comment lines, and the line behind them; "" where there is none."""
    number = 0
    # Enough for the header and the separator; the rows are never read here.
    with _reading(path), _text(path) as file:
        for line in _lines(file, path):
            if line.strip() and not line.startswith(_COMMENTS):
                return number, line.strip()
            number += 1
            if number == _SNIFFED_LINES:
                raise SourceError(f"{path} starts with more than {_SNIFFED_LINES} comment lines")
    return number, ""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    # Those that `read` explains by the row and the value.
    except (GloaderError, pa.ArrowInvalid):
        raise
    except (OSError, pa.ArrowException, *MALFORMED) as error:
        raise SourceError(
            f"{path} is truncated, corrupt or cannot be read: {str(error) or repr(error)}"
        ) from error


def read_column(path: Path, number: Number = "float64", *, max_rows: int) -> NDArray[np.generic]:
    """Read a table (n,) of one column whole, such as labels; no more of it is read than it may hold.

    Parameters
    ----------
    path : of the file
    number : dtype of the numbers
    max_rows : rows that it may have

    Raises
    ------
    SourceError
        The file is missing or malformed.
    ShapeError
        It has more columns, or more rows.
    """
    if not path.is_file():
        raise SourceError(f"{path} is missing, or is not a file")
    table = CsvTable.open(path)
    if len(table.names) > 1:
        raise ShapeError(
            f"{path} has {len(table.names)} columns; it must have one, with a number in each row"
        )
    chunks: list[NDArray[np.generic]] = []
    for (chunk,) in table.read(dict.fromkeys(table.names, number), error=SourceError):
        chunks.append(chunk)
        if sum(map(len, chunks)) > max_rows:
            raise ShapeError(f"{path} has more than {max_rows} rows, which is what it may have")
    return np.concatenate(chunks) if chunks else np.empty(0, number)
