"""Times of edges as whole seconds, and edge streams with times from an array, a file or a column."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gloader.convert.source import ChangedEdges
from gloader.core.aligned_memory import plain_array
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from numpy.typing import NDArray

    from gloader.convert.readers.npy_file import NpyFile
    from gloader.convert.source import EdgeChunk, EdgeStream
    from gloader.types import IdArray


# float64 has every whole number up to here: larger ones may not be the second that was meant.
_LARGEST_FLOAT = 2.0**53


def check_time_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse times that are no seconds, or that cannot hold them. Pure.

    Raises
    ------
    SourceError
        ``dtype`` is neither an integer, float64 nor datetime64; says why.
    """
    if dtype.kind == "f" and dtype.itemsize < 8:
        raise SourceError(
            f"{where} has dtype {dtype}, which holds whole seconds only up to {2 ** np.finfo(dtype).nmant * 2:,} and "
            "so has lost them; save the times as int64 seconds, from where they were not yet rounded"
        )
    if dtype.kind not in "iuM" and dtype != np.float64:
        raise SourceError(
            f"{where} has dtype {dtype}; times are int64 seconds, float64 of whole seconds, or datetime64"
        )


def to_seconds(values: NDArray[Any], *, first: int, where: str) -> IdArray:
    """Return times as int64 seconds, of dates since 1970 in UTC. Pure.

    Parameters
    ----------
    values : (n,) integers, float64 or datetime64; int64 is returned uncopied
    first : number of the first one, for messages
    where : what holds them, for messages

    Raises
    ------
    SourceError
        As `check_time_dtype`; a time is missing, not a whole second, or too large to be one; names the row.
    """
    check_time_dtype(values.dtype, where)
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[s]")
        _refuse(values, np.isnat(values) | (seconds != values), first, where)
        return np.ascontiguousarray(seconds.view(np.int64))
    if values.dtype.kind == "f":
        # NaN is neither smaller nor equal.
        _refuse(values, ~((np.abs(values) <= _LARGEST_FLOAT) & (np.floor(values) == values)), first, where)
    if values.dtype == np.uint64:
        _refuse(values, values > np.uint64(2**63 - 1), first, where)
    return plain_array(values, np.int64)


def _refuse(values: NDArray[Any], is_bad: NDArray[np.bool_], first: int, where: str) -> None:
    if is_bad.any():
        row = int(is_bad.argmax())
        raise SourceError(
            f"{where}: row {first + row} has time {values[row]}; times are whole seconds, and every edge has one"
        )


class TimeColumn(Protocol):
    """One time for each edge of a stream, in its order."""

    @property
    def where(self) -> str:
        """The file or column of the times, for messages."""
        ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Of what is taken; None: known when it is read."""
        ...

    @property
    def num_times(self) -> int | None:
        """Number of times; None if it is unknown until they are read."""
        ...

    def taking(self) -> AbstractContextManager[Callable[[int], NDArray[Any]]]:
        """Return what takes the next so many times, from the first on; fewer where they end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTimes:
    """Times in an array, which may be memory-mapped."""

    values: NDArray[Any]  # (M,)
    where: str
    # (E,) of each edge's time in ``values``; None: the edges are in its order
    numbers: NDArray[np.integer] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        return self.values.dtype

    @property
    def num_times(self) -> int:
        """E."""
        return self.values.size if self.numbers is None else self.numbers.size

    @contextmanager
    def taking(self) -> Iterator[Callable[[int], NDArray[Any]]]:
        """Return what takes the next so many times."""
        flat, done = self.values.reshape(-1), 0

        def take(count: int) -> NDArray[Any]:
            nonlocal done
            done += count
            part = slice(done - count, done)
            return flat[part] if self.numbers is None else flat[self.numbers[part]]

        yield take


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTimes:
    """Times in an array file."""

    file: NpyFile  # (E,)

    @property
    def where(self) -> str:
        """The file."""
        return self.file.where

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        return self.file.dtype

    @property
    def num_times(self) -> int:
        """Elements of the array."""
        return self.file.size

    @contextmanager
    def taking(self) -> Iterator[Callable[[int], NDArray[Any]]]:
        """Return what takes the next so many times; raises SourceError where the file ends."""
        with self.file.reader() as reader:
            yield reader.take


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedTimes:
    """Times that come in pieces, such as those of a column of text."""

    pieces: Callable[[], Iterable[NDArray[Any]]]
    where: str
    num_times: int | None = None

    @property
    def dtype(self) -> None:
        """Known when they are read."""
        return

    @contextmanager
    def taking(self) -> Iterator[Callable[[int], NDArray[Any]]]:
        """Return what takes the next so many times."""
        pieces = iter(self.pieces())
        held: list[NDArray[Any]] = []

        def take(count: int) -> NDArray[Any]:
            while sum(map(len, held)) < count and (piece := next(pieces, None)) is not None:
                held.append(piece)
            whole = np.concatenate(held) if held else np.empty(0, np.int64)
            held[:] = [whole[count:]] if len(whole) > count else []
            return whole[:count]

        yield take


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEdges(ChangedEdges):
    """An edge stream whose edges get their times from beside it."""

    times: TimeColumn

    @classmethod
    def of(cls, edges: EdgeStream, times: TimeColumn) -> TimedEdges:
        """Check the dtype of the times, and their number as far as it is known.

        Raises
        ------
        SourceError
            As `check_time_dtype`.
        ShapeError
            There is not one time for each edge.
        """
        if times.dtype is not None:
            check_time_dtype(times.dtype, times.where)
        if None not in (times.num_times, edges.num_edges) and times.num_times != edges.num_edges:
            raise ShapeError(f"{times.where} holds {times.num_times} times for {edges.num_edges} edges")
        return cls(edges=edges, times=times)

    @property
    def has_times(self) -> bool:
        """Always."""
        return True

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time.

        Raises
        ------
        SourceError
            As `to_seconds`.
        ShapeError
            There is not one time for each edge.
        """
        done = 0
        with self.times.taking() as take:
            for chunk in self.edges.chunks(max_edges):
                count = chunk.src.shape[0]
                values = take(count)
                if values.shape[0] < count:
                    raise ShapeError(
                        f"{self.times.where} ends after {done + values.shape[0]} times; there are more edges"
                    )
                yield replace(chunk, time=to_seconds(values, first=done, where=self.times.where))
                done += count
            if self.times.num_times is None and take(1).shape[0]:
                raise ShapeError(f"{self.times.where} holds more times than there are edges, {done}")
