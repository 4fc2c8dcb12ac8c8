"""Degree-corrected community graph, edge by edge.

Before ids are shuffled, community c owns the positions ``starts[c] ... starts[c + 1] - 1``, the nodes of
highest expected degree first. Edge pair p draws a community by size, a node in it by expected degree, whether
to stay inside, and the other end likewise (Karrer and Newman, Phys. Rev. E 83, 2011).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.convert.source import EdgeChunk
from gloader.convert.sources.synthetic.draws import U64, draw, make_key, make_permutation, permute, to_unit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.sources.synthetic.spec import CommunitySpec
    from gloader.types import IdArray

# Knots of the inverse degree distribution, which is linear between them.
_NUM_KNOTS = 4096
# Numbers of draws set aside for one pair of edges, of which five are used; with more, graphs would change.
_DRAWS = U64(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunityEdges:
    """The edge stream: entries 2p and 2p + 1 are the two directions of pair p."""

    num_edges: int
    num_nodes: int
    starts: IdArray  # (communities + 1,) first position of each community
    quantiles: NDArray[np.float64]  # (_NUM_KNOTS + 1,) where in its community a node of quantile u stands
    homophily: float
    key: np.uint64
    permutation: NDArray[np.uint64]

    @property
    def has_weights(self) -> bool:
        """Synthetic edges carry none."""
        return False

    @property
    def has_times(self) -> bool:
        """Synthetic edges carry none."""
        return False

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in order, at most ``max_edges`` at a time."""
        for first in range(0, self.num_edges, max_edges):
            count = min(max_edges, self.num_edges - first)
            src, dst = np.empty(count, np.int64), np.empty(count, np.int64)
            with np.errstate(over="ignore"):
                _fill_edges(
                    first,
                    self.starts,
                    self.quantiles,
                    self.homophily,
                    self.key,
                    self.permutation,
                    src,
                    dst,
                )
            yield EdgeChunk(src=src, dst=dst, weight=None)


def plan_community(spec: CommunitySpec) -> CommunityEdges:
    """Return the edge stream of ``spec``. Pure."""
    return CommunityEdges(
        num_edges=spec.edges,
        num_nodes=spec.nodes,
        starts=community_starts(spec),
        quantiles=degree_quantiles(
            exponent=spec.exponent, max_ratio=(spec.nodes**2 / max(spec.edges, spec.nodes)) ** 0.5
        ),
        homophily=spec.homophily,
        key=make_key(spec.seed, "edges"),
        permutation=make_permutation(spec.nodes, spec.seed, "ids"),
    )


def community_starts(spec: CommunitySpec) -> IdArray:
    """Return the first position of each community and N: sizes differ by up to a factor of 3. Pure."""
    count = spec.num_communities
    key = make_key(spec.seed, "sizes")
    with np.errstate(over="ignore"):
        weights = np.array([0.5 + to_unit(U64(draw(key, U64(c)))) for c in range(count)])
    ends = np.floor(np.cumsum(weights) / np.cumsum(weights)[-1] * (spec.nodes - count)).astype(np.int64)
    starts = np.zeros(count + 1, np.int64)
    starts[1:] = ends + np.arange(1, count + 1)  # at least one node each
    starts[-1] = spec.nodes
    return starts


def degree_quantiles(*, exponent: float, max_ratio: float) -> NDArray[np.float64]:
    """Return the inverse distribution of edge ends over a community, highest degree first. Pure.

    Expected degrees follow a power law of ``exponent``: the node at x in [0, 1) has weight
    (x + s) ** -(1 / (exponent - 1)), where s keeps the largest at ``max_ratio`` times the mean. That ratio
    is the structural cut-off sqrt(N / mean degree), beyond which hubs would be joined over and over.
    """
    slope = 1.0 - 1.0 / (exponent - 1.0)  # in (0, 1)

    def ratio(shift: float) -> float:
        return float(shift ** (slope - 1.0) * slope / ((1.0 + shift) ** slope - shift**slope))

    low, high = -60.0, 10.0  # of log2(shift); the ratio falls from thousands to 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(2.0**middle) > max_ratio else (low, middle)
    shift = 2.0**high
    u = np.linspace(0.0, 1.0, _NUM_KNOTS + 1)
    x = (u * ((1.0 + shift) ** slope - shift**slope) + shift**slope) ** (1.0 / slope) - shift
    # Rounded, so that a last-digit difference between two machines' `pow` cannot move an edge.
    return np.round(np.clip(x, 0.0, 1.0) * 2.0**40) / 2.0**40


def community_classes(spec: CommunitySpec) -> IdArray:
    """Return the class of every node (N,): its community modulo the number of classes. Pure."""
    labels = np.empty(spec.nodes, np.int64)
    with np.errstate(over="ignore"):
        _fill_classes(
            community_starts(spec), spec.classes, make_permutation(spec.nodes, spec.seed, "ids"), labels
        )
    return labels


@njit(cache=True, nogil=True)
def _fill_classes(
    starts: NDArray[np.int64], classes: int, perm: NDArray[np.uint64], out: NDArray[np.int64]
) -> None:
    size = U64(out.shape[0])
    for c in range(starts.shape[0] - 1):
        for position in range(starts[c], starts[c + 1]):
            out[np.int64(permute(U64(position), size, perm))] = c % classes


@njit(cache=True, nogil=True)
def _community_of(position: int, starts: NDArray[np.int64]) -> int:
    low, high = 0, starts.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= position:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _pick(u: float, first: int, size: int, quantiles: NDArray[np.float64]) -> int:
    at = u * (quantiles.shape[0] - 1)
    knot = np.int64(at)
    x = quantiles[knot] + (at - knot) * (quantiles[knot + 1] - quantiles[knot])
    offset = np.int64(x * size)
    return int(first + (offset if offset < size else size - 1))


@njit(cache=True, nogil=True)
def _fill_edges(
    first: int,
    starts: NDArray[np.int64],
    quantiles: NDArray[np.float64],
    homophily: float,
    key: np.uint64,
    perm: NDArray[np.uint64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
) -> None:
    count, total = src.shape[0], starts[-1]
    num_nodes = U64(total)
    for pair in range(first >> 1, (first + count + 1) >> 1):
        at = U64(pair) * _DRAWS
        community = _community_of(np.int64(to_unit(draw(key, at)) * total), starts)
        size = starts[community + 1] - starts[community]
        u = _pick(to_unit(draw(key, at + U64(1))), starts[community], size, quantiles)
        if to_unit(draw(key, at + U64(2))) >= homophily and size < total:
            # A position outside the node's own community; its community is drawn by size.
            away = np.int64(to_unit(draw(key, at + U64(3))) * (total - size))
            if away >= starts[community]:
                away += size
            community = _community_of(away, starts)
            size = starts[community + 1] - starts[community]
        v = _pick(to_unit(draw(key, at + U64(4))), starts[community], size, quantiles)
        # No self loops, unless there is only one node.
        if u == v:
            v = (v + 1) % total
        a = np.int64(permute(U64(u), num_nodes, perm))
        b = np.int64(permute(U64(v), num_nodes, perm))
        # A chunk may begin with the second edge of a pair, and end with the first.
        k = 2 * pair - first
        if k >= 0:
            src[k], dst[k] = a, b
        if k + 1 < count:
            src[k + 1], dst[k + 1] = b, a
