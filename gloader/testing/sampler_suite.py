"""The conformance suite for samplers, and checks of excluded edges.

A test class inherits `SamplerSuite` and makes the tested sampler. The functions before it make test graphs and compare
batches. A loader of links excludes edges, such as the edges to predict: no batch may contain them.

A sweepable sampler has a rule (`HopRule`). With the rule, passes over an edge file on the SSD draw its batches hop by
hop. A frontier has the nodes that draw in a hop, and the drawn array has their draws. The suite checks that such
batches equal the sampler's own batches.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from gloader.core.offsets import compact_offsets
from gloader.errors import ConfigError, SeedError
from gloader.samplers import CscGraph
from gloader.samplers.graph import EdgeLists, HeldScan
from gloader.samplers.list_rule import ListDraws, ListRule
from gloader.samplers.sweeping import swept_nodes
from gloader.types import BatchId, BatchSeeds, Links, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from gloader.samplers import Topology
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.sweeping import Frontier, HopRule
    from gloader.types import AnySeeds, Block, IdArray, Sampler


# ruff: noqa: S101 - checks that are shipped, for suites to call


# Any links, to check that samplers pass them on unchanged.
LINKS = Links(
    pairs=np.array([[0, 1], [1, 2]], dtype=np.int32),
    labels=np.array([1, 0], dtype=np.float32),
    edge_ids=np.array([5, -1]),
    num_positives=1,
)


def edges_to_exclude(graph: CscGraph, nodes: IdArray, number: int = 0) -> IdArray:
    """Return ascending edge positions (X,) to exclude. Pure.

    These are all in-edges of the first node, half of the in-edges of every third node, and none of the node after it.
    Of all other edges they are 2%.

    Parameters
    ----------
    graph : the graph
    nodes : the batch's seeds; in-edges of other nodes are excluded as well, because a later hop may find them
    number : seed of the choice; another number gives other edges
    """
    random = np.random.default_rng(number)
    chance = np.full(graph.num_nodes, 0.02)
    chance[nodes[::3]] = 0.5
    chance[nodes[:1]] = 1.0
    chance[nodes[1::3]] = 0.0
    edges: IdArray = np.flatnonzero(random.random(graph.num_edges) < np.repeat(chance, np.diff(graph.indptr)))
    return edges


def require_left_out(blocks: Iterable[Block], excluded: IdArray) -> None:
    """Check that none of ``blocks`` has an edge from ``excluded``. Pure. The AssertionError names some edges."""
    for block in blocks:
        found = np.intersect1d(block.edge_ids, excluded)
        assert len(found) == 0, (
            f"excluded edges were taken: {found[:5].tolist()} in a block of {len(block.edge_ids)}"
        )


def require_full(graph: CscGraph, nodes: IdArray, found: Block, plain: Block, excluded: IdArray) -> None:
    """Check the hop next to the seeds against the same hop without exclusion. Pure.

    A node without excluded edges takes the same edges. Other nodes take as many, if enough edges are left.

    Parameters
    ----------
    graph : the topology
    nodes : (D,) destinations of both blocks
    found, plain : blocks with and without the exclusion
    excluded : ascending edge positions
    """
    starts, stops = graph.indptr[nodes], graph.indptr[nodes + 1]
    # (D,) in-edges that are not excluded.
    left = stops - starts - (np.searchsorted(excluded, stops) - np.searchsorted(excluded, starts))
    taken, before = np.diff(found.indptr), np.diff(plain.indptr)
    short = np.flatnonzero(taken < np.minimum(before, left))
    assert len(short) == 0, f"fan-outs are not full: nodes {nodes[short][:5].tolist()} had edges left"
    for position in np.flatnonzero(left == stops - starts).tolist():
        with_exclusion, without = (
            block.edge_ids[block.indptr[position] : block.indptr[position + 1]].tolist()
            for block in (found, plain)
        )
        assert with_exclusion == without, (
            f"node {nodes[position]} has no excluded edge, and draws other edges than without exclusion"
        )


# ruff: noqa: S101 - tests that are shipped, for samplers elsewhere to inherit


NUM_NODES = 600
_NUM_BATCHES = 12
_BATCH_SIZE = 50  # seeds per batch
_SWITCH_S = 1e-5  # seconds between thread switches: short, so that several threads are inside a call at once


def make_graph(*, num_nodes: int = NUM_NODES, max_degree: int = 80, seed: int = 0) -> CscGraph:
    """Return a graph with isolated nodes, parallel edges, self loops and weights, some of them 0. Pure.

    Parameters
    ----------
    num_nodes : N
    max_degree : degrees are uniform in 0..max_degree
    seed : equal arguments give equal graphs
    """
    random = np.random.default_rng(seed)
    degrees = random.integers(0, max_degree + 1, num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    num_edges = int(indptr[-1])
    return CscGraph(
        indptr=indptr,
        indices=random.integers(0, num_nodes, num_edges).astype(np.int32),
        edge_weight=random.random(num_edges) * (random.random(num_edges) > 0.2),
    )


def batch_bytes(batch: SampledBatch) -> dict[str, bytes]:
    """Return the fields of ``batch`` as bytes, by name, weights included: equal batches give equal bytes. Pure."""
    named = {
        "id": repr(batch.id).encode(),
        "num_seeds": repr(batch.num_seeds).encode(),
        "nodes": batch.nodes.tobytes(),
    }
    for hop, block in enumerate(batch.blocks):
        for name in ("indptr", "indices", "edge_ids", "edge_weight"):
            array = getattr(block, name)
            named |= {} if array is None else {f"blocks[{hop}].{name}": array.tobytes()}
    return named


def require_same(found: dict[str, bytes], expected: dict[str, bytes], batch_id: BatchId, reason: str) -> None:
    """Check that two results of `batch_bytes` are equal. Pure. The AssertionError names the differing fields.

    Parameters
    ----------
    found, expected : the fields as bytes, by name
    batch_id : id of both batches
    reason : text for the message: a sampler's defect that explains a difference
    """
    # The message has only names, because pytest would print the bytes of both.
    differing = [name for name in expected | found if found.get(name) != expected.get(name)]
    assert not differing, f"{reason}: {batch_id} differs in {', '.join(differing)}"


def draw_hops(
    rule: HopRule, graph: CscGraph, batch_id: BatchId, seeds: AnySeeds, *, width: int = 64
) -> list[NDArray[Any]]:
    """Return the drawn array of each hop of a batch, as passes over the edges deliver them. Pure.

    Parameters
    ----------
    rule : the sampler's rule
    graph : the sampled graph
    batch_id, seeds : the batch's id and seeds
    width : largest number of positions that the rule lists at once
    """
    frontier = rule.begin(batch_id, seeds)
    drawn: list[NDArray[Any]] = []
    for hop in range(rule.num_hops):
        assert frontier.hop == hop
        drawn.append(draw_hop(rule, graph, frontier, width=width))
        frontier = rule.extend(frontier, drawn[-1])
    return drawn


def draw_hop(rule: HopRule, graph: CscGraph, frontier: Frontier, *, width: int = 64) -> NDArray[Any]:
    """Return the drawn array for ``frontier``, see `draw_hops`. Pure."""
    # A list rule sees all edges and chooses among them. Other rules list the positions that they take.
    if isinstance(rule, ListRule):
        return _choose(rule, graph, frontier)
    return graph.indices[list_positions(cast("UniformPickRule", rule), frontier, width=width)]


def list_positions(rule: UniformPickRule, frontier: Frontier, *, width: int = 64) -> IdArray:
    """Return the edge positions (K,) that ``frontier`` takes, asked for in portions of at most ``width``. Pure."""
    portions = rule.portions([frontier])
    ids = np.empty((1, width), np.int64)
    taken, ends, has_more = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.bool_)
    pieces = []
    while has_more[0]:
        portions.fill(ids, taken, ends, has_more)
        assert ends[0] or not has_more[0], "a portion without a position, and more are to come"
        pieces.append(ids[0, : ends[0]].copy())
        taken[:] = ends
    return np.concatenate(pieces)


def _choose(rule: ListRule, graph: CscGraph, frontier: Frontier) -> NDArray[Any]:
    """Return the rule's draws for ``frontier``. The rule is offered all edges, in pieces of 1000 as in a pass."""
    words: list[NDArray[Any]] = []
    draws = ListDraws(rule, [frontier], capacity=64)
    weights = np.zeros(0) if graph.edge_weight is None else graph.edge_weight
    for begin in range(0, graph.num_edges, 1000):
        piece = slice(begin, begin + 1000)
        draws.offer(begin, graph.indices[piece], weights[piece], lambda _, taken: words.append(taken.copy()))
    draws.finish(lambda _, taken: words.append(taken.copy()))
    return np.concatenate([np.empty(0, rule.word_dtype), *words])


