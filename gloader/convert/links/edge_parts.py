"""The rules of an edge split, which divides a relation's edges into the parts train, valid and test.

A rule gives each edge its part: by a hash of its pair of nodes (`RandomParts`), or by its time (`TimeParts`). The parts
train, valid and test have the numbers 0, 1 and 2. `link_tables` makes a rule, and `deal_edges` then gives one edge
stream per part. For a split by time, `time_parts` reads the edges a few times. It counts edges by time, to find the
times at which train and valid end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds, check_chunk
from gloader.convert.options import PARTS
from gloader.convert.source import LinkChunk, LinkStream, changed_edges, numbered
from gloader.core.hashing import GOLDEN, mix64, mix_int
from gloader.core.kernels import njit
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.options import EdgeShares
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeChunk, EdgeStream
    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def deal_pairs(
    src: IdArray, dst: IdArray, is_ordered: bool, key: Any, first: Any, second: Any, parts: NDArray[np.uint8]
) -> None:
    """Write each edge's part, 0, 1 or 2, by a hash of its pair.

    Parameters
    ----------
    src, dst : (n,) ends
    is_ordered : True if the ends have different types; otherwise (u, v) and (v, u) are one pair
    key : the split's uint64 key
    first, second : the uint64 hashes at which parts 1 and 2 begin: a hash below ``first`` means part 0
    parts : (n,) parts, written
    """
    for i in range(src.shape[0]):
        low, high = src[i], dst[i]
        if not is_ordered and low > high:
            low, high = high, low
        drawn = mix64(mix64(key + np.uint64(low) * GOLDEN) + np.uint64(high))
        parts[i] = np.uint8(0) if drawn < first else np.uint8(1) if drawn < second else np.uint8(2)


_KEY = 0x6C696E6B73706C74  # makes the draws differ from other draws with the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomParts:
    """Parts by a hash of (seed, pair). Parallel edges, and a pair's two directions, have the same part."""

    seed: int
    shares: EdgeShares  # of train, valid and test; their sum is 1
    # True if the ends have different types; then (u, v) and (v, u) are different pairs.
    is_ordered: bool = False
    # True for edges of a reverse relation, which get the parts of the split relation's edges.
    is_reverse: bool = False

    def parts(self, chunk: EdgeChunk) -> NDArray[np.uint8]:
        """Return each edge's part (n,)."""
        parts = np.empty(chunk.src.shape[0], np.uint8)
        train, valid, _ = self.shares
        first, second = (min(2**64 - 1, int(share * 2**64)) for share in (train, train + valid))
        src, dst = (chunk.dst, chunk.src) if self.is_reverse else (chunk.src, chunk.dst)
        key = np.uint64(mix_int((self.seed ^ _KEY) % 2**64))
        # If numba's compiler is switched off, numpy warns about the intended overflows of the hash.
        with np.errstate(over="ignore"):
            deal_pairs(src, dst, self.is_ordered, key, np.uint64(first), np.uint64(second), parts)
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Parts by time. Train has the earliest edges, and test the latest."""

    train_end: int  # the last time in train, in seconds
    valid_end: int  # the last time in valid, in seconds

    def parts(self, chunk: EdgeChunk) -> NDArray[np.uint8]:
        """Return each edge's part (n,). Edges must have times."""
        if chunk.time is None:
            raise SourceError("edges without times cannot be split by time")
        return np.searchsorted([self.train_end, self.valid_end], chunk.time, side="left").astype(np.uint8)


PartRule: TypeAlias = RandomParts | TimeParts


def part_edges(edges: EdgeStream, rule: PartRule, part: int, num_edges: int | None) -> EdgeStream:
    """Return one part's edges in source order, with their numbers in the source. Pure.

    ``num_edges`` is the part's number of edges, or None if it is unknown.
    """

    def taken(chunk: EdgeChunk, first: int) -> EdgeChunk:
        return numbered(chunk, first).take(rule.parts(chunk) == part)

    # A chunk and its selected edges are in memory together, so chunks have half the size.
    return replace(changed_edges(edges, taken, part=(1, 2)), num_edges=num_edges)


def edge_rows(edges: EdgeStream) -> LinkStream:
    """Return a stream's edges as rows of a link table (a list of edges to predict). Pure.

    The rows have neither labels nor negatives, which are node pairs without an edge.
    """

    def chunks(max_rows: int) -> Iterator[LinkChunk]:
        for chunk in edges.chunks(max_rows):
            yield LinkChunk(src=chunk.src, dst=chunk.dst, time=chunk.time)

    return LinkStream(chunks=chunks, num_rows=edges.num_edges, has_times=edges.has_times, are_edges=True)


