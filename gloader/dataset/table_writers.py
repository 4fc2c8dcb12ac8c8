"""Writers of the tables of a new dataset: of the nodes of a type, of the edges of a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.dataset.record import EDGE_COLUMNS
from gloader.errors import ShapeError
from gloader.ssd_store.format.manifest import EDGE_COLUMNS_FEATURE

if TYPE_CHECKING:
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.ssd_store.write.new_directory import NewDirectory
    from gloader.types import IdArray


class TableArraysWriter:
    """Starts the arrays of one table in a new directory, and keeps which it started.

    Parameters
    ----------
    directory : entered
    folder : what stands before the names of the table's arrays
    """

    def __init__(self, directory: NewDirectory, folder: str) -> None:
        self.directory = directory
        self.folder = folder
        self.written: set[str] = set()

    def array(self, name: str, dtype: str, shape: tuple[int, ...]) -> ArrayWriter:
        """Return the writer of array ``name``; raises as `NewDirectory.array`."""
        self._note(name)
        return self.directory.array(self.folder + name, dtype=dtype, shape=shape)

    def features(
        self, name: str, *, num_rows: int, dim: int, dtype: str, check_finite: bool
    ) -> FeatureColumnWriter:
        """Return the writer of the matrix ``name``; see `NewDirectory.features`."""
        self._note(name)
        return self.directory.features(
            self.folder + name, num_rows=num_rows, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def _note(self, name: str) -> None:
        self.written.add(name)
        if name in EDGE_COLUMNS:
            self.directory.require(EDGE_COLUMNS_FEATURE)

    def whole(self, name: str, array: IdArray, shape: tuple[int, ...]) -> None:
        """Write an array of ids; raises ShapeError where it has another shape, and as `NewDirectory.array`."""
        if array.shape != shape:
            raise ShapeError(f"{self.folder}{name} has shape {array.shape}; it must be {shape}")
        with self.array(name, "int64", shape) as writer:
            writer.append(np.ascontiguousarray(array, dtype=np.int64))


class EdgeTableWriter:
    """Writes the edges of one relation, streamed in order through the returned writers. Made by a dataset's writer.

    Parameters
    ----------
    arrays : of the relation
    num_nodes : destinations
    """

    def __init__(self, arrays: TableArraysWriter, num_nodes: int) -> None:
        self._arrays = arrays
        self._num_nodes = num_nodes

    def indptr(self) -> ArrayWriter:
        """Return the writer of the (N + 1,) int64 offsets."""
        return self._arrays.array("indptr", "int64", (self._num_nodes + 1,))

    def indices(self, num_edges: int, dtype: str) -> ArrayWriter:
        """Return the writer of the (E,) in-neighbour ids, ``dtype`` int32 or int64."""
        return self._arrays.array("indices", dtype, (num_edges,))

    def edge_weight(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) float32 edge weights."""
        return self._arrays.array("edge_weight", "float32", (num_edges,))

    def edge_features(
        self, num_edges: int, dim: int, dtype: str, *, check_finite: bool = False
    ) -> FeatureColumnWriter:
        """Return the writer of the (E, F) features of the edges, in the order of ``indices``.

        Parameters
        ----------
        num_edges : E
        dim, dtype, check_finite : as of `NodeTableWriter.features`

        Raises
        ------
        ConfigError, ShapeError, StoreWriteError
            As `NewDirectory.features`.
        """
        return self._arrays.features(
            "edge_features", num_rows=num_edges, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def edge_time(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) int64 times of the edges in seconds, which ascend within each list."""
        return self._arrays.array("edge_time", "int64", (num_edges,))


class NodeTableWriter:
    """Writes features, labels, splits and original ids of the nodes of one type. Made by a dataset's writer.

    Parameters
    ----------
    arrays : of the type
    num_nodes : N
    """

    def __init__(self, arrays: TableArraysWriter, num_nodes: int) -> None:
        self._arrays = arrays
        self._num_nodes = num_nodes

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
        return self._arrays.features(
            "features", num_rows=self._num_nodes, dim=dim, dtype=dtype, check_finite=check_finite
        )

    def labels(self, labels: IdArray) -> None:
        """Write the (N,) labels, -1 where unlabelled."""
        self._arrays.whole("labels", labels, (self._num_nodes,))

    def original_ids(self, ids: IdArray) -> None:
        """Write the (N,) ids that the nodes have in the source; left out if they kept their ids."""
        self._arrays.whole("original_ids", ids, (self._num_nodes,))

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
            self._arrays.whole(name, ids, (len(ids),))
