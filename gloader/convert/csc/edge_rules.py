"""Edge rules: chunks of a source are checked, stripped of self loops, mirrored and given new self loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.csc_kernels import first_bad_edge, first_bad_weight
from gloader.convert.source import EdgeChunk
from gloader.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.convert.options import EdgeRules
    from gloader.convert.source import EdgeStream


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
    edges: EdgeStream, *, ends: EdgeEnds, rules: EdgeRules, max_edges: int
) -> Iterator[tuple[int, EdgeChunk]]:
    """Yield the edges of a dataset, each chunk with the number of edges that were read for it.

    The reverse of an edge, where ``rules.symmetrize`` asks for it, carries its weight with the sign bit set,
    so that the merge can tell the two apart. Self loops have no reverse.

    Parameters
    ----------
    edges : the stream of the source, read once
    ends : the nodes that they join; equally many of either where ``rules`` mirror edges or give self loops
    rules : what to do with the edges
    max_edges : edges read at a time; a chunk has up to twice as many after its reverse edges were added

    Raises
    ------
    GraphError
        An id is outside its range or a weight is not a finite number of at least 0; names what holds the edges, the
        edge and the value.
    """
    done = 0
    for chunk in edges.chunks(max_edges):
        check_chunk(chunk, ends=ends, first=done)
        count = chunk.src.shape[0]
        done += count
        if rules.self_loops:
            chunk = _without_loops(chunk)  # noqa: PLW2901 - the chunk goes through the rules one after another
        if rules.symmetrize:
            chunk = _with_reverse(chunk)  # noqa: PLW2901
        yield count, chunk
    # The given loops were dropped above, so that every node has exactly one, of weight 1.
    if rules.self_loops:
        for start in range(0, ends.num_nodes, max_edges):
            yield 0, _loops(start, min(ends.num_nodes, start + max_edges), has_weights=edges.has_weights)


def check_chunk(chunk: EdgeChunk, *, ends: EdgeEnds, first: int) -> None:
    """Refuse a bad id or weight. Pure.

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
    weight = None if chunk.weight is None else chunk.weight[keep]
    return EdgeChunk(src=chunk.src[keep], dst=chunk.dst[keep], weight=weight)


def _with_reverse(chunk: EdgeChunk) -> EdgeChunk:
    reverse = _without_loops(chunk)
    weight = None
    if chunk.weight is not None and reverse.weight is not None:
        # The sign bit alone marks the reverse: -0.0 is a marked weight of 0.
        weight = np.concatenate([chunk.weight, -reverse.weight])
    return EdgeChunk(
        src=np.concatenate([chunk.src, reverse.dst]),
        dst=np.concatenate([chunk.dst, reverse.src]),
        weight=weight,
    )


def _loops(start: int, stop: int, *, has_weights: bool) -> EdgeChunk:
    nodes = np.arange(start, stop, dtype=np.int64)
    return EdgeChunk(src=nodes, dst=nodes, weight=np.ones(stop - start, np.float32) if has_weights else None)
