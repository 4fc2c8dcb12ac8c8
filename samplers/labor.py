"""LABOR (Balin, Catalyurek: "Layer-neighbor sampling: defusing neighborhood explosion in GNNs", NeurIPS'23).

In a hop, destinations take edges from sources. Each source t has a chance, and each destination s has a scale. The edge
from t to s is taken with the probability min(1, scale_s * chance_t). The scale is chosen so that an estimated mean over
the edges of s has the variance of ``fanout`` neighbours drawn from its d in-edges: the sum of 1 / probability over the
in-edges is d * d / fanout (section 3 of the paper). LABOR-0 has chance_t = 1. Each iteration raises the chances of
sources that several destinations share, so that fewer distinct sources are taken.

`LaborSampler` is the sampler, `LaborPick` chooses one relation's edges in a hop, and the kernels are at the end. A
candidate is a source of an in-edge in the hop. A sweep reads all edges once, in file order, for many batches.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.errors import ConfigError
from gloader.samplers import pick_kernels, poisson_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_hops, checked_seed, checked_total
from gloader.samplers.hops import HopFrame, hops_of_one_type, taken_of_scratch
from gloader.samplers.list_rule import ListRule, picked_of_records
from gloader.samplers.rng import layer_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.samplers.workspace import Candidates, Picked, RelationSpace
    from gloader.types import AnySeeds, BatchId, IdArray, LocalArray, SampledBatch

# The iteration has converged if a step lowers the expected number of nodes by less than this share.
_ENOUGH = 1e-4
_MOST_ITERATIONS = 100  # bound for a graph whose steps keep lowering the number by more than `_ENOUGH`


class LaborPick:
    """Picks edges by their sources' random numbers: the `RelationPick` of `LaborSampler`.

    The parameters are those of `LaborSampler`. Only the layered layout is possible, in which a hop's destinations are
    all nodes found so far.
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

    @property
    def has_edge_weight(self) -> bool:
        """True: blocks have edge weights."""
        return True

    @property
    def unable_to_exclude(self) -> str:
        """The sampler's name, for the message that it cannot exclude edges."""
        return "the sampler 'labor'"

    def hop_key(self, batch_id: BatchId, hop: int) -> np.uint64:
        """Return a hop's random key. Pure."""
        return layer_key(self.seed, batch_id.epoch, batch_id.index, 0 if self.share_layers else hop)

    def rule_of(self, layout: Layout, *, relation: int = 0) -> ListRule:  # noqa: ARG002 - as in `RelationPick`
        """Return the rule by which a sweep draws the sampler's hops.

        Parameters
        ----------
        layout : "layered", the only layout
        relation : the relation's number, see `relation_key`

        Raises
        ------
        ConfigError
            The sampler has iterations: the chances then depend on all in-edges of a hop.
        """
        if self.iterations != 0:
            raise ConfigError(
                f"LABOR with iterations={self.iterations} weighs all in-edges of a hop before it takes one, and a "
                "sweep reads each edge only once; use iterations=0, or topology='direct' or 'ram'"
            )
        return ListRule(
            graph=self.graph,
            fanouts=self.fanouts,
            seed=self.seed,
            is_weighted=False,
            share_layers=self.share_layers,
            relation=relation,
        )

    def pick(
        self, space: RelationSpace, batch_id: BatchId, hop: int, destinations: range, key: np.uint64
    ) -> Picked:
        """Pick one hop's edges; for parameters and errors see `RelationPick`."""
        graph, fanout, num_dst = self.graph, self.fanouts[hop], destinations.stop
        indptr = np.zeros(num_dst + 1, dtype=np.int32)
        lists = graph.sources.lists(space.starts, space.degrees, 0, num_dst)
        if space.candidates is None:
            self._pick_independently(lists, space, batch_id, hop, num_dst, key, indptr)
        else:
            num_edges = checked_total(int(space.degrees[:num_dst].sum()), hop, batch_id, self.fanouts)
            space.candidates.find(graph, space, lists, num_dst, num_edges)
            self._pick_jointly(lists, space, space.candidates, fanout, num_dst, key, indptr)
        return taken_of_scratch(space, lists, num_dst, indptr, normalize=self.normalize)

    def replay(
        self,
        space: RelationSpace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,  # noqa: ARG002 - as in `RelationPick`
        drawn: NDArray[Any],
    ) -> Picked:
        """Return the edges of `pick` from a sweep's records, see `ListRule`.

        Raises GraphError if the records belong to another batch. For parameters see `RelationPick`.
        """
        picked = picked_of_records(self.rule_of("layered"), space, batch_id, hop, destinations, drawn)
        if self.normalize and picked.edge_weight is not None:
            poisson_kernels.scale_to_degree(
                space.degrees, destinations.stop, picked.indptr, picked.edge_weight
            )
        return picked

    def _pick_independently(
        self,
        lists: EdgeLists,
        space: RelationSpace,
        batch_id: BatchId,
        hop: int,
        num_dst: int,
        key: np.uint64,
        indptr: LocalArray,
    ) -> None:
        """Pick for LABOR-0, in which an edge's probability depends only on its destination's degree."""
        fanout = self.fanouts[hop]
        expected = pick_kernels.count_uniform(space.degrees, 0, num_dst, fanout, False, MAX_LOCAL, indptr)
        room = checked_total(expected, hop, batch_id, self.fanouts)
        # The number of edges is random, with mean ``expected``. An eighth more is nearly always enough. If not, a
        # second pass repeats the same draws.
        space.scratch.reserve_edges(min(room + room // 8 + 4096, MAX_LOCAL))
        common = (lists.values, lists.starts, space.degrees, num_dst, fanout, key, indptr)
        while (
            poisson_kernels.pick_by_fanout(*common, space.scratch.edges, space.scratch.weights)
            == poisson_kernels.OVERFLOW
        ):
            checked_total(len(space.scratch.edges) + 1, hop, batch_id, self.fanouts)
            space.scratch.reserve_edges(min(2 * len(space.scratch.edges), MAX_LOCAL))

    def _pick_jointly(
        self,
        lists: EdgeLists,
        space: RelationSpace,
        candidates: Candidates,
        fanout: int,
        num_dst: int,
        key: np.uint64,
        indptr: LocalArray,
    ) -> None:
        """Pick with iterations: improve the candidates' chances, solve for the scales, then take the edges."""
        in_edges = (candidates.offsets, num_dst, candidates.of_edge)
        # Equal chances are LABOR-0; each iteration raises the chances of shared sources.
        chances = candidates.chances[: candidates.count]
        chances.fill(1.0)
        before = np.inf  # the expected number of nodes before the iteration
        for _ in range(_MOST_ITERATIONS if self.iterations < 0 else self.iterations):
            expected = _improve_chances(*in_edges, fanout, chances, candidates.tops)
            # The expected number of nodes never rises. The loop ends when it hardly falls.
            if self.iterations < 0 and expected > before * (1 - _ENOUGH):
                break
            before = expected
        _solve_scales(*in_edges, fanout, chances, candidates.scales)
        poisson_kernels.numbers_of(candidates.nodes, candidates.count, key, candidates.numbers)
        poisson_kernels.pick_candidates(
            lists.starts,
            *in_edges,
            chances,
            candidates.scales,
            candidates.numbers,
            indptr,
            space.scratch.edges,
            space.scratch.weights,
        )


class LaborSampler:
    """Samples about ``fanouts[l]`` in-neighbours of each node in hop l, and fewer nodes in all than `NeighborSampler`.

    Every node has one random number per hop. An edge is taken if its source's number is below the edge's probability,
    so destinations share sources. An estimated mean has the same variance as with ``fanouts[l]`` independent
    neighbours. A node with at most ``fanouts[l]`` in-edges takes all of them. Blocks carry importance weights,
    1 / probability, for unbiased weighted sums.

    Every draw is a hash of (seed, epoch, batch index, hop, node). Pure and thread-safe. The sampler reads every
    destination's in-edges. Each concurrent call holds 4 bytes per node of the graph. With ``iterations`` it holds 8
    bytes per node, and 12 bytes for each in-edge in a hop.

    Parameters
    ----------
    graph : the topology; its edge weights are not used
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all
    seed : any integer; taken modulo 2**64
    iterations : steps that move chances to shared sources: 0 is LABOR-0, i is LABOR-i, -1 iterates until the expected
        number of nodes no longer falls (``LABOR-*``)
    share_layers : use one random number per node for all hops. Later hops find the same nodes again, and the estimates
        in different hops are correlated
    normalize : scale each destination's weights to its in-degree: less variance, and a bias of order 1 / fan-out

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, there is no fan-out, or ``iterations`` is below -1.
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
        pick = LaborPick(
            graph,
            fanouts,
            seed=seed,
            iterations=iterations,
            share_layers=share_layers,
            normalize=normalize,
        )
        self.graph, self.fanouts, self.seed, self.iterations = graph, pick.fanouts, pick.seed, pick.iterations
        self.share_layers, self.normalize = pick.share_layers, pick.normalize
        self.relation_pick = pick  # for `RelationwiseSampler`

    @cached_property
    def _frame(self) -> HopFrame:
        """The loop over hops, for a graph of one type."""
        # The frame is made on demand, because a sampler for a relation between two types has no frame.
        return HopFrame.of_one_type(self.relation_pick, has_candidates=self.iterations != 0)

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample layered blocks with importance weights. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : (B,) distinct node ids; B = 0 gives an empty batch; no edge may be excluded

        Raises
        ------
        SeedError, ConfigError, GraphError
            See `HopFrame.sample`. With ``iterations``, ConfigError also for 2**31 in-edges in a hop.
        """
        return self._frame.sample(batch_id, seeds).one_type()

    @property
    def rule(self) -> ListRule:
        """The rule by which a sweep draws the sampler's hops; raises as `LaborPick.rule_of`."""
        return self.relation_pick.rule_of("layered")

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        """Return the batch of `sample`, bit for bit, from the records of sweeps. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index
        seeds : (B,) distinct node ids
        drawn : L arrays with the records of `ListRule`, the hop next to the seeds first

        Raises
        ------
        ShapeError
            ``drawn`` has another number of hops.
        SeedError, ConfigError, GraphError
            As in `sample`; GraphError also if the records belong to another batch.
        """
        hops = hops_of_one_type(drawn, len(self.fanouts))
        return self._frame.sample(batch_id, seeds, drawn=hops).one_type()


@njit(cache=True, nogil=True)
def scale_for(
    chances: NDArray[np.float64], candidate: LocalArray, first: int, last: int, fanout: int
) -> float:
    """Return the scale of the destination with in-edges ``first:last``; infinity if it takes all of them. Pure.

    A source is certain if the edge from it has probability 1, which means scale * chance >= 1. For a given set of
    certain sources the equation for the scale is linear. The set is empty at scale 0 and only grows from one solution
    to the next. So the loop ends, in practice after a few iterations.

    Parameters
    ----------
    chances : each candidate's chance
    candidate : each in-edge's source, as an index in ``chances``
    first, last : the destination's range in ``candidate``
    fanout : neighbours to take
    """
    degree = last - first
    if fanout < 0 or degree <= fanout:
        return np.inf
    target = degree * (degree / fanout)
    # Each iteration finds the sources that are certain at the previous scale, and solves the equation for the next.
    # ``rest`` is the sum of 1 / chance over the other sources. The loop ends when no further source becomes certain.
    scale, certain_before = 0.0, -1
    while True:
        rest, certain = 0.0, 0
        for edge in range(first, last):
            chance = chances[candidate[edge]]
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
    """Write each destination's scale; destination i has the in-edges ``offsets[i] : offsets[i + 1]``."""
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
    """Multiply every chance by the largest scale of its destinations; return the expected number of nodes.

    The new chance is the probability that at least one destination takes the source. The sum of the new chances is
    the expected number of taken sources. A step never raises this number, because with the new chances every scale is
    at most 1. ``tops`` is scratch for the largest scale among each candidate's destinations.
    """
    tops[: chances.shape[0]] = 0.0
    for i in range(num_dst):
        scale = scale_for(chances, candidate, offsets[i], offsets[i + 1], fanout)
        for edge in range(offsets[i], offsets[i + 1]):
            tops[candidate[edge]] = max(tops[candidate[edge]], scale)
    expected = 0.0
    for t in range(chances.shape[0]):
        chances[t] = min(chances[t] * tops[t], 1.0)
        expected += chances[t]
    return expected
