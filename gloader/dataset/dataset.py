"""A dataset directory: topology, features, labels and splits, committed as one."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.dataset.values import check_array, check_arrays, value_limits, wrong_value
from gloader.dataset.writer import DatasetWriter
from gloader.errors import ShapeError
from gloader.samplers import CscGraph
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.elements import load_elements
from gloader.ssd_store.format.format import (
    DATASET_MANIFEST,
    ArrayRecord,
    Manifest,
    load_manifest,
    told_apart,
)
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
    from gloader.types import IdArray

_CHUNK_ROWS: Final = 1 << 16


class Dataset:
    """A prepared graph on disk. Opening reads the commit record alone; arrays are read when first used.

    Thread-safe; reads only; holds no file open. Made by `open`.

    Parameters
    ----------
    root : the directory
    manifest : its commit record, which everything is opened with; another dataset that takes its place is refused
    os_io : the system calls by which the arrays are read

    Attributes
    ----------
    limits : what bounds the values of the arrays; they are checked whenever they are read

    Raises
    ------
    FormatError
        The record lacks an array, its shapes contradict each other, or it names a number of classes that cannot be.
    """

    def __init__(self, root: Path, manifest: Manifest, os_io: OsIO = REAL_OS) -> None:
        check_arrays(root, manifest)
        self.root = root
        self._manifest = manifest
        self._os_io = os_io
        self.limits = value_limits(manifest)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, os_io: OsIO = REAL_OS) -> Dataset:
        """Open the dataset directory at ``path``.

        Raises
        ------
        StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError, FormatError, VersionError
            There is no complete dataset of a known version at ``path``.
        """
        root = Path(path)
        return cls(root, load_manifest(root, DATASET_MANIFEST, os_io=os_io), os_io)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str,
        num_nodes: int,
        num_classes: int,
        overwrite: bool = False,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> DatasetWriter:
        """Begin a dataset at ``path``; it appears there, whole, when the returned writer's block ends without error.

        Parameters
        ----------
        path : the directory to create
        name : a short name for people
        num_nodes : N
        num_classes : number of classes; labels are in 0..num_classes-1
        overwrite : replace a dataset or store at ``path``, atomically, at the commit
        metadata : more JSON values for the commit record
        """
        return DatasetWriter(
            path,
            name=name,
            num_nodes=num_nodes,
            num_classes=num_classes,
            overwrite=overwrite,
            metadata=metadata,
            os_io=os_io,
        )

    @property
    def os_io(self) -> OsIO:
        """The system calls by which the arrays are read."""
        return self._os_io

    @staticmethod
    def from_numpy(path: str | os.PathLike[str], **arrays: Any) -> Dataset:
        """Write arrays as a dataset at ``path`` and open it; see `gloader.convert.in_memory.write_numpy`."""
        _conversions().write_numpy(path, **arrays)
        return Dataset.open(path)

    @staticmethod
    def from_pyg(data: Any, path: str | os.PathLike[str], **options: Any) -> Dataset:
        """Write a PyG ``Data`` as a dataset at ``path`` and open it; see `gloader.convert.in_memory.write_pyg`."""
        _conversions().write_pyg(data, path, **options)
        return Dataset.open(path)

    @staticmethod
    def from_dgl(g: Any, path: str | os.PathLike[str], **options: Any) -> Dataset:
        """Write a DGL graph as a dataset at ``path`` and open it; see `gloader.convert.in_memory.write_dgl`."""
        _conversions().write_dgl(g, path, **options)
        return Dataset.open(path)

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return every array in memory, by name: what `from_numpy` takes, features as float32."""
        graph = self.load_graph()
        arrays: dict[str, NDArray[Any]] = {
            "features": self._all_features(),
            "labels": self.labels,
            "indptr": graph.indptr,
            "indices": graph.indices,
            "train": self.train,
            "valid": self.valid,
            "test": self.test,
        }
        return arrays if graph.edge_weight is None else arrays | {"edge_weight": graph.edge_weight}

    def to_pyg(self) -> Any:
        """Return the dataset as a PyG ``Data`` in memory: x, edge_index, y, masks and perhaps edge_weight."""
        return _conversions().to_pyg(self.to_numpy())

    def to_dgl(self) -> Any:
        """Return the dataset as a DGL graph in memory: feat, label and masks, ids of int64 as DGL's own have."""
        return _conversions().to_dgl(self.to_numpy())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """JSON values that the preparation noted: name, source, options."""
        return self._manifest.metadata

    @property
    def arrays(self) -> Mapping[str, ArrayRecord]:
        """The records of all arrays, by name."""
        return self._manifest.arrays

    @property
    def name(self) -> str:
        """A short name for people."""
        return str(self.metadata.get("name", self.root.name))

    @property
    def num_nodes(self) -> int:
        """N."""
        return self._record("features").shape[0]

    @property
    def num_edges(self) -> int:
        """E."""
        return self._record("indices").shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes; labels are in 0..num_classes-1."""
        classes: int = self.metadata["num_classes"]
        return classes

    @property
    def feature_dim(self) -> int:
        """F."""
        return self._record("features").shape[1]

    @property
    def feature_dtype(self) -> str:
        """The dtype of the stored features: float32, float16, bfloat16 or int8."""
        return self._record("features").dtype

    @property
    def has_self_loops(self) -> bool:
        """Whether every node was given exactly one self loop."""
        return bool(self.metadata.get("has_self_loops", False))

    @property
    def topology_bytes(self) -> int:
        """Bytes of indptr, indices and edge weights."""
        names = ("indptr", "indices", "edge_weight")
        return sum(self.arrays[name].num_bytes for name in names if name in self.arrays)

    @property
    def feature_bytes(self) -> int:
        """Bytes of all feature rows as stored."""
        return self._record("features").num_bytes

    @property
    def features_path(self) -> Path:
        """The file of the feature rows."""
        return self.root / self._record("features").file

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the content: equal for equal arrays, wherever they are stored."""
        digest = hashlib.sha256()
        # Of the record alone: its digests stand for the bytes, so that no array is read.
        for name in sorted(self.arrays):
            record = self.arrays[name]
            digest.update(f"{name} {record.dtype} {record.shape} {record.digest}\n".encode())
        return digest.hexdigest()[:32]

    @cached_property
    def labels(self) -> IdArray:
        """(N,) int64 class of each node, -1 where unlabelled; verified, read-only."""
        return self._load("labels")

    def labels_of(self, nodes: IdArray) -> IdArray:
        """Return the class of each of ``nodes`` (n,) as (n,) int64, -1 where unlabelled; verified.

        Only these labels are held in memory; `labels` holds all N. Ask once for all seeds, not by batch.

        Raises
        ------
        ShapeError
            An id is no node.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read.
        FormatError
            A label is not one of the classes.
        """
        with self.as_opened():
            labels = load_elements(self.root, self._record("labels"), nodes, os_io=self._os_io)
        at = self.limits.first_wrong("labels", labels)
        if at >= 0:
            message = self.limits.describe("labels", int(nodes[at]), labels[at])
            raise wrong_value(self._path("labels"), "labels", message)
        return labels

    @cached_property
    def train(self) -> IdArray:
        """(n,) int64 ids of the training nodes; verified, read-only."""
        return self._load("train")

    @cached_property
    def valid(self) -> IdArray:
        """(n,) int64 ids of the validation nodes; verified, read-only."""
        return self._load("valid")

    @cached_property
    def test(self) -> IdArray:
        """(n,) int64 ids of the test nodes; verified, read-only."""
        return self._load("test")

    @cached_property
    def original_ids(self) -> IdArray | None:
        """(N,) int64 id that each node has in the source, verified, read-only; None: nodes kept their ids.

        Everything else here counts nodes as the dataset stores them.
        """
        return self._load("original_ids") if "original_ids" in self.arrays else None

    def in_original_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return ``values`` (N, ...), one per node as stored, in the order of the nodes' original ids.

        Raises
        ------
        ShapeError
            There is not one value per node.
        """
        if values.shape[:1] != (self.num_nodes,):
            raise ShapeError(
                f"{self.root}: values have shape {values.shape}; there are {self.num_nodes} nodes"
            )
        if self.original_ids is None:
            return values
        # Node i of the store is original_ids[i] of the source: values are scattered, not gathered.
        ordered = np.empty_like(values)
        ordered[self.original_ids] = values
        return ordered

    def load_graph(self) -> CscGraph:
        """Return the topology, read into memory whole and verified; `open_topology` reads what is larger page by page.

        Raises
        ------
        ChecksumError, StoreReadError
            The bytes on disk are not those that were written, or cannot be read.
        StoreOpenError
            Another dataset took the place of this one.
        GraphError
            An id is no node, offsets do not ascend, or a weight is not a finite number of at least 0.
        """
        weight = self._load("edge_weight") if "edge_weight" in self.arrays else None
        return CscGraph(
            indptr=self._load("indptr"), indices=self._load("indices"), edge_weight=weight, validate=False
        )

    def open_features(self, *, io: IoMode = "auto", verify: Verify = "read", **settings: Any) -> FeatureStore:
        """Open the feature rows of this dataset for reading in any order; see `FeatureStore.open` for the settings.

        Raises
        ------
        StoreOpenError
            Another dataset took the place of this one, or the file cannot be opened.
        ChecksumError, FormatError, ConfigError, StoreReadError
            As `FeatureStore.open`.
        """
        return FeatureStore.open(
            self.root,
            column="features",
            manifest=self._manifest,
            io=io,
            verify=verify,
            os_io=self._os_io,
            **settings,
        )

    def _all_features(self) -> NDArray[np.float32]:
        rows = np.empty((self.num_nodes, self.feature_dim), dtype=np.float32)
        with self.open_features() as store:
            # In pieces, so that the ids of a request stay small beside the rows.
            for start in range(0, len(rows), _CHUNK_ROWS):
                part = rows[start : start + _CHUNK_ROWS]
                store.read_into(np.arange(start, start + len(part)), part)
        return rows

    def _record(self, name: str) -> ArrayRecord:
        return self._manifest.arrays[name]

    @contextmanager
    def as_opened(self) -> Iterator[None]:
        """Tell another dataset at this path from damage, if files of this one are refused in the block.

        Raises
        ------
        StoreOpenError
            In place of the block's error: another dataset took the place of this one.
        """
        with told_apart(self.root, self._manifest, os_io=self._os_io):
            yield

    def _path(self, name: str) -> Path:
        return self.root / self._record(name).file

    def _load(self, name: str) -> NDArray[Any]:
        with self.as_opened():
            array = load_array(self.root, self._record(name), os_io=self._os_io)
        check_array(self._path(name), name, array, self.limits)
        return array


def _conversions() -> Any:
    # By name and late: they stand above this room, need torch, PyG or DGL, and never name `Dataset` themselves.
    return import_module("gloader.convert.in_memory")
