"""The rows of a text file, gzipped or not, without byte order mark, comments and unneeded blanks.

`CsvTable` calls this module. `rows_of` yields the fields of each row. It is slow, and serves for the first rows and for
error messages. `RowText` is a file object with the cleaned text, from which a fast parser (pyarrow) reads all rows.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Final, cast

from gloader.core.malformed import shown
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMENTS: Final = ("#", "%")  # beginnings of comment lines
# Maximum number of comment lines before the first row. A file with more is refused.
MAX_COMMENTS: Final = 1000
# Maximum number of characters per line. A row with 100,000 numbers is shorter. Without a limit, a small gzip file with
# one huge line could fill the memory.
MAX_LINE_CHARACTERS: Final = 1 << 20
# The separator of aligned columns: any number of blanks and tabs.
BLANKS: Final = " "
_READ_CHARACTERS = 1 << 20  # characters per read of `RowText`
# First bytes of files that are not plain text, with a remedy for each.
_NO_TEXT: Final = {
    b"\xff\xfe": "text of two bytes a character (UTF-16); save it as UTF-8",
    b"\xfe\xff": "text of two bytes a character (UTF-16); save it as UTF-8",
    b"\x1f\x8b": "packed with gzip; add .gz to its name",
    b"PK\x03\x04": "a zip archive, or a workbook of Excel; unpack it, or save it as CSV",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it",
    b"BZh": "packed with bzip2; unpack it",
    b"\xfd7zXZ": "packed with xz; unpack it",
    b"PAR1": "a Parquet file; give it a name that ends in .parquet",
}
_COMMENT = re.compile(r"^[ \t]*[#%].*\n?", re.MULTILINE)
_BLANK_LINE = re.compile(r"^ +$", re.MULTILINE)
# Blanks between aligned columns, or a quoted field, whose blanks are its text. A quote opens a field only at its start.
_GAP = re.compile(r"[ \t]+")
_GAP_OR_QUOTED = re.compile(r'(?:(?<=[ \t\n])|^)("(?:[^"\n]|"")*")|[ \t]+', re.MULTILINE)
_MARGIN = re.compile(r"^ | $", re.MULTILINE)  # a blank at the start or the end of a line


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file, gzipped or not. Every line ends with a plain newline.

    Raises
    ------
    SourceError
        The file is not UTF-8 text, such as Excel's "Unicode text". The message names the kind of file.
    """
    with path.open("rb") as raw, ExitStack() as opened:
        packed = opened.enter_context(gzip.open(raw)) if path.suffix == ".gz" else raw
        plain = cast("io.BufferedReader", packed)
        head = plain.peek(8)[:8]
        for mark, what in _NO_TEXT.items():
            if head.startswith(mark):
                raise SourceError(f"{path} is {what}")
        if b"\0" in head:
            raise SourceError(f"{path} has zero bytes, so it is not UTF-8 text; save it as UTF-8")
        yield opened.enter_context(io.TextIOWrapper(plain, "utf-8-sig", errors="surrogateescape"))


def lines_of(file: IO[str], path: Path) -> Iterator[tuple[int, str]]:
    """Yield pairs of a line's number, from 1, and its text. Raises SourceError for a line that is too long."""
    number = 0
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        number += 1
        _require_end(line, number, path)
        yield number, line


def is_comment(line: str) -> bool:
    """True if a line is blank or a comment. Pure."""
    # Tabs do not make a line blank, because a table's row may have only empty fields.
    return not line.strip(" \n") or line.lstrip().startswith(COMMENTS)


