"""Rows of an inference on the host: input features, layer outputs in memory or on the SSD, and result rows.

Rows between two layers are called activations, or sums, because a layer adds them up. Outputs are written slab by slab:
a slab is a range of columns, for all rows. `RamRows` and `SsdRows` hold a layer's sums, and `InputRows` reads the first
layer's inputs. `EmbeddedRows` and `iter_rows` turn the last layer's sums into results. `Targets` are the nodes whose
rows are requested. Rows are float32; ``stop`` is exclusive everywhere.
"""

from __future__ import annotations

import shutil
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch

from gloader.ssd_store import FeatureStore
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import FeatureSource, IdArray

    Matrix = NDArray[np.float32]


# Memory for reading ahead, shared by all slabs of one output. Rows are read in order, so a few large reads are enough.
_RING_BYTES = 1 << 20


class InputRows:
    """The input features, read in node order. Does not own them."""

    def __init__(self, features: FeatureSource) -> None:
        self._features = features

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read the features of nodes ``start`` to ``stop``."""
        self._features.read_into(np.arange(start, stop, dtype=np.int64), out)

    def take(self, rows: IdArray, out: Matrix) -> None:
        """Read the features of the nodes ``rows`` (n,), in any order."""
        self._features.read_into(rows, out)

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
        """Return a writable view of all rows' ``columns``."""
        return self._array[:, columns]

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Copy rows ``start`` to ``stop`` into ``out``."""
        out[:] = self._array[start:stop]

    def take(self, rows: IdArray, out: Matrix) -> None:
        """Copy ``rows`` (n,), in any order, into ``out``."""
        np.take(self._array, rows, axis=0, out=out)

    def close(self) -> None:
        """Drop the array. Idempotent."""
        self._array = np.empty((0, 0), dtype=np.float32)


class SsdRows:
    """Activations on the SSD, one feature store per slab of columns. Owns its new folder until `close`.

    Parameters
    ----------
    folder : the folder to make
    num_rows : number of rows
    num_slabs : number of slabs that will be written
    """

    def __init__(self, folder: Path, *, num_rows: int, num_slabs: int) -> None:
        self._folder = folder
        self._num_rows = num_rows
        self._ring_bytes = max(_RING_BYTES // num_slabs // ALIGNMENT, 1) * ALIGNMENT
        self._slabs: list[tuple[slice, FeatureStore]] = []
        folder.mkdir()

    # Each slab has its own store, in which its rows are contiguous: the next layer reads every slab from start to end.
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


# The largest portion of result rows that `iter_rows` yields, in rows and in bytes. Larger portions are not faster.
_MOST_ROWS: Final = 1 << 16
_MOST_BYTES: Final = 16 << 20


MadeRows: TypeAlias = RamRows | SsdRows  # a layer's output, in host memory or on the SSD
Rows: TypeAlias = InputRows | MadeRows  # read in row order


class EmbeddedRows:
    """A network's output for all nodes of a type, computed on reading from sums in host memory or on the SSD.

    Parameters
    ----------
    made : (num_rows, kept_dim), the last layer's sums
    num_rows, kept_dim : shape of ``made``
    width : width of an output row
    leave : function from rows of ``made`` (n, kept_dim) to outputs (n, width). If None, the rows are the outputs
    """

    def __init__(
        self,
        made: MadeRows,
        *,
        num_rows: int,
        kept_dim: int,
        width: int,
        leave: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.num_rows = num_rows
        self.width = width
        self._made = made
        self._kept_dim = kept_dim
        self._leave = leave

    def read(self, start: int, stop: int, out: NDArray[np.float32]) -> None:
        """Read rows ``start`` to ``stop`` into ``out`` (stop - start, width) float32."""
        if self._leave is None:
            self._made.read(start, stop, out)
            return
        kept = np.empty((stop - start, self._kept_dim), dtype=np.float32)
        self._made.read(start, stop, kept)
        out[:] = self._leave(torch.from_numpy(kept)).numpy()

    def take(self, rows: IdArray, out: NDArray[np.float32]) -> None:
        """Read ``rows`` (n,), in any order, repeats allowed, into ``out`` (n, width) float32."""
        if self._leave is None:
            self._made.take(rows, out)
            return
        kept = np.empty((len(rows), self._kept_dim), dtype=np.float32)
        self._made.take(rows, kept)
        out[:] = self._leave(torch.from_numpy(kept)).numpy()


def iter_rows(
    made: MadeRows, *, num_rows: int, width: int, order: IdArray | None = None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield ranges of positions and their rows, (., width) float32 on the host.

    Parameters
    ----------
    made : (num_rows, width), the rows
    num_rows, width : shape of ``made``
    order : (num_rows,) the row at each position. If None, rows keep their order
    """
    step = max(1, min(_MOST_ROWS, _MOST_BYTES // (4 * width)))
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        out = np.empty((stop - start, width), dtype=np.float32)
        if order is None:
            made.read(start, stop, out)
        else:
            made.take(order[start:stop], out)
        yield slice(start, stop), torch.from_numpy(out)


RowChoice: TypeAlias = "slice | torch.Tensor"  # positions of rows, (m,) int64 or a slice


class Targets:
    """Requested nodes of a type. The output row at position i belongs to ``nodes[i]``.

    Parameters
    ----------
    nodes : (n,) ids, in any order, repeats allowed; a range means all nodes
    num_nodes : node count of the type
    place : the computing device
    """

    def __init__(self, nodes: IdArray | range, num_nodes: int, place: torch.device) -> None:
        # All nodes of the type, in order, are kept as a range, which needs no sorting.
        is_all = isinstance(nodes, range) or (
            len(nodes) == num_nodes and bool((nodes == np.arange(num_nodes)).all())
        )
        self.nodes: IdArray | range = range(num_nodes) if is_all else nodes
        self._place = place

    def __len__(self) -> int:
        """Return n."""
        return len(self.nodes)

    def among(self, start: int, stop: int) -> tuple[RowChoice, RowChoice] | None:
        """Return (positions, rows) of the requested nodes in the chunk of nodes ``start`` to ``stop``.

        Positions are places in the output, and rows are places in the chunk. Both are slices if all nodes are
        requested. The result is None if no node of the chunk is requested.
        """
        if isinstance(self.nodes, range):
            return slice(start, stop), slice(None)
        order, ascending = self._order
        first, last = np.searchsorted(ascending, [start, stop])
        if first == last:
            return None
        rows = torch.from_numpy(ascending[first:last] - start)
        return torch.from_numpy(order[first:last]).to(self._place), rows.to(self._place)

    @cached_property
    def _order(self) -> tuple[IdArray, IdArray]:
        """The positions of the nodes in ascending id order, and the sorted ids, both (n,)."""
        order = np.argsort(self.nodes, kind="stable")
        return order, np.asarray(self.nodes)[order]
