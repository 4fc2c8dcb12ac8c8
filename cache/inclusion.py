"""The probability of each node to be in a batch, computed from the graph alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from gloader.core.offsets import Offsets, degrees_between, offset_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

_TINY: Final = 1e-300  # stands for zero in logarithms
_OWN: Final = np.empty(0, dtype=np.int64)  # in place of degrees: those of the relation itself


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationEdges:
    """The edges of a relation, and how many of them a node draws in each hop."""

    source: int  # number of the type
    destination: int
    offsets: Offsets  # where the in-neighbours of each destination begin
    pieces: Callable[[], Iterable[NDArray[np.integer]]]  # all of them in order; called once for each hop
    fanouts: Sequence[int]  # hop next to the seeds first; -1 takes all neighbours


def inclusion_probabilities(
    offsets: Offsets,
    pieces: Callable[[], Iterable[NDArray[np.integer]]],
    *,
    seeds: IdArray,
    batch_size: int,
    fanouts: Sequence[int],
) -> NDArray[np.float64]:
    """Return the probability of each node to be in a batch, from the graph alone. O(E L). Pure.

    Vertex inclusion probability analysis (Kaler et al., "SALIENT++", MLSys'23, section 4): a node is reached
    from u with probability min(1, f / deg(u)) if u is in the batch, the in-edges being taken as independent.
    As in `NeighborSampler.sample`, every node of the batch so far samples again in each hop.

    Parameters
    ----------
    offsets : where the in-neighbours of each node begin
    pieces : gives all E in-neighbours in order, in pieces; called once for each hop
    seeds : (n,) distinct ids of the nodes that batches are made of
    batch_size : B, seeds in a batch
    fanouts : hop next to the seeds first; -1 takes all neighbours

    Returns
    -------
    (N,) float64 in [0, 1]
    """
    edges = RelationEdges(source=0, destination=0, offsets=offsets, pieces=pieces, fanouts=fanouts)
    (found,) = inclusion_by_type([len(offsets.low) - 1], [edges], seeds=[seeds], batch_size=batch_size)
    return found


def inclusion_by_type(
    num_nodes: Sequence[int],
    relations: Sequence[RelationEdges],
    *,
    seeds: Sequence[IdArray],
    batch_size: int,
    is_collective: bool = False,
) -> tuple[NDArray[np.float64], ...]:
    """Return the probability of each node of each type to be in a batch, as `inclusion_probabilities` does. Pure.

    Parameters
    ----------
    num_nodes : N of each type
    relations : their edges
    seeds : (n,) distinct ids of each type, which batches are made of
    batch_size : B, seeds of all types in a batch
    is_collective : a node draws among its in-edges of all relations together

    Returns
    -------
    (N,) float64 in [0, 1] of each type
    """
    absent = [np.ones(count, dtype=np.float64) for count in num_nodes]
    for mine, ids in zip(absent, seeds, strict=True):
        mine[ids] = 1 - min(batch_size / max(sum(map(len, seeds)), 1), 1.0)
    degrees = _degrees_of_all(num_nodes, relations) if is_collective else [_OWN] * len(num_nodes)
    for hop in range(max((len(edges.fanouts) for edges in relations), default=0)):
        # To be absent is not to be drawn along any out-edge: a product over these, summed up as logarithms.
        logarithms = [np.log(np.maximum(mine, _TINY)) for mine in absent]
        for edges in relations:
            node = first = 0
            for piece in edges.pieces():
                node = _reach(
                    edges.offsets,
                    piece,
                    first,
                    node,
                    edges.fanouts[hop],
                    degrees[edges.destination],
                    absent[edges.destination],
                    logarithms[edges.source],
                )
                first += len(piece)
        absent = [np.exp(mine) for mine in logarithms]
    return tuple(1 - mine for mine in absent)


def _degrees_of_all(num_nodes: Sequence[int], relations: Sequence[RelationEdges]) -> list[IdArray]:
    """Return the in-degrees (N,) of each type, over all relations."""
    found = [np.zeros(count, dtype=np.int64) for count in num_nodes]
    for edges in relations:
        found[edges.destination] += degrees_between(edges.offsets, 0, num_nodes[edges.destination])
    return found


@njit(cache=True, nogil=True)
def _reach(
    offsets: Offsets,
    piece: NDArray[np.integer],
    first: int,
    node: int,
    fanout: int,
    degrees: IdArray,
    absent: NDArray[np.float64],
    log_absent: NDArray[np.float64],
) -> int:
    """Multiply the chance of each source to be absent by that of not being drawn in one hop, in logarithms.

    Of the edges from ``first`` on, which belong to ``node`` and those behind it; return the node to go on with. A node
    draws among ``degrees`` (N,) edges, or, if that is empty, among its own.
    """
    last = first + piece.shape[0]
    while node < offsets.low.shape[0] - 1:
        begin, end = offset_at(offsets, node), offset_at(offsets, node + 1)
        degree = end - begin if degrees.shape[0] == 0 else degrees[node]
        if degree > 0 and fanout != 0 and absent[node] < 1.0:
            share = 1.0 if fanout < 0 else min(1.0, fanout / degree)
            drawn = share * (1.0 - absent[node])
            missed = np.log(max(1.0 - drawn, _TINY))
            for edge in range(max(begin, first), min(end, last)):
                log_absent[piece[edge - first]] += missed
        # The rest of its edges is in the next piece.
        if end > last:
            break
        node += 1
    return node
