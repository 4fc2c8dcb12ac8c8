"""Layer-wise importance sampling: a number of nodes per layer instead of a number of neighbours per node.

LADIES: Zou et al., "Layer-dependent importance sampling for training deep and large graph convolutional networks",
NeurIPS'19. FastGCN: Chen, Ma, Xiao, ICLR'18.

A layer is a hop. The adjacency matrix has destinations as rows and sources as columns. A source's norm is the sum of
the squared entries in its column; its chance to be taken grows with the norm. An edge's squared entry is 1 / d_dst**2
for a mean and 1 / ((d_dst + 1) (d_src + 1)) for GCN, with the in-degrees d. Kernels add up the entries without the
factor 1 / (d_src + 1). This factor is constant in a column, so each column's sum is multiplied by it at the end.

`LayerSampler` is the sampler, and `LayerPick` chooses one relation's edges in a hop. "ladies" chooses among the
candidates, the sources of in-edges in the hop; "fastgcn" chooses among all nodes of the graph.
"""

from __future__ import annotations

import os
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gloader.core.kernels import njit
from gloader.core.offsets import Offsets, offset_at
from gloader.errors import ConfigError
from gloader.samplers import graph_errors, poisson_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_hops, checked_seed, checked_total
from gloader.samplers.hops import HopFrame, taken_of_scratch
from gloader.samplers.rng import layer_key, to_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.workspace import Candidates, Picked, RelationSpace
    from gloader.types import AnySeeds, BatchId, IdArray, LocalArray, SampledBatch

LayerMethod = Literal["ladies", "fastgcn"]
Adjacency = Literal["mean", "gcn"]


