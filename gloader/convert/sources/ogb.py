"""The source ``ogb:NAME``: an Open Graph Benchmark data set, read from OGB's folder.

OGB's loader is not used, because it holds everything in memory, and reads its own pickle on the second load. The
streams of this module have the same edges as OGB's loader, in the same order, with its added reverse edges. `open_ogb`
finds or downloads the folder. Then it chooses among four layouts: link data sets (`ogb_links`), graphs of several types
(`ogb_text`), and graphs of one type in text or in binary files.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.convert.options import USUAL_NAMES
from gloader.convert.readers.csv_table import read_column
from gloader.convert.readers.edge_means import mean_edge_rows, mean_row_bytes
from gloader.convert.readers.file_streams import npy_features, pair_file_edges
from gloader.convert.readers.node_arrays import count_classes, require_node_memory, to_labels
from gloader.convert.readers.node_tables import table_labels
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.readers.table_streams import TableEdges, table_features
from gloader.convert.source import Source, doubled_edges
from gloader.convert.sources.ogb_links import LINK_SETS, UNFIT_LINKS, OgbLinkInfo, open_ogb_links
from gloader.convert.sources.ogb_text import (
    RELATION_FILE,
    OgbEdgeFiles,
    has_types,
    open_ogb_hetero,
    plausible,
    raw_table,
    read_count,
    read_splits,
)
from gloader.core.malformed import MALFORMED
from gloader.dataset.values import label_kind_of
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.convert.options import SourceOptions
    from gloader.convert.source import AnySource, EdgeStream, FeatureStream

ROOT_VARIABLE = "GLOADER_OGB_ROOT"  # the environment variable with the folder of data sets
_MAX_META_CHARACTERS = 1 << 20  # number of characters to read from a description; real ones have hundreds


@dataclass(frozen=True, slots=True, kw_only=True)
class OgbInfo:
    """A data set's row in OGB's list, ``ogb/nodeproppred/master.csv`` in the ogb package."""

    num_classes: int | None  # None means that the classes in the labels are counted
    add_inverse_edge: bool  # True if OGB's loader adds a reverse to each edge
    split: str | None  # the folder below ``split/`` with the split's files; None means the only folder
    num_tasks: int = 1  # labels per node; more than one are columns of 0 and 1
    has_node_features: bool = True  # False: a node's features are the mean features of its in-edges


# The rows of the data sets for node classification that *fit*, which means that they can be converted.
_KNOWN = {
    "ogbn-arxiv": OgbInfo(num_classes=40, add_inverse_edge=False, split="time"),
    "ogbn-products": OgbInfo(num_classes=47, add_inverse_edge=True, split="sales_ranking"),
    "ogbn-papers100M": OgbInfo(num_classes=172, add_inverse_edge=False, split="time"),
    "ogbn-mag": OgbInfo(num_classes=349, add_inverse_edge=False, split="time"),
    "ogbn-proteins": OgbInfo(
        num_classes=None, add_inverse_edge=True, split="species", num_tasks=112, has_node_features=False
    ),
}


def open_ogb(argument: str, options: SourceOptions) -> AnySource:
    """Open ``ogb:NAME`` or ``ogb:NAME@DIR``. A missing data set is downloaded.

    Data sets are in the folder DIR, or ``options.root``, or $GLOADER_OGB_ROOT, or ``dataset`` in the working directory
    (as in OGB's examples). Any folder in OGB's layout with a ``meta_dict.json`` works too.

    Raises
    ------
    SourceError
        OGB has no such data set, it does not fit, or its folder is incomplete or malformed.
    DownloadError, MissingDependencyError
        The data set is missing and cannot be downloaded. The message explains the installation by hand.
    """
    name, _, directory = argument.partition("@")
    if name in UNFIT_LINKS:
        raise SourceError(
            f"ogb:{name} {UNFIT_LINKS[name]}; of OGB's link data sets {', '.join(LINK_SETS)} fit"
        )
    folder = find_ogb_folder(name, _root(directory, options))
    link_info = _read_link_info(name, folder)
    if link_info is not None:
        return open_ogb_links(
            folder,
            name=name,
            origin=f"ogb:{argument}",
            info=link_info,
            budget_bytes=options.budget_bytes,
            edge_names=options.edge_names,
        )
    info = _read_info(name, folder)
    if has_types(folder):
        return open_ogb_hetero(
            folder,
            name=name,
            origin=f"ogb:{argument}",
            num_classes=info.num_classes,
            split=info.split,
            budget_bytes=options.budget_bytes,
            edge_names=options.edge_names,
        )
    layout = (
        _BinaryLayout(folder=folder) if (folder / "raw" / "data.npz").exists() else _CsvLayout(folder=folder)
    )
    num_nodes = layout.num_nodes()
    require_node_memory(num_nodes, options.budget_bytes, str(folder / "raw"))
    labels = (
        to_labels(layout.labels(num_nodes), where=str(folder / "raw"), labels_as="classes")
        if info.num_tasks == 1
        else layout.label_columns(num_nodes, info.num_tasks, options.budget_bytes)
    )
    files = OgbEdgeFiles(folder=folder / "raw", names=options.edge_names)
    edge_features = files.features(layout.num_edges(), add_inverse=info.add_inverse_edge)
    edges = files.timed(layout.edges(), add_inverse=info.add_inverse_edge)
    options.edge_names.require(
        has_times=edges.has_times,
        has_features=edge_features is not None,
        there=files.there(),
        where=str(folder / "raw"),
    )
    notes: tuple[str, ...] = ()
    features, resident = None if info.has_node_features else _means(layout, info), 0
    if features is not None:
        notes = (
            f"features: means of the {features.dim} edge features over a node's in-edges, as OGB's baselines",
        )
        resident = mean_row_bytes(num_nodes, features.dim)
    return Source(
        name=name,
        origin=f"ogb:{argument}",
        num_nodes=num_nodes,
        num_classes=count_classes(labels) if info.num_classes is None else info.num_classes,
        edges=edges,
        features=layout.features() if features is None else features,
        resident_bytes=resident,
        column_notes=notes,
        unused=() if info.has_node_features else _unused(folder / "raw"),
        labels=labels,
        splits=read_splits(folder / "split", info.split, num_nodes=labels.shape[0]),
        edge_features=edge_features,
        edge_file=layout.edge_file,
    )


def _means(layout: _CsvLayout | _BinaryLayout, info: OgbInfo) -> FeatureStream:
    """Return node features that are means of edge features. Raises SourceError without edge features."""
    raw = layout.folder / "raw"
    rows = OgbEdgeFiles(folder=raw, names=USUAL_NAMES).features(
        layout.num_edges(), add_inverse=info.add_inverse_edge
    )
    if rows is None:
        raise SourceError(
            f"{raw} has neither node-feat.csv.gz nor edge-feat.csv.gz, whose means over in-edges could be node "
            "features; unpack OGB's archive anew"
        )
    edges = layout.edges()
    return mean_edge_rows(
        doubled_edges(edges) if info.add_inverse_edge else edges,
        rows,
        num_nodes=layout.num_nodes(),
        where=str(layout.edge_file),
    )


def _unused(raw: Path) -> tuple[str, ...]:
    """Return the files about nodes that the dataset will not have, such as ``node_species (N,)``.

    In ogbn-proteins, the species of test nodes occur nowhere else, so a network cannot learn their features. OGB
    removed the species from the node features for this reason.
    """
    files = (path.name.removesuffix(".csv.gz") for path in sorted(raw.glob("node_*.csv.gz")))
    return tuple(f"{name} (N,)" for name in files)


def source_paths(argument: str, options: SourceOptions) -> list[Path]:
    """Return the file and the folders that `open_ogb` reads. Before the download, there are none."""
    name, _, directory = argument.partition("@")
    folder = _existing_folder(name, _root(directory, options))
    return [] if folder is None else [folder / "meta_dict.json", folder / "raw", folder / "split"]


def _root(directory: str, options: SourceOptions) -> Path:
    """Return the folder of data sets. ``directory`` is DIR in ``ogb:NAME@DIR``, or "" without it."""
    given = Path(directory) if directory else options.root or Path(os.environ.get(ROOT_VARIABLE, "dataset"))
    return given.expanduser()


def find_ogb_folder(name: str, root: Path) -> Path:
    """Return the folder of data set ``name`` below ``root``. A missing data set is downloaded.

    Raises
    ------
    SourceError
        There is no such data set, or its folder has no ``raw``.
    DownloadError, MissingDependencyError
        The data set cannot be downloaded.
    """
    plain = name.replace("-", "_")
    folder = _existing_folder(name, root)
    if folder is not None:
        return folder
    if (root / plain).exists():
        raise SourceError(
            f"{root / plain} holds no folder raw; unpack OGB's archive of {name} so that it does"
        )
    known = (*_KNOWN, *LINK_SETS)
    if name not in known:
        nearest = get_close_matches(name, known, n=1)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise SourceError(
            f"{root} holds no folder {plain}, and OGB has no data set {name!r} that fits: {hint}known are "
            f"{', '.join(known)}"
        )
    from gloader.convert.downloads import fetch_ogb

    return fetch_ogb(name, root)


def _existing_folder(name: str, root: Path) -> Path | None:
    """Return the data set's folder in ``root``, or ``root`` if it is named like the data set, or None."""
    # OGB's loaders for PyG and DGL unpack to separate folders, with the same files in ``raw``.
    plain = name.replace("-", "_")
    folders = [root / plain, root / f"{plain}_pyg", root / f"{plain}_dgl", root / name]
    if root.name in {plain, name}:
        folders.append(root)
    return next((folder for folder in folders if (folder / "raw").is_dir()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CsvLayout:
    """``raw/*.csv.gz``, the layout of all but the largest data sets. `_BinaryLayout` has the same methods."""

    folder: Path  # the data set's folder, with ``raw``

    @property
    def edge_file(self) -> Path:
        """The edges' file, for messages and the receipt."""
        return self._raw("edge.csv.gz")

    def num_nodes(self) -> int:
        return read_count(self._raw("num-node-list.csv.gz"))

    def num_edges(self) -> int:
        return read_count(self._raw("num-edge-list.csv.gz"))

    def edges(self) -> EdgeStream:
        return TableEdges.open(raw_table(self.edge_file), num_edges=self.num_edges()).stream()

    def features(self) -> FeatureStream:
        return table_features(raw_table(self._raw("node-feat.csv.gz")), self.num_nodes())

    def labels(self, num_nodes: int) -> NDArray[Any]:
        """Return the labels (N,). Raises ShapeError for more than ``num_nodes``."""
        return read_column(self._raw("node-label.csv.gz"), max_rows=num_nodes)

    def label_columns(self, num_nodes: int, num_tasks: int, budget_bytes: int) -> NDArray[np.float32]:
        """Return labels of 0 and 1, (N, k) with k ``num_tasks``.

        Raises
        ------
        SourceError, ShapeError
            The file is missing or malformed, or has another number of columns or rows.
        BudgetError
            The labels take more than ``budget_bytes``.
        """
        table = raw_table(self._raw("node-label.csv.gz"))
        if len(table.names) != num_tasks:
            raise ShapeError(
                f"{table.path} has {len(table.names)} columns; it must have {num_tasks}, one per label"
            )
        labels = table_labels(table, num_nodes=num_nodes, budget_bytes=budget_bytes)
        if label_kind_of(labels) != "multilabel":
            raise SourceError(
                f"{table.path} has labels other than 0, 1 and nan; OGB's labels of several tasks are these"
            )
        return labels

    def _raw(self, name: str) -> Path:
        return self.folder / "raw" / name


@dataclass(frozen=True, slots=True, kw_only=True)
class _BinaryLayout:
    """``raw/data.npz`` and ``raw/node-label.npz``, the layout of ogbn-papers100M. Their members are streamed."""

    folder: Path  # the data set's folder, with ``raw``

    @property
    def edge_file(self) -> Path:
        """The archive with the edges and the features."""
        return self.folder / "raw" / "data.npz"

    def num_nodes(self) -> int:
        """Return the number of nodes. Raises SourceError if the file has several graphs."""
        counts = self._member("num_nodes_list")
        if counts.size != 1 or counts.dtype.kind not in "iu":
            raise SourceError(f"{self.edge_file} holds {counts.size} graphs; 1 was expected")
        return plausible(int(counts.read().ravel()[0]), self.edge_file)

    def num_edges(self) -> None:
        """Return None: no file has the number, and the edge array's own shape gives it."""
        return

    def edges(self) -> EdgeStream:
        return pair_file_edges(self._member("edge_index"), prefers_rows=False)

    def features(self) -> FeatureStream:
        return npy_features(self._member("node_feat"))

    def labels(self, num_nodes: int) -> NDArray[Any]:
        """Return the labels (N,). Raises ShapeError for more than ``num_nodes``."""
        file = NpyFile.open(self.folder / "raw" / "node-label.npz", "node_label")
        if file.size > num_nodes:
            raise ShapeError(f"{file.where} has shape {file.shape}; labels must be ({num_nodes},)")
        return file.read()

    def label_columns(self, num_nodes: int, num_tasks: int, budget_bytes: int) -> NDArray[np.float32]:
        """Raise SourceError: OGB has no such data set in this layout."""
        del num_nodes, budget_bytes
        raise SourceError(
            f"{self.folder} has {num_tasks} labels per node in binary files; only OGB's text layout of such data sets "
            "fits"
        )

    def _member(self, name: str) -> NpyFile:
        """Return an array of the archive. Raises SourceError if it is missing."""
        if name not in npz_members(self.edge_file):
            raise SourceError(f"{self.edge_file} holds no array {name!r}")
        return NpyFile.open(self.edge_file, name)


def _read_link_info(name: str, folder: Path) -> OgbLinkInfo | None:
    """Return a link data set's row, from ``meta_dict.json`` or else from `LINK_SETS`. None means a node data set."""
    path = folder / "meta_dict.json"
    if not path.exists():
        return LINK_SETS.get(name)
    try:
        meta = _read_meta(path)
        if str(meta.get("task type")) != "link prediction":
            return None
        return OgbLinkInfo(
            add_inverse_edge=str(meta.get("add_inverse_edge")) == "True", split=str(meta["split"])
        )
    except (OSError, *MALFORMED) as error:
        raise SourceError(f"{path} is no description of an OGB data set: {error!r}") from error


def _read_meta(path: Path) -> dict[str, Any]:
    """Return the content of a ``meta_dict.json``, of which at most `_MAX_META_CHARACTERS` are read."""
    with path.open(encoding="utf-8") as file:
        meta: dict[str, Any] = json.loads(file.read(_MAX_META_CHARACTERS))
    return meta


def _read_info(name: str, folder: Path) -> OgbInfo:
    """Return a node data set's row, from ``meta_dict.json`` or else from `_KNOWN`. Other data sets get an empty row."""
    # OGB's DatasetSaver writes this file. Downloaded data sets do not have it.
    path = folder / "meta_dict.json"
    if not path.exists():
        return _KNOWN.get(name, OgbInfo(num_classes=None, add_inverse_edge=False, split=None))
    try:
        meta = _read_meta(path)
        classes, split = int(meta["num classes"]), str(meta["split"])
        if str(meta.get("is hetero", "False")) == "True" and not has_types(folder):
            raise SourceError(
                f"{path}: {name} has several node types, and {folder / 'raw'} no {RELATION_FILE}; only OGB's text "
                "layout of such data sets fits"
            )
    except (OSError, *MALFORMED) as error:
        raise SourceError(f"{path} is no description of an OGB data set: {error!r}") from error
    num_tasks = int(meta.get("num tasks", 1))
    return OgbInfo(
        num_classes=classes if num_tasks == 1 else None,
        add_inverse_edge=str(meta.get("add_inverse_edge")) == "True",
        split=split,
        num_tasks=num_tasks,
        has_node_features=str(meta.get("has_node_attr", "True")) == "True",
    )
