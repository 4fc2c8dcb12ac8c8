"""Kernels that find the first bad entry of a graph's arrays; -1 stands for none. No allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def first_descent(indptr: IdArray, start: int, stop: int) -> int:
    """Return the first i in [start, stop) with ``indptr[i + 1] < indptr[i]``, or -1. Pure."""
    for i in range(start, stop):
        if indptr[i + 1] < indptr[i]:
            return i
    return -1


@njit(cache=True, nogil=True)
def first_outside(indices: NDArray[Any], start: int, stop: int, num_nodes: int) -> int:
    """Return the first i in [start, stop) with ``indices[i]`` outside 0..num_nodes-1, or -1. Pure."""
    for i in range(start, stop):
        if indices[i] < 0 or indices[i] >= num_nodes:
            return i
    return -1


@njit(cache=True, nogil=True)
def first_bad_weight(edge_weight: NDArray[Any], start: int, stop: int) -> int:
    """Return the first i in [start, stop) whose weight is negative, infinite or not a number, or -1. Pure."""
    for i in range(start, stop):
        weight = edge_weight[i]
        if not 0 <= weight < float("inf"):
            return i
    return -1
