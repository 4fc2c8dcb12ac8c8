"""A CSV file as a stream of numbers, gzipped or not, with or without a header."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gloader.convert.readers.tables import Columns, Number, TableError

_BLOCK_BYTES = 4 << 20
_DELIMITERS = (",", "\t", ";", " ")
_COMMENTS = ("#", "%")
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
        # Enough for the header and the separator; the rows are never read here.
        with _reading(path), _text(path) as file:
            lines = list(islice(file, _SNIFFED_LINES))
        comments = next((i for i, line in enumerate(lines) if not line.startswith(_COMMENTS)), len(lines))
        if comments == _SNIFFED_LINES:
            raise SourceError(f"{path} starts with more than {_SNIFFED_LINES} comment lines")
        first = lines[comments].strip() if comments < len(lines) else ""
        delimiter = next((mark for mark in _DELIMITERS if mark in first), ",")
        fields = next(csv.reader([first], delimiter=delimiter)) if first else []
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
            raise self._explained(columns, error, failure) from failure

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
        reader = pacsv.open_csv(
            self.path,
            read_options=pacsv.ReadOptions(
                block_size=_BLOCK_BYTES, skip_rows=self.skipped_lines, column_names=list(self.names)
            ),
            parse_options=pacsv.ParseOptions(delimiter=self.delimiter),
            # Without nulls of its own, pyarrow would take words such as "null" for missing numbers.
            convert_options=pacsv.ConvertOptions(
                column_types={name: pa.type_for_alias(number) for name, number in columns.items()},
                include_columns=list(columns),
                null_values=["", "nan", "NaN"],
            ),
        )
        with reader:
            for batch in reader:
                for name, number in columns.items():
                    # Floats become NaN where empty; integers have no such value.
                    if number == "int64" and batch.column(name).null_count:
                        raise pa.ArrowInvalid(f"column {name} has empty fields")
                yield tuple(
                    batch.column(name).to_numpy(zero_copy_only=False).astype(number, copy=False)
                    for name, number in columns.items()
                )

    def _has_rows(self) -> bool:
        with _text(self.path) as file:
            return any(line.strip() for line in islice(file, self.skipped_lines, self.skipped_lines + 1))

    def _explained(self, columns: Mapping[str, Number], error: TableError, failure: Exception) -> Exception:
        """Return the error for the first bad row, found by reading the text line by line."""
        # pyarrow's message does not always name the row, and never the line.
        with _text(self.path) as file:
            rows = csv.reader(islice(file, self.skipped_lines, None), delimiter=self.delimiter)
            for row, fields in enumerate(fields for fields in rows if fields):
                line = row + self.skipped_lines + 1
                if len(fields) != len(self.names):
                    return error(
                        f"{self.path}: row {row} (line {line}) has {len(fields)} fields; the first row has "
                        f"{len(self.names)}"
                    )
                for name, number in columns.items():
                    field = fields[self.names.index(name)]
                    if not _is_valid(field, number):
                        return error(
                            f"{self.path}: row {row} (line {line}), column {name!r} is {field!r}; expected "
                            f"{_MEANING[number]}"
                        )
        return SourceError(f"{self.path} cannot be parsed: {failure}")


_MEANING = {"int64": "a whole number below 2**63", "float32": "a number", "float64": "a number"}


def _is_valid(field: str, number: Number) -> bool:
    if number != "int64":
        return _is_number(field)
    try:
        return -(2**63) <= int(field) < 2**63
    except ValueError:
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} is truncated, corrupt or cannot be read: {error}") from error


def read_numbers(path: Path, number: Number = "float64") -> np.ndarray[tuple[int, int], np.dtype[np.generic]]:
    """Read a small table (rows, columns) whole, such as labels.

    Raises
    ------
    SourceError
        The file is missing or malformed.
    """
    if not path.is_file():
        raise SourceError(f"{path} is missing, or is not a file")
    table = CsvTable.open(path)
    chunks = [
        np.column_stack(chunk) for chunk in table.read(dict.fromkeys(table.names, number), error=SourceError)
    ]
    return np.concatenate(chunks) if chunks else np.empty((0, len(table.names)), number)
