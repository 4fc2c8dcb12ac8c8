"""The edges of a source dealt out to parts: by a hash of their pairs, or by time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds, check_chunk
from gloader.convert.links.link_source import LinkChunk
from gloader.convert.links.shares import PARTS
from gloader.convert.links.split_kernels import deal_pairs
from gloader.core.hashing import mix_int
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.links.shares import EdgeShares
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeChunk, EdgeStream
    from gloader.types import IdArray

_KEY = 0x6C696E6B73706C74  # so that a seed deals edges as it deals nothing else


class PartRule(Protocol):
    """Says which part an edge belongs to. Pure."""

    def parts(self, chunk: EdgeChunk) -> NDArray[np.uint8]:
        """Return the (n,) part of each edge, a number of `PARTS`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomParts:
    """Parts by a hash of (seed, pair): parallel edges, and the two directions of a pair, are in one part."""

    seed: int
    shares: EdgeShares
    is_ordered: bool = False  # the ends are of different types, where (u, v) and (v, u) are different pairs
    is_reverse: bool = (
        False  # the edges lead back: their destinations are the sources of those that are split
    )

    def parts(self, chunk: EdgeChunk) -> NDArray[np.uint8]:
        """Return the (n,) part of each edge."""
        parts = np.empty(chunk.src.shape[0], np.uint8)
        train, valid, _ = self.shares
        first, second = (min(2**64 - 1, int(share * 2**64)) for share in (train, train + valid))
        src, dst = (chunk.dst, chunk.src) if self.is_reverse else (chunk.src, chunk.dst)
        key = np.uint64(mix_int((self.seed ^ _KEY) % 2**64))
        with np.errstate(over="ignore"):  # interpreted hashes wrap around
            deal_pairs(src, dst, self.is_ordered, key, np.uint64(first), np.uint64(second), parts)
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Parts by time: up to and with one time, up to and with another, and what comes later."""

    train_end: int
    valid_end: int

    def parts(self, chunk: EdgeChunk) -> NDArray[np.uint8]:
        """Return the (n,) part of each edge, which has a time."""
        if chunk.time is None:
            raise SourceError("edges without times cannot be split by time")
        return np.searchsorted([self.train_end, self.valid_end], chunk.time, side="left").astype(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEdges:
    """An edge stream of the edges of one part, in the order of the source and with their numbers in it."""

    edges: EdgeStream
    rule: PartRule
    part: int
    num_edges: int | None

    @property
    def has_weights(self) -> bool:
        """Whether every chunk carries weights."""
        return self.edges.has_weights

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.edges.has_times

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        done = 0
        # What is picked is alive beside what it is picked from: smaller chunks take the memory of plain ones.
        for chunk in self.edges.chunks(max(1, max_edges // 2)):
            count = chunk.src.shape[0]
            if chunk.number is None:
                chunk = replace(chunk, number=np.arange(done, done + count, dtype=np.int64))  # noqa: PLW2901
            done += count
            yield chunk.take(self.rule.parts(chunk) == self.part)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRows:
    """The rows of a link table that are the edges of a stream: without labels and negatives."""

    edges: EdgeStream

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None: unknown until they are read."""
        return self.edges.num_edges

    @property
    def has_times(self) -> bool:
        """Whether every chunk carries times."""
        return self.edges.has_times

    @property
    def label_dtype(self) -> None:
        """None: edges have no labels."""
        return

    @property
    def negatives_per_row(self) -> int:
        """None are given."""
        return 0

    def chunks(self, max_rows: int) -> Iterator[LinkChunk]:
        """Yield the rows in order, at most ``max_rows`` at a time."""
        for chunk in self.edges.chunks(max_rows):
            yield LinkChunk(src=chunk.src, dst=chunk.dst, time=chunk.time)

    def labels(self, max_rows: int) -> Iterator[NDArray[np.generic]]:  # noqa: ARG002 - as `LinkStream`
        """Yield nothing."""
        return iter(())

    def negatives(self, max_rows: int) -> Iterator[IdArray]:  # noqa: ARG002
        """Yield nothing."""
        return iter(())


def deal_edges(
    edges: EdgeStream, rule: PartRule, *, ends: EdgeEnds, max_edges: int, progress: PrepareProgress
) -> tuple[PartEdges, ...]:
    """Return the edges of each part; they are read once to be counted, and again by whoever wants them.

    Parameters
    ----------
    edges : the stream of the source
    rule : of the split
    ends : the nodes that the edges join
    max_edges : read at a time
    progress : receives the step "dealing out edges"

    Raises
    ------
    GraphError
        An id, a weight or a time is out of range.
    """
    counts = np.zeros(len(PARTS), np.int64)
    done = 0
    for chunk in edges.chunks(max_edges):
        # Here, where edges are counted as the source has them: later they are some of them alone.
        check_chunk(chunk, ends=ends, first=done)
        counts += np.bincount(rule.parts(chunk), minlength=len(PARTS))
        done += chunk.src.shape[0]
        progress.advance("dealing out edges", done, edges.num_edges, "edges")
    return tuple(
        PartEdges(edges=edges, rule=rule, part=part, num_edges=count)
        for part, count in enumerate(counts.tolist())
    )
