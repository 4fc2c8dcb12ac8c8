"""R-MAT graph, edge by edge, and labels that depend on its neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.convert.source import EdgeChunk
from gloader.convert.sources.synthetic.draws import U64, draw, make_key, make_permutation, permute
from gloader.core.hashing import GOLDEN, mix64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.sources.synthetic.spec import RmatSpec
    from gloader.types import IdArray

_LEVEL_MASK, _LEVEL_BITS = U64(0xFFFF), U64(16)
# Draws of a pair until it lies in [0, N): a quarter or more of the square does, so that hardly any pair fails.
_MAX_ATTEMPTS = 64
# Edges read at a time while labels are counted.
_LABEL_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RmatEdges:
    """The edge stream. Ids are shuffled, as Graph500 does; parallel edges and self loops occur."""

    num_edges: int
    num_nodes: int
    thresholds: IdArray  # (3,) a, a + b, a + b + c in units of 2**-16
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
                _fill_edges(first, U64(self.num_nodes), self.thresholds, self.key, self.permutation, src, dst)
            yield EdgeChunk(src=src, dst=dst, weight=None)


def plan_rmat(spec: RmatSpec) -> RmatEdges:
    """Return the edge stream of ``spec``. Pure."""
    cumulated = np.cumsum([spec.a, spec.b, spec.c])
    return RmatEdges(
        num_edges=spec.edges,
        num_nodes=spec.nodes,
        thresholds=np.round(cumulated * 2**16).astype(np.int64),
        key=make_key(spec.seed, "edges"),
        permutation=make_permutation(spec.nodes, spec.seed, "ids"),
    )


def num_traits(num_classes: int) -> int:
    """Return how many binary traits tell ``num_classes`` classes apart. Pure."""
    return max(1, (num_classes - 1).bit_length())


def node_traits(spec: RmatSpec) -> IdArray:
    """Return the traits of every node (N,), one bit each. Pure."""
    traits = np.empty(spec.nodes, np.int64)
    with np.errstate(over="ignore"):
        _fill_traits(U64((1 << num_traits(spec.classes)) - 1), make_key(spec.seed, "traits"), traits)
    return traits


def rmat_labels(spec: RmatSpec, edges: RmatEdges, traits: IdArray) -> IdArray:
    """Return the label of every node (N,): the majority of each trait over its in-edges, its own on a tie.

    Reads the edges once and holds 4 N ceil(log2(classes)) bytes.

    Parameters
    ----------
    spec : of the graph
    edges : its stream
    traits : (N,) binary traits of each node, one bit each
    """
    votes = np.zeros((spec.nodes, num_traits(spec.classes)), np.int32)
    for chunk in edges.chunks(_LABEL_CHUNK):
        _add_votes(chunk.src, chunk.dst, traits, votes)
    labels = np.empty(spec.nodes, np.int64)
    _count_votes(votes, traits, spec.classes, labels)
    return labels


@njit(cache=True, nogil=True)
def _fill_traits(mask: np.uint64, key: np.uint64, out: NDArray[np.int64]) -> None:
    for i in range(out.shape[0]):
        out[i] = np.int64(draw(key, U64(i)) & mask)


@njit(cache=True, nogil=True)
def _add_votes(
    src: NDArray[np.int64], dst: NDArray[np.int64], traits: NDArray[np.int64], votes: NDArray[np.int32]
) -> None:
    for i in range(src.shape[0]):
        bits, to = traits[src[i]], dst[i]
        for j in range(votes.shape[1]):
            votes[to, j] += 2 * ((bits >> j) & 1) - 1


@njit(cache=True, nogil=True)
def _count_votes(
    votes: NDArray[np.int32], traits: NDArray[np.int64], classes: int, out: NDArray[np.int64]
) -> None:
    for i in range(out.shape[0]):
        label = 0
        for j in range(votes.shape[1]):
            bit = (traits[i] >> j) & 1
            if votes[i, j] != 0:
                bit = 1 if votes[i, j] > 0 else 0
            label |= bit << j
        # The traits tell 2**k labels apart, which may be more than there are classes.
        out[i] = label % classes


@njit(cache=True, nogil=True)
def _fill_edges(
    first: int,
    num_nodes: np.uint64,
    thresholds: NDArray[np.int64],
    key: np.uint64,
    perm: NDArray[np.uint64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
) -> None:
    total = np.int64(num_nodes)
    a, ab, abc = thresholds[0], thresholds[1], thresholds[2]
    scale = 0
    while (1 << scale) < total:
        scale += 1
    for i in range(src.shape[0]):
        state = draw(key, U64(first + i))
        u, v = 0, 0
        # The square has 2**scale nodes; a pair outside [0, N) is redrawn.
        for _ in range(_MAX_ATTEMPTS):
            u, v, bits = 0, 0, U64(0)
            for level in range(scale):
                # One 64-bit draw decides four levels, 16 bits each.
                if level & 3 == 0:
                    state += GOLDEN
                    bits = mix64(state)
                part = np.int64(bits & _LEVEL_MASK)
                bits >>= _LEVEL_BITS
                u = 2 * u + (part >= ab)
                v = 2 * v + ((part >= a) ^ (part >= ab) ^ (part >= abc))
            if u < total and v < total:
                break
        src[i] = np.int64(permute(U64(u % total), num_nodes, perm))
        dst[i] = np.int64(permute(U64(v % total), num_nodes, perm))
