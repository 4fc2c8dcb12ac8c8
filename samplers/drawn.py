"""The values that passes over the edges brought for a batch, where its hops look them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ShapeError
from gloader.samplers import distinct_kernels
from gloader.samplers.pick_kernels import SLACK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray


def checked_drawn(drawn: Sequence[NDArray[Any]], count: int, *, noun: str = "hops") -> list[NDArray[Any]]:
    """Return read-only views of the ``count`` drawn arrays of a batch, or of the relations in one hop of it. Pure.

    Raises
    ------
    ShapeError
        There is not one for each, or one is no contiguous array of int32 or int64.
    """
    if len(drawn) != count:
        raise ShapeError(
            f"{len(drawn)} drawn arrays for a batch of {count} {noun}; pass one for each {noun[:-1]}"
        )
    views = []
    for at, values in enumerate(drawn):
        if values.ndim != 1 or values.dtype not in (np.int32, np.int64) or not values.flags.c_contiguous:
            raise ShapeError(
                f"the drawn array of {noun[:-1]} {at} has shape {values.shape} and dtype {values.dtype}; it must be "
                "contiguous, of one dimension, and int32 or int64"
            )
        # Read-only as the edges of a graph in memory are, so that kernels are compiled for one kind of array.
        view = values.view()
        view.flags.writeable = False
        views.append(view)
    return views


def find_places(
    nodes: IdArray,
    degrees: IdArray,
    indptr: LocalArray,
    edge_ids: IdArray,
    *,
    fanout: int,
    replace: bool,
) -> tuple[IdArray, int]:
    """Return where the edges of a hop stand among its distinct edges by position, and the number of these. Pure.

    Parameters
    ----------
    nodes, degrees : (D,) the destinations of the hop, in the order of the batch, and their in-degrees
    indptr : (D + 1,) where the edges of each begin
    edge_ids : (K,) positions in the graph, with `SLACK` more
    fanout, replace : of the hop

    Returns
    -------
    tuple
        (K,) places, and the number of distinct edges.
    """
    counts = np.diff(indptr).astype(np.int64)
    ranks, ordered = np.empty(SLACK, dtype=np.int64), np.empty(max(fanout, 0), dtype=np.int64)
    if replace:
        distinct_kernels.count_picks(edge_ids, indptr, degrees, fanout, ranks, ordered, counts)
    # Of ascending nodes the lists ascend, too.
    order = np.argsort(nodes)
    ends = np.cumsum(counts[order])
    begins = np.empty_like(counts)
    begins[order] = ends - counts[order]
    places = np.empty(int(indptr[-1]) + SLACK, dtype=np.int64)
    distinct_kernels.place_picks(edge_ids, indptr, degrees, fanout, replace, begins, ranks, ordered, places)
    return places[: indptr[-1]], int(ends[-1]) if len(ends) else 0
