"""A topology that a conversion has just written, read back in stretches before it is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.npy_file import NpyFile
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.dataset.table_writers import EdgeTableWriter
    from gloader.dataset.writer import DatasetWriter
    from gloader.ssd_store.write.array_writer import ArrayWriter
    from gloader.ssd_store.write.feature_column import FeatureColumnWriter
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCsc:
    """The in-neighbours of every destination, in two files that are whole.

    Raises
    ------
    SourceError
        From every method: a file is shorter than it was written, or the system refuses.
    """

    indptr: NpyFile  # (N + 1,)
    indices: NpyFile  # (E,)
    has_times: bool = False  # edges have times, and lists are in their order

    @classmethod
    def open(cls, indptr: Path, indices: Path, *, has_times: bool = False) -> StoredCsc:
        """Open the files of an array of offsets, and of one of sources."""
        return cls(indptr=NpyFile.open(indptr), indices=NpyFile.open(indices), has_times=has_times)

    @property
    def num_nodes(self) -> int:
        """N, the destinations."""
        return self.indptr.size - 1

    def offsets(self, start: int, stop: int) -> IdArray:
        """Return the (stop - start + 1,) offsets that bound the lists of nodes ``start`` ... ``stop - 1``."""
        with self.indptr.reader(start=start) as reader:
            return np.ascontiguousarray(reader.take(stop - start + 1), np.int64)

    def sources(self, start: int, stop: int, max_edges: int) -> Iterator[NDArray[Any]]:
        """Yield the in-neighbours at positions ``start`` ... ``stop - 1``, at most ``max_edges`` at a time."""
        return self.indices.flat(max_edges, start=start, stop=stop)


class KeptTopology:
    """An `EdgeSink` that passes the topology of a relation on, and keeps where its files lie until the commit.

    Parameters
    ----------
    sink : the writer of the relation's edges
    """

    def __init__(self, sink: DatasetWriter | EdgeTableWriter) -> None:
        self._sink = sink
        self._indptr: ArrayWriter | None = None
        self._indices: ArrayWriter | None = None
        self._has_times = False

    def indptr(self) -> ArrayWriter:
        """Return the writer of the (N + 1,) int64 offsets."""
        self._indptr = self._sink.indptr()
        return self._indptr

    def indices(self, num_edges: int, dtype: str) -> ArrayWriter:
        """Return the writer of the (E,) sources, ``dtype`` int32 or int64."""
        self._indices = self._sink.indices(num_edges, dtype)
        return self._indices

    def edge_weight(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) float32 weights."""
        return self._sink.edge_weight(num_edges)

    def edge_time(self, num_edges: int) -> ArrayWriter:
        """Return the writer of the (E,) int64 times."""
        self._has_times = True
        return self._sink.edge_time(num_edges)

    def edge_features(self, num_edges: int, dim: int, dtype: str) -> FeatureColumnWriter:
        """Return the writer of the (E, F_e) features."""
        return self._sink.edge_features(num_edges, dim, dtype)

    def open(self) -> StoredCsc:
        """Return the topology, which has been written."""
        if self._indptr is None or self._indices is None:
            raise ShapeError("the topology was not written")
        return StoredCsc.open(self._indptr.path, self._indices.path, has_times=self._has_times)
