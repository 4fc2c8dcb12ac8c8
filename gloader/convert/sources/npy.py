"""The source ``npy:DIR``: a folder of plain numpy arrays with the names below.

=============  ================================================================================
topology       ``indptr`` and ``indices`` (in-neighbours), or ``edges`` (E, 2), or ``edge_index`` (2, E)
edge weights   ``edge_weight`` (E,), optional
edge times     ``edge_time`` (E,), optional
edge features  ``edge_features`` (E, F), optional
features       ``features.npy`` (N, F), or ``features_csr.npz`` from `scipy.sparse.save_npz`
labels         ``labels``: classes (N,), -1 or NaN where unknown, or values (N, k); optional if edges are predicted
splits         ``train``, ``valid`` (or ``val``), ``test``: ids or masks; without them 60/20/20 at random
=============  ================================================================================

Each name is a file ``NAME.npy``, or an array in ``graph.npz`` or ``split.npz``. `open_npy` opens the features first,
because they give the number of nodes N, and then the other arrays, which `_ArrayFolder` finds by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.attributes import Attributes
from gloader.convert.readers.edge_columns import file_column, timed_edges
from gloader.convert.readers.file_streams import csc_file_edges, csr_features, npy_features, pair_file_edges
from gloader.convert.readers.node_arrays import (
    count_classes,
    no_labels,
    random_splits,
    read_labels,
    read_split,
    require_node_memory,
)
from gloader.convert.readers.npy_file import NpyFile, npz_members
from gloader.convert.source import OR_EDGES, Source, Splits
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.options import EdgeNames, SourceOptions
    from gloader.convert.source import EdgeStream, FeatureStream

# Names of arrays that are no edge times or edge features. A message about missing ones does not offer these names.
_NOT_OF_EDGES = frozenset(
    {
        "indptr",
        "indices",
        "edges",
        "edge_index",
        "edge_weight",
        "features",
        "labels",
        "train",
        "valid",
        "val",
        "test",
    }
)
_FEATURE_FILES = ("features.npy", "features_csr.npz", "features.npz")  # the first existing file is used
_ARCHIVES = ("graph.npz", "split.npz", "splits.npz")  # archives of several arrays


def open_npy(argument: str, options: SourceOptions) -> Source:
    """Open ``npy:argument``, a folder with the module's layout.

    Raises
    ------
    SourceError
        The folder is missing, or an array is missing, truncated or corrupt, or has Python objects.
    GraphError
        The topology's ids or offsets are malformed.
    ShapeError
        An array's shape does not fit another array's.
    """
    folder = _ArrayFolder.open(Path(argument).expanduser())
    budget = options.budget_bytes
    # The features come first, because they give N. All other arrays are compared with N before they are read.
    features = open_feature_folder(folder.path, budget_bytes=budget)
    require_node_memory(features.num_rows, budget, f"npy:{argument}")
    edges = folder.edges(num_nodes=features.num_rows, budget_bytes=budget)
    resident = edges.held_bytes + features.held_bytes
    edges, edge_features = folder.edge_columns(edges, options.edge_names)
    labels = (
        read_labels(
            folder.require("labels", instead=f"; add some, {OR_EDGES}"),
            num_nodes=features.num_rows,
            budget_bytes=budget,
            labels_as=options.labels_as,
        )
        if options.needs_labels or folder.find("labels") is not None
        else no_labels(features.num_rows)
    )
    splits = folder.splits(labels, seed=options.seed, budget_bytes=budget)
    return Source(
        name=folder.path.resolve().name,
        origin=f"npy:{argument}",
        num_nodes=features.num_rows,
        num_classes=count_classes(labels),
        edges=edges,
        features=features,
        labels=labels,
        splits=splits,
        edge_features=edge_features,
        edge_file=folder.path,
        resident_bytes=resident,
        unused=folder.unused(num_nodes=features.num_rows, num_edges=edges.num_edges),
    )


def open_feature_folder(folder: Path, *, budget_bytes: int | None = None) -> FeatureStream:
    """Open ``features.npy`` or ``features_csr.npz`` in ``folder``.

    Parameters
    ----------
    folder : the folder
    budget_bytes : memory for a sparse matrix's row offsets, or None for no limit

    Raises
    ------
    SourceError
        Both files are missing, or the file is malformed.
    """
    for name in _FEATURE_FILES:
        if (folder / name).exists():
            return open_feature_file(folder / name, budget_bytes=budget_bytes)
    raise SourceError(f"{folder} holds no features.npy and no features_csr.npz; it holds {_listing(folder)}")


def open_feature_file(path: Path, *, budget_bytes: int | None = None) -> FeatureStream:
    """Open a file with feature rows: a ``.npy`` array (N, F), or a ``.npz`` with a scipy CSR matrix.

    Parameters
    ----------
    path : the file
    budget_bytes : memory for a sparse matrix's row offsets, or None for no limit

    Raises
    ------
    SourceError, ShapeError, GraphError
        The file is missing or malformed.
    BudgetError
        The row offsets take more than ``budget_bytes``.
    """
    return (
        csr_features(path, budget_bytes=budget_bytes)
        if path.suffix == ".npz"
        else npy_features(NpyFile.open(path))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArrayFolder:
    """A folder's arrays by name, in separate files or in an archive."""

    path: Path  # the folder
    archived: dict[str, Path]  # the archive with each array, by the array's name
    used: set[str] = field(default_factory=set)  # names of opened arrays

    @classmethod
    def open(cls, path: Path) -> _ArrayFolder:
        """List the folder's archives. Raises SourceError if there is no such folder."""
        if not path.is_dir():
            raise SourceError(f"{path} is not a folder; npy:DIR names a folder of .npy and .npz files")
        # A separate file is preferred over an archive's member; see `_open`.
        archives = [path / name for name in _ARCHIVES if (path / name).exists()]
        return cls(path=path, archived={name: file for file in archives for name in npz_members(file)})

    def find(self, name: str) -> NpyFile | None:
        """Return the array ``name``, or None, and note it as used."""
        self.used.add(name)
        return self._open(name)

    def _open(self, name: str) -> NpyFile | None:
        """Return the array ``name`` from its own file, or else from an archive, or else None."""
        if (self.path / f"{name}.npy").exists():
            return NpyFile.open(self.path / f"{name}.npy")
        return NpyFile.open(self.archived[name], name) if name in self.archived else None

    def unused(self, *, num_nodes: int, num_edges: int | None) -> tuple[str, ...]:
        """Return the unused arrays, with their shapes, and the unused archives."""
        feature_file = next(name for name in _FEATURE_FILES if (self.path / name).exists())
        left = ({path.stem for path in self.path.glob("*.npy")} | set(self.archived)) - self.used
        # The features were opened by file name, so they are not in `used`.
        left -= {"features"} if feature_file == "features.npy" else set()
        # Only dtypes and shapes are needed. So each array is one number, broadcast to the shape, and takes no memory.
        found = Attributes(
            arrays={
                name: np.broadcast_to(np.empty((), file.dtype), file.shape)
                for name in sorted(left)
                if (file := self._open(name)) is not None
            },
            where=str(self.path),
        )
        archives = sorted({path.name for path in self.path.glob("*.npz")} - {feature_file, *_ARCHIVES})
        return (*found.unused(num_nodes=num_nodes, num_edges=num_edges), *archives)

    def require(self, *names: str, instead: str = "") -> NpyFile:
        """Return the first existing array in ``names``. Without any, raise SourceError, which ends with ``instead``."""
        for name in names:
            if (file := self.find(name)) is not None:
                return file
        raise SourceError(
            f"{self.path} holds no {' or '.join(f'{name}.npy' for name in names)} and no archive with such an array; "
            f"it holds {_listing(self.path)}{instead}"
        )

    def edges(self, *, num_nodes: int, budget_bytes: int) -> EdgeStream:
        """Return the folder's topology."""
        # The compressed form is preferred, because it is sorted already.
        weight = self.find("edge_weight")
        if (indptr := self.find("indptr")) is not None:
            if indptr.size != num_nodes + 1:
                raise ShapeError(
                    f"{self.path}: indptr has offsets for {indptr.size - 1} nodes, features have {num_nodes} rows"
                )
            return csc_file_edges(indptr, self.require("indices"), weight, budget_bytes=budget_bytes)
        if (index := self.find("edge_index")) is not None:
            return pair_file_edges(index, prefers_rows=False, weight=weight)
        # edge_index and indptr do not exist if this line is reached. They are only for the message.
        return pair_file_edges(
            self.require("edges", "edge_index", "indptr"), prefers_rows=True, weight=weight
        )

    def edge_columns(self, edges: EdgeStream, names: EdgeNames) -> tuple[EdgeStream, FeatureStream | None]:
        """Return the edges with times, and the edge features, if there are any."""
        existing = {path.stem for path in self.path.glob("*.npy")} | set(self.archived)
        time = names.pick_time(existing)
        features = names.pick_features(existing, ("edge_features",))
        names.require(
            has_times=time is not None,
            has_features=features is not None,
            there=existing - _NOT_OF_EDGES,
            where=str(self.path),
        )
        if time is not None:
            edges = timed_edges(edges, file_column(self.require(time)))
        return edges, None if features is None else npy_features(self.require(features))

    def splits(self, labels: NDArray[Any], *, seed: int, budget_bytes: int) -> Splits:
        """Return the given splits, or random ones."""
        if all(self.find(name) is None for name in ("train", "valid", "val", "test")):
            return random_splits(labels, seed=seed)
        files = [self.require("train"), self.require("valid", "val"), self.require("test")]
        train, valid, test = (
            read_split(file, num_nodes=labels.shape[0], budget_bytes=budget_bytes) for file in files
        )
        return Splits(train=train, valid=valid, test=test)


def _listing(folder: Path) -> str:
    """Return the names of a folder's first files, for messages."""
    return ", ".join(sorted(entry.name for entry in folder.iterdir())[:12]) or "nothing"
