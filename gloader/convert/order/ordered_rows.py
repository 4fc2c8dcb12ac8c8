"""Feature rows in a new order, within a memory budget: dealt out to ranges of places, then put in order by range.

Both steps read and write in long stretches; no row is read or written alone. The rows of a range arrive in the order
of the source, so that nothing but the rows has to be kept. Where the disk has no room for all of them at once, they are
dealt out in several passes over the source, a part of the places at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.convert.csc.temporary_array import append_bytes, read_bytes
from gloader.errors import ShapeError
from gloader.ssd_store.write.cast import cast_rows, check_finite_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import FeatureStream
    from gloader.types import IdArray

# Bytes read back at a time.
_PIECE_BYTES = 4 << 20


class RowMoves(Protocol):
    """Where the rows of a source go: each to one place, to several, or to none."""

    @property
    def num_rows(self) -> int:
        """Places; one that no row goes to gets zeros."""
        ...

    def targets(self, first: int, stop: int) -> tuple[IdArray | None, IdArray]:
        """Return which of the rows ``first`` ... ``stop - 1`` go where.

        Asked for one range after another, from the first row to the last, in each pass over the rows.

        Returns
        -------
        rows : (n,) ascending, counted from ``first``; None: each of them, once
        places : (n,) that they go to
        """
        ...

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return those of places ``first`` ... ``stop - 1`` that rows go to, counted from ``first``, as they come."""
        ...


def ordered_rows(  # noqa: PLR0913 - what is moved, where to, and within which bounds
    features: FeatureStream,
    order: RowMoves,
    *,
    dtype: str,
    chunk_rows: int,
    range_rows: int,
    num_passes: int = 1,
    scratch: Path,
    progress: PrepareProgress,
    step: str = "ordering features",
) -> Iterator[NDArray[Any]]:
    """Yield the rows of ``features`` in the order of their new places, ``range_rows`` of them at a time.

    An array is only good until the next.

    Parameters
    ----------
    features : (N, F) rows in the order of the source, read ``num_passes`` times, or once where all are held in memory
    order : where they go
    dtype : that the rows will be stored as; they are cast to it here, except to int8
    chunk_rows : rows read at a time
    range_rows : rows put in order at a time; as many as there are places, or more: all of them, in memory
    num_passes : as many parts of the rows are on the disk one after another, and not all at once
    scratch : an existing folder for temporary files
    progress : receives the step
    step : what it is called

    Raises
    ------
    ShapeError
        The stream has fewer rows than it announced, or more.
    FeatureValueError
        A value cannot be stored; carries the row of the source.
    StoreWriteError
        The disk refuses a temporary file.
    """
    num_places = order.num_rows
    ranges = range(0, num_places, range_rows)
    paths = [scratch / f"rows-{number:05d}" for number in range(len(ranges))]
    out = np.zeros((min(range_rows, num_places), features.dim), spill_dtype(dtype))
    source = _MovedRows(features=features, order=order, dtype=dtype, chunk_rows=chunk_rows)
    try:
        if len(ranges) == 1:
            for moved, places in source.read(
                lambda done: progress.advance(step, done, source.num_rows, "rows")
            ):
                out[places] = moved
            yield out
            return
        # At least one, so that a source of no rows is read and found to have none.
        passes = _cut(len(ranges), num_passes) or [range(0)]
        for number, chosen in enumerate(passes):

            def advance(done: int, before: int = number * source.num_rows) -> None:
                progress.advance(step, before + done, len(passes) * source.num_rows, "rows")

            for moved, places in source.read(advance):
                _deal_out(moved, places // range_rows, chosen, paths)
            for each in chosen:
                first = ranges[each]
                part = out[: min(range_rows, num_places - first)]
                arrival = order.arrivals(first, first + part.shape[0])
                if arrival.shape[0] < part.shape[0]:
                    part[:] = 0
                if arrival.shape[0]:
                    _collect(paths[each], arrival, part)
                    paths[each].unlink()
                yield part
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def ranges_per_pass(num_ranges: int, num_passes: int) -> int:
    """Return how many of the ranges that rows are dealt out to are on the disk at a time. Pure."""
    return max(1, -(-num_ranges // num_passes))


def _cut(num_ranges: int, num_passes: int) -> list[range]:
    """Return the numbers of the ranges of each pass. Pure."""
    size = ranges_per_pass(num_ranges, num_passes)
    return [range(first, min(first + size, num_ranges)) for first in range(0, num_ranges, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MovedRows:
    """The rows of a source with the places that they go to."""

    features: FeatureStream
    order: RowMoves
    dtype: str
    chunk_rows: int

    @property
    def num_rows(self) -> int:
        return self.features.num_rows

    def read(self, advance: Callable[[int], None]) -> Iterator[tuple[NDArray[Any], IdArray]]:
        """Read the source once; yield (n, F) rows and the (n,) place of each, and say how many were read."""
        num_rows, done = self.num_rows, 0
        for chunk in self.features.chunks(self.chunk_rows):
            if done + chunk.shape[0] > num_rows:
                raise ShapeError(f"the features have more rows than the {num_rows} that were announced")
            rows = _cast(chunk, self.dtype, done)
            which, places = self.order.targets(done, done + rows.shape[0])
            done += rows.shape[0]
            yield rows if which is None else rows[which], places
            advance(done)
        if done < num_rows:
            raise ShapeError(f"the features end after {done} of {num_rows} rows: row {done} is missing")


def spill_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype in which rows that will be stored as ``dtype`` are put in order. Pure."""
    return np.dtype({"bfloat16": "uint16", "int8": "float32"}.get(dtype, dtype))


def _cast(chunk: NDArray[Any], dtype: str, first_row: int) -> NDArray[Any]:
    """Return rows as they are put in order; done before, so that messages name rows of the source."""
    if dtype != "int8":
        return cast_rows(chunk, dtype, first_row)
    # int8 is what the writer makes of float32; only values that it would refuse are found here.
    check_finite_rows(chunk, first_row)
    return cast_rows(chunk, "float32", first_row)


def _deal_out(rows: NDArray[Any], range_of: IdArray, chosen: range, paths: list[Path]) -> None:
    """Append each row of the ``chosen`` ranges to the file of its range."""
    if len(chosen) < len(paths):  # the others have a pass of their own
        is_chosen = (range_of >= chosen.start) & (range_of < chosen.stop)
        rows, range_of = rows[is_chosen], range_of[is_chosen]
    by_range = np.argsort(range_of.astype(np.uint16), kind="stable")
    grouped = rows[by_range]
    counts = np.bincount(range_of - chosen.start, minlength=len(chosen))
    start = 0
    for number, stop in zip(chosen, np.cumsum(counts), strict=True):
        if start < stop:
            append_bytes(paths[number], grouped[start:stop])
        start = stop


def _collect(path: Path, arrival: IdArray, out: NDArray[Any]) -> None:
    """Read all rows of ``path``, the i-th of them to ``out[arrival[i]]``."""
    count = arrival.shape[0]
    step = max(1, _PIECE_BYTES // max(1, out.shape[1] * out.itemsize))
    buffer = np.empty((min(step, count), out.shape[1]), out.dtype)
    with path.open("rb", buffering=0) as file:
        for start in range(0, count, step):
            piece = buffer[: count - start]
            read_bytes(file.fileno(), piece.view(np.uint8).reshape(-1).data, path)
            out[arrival[start : start + step]] = piece
