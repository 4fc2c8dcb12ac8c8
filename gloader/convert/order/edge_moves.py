"""Where the feature rows of a source's edges go: to the positions that a dataset has them at, found out of core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.temporary_array import TemporaryArray, append_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.progress import PrepareProgress
    from gloader.types import IdArray

# Bytes of memory per pair of a row and a place: as read, two orders, sorted.
PAIR_BYTES = 48
# Bytes of memory per position whose pair is dealt out: its number, its range, an order, the pair twice.
DEAL_BYTES = 64


@dataclass(slots=True, kw_only=True)
class EdgeMoves:
    """The positions of each edge of a source, from the number of the edge at each position; a `RowMoves`.

    Where not all of them fit into memory, pairs of number and position are dealt out to ranges of numbers first. Owns
    the files ``moves-*`` in ``folder`` until ``close()``.
    """

    numbers: TemporaryArray  # (num_rows,) of the edge in the source at each position; negative: of none
    num_rows: int  # positions
    num_edges: int  # of the source
    folder: Path
    range_edges: int  # edges of the source whose pairs are in memory at a time
    deal_positions: int  # positions looked at at a time
    is_asked_again: bool = False  # whether the rows come more than once, each time from the first to the last
    _files: list[TemporaryArray] = field(default_factory=list, init=False)
    _counts: IdArray = field(init=False)  # pairs in each file
    _loaded: int = field(default=-1, init=False)  # the range that is in memory
    _rows: IdArray = field(init=False)
    _places: IdArray = field(init=False)

    def __post_init__(self) -> None:
        num_ranges = max(1, -(-self.num_edges // self.range_edges))
        place = np.uint32 if self.num_rows < 2**32 else np.int64
        dtype = np.dtype([("row", np.uint32), ("place", place)])
        self._files = [
            TemporaryArray(path=self.folder / f"moves-{number:05d}", dtype=dtype)
            for number in range(num_ranges)
        ]
        self._counts = np.zeros(num_ranges, np.int64)

    def are_in_place(self) -> bool:
        """Whether the edges of the source are at the positions 0, 1, ... already, all of them."""
        if self.num_rows != self.num_edges:
            return False
        return all(
            np.array_equal(piece, np.arange(first, first + piece.shape[0])) for first, piece in self._pieces()
        )

    def deal_out(self, progress: PrepareProgress) -> None:
        """Write the pairs to the files of their ranges; to be called once, before the moves are asked for.

        Raises
        ------
        StoreWriteError
            The disk refuses.
        """
        # A single range is made of the numbers themselves.
        if len(self._files) == 1:
            return
        for first, piece in self._pieces():
            at = np.flatnonzero(piece >= 0)
            numbers = piece[at].astype(np.int64)
            range_of = (numbers // self.range_edges).astype(np.uint16)
            order = np.argsort(range_of, kind="stable")
            pairs = np.empty(at.shape[0], self._files[0].dtype)
            pairs["row"] = (numbers % self.range_edges)[order]
            pairs["place"] = (at + first)[order]
            counts = np.bincount(range_of, minlength=len(self._files))
            stops = np.cumsum(counts)
            for file, start, stop in zip(self._files, stops - counts, stops, strict=True):
                if start < stop:
                    append_bytes(file.path, pairs[start:stop])
            self._counts += counts
            progress.advance("placing edge features", first + piece.shape[0], self.num_rows, "edges")

    def targets(self, first: int, stop: int) -> tuple[IdArray, IdArray]:
        """Return which of the rows ``first`` ... ``stop - 1`` go where; see `RowMoves`."""
        rows, places = [], []
        for number in range(first // self.range_edges, (stop - 1) // self.range_edges + 1):
            self._load(number)
            start = number * self.range_edges
            low, high = np.searchsorted(self._rows, [first - start, stop - start])
            rows.append(self._rows[low:high] + (start - first))
            places.append(self._places[low:high])
        return np.concatenate(rows), np.concatenate(places)

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return the places ``first`` ... ``stop - 1`` that rows go to, in the order in which they come."""
        numbers = self.numbers.read(first, stop)
        # The two places of an edge get the same row: either may come first.
        order = np.argsort(numbers)
        # Places without an edge of the source have the least numbers.
        return order[int(np.count_nonzero(numbers < 0)) :]

    def close(self) -> None:
        """Remove the files. Idempotent."""
        for file in self._files:
            file.remove()

    def _load(self, number: int) -> None:
        """Bring the pairs of range ``number`` into memory, by row."""
        if number == self._loaded:
            return
        self._loaded, self._rows, self._places = number, np.empty(0, np.int64), np.empty(0, np.int64)
        if len(self._files) == 1:
            numbers = self.numbers.read(0, self.num_rows)
            self._places = self.arrivals(0, self.num_rows)
            self._rows = numbers[self._places].astype(np.int64)
            return
        pairs = self._files[number].read(0, int(self._counts[number]))
        # Within a pass a range is asked for once: rows come in order.
        if not self.is_asked_again:
            self._files[number].remove()
        order = np.argsort(pairs["row"])
        self._rows = pairs["row"][order].astype(np.int64)
        self._places = pairs["place"][order].astype(np.int64)

    def _pieces(self) -> Iterator[tuple[int, NDArray[np.integer]]]:
        first = 0
        for piece in self.numbers.pieces(self.num_rows, self.deal_positions):
            yield first, piece
            first += piece.shape[0]
