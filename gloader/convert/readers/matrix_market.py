"""Sparse matrices in Matrix Market files (``.mtx``, also ``.gz``) as edge tables.

`MatrixTable` implements `NumberTable`: an entry of the matrix is an edge from its row to its column, and its value is
the weight. Ids begin at 1 in the file and at 0 in the table. A file of a symmetric matrix stores one triangle, and the
table has each entry outside the diagonal in both directions (NIST, "The Matrix Market Exchange Formats", 1996). The
text is read by `CsvTable`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gloader.convert.readers.csv_table import CsvTable, reading_text
from gloader.convert.readers.csv_text import BLANKS, MAX_COMMENTS, is_comment, lines_of, open_text
from gloader.convert.readers.parted_table import PartedTable
from gloader.core.malformed import shown
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.table_streams import Columns, Number, NumberTable, TableError

_BANNER: Final = "%%matrixmarket"
# The kinds of values that are weights, with the kind of their column. A pattern has no values.
_FIELDS: Final = {"real": "number", "integer": "integer", "pattern": ""}
# The symmetries of real matrices, with the factor for the value of the entry on the other side of the diagonal.
_MIRRORED: Final = {"general": 0, "symmetric": 1, "skew-symmetric": -1}
_ENDS: Final = ("row", "column")


def _first_lines(path: Path) -> tuple[str, int, str]:
    """Return the first line, and the size line's number, from 1, and text. It is the first line that is no comment."""
    with open_text(path) as file:
        banner, number, line = "", 0, ""
        for number, line in lines_of(file, path):
            banner = banner or line
            if not is_comment(line) or number > MAX_COMMENTS:
                break
    return banner, number, line


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixTable:
    """A sparse matrix: a row of the table is an edge, with the columns row, column and perhaps weight."""

    text: CsvTable  # the entries as they are in the file
    shape: tuple[int, int]  # the matrix's numbers of rows and columns
    num_entries: int  # entries in the file, according to its size line
    symmetry: str  # a key of `_MIRRORED`
    # The format says which column is which, and no column numbers the entries. The size line was read as such.
    has_names: bool = field(default=True, init=False)
    index: tuple[str, ...] = field(default=(), init=False)
    row_ids: None = field(default=None, init=False)
    counts_columns: bool = field(default=False, init=False)

    @classmethod
    def open(cls, path: Path) -> MatrixTable:
        """Read the file's banner and its size line.

        Raises
        ------
        SourceError
            The file is no sparse matrix of real numbers. The message has the line.
        """
        with reading_text(path):
            banner, line, size = _first_lines(path)
        words = banner.lower().split()
        if len(words) != 5 or words[0] != _BANNER or words[1] != "matrix":
            raise SourceError(
                f"{path}: the first line is {shown(banner.strip())}; a matrix begins with a line such as "
                "%%MatrixMarket matrix coordinate real general"
            )
        form, field, symmetry = words[2:]
        if form != "coordinate":
            raise SourceError(
                f"{path} is a dense matrix ({form}), and edges are a sparse one: scipy.io.mmwrite(file, "
                "scipy.sparse.coo_matrix(scipy.io.mmread(file)))"
            )
        if field not in _FIELDS or symmetry not in _MIRRORED:
            raise SourceError(
                f"{path} is a {symmetry} matrix of {field} numbers; weights are real or integer numbers, or absent "
                f"(pattern), and a matrix is one of {', '.join(_MIRRORED)}: save its absolute values"
            )
        numbers = size.split()
        if len(numbers) != 3 or not all(each.isdecimal() for each in numbers):
            raise SourceError(
                f"{path}: line {line} is {shown(size.strip())}; it must have the numbers of rows, columns and entries"
            )
        num_rows, num_columns, num_entries = map(int, numbers)
        if symmetry != "general" and num_rows != num_columns:
            raise SourceError(f"{path} is {symmetry}, but has {num_rows} rows and {num_columns} columns")
        kinds = ["integer", "integer", *filter(None, [_FIELDS[field]])]
        text = CsvTable(
            path=path,
            names=(*_ENDS, "weight")[: len(kinds)],
            has_names=True,
            delimiter=BLANKS,
            skipped_lines=line,
            kinds=tuple(kinds),
            is_empty=num_entries == 0,
            counts_columns=False,
        )
        return cls(text=text, shape=(num_rows, num_columns), num_entries=num_entries, symmetry=symmetry)

    @property
    def path(self) -> Path:
        """The file."""
        return self.text.path

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names: row, column, and weight if the entries have values."""
        return self.text.names

    @property
    def remark(self) -> str:
        """The format, and what an entry stands for, for the receipt."""
        if self.symmetry == "general":
            return "Matrix Market, ids from 1"
        sign = ", the second one with the negative value" if self.symmetry != "symmetric" else ""
        return f"Matrix Market, ids from 1, {self.symmetry}: an entry outside the diagonal is two edges{sign}"

    @property
    def num_rows(self) -> int | None:
        """Number of edges, or None for a symmetric matrix, which may have entries on its diagonal."""
        return None if _MIRRORED[self.symmetry] else self.num_entries

    def count_rows(self) -> int:
        """Return the number of edges. Those of a symmetric matrix are read. Raises as `read`."""
        if self.num_rows is not None:
            return self.num_rows
        return sum(len(rows) for (rows,) in self.read({_ENDS[0]: "int64"}, error=SourceError))

    def kind(self, column: str) -> str:
        """Return a column's kind; see `NumberTable.kind`."""
        return self.text.kind(column)

    def width(self, column: str) -> int:
        """Return 1, because a value is one number."""
        return self.text.width(column)

    def reading_bytes(self, columns: Iterable[str]) -> int:
        """Return the bytes of memory for the copies of a text block."""
        return self.text.reading_bytes(columns)

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns``; see `NumberTable.read`. Ids begin at 0.

        Raises also ``error`` for an id that the matrix does not have, and SourceError for another number of entries
        than the size line says, or for entries of a symmetric matrix on both sides of its diagonal.
        """
        wanted: dict[str, Number] = {"row": "int64", "column": "int64"}
        wanted.update((name, number) for name, number in columns.items() if name not in _ENDS)
        done, is_below, is_above = 0, False, False
        for arrays in self.text.read(wanted, error=error):
            by_name: dict[str, NDArray[Any]] = dict(zip(wanted, arrays, strict=True))
            for name, limit in zip(_ENDS, self.shape, strict=True):
                self._check_ids(name, by_name[name], limit, done, error)
            done += len(by_name["row"])
            if done > self.num_entries:
                break
            if _MIRRORED[self.symmetry]:
                is_below |= bool((by_name["row"] > by_name["column"]).any())
                is_above |= bool((by_name["row"] < by_name["column"]).any())
                if is_below and is_above:
                    raise SourceError(
                        f"{self.path} is {self.symmetry}, and has entries on both sides of the diagonal, of which a "
                        "file may have one; write general in its first line if every entry is an edge"
                    )
                by_name = self._both_ways(by_name)
            yield tuple(by_name[name] - 1 if name in _ENDS else by_name[name] for name in columns)
        if done != self.num_entries:
            found = f"more than {self.num_entries:,}" if done > self.num_entries else f"{done:,}"
            raise SourceError(
                f"{self.path} has {found} entries, and its size line says {self.num_entries:,}; the file is "
                "truncated, or its size line is wrong"
            )

    def arrow_type(self, column: str) -> pa.DataType:
        """Return int64 for ids and whole weights, and float64 for other weights."""
        return pa.int64() if self.kind(column) == "integer" else pa.float64()

    def read_arrow(self, columns: Sequence[str], *, error: TableError) -> Iterator[pa.RecordBatch]:
        """Yield the named ``columns`` as numbers; see `NumberTable.read_arrow`. Ids begin at 0."""
        numbers: dict[str, Number] = {
            name: "int64" if self.kind(name) == "integer" else "float64" for name in columns
        }
        for arrays in self.read(numbers, error=error):
            yield pa.RecordBatch.from_arrays([pa.array(each) for each in arrays], names=list(columns))

    def _check_ids(self, name: str, ids: NDArray[np.int64], limit: int, done: int, error: TableError) -> None:
        """Raise ``error`` for an id outside 1..``limit``. ``done`` is the number of earlier entries."""
        bad = np.flatnonzero((ids < 1) | (ids > limit))
        if bad.size:
            raise error(
                f"{self.path}: entry {done + int(bad[0])} has {name} {ids[bad[0]]}; ids are 1..{limit} in this matrix"
            )

    def _both_ways(self, entries: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the entries, each outside the diagonal followed by the one on the other side. Pure."""
        rows, columns = entries["row"], entries["column"]
        counts = np.where(rows == columns, 1, 2)
        is_second = np.zeros(int(counts.sum()), np.bool_)
        is_second[(np.cumsum(counts) - 1)[counts == 2]] = True
        both = {name: np.repeat(values, counts) for name, values in entries.items()}
        both["row"], both["column"] = (
            np.where(is_second, both[second], both[first]) for first, second in (_ENDS, _ENDS[::-1])
        )
        if "weight" in both and _MIRRORED[self.symmetry] < 0:
            both["weight"] = np.where(is_second, -both["weight"], both["weight"])
        return both


def require_square(table: NumberTable) -> None:
    """Refuse a matrix whose rows and columns cannot be the same nodes. Other tables pass. Pure.

    Raises
    ------
    SourceError
        The numbers of rows and columns differ. The message has both, and says how to describe two node types.
    """
    for part in table.parts if isinstance(table, PartedTable) else (table,):
        if isinstance(part, MatrixTable) and part.shape[0] != part.shape[1]:
            raise SourceError(
                f"{part.path} has {part.shape[0]:,} rows and {part.shape[1]:,} columns, so they are different nodes: "
                f"name two node types and the relation 'first:to:second: {part.path.name}' in a graph.yaml, whose "
                "folder is the source tables:FOLDER"
            )
