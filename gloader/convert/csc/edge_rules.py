"""Edge rules: chunks of a source are checked, stripped of self loops, mirrored and given new self loops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.csc_kernels import first_bad_edge, first_bad_weight
from gloader.convert.source import EdgeChunk
from gloader.core.value_kernels import first_outside
from gloader.errors import GraphError
from gloader.types import NO_EDGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.options import EdgeRules
    from gloader.convert.source import EdgeStream

# Half of what int64 holds, so that the sum or difference of two times is one too.
MAX_SECONDS: Final = 2**62 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeEnds:
    """The nodes that edges run between, and what holds the edges, for messages."""

    num_nodes: int  # destinations; their ids lie in 0..num_nodes-1
    num_sources: int  # ids of sources lie in 0..num_sources-1
    where: str = "edges"
    is_typed: bool = False  # the two ends have ids of their own, even where there are as many of either

    @classmethod
    def of(cls, num_nodes: int, where: str = "edges") -> EdgeEnds:
        """Return the ends of edges within one set of nodes. Pure."""
        return cls(num_nodes=num_nodes, num_sources=num_nodes, where=where)


def chunks_after_rules(
    edges: EdgeStream, *, ends: EdgeEnds, rules: EdgeRules, max_edges: int, is_numbered: bool = False
) -> Iterator[tuple[int, EdgeChunk]]:
    """Yield the edges of a dataset, each chunk with the number of edges that were read for it.

    The reverse of an edge, where ``rules.symmetrize`` asks for it, carries its weight with the sign bit set,
    so that the merge can tell the two apart, and its time and number as they are. Self loops have no reverse. Those
    that are added have the earliest time of all edges, and no number.

    Parameters
    ----------
    edges : the stream of the source, read once
    ends : the nodes that they join; equally many of either where ``rules`` mirror edges or give self loops
    rules : what to do with the edges
    max_edges : edges read at a time; a chunk has up to twice as many after its reverse edges were added
    is_numbered : give every edge its number in the source

    Raises
    ------
    GraphError
        An id is outside its range, a weight is not a finite number of at least 0, or a time is beyond those that are
        stored; names what holds the edges, the edge and the value.
    """
    done, earliest = 0, MAX_SECONDS
    for chunk in edges.chunks(max_edges):
        check_chunk(chunk, ends=ends, first=done)
        count = chunk.src.shape[0]
        if chunk.time is not None:
            earliest = int(chunk.time.min(initial=earliest))
        if is_numbered and chunk.number is None:
            chunk = replace(chunk, number=np.arange(done, done + count, dtype=np.int64))  # noqa: PLW2901 - as below
        done += count
        if rules.self_loops:
            chunk = _without_loops(chunk)  # noqa: PLW2901 - the chunk goes through the rules one after another
        if rules.symmetrize:
            chunk = _with_reverse(chunk)  # noqa: PLW2901
        yield count, chunk
    # The given loops were dropped above, so that every node has exactly one, of weight 1.
    if rules.self_loops:
        for start in range(0, ends.num_nodes, max_edges):
            count = min(ends.num_nodes, start + max_edges) - start
            nodes = np.arange(start, start + count, dtype=np.int64)
            yield (
                0,
                EdgeChunk(
                    src=nodes,
                    dst=nodes,
                    weight=np.ones(count, np.float32) if edges.has_weights else None,
                    time=np.full(count, earliest if done else 0, np.int64) if edges.has_times else None,
                    number=np.full(count, NO_EDGE, np.int64) if is_numbered else None,
                ),
            )


def check_chunk(chunk: EdgeChunk, *, ends: EdgeEnds, first: int) -> None:
    """Refuse a bad id, weight or time. Pure.

    Parameters
    ----------
    chunk : the edges
    ends : the nodes that they join
    first : number of the chunk's first edge in the stream, for messages

    Raises
    ------
    GraphError
        As `chunks_after_rules`.
    """
    bad = int(first_bad_edge(chunk.src, chunk.dst, ends.num_sources, ends.num_nodes))
    if bad >= 0:
        raise GraphError(
            f"{ends.where}: edge {first + bad} (counted from 0) has {_wrong_end(chunk, bad, ends)}"
        )
    bad = -1 if chunk.weight is None else int(first_bad_weight(chunk.weight))
    if chunk.weight is not None and bad >= 0:
        raise GraphError(
            f"{ends.where}: edge {first + bad} (counted from 0) has weight {chunk.weight[bad]}; weights must be "
            "finite and at least 0"
        )
    bad = -1 if chunk.time is None else int(first_outside(chunk.time, -MAX_SECONDS, MAX_SECONDS))
    if chunk.time is not None and bad >= 0:
        raise GraphError(
            f"{ends.where}: edge {first + bad} (counted from 0) has time {chunk.time[bad]}; times are seconds in "
            f"{-MAX_SECONDS}..{MAX_SECONDS}"
        )


def _wrong_end(chunk: EdgeChunk, edge: int, ends: EdgeEnds) -> str:
    """Say which end of an edge is no node, and what ids its nodes have."""
    kind, value, count = "source", int(chunk.src[edge]), ends.num_sources
    if 0 <= value < count:
        kind, value, count = "destination", int(chunk.dst[edge]), ends.num_nodes
    if not ends.is_typed:
        return f"{kind} {value}; node ids must lie in 0..{count - 1}, one per feature row"
    if count == 0:
        return f"{kind} {value}; there are no {kind}s"
    return f"{kind} {value}; ids of {kind}s must lie in 0..{count - 1}"


def _without_loops(chunk: EdgeChunk) -> EdgeChunk:
    keep = chunk.src != chunk.dst
    if keep.all():
        return chunk
    return chunk.take(keep)


def _with_reverse(chunk: EdgeChunk) -> EdgeChunk:
    reverse = _without_loops(chunk)
    return EdgeChunk(
        src=np.concatenate([chunk.src, reverse.dst]),
        dst=np.concatenate([chunk.dst, reverse.src]),
        # The sign bit alone marks the reverse: -0.0 is a marked weight of 0.
        weight=_joined(chunk.weight, None if reverse.weight is None else -reverse.weight),
        time=_joined(chunk.time, reverse.time),
        number=_joined(chunk.number, reverse.number),
    )


def _joined(own: NDArray[Any] | None, others: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if own is None or others is None else np.concatenate([own, others])
