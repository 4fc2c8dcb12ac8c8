"""Files of features, labels and splits, each named on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.convert.order.row_order import JOINED_NODE_BYTES
from gloader.convert.readers.file_features import CsrFeatures
from gloader.convert.readers.node_arrays import read_labels, read_split, to_labels
from gloader.convert.readers.node_tables import node_features, node_labels
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.readers.open_table import is_table, open_table, unknown_format
from gloader.convert.readers.tables import TableEdges, TableFeatures
from gloader.convert.source import EdgeStream, FeatureStream, Splits
from gloader.convert.sources.npy import open_feature_file
from gloader.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.convert.readers.told import Told
    from gloader.types import IdArray


def open_node_features(
    path: Path, *, budget_bytes: int, told: Told, labels: Path | None = None
) -> tuple[FeatureStream, IdArray | None]:
    """Open a ``.npy`` (N, F), a ``.npz`` of a scipy CSR matrix, or a table with a row per node.

    Parameters
    ----------
    path : of the file, or of a folder of part files
    budget_bytes : memory that row offsets of a sparse matrix, or ids, may take
    told : receives what the columns of a table became
    labels : of the labels' own file, which may be the same: their column is then no feature

    Returns
    -------
    features : their rows
    row_ids : (N,) the node of each row; None: row i is of node i

    Raises
    ------
    SourceError, ShapeError, GraphError
        The file is missing or malformed, or ids are not 0..N-1, each once.
    BudgetError
        Row offsets or ids take more than ``budget_bytes``.
    """
    if not is_table(path):
        if path.suffix not in {".npy", ".npz"}:
            raise SourceError(f"{path} is no .npy or .npz array: {unknown_format(path)}")
        return open_feature_file(path, budget_bytes=budget_bytes), None
    has_labels = labels is not None and labels.expanduser().resolve() == path.resolve()
    return node_features(open_table(path), budget_bytes=budget_bytes, told=told, has_labels=has_labels)


def open_edge_features(path: Path, *, budget_bytes: int, told: Told) -> FeatureStream:
    """Open a file with a row of features per edge, in their order; raises as `open_node_features`."""
    rows, ids = open_node_features(path, budget_bytes=budget_bytes, told=told)
    if ids is not None:
        raise SourceError(
            f"{path} is not sorted by the ids of its rows; features of edges lie in the edges' order"
        )
    return rows


def count_labels(path: Path) -> int:
    """Return how many labels a file holds; raises as `read_label_file`."""
    return open_table(path).count_rows() if is_table(path) else NpyFile.open(path).size


def read_label_file(path: Path, *, num_nodes: int, budget_bytes: int, told: Told) -> IdArray:
    """Return the labels (N,) in a ``.npy`` or a table with a row per node.

    Parameters
    ----------
    path : of the file, or of a folder of part files
    num_nodes : N
    budget_bytes : memory that they may take
    told : receives what the columns of a table became

    Raises
    ------
    SourceError, ShapeError, BudgetError
        As `read_labels` and `node_labels`.
    """
    if not is_table(path):
        return read_labels(NpyFile.open(path), num_nodes=num_nodes, budget_bytes=budget_bytes)
    values = node_labels(open_table(path), num_nodes=num_nodes, budget_bytes=budget_bytes, told=told)
    return to_labels(values, where=str(path))


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
    if is_table(path):
        raise SourceError(
            f"{path} is a table; splits are a .npz with arrays train, valid and test, or a folder of three .npy files"
        )
    members = npz_members(path)
    member = next((alias for alias in aliases if alias in members), None)
    if member is None:
        raise SourceError(f"{path} holds no array {name!r}; there: {', '.join(members) or 'nothing'}")
    return NpyFile.open(path, member)


def reading_bytes(*streams: EdgeStream | FeatureStream | None) -> int:
    """Return the memory that reading the largest table of a source takes; they are read one after another."""
    tables = [each for each in streams if isinstance(each, TableEdges | TableFeatures)]
    return max((each.reading_bytes for each in tables), default=0)


def held_bytes(features: FeatureStream | None, row_ids: IdArray | None = None) -> int:
    """Return the bytes of memory that features hold besides their chunks: row offsets, ids and the order of rows."""
    offsets = features.indptr.nbytes if isinstance(features, CsrFeatures) else 0
    return offsets + (0 if row_ids is None else JOINED_NODE_BYTES * row_ids.shape[0])
