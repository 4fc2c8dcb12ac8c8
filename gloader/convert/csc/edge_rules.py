"""Edge rules: chunks of a source are checked, stripped of self loops, mirrored and given new self loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.csc_kernels import first_bad_edge, first_bad_weight
from gloader.convert.source import EdgeChunk
from gloader.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.convert.options import EdgeRules
    from gloader.convert.source import EdgeStream


def chunks_after_rules(
    edges: EdgeStream, *, num_nodes: int, rules: EdgeRules, max_edges: int, where: str
) -> Iterator[tuple[int, EdgeChunk]]:
    """Yield the edges of a dataset, each chunk with the number of edges that were read for it.

    The reverse of an edge, where ``rules.symmetrize`` asks for it, carries its weight with the sign bit set,
    so that the merge can tell the two apart. Self loops have no reverse.

    Parameters
    ----------
    edges : the stream of the source, read once
    num_nodes : N; ids lie in 0..N-1
    rules : what to do with the edges
    max_edges : edges read at a time; a chunk has up to twice as many after its reverse edges were added
    where : the source, for messages

    Raises
    ------
    GraphError
        An id is outside 0..num_nodes-1 or a weight is not a finite number of at least 0; names ``where``, the
        edge and the value.
    """
    done = 0
    for chunk in edges.chunks(max_edges):
        check_chunk(chunk, num_nodes=num_nodes, first=done, where=where)
        count = chunk.src.shape[0]
        done += count
        if rules.self_loops:
            chunk = _without_loops(chunk)  # noqa: PLW2901 - the chunk goes through the rules one after another
        if rules.symmetrize:
            chunk = _with_reverse(chunk)  # noqa: PLW2901
        yield count, chunk
    # The given loops were dropped above, so that every node has exactly one, of weight 1.
    if rules.self_loops:
        for start in range(0, num_nodes, max_edges):
            yield 0, _loops(start, min(num_nodes, start + max_edges), has_weights=edges.has_weights)


def check_chunk(chunk: EdgeChunk, *, num_nodes: int, first: int, where: str) -> None:
    """Refuse a bad id or weight. Pure.

    Parameters
    ----------
    chunk : the edges
    num_nodes : N; ids lie in 0..N-1
    first : number of the chunk's first edge in the stream, for messages
    where : the source, for messages

    Raises
    ------
    GraphError
        As `chunks_after_rules`.
    """
    bad = int(first_bad_edge(chunk.src, chunk.dst, num_nodes))
    if bad >= 0:
        source, destination = int(chunk.src[bad]), int(chunk.dst[bad])
        kind, value = ("source", source) if not 0 <= source < num_nodes else ("destination", destination)
        raise GraphError(
            f"{where}: edge {first + bad} (counted from 0) has {kind} {value}; node ids must lie in "
            f"0..{num_nodes - 1}, one per feature row"
        )
    bad = -1 if chunk.weight is None else int(first_bad_weight(chunk.weight))
    if chunk.weight is not None and bad >= 0:
        raise GraphError(
            f"{where}: edge {first + bad} (counted from 0) has weight {chunk.weight[bad]}; weights must be "
            "finite and at least 0"
        )


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
