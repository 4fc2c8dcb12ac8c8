"""LABOR (Balin, Catalyurek: "Layer-neighbor sampling: defusing neighborhood explosion in GNNs", NeurIPS'23).

Destination s takes source t with chance min(1, scale_s * chance_t). The scale makes the variance at s that of
``fanout`` neighbours drawn from its d in-edges: the sum over them of 1 / min(1, scale_s * chance_t) is d * d / fanout
(section 3 of the paper). LABOR-0 has chance_t = 1; each iteration moves chance to sources that destinations share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.errors import ConfigError
from gloader.samplers import pick_kernels, poisson_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_hops, checked_seed
from gloader.samplers.drawn import checked_drawn
from gloader.samplers.exclusion import unexcluded_seeds
from gloader.samplers.hops import checked_total, sample_layers, weighted_block
from gloader.samplers.list_replay import replay_hop
from gloader.samplers.list_rule import ListRule
from gloader.samplers.rng import layer_key
from gloader.samplers.workspace import Candidates, Workspace, WorkspacePool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.types import AnySeeds, BatchId, Block, IdArray, LocalArray, SampledBatch

_NAME = "the sampler 'labor'"
_ENOUGH = 1e-4  # relative gain in expected nodes below which the iteration has converged
_MOST_ITERATIONS = 100  # gains shrink fast; the bound is for a graph on which they never fall below the above


class LaborSampler:
    """Samples about ``fanouts[l]`` in-neighbours of each node in hop l, and far fewer different ones.

    Every node has one random number per hop, and an edge is taken when the number of its source is below the
    edge's chance; so destinations share their sources. An estimate of a mean has the variance that sampling
    ``fanouts[l]`` neighbours independently would give it. A node with no more in-edges than the fan-out takes all.
    Blocks carry importance weights, 1 / chance, which make weighted sums estimates without bias.

    Every draw is a hash of (seed, epoch, batch index, hop, node). Pure and thread-safe. Reads every in-edge of every
    destination; each concurrent call holds 4 bytes per node, and with ``iterations`` 8, and 12 bytes for each
    in-edge of a hop.

    Parameters
    ----------
    graph : the topology; its edge weights are not used
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all
    seed : any integer; taken modulo 2**64
    iterations : steps that move chances to shared sources: 0 is LABOR-0, i is LABOR-i, -1 goes on until the
        expected number of nodes stays (``LABOR-*``)
    share_layers : one random number per node for all hops, which makes hops find the same nodes again; the
        estimates of different hops are then correlated
    normalize : make the weights of each destination add up to its in-degree: less variance, and a bias of the order
        of 1 / fan-out

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, there is none, or ``iterations`` is below -1.
    """

    def __init__(
        self,
        graph: Topology,
        fanouts: Sequence[int],
        *,
        seed: int = 0,
        iterations: int = 0,
        share_layers: bool = False,
        normalize: bool = False,
    ) -> None:
        if type(iterations) is not int or iterations < -1:
            raise ConfigError(f"iterations is {iterations!r}; allowed: 0, 1, ..., or -1 for convergence")
        self.graph = graph
        self.fanouts = checked_hops(fanouts)
        self.seed = checked_seed(seed)
        self.iterations = iterations
        self.share_layers = bool(share_layers)
        self.normalize = bool(normalize)
        self._pool = WorkspacePool(graph.num_nodes, 0, has_candidates=iterations != 0)

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample layered blocks with importance weights. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : (B,) distinct node ids; B = 0 gives an empty batch; no edge may be excluded

        Raises
        ------
        SeedError
            Seeds are no integers, out of range or repeat; the message lists up to five.
        ConfigError
            A hop would have 2**31 edges, or with ``iterations`` its destinations 2**31 in-edges; or edges are excluded,
            or seeds have times.
        GraphError
            A graph that was not checked has an entry that cannot be; the message names the node and the position.
        """
        given = unexcluded_seeds(seeds, sampler=_NAME)

        def sample_layer(
            _graph: Topology, work: Workspace, batch_id: BatchId, hop: int, num_dst: int
        ) -> Block:
            return self.sample_hop(work, batch_id, hop, range(num_dst), self.hop_key(batch_id, hop))

        return sample_layers(self.graph, self._pool, batch_id, given, len(self.fanouts), sample_layer)

    @property
    def rule(self) -> ListRule:
        """What its hops want.

        Raises
        ------
        ConfigError
            Chances depend on what all destinations of a hop share.
        """
        return self.rule_of("layered")

    def rule_of(self, layout: Layout, *, relation: int = 0) -> ListRule:  # noqa: ARG002 - as of `NeighborSampler`
        """Return what its hops want; raises as `rule`.

        Parameters
        ----------
        layout : "layered", which is all that it has
        relation : number of the relation that the graph is, see `relation_key`
        """
        if self.iterations != 0:
            raise ConfigError(
                f"LABOR with iterations={self.iterations} weighs all in-edges of a hop before it takes one, and edges "
                "that are swept go by once; use iterations=0, or topology='direct' or 'ram'"
            )
        return ListRule(
            graph=self.graph,
            fanouts=self.fanouts,
            seed=self.seed,
            is_weighted=False,
            share_layers=self.share_layers,
            relation=relation,
        )

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        """Return the batch that `sample` returns, bit for bit, from what its hops drew. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch
        seeds : (B,) distinct node ids
        drawn : L arrays of records of `ListRule`, hop next to the seeds first

        Raises
        ------
        ShapeError
            There is another number of hops.
        SeedError, ConfigError, GraphError
            As of `sample`; or the records are of another batch.
        """
        rule, drawn = self.rule, checked_drawn(drawn, len(self.fanouts))
        given = unexcluded_seeds(seeds, sampler=_NAME)

        def replay_layer(
            _graph: Topology, work: Workspace, batch_id: BatchId, hop: int, num_dst: int
        ) -> Block:
            return self._replay_hop(rule, work, batch_id, hop, range(num_dst), drawn[hop])

        return sample_layers(self.graph, self._pool, batch_id, given, len(self.fanouts), replay_layer)

    @property
    def has_edge_weight(self) -> bool:
        """Whether blocks have weights: they do."""
        return True

    @property
    def unable_to_exclude(self) -> str:
        """What it is called, as it takes no excluded edges."""
        return _NAME

    def hop_key(self, batch_id: BatchId, hop: int) -> np.uint64:
        """Return the key of all draws of a hop. Pure."""
        return layer_key(self.seed, batch_id.epoch, batch_id.index, 0 if self.share_layers else hop)

    def sample_hop(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,
        drawn: NDArray[Any] | None = None,
    ) -> Block:
        """Sample, or with ``drawn`` replay, one hop of a batch: what `sample` is made of.

        Parameters
        ----------
        work : the batch so far, with the degrees of ``destinations``; what the hop finds joins ``work.sources``
        batch_id, hop : the address
        destinations : all positions in ``work.nodes`` so far
        key : of the draws, see `hop_key`
        drawn : of this hop, see `replay`

        Raises
        ------
        ConfigError, GraphError
            As of `replay`.
        """
        if drawn is not None:
            return self._replay_hop(self.rule, work, batch_id, hop, destinations, drawn)
        graph, fanout, num_dst = self.graph, self.fanouts[hop], destinations.stop
        indptr = np.zeros(num_dst + 1, dtype=np.int32)
        # With a fan-out of 0 nothing is looked at.
        lists = graph.sources.lists(work.starts, work.degrees, 0, num_dst if fanout else 0)
        if fanout == 0:
            pass
        elif work.candidates is None:
            self._pick_independently(lists, work, batch_id, hop, num_dst, key, indptr)
        else:
            num_edges = checked_total(int(work.degrees[:num_dst].sum()), hop, batch_id, self.fanouts)
            work.candidates.find(graph, work, lists, num_dst, num_edges)
            self._pick_jointly(lists, work, work.candidates, fanout, num_dst, key, indptr)
        return weighted_block(graph, work, lists, num_dst, indptr, normalize=self.normalize)

    def _replay_hop(
        self,
        rule: ListRule,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        drawn: NDArray[Any],
    ) -> Block:
        block = replay_hop(rule, work, batch_id, hop, destinations, drawn)
        if self.normalize and block.edge_weight is not None:
            poisson_kernels.scale_to_degree(work.degrees, destinations.stop, block.indptr, block.edge_weight)
        return block

    def _pick_independently(
        self,
        lists: EdgeLists,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        num_dst: int,
        key: np.uint64,
        indptr: LocalArray,
    ) -> None:
        fanout = self.fanouts[hop]
        expected = pick_kernels.count_uniform(work.degrees, 0, num_dst, fanout, False, MAX_LOCAL, indptr)
        room = checked_total(expected, hop, batch_id, self.fanouts)
        # The number of edges is random, ``expected`` in the mean: an eighth more is nearly always enough, and one that
        # is not costs a second pass with the same draws.
        work.scratch.reserve_edges(min(room + room // 8 + 4096, MAX_LOCAL))
        rows = (lists.values, lists.starts, work.degrees, num_dst, fanout, key, indptr)
        while (
            poisson_kernels.pick_by_fanout(*rows, work.scratch.edges, work.scratch.weights)
            == poisson_kernels.OVERFLOW
        ):
            checked_total(len(work.scratch.edges) + 1, hop, batch_id, self.fanouts)
            work.scratch.reserve_edges(min(2 * len(work.scratch.edges), MAX_LOCAL))

    def _pick_jointly(
        self,
        lists: EdgeLists,
        work: Workspace,
        candidates: Candidates,
        fanout: int,
        num_dst: int,
        key: np.uint64,
        indptr: LocalArray,
    ) -> None:
        rows = (candidates.offsets, num_dst, candidates.of_edge)
        # Equal chances are LABOR-0; each iteration raises those of sources that several destinations ask for.
        chances = candidates.chances[: candidates.count]
        chances.fill(1.0)
        before = np.inf
        for _ in range(_MOST_ITERATIONS if self.iterations < 0 else self.iterations):
            expected = _improve_chances(*rows, fanout, chances, candidates.tops)
            # The expected number of nodes never rises, so that it is enough to see it stay.
            if self.iterations < 0 and expected > before * (1 - _ENOUGH):
                break
            before = expected
        _solve_scales(*rows, fanout, chances, candidates.scales)
        poisson_kernels.numbers_of(candidates.nodes, candidates.count, key, candidates.numbers)
        poisson_kernels.pick_candidates(
            lists.starts,
            *rows,
            chances,
            candidates.scales,
            candidates.numbers,
            indptr,
            work.scratch.edges,
            work.scratch.weights,
        )


@njit(cache=True, nogil=True)
def scale_for(
    chances: NDArray[np.float64], candidate: LocalArray, first: int, last: int, fanout: int
) -> float:
    """Return the scale of the destination with in-edges ``first:last``, infinity if it takes them all. Pure.

    With the set of sources whose chance reaches 1 given, the equation is linear. That set is empty at scale 0 and
    only grows from one solution to the next, so this ends, in practice after a few passes.
    """
    degree = last - first
    if fanout < 0 or degree <= fanout:
        return np.inf
    target = degree * (degree / fanout)
    # Each pass solves for the sources that are uncertain at the scale before; it ends when none becomes certain.
    scale, certain_before = 0.0, -1
    while True:
        rest, certain = 0.0, 0
        for at in range(first, last):
            chance = chances[candidate[at]]
            if scale * chance >= 1.0:
                certain += 1
            else:
                rest += 1.0 / chance
        if certain <= certain_before or certain == degree:
            return scale
        certain_before = certain
        scale = rest / (target - certain)


@njit(cache=True, nogil=True)
def _solve_scales(
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    fanout: int,
    chances: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> None:
    """Write the scale of every destination."""
    for i in range(num_dst):
        scales[i] = scale_for(chances, candidate, offsets[i], offsets[i + 1], fanout)


@njit(cache=True, nogil=True)
def _improve_chances(
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    fanout: int,
    chances: NDArray[np.float64],
    tops: NDArray[np.float64],
) -> float:
    """Raise every chance to the largest that a destination asks for; return the number of nodes expected now.

    A step never raises the number expected: with the new chances every scale is at most 1.
    """
    tops[: chances.shape[0]] = 0.0
    for i in range(num_dst):
        scale = scale_for(chances, candidate, offsets[i], offsets[i + 1], fanout)
        for at in range(offsets[i], offsets[i + 1]):
            tops[candidate[at]] = max(tops[candidate[at]], scale)
    expected = 0.0
    for t in range(chances.shape[0]):
        chances[t] = min(chances[t] * tops[t], 1.0)
        expected += chances[t]
    return expected
