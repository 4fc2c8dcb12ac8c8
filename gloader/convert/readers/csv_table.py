"""A text table as a stream of numbers: CSV, TSV or columns aligned by blanks, with or without a header or gzip.

`CsvTable` implements `NumberTable`, the interface through which edges, features and labels are read from tables.
`CsvTable.open` finds the separator, the header and the columns' kinds in the first rows. `CsvTable.read` then yields
the numbers: pyarrow reads the rows in blocks. If pyarrow refuses a row, the file is read again line by line, to name
the row in the error.
"""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from gloader.convert.readers.column_names import (
    ALMOST,
    is_known,
    is_unnamed,
    no_whole_numbers,
    twice_in,
)
from gloader.convert.readers.csv_text import (
    BLANKS,
    COMMENTS,
    MAX_COMMENTS,
    RowText,
    fields_of,
    is_comment,
    lines_of,
    open_text,
    rows_of,
)
from gloader.core.malformed import MALFORMED, shown
from gloader.dataset.column_values import MISSING_TEXTS
from gloader.errors import GloaderError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import Columns, HeaderRule, Number, TableError

# Dates are read in numpy's finest unit, so that no date is silently rounded to a second.
_DATE, _UTC_DATE = pa.timestamp("ns"), pa.timestamp("ns", tz="UTC")
# Bytes of text per block, which is also the longest valid line.
_BLOCK_BYTES = 1 << 20
# Blocks in memory during reading: the raw text, the cleaned text, the bytes and the parser's copies.
_BLOCK_COPIES = 12
# The possible separators, in order of preference. `BLANKS` means any number of blanks and tabs.
_DELIMITERS = (",", "\t", ";", "|", BLANKS)
# Number of first rows that decide on separator, header and kinds.
_SNIFFED_ROWS = 100
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_NUMBER = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|infinity|nan)\s*", re.IGNORECASE)
# Text that is almost a number: a list, a decimal comma, a comma between thousands, a currency or percent sign.
_ALMOST = re.compile(
    r"\[\s*[-+.\d]+([eE][-+]?\d+)?([,\s]+[-+.\d]+([eE][-+]?\d+)?)*\s*\]"
    r"|[$€£]?[-+]?\d+([.,]\d{3})*([.,]\d+)?\s?[%€$£]?"
)
_TAB_AND_BLANK = re.compile(r" \t|\t(?= )")
_BOOLS: Final = frozenset({"true", "false"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvTable:
    """A text file with rows of numbers. Blank lines are skipped, and so are comment lines, which begin with # or %.

    The first rows decide whether the separator is a comma, tab, semicolon, bar or blanks. The first row is data if its
    first two fields are whole numbers, or all its fields are numbers. Otherwise, it is the header. Without a header,
    the last comment before the first row serves as the header if it has known names.
    """

    path: Path
    names: tuple[str, ...]  # the columns' names; c0, c1, ... without a header
    has_names: bool  # True if the names come from a header or a comment
    delimiter: str  # the separator of the columns
    skipped_lines: int  # lines before the first row of numbers
    kinds: tuple[str, ...]  # the columns' kinds, as in `NumberTable.kind`
    is_empty: bool  # True if there are no rows
    # True if the first row's numbers are 0, 1, 2 and so on. pandas writes such a header for columns without names, so
    # the row may be a header that was taken for data.
    counts_columns: bool
    # The number of rows is unknown until they are read. A pandas index is a column. The columns need no explanation.
    num_rows: None = field(default=None, init=False)
    row_ids: None = field(default=None, init=False)
    remark: str = field(default="", init=False)

    @classmethod
    def open(cls, path: Path, *, is_header: HeaderRule | None = None) -> CsvTable:
        """Open the file, and read its first rows.

        ``is_header`` decides by its fields whether the first row is a header; None applies the rule of the class.

        Raises
        ------
        SourceError
            The file cannot be read, or its first line has neither names nor numbers.
        """
        with reading_text(path):
            comment, lines = _first_lines(path)
            texts = [line for _, line in lines]
            delimiter = _delimiter(texts)
            rows = [fields_of(text, delimiter) for text in texts]
        first = rows[0] if rows else []
        has_header = bool(rows) and (not _is_data(first) if is_header is None else is_header(first))
        names = tuple(_names(first, path)) if has_header else _commented_names(comment, len(first), delimiter)
        has_names = bool(names)
        names = names or tuple(f"c{i}" for i in range(len(first)))
        data = rows[has_header:]
        before = lines[0][0] - 1 if lines else 0
        return cls(
            path=path,
            names=names,
            has_names=has_names,
            delimiter=delimiter,
            skipped_lines=before + has_header,
            kinds=tuple(_kind([row[i] for row in data if i < len(row)]) for i in range(len(names))),
            is_empty=not data,
            counts_columns=not has_names and _counts([field for field in first if _is_number(field)]),
        )

    @property
    def index(self) -> tuple[str, ...]:
        """The columns without a name, such as the index of a pandas table."""
        return tuple(name for name in self.names if is_unnamed(name)) if self.has_names else ()

    def kind(self, column: str) -> str:
        """Return a column's kind according to its first rows; see `NumberTable.kind`."""
        return self.kinds[self.names.index(column)]

    def width(self, column: str) -> int:
        """Return 1, because a field is one number."""
        del column
        return 1

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the bytes of memory for the copies of a text block."""
        del columns
        return _BLOCK_COPIES * _BLOCK_BYTES

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `NumberTable.read`."""
        with self._explaining(columns, error):
            yield from self._read(columns)

    def arrow_type(self, column: str) -> pa.DataType:
        """Return the type string, because every field is text; see `NumberTable.arrow_type`."""
        del column
        return pa.string()

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named ``columns`` as text; see `NumberTable.read_arrow`."""
        with self._explaining(dict.fromkeys(columns), error):
            yield from self._batches(dict.fromkeys(columns, pa.string()))

    def count_rows(self) -> int:
        """Return the number of rows by reading them.

        Raises
        ------
        SourceError
            The file is malformed.
        """
        num_rows = 0
        with self._explaining({}, SourceError):
            for batch in self._batches(dict.fromkeys(self.names[:1], pa.binary())):
                num_rows += batch.num_rows
        return num_rows

    def _read(self, columns: Mapping[str, Number]) -> Iterator[Columns]:
        """Yield the named columns, as `read`. Raises pyarrow's error for a bad row."""
        kinds = {name: self._type(name, number) for name, number in columns.items()}
        for batch in self._batches(kinds):
            for name in columns:
                # An empty field becomes NaN in a column of floats. Integers and bools have no such value.
                if not pa.types.is_floating(kinds[name]) and batch.column(name).null_count:
                    raise pa.ArrowInvalid(f"column {name} has empty fields")
            yield tuple(_numbers(batch.column(name), columns[name]) for name in columns)

    def _batches(self, kinds: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Yield pyarrow's batches of rows, with the columns in ``kinds``, which gives pyarrow's type for each.

        Texts are not changed: they keep their blanks, and only an empty text is null.
        """
        is_text = pa.string() in kinds.values()
        # An empty file is an empty table here, but pyarrow refuses it.
        if not self.names:
            return
        with closing(self._text(is_text=is_text)) as text:
            if self.is_empty:
                text.read()  # checks that all lines are comments
                return
            reader = pacsv.open_csv(
                cast("IO[bytes]", text),
                read_options=pacsv.ReadOptions(
                    block_size=_BLOCK_BYTES, column_names=list(self.names), use_threads=False
                ),
                parse_options=pacsv.ParseOptions(delimiter=self.delimiter),
                # By default, pyarrow would read words such as "null" as missing numbers.
                convert_options=pacsv.ConvertOptions(
                    column_types=dict(kinds),
                    include_columns=list(kinds),
                    null_values=[""] if is_text else ["", "nan", "NaN"],
                    strings_can_be_null=is_text,
                ),
            )
            with reader:
                yield from reader

    def _text(self, *, is_text: bool) -> RowText:
        """Return the file's rows as text for pyarrow, without header and comments.

        ``is_text`` is True if columns are read as text, so that blanks around a separator are part of a field.
        """
        # If the first column has texts, a row may look like a comment. `RowText` refuses such a row. The first rows of
        # a column that is read as text may have been numbers by chance.
        is_number = not is_text and self.kinds[0] not in {"string", "empty"}
        return RowText(
            self.path,
            delimiter=self.delimiter,
            skipped_lines=self.skipped_lines,
            text_columns=0 if is_number else len(self.names),
            keeps_blanks=is_text,
        )

    def _type(self, name: str, number: Number | None) -> pa.DataType:
        """Return pyarrow's type for reading a column: integers or floats of ``number``, or bools.

        ``number`` is None for a column that is read as text. A column of times has the type that fits its first row:
        int64, float64 or a date.
        """
        if number is None:
            return pa.string()
        if number != "time":
            is_bool = number != "int64" and self.kind(name) == "bool"
            return pa.bool_() if is_bool else pa.type_for_alias(number)
        _, row = next(rows_of(self.path, self.delimiter, self.skipped_lines), (0, []))
        field = dict(zip(self.names, row, strict=False)).get(name, "")
        if _is_valid(field, pa.int64()):
            return pa.int64()
        if _is_number(field):
            return pa.float64()
        return _UTC_DATE if field.strip().endswith("Z") else _DATE

    @contextmanager
    def _explaining(self, columns: Mapping[str, Number | None], error: TableError) -> Iterator[None]:
        """Turn pyarrow's error for a bad row into the error of `_explained`."""
        try:
            with reading_text(self.path):
                yield
        except pa.ArrowInvalid as failure:
            with reading_text(self.path):
                named_error = self._explained(columns, error, failure)
            raise named_error from failure

    def _explained(
        self, columns: Mapping[str, Number | None], error: TableError, failure: Exception
    ) -> Exception:
        """Return the error for the first bad row, found by reading the text line by line.

        Parameters
        ----------
        columns : the columns that were read, with None for text
        error : the class of the error
        failure : pyarrow's error, for a row in which this search finds nothing wrong
        """
        # pyarrow's message never names the line, and not always the row.
        kinds = {name: self._type(name, number) for name, number in columns.items()}
        for row, (line, fields) in enumerate(rows_of(self.path, self.delimiter, self.skipped_lines)):
            if len(fields) != len(self.names):
                first = "header" if self.has_names else "first row"
                return error(
                    f"{self.path}: row {row} (line {line}) has {len(fields)} fields; the {first} has "
                    f"{len(self.names)}: {shown(', '.join(fields))}"
                )
            for name, number in columns.items():
                field = fields[self.names.index(name)]
                if not _is_valid(field, kinds[name]):
                    place = f"{self.path}: row {row} (line {line}), column {shown(name)}"
                    return error(f"{place} {self._what_is_wrong(name, field, number)}")
        return SourceError(f"{self.path} cannot be parsed: {failure}")

    def _what_is_wrong(self, name: str, field: str, number: Number | None) -> str:
        """Return the end of the error message for a bad field: its text, and a remedy."""
        if number is None:
            return f"is {shown(field)}, which is not UTF-8; save the file as UTF-8"
        if number == "int64" and _is_number(field) and field.strip() and not _WHOLE.fullmatch(field):
            return f"is {shown(field)}; {no_whole_numbers(self._first_missing(name))}"
        if field.strip().lower() in MISSING_TEXTS:
            empty = " (an empty field is NaN)" if field.strip() and number.startswith("float") else ""
            return f"is {shown(field)}, a missing value: leave such rows out, or fill it{empty}"
        return f"is {shown(field)}; expected {_MEANING[number]}"

    def _first_missing(self, name: str) -> int | None:
        """Return the first row with a missing value in column ``name``, or None."""
        column = self.names.index(name)
        rows = enumerate(rows_of(self.path, self.delimiter, self.skipped_lines))
        return next(
            (
                row
                for row, (_, fields) in rows
                if column < len(fields) and fields[column].strip().lower() in MISSING_TEXTS
            ),
            None,
        )


# The valid values for each `Number`, for messages.
_MEANING = {
    "int64": "a whole number below 2**63",
    "float32": "a number",
    "float64": "a number",
    "time": "whole seconds, or in every row a date such as 2024-01-31 12:30:00",
}


def _numbers(column: Any, number: Number) -> NDArray[np.generic]:
    """Return pyarrow's column as an array (n,) with the dtype ``number``. Times keep the dtype that was read."""
    values: NDArray[np.generic] = column.to_numpy(zero_copy_only=False)
    return values if number == "time" else values.astype(number, copy=False)


def _is_valid(field: str, kind: pa.DataType) -> bool:
    """True if pyarrow reads ``field`` as a value of type ``kind``."""
    try:
        if pa.types.is_boolean(kind):
            return field.strip().lower() in _BOOLS
        # The check uses pyarrow's own rules. For example, pyarrow does not read "+1" as a whole number.
        is_left_out = pa.types.is_floating(kind) and field.strip() in {"", "nan", "NaN"}
        return is_left_out or bool(pa.scalar(field.strip()).cast(kind).is_valid)
    except (ValueError, pa.ArrowInvalid):
        return False


def _is_number(text: str) -> bool:
    """True if a field is a number, or empty, which is a missing number."""
    return not text.strip() or _NUMBER.fullmatch(text) is not None


def _is_data(fields: Sequence[str]) -> bool:
    """True if a table's first line is data, not a header. Pure."""
    if _starts_whole(fields):
        return True
    # The header of a pandas table without names is an empty field over the index, then the columns' numbers.
    if len(fields) > 1 and not fields[0].strip() and _counts(fields[1:]):
        return False
    return all(map(_is_number, fields))


def _counts(fields: Sequence[str]) -> bool:
    """True if the fields are 0, 1, 2 and so on. Pure."""
    return bool(fields) and list(fields) == [str(i) for i in range(len(fields))]


def _names(fields: Sequence[str], path: Path) -> Iterator[str]:
    """Yield the names in a header. Unnamed columns get names as pandas gives them, such as "Unnamed: 0".

    Raises SourceError for a first line that is not a header: it is no text, or has a name twice, or has numbers.
    """
    names = [field.strip() for field in fields]
    if not "".join(names).isprintable():
        raise SourceError(
            f"{path}: the first line is {shown(', '.join(fields))}, which is not UTF-8; save the file as UTF-8"
        )
    named = [name for name in names if name]
    twice = twice_in(named)
    numbers = [name for name in named if _NUMBER.fullmatch(name) or name.lower() in MISSING_TEXTS]
    # A number is a valid name in a header with known names, and in pandas' header of the column numbers 0, 1, 2, ...
    is_header = not numbers or is_known(names) or (not names[0] and _counts(names[1:]))
    if twice is not None or not is_header:
        problem = f"has {shown(twice)} twice" if twice is not None else "is neither names nor numbers"
        raise SourceError(
            f"{path}: the first line is {shown(', '.join(fields))}, which {problem}; put a line of names before the "
            "rows"
        )
    for number, name in enumerate(names):
        yield name or f"Unnamed: {number}"


def _commented_names(comment: str, count: int, delimiter: str) -> tuple[str, ...]:
    """Return ``count`` names in a comment such as ``# FromNodeId ToNodeId``, or () if it has none. Pure."""
    text = comment.strip().lstrip("".join(COMMENTS))
    for mark in (delimiter, BLANKS, ","):
        names = [field.strip() for field in fields_of(text, mark)]
        if len(names) == count and is_known(names) and not any(map(_is_number, names)):
            return tuple(names)
    return ()


def _delimiter(lines: Sequence[str]) -> str:
    """Return the table's separator, judged by its first lines. Pure.

    The best separator gives each row equally many fields, and begins the first row with two whole numbers. The rules
    below are tried in order, from strict to loose. Without any match, the separator is a comma.
    """
    if not lines:
        return ","
    split = {mark: [fields_of(line, mark) for line in lines] for mark in _DELIMITERS}
    are_even = {mark: len(set(map(len, rows))) == 1 for mark, rows in split.items()}
    are_whole = {mark: _starts_whole(rows[0]) for mark, rows in split.items()}
    # A tab with a blank beside it, in all places, aligns columns, if blanks divide the lines into the same fields.
    if are_even["\t"] and are_even[BLANKS] and len(split["\t"][0]) == len(split[BLANKS][0]):
        places = [line.strip().count("\t") for line in lines]
        if all(
            len(_TAB_AND_BLANK.findall(line.strip())) == count > 0
            for line, count in zip(lines, places, strict=True)
        ):
            return BLANKS
    # The separators that divide the first two rows into several fields.
    several = [mark for mark, rows in split.items() if min(map(len, rows[:2])) > 1]
    for candidates in (
        [mark for mark in several if are_even[mark] and are_whole[mark]],
        [mark for mark in _DELIMITERS if are_whole[mark]],
        [mark for mark in several if are_even[mark]],
        several,
    ):
        if candidates:
            return candidates[0]
    return ","


def _starts_whole(fields: Sequence[str]) -> bool:
    """True if the first two of several fields are whole numbers, as in a row of edges."""
    return len(fields) > 1 and all(_WHOLE.fullmatch(field) for field in fields[:2])


def _kind(fields: Sequence[str]) -> str:
    """Return the kind of a column's first fields; see `NumberTable.kind`. Pure."""
    values = [field.strip() for field in fields if field.strip().lower() not in MISSING_TEXTS]
    if not values:
        return "empty"
    if all(map(_WHOLE.fullmatch, values)):
        return "integer"
    if all(field.lower() in _BOOLS for field in values):
        return "bool"
    # If some fields are numbers, the others are mistakes, and the reader's error names them.
    if any(map(_NUMBER.fullmatch, values)):
        return "number"
    return ALMOST if all(map(_ALMOST.fullmatch, values)) else "string"


def _first_lines(path: Path) -> tuple[str, list[tuple[int, str]]]:
    """Return the last comment before the first row, and pairs of a line number, from 1, and a row's text.

    The header counts as a row.
    """
    comment, lines = "", []
    with open_text(path) as file:
        for number, line in lines_of(file, path):
            if not is_comment(line):
                lines.append((number, line.rstrip("\n")))
                if len(lines) > _SNIFFED_ROWS:
                    break
            elif not lines:
                comment = line
                if line.startswith("%%MatrixMarket"):
                    raise SourceError(
                        f"{path} is a matrix of Matrix Market; rename it so that it ends in .mtx"
                    )
                if number == MAX_COMMENTS:
                    raise SourceError(f"{path} starts with more than {MAX_COMMENTS} comment lines")
    return comment, lines


@contextmanager
def reading_text(path: Path) -> Iterator[None]:
    """Turn read errors into a SourceError that names the file. Parse errors pass, because the callers explain them."""
    try:
        yield
    except (GloaderError, pa.ArrowInvalid):
        raise
    except (OSError, pa.ArrowException, *MALFORMED) as error:
        raise SourceError(
            f"{path} is truncated, corrupt or cannot be read: {str(error) or repr(error)}"
        ) from error


def read_column(path: Path, number: Number = "float64", *, max_rows: int) -> NDArray[np.generic]:
    """Read a table with one column, such as labels, into memory (n,). A table that is too long is refused early.

    Parameters
    ----------
    path : the file
    number : dtype of the numbers
    max_rows : the largest valid number of rows

    Raises
    ------
    SourceError
        The file is missing or malformed.
    ShapeError
        The table has more than one column, or more than ``max_rows`` rows.
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
            raise ShapeError(f"{path} has more than {max_rows} rows, and at most {max_rows} are allowed")
    return np.concatenate(chunks) if chunks else np.empty(0, number)
