"""Graphs in N-Triples files (``.nt``, also ``.gz``) as tables with the columns subject, predicate and object.

`NTriples` implements `NumberTable`. A line is a *triple*: three terms and a full stop (W3C, "RDF 1.1 N-Triples", 2014).
A term is an IRI, which names something, a blank node, which has no name outside the file, or a literal, which is a
value such as a text. A literal is no node. So a triple whose object is a literal is left out and counted. A key is the
IRI without its angle brackets, or the blank node's label with its ``_:``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gloader.convert.readers.csv_table import reading_text
from gloader.convert.readers.csv_text import lines_of, open_text
from gloader.core.malformed import shown
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gloader.convert.readers.table_streams import Columns, Number, TableError

_COLUMNS: Final = ("subject", "predicate", "object")
_BATCH_LINES: Final = 1 << 13  # lines per batch
# Bytes of memory for a batch: lines of usual lengths, their terms as Python's texts, and pyarrow's arrays.
_READING_BYTES: Final = 16 << 20
_BATCH_BYTES: Final = 4 << 20  # maximum number of characters per batch, except for one long line
_IRI: Final = r"<([^\x00-\x20<>\"{}|^`\\]*(?:\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|[^\x00-\x20<>\"{}|^`\\])*)>"
_BLANK: Final = r"(_:[^\s<>\"]*[^\s<>\".])"
_LITERAL: Final = (
    rf"(\"(?:[^\"\\\n\r]|\\.)*\"(?:@[A-Za-z]+(?:-[A-Za-z0-9]+)*|\^\^{_IRI.replace('(', '(?:', 1)})?)"
)
_TRIPLE: Final = re.compile(
    rf"[ \t]*(?:{_IRI}|{_BLANK})[ \t]*{_IRI}[ \t]*(?:{_IRI}|{_BLANK}|{_LITERAL})[ \t]*\.[ \t]*(?:#.*)?\n?"
)
_NOTHING: Final = re.compile(r"[ \t]*(?:#.*)?\n?")  # a blank line or a comment
_ESCAPE: Final = re.compile(r"\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class NTriples:
    """An N-Triples file. Rows are its triples without literals, in the order of the lines."""

    path: Path
    # The line of the first literal and the number of literals in the last complete pass; empty before the first one.
    literals: list[int] = field(default_factory=list, compare=False)
    # The format says which column is which. The number of rows is unknown until the lines are read.
    names: tuple[str, ...] = field(default=_COLUMNS, init=False)
    has_names: bool = field(default=True, init=False)
    index: tuple[str, ...] = field(default=(), init=False)
    row_ids: None = field(default=None, init=False)
    counts_columns: bool = field(default=False, init=False)
    num_rows: None = field(default=None, init=False)

    @property
    def remark(self) -> str:
        """The format, and the triples that were left out, for the receipt. Complete after the file was read."""
        if not self.literals or not self.literals[1]:
            return "N-Triples"
        return f"N-Triples, {self.literals[1]:,} with a literal left out, first in line {self.literals[0]:,}"

    def count_rows(self) -> int:
        """Return the number of rows by reading them. Raises as `read_arrow`."""
        return sum(batch.num_rows for batch in self.read_arrow(_COLUMNS[:1], error=SourceError))

    def kind(self, column: str) -> str:
        """Return "string", the kind of every column."""
        del column
        return "string"

    def width(self, column: str) -> int:
        """Return 1, because a term is one value."""
        del column
        return 1

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the bytes of memory for a batch of lines."""
        del columns
        return _READING_BYTES

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Raise ``error``, unless no column is read: terms are no numbers."""
        for name in columns:
            raise error(
                f"{self.path}: column {name!r} has IRIs, which are keys and no numbers: prepare it as "
                f"triples:{self.path}, or in a graph.yaml with keys"
            )
        return iter(())

    def arrow_type(self, column: str) -> pa.DataType:
        """Return the type string, see `NumberTable.arrow_type`."""
        del column
        return pa.string()

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named ``columns`` as text, without the triples whose object is a literal.

        Raises
        ------
        error
            A line is no triple. The message has the line.
        SourceError
            The file is truncated, corrupt or no UTF-8.
        """
        places = [_COLUMNS.index(name) for name in columns]
        first, count = 0, 0
        with reading_text(self.path), open_text(self.path) as file:
            lines = lines_of(file, self.path)
            while batch := list(_some(lines)):
                rows = []
                for number, line in batch:
                    found = _TRIPLE.fullmatch(line)
                    if found is None:
                        if _NOTHING.fullmatch(line):
                            continue
                        raise error(f"{self.path}: line {number} {_what_is_wrong(line)}")
                    named, blank, predicate, other, other_blank, literal = found.groups()
                    if literal is not None:
                        first, count = first or number, count + 1
                        continue
                    rows.append((blank or _plain(named), _plain(predicate), other_blank or _plain(other)))
                yield pa.RecordBatch.from_arrays(
                    [_texts([row[place] for row in rows], self.path) for place in places], names=list(columns)
                )
        self.literals[:] = first, count


def _some(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the next lines, as many as a batch may have."""
    size = 0
    for number, line in islice(lines, _BATCH_LINES):
        yield number, line
        size += len(line)
        if size > _BATCH_BYTES:
            return


def _plain(iri: str) -> str:
    """Return an IRI with its escapes replaced by the characters that they stand for. Pure."""
    if "\\" not in iri:
        return iri
    return _ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), iri)


def _texts(values: list[str], path: Path) -> pa.Array[Any]:
    """Return texts as pyarrow's array. Raises SourceError for a text that is no UTF-8."""
    try:
        return pa.array(values, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid) as failure:
        bad = next(value for value in values if not _is_unicode(value))
        raise SourceError(f"{path}: the term {shown(bad)} is not UTF-8; save the file as UTF-8") from failure


def _is_unicode(text: str) -> bool:
    """True if ``text`` has no surrogates, which stand for bytes that are no UTF-8. Pure."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _what_is_wrong(line: str) -> str:
    """Return the end of the message for a line that is no triple. Pure."""
    text = line.strip()
    advice = "a line is <subject> <predicate> <object> . with IRIs in <>, blank nodes such as _:b0, or quoted literals"
    if re.match(r"@(prefix|base)|(?i:prefix|base)\s", text):
        advice = "this is Turtle, which N-Triples has no prefixes of: convert it, for example with rapper -o ntriples"
    return f"is {shown(text)}, which is no triple: {advice}"
