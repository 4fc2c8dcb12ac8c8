"""Hot sets: which nodes' rows are worth keeping in memory for a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def _count_occurrences(ids: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
    for i in range(ids.shape[0]):
        counts[ids[i]] += 1


def out_degrees(indices: NDArray[np.integer], num_nodes: int, *, chunk_edges: int = 1 << 24) -> IdArray:
    """Count how often each node is somebody's in-neighbour, in O(N) memory. Pure.

    Parameters
    ----------
    indices : (E,) int32 or int64, in memory or memory-mapped; every id in 0..num_nodes-1

    Returns
    -------
    (N,) int64
    """
    counts = np.zeros(num_nodes, dtype=np.int64)
    for start in range(0, len(indices), chunk_edges):
        _count_occurrences(np.ascontiguousarray(indices[start : start + chunk_edges]), counts)
    return counts


def hottest_by_degree(degrees: IdArray, num_rows: int) -> IdArray:
    """Return the ``num_rows`` nodes of largest out-degree (PaGraph, SoCC'20, section 4.2), ascending. Pure.

    A node that many others name as in-neighbour is sampled often. Nodes that nobody names are left out
    even where there is room; ties go to the smaller id.

    Parameters
    ----------
    degrees : (N,) int64 out-degrees

    Returns
    -------
    (min(num_rows, nodes with an out-edge),) int64
    """
    candidates = np.flatnonzero(degrees > 0)
    if num_rows >= len(candidates):
        return candidates
    if num_rows <= 0:
        return np.empty(0, dtype=np.int64)
    order = np.argsort(-degrees[candidates], kind="stable")[:num_rows]
    return np.sort(candidates[order])
