"""An out-of-core mean: each row is the mean of the stored rows at the other end of its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gloader.convert.csc.sorted_ranges import cut_ranges
from gloader.convert.derive.mean_kernels import add_rows
from gloader.convert.derive.mean_plan import Gather, MeanPlan, plan_gather

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from gloader.convert.csc.scratch_csc import ScratchCsc
    from gloader.types import IdArray

# A hole that costs no more to read through than a read of its own does.
_GAP_BYTES = 4 << 20


class ColumnRows(Protocol):
    """Rows of a column, read in stretches."""

    def read(self, start: int, stop: int, wanted: IdArray, /) -> NDArray[np.float32]:
        """Return rows ``start + wanted`` (u,) as float32 (u, F), all of them before row ``stop``."""
        ...


class Column(Protocol):
    """One type's features as they are stored."""

    @property
    def dim(self) -> int:
        """F."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, its scale included."""
        ...

    def open(self, chunk_rows: int) -> AbstractContextManager[ColumnRows]:
        """Return the rows, of which at most ``chunk_rows`` will be read at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRows:
    """The feature stream of the means, as float32. Every call of ``chunks`` computes them anew.

    A row without edges is 0. Sums are float32 and run by ascending source, so that they have the same bits whatever
    the budget, but for rows of more edges than a block holds.
    """

    graph: ScratchCsc  # destinations are the rows, sources those of ``column``
    column: Column
    plan: MeanPlan

    @property
    def num_rows(self) -> int:
        """N."""
        return self.graph.num_nodes

    @property
    def dim(self) -> int:
        """F."""
        return self.column.dim

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return np.dtype(np.float32)

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``, each good until the next."""
        sums = np.empty((min(self.plan.block_rows, self.num_rows), self.dim), np.float32)
        with self.column.open(self.plan.chunk_rows) as rows:
            for indptr in self._blocks():
                block = sums[: indptr.shape[0] - 1]
                self._sum(rows, indptr, block)
                for at in range(0, block.shape[0], max_rows):
                    yield block[at : at + max_rows]

    def _blocks(self) -> Iterator[IdArray]:
        """Yield the offsets (n + 1,) of consecutive blocks: rows and edges as planned, or one row of more edges."""
        for first in range(0, self.num_rows, self.plan.block_rows):
            offsets = self.graph.offsets(first, min(self.num_rows, first + self.plan.block_rows))
            for start, stop in cut_ranges(np.diff(offsets), self.plan.block_edges):
                yield offsets[start : stop + 1]

    def _sum(self, rows: ColumnRows, indptr: IdArray, block: NDArray[np.float32]) -> None:
        """Fill ``block`` (n, F) with the means of the rows that ``indptr`` (n + 1,) bounds."""
        block[:] = 0
        max_gap = _GAP_BYTES // max(1, self.column.row_bytes)
        first, last = int(indptr[0]), int(indptr[-1])
        for low in range(first, last, self.plan.block_edges):
            part = self.graph.sources(low, min(last, low + self.plan.block_edges))
            self._add(rows, plan_gather(indptr, part, first_entry=low, max_gap=max_gap), block)
        degrees = np.maximum(np.diff(indptr), 1).astype(np.float32)
        block /= degrees[:, None]

    def _add(self, rows: ColumnRows, gather: Gather, block: NDArray[np.float32]) -> None:
        ends = np.append(gather.starts[1:], gather.sources.shape[0])
        for low, high in zip(gather.starts.tolist(), ends.tolist(), strict=True):
            sources = gather.sources[low:high]
            # A long stretch is read in chunks, which ascend too.
            for start in range(int(sources[0]), int(sources[-1]) + 1, self.plan.chunk_rows):
                stop = min(start + self.plan.chunk_rows, int(sources[-1]) + 1)
                begin, end = np.searchsorted(sources, [start, stop]).tolist()
                if begin < end:
                    wanted, places = np.unique(sources[begin:end], return_inverse=True)
                    found = rows.read(start, stop, wanted - start)
                    add_rows(found, places, gather.targets[low + begin : low + end], block)
