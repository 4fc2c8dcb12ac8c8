"""The in-edges of many nodes, in pieces of bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gloader.models.adjacency import Adjacency

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.samplers import Topology
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Consecutive output rows that are propagated together."""

    start: int
    stop: int


def cut_rows(counts: IdArray, *, max_edges: int, max_rows: int) -> tuple[RowRange, ...]:
    """Cut rows into ranges that are propagated at once; a row with too many edges gets one of its own. Pure.

    Parameters
    ----------
    counts : (n,) in-edges of each row
    max_edges : of a range of several rows
    max_rows : of a range
    """
    ends = np.cumsum(counts)
    ranges = []
    start = 0
    while start < len(counts):
        before = ends[start] - counts[start]
        stop = int(np.searchsorted(ends, before + max_edges, side="right"))
        # At least one row: a node with more edges than a piece would never be passed.
        stop = min(max(stop, start + 1), start + max_rows, len(counts))
        ranges.append(RowRange(start=start, stop=stop))
        start = stop
    return tuple(ranges)


def iter_pieces(
    graph: Topology, nodes: IdArray, *, max_edges: int, device: torch.device
) -> Iterator[Adjacency]:
    """Yield the in-edges of ``nodes`` (n,): one adjacency, or several where a lone node has too many.

    Each has n destinations and sources in 0..N-1; together they hold every in-edge once, in order.

    Parameters
    ----------
    graph : the whole topology
    nodes : (n,) destinations, of a range that `cut_rows` made
    max_edges : of a piece of a lone node
    device : receives the adjacencies
    """
    starts = graph.indptr[nodes]
    counts = graph.indptr[nodes + 1] - starts
    if len(nodes) == 1:
        for first in range(0, int(counts[0]), max_edges):
            begin = int(starts[0]) + first
            end = min(begin + max_edges, int(starts[0] + counts[0]))
            yield _adjacency(graph, np.arange(begin, end), np.array([end - begin]), device)
        return
    yield _adjacency(graph, _positions(starts, counts), counts, device)


def _positions(starts: IdArray, counts: IdArray) -> IdArray:
    """Return ``starts[i] .. starts[i] + counts[i]`` for each i, one after another."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()), dtype=np.int64)


def _adjacency(graph: Topology, positions: IdArray, counts: IdArray, device: torch.device) -> Adjacency:
    values, places = graph.sources.at(positions)
    indices = values[places]
    indptr = np.zeros(len(counts) + 1, dtype=indices.dtype)
    np.cumsum(counts, out=indptr[1:])
    return Adjacency(
        torch.from_numpy(indptr).to(device), torch.from_numpy(indices).to(device), num_src=graph.num_nodes
    )