class _Turn:
    """A lock under which one thread reads all edges while other threads wait.

    The lock is global, because a sampler must be picklable and so cannot hold a lock.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # A child process may be forked while the lock is taken. It gets a new lock.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()


_TURN = _Turn()


class LayerPick:
    """Picks a layer's nodes: the `RelationPick` of `LayerSampler`, with its parameters and errors.

    ``fanouts`` are the layer sizes. Only the layered layout is possible, in which a hop's destinations are all nodes
    found so far.
    """

    def __init__(
        self,
        graph: Topology,
        layer_sizes: Sequence[int],
        *,
        seed: int = 0,
        method: LayerMethod = "ladies",
        adjacency: Adjacency = "mean",
        normalize: bool = False,
    ) -> None:
        if method not in ("ladies", "fastgcn"):
            raise ConfigError(f"method is {method!r}; allowed: 'ladies', 'fastgcn'")
        if adjacency not in ("mean", "gcn"):
            raise ConfigError(f"adjacency is {adjacency!r}; allowed: 'mean', 'gcn'")
        self.graph = graph
        self.fanouts = checked_hops(layer_sizes, noun="layer_sizes")
        self.seed = checked_seed(seed)
        self.method = method
        self.adjacency = adjacency
        self.normalize = bool(normalize)
        self._norms: NDArray[np.float32] | None = None

    @property
    def has_edge_weight(self) -> bool:
        """True: blocks have edge weights."""
        return True

    @property
    def unable_to_exclude(self) -> str:
        """The sampler's name in messages: it cannot exclude edges."""
        return f"the sampler {self.method!r}"

    def hop_key(self, batch_id: BatchId, hop: int) -> np.uint64:
        """Return a hop's random key. Pure."""
        return layer_key(self.seed, batch_id.epoch, batch_id.index, hop)

    def pick(
        self, space: RelationSpace, batch_id: BatchId, hop: int, destinations: range, key: np.uint64
    ) -> Picked:
        """Pick one hop's edges; for parameters and errors see `RelationPick`."""
        num_dst, size = destinations.stop, self.fanouts[hop]
        indptr = np.zeros(num_dst + 1, dtype=np.int32)
        lists = self.graph.sources.lists(space.starts, space.degrees, 0, num_dst)
        if space.candidates is None:
            self._pick_from_graph(lists, space, batch_id, hop, num_dst, key, indptr)
        else:
            num_edges = checked_total(int(space.degrees[:num_dst].sum()), hop, batch_id, self.fanouts)
            space.candidates.find(self.graph, space, lists, num_dst, num_edges)
            self._pick_from_neighborhood(lists, space, space.candidates, size, num_dst, key, indptr)
        return taken_of_scratch(space, lists, num_dst, indptr, normalize=self.normalize)

    def replay(self, *_: Any) -> Picked:
        """Raise ConfigError: the picks cannot be swept, see `rule_of`."""
        raise self._unswept()

    def rule_of(self, layout: Layout, *, relation: int = 0) -> ListRule:  # noqa: ARG002 - as in `RelationPick`
        """Raise ConfigError: the picks weigh all in-edges in a hop."""
        raise self._unswept()

    def _unswept(self) -> ConfigError:
        """Return the error for edge passes (sweeps), which these picks cannot use."""
        return ConfigError(
            f"the sampler {self.method!r} weighs the in-edges of all nodes of a hop before it takes one, and a sweep "
            "reads each edge only once; use topology='direct' or 'ram', or the sampler 'neighbor'"
        )

    def _pick_from_neighborhood(
        self,
        lists: EdgeLists,
        space: RelationSpace,
        candidates: Candidates,
        size: int,
        num_dst: int,
        key: np.uint64,
        indptr: LocalArray,
    ) -> None:
        """Pick for "ladies": choose ``size`` candidates by norm, and write their edges to ``indptr`` and scratch."""
        count = candidates.count
        if size < 0 or count <= size:
            candidates.chances[:count] = 1.0
        else:
            # ``tops`` is LABOR's scratch memory, with room for every candidate. Here it holds norms.
            norms = candidates.tops[:count]
            in_edges = (space.degrees, candidates.offsets, num_dst, candidates.of_edge)
            _neighborhood_norms(*in_edges, self.adjacency == "gcn", norms)
            if self.adjacency == "gcn":
                _divide_by_degree(self.graph.offsets, candidates.nodes, norms)
            poisson_kernels.numbers_of(candidates.nodes, count, key, candidates.numbers)
            _choose(norms, candidates.numbers[:count], size, candidates.chances[:count])
        candidates.scales[:num_dst] = 1.0
        # The nodes are already chosen. With scale 1 and number 0, the kernel takes each node whose chance is above 0,
        # with the weight 1 / chance.
        candidates.numbers[:count] = 0
        poisson_kernels.pick_candidates(
            lists.starts,
            candidates.offsets,
            num_dst,
            candidates.of_edge,
            candidates.chances,
            candidates.scales,
            candidates.numbers,
            indptr,
            space.scratch.edges,
            space.scratch.weights,
        )

    def _pick_from_graph(
        self,
        lists: EdgeLists,
        space: RelationSpace,
        batch_id: BatchId,
        hop: int,
        num_dst: int,
        key: np.uint64,
        indptr: LocalArray,
    ) -> None:
        """Pick for "fastgcn": each node by its own number, and write the edges to ``indptr`` and scratch."""
        scale = self._graph_scales[hop]
        common = (lists.values, lists.starts, space.degrees, num_dst, self._graph_norms, scale, key, indptr)
        # The scratch doubles until the edges fit; each attempt repeats the same draws.
        space.scratch.reserve_edges(4096)
        while (
            outcome := poisson_kernels.pick_by_node(*common, space.scratch.edges, space.scratch.weights)
        ) < 0:
            if outcome <= poisson_kernels.DAMAGED:
                raise graph_errors.bad_edge(self.graph, poisson_kernels.DAMAGED - outcome)
            checked_total(len(space.scratch.edges) + 1, hop, batch_id, self.fanouts)
            space.scratch.reserve_edges(min(2 * len(space.scratch.edges), MAX_LOCAL))

    @property
    def _graph_norms(self) -> NDArray[np.float32]:
        """(N,) each column's norm over all rows, computed at the first batch."""
        norms = self._norms
        if norms is None:
            # At the first batch one thread reads all edges, while the other threads wait.
            with _TURN.lock:
                norms = self._norms = self._add_up_norms() if self._norms is None else self._norms
        return norms

    def _add_up_norms(self) -> NDArray[np.float32]:
        """Return each column's norm over all rows (N,), from one pass over all edges."""
        graph, is_gcn = self.graph, self.adjacency == "gcn"
        norms = np.zeros(graph.num_nodes)
        node = first = 0
        for piece in graph.sources.pieces():
            node, bad = _add_graph_norms(graph.offsets, graph.num_edges, piece, first, node, is_gcn, norms)
            if bad >= 0:
                raise graph_errors.bad_edge(graph, bad)
            first += len(piece)
        if is_gcn:
            _divide_all(graph.offsets, norms)
        return norms.astype(np.float32)

    @cached_property
    def _graph_scales(self) -> tuple[float, ...]:
        """A scale for each layer: a node's chance is scale * norm, at most 1."""
        norms = self._graph_norms[self._graph_norms > 0].astype(np.float64)
        return tuple(_poisson_scale(norms, size) for size in self.fanouts)


