"""Generators for synthetic graphs: random draws, features, community graphs and R-MAT graphs.

`opener` calls the functions without a leading underscore. The kernels below them fill the arrays. A *draw* is a random
number: the hash of a key and the draw's number. No state is kept, so any part of a graph can be made separately. A
feature row is the *centre* of the node's class or traits, a fixed row (F,), plus strong noise.

Community graphs are degree-corrected (Karrer and Newman, Phys. Rev. E 83, 2011). A node's *position* is its id before
ids are shuffled. Community c has the positions ``starts[c] ... starts[c + 1] - 1``, by descending expected degree. An
edge and its reverse are a *pair*. For each pair, a community is drawn in proportion to its size, and a node in it in
proportion to its expected degree. Another draw decides if the pair's other end is in the same community. If not,
another community is drawn. Then the other end is drawn like the first.

In an R-MAT graph, each node has a few binary *traits*. Features depend on the node's traits, and the label on its
in-neighbours' traits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.source import EdgeChunk, EdgeStream, FeatureStream
from gloader.core.hashing import GOLDEN, mix64, mix_int
from gloader.core.kernels import njit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gloader.convert.sources.synthetic.spec import CommunitySpec, RmatSpec
    from gloader.types import IdArray


# In the kernels, all operands of a hash are uint64: numba would make a float64 of a uint64 and an int64.
U64 = np.uint64
_ONE = U64(1)
_S11 = U64(11)  # 64 - 53: the bits that do not fit a float64
_TO_UNIT = 2.0**-53  # factor from 53-bit integers to [0, 1)


@njit(cache=True, nogil=True)
def draw(key: np.uint64, index: np.uint64) -> np.uint64:
    """Return draw number ``index`` of ``key``."""
    return mix64(key + (index + _ONE) * GOLDEN)


@njit(cache=True, nogil=True)
def to_unit(bits: np.uint64) -> float:
    """Return 64 random bits as a float64 in [0, 1)."""
    return np.float64(bits >> _S11) * _TO_UNIT


@njit(cache=True, nogil=True)
def permute(x: np.uint64, size: np.uint64, perm: NDArray[np.uint64]) -> np.uint64:
    """Return the image of ``x`` under the permutation ``perm`` of [0, size).

    Each pass of the loop is a bijection of [0, 2**bits), where 2**bits is at least ``size``. A result of ``size`` or
    more takes further passes, until it is in range (Black and Rogaway, CT-RSA'02). So no table with N entries is
    needed. ``perm`` (6,) is from `make_permutation`: the mask 2**bits - 1, the shift, an offset and three odd factors.
    """
    mask, shift = perm[0], perm[1]
    while True:
        x = ((x + perm[2]) * perm[3]) & mask
        x ^= x >> shift
        x = (x * perm[4]) & mask
        x ^= x >> shift
        x = (x * perm[5]) & mask
        x ^= x >> shift
        if x < size:
            return x


@njit(cache=True, nogil=True)
def _permute_range(
    first: np.uint64, size: np.uint64, perm: NDArray[np.uint64], out: NDArray[np.int64]
) -> None:
    """Write the images of ``first``, ``first + 1``, ... to ``out`` (n,)."""
    for i in range(out.shape[0]):
        out[i] = np.int64(permute(first + U64(i), size, perm))


def make_key(seed: int, purpose: str) -> np.uint64:
    """Return the key for the draws of one ``purpose``, such as "features". Other purposes have other keys. Pure."""
    # The length is hashed too, because two purposes may share their first eight letters.
    state = int.from_bytes(purpose.encode()[:8].ljust(8, b"\0"), "little")
    for word in (seed, len(purpose)):
        state = mix_int(state ^ mix_int((word + int(GOLDEN)) % 2**64))
    return U64(state)


def make_permutation(size: int, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return the constants of a permutation for `permute`. Pure.

    Parameters
    ----------
    size : length of the permuted range [0, size)
    seed : the graph's seed
    purpose : the permutation's name within the graph, such as "ids"
    """
    # A multiplication modulo 2**bits is a bijection only if the factor is odd.
    bits = max(1, (size - 1).bit_length())
    key = int(make_key(seed, purpose))
    odd = [mix_int((key + j) % 2**64) | 1 for j in range(3)]
    return np.array([(1 << bits) - 1, max(1, (bits + 1) // 2), key, *odd], dtype=np.uint64)


def permute_range(start: int, stop: int, size: int, perm: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the image of a range of numbers under a permutation. Pure.

    Parameters
    ----------
    start, stop : the numbers ``start`` ... ``stop - 1``
    size : length of the permuted range [0, size), and the largest valid ``stop``
    perm : (6,) constants from `make_permutation`

    Returns
    -------
    (stop - start,) numbers in [0, size)
    """
    out = np.empty(stop - start, np.int64)
    # Hashes overflow by design. Compiled kernels do not check for overflow. Interpreted kernels, in tests, would warn.
    with np.errstate(over="ignore"):
        _permute_range(U64(start), U64(size), perm, out)
    return out


# Mask and shifts that cut a 64-bit draw into four 16-bit numbers.
_LOW = U64(0xFFFF)
_S16, _S32, _S48 = U64(16), U64(32), U64(48)
# The mean of a sum of four uniform 16-bit numbers, and the inverse of the sum's standard deviation.
_NOISE_MEAN = 2 * 65535
_NOISE_SCALE = np.float32(1.0 / np.sqrt((65536.0**2 - 1.0) / 3.0))


def synthetic_features(codes: IdArray, centers: NDArray[np.float32], *, seed: int) -> FeatureStream:
    """Return float32 rows. Row n is ``centers[codes[n]]`` plus noise with mean 0 and deviation 1. Pure.

    Parameters
    ----------
    codes : (N,) each node's row in ``centers``: its class, or its traits as one number
    centers : (K, F) centres of the feature rows
    seed : the graph's seed
    """
    key = make_key(seed, "features")

    def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
        for first in range(0, len(codes), max_rows):
            yield _make_rows(first, codes[first : first + max_rows], centers, key)

    return FeatureStream(chunks=chunks, num_rows=len(codes), dim=centers.shape[1], dtype=centers.dtype)


def class_centers(num_classes: int, dim: int, *, signal: float, seed: int) -> NDArray[np.float32]:
    """Return the centre (K, F) of each class. Its direction is random. Pure.

    Parameters
    ----------
    num_classes, dim : K and F
    signal : length of every centre; a feature's noise has deviation 1
    seed : the graph's seed
    """
    return (signal * _directions(num_classes, dim, seed)).astype(np.float32)


def trait_centers(num_traits: int, dim: int, *, signal: float, seed: int) -> NDArray[np.float32]:
    """Return the centre (2**num_traits, F) of each combination of traits. Pure.

    Each trait adds or subtracts its own direction.

    Parameters
    ----------
    num_traits, dim : number of binary traits, and F
    signal : approximate length of a centre; a feature's noise has deviation 1
    seed : the graph's seed
    """
    bits = (np.arange(1 << num_traits)[:, None] >> np.arange(num_traits)) & 1
    directions = _directions(num_traits, dim, seed) * (signal / np.sqrt(num_traits))
    centers = np.zeros((1 << num_traits, dim))
    # A matrix product would add in an order that differs between machines.
    for trait in range(num_traits):
        centers += (2.0 * bits[:, trait, None] - 1.0) * directions[trait]
    return centers.astype(np.float32)


def _directions(count: int, dim: int, seed: int) -> NDArray[np.float64]:
    """Return random directions (count, F) of length 1."""
    zeros = np.zeros((1, dim), np.float32)
    rows = _make_rows(0, np.zeros(count, np.int64), zeros, make_key(seed, "centers")).astype(np.float64)
    # Exact sums are the same on every machine.
    lengths = np.array([math.sqrt(math.fsum(row * row)) for row in rows])
    return rows / np.maximum(lengths[:, None], 1e-12)


def _make_rows(
    first: int, codes: IdArray, centers: NDArray[np.float32], key: np.uint64
) -> NDArray[np.float32]:
    """Return the feature rows (n, F) of nodes ``first``, ``first + 1``, ..., which have the centres ``codes``."""
    out = np.empty((codes.shape[0], centers.shape[1]), np.float32)
    with np.errstate(over="ignore"):
        _fill_rows(first, codes, centers, key, out)
    return out


@njit(cache=True, nogil=True)
def _fill_rows(
    first: int,
    codes: NDArray[np.int64],
    centers: NDArray[np.float32],
    key: np.uint64,
    out: NDArray[np.float32],
) -> None:
    """Write the rows of nodes ``first``, ``first + 1``, ... to ``out`` (n, F): their centres plus noise."""
    for i in range(out.shape[0]):
        node_key = draw(key, U64(first + i))
        center = centers[codes[i]]
        for f in range(out.shape[1]):
            bits = draw(node_key, U64(f))
            # The sum of four 16-bit uniform numbers is close to a normal variable, and exact on every machine.
            total = (bits & _LOW) + ((bits >> _S16) & _LOW) + ((bits >> _S32) & _LOW) + (bits >> _S48)
            out[i, f] = center[f] + np.float32(np.int64(total) - _NOISE_MEAN) * _NOISE_SCALE


# Number of intervals of the inverse degree distribution (`degree_quantiles`), which is linear within each interval.
_NUM_KNOTS = 4096
# Draws reserved for each pair. Five are used. Another value would change all graphs.
_DRAWS = U64(8)


def _made_edges(num_edges: int, fill: Callable[[int, IdArray, IdArray], None]) -> EdgeStream:
    """Return the stream of edges. ``fill(first, src, dst)`` writes the ends of the edges from ``first`` on. Pure."""

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        for first in range(0, num_edges, max_edges):
            count = min(max_edges, num_edges - first)
            src, dst = np.empty(count, np.int64), np.empty(count, np.int64)
            with np.errstate(over="ignore"):
                fill(first, src, dst)
            yield EdgeChunk(src=src, dst=dst)

    return EdgeStream(chunks=chunks, num_edges=num_edges)


def community_edges(spec: CommunitySpec) -> EdgeStream:
    """Return the edges of a community graph. Edges 2p and 2p + 1 are the two directions of pair p. Pure."""
    starts = community_starts(spec)  # (communities + 1,) first position of each community
    # (_NUM_KNOTS + 1,) a node's relative position in its community, by quantile.
    quantiles = degree_quantiles(
        exponent=spec.exponent, max_ratio=(spec.nodes**2 / max(spec.edges, spec.nodes)) ** 0.5
    )
    key, permutation = make_key(spec.seed, "edges"), make_permutation(spec.nodes, spec.seed, "ids")
    return _made_edges(
        spec.edges,
        lambda first, src, dst: _fill_community_edges(
            first, starts, quantiles, spec.homophily, key, permutation, src, dst
        ),
    )


def community_starts(spec: CommunitySpec) -> IdArray:
    """Return each community's first position, then N. Sizes are random, and differ by up to a factor of 3. Pure."""
    count = spec.num_communities
    key = make_key(spec.seed, "sizes")
    with np.errstate(over="ignore"):
        weights = np.array([0.5 + to_unit(U64(draw(key, U64(c)))) for c in range(count)])
    ends = np.floor(np.cumsum(weights) / np.cumsum(weights)[-1] * (spec.nodes - count)).astype(np.int64)
    starts = np.zeros(count + 1, np.int64)
    # ``ends`` divide N - count nodes in proportion to the weights. Each community gets one node more, so none is empty.
    starts[1:] = ends + np.arange(1, count + 1)
    starts[-1] = spec.nodes
    return starts


def degree_quantiles(*, exponent: float, max_ratio: float) -> NDArray[np.float64]:
    """Return the inverse distribution function (_NUM_KNOTS + 1,) of edge ends over a community. Pure.

    Relative positions x in [0, 1) are by descending degree. The share i / _NUM_KNOTS of the edge ends is below entry i.
    Expected degrees follow a power law with ``exponent``: the node at x has weight (x + s) ** -(1 / (exponent - 1)).
    The shift s limits the largest degree to ``max_ratio`` times the mean. The caller passes the structural cut-off
    sqrt(N / mean degree). With larger degrees, hubs would share many parallel edges.
    """
    slope = 1.0 - 1.0 / (exponent - 1.0)  # in (0, 1)

    def ratio(shift: float) -> float:
        """Return the largest expected degree divided by the mean, for a shift s."""
        return float(shift ** (slope - 1.0) * slope / ((1.0 + shift) ** slope - shift**slope))

    low, high = -60.0, 10.0  # bounds of log2(shift); the ratio falls from thousands to 1
    for _ in range(60):  # each bisection halves the interval; 60 exhaust a float64
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(2.0**middle) > max_ratio else (low, middle)
    shift = 2.0**high
    u = np.linspace(0.0, 1.0, _NUM_KNOTS + 1)
    # The integral of the weights from 0 to x, divided by the integral to 1, is solved for x.
    x = (u * ((1.0 + shift) ** slope - shift**slope) + shift**slope) ** (1.0 / slope) - shift
    # Two machines' `pow` may differ in the last digit. Rounding keeps such a difference from moving an edge.
    return np.round(np.clip(x, 0.0, 1.0) * 2.0**40) / 2.0**40


def community_classes(spec: CommunitySpec) -> IdArray:
    """Return every node's class (N,): its community modulo the number of classes. Pure."""
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
    """Write each node's class to ``out`` (N,)."""
    size = U64(out.shape[0])
    for c in range(starts.shape[0] - 1):
        for position in range(starts[c], starts[c + 1]):
            out[np.int64(permute(U64(position), size, perm))] = c % classes


@njit(cache=True, nogil=True)
def _community_of(position: int, starts: NDArray[np.int64]) -> int:
    """Return the community with a position, by binary search."""
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
    """Return one of the ``size`` positions from ``first`` on, in proportion to expected degree.

    ``u`` in [0, 1) is the draw, and ``quantiles`` is from `degree_quantiles`.
    """
    scaled = u * (quantiles.shape[0] - 1)
    knot = np.int64(scaled)
    x = quantiles[knot] + (scaled - knot) * (quantiles[knot + 1] - quantiles[knot])
    offset = np.int64(x * size)
    return int(first + (offset if offset < size else size - 1))


@njit(cache=True, nogil=True)
def _fill_community_edges(
    first: int,
    starts: NDArray[np.int64],
    quantiles: NDArray[np.float64],
    homophily: float,
    key: np.uint64,
    perm: NDArray[np.uint64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
) -> None:
    """Write the edges ``first``, ``first + 1``, ... of a community graph.

    Each pair has its own draws, from ``first_draw`` on. They choose a community, a node in it, whether the other end is
    in the same community, perhaps another community, and the other node.
    """
    count, total = src.shape[0], starts[-1]
    num_nodes = U64(total)
    for pair in range(first >> 1, (first + count + 1) >> 1):
        first_draw = U64(pair) * _DRAWS
        community = _community_of(np.int64(to_unit(draw(key, first_draw)) * total), starts)
        size = starts[community + 1] - starts[community]
        u = _pick(to_unit(draw(key, first_draw + U64(1))), starts[community], size, quantiles)
        if to_unit(draw(key, first_draw + U64(2))) >= homophily and size < total:
            # The other end is outside the community. A uniform position draws its community by size.
            away = np.int64(to_unit(draw(key, first_draw + U64(3))) * (total - size))
            if away >= starts[community]:
                away += size
            community = _community_of(away, starts)
            size = starts[community + 1] - starts[community]
        v = _pick(to_unit(draw(key, first_draw + U64(4))), starts[community], size, quantiles)
        # There are no self loops, unless the graph has only one node.
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


# Each level of an R-MAT edge takes 16 bits of a draw. A level chooses a quadrant; see `_fill_rmat_edges`.
_LEVEL_MASK, _LEVEL_BITS = U64(0xFFFF), U64(16)
# Maximum attempts to draw a pair of ids in [0, N). At least a quarter of the matrix is in range, so few are needed.
_MAX_ATTEMPTS = 64
# Edges per chunk while labels are counted.
_LABEL_CHUNK = 1 << 20


def rmat_edges(spec: RmatSpec) -> EdgeStream:
    """Return the edges of an R-MAT graph. Pure.

    Ids are shuffled, as in Graph500. Parallel edges and self loops occur.
    """
    # (3,) the sums a, a + b and a + b + c, in units of 2**-16.
    thresholds = np.round(np.cumsum([spec.a, spec.b, spec.c]) * 2**16).astype(np.int64)
    key, permutation = make_key(spec.seed, "edges"), make_permutation(spec.nodes, spec.seed, "ids")
    return _made_edges(
        spec.edges,
        lambda first, src, dst: _fill_rmat_edges(
            first, U64(spec.nodes), thresholds, key, permutation, src, dst
        ),
    )


def num_traits(num_classes: int) -> int:
    """Return the number of binary traits that distinguish ``num_classes`` classes. Pure."""
    return max(1, (num_classes - 1).bit_length())


def node_traits(spec: RmatSpec) -> IdArray:
    """Return every node's traits (N,) as a number with one random bit per trait. Pure."""
    traits = np.empty(spec.nodes, np.int64)
    with np.errstate(over="ignore"):
        _fill_traits(U64((1 << num_traits(spec.classes)) - 1), make_key(spec.seed, "traits"), traits)
    return traits


def rmat_labels(spec: RmatSpec, edges: EdgeStream, traits: IdArray) -> IdArray:
    """Return every node's label (N,), made of one bit per trait.

    A bit is the trait's majority over the node's in-edges, or the node's own trait in a tie. The edges are read once.
    The votes take 4 N ceil(log2(classes)) bytes.

    Parameters
    ----------
    spec : the graph's spec
    edges : the graph's edges
    traits : (N,) each node's binary traits, one bit each
    """
    votes = np.zeros((spec.nodes, num_traits(spec.classes)), np.int32)
    for chunk in edges.chunks(_LABEL_CHUNK):
        _add_votes(chunk.src, chunk.dst, traits, votes)
    labels = np.empty(spec.nodes, np.int64)
    _count_votes(votes, traits, spec.classes, labels)
    return labels


@njit(cache=True, nogil=True)
def _fill_traits(mask: np.uint64, key: np.uint64, out: NDArray[np.int64]) -> None:
    """Write each node's random traits to ``out`` (N,). ``mask`` has a bit per trait."""
    for i in range(out.shape[0]):
        out[i] = np.int64(draw(key, U64(i)) & mask)


@njit(cache=True, nogil=True)
def _add_votes(
    src: NDArray[np.int64], dst: NDArray[np.int64], traits: NDArray[np.int64], votes: NDArray[np.int32]
) -> None:
    """Add each edge's vote to ``votes`` (N, traits): +1 for a trait of the source, -1 for a trait it lacks."""
    for i in range(src.shape[0]):
        bits, node = traits[src[i]], dst[i]
        for j in range(votes.shape[1]):
            votes[node, j] += 2 * ((bits >> j) & 1) - 1


@njit(cache=True, nogil=True)
def _count_votes(
    votes: NDArray[np.int32], traits: NDArray[np.int64], classes: int, out: NDArray[np.int64]
) -> None:
    """Write each node's label to ``out`` (N,): the sign of its votes per trait. In a tie, its own trait decides."""
    for i in range(out.shape[0]):
        label = 0
        for j in range(votes.shape[1]):
            bit = (traits[i] >> j) & 1
            if votes[i, j] != 0:
                bit = 1 if votes[i, j] > 0 else 0
            label |= bit << j
        # k traits give 2**k labels, which may be more than the classes.
        out[i] = label % classes


@njit(cache=True, nogil=True)
def _fill_rmat_edges(
    first: int,
    num_nodes: np.uint64,
    thresholds: NDArray[np.int64],
    key: np.uint64,
    perm: NDArray[np.uint64],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
) -> None:
    """Write the edges ``first``, ``first + 1``, ... of an R-MAT graph.

    The adjacency matrix is divided into four quadrants, with the probabilities a, b, c and d. Each level draws a
    quadrant, which is divided again. It gives one bit of the source u and one bit of the destination v.
    """
    total = np.int64(num_nodes)
    a, ab, abc = thresholds[0], thresholds[1], thresholds[2]
    scale = 0
    while (1 << scale) < total:
        scale += 1
    for i in range(src.shape[0]):
        state = draw(key, U64(first + i))
        u, v = 0, 0
        # The matrix has 2**scale rows and columns. A pair outside [0, N) is redrawn.
        for _ in range(_MAX_ATTEMPTS):
            u, v, bits = 0, 0, U64(0)
            for level in range(scale):
                # One 64-bit draw decides four levels, 16 bits each.
                if level & 3 == 0:
                    state += GOLDEN
                    bits = mix64(state)
                part = np.int64(bits & _LEVEL_MASK)
                bits >>= _LEVEL_BITS
                # The source's bit is 1 in the quadrants c and d, and the destination's bit is 1 in b and d.
                u = 2 * u + (part >= ab)
                v = 2 * v + ((part >= a) ^ (part >= ab) ^ (part >= abc))
            if u < total and v < total:
                break
        src[i] = np.int64(permute(U64(u % total), num_nodes, perm))
        dst[i] = np.int64(permute(U64(v % total), num_nodes, perm))
