"""A layer's outputs for all nodes, in memory or on the SSD, written and read in node order."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gloader.ssd_store import FeatureStore
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import FeatureSource, IdArray

    Matrix = NDArray[np.float32]


_RING_BYTES = 1 << 20  # of all slabs: rows are read in order, a few large reads ahead are enough


class Rows(Protocol):
    """A matrix that is read in row order."""

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read consecutive rows.

        Parameters
        ----------
        start, stop : the rows, ``stop`` not included
        out : (stop - start, width) float32, written
        """
        ...

    def close(self) -> None:
        """Release memory or files. Idempotent."""
        ...


class MadeRows(Rows, Protocol):
    """What a layer made, in host memory or on the SSD."""

    def take(self, rows: IdArray, out: Matrix) -> None:
        """Read ``rows`` (n,), in any order, into ``out`` (n, width) float32."""
        ...


class FeatureRows:
    """The input features. Does not own them."""

    def __init__(self, features: FeatureSource) -> None:
        self._features = features

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read the features of nodes ``start`` to ``stop``."""
        self._features.read_into(np.arange(start, stop, dtype=np.int64), out)

    def close(self) -> None:
        """Do nothing: the features belong to the caller."""


class RamRows:
    """Activations in memory."""

    def __init__(self, *, num_rows: int, width: int) -> None:
        self._array: Matrix = np.empty((num_rows, width), dtype=np.float32)

    def write_slab(self, columns: slice, chunks: Iterable[Matrix]) -> None:
        """Write all rows of ``columns`` from consecutive ``chunks``."""
        row = 0
        for chunk in chunks:
            self._array[row : row + len(chunk), columns] = chunk
            row += len(chunk)

    def columns(self, columns: slice) -> Matrix:
        """Return ``columns`` of all rows: a view, to be written."""
        return self._array[:, columns]

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Copy rows ``start`` to ``stop``."""
        out[:] = self._array[start:stop]

    def take(self, rows: IdArray, out: Matrix) -> None:
        """Copy ``rows`` (n,), in any order."""
        np.take(self._array, rows, axis=0, out=out)

    def close(self) -> None:
        """Drop the array. Idempotent."""
        self._array = np.empty((0, 0), dtype=np.float32)


class SsdRows:
    """Activations in ``folder``, a feature store per slab of columns. Owns the folder until `close`."""

    def __init__(self, folder: Path, *, num_rows: int, num_slabs: int) -> None:
        self._folder = folder
        self._num_rows = num_rows
        self._ring_bytes = max(_RING_BYTES // num_slabs // ALIGNMENT, 1) * ALIGNMENT
        self._slabs: list[tuple[slice, FeatureStore]] = []
        folder.mkdir()

    # A store for each slab: its rows are contiguous, so that the next layer reads every slab in one sweep.
    def write_slab(self, columns: slice, chunks: Iterable[Matrix]) -> None:
        """Write all rows of ``columns`` from consecutive ``chunks``."""
        path = self._folder / f"columns-{columns.start}"
        width = columns.stop - columns.start
        with FeatureStore.writer(path, num_rows=self._num_rows, dim=width, dtype=np.float32) as writer:
            for chunk in chunks:
                writer.append(chunk)
        self._slabs.append((columns, FeatureStore.open(path, ring_bytes=self._ring_bytes)))

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` from every slab."""
        self.take(np.arange(start, stop, dtype=np.int64), out)

    def take(self, rows: IdArray, out: Matrix) -> None:
        """Read ``rows`` (n,), in any order, from every slab."""
        for columns, store in self._slabs:
            part = np.empty((len(rows), columns.stop - columns.start), dtype=np.float32)
            store.read_into(rows, part)
            out[:, columns] = part

    def close(self) -> None:
        """Close the stores and delete their files. Idempotent."""
        while self._slabs:
            self._slabs.pop()[1].close()
        if self._folder.exists():
            shutil.rmtree(self._folder)