class LayerSampler:
    """Samples nodes in proportion to their column's squared norm in the normalised adjacency.

    "ladies" takes ``layer_sizes[l]`` in-neighbours of hop l's destinations, or all if there are fewer. The norms are
    over these destinations' rows. Each in-neighbour has a random number; the in-neighbours with the smallest number /
    norm are taken, with the importance weight 1 / min(1, norm * threshold) (priority sampling; Duffield, Lund, Thorup,
    JACM 2007). The estimate is exactly unbiased for a fixed number of distinct nodes. "fastgcn" takes every graph node
    independently, with norms over all rows and ``layer_sizes[l]`` expected nodes; nodes without an edge to a
    destination drop out. A taken node keeps all its edges to the destinations, each with the node's importance weight.

    Every draw is a hash of (seed, epoch, batch index, hop, node). Pure and thread-safe. The sampler reads every
    destination's in-edges. Each concurrent call holds 4 bytes per node, with "ladies" 8, and 12 bytes for each in-edge
    in a hop. "fastgcn" reads all graph edges once, at the first batch, and keeps 4 bytes per node.

    Parameters
    ----------
    graph : the topology; its edge weights are not used
    layer_sizes : nodes per layer, hop next to the seeds first; 0 takes none, -1 takes all
    seed : any integer; taken modulo 2**64
    method : "ladies" or "fastgcn"
    adjacency : the estimated matrix: "mean" with entries 1 / d_dst, "gcn" with 1 / sqrt((d_dst + 1) (d_src + 1))
    normalize : scale each destination's weights to its in-degree: less variance, and some bias

    Raises
    ------
    ConfigError
        A layer size is not an integer >= -1, there is no layer size, or a name is unknown.
    """

    def __init__(
        self,
        graph: Topology,
        layer_sizes: Sequence[int],
        *,
        seed: int = 0,
        method: LayerMethod = "ladies",
        adjacency: Adjacency = "mean",
        normalize: bool = False,
    ) -> None:
        pick = LayerPick(
            graph, layer_sizes, seed=seed, method=method, adjacency=adjacency, normalize=normalize
        )
        self.graph, self.layer_sizes, self.seed = graph, pick.fanouts, pick.seed
        self.method, self.adjacency, self.normalize = pick.method, pick.adjacency, pick.normalize
        self.relation_pick = pick  # for `RelationwiseSampler`

    @cached_property
    def _frame(self) -> HopFrame:
        """The loop over hops, for a graph of one type."""
        # The frame is made on demand, because a sampler for a relation between two types has no frame.
        return HopFrame.of_one_type(self.relation_pick, has_candidates=self.method == "ladies")

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample layered blocks with importance weights. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : (B,) distinct node ids; B = 0 gives an empty batch; no edge may be excluded

        Raises
        ------
        SeedError, ConfigError, GraphError
            See `HopFrame.sample`; ConfigError also for 2**31 in-edges in a hop.
        """
        return self._frame.sample(batch_id, seeds).one_type()


def _choose(
    norms: NDArray[np.float64], numbers: NDArray[np.uint64], size: int, chances: NDArray[np.float64]
) -> None:
    """Write the chances for the ``size`` smallest values of number / norm, and 0 for all others."""
    # A rank is number / norm. The numbers are scaled to (0, 1], because a rank of zero would be taken with any norm.
    # The smallest untaken rank is the threshold of priority sampling.
    ranks = (numbers + 1.0) * 2.0**-53 / norms
    threshold = np.partition(ranks, size)[size]
    np.minimum(norms * threshold, 1.0, out=chances)
    chances[ranks >= threshold] = 0.0


def _poisson_scale(norms: NDArray[np.float64], size: int) -> float:
    """Return the scale c with sum(min(1, c * norm)) = ``size``; infinity, to take all nodes. Pure."""
    if size < 0 or size >= len(norms):
        return float("inf")
    if size == 0:
        return 0.0
    ordered = np.sort(norms)[::-1]
    rest = np.cumsum(ordered[::-1])[::-1]  # each norm plus all smaller norms
    scales = (size - np.arange(size)) / rest[:size]  # entry i assumes that the i largest norms have chance 1
    certain = int(np.argmax(scales * ordered[:size] < 1.0))
    return float(scales[certain])


@njit(cache=True, nogil=True, inline="always")
def _squared_entry(degree: int, is_gcn: bool) -> float:
    """Return a row's squared entry without the source's factor, for a destination with ``degree`` in-edges."""
    return 1.0 / (degree + 1.0) if is_gcn else 1.0 / (float(degree) * degree)


@njit(cache=True, nogil=True)
def _neighborhood_norms(
    degrees: IdArray,
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    is_gcn: bool,
    norms: NDArray[np.float64],
) -> None:
    """Write the candidates' norms over the destinations' rows."""
    norms[:] = 0.0
    for i in range(num_dst):
        if degrees[i]:
            entry = _squared_entry(degrees[i], is_gcn)
            for edge in range(offsets[i], offsets[i + 1]):
                norms[candidate[edge]] += entry


@njit(cache=True, nogil=True)
def _divide_by_degree(offsets: Offsets, nodes: IdArray, norms: NDArray[np.float64]) -> None:
    """Divide each node's norm by its in-degree plus one, for ``nodes``."""
    for t in range(norms.shape[0]):
        norms[t] /= offset_at(offsets, nodes[t] + 1) - offset_at(offsets, nodes[t]) + 1.0