def fields_of(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line, without quotes. Pure."""
    text = _one_blank(line.strip()) if delimiter == BLANKS else line.rstrip("\n")
    return next(csv.reader([text], delimiter=delimiter), [])


def _one_blank(text: str) -> str:
    """Return lines with one blank between columns. Quoted fields stay as they are. Pure."""
    if '"' not in text:
        return _GAP.sub(BLANKS, text)
    return _GAP_OR_QUOTED.sub(lambda found: found[1] or BLANKS, text)


def rows_of(path: Path, delimiter: str, skipped_lines: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's line number, from 1, and its fields. The first ``skipped_lines`` lines are left out."""
    with open_text(path) as file:
        for number, line in lines_of(file, path):
            if number > skipped_lines and not is_comment(line) and (fields := fields_of(line, delimiter)):
                yield number, fields


class RowText(io.RawIOBase):
    """A file's rows as UTF-8, for a parser without support for comments. A context manager. Not thread-safe.

    Parameters
    ----------
    path : the file
    delimiter : separator of the columns
    skipped_lines : lines before the first row
    text_columns : number of columns if the first column is text; otherwise 0. A row that begins with a text such as
        "#a" looks like a comment, and is refused if it has this number of fields
    keeps_blanks : True if the blanks around a separator are part of the fields
    """

    def __init__(
        self,
        path: Path,
        *,
        delimiter: str,
        skipped_lines: int,
        text_columns: int = 0,
        keeps_blanks: bool = False,
    ) -> None:
        super().__init__()
        self._path = path
        self._delimiter = delimiter
        self._around = re.compile(f" *{re.escape(delimiter)} *")  # a separator with the blanks around it
        self._to_skip = skipped_lines  # lines that are still to be skipped
        self._num_columns = text_columns
        self._keeps_blanks = keeps_blanks
        self._opened = open_text(path)
        self._file = self._opened.__enter__()  # `close` exits this context
        self._carry = ""  # the beginning of an incomplete line
        self._num_lines = 0  # complete lines so far
        self._ready = b""  # cleaned text that was not read yet
        self._is_done = False  # True at the end of the file
        self._has_begun = False  # True once there was cleaned text

    def readable(self) -> bool:
        """True, because the rows can always be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, or fewer at the end.

        Raises
        ------
        SourceError
            A line is too long, or a quoted field has several lines. The message names the line.
        """
        while not self._is_done and (size < 0 or len(self._ready) < size):
            self._fill()
        taken = len(self._ready) if size < 0 else size
        out, self._ready = self._ready[:taken], self._ready[taken:]
        return out

    def close(self) -> None:
        """Close the file. Idempotent."""
        if not self.closed:
            self._opened.__exit__(None, None, None)
        super().close()

    def _fill(self) -> None:
        """Read the next part of the file, and add its complete lines to the cleaned text."""
        read = self._file.read(_READ_CHARACTERS)
        text = self._carry + read
        self._is_done = not read
        end = len(text) if self._is_done else text.rfind("\n") + 1
        text, self._carry = text[:end], text[end:]
        first = self._num_lines + 1
        self._num_lines += text.count("\n")
        _require_end(self._carry, self._num_lines + 1, self._path)
        while self._to_skip and text:
            self._to_skip -= 1
            text, first = text.partition("\n")[2], first + 1
        rows = self._cleaned(text, first).encode("utf-8", "surrogateescape")
        if rows and not self._has_begun:
            self._has_begun = True
            # The parser removes a byte order mark at its start, which is text here: the file's own is gone already.
            rows = codecs.BOM_UTF8 + rows if rows.startswith(codecs.BOM_UTF8) else rows
        self._ready += rows

    def _cleaned(self, text: str, first: int) -> str:
        """Return complete lines without comments and unneeded blanks. ``first`` is the first line's number."""
        if '"' in text:
            self._refuse_open_quotes(text, first)
        if any(mark in text for mark in COMMENTS):
            if self._num_columns:
                self._refuse_rows_like_comments(text, first)
            text = _COMMENT.sub("", text)
        if self._delimiter == BLANKS:
            # A search for one text is much faster than a pattern, and most files need no change.
            if "\t" in text or "  " in text:
                text = _one_blank(text)
            has_margin = " \n" in text or "\n " in text or text[:1] == " " or text[-1:] == " "
            return _MARGIN.sub("", text) if has_margin else text
        if " " not in text:
            return text
        # A parser would read the blank in ", true" as part of the word. Quoted text keeps its blanks.
        text = text if self._keeps_blanks or '"' in text else self._around.sub(self._delimiter, text)
        return _BLANK_LINE.sub("", text)

    def _refuse_open_quotes(self, text: str, first: int) -> None:
        """Raise SourceError for a quoted field that continues in the next line."""
        for number, line in enumerate(text.split("\n"), first):
            if line.count('"') % 2 and not line.lstrip().startswith(COMMENTS):
                raise SourceError(
                    f"{self._path}: line {number} has a quote that does not end in the same line; each row must be one "
                    "line, so save a table with line breaks in its fields as Parquet"
                )

    def _refuse_rows_like_comments(self, text: str, first: int) -> None:
        """Raise SourceError for a line that begins like a comment, but has as many fields as a row."""
        for number, line in enumerate(text.split("\n"), first):
            if not line.lstrip().startswith(COMMENTS):
                continue
            if len(fields_of(line, self._delimiter)) == self._num_columns:
                raise SourceError(
                    f"{self._path}: line {number} is {shown(line.strip())}: a comment, or a row? Remove it, or put a "
                    "column of numbers first"
                )


def _require_end(line: str, number: int, path: Path) -> None:
    """Raise SourceError for a line that is too long."""
    if len(line) > MAX_LINE_CHARACTERS:
        raise SourceError(
            f"{path}: line {number} has more than {MAX_LINE_CHARACTERS} characters; a line is a row of numbers"
        )
