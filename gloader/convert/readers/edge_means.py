"""Node features made of edge features: each node's mean over its in-edges, for graphs whose nodes have no features.

`mean_edge_rows` reads edges and their feature rows side by side, once, and keeps the means. The baselines of OGB for
ogbn-proteins use these features (Hu et al., Open Graph Benchmark, NeurIPS 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.source import FeatureStream
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.source import EdgeChunk, EdgeStream

_CHUNK_EDGES: Final = 1 << 16  # edges per step; with eight columns, its arrays take some MB
_CHUNK_BYTES: Final = 512  # bytes per edge of a step, for the rows, their sorted copy and the sort


def mean_row_bytes(num_nodes: int, dim: int) -> int:
    """Return the memory that `mean_edge_rows` takes while edges are read: sums, counts and a step. Pure."""
    return 8 * num_nodes * (dim + 1) + _CHUNK_BYTES * _CHUNK_EDGES


def mean_edge_rows(edges: EdgeStream, rows: FeatureStream, *, num_nodes: int, where: str) -> FeatureStream:
    """Return the mean feature row of each node's in-edges, 0 without in-edges, as float32. Pure.

    The first call of the stream's ``chunks`` reads the edges; later calls use its result.

    Parameters
    ----------
    edges : the edges
    rows : (E, F) feature rows in edge order
    num_nodes : N
    where : the source, for messages

    Raises
    ------
    SourceError
        The stream raises it for an edge to a node that does not exist.
    ShapeError
        The stream raises it if there is not one row per edge.
    """
    held: list[NDArray[np.float32]] = []

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        if not held:
            held.append(_means(edges, rows, num_nodes, where))
        for start in range(0, num_nodes, max_rows):
            yield held[0][start : start + max_rows]

    return FeatureStream(
        chunks=chunks,
        num_rows=num_nodes,
        dim=rows.dim,
        dtype=np.dtype(np.float32),
        where=f"{where}, means of edge features",
    )


def _means(edges: EdgeStream, rows: FeatureStream, num_nodes: int, where: str) -> NDArray[np.float32]:
    """Return the means (N, F) by one pass over edges and rows. Sums are float64."""
    sums = np.zeros((num_nodes, rows.dim))
    counts = np.zeros(num_nodes, np.int64)
    for chunk, of_edges in _side_by_side(edges, rows, where):
        low, high = int(chunk.dst.min(initial=0)), int(chunk.dst.max(initial=-1))
        if low < 0 or high >= num_nodes:
            wrong = low if low < 0 else high
            raise SourceError(f"{where}: an edge leads to node {wrong}; nodes are 0..{num_nodes - 1}")
        # The rows are sorted by destination, so that each node's rows are consecutive and are added in one call.
        order = np.argsort(chunk.dst, kind="stable")
        nodes, starts, repeats = np.unique(chunk.dst[order], return_index=True, return_counts=True)
        if len(nodes):
            sums[nodes] += np.add.reduceat(of_edges[order].astype(np.float64), starts, axis=0)
            counts[nodes] += repeats
    sums /= np.maximum(counts, 1)[:, None]
    return sums.astype(np.float32)


def _side_by_side(
    edges: EdgeStream, rows: FeatureStream, where: str
) -> Iterator[tuple[EdgeChunk, NDArray[np.generic]]]:
    """Yield each chunk of edges with its rows (n, F). Raises ShapeError if there is not one row per edge."""
    parts = rows.chunks(_CHUNK_EDGES)
    left: NDArray[np.generic] = np.empty((0, rows.dim), rows.dtype)  # rows that no edge has taken yet
    num_edges = 0
    for chunk in edges.chunks(_CHUNK_EDGES):
        num_edges += len(chunk.dst)
        while len(left) < len(chunk.dst):
            part = next(parts, None)
            if part is None:
                raise ShapeError(f"{where}: edge features end before edge {num_edges - 1}")
            left = np.concatenate([left, part]) if len(left) else part
        yield chunk, left[: len(chunk.dst)]
        left = left[len(chunk.dst) :]
    if len(left) or next(parts, None) is not None:
        raise ShapeError(f"{where}: there are more rows of edge features than the {num_edges} edges")
