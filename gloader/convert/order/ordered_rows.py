"""Feature rows in a new order, within a memory budget: dealt out to ranges of places, then put in order by range.

Both passes read and write in long stretches; no row is read or written alone. The rows of a range arrive in the order
of the source, so that nothing but the rows has to be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.convert.csc.temporary_array import append_bytes, read_bytes
from gloader.errors import ShapeError
from gloader.ssd_store.write.cast import cast_rows, check_finite_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
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

        Asked for one range after another, from the first row to the last.

        Returns
        -------
        rows : (n,) ascending, counted from ``first``; None: each of them, once
        places : (n,) that they go to
        """
        ...

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return those of places ``first`` ... ``stop - 1`` that rows go to, counted from ``first``, as they come."""
        ...


def ordered_rows(
    features: FeatureStream,
    order: RowMoves,
    *,
    dtype: str,
    chunk_rows: int,
    range_rows: int,
    scratch: Path,
    progress: PrepareProgress,
    step: str = "ordering features",
) -> Iterator[NDArray[Any]]:
    """Yield the rows of ``features`` in the order of their new places, ``range_rows`` of them at a time.

    An array is only good until the next.

    Parameters
    ----------
    features : (N, F) rows in the order of the source, read once
    order : where they go
    dtype : that the rows will be stored as; they are cast to it here, except to int8
    chunk_rows : rows read at a time
    range_rows : rows put in order at a time; as many as there are places, or more: all of them, in memory
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
    num_rows, num_places = features.num_rows, order.num_rows
    stored = spill_dtype(dtype)
    ranges = range(0, num_places, range_rows)
    paths = [scratch / f"rows-{number:05d}" for number in range(len(ranges))]
    out = np.zeros((min(range_rows, num_places), features.dim), stored)
    done = 0
    try:
        for chunk in features.chunks(chunk_rows):
            if done + chunk.shape[0] > num_rows:
                raise ShapeError(f"the features have more rows than the {num_rows} that were announced")
            rows = _cast(chunk, dtype, done)
            which, places = order.targets(done, done + rows.shape[0])
            done += rows.shape[0]
            moved = rows if which is None else rows[which]
            if len(ranges) == 1:
                out[places] = moved
            else:
                _deal_out(moved, (places // range_rows).astype(np.uint16), paths)
            progress.advance(step, done, num_rows, "rows")
        if done < num_rows:
            raise ShapeError(f"the features end after {done} of {num_rows} rows: row {done} is missing")
        if len(ranges) == 1:
            yield out
            return
        for first, path in zip(ranges, paths, strict=True):
            part = out[: min(range_rows, num_places - first)]
            arrival = order.arrivals(first, first + part.shape[0])
            if arrival.shape[0] < part.shape[0]:
                part[:] = 0
            if arrival.shape[0]:
                _collect(path, arrival, part)
                path.unlink()
            yield part
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def spill_dtype(dtype: str) -> np.dtype[Any]:
    """Return the dtype in which rows that will be stored as ``dtype`` are put in order. Pure."""
    return np.dtype({"bfloat16": "uint16", "int8": "float32"}.get(dtype, dtype))


def _cast(chunk: NDArray[Any], dtype: str, first_row: int) -> NDArray[Any]:
    """Return rows as they are put in order; done before, so that messages name rows of the source."""
    floats = chunk if chunk.dtype.kind == "f" else chunk.astype(np.float32)
    if dtype != "int8":
        return cast_rows(floats, dtype, first_row)
    # int8 is what the writer makes of float32; only values that it would refuse are found here.
    check_finite_rows(floats, first_row)
    return cast_rows(floats, "float32", first_row)


def _deal_out(rows: NDArray[Any], range_of: NDArray[np.uint16], paths: list[Path]) -> None:
    by_range = np.argsort(range_of, kind="stable")
    grouped = rows[by_range]
    ends = np.cumsum(np.bincount(range_of, minlength=len(paths)))
    start = 0
    for path, stop in zip(paths, ends, strict=True):
        if start < stop:
            append_bytes(path, grouped[start:stop])
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