class _CopiedValues:
    """`EdgeValues` like those of a graph on the SSD: each request gets its own copy of the values.

    Parameters
    ----------
    array : (E,) a value for each edge
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def at(self, positions: IdArray) -> tuple[NDArray[Any], IdArray]:
        return self._array[positions], np.arange(len(positions))

    def lists(self, starts: IdArray, degrees: IdArray, first: int, last: int) -> EdgeLists:
        """Return the values of the nodes ``first`` to ``last``, one node's list after another."""
        list_starts = np.zeros(len(starts), dtype=np.int64)
        list_starts[first:last] = np.cumsum(degrees[first:last]) - degrees[first:last]
        copied = [
            self._array[start : start + degree]
            for start, degree in zip(starts[first:last], degrees[first:last], strict=True)
        ]
        values = np.concatenate([self._array[:0], *copied])
        return EdgeLists(values=values, starts=list_starts, origins=starts)

    def scan(self) -> HeldScan:
        return HeldScan(array=self._array.copy())

    def pieces(self) -> Iterator[NDArray[Any]]:
        for start in range(0, len(self._array), 1000):
            yield self._array[start : start + 1000].copy()

    def fetch_bytes(self, num_edges: int) -> int:
        return (self._array.itemsize + 8) * num_edges

    def list_bytes(self, num_edges: int) -> int:
        return self._array.itemsize * num_edges


