"""Opening of table files: the suffix of the name decides the format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.readers.csv_table import CsvTable
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.errors import SourceError

if TYPE_CHECKING:
    from gloader.convert.readers.tables import TableFile

CSV_SUFFIXES = frozenset({".csv", ".tsv", ".txt"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})


def is_table(path: Path) -> bool:
    """Whether the name of ``path`` is that of a CSV (also .gz) or Parquet file. Pure."""
    return plain_suffix(path) in CSV_SUFFIXES | PARQUET_SUFFIXES


def open_table(path: Path) -> TableFile:
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
        return CsvTable.open(path)
    if suffix in PARQUET_SUFFIXES:
        return ParquetTable.open(path)
    known = ", ".join(sorted(CSV_SUFFIXES | PARQUET_SUFFIXES))
    raise SourceError(f"{path}: the name does not say the format; use one of {known} (.gz after a CSV's)")


def plain_suffix(path: Path) -> str:
    """Return the suffix of ``path`` that says its format, such as ".csv" of "a.csv.gz". Pure."""
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()
