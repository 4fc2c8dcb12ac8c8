"""Opening of tables: the suffix of a file's name decides the format, a folder holds part files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.readers.csv_table import CsvTable
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.convert.readers.part_files import PartedTable, part_files
from gloader.errors import SourceError

if TYPE_CHECKING:
    from gloader.convert.readers.tables import TableFile

CSV_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".tab"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
# What makes a table of a file of another kind.
_UNPACK = "unpack it, or pack it with gzip"
_CURES = {
    ".zip": _UNPACK,
    ".zst": _UNPACK,
    ".bz2": _UNPACK,
    ".xz": _UNPACK,
    ".7z": _UNPACK,
    ".tar": _UNPACK,
    ".xlsx": "save it as CSV",
    ".xls": "save it as CSV",
    ".json": "pandas.read_json(file).to_parquet('table.parquet')",
    ".jsonl": "pandas.read_json(file, lines=True).to_parquet('table.parquet')",
    ".feather": "pandas.read_feather(file).to_parquet('table.parquet')",
    ".arrow": "pandas.read_feather(file).to_parquet('table.parquet')",
    ".pkl": "pickles are never read; save the table with DataFrame.to_parquet",
    ".npy": "edges as an array are edges.npy in a folder of arrays, npy:FOLDER",
    ".npz": "edges as an array are edges.npy in a folder of arrays, npy:FOLDER",
    ".pt": "a graph of PyG is pyg:FILE",
    ".bin": "a graph of DGL is dgl:FILE",
    ".mtx": "ids begin at 1 in it; matrix = scipy.io.mmread(file), then pandas.DataFrame({'src': matrix.row, 'dst': "
    "matrix.col}).to_parquet('table.parquet')",
    ".graphml": "graph = networkx.read_graphml(file), then networkx.to_pandas_edgelist(graph).to_parquet("
    "'table.parquet')",
}


def is_table(path: Path) -> bool:
    """Whether ``path`` is a CSV (also .gz) or Parquet file by its name, or a folder or pattern of tables."""
    if plain_suffix(path) in CSV_SUFFIXES | PARQUET_SUFFIXES:
        return True
    return path.is_dir() and any(is_table(part) for part in part_files(path) if not part.is_dir())


def open_table(path: Path) -> TableFile:
    """Open the CSV or Parquet file at ``path``, or the part files in a folder or of a pattern.

    Raises
    ------
    SourceError
        A file is missing or malformed, its name says neither, or parts have different columns.
    """
    files = part_files(path)
    if files == [path]:
        return _open_file(path)
    return PartedTable.of(path, [_open_file(file) for file in files])


def _open_file(path: Path) -> TableFile:
    suffix = plain_suffix(path)
    if suffix in CSV_SUFFIXES:
        return CsvTable.open(path)
    if suffix in PARQUET_SUFFIXES:
        return ParquetTable.open(path)
    raise SourceError(f"{path}: {unknown_format(path)}")


def unknown_format(path: Path) -> str:
    """Return the rest of a sentence on a file that is no table by its name: what makes one of it. Pure."""
    known = ", ".join(sorted(CSV_SUFFIXES | PARQUET_SUFFIXES))
    cure = _CURES.get(path.suffix.lower(), "give it the name of what it is")
    return f"the name does not say the format; use one of {known} (.gz after a CSV's): {cure}"


def plain_suffix(path: Path) -> str:
    """Return the suffix of ``path`` that says its format, such as ".csv" of "a.csv.gz". Pure."""
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()