@njit(cache=True, nogil=True)
def _divide_all(offsets: Offsets, norms: NDArray[np.float64]) -> None:
    """Divide every node's norm by its in-degree plus one."""
    for v in range(norms.shape[0]):
        norms[v] /= offset_at(offsets, v + 1) - offset_at(offsets, v) + 1.0


@njit(cache=True, nogil=True)
def _add_graph_norms(
    offsets: Offsets,
    num_edges: int,
    sources: NDArray[Any],
    first: int,
    node: int,
    is_gcn: bool,
    norms: NDArray[np.float64],
) -> tuple[int, int]:
    """Add the entries of consecutive edges, the first at position ``first``, to the columns' norms (N,).

    ``sources`` are the edges' sources. ``node`` is the destination of edge ``first``, or an earlier node. Returns the
    destination of the edge after them, and -1 or the position of a damaged edge. A damaged edge is out of range, or its
    source is not a node.
    """
    end_of_nodes = np.uint64(norms.shape[0])
    last = first + sources.shape[0]
    while node < norms.shape[0]:
        begin, end = offset_at(offsets, node), offset_at(offsets, node + 1)
        if begin < 0 or end < begin or end > num_edges:
            return node, max(begin, 0)
        if begin < end:
            entry = _squared_entry(end - begin, is_gcn)
            for edge in range(max(begin, first), min(end, last)):
                source = to_int(sources[edge - first])
                if np.uint64(source) >= end_of_nodes:
                    return node, edge
                norms[source] += entry
        if end > last:  # the next array of sources has the node's remaining edges
            return node, -1
        node += 1
    return node, -1
