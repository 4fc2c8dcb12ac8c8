"""The nodes of one type: feature rows, labels and splits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.near_names import near_attributes
from gloader.dataset.feature_rows import FeatureRows
from gloader.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
    from gloader.dataset.table_arrays import TableArrays
    from gloader.ssd_store import FeatureStore
    from gloader.types import IdArray


@near_attributes
class NodeTable:
    """The nodes of one type of a dataset. Thread-safe; reads only; holds no file open. Made by `Dataset`.

    Parameters
    ----------
    name : of the type
    number : of the type, in the order of the dataset's record
    num_nodes : N
    arrays : features, labels, splits and original ids, as far as there are any
    """

    def __init__(self, name: str, number: int, num_nodes: int, arrays: TableArrays) -> None:
        self.name = name
        self.number = number
        self.num_nodes = num_nodes
        self._arrays = arrays

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"NodeTable({self.name!r}, num_nodes={self.num_nodes}, feature_dim={self.feature_dim})"

    @property
    def has_features(self) -> bool:
        """Whether the nodes have feature rows."""
        return "features" in self._arrays.records

    @cached_property
    def feature_rows(self) -> FeatureRows | None:
        """The feature rows of the nodes; None: there are none."""
        return FeatureRows(self.name, self.number, self._arrays, "features") if self.has_features else None

    @property
    def feature_dim(self) -> int:
        """F; 0 without features."""
        return self._features().feature_dim if self.has_features else 0

    @property
    def feature_dtype(self) -> str:
        """The dtype of the stored features: float32, float16, bfloat16 or int8; float32 without features."""
        return self._features().feature_dtype if self.has_features else "float32"

    @property
    def feature_bytes(self) -> int:
        """Bytes of all feature rows as stored; 0 without features."""
        return self._features().feature_bytes if self.has_features else 0

    @property
    def features_path(self) -> Path:
        """The file of the feature rows.

        Raises
        ------
        ConfigError
            The type has no features.
        """
        return self._features().features_path

    def open_features(self, *, io: IoMode = "auto", verify: Verify = "read", **settings: Any) -> FeatureStore:
        """Open the feature rows for reading in any order; see `FeatureStore.open` for the settings.

        Raises
        ------
        StoreOpenError
            Another dataset took the place of this one, or the file cannot be opened.
        ConfigError
            The type has no features, or as `FeatureStore.open`.
        ChecksumError, FormatError, StoreReadError
            As `FeatureStore.open`.
        """
        return self._features().open_features(io=io, verify=verify, **settings)

    def all_features(self) -> NDArray[np.float32]:
        """Return all feature rows (N, F) as float32, in memory; raises as `open_features`."""
        return self._features().all_rows()

    @property
    def has_labels(self) -> bool:
        """Whether the nodes have labels and splits: one type of a dataset has."""
        return "labels" in self._arrays.records

    @cached_property
    def labels(self) -> IdArray:
        """(N,) int64 class of each node, -1 where unlabelled; verified, read-only."""
        return self._load("labels")

    def labels_of(self, nodes: IdArray) -> IdArray:
        """Return the class of each of ``nodes`` (n,) as (n,) int64, -1 where unlabelled; verified.

        Only these labels are held in memory; `labels` holds all N. Ask once for all seeds, not by batch.

        Raises
        ------
        ConfigError
            The type has no labels.
        ShapeError
            An id is no node.
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read.
        FormatError
            A label is not one of the classes.
        """
        self._require_labels()
        return self._arrays.load_at("labels", nodes)

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

    @property
    def split_sizes(self) -> dict[str, int]:
        """Number of nodes in each split, by its name, without reading them; empty without labels."""
        names = ("train", "valid", "test")
        return {name: self._arrays.records[name].shape[0] for name in names if name in self._arrays.records}

    @cached_property
    def original_ids(self) -> IdArray | None:
        """(N,) int64 id that each node has in the source, verified, read-only; None: nodes kept their ids.

        Everything else here counts nodes as the dataset stores them.
        """
        return self._arrays.load("original_ids") if "original_ids" in self._arrays.records else None

    def in_original_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return ``values`` (N, ...), one per node as stored, in the order of the nodes' original ids.

        Raises
        ------
        ShapeError
            There is not one value per node.
        """
        if values.shape[:1] != (self.num_nodes,):
            raise ShapeError(
                f"{self._arrays.root}: values have shape {values.shape}; there are {self.num_nodes} nodes"
            )
        if self.original_ids is None:
            return values
        # Node i of the store is original_ids[i] of the source: values are scattered, not gathered.
        ordered = np.empty_like(values)
        ordered[self.original_ids] = values
        return ordered

    def _features(self) -> FeatureRows:
        if self.feature_rows is None:
            raise ConfigError(f"{self._arrays.root}: nodes of type {self.name!r} have no features")
        return self.feature_rows

    def _load(self, name: str) -> IdArray:
        self._require_labels()
        return self._arrays.load(name)

    def _require_labels(self) -> None:
        if not self.has_labels:
            raise ConfigError(
                f"{self._arrays.root}: nodes of type {self.name!r} have no labels and splits; those of one type "
                "have, which is Dataset.labelled"
            )
