"""``edges:FILE``: an edge list as CSV or Parquet, with features, labels and splits in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.csv_table import CsvTable, read_column
from gloader.convert.readers.file_features import CsrFeatures
from gloader.convert.readers.node_arrays import (
    count_classes,
    random_splits,
    read_labels,
    read_split,
    require_node_memory,
    to_labels,
)
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.readers.open_table import is_table, open_table
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.convert.readers.tables import TableEdges, TableFeatures
from gloader.convert.source import FeatureStream, Source, Splits
from gloader.convert.sources.npy import open_feature_file
from gloader.errors import ConfigError, ShapeError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.readers.tables import TableFile
    from gloader.types import IdArray


def open_edges(argument: str, options: SourceOptions) -> Source:
    """Open an edge list with the features and labels that ``options`` name.

    The edge list is a ``.csv``, ``.tsv`` or ``.txt`` (also ``.gz``), with or without a header, or a
    ``.parquet``: columns src, dst and perhaps weight, or else the first two (and, of three without names, the
    third). Features are a ``.npy`` (N, F), a ``.npz`` of a scipy CSR matrix, or a table of a row per node;
    labels a ``.npy`` (N,) or a table of one column; splits a ``.npz`` or a folder of ``.npy`` with train, valid
    and test. Without splits, the labelled nodes are dealt out 60/20/20 at random by ``options.seed``.

    Raises
    ------
    ConfigError
        Features or labels are not named.
    SourceError
        A file is missing, truncated or malformed.
    GraphError
        The ids in the table are no integers.
    """
    path = _require_path(Path(argument))
    for name, value in (("features", options.features), ("labels", options.labels)):
        if value is None:
            raise ConfigError(f"edges:{argument} needs {name}; name their file with --{name} FILE")
    edges = TableEdges.open(open_table(path))
    budget = options.budget_bytes
    features = _open_features(_require_path(options.features), budget)
    num_nodes = features.num_rows
    require_node_memory(num_nodes, budget, str(options.features))
    labels = _read_labels(_require_path(options.labels), num_nodes=num_nodes, budget_bytes=budget)
    splits = (
        random_splits(labels, seed=options.seed)
        if options.splits is None
        else _read_splits(options.splits.expanduser(), num_nodes=num_nodes, budget_bytes=budget)
    )
    return Source(
        name=Path(path.stem).stem,
        origin=f"edges:{argument}",
        num_nodes=num_nodes,
        num_classes=count_classes(labels),
        edges=edges,
        features=features,
        labels=labels,
        splits=splits,
        edge_file=path,
        resident_bytes=features.indptr.nbytes if isinstance(features, CsrFeatures) else 0,
    )


def _require_path(path: Path | None) -> Path:
    expanded = Path() if path is None else path.expanduser()
    if not expanded.is_file():
        raise SourceError(f"{expanded} is missing, or is not a file")
    return expanded


def _open_features(path: Path, budget_bytes: int) -> FeatureStream:
    if not is_table(path):
        return open_feature_file(path, budget_bytes=budget_bytes)
    table = open_table(path)
    return TableFeatures(table=table, num_rows=_count_rows(table))


def _count_rows(table: TableFile) -> int:
    # A CSV file says its length only by being read; a Parquet file has it in its footer.
    if isinstance(table, CsvTable):
        return table.count_rows()
    return table.num_rows or 0


def _read_labels(path: Path, *, num_nodes: int, budget_bytes: int) -> IdArray:
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


def _read_splits(path: Path, *, num_nodes: int, budget_bytes: int) -> Splits:
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
