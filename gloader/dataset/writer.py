"""The writer of a dataset directory: it knows which arrays there must be, and commits all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.errors import ShapeError
from gloader.ssd_store.format.format import DATASET_MANIFEST
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.types import IdArray

KIND = "dataset"
REQUIRED_ARRAYS = ("indptr", "indices", "features", "labels", "train", "valid", "test")


class DatasetWriter:
    """Writes the arrays of a new dataset; a context manager that commits at a clean exit and else leaves nothing.

    Topology and features are streamed in order through the returned writers; labels and splits are given whole.

    Parameters
    ----------
    path : the directory to create
    name : a short name for people
    num_nodes : N
    num_classes : number of classes; labels are in 0..num_classes-1
    overwrite : replace a dataset or store at ``path``, atomically, at the commit
    metadata : more JSON values for the commit record

    Raises
    ------
    StoreExistsError, StoreLockedError, StoreWriteError
        On entering: the target exists, somebody else is creating it, or the disk refuses.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        name: str,
        num_nodes: int,
        num_classes: int,
        overwrite: bool = False,
        metadata: Mapping[str, Any] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._directory = NewDirectory(path, manifest_name=DATASET_MANIFEST, overwrite=overwrite, os_io=os_io)
        self._metadata = {**(metadata or {}), "name": name, "num_classes": num_classes}
        self._num_nodes = num_nodes
        self._written: set[str] = set()

    def __enter__(self) -> Self:
        self._directory.__enter__()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc is None:
            # Inside __exit__, so that a commit that fails is discarded like a block that failed.
            try:
                self._commit()
            except BaseException as error:
                self._directory.__exit__(type(error), error, error.__traceback__)
                raise
        self._directory.__exit__(exc_type, exc, traceback)

    @property
    def scratch(self) -> Path:
        """A folder on the target's file system for temporary files; gone when the block ends."""
        return self._directory.scratch()

    def indptr(self) -> ArrayWriter:
        """Return the writer of the (N + 1,) int64 offsets."""
        return self._array("indptr", "int64", (self._num_nodes + 1,))

    def indices(self, num_edges: int, dtype: str) -> ArrayWriter:
        """Return the writer of the (E,) in-neighbour ids, ``dtype`` int32 or int64."""
        return self._array("indices", dtype, (num_edges,))

    def edge_weight(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) float32 edge weights."""
        return self._array("edge_weight", "float32", (num_edges,))

    def features(self, dim: int, dtype: str, *, check_finite: bool = False) -> FeatureColumnWriter:
        """Return the writer of the (N, F) features.

        Parameters
        ----------
        dim : F
        dtype : as stored: float32, float16, bfloat16 or int8
        check_finite : refuse NaN and infinity (int8 always does)

        Raises
        ------
        ConfigError, ShapeError, StoreWriteError
            As `NewDirectory.features`.
        """
        self._written.add("features")
        return self._directory.features(
            "features", num_rows=self._num_nodes, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def labels(self, labels: IdArray) -> None:
        """Write the (N,) labels, -1 where unlabelled."""
        self._whole("labels", labels, (self._num_nodes,))

    def original_ids(self, ids: IdArray) -> None:
        """Write the (N,) ids that the nodes have in the source; left out if they kept their ids."""
        self._whole("original_ids", ids, (self._num_nodes,))

    def splits(self, *, train: IdArray, valid: IdArray, test: IdArray) -> None:
        """Write the node ids of the three splits.

        Parameters
        ----------
        train, valid, test : (n,) each, its own n

        Raises
        ------
        StoreWriteError
            The disk refuses.
        """
        for name, ids in (("train", train), ("valid", valid), ("test", test)):
            self._whole(name, ids, (len(ids),))

    def annotate(self, **metadata: Any) -> None:
        """Add JSON values to the commit record."""
        self._metadata.update(metadata)

    def _array(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        self._written.add(name)
        return self._directory.array(name, dtype=dtype, shape=shape)

    def _whole(self, name: str, array: IdArray, shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            raise ShapeError(f"{name} has shape {array.shape}; it must be {shape}")
        with self._array(name, "int64", shape) as writer:
            writer.append(np.ascontiguousarray(array, dtype=np.int64))

    def _commit(self) -> None:
        missing = [name for name in REQUIRED_ARRAYS if name not in self._written]
        if missing:
            raise ShapeError(
                f"a dataset needs {', '.join(REQUIRED_ARRAYS)}; not written: {', '.join(missing)}"
            )
        self._directory.commit(KIND, self._metadata)
