"""What a table of numbers in a file looks like to its readers, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from gloader.errors import GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.convert.regroup import Columns

Number: TypeAlias = Literal["int64", "float32", "float64"]
TableError: TypeAlias = type[GraphError] | type[SourceError]

CSV_SUFFIXES = frozenset({".csv", ".tsv", ".txt"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})


class Table(Protocol):
    """Named columns of numbers, read as a stream. Every call of a method starts again at the first row."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names; c0, c1, ... where the file has none."""
        ...

    @property
    def has_names(self) -> bool:
        """Whether the names are the file's."""
        ...

    @property
    def num_rows(self) -> int | None:
        """Number of rows, or None where only reading tells."""
        ...

    def read(self, columns: Mapping[str, Number], *, error: TableError) -> Iterator[Columns]:
        """Yield the named ``columns`` as arrays of the dtypes given, some thousands of rows at a time.

        Raises
        ------
        error
            A value is missing or is no such number; names the file, the row and the value.
        SourceError
            The file is truncated or corrupt.
        """
        ...


def is_table(path: Path) -> bool:
    """Whether the name of ``path`` is that of a CSV (also .gz) or Parquet file. Pure."""
    return plain_suffix(path) in CSV_SUFFIXES | PARQUET_SUFFIXES


def open_table(path: Path) -> Table:
    """Open the CSV or Parquet file at ``path``.

    Raises
    ------
    SourceError
        The file is missing or malformed, or its name says neither.
    """
    if not path.is_file():
        raise SourceError(f"{path} is missing, or is not a file")
    suffix = plain_suffix(path)
    if suffix in CSV_SUFFIXES:
        from gloader.convert.csv_table import CsvTable

        return CsvTable.open(path)
    if suffix in PARQUET_SUFFIXES:
        from gloader.convert.parquet_table import ParquetTable

        return ParquetTable.open(path)
    known = ", ".join(sorted(CSV_SUFFIXES | PARQUET_SUFFIXES))
    raise SourceError(f"{path}: the name does not say the format; use one of {known} (.gz after a CSV's)")


def plain_suffix(path: Path) -> str:
    """Return the suffix of ``path`` that says its format, such as ".csv" of "a.csv.gz". Pure."""
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()
