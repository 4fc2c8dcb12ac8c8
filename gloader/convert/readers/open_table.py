"""The opening of tables of any format, CSV, Parquet or Arrow, by the suffix of the file name.

`open_table` returns a `NumberTable`, through which edges, features and labels are read. A table may have several files,
its *parts*: a folder of part files, as Spark writes them, or the matches of a pattern such as ``edges-*.csv``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gloader.convert.readers.parted_table import PartedTable
from gloader.errors import SourceError

if TYPE_CHECKING:
    from gloader.convert.readers.table_streams import HeaderRule, NumberTable


# Prefixes of files in a folder that are not parts, such as ``_SUCCESS`` and ``.part-00000.crc``.
_NOT_PARTS = ("_", ".")
_PATTERN = ("*", "?", "[")  # the marks of a pattern


def part_files(path: Path) -> list[Path]:
    """Return a table's files: the file itself, a folder's files, or a pattern's matches.

    Files are sorted by name, with numbers compared as numbers.

    Raises
    ------
    SourceError
        There is no file, or the folder has folders, such as Hive partitions.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        files = [each for each in path.iterdir() if not each.name.startswith(_NOT_PARTS)]
        folder = next((each for each in files if not each.is_file()), None)
        if folder is not None:
            is_text = any(folder.rglob("*.csv"))
            raise SourceError(
                f"{path} holds {folder.name}, which is no file; a table's folder may have only part files. Put all "
                f"files into one folder: import pyarrow.dataset as d; d.write_dataset(d.dataset({str(path)!r}, "
                f"format={'csv' if is_text else 'parquet'!r}, partitioning='hive'), {path.name + '_flat'!r}, "
                "format='parquet')"
            )
    else:
        files = [each for each in path.parent.glob(path.name) if each.is_file()] if is_pattern(path) else []
        if not files:
            problem = "matches no file" if is_pattern(path) else "is missing, or is not a file"
            if any(map(is_pattern, path.parents)):
                problem = "is a pattern of folders; only file names may have marks, such as links-*.csv"
            raise SourceError(f"{path} {problem}")
    if not files:
        raise SourceError(f"{path} is a folder without files")
    return sorted(files, key=_in_order)


def _in_order(path: Path) -> list[str | int]:
    """Return the sort key for a file name, which puts part-2 before part-10. Pure."""
    # Text and numbers alternate, so that text is compared with text, and numbers with numbers.
    return [int(each) if each.isdecimal() else each for each in re.split(r"([0-9]+)", path.name)]


def is_pattern(path: Path) -> bool:
    """True if the last part of ``path`` is a pattern of names, such as ``edges-*.csv``. Pure."""
    return any(mark in path.name for mark in _PATTERN)


# The suffixes of the formats; ".gz" may follow those of CSV.
CSV_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".tab"})
PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})
ARROW_SUFFIXES = frozenset({".arrow", ".arrows", ".feather", ".ipc"})
MATRIX_SUFFIX = ".mtx"  # ".gz" may follow
TRIPLES_SUFFIX = ".nt"  # N-Triples; ".gz" may follow
_SUFFIXES = CSV_SUFFIXES | PARQUET_SUFFIXES | ARROW_SUFFIXES | {MATRIX_SUFFIX, TRIPLES_SUFFIX}
# The lines of Python that turn a graph of networkx into two tables.
_AS_TABLES = (
    "networkx.to_pandas_edgelist(graph).to_parquet('edges.parquet')",
    "nodes = pandas.DataFrame.from_dict(dict(graph.nodes(data=True)), orient='index')",
    "nodes.rename_axis('id').to_parquet('nodes.parquet')",
)


def _in_python(*lines: str) -> str:
    """Return lines of Python as the end of a message."""
    return f"turn it into tables in Python: {'; '.join(lines)}"


