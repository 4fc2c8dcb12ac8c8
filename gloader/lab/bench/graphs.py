"""Synthetic topologies with realistic skew, made in memory. Equal arguments make equal graphs.

The benchmarks sample these graphs. Skew means that a few nodes have very many edges, as in real graphs. Random numbers
are hashes of the edge's number, so an edge can be drawn again. `synthetic_graph` makes two passes over all edges: the
first counts each node's in-edges, the second draws the edges again and writes them into the CSC arrays. So no list of
edges is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from gloader.core.hashing import mix64
from gloader.core.kernels import njit
from gloader.errors import ConfigError
from gloader.samplers import CscGraph
from gloader.samplers.rng import layer_key, to_int, unit, word

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

GraphKind = Literal["rmat", "powerlaw"]
_SKEW = 3.0  # powerlaw: node floor(N u**3), so the k-th most frequent node has a share of about k**(-2/3)
# R-MAT: the cumulative chances of the adjacency matrix's four quadrants (.57, .19, .19, .05), in 1/65536.
_A, _AB, _ABC = np.uint64(37356), np.uint64(49807), np.uint64(62259)
_LOW_16, _SIXTEEN = np.uint64(0xFFFF), np.uint64(16)  # mask of a 16-bit random number, and its number of bits


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """A benchmark's graph, as the numbers that generate it."""

    kind: GraphKind = "rmat"
    num_nodes: int
    num_edges: int
    seed: int = 0  # key for the graph and its samples

    def make(self) -> CscGraph:
        """Return the graph; see `synthetic_graph`."""
        return synthetic_graph(self.kind, num_nodes=self.num_nodes, num_edges=self.num_edges, seed=self.seed)

    def to_json(self) -> dict[str, str | int]:
        """Return the numbers under their report names."""
        return {
            "graph": self.kind,
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            "seed": self.seed,
        }


def synthetic_graph(kind: GraphKind, *, num_nodes: int, num_edges: int, seed: int = 0) -> CscGraph:
    """Return a directed graph with parallel edges and self loops. Node ids have no order by degree. Pure.

    "rmat" is Graph500's R-MAT (Chakrabarti et al., SDM'04); "powerlaw" draws both ends of an edge from one
    heavy-tailed distribution.

    Parameters
    ----------
    kind : "rmat" or "powerlaw"
    num_nodes : 1 to 2**31 - 1
    num_edges : number of edges, with parallel edges
    seed : key for the random numbers

    Raises
    ------
    ConfigError
        The kind is unknown, or there are edges and no nodes.
    """
    if kind not in ("rmat", "powerlaw"):
        raise ConfigError(f"graph is {kind!r}; it must be 'rmat' or 'powerlaw'")
    if num_nodes < 1 or num_nodes >= 2**31 or num_edges < 0:
        raise ConfigError(
            f"a graph of {num_nodes} nodes and {num_edges} edges cannot be made; nodes: 1 to 2**31 - 1"
        )
    key = layer_key(seed, 0, 0, 0)
    levels = max((num_nodes - 1).bit_length(), 1) if kind == "rmat" else 0
    # Without numba's compilation, numpy would warn of the hashes' wrap-around.
    with np.errstate(over="ignore"):
        # (N,) a random permutation, by which nodes are renamed: otherwise small ids would have most edges.
        names = np.argsort(_hashes(layer_key(seed, 0, 0, 1), num_nodes)).astype(np.int32)
        indptr = np.zeros(num_nodes + 1, dtype=np.int64)
        _count(key, levels, num_edges, names, indptr)
        np.cumsum(indptr, out=indptr)
        indices = np.empty(num_edges, dtype=np.int32)
        _fill(key, levels, num_edges, names, indptr[:-1].copy(), indices)
    return CscGraph(indptr=indptr, indices=indices, validate=False)


@njit(cache=True, nogil=True)
def _hashes(key: np.uint64, count: int) -> NDArray[np.uint64]:
    """Return (count,) random numbers, the hashes of 0, 1, ... with ``key``."""
    hashes = np.empty(count, dtype=np.uint64)
    for i in range(count):
        hashes[i] = word(key, np.uint64(i))
    return hashes


@njit(cache=True, nogil=True)
def _edge(key: np.uint64, levels: int, edge: int, num_nodes: int) -> tuple[int, int]:
    """Return an edge's source and destination, before the nodes are renamed. Pure.

    For R-MAT (``levels`` above 0), each level picks a quadrant by 16 random bits, which gives one bit of both ids. An
    edge with an id of N or more is drawn again.
    """
    edge_key = mix64(key ^ np.uint64(edge))
    if levels == 0:
        return (
            min(int(num_nodes * unit(edge_key, 0) ** _SKEW), num_nodes - 1),
            min(int(num_nodes * unit(edge_key, 1) ** _SKEW), num_nodes - 1),
        )
    draw = 0
    while True:
        source, destination = 0, 0
        bits = np.uint64(0)
        for level in range(levels):
            if level & 3 == 0:  # a hash of 64 bits serves four levels
                bits = word(edge_key, np.uint64(draw))
                draw += 1
            part = bits & _LOW_16
            bits >>= _SIXTEEN
            source = 2 * source + to_int(part >= _AB)
            destination = 2 * destination + to_int((part >= _A and part < _AB) or part >= _ABC)
        if source < num_nodes and destination < num_nodes:
            return source, destination


@njit(cache=True, nogil=True)
def _count(key: np.uint64, levels: int, num_edges: int, names: NDArray[np.int32], indptr: IdArray) -> None:
    """Count each node's in-edges in ``indptr`` (N+1,), one place to the right. ``names`` (N,) renames the nodes."""
    for edge in range(num_edges):
        indptr[names[_edge(key, levels, edge, names.shape[0])[1]] + 1] += 1


@njit(cache=True, nogil=True)
def _fill(
    key: np.uint64,
    levels: int,
    num_edges: int,
    names: NDArray[np.int32],
    cursor: IdArray,
    indices: NDArray[np.int32],
) -> None:
    """Write the edges' sources into ``indices`` (E,). ``cursor`` (N,) is each node's next free position."""
    for edge in range(num_edges):
        source, destination = _edge(key, levels, edge, names.shape[0])
        row = names[destination]
        indices[cursor[row]] = names[source]
        cursor[row] += 1