def deal_edges(
    edges: EdgeStream, rule: PartRule, *, ends: EdgeEnds, max_edges: int, progress: PrepareProgress
) -> tuple[EdgeStream, ...]:
    """Return each part's edges. One pass counts them, and later passes read them on demand.

    Parameters
    ----------
    edges : the source's stream
    rule : the rule for each edge's part
    ends : the numbers of source and destination nodes, for the check of ids
    max_edges : edges per chunk
    progress : receives the step "dealing out edges"

    Raises
    ------
    GraphError
        An id, a weight or a time is out of range.
    """
    counts = np.zeros(len(PARTS), np.int64)
    done = 0
    for chunk in edges.chunks(max_edges):
        # The check is part of this pass, because later passes see only one part, and would name wrong edge numbers.
        check_chunk(chunk, ends=ends, first=done)
        counts += np.bincount(rule.parts(chunk), minlength=len(PARTS))
        done += chunk.src.shape[0]
        progress.advance("dealing out edges", done, edges.num_edges, "edges")
    return tuple(part_edges(edges, rule, part, count) for part, count in enumerate(counts.tolist()))


# Bins per pass of the search for a cut. If the edges' times span four years, a bin is half an hour in the first pass,
# and a second in the next one.
_BINS = 1 << 16


@dataclass(slots=True)
class _Cut:
    """The search for a cut: the time of the edge with a given rank in time order.

    The time lies in ``low``..``high``. Each pass over the edges calls `count` for each chunk, which counts the edges in
    `_BINS` bins of this range. Then `narrow` reduces the range to the bin with the edge.
    """

    rank: int  # the edge's rank among the edges in the range, counted from 0
    low: int  # first second of the range
    high: int  # last second of the range
    counts: IdArray = field(default_factory=lambda: np.zeros(_BINS, np.int64))  # (_BINS,) edges per bin

    @property
    def width(self) -> int:
        """Seconds per bin."""
        return (self.high - self.low) // _BINS + 1

    def count(self, times: IdArray | None) -> None:
        """Add times (n,) to the counts of their bins."""
        if times is None:
            return
        inside = times[(times >= self.low) & (times <= self.high)]
        self.counts += np.bincount((inside - self.low) // self.width, minlength=_BINS)

    def narrow(self) -> None:
        """Narrow the range to the bin with the edge of the given rank, and begin to count again."""
        ends = np.cumsum(self.counts)
        number = int(np.searchsorted(ends, self.rank, side="right"))
        self.rank -= int(ends[number - 1]) if number else 0
        width = self.width
        self.low += number * width
        self.high = min(self.high, self.low + width - 1)
        self.counts[:] = 0


def time_parts(
    edges: EdgeStream,
    shares: EdgeShares,
    *,
    ends: EdgeEnds,
    max_edges: int,
    progress: PrepareProgress,
) -> TimeParts:
    """Return the rule of a split by time: first train, then valid, then test. Edges with equal times share a part.

    Parameters
    ----------
    edges : edges with times; they are usually read three or four times
    shares : shares for train, valid and test
    ends : the numbers of source and destination nodes, for the check of ids
    max_edges : edges per chunk
    progress : receives the step "ordering edges by time"

    Raises
    ------
    SourceError
        There are no edges, or they have no times.
    GraphError
        An id, a weight or a time is out of range.
    """
    if not edges.has_times:
        raise SourceError(
            f"{ends.where}: its edges have no times for --edge-split-by time; name the column of times with "
            "--edge-time"
        )
    low, high, done = 2**62, -(2**62), 0  # the earliest and latest time, and the number of edges
    for chunk in edges.chunks(max_edges):
        check_chunk(chunk, ends=ends, first=done)
        done += chunk.src.shape[0]
        if chunk.time is not None:
            low, high = int(chunk.time.min(initial=low)), int(chunk.time.max(initial=high))
        progress.advance("ordering edges by time", done, edges.num_edges, "edges")
    if not done:
        raise SourceError(f"{ends.where}: there are no edges to split")
    train, valid, _ = shares
    # These are the ranks of the last edges of train and valid. Train has at least one edge.
    ranks = [min(done, max(1, round(share * done))) - 1 for share in (train, train + valid)]
    cuts = [_Cut(rank, low, high) for rank in ranks]
    while any(cut.low < cut.high for cut in cuts):
        for chunk in edges.chunks(max_edges):
            for cut in cuts:
                cut.count(chunk.time)
        for cut in cuts:
            cut.narrow()
    return TimeParts(train_end=cuts[0].low, valid_end=cuts[1].low)