_PICKLED = "pickles are never read, because they can run code. If you trust the file, " + _in_python(
    "graph = pickle.load(open(file, 'rb'))", *_AS_TABLES
)
# The remedy for a file that is no table, by its suffix.
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
    ".npy": "edges as an array are edges.npy in a folder of arrays, npy:FOLDER",
    ".npz": "edges as an array are edges.npy in a folder of arrays, npy:FOLDER. "
    + _in_python(
        "matrix = scipy.sparse.load_npz(file).tocoo()",
        "pandas.DataFrame({'src': matrix.row, 'dst': matrix.col, 'weight': matrix.data}).to_parquet('edges.parquet')",
    ),
    ".pkl": f"{_PICKLED} (of a DataFrame: graph.to_parquet('table.parquet'))",
    ".pickle": _PICKLED,
    ".gpickle": _PICKLED,
    ".graphml": _in_python("graph = networkx.read_graphml(file)", *_AS_TABLES),
    ".gexf": _in_python("graph = networkx.read_gexf(file)", *_AS_TABLES),
    ".gml": _in_python("graph = networkx.read_gml(file)", *_AS_TABLES),
    ".net": _in_python("graph = networkx.Graph(networkx.read_pajek(file))", *_AS_TABLES),
    ".pt": "a graph of PyG is pyg:FILE",
    ".bin": "a graph of DGL is dgl:FILE",
}


def is_table(path: Path) -> bool:
    """True if ``path`` is a CSV (also .gz), Parquet or Arrow file by its name, or a folder or pattern of such files."""
    if plain_suffix(path) in _SUFFIXES:
        return True
    return path.is_dir() and any(is_table(part) for part in part_files(path) if not part.is_dir())


def is_matrix(path: Path) -> bool:
    """True if ``path`` is a Matrix Market file by its name, or a folder or pattern of such files."""
    return any(plain_suffix(part) == MATRIX_SUFFIX for part in part_files(path))


def is_text_table(table: NumberTable) -> bool:
    """True for a table in text files, which have no types. Pure."""
    from gloader.convert.readers.csv_table import CsvTable  # imported late: pyarrow takes 30 MB

    parts = table.parts if isinstance(table, PartedTable) else (table,)
    return all(isinstance(part, CsvTable) for part in parts)


def open_table(path: Path, *, is_header: HeaderRule | None = None) -> NumberTable:
    """Open the CSV, Parquet or Arrow file at ``path``, or the part files in a folder or of a pattern.

    ``is_header`` decides for a CSV file whether the first row is a header; None applies the rule of `CsvTable`.

    Raises
    ------
    SourceError
        A file is missing or malformed, its name has neither suffix, or parts have different columns.
    """
    files = part_files(path)
    if files == [path]:
        return _open_file(path, is_header)
    parts = [_open_file(file, is_header) for file in files]
    return PartedTable.of(path, parts, has_types=not all(map(is_text_table, parts)))


def _open_file(path: Path, is_header: HeaderRule | None) -> NumberTable:
    """Open one file by its suffix."""
    suffix = plain_suffix(path)
    if suffix in CSV_SUFFIXES:
        from gloader.convert.readers.csv_table import CsvTable  # imported late: pyarrow takes 30 MB

        return CsvTable.open(path, is_header=is_header)
    if suffix in PARQUET_SUFFIXES:
        from gloader.convert.readers.parquet_table import open_parquet_table

        return open_parquet_table(path)
    if suffix in ARROW_SUFFIXES:
        from gloader.convert.readers.arrow_file import open_arrow_table

        return open_arrow_table(path)
    if suffix == MATRIX_SUFFIX:
        from gloader.convert.readers.matrix_market import MatrixTable

        return MatrixTable.open(path)
    if suffix == TRIPLES_SUFFIX:
        from gloader.convert.readers.ntriples import NTriples

        return NTriples(path=path)
    raise SourceError(f"{path}: {unknown_format(path)}")


def unknown_format(path: Path) -> str:
    """Return the remedy for a file with an unknown suffix, as the end of a message. Pure."""
    known = ", ".join(sorted(_SUFFIXES))
    cure = _CURES.get(path.suffix.lower()) or _CURES.get(plain_suffix(path), "rename the file by its format")
    return f"the name has no known suffix; use one of {known} (.gz after those of text): {cure}"


def plain_suffix(path: Path) -> str:
    """Return the suffix of ``path`` that names the format, such as ".csv" for "a.csv.gz". Pure."""
    return Path(path.stem).suffix.lower() if path.suffix == ".gz" else path.suffix.lower()
