"""Files of features, labels and splits, each named on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.csv_table import CsvTable, read_column
from gloader.convert.readers.node_arrays import read_labels, read_split, to_labels
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.readers.open_table import is_table, open_table
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.convert.readers.tables import TableFeatures
from gloader.convert.source import FeatureStream, Splits
from gloader.convert.sources.npy import open_feature_file
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.readers.tables import TableFile
    from gloader.types import IdArray


def open_features(path: Path, budget_bytes: int) -> FeatureStream:
    """Open a ``.npy`` (N, F), a ``.npz`` of a scipy CSR matrix, or a table with a row per node.

    Raises
    ------
    SourceError, ShapeError, GraphError
        The file is missing or malformed.
    BudgetError
        The row offsets of a sparse matrix take more than ``budget_bytes``.
    """
    if not is_table(path):
        return open_feature_file(path, budget_bytes=budget_bytes)
    table = open_table(path)
    return TableFeatures(table=table, num_rows=_count_rows(table))


def count_labels(path: Path) -> int:
    """Return how many labels a file holds; raises as `read_label_file`."""
    return _count_rows(open_table(path)) if is_table(path) else NpyFile.open(path).size


def _count_rows(table: TableFile) -> int:
    # A CSV file says its length only by being read; a Parquet file has it in its footer.
    if isinstance(table, CsvTable):
        return table.count_rows()
    return table.num_rows or 0


def read_label_file(path: Path, *, num_nodes: int, budget_bytes: int) -> IdArray:
    """Return the labels (N,) in a ``.npy`` or a table of one column.

    Parameters
    ----------
    path : of the file
    num_nodes : N
    budget_bytes : memory that they may take

    Raises
    ------
    SourceError, ShapeError, BudgetError
        As `read_labels`.
    """
    if not is_table(path):
        return read_labels(NpyFile.open(path), num_nodes=num_nodes, budget_bytes=budget_bytes)
    table = open_table(path)
    if isinstance(table, ParquetTable):
        return to_labels(_read_parquet_column(table, num_nodes), where=str(path))
    return to_labels(read_column(path, max_rows=num_nodes), where=str(path))


def _read_parquet_column(table: ParquetTable, num_nodes: int) -> NDArray[Any]:
    path = table.path
    if len(table.names) != 1:
        raise SourceError(
            f"{path} has the columns {', '.join(table.names)}; labels are one column, a row per node"
        )
    if table.num_rows > num_nodes:
        raise ShapeError(f"{path} has {table.num_rows} rows for {num_nodes} nodes; labels are one for each")
    chunks = [chunk[0] for chunk in table.read({table.names[0]: "float64"}, error=SourceError)]
    return np.concatenate(chunks) if chunks else np.empty(0)


def read_split_files(path: Path, *, num_nodes: int, budget_bytes: int) -> Splits:
    """Return the splits in a ``.npz``, or in a folder of ``.npy`` files, named train, valid (or val) and test.

    Parameters
    ----------
    path : of the archive or folder
    num_nodes : N
    budget_bytes : memory that each may take

    Raises
    ------
    SourceError, ShapeError, GraphError, BudgetError
        As `read_split`; one is missing.
    """
    parts = {name: _open_split(path, name) for name in ("train", "valid", "test")}
    return Splits(
        **{
            name: read_split(file, num_nodes=num_nodes, budget_bytes=budget_bytes)
            for name, file in parts.items()
        }
    )


def _open_split(path: Path, name: str) -> NpyFile:
    aliases = (name, "val") if name == "valid" else (name,)
    if path.is_dir():
        found = next((path / f"{alias}.npy" for alias in aliases if (path / f"{alias}.npy").exists()), None)
        if found is None:
            raise SourceError(
                f"{path} holds no {name}.npy; a folder of splits has train.npy, valid.npy and test.npy"
            )
        return NpyFile.open(found)
    members = npz_members(path)
    member = next((alias for alias in aliases if alias in members), None)
    if member is None:
        raise SourceError(f"{path} holds no array {name!r}; there: {', '.join(members) or 'nothing'}")
    return NpyFile.open(path, member)