class GraphOnDisk:
    """A `Topology` without edge arrays, like a topology read page by page."""

    def __init__(self, graph: CscGraph) -> None:
        self.num_nodes, self.num_edges, self.num_sources = graph.num_nodes, graph.num_edges, graph.num_sources
        self.offsets = compact_offsets([graph.indptr], graph.num_nodes)
        self.sources = _CopiedValues(graph.indices)
        self.weights = None if graph.edge_weight is None else _CopiedValues(graph.edge_weight)
        self.times = None if graph.edge_time is None else _CopiedValues(graph.edge_time)
        self.held_bytes = self.offsets.num_bytes
        self.in_degrees = graph.in_degrees


class SamplerSuite:
    """Checks for every `Sampler`. A test class inherits them and provides `make_sampler`."""

    is_random = True  # False if the sampler always takes all neighbours
    takes_batch_seeds = False  # True if the sampler also takes `BatchSeeds`, which link loaders pass

    def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
        """Return a sampler for ``graph``, with any number of hops. It must not take all of a node's 80 neighbours."""
        raise NotImplementedError

    @pytest.fixture
    def graph(self) -> CscGraph:
        """The graph for most checks."""
        return make_graph()

    @pytest.mark.parametrize("num_seeds", [0, 1, 7, NUM_NODES])
    def test_blocks_chain_from_the_features_to_the_seeds(self, graph: CscGraph, num_seeds: int) -> None:
        """Every batch is well-formed: dtypes, shapes, seeds first, local ids in range."""
        seeds = np.random.default_rng(num_seeds).permutation(NUM_NODES)[:num_seeds]
        batch_id = BatchId(epoch=2, index=5)
        batch = self.make_sampler(graph, seed=3).sample(batch_id, seeds)
        assert batch.id == batch_id
        assert batch.num_seeds == num_seeds
        assert batch.nodes.dtype == np.int64
        assert batch.nodes[:num_seeds].tolist() == seeds.tolist()
        assert len(np.unique(batch.nodes)) == len(batch.nodes)
        assert batch.blocks[0].num_src == len(batch.nodes)
        assert batch.blocks[-1].num_dst == num_seeds
        for outer, inner in pairwise(batch.blocks):
            assert outer.num_dst == inner.num_src
        for block in batch.blocks:
            assert block.num_dst <= block.num_src
            assert block.indptr.dtype == block.indices.dtype == np.int32
            assert block.edge_ids.dtype == np.int64
            assert block.indptr.shape == (block.num_dst + 1,)
            assert block.indptr[0] == 0
            assert block.indptr[-1] == block.num_edges == len(block.edge_ids)
            assert (np.diff(block.indptr) >= 0).all()
            assert ((block.indices >= 0) & (block.indices < block.num_src)).all()

    def test_every_edge_is_one_of_the_graph(self, graph: CscGraph) -> None:
        """An edge id identifies the edge's source, and its destination by the id's range."""
        batch = self.make_sampler(graph, seed=3).sample(BatchId(epoch=0, index=0), np.arange(60))
        # A sampler without edges would pass all checks below.
        assert sum(block.num_edges for block in batch.blocks)
        for block in batch.blocks:
            destination = np.repeat(batch.nodes[: block.num_dst], np.diff(block.indptr))
            assert (graph.indices[block.edge_ids] == batch.nodes[block.indices]).all()
            assert (graph.indptr[destination] <= block.edge_ids).all()
            assert (block.edge_ids < graph.indptr[destination + 1]).all()

    def test_weights_are_finite_and_positive(self, graph: CscGraph) -> None:
        """A sampled edge's weight, if any, is the number of graph edges that it represents: above 0, never NaN."""
        batch = self.make_sampler(graph, seed=3).sample(BatchId(epoch=0, index=0), np.arange(60))
        for block in batch.blocks:
            if block.edge_weight is not None:
                assert block.edge_weight.dtype == np.float32
                assert block.edge_weight.shape == (block.num_edges,)
                assert (np.isfinite(block.edge_weight) & (block.edge_weight > 0)).all()

    def test_seed_epoch_and_index_decide_the_batch(self, graph: CscGraph) -> None:
        """Equal (seed, epoch, index) give equal draws, also in a new sampler. Any other address gives other draws."""
        seeds = np.arange(80)
        first = BatchId(epoch=0, index=0)
        drawn = {
            address: batch_bytes(
                self.make_sampler(graph, seed=address[0]).sample(
                    BatchId(epoch=address[1], index=address[2]), seeds
                )
            )
            for address in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
        }
        again = self.make_sampler(graph, seed=0).sample(first, seeds)
        require_same(batch_bytes(again), drawn[0, 0, 0], first, "two samplers with one seed draw differently")
        if self.is_random:
            arrays = {address: fields | {"id": b""} for address, fields in drawn.items()}
            alike = [(one, other) for one, other in combinations(arrays, 2) if arrays[one] == arrays[other]]
            assert not alike, f"the same draws for different (seed, epoch, index): {alike}"

    def test_a_graph_on_the_ssd_gives_the_same_batches(self, graph: CscGraph) -> None:
        """A loader passes any `Topology`, also one with its edges on the SSD."""
        seeds = np.arange(60)
        held, on_disk = self.make_sampler(graph, seed=0), self.make_sampler(GraphOnDisk(graph), seed=0)
        for index in range(3):
            batch_id = BatchId(epoch=0, index=index)
            found, expected = on_disk.sample(batch_id, seeds), held.sample(batch_id, seeds)
            require_same(
                batch_bytes(found), batch_bytes(expected), batch_id, "it matters where the edges are"
            )

    def test_a_batch_is_made_of_what_passes_over_the_edges_brought(self, graph: CscGraph) -> None:
        """A sweepable sampler, see `SweptSampler`, makes the same batches from the draws of its hops."""
        sampler: Any = self.make_sampler(graph, seed=3)
        try:
            rule = sampler.rule
        except (AttributeError, ConfigError):  # sweeps are not supported
            return
        random = np.random.default_rng(0)
        for index, size in enumerate((0, 1, 60)):
            batch_id, seeds = BatchId(epoch=1, index=index), random.permutation(NUM_NODES)[:size]
            drawn = draw_hops(rule, graph, batch_id, seeds)
            found, expected = sampler.replay(batch_id, seeds, drawn), sampler.sample(batch_id, seeds)
            require_same(batch_bytes(found), batch_bytes(expected), batch_id, "a swept batch is another")
            (nodes,) = swept_nodes(rule, batch_id, seeds, drawn)
            assert nodes.tolist() == sorted(expected.nodes.tolist())

    def test_batches_drawn_before_do_not_matter(self, graph: CscGraph) -> None:
        """A sampler keeps no state from sampled or refused batches."""
        sampler, seeds, last = self.make_sampler(graph, seed=0), np.arange(40), BatchId(epoch=0, index=9)
        fresh = batch_bytes(self.make_sampler(graph, seed=0).sample(last, seeds))
        for index in range(5):
            sampler.sample(BatchId(epoch=0, index=index), seeds[index:])
            # A repeat is found in the middle of a kernel, with a half-filled map of nodes.
            for refused in ([NUM_NODES], [0, 1, 0]):
                with pytest.raises(SeedError):
                    sampler.sample(BatchId(epoch=0, index=index), np.array(refused))
        require_same(batch_bytes(sampler.sample(last, seeds)), fresh, last, "draws depend on calls before")

    def test_a_batch_is_not_the_samplers_scratch(self, graph: CscGraph) -> None:
        """A returned batch stays unchanged when the next one is sampled."""
        sampler = self.make_sampler(graph, seed=0)
        first = sampler.sample(BatchId(epoch=0, index=0), np.arange(40))
        before = batch_bytes(first)
        sampler.sample(BatchId(epoch=0, index=1), np.arange(40, 80))
        require_same(batch_bytes(first), before, first.id, "the next call overwrites a batch")

    def test_graph_and_seeds_are_left_alone(self, graph: CscGraph) -> None:
        """A sampler never writes to the graph's arrays or to the seeds."""
        seeds = np.arange(60)[::-1].copy()
        arrays = {"indptr": graph.indptr, "indices": graph.indices, "seeds": seeds}
        before = {name: array.tobytes() for name, array in arrays.items()}
        self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), seeds)
        changed = [name for name, array in arrays.items() if array.tobytes() != before[name]]
        assert not changed, f"the sampler wrote to {', '.join(changed)}"

    def test_threads_and_order_do_not_matter(self, graph: CscGraph) -> None:
        """One sampler serves many threads in any order. Each gets the batch that it would get alone."""
        expected = self._sample(self.make_sampler(graph, seed=0), threads=1, order=range(_NUM_BATCHES))
        # A thread usually keeps the interpreter for 5 ms, longer than a batch: no two calls would overlap.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            for threads in (2, 8):
                sampler = self.make_sampler(graph, seed=0)
                shuffled = np.random.default_rng(threads).permutation(_NUM_BATCHES).tolist()
                for order in (shuffled, range(_NUM_BATCHES)):
                    found = self._sample(sampler, threads=threads, order=order)
                    for batch_id, content in expected.items():
                        require_same(
                            found[batch_id], content, batch_id, "draws depend on calls before or beside"
                        )
        finally:
            sys.setswitchinterval(interval)

    @pytest.mark.parametrize("seeds", [[0, NUM_NODES], [-1], [2**40], [3, 4, 3]], ids=str)
    def test_seeds_that_are_no_distinct_nodes_are_refused(self, graph: CscGraph, seeds: list[int]) -> None:
        """Seeds that are repeated or out of range are named before a kernel sees them."""
        with pytest.raises(SeedError):
            self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), np.array(seeds))

    def test_seeds_that_are_no_ids_are_refused(self, graph: CscGraph) -> None:
        """Floats and matrices are no ids."""
        for seeds in (np.zeros(2), np.zeros((2, 1), np.int64)):
            with pytest.raises(SeedError, match="seeds have"):
                self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), seeds)  # type: ignore[arg-type]

    def test_batch_seeds_without_exclusion_give_the_batch_of_their_nodes(self, graph: CscGraph) -> None:
        """`BatchSeeds` without excluded edges give the same batch as their nodes. Their links are passed on."""
        if not self.takes_batch_seeds:
            return
        sampler, nodes, batch_id = self.make_sampler(graph, seed=0), np.arange(60), BatchId(epoch=0, index=4)
        expected = sampler.sample(batch_id, nodes)
        assert expected.links is None
        for excluded in ((), (nodes[:0],)):
            found = sampler.sample(batch_id, BatchSeeds(nodes=nodes, excluded=excluded, links=LINKS))
            assert found.links is LINKS
            require_same(batch_bytes(found), batch_bytes(expected), batch_id, "links change the draws")

    def test_excluded_edges_are_never_taken(self, graph: CscGraph) -> None:
        """No hop has excluded edges. Nodes still take as many edges, and other nodes draw the same edges.

        A sampler may also refuse exclusion with ConfigError.
        """
        if not self.takes_batch_seeds:
            return
        sampler: Any = self.make_sampler(graph, seed=3)
        all_seeds = [np.random.default_rng(index).permutation(NUM_NODES)[:_BATCH_SIZE] for index in range(8)]
        excluded = [edges_to_exclude(graph, seeds, index) for index, seeds in enumerate(all_seeds)]

        def sample(index: int, kind: Sampler = sampler) -> SampledBatch:
            given = BatchSeeds(nodes=all_seeds[index], excluded=(excluded[index],), links=LINKS)
            return kind.sample(BatchId(epoch=1, index=index), given)

        try:
            found = [sample(index) for index in range(len(all_seeds))]
        except ConfigError:  # exclusion is not supported
            return
        for index, batch in enumerate(found):
            plain = sampler.sample(batch.id, all_seeds[index])
            require_left_out(batch.blocks, excluded[index])
            require_full(graph, all_seeds[index], batch.blocks[-1], plain.blocks[-1], excluded[index])
            assert batch.links is LINKS
        on_disk = self.make_sampler(GraphOnDisk(graph), seed=3)
        with ThreadPoolExecutor(8) as pool:
            others = [*pool.map(sample, range(len(all_seeds))), sample(0, on_disk)]
        for batch, again in zip([*found, found[0]], others, strict=True):
            require_same(batch_bytes(again), batch_bytes(batch), batch.id, "draws depend on calls beside")
        for wrong in ((excluded[0][::-1],), (np.array([graph.num_edges]),), (excluded[0], excluded[0])):
            with pytest.raises(SeedError):
                sampler.sample(found[0].id, BatchSeeds(nodes=all_seeds[0], excluded=wrong))
        if (rule := getattr(sampler, "rule", None)) is not None:
            given = BatchSeeds(nodes=all_seeds[0], excluded=(excluded[0],), links=LINKS)
            swept = sampler.replay(found[0].id, given, draw_hops(rule, graph, found[0].id, given))
            require_same(batch_bytes(swept), batch_bytes(found[0]), swept.id, "a swept batch is another")
            assert swept.links is LINKS

    def test_nodes_without_neighbours_are_sampled(self) -> None:
        """A graph without edges gives blocks without edges, whose only nodes are the seeds."""
        empty = CscGraph(indptr=np.zeros(9, np.int64), indices=np.zeros(0, np.int32), edge_weight=np.zeros(0))
        batch = self.make_sampler(empty, seed=0).sample(BatchId(epoch=0, index=0), np.array([4, 1]))
        assert batch.nodes.tolist() == [4, 1]
        assert all(block.num_edges == 0 and block.num_src == block.num_dst == 2 for block in batch.blocks)

    def _sample(
        self, sampler: Sampler, *, threads: int, order: Iterable[int]
    ) -> dict[BatchId, dict[str, bytes]]:
        """Return the `batch_bytes` of every batch in ``order``, sampled in this order by several threads."""
        seeds: IdArray = np.random.default_rng(7).permutation(NUM_NODES)

        def one(index: int) -> tuple[BatchId, dict[str, bytes]]:
            batch_id = BatchId(epoch=1, index=index)
            part = seeds[index * _BATCH_SIZE : (index + 1) * _BATCH_SIZE]
            return batch_id, batch_bytes(sampler.sample(batch_id, part))

        with ThreadPoolExecutor(threads) as pool:
            return dict(pool.map(one, order))
