"""The conformance suite for samplers over several node types. A test class inherits it and makes the sampler.

The test graph has four node types, one of them without nodes, and six relations, two of them without edges. A relation
is an edge type: source type, name, destination type. A sweepable sampler has a rule, with which passes over the edge
files draw its batches hop by hop, see `gloader.testing.sampler_suite`. Here each hop has one drawn array per relation.
"""

# ruff: noqa: S101 - tests that are shipped, for samplers elsewhere to inherit

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import ConfigError, SeedError
from gloader.samplers import CscGraph, HeteroGraph
from gloader.samplers.sweeping import swept_nodes
from gloader.testing.sampler_suite import (
    LINKS,
    GraphOnDisk,
    draw_hop,
    edges_to_exclude,
    require_full,
    require_left_out,
    require_same,
)
from gloader.types import BatchId, BatchSeeds, HeteroBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.samplers.hetero import HeteroRule
    from gloader.types import AnySeeds, HeteroSampler, IdArray, Relation

_NUM_NODES = {"paper": 500, "author": 400, "nobody": 0, "field": 30}
_RELATIONS: dict[Relation, int] = {  # largest in-degree in each relation
    ("paper", "cites", "paper"): 60,
    ("author", "writes", "paper"): 12,
    ("paper", "written_by", "author"): 40,
    ("author", "likes", "field"): 0,
    ("nobody", "knows", "paper"): 0,
    ("field", "of", "paper"): 3,
}
_NUM_SEEDS = 80


def make_hetero_graph(seed: int = 0) -> HeteroGraph:
    """Return a graph with a type without nodes, relations without edges, and weights, some of them 0. Pure.

    Parameters
    ----------
    seed : equal arguments give equal graphs
    """
    random = np.random.default_rng(seed)
    relations = {}
    for relation, max_degree in _RELATIONS.items():
        num_nodes, num_sources = _NUM_NODES[relation[2]], _NUM_NODES[relation[0]]
        degrees = random.integers(0, max_degree + 1, num_nodes)
        num_edges = int(degrees.sum())
        relations[relation] = CscGraph(
            indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
            indices=random.integers(0, max(num_sources, 1), num_edges).astype(np.int32),
            edge_weight=random.random(num_edges) * (random.random(num_edges) > 0.2),
            num_sources=num_sources,
        )
    return HeteroGraph(num_nodes=_NUM_NODES, relations=relations)


def hetero_batch_bytes(batch: HeteroBatch) -> dict[str, bytes]:
    """Return every field of ``batch`` as bytes, by name: equal batches give equal bytes. Pure."""
    named = {"id": repr(batch.id).encode(), "num_seeds": repr(dict(batch.num_seeds)).encode()}
    named |= {f"nodes[{name}]": found.tobytes() for name, found in batch.nodes.items()}
    for hop, blocks in enumerate(batch.blocks):
        for relation, block in blocks.items():
            prefix = f"blocks[{hop}][{':'.join(relation)}]"
            named[prefix] = repr((block.num_src, block.num_dst)).encode()
            for name in ("indptr", "indices", "edge_ids", "edge_weight"):
                array = getattr(block, name)
                named |= {} if array is None else {f"{prefix}.{name}": array.tobytes()}
    return named


def draw_hetero_hops(
    rule: HeteroRule, graph: HeteroGraph, batch_id: BatchId, seeds: AnySeeds
) -> list[tuple[NDArray[Any], ...]]:
    """Return each relation's draws in each hop of a batch, as passes over the edges deliver them. Pure.

    Parameters
    ----------
    rule : the sampler's rule
    graph : the sampled graph
    batch_id, seeds : the batch's id and seeds

    Returns
    -------
    For each hop, one array per relation: the draws of the hop's frontier, the nodes that draw. It is empty for a
    relation without such nodes.
    """
    frontier = rule.begin(batch_id, seeds)
    drawn = []
    for _ in range(rule.num_hops):
        hop_draws: list[NDArray[Any]] = []
        for relation_rule, topology, part in zip(
            rule.rules, graph.relations.values(), rule.parts(frontier), strict=True
        ):
            assert isinstance(topology, CscGraph)
            hop_draws.append(
                np.empty(0, np.int32) if part is None else draw_hop(relation_rule, topology, part)
            )
        drawn.append(tuple(hop_draws))
        frontier = rule.extend(frontier, drawn[-1])
    return drawn


class HeteroSamplerSuite:
    """Checks for every `HeteroSampler`. A test class inherits them and provides `make_sampler`."""

    takes_batch_seeds = False  # True if the sampler also takes `BatchSeeds`, which link loaders pass

    def make_sampler(self, graph: HeteroGraph, *, seed: int) -> HeteroSampler:
        """Return a sampler for ``graph``, with any number of hops."""
        raise NotImplementedError

    @pytest.fixture
    def graph(self) -> HeteroGraph:
        """The graph for the checks."""
        return make_hetero_graph()

    def test_every_type_and_relation_is_there_and_blocks_chain(self, graph: HeteroGraph) -> None:
        """Every batch is well-formed, even without seeds, nodes or edges of a type."""
        sampler = self.make_sampler(graph, seed=3)
        # Seeds of several types, no seeds, and seeds of one type. A seed is a node's number over all types.
        for seeds in (_seeds(graph), np.empty(0, np.int64), graph.type_starts[1:2] + np.arange(9)):
            batch = sampler.sample(BatchId(epoch=2, index=5), seeds)
            assert tuple(batch.nodes) == tuple(batch.num_seeds) == graph.node_types
            assert sum(batch.num_seeds.values()) == len(seeds)
            for start, (name, nodes) in zip(graph.type_starts, batch.nodes.items(), strict=False):
                wanted = seeds[(seeds >= start) & (seeds < start + graph.num_nodes[name])] - start
                assert nodes[: batch.num_seeds[name]].tolist() == wanted.tolist()
                assert len(np.unique(nodes)) == len(nodes)
            for blocks in batch.blocks:
                assert list(blocks) == list(graph.relations)
            for relation in graph.relations:
                source, _, destination = relation
                assert batch.blocks[0][relation].num_src == len(batch.nodes[source])
                assert batch.blocks[-1][relation].num_dst == batch.num_seeds[destination]
                for outer, inner in pairwise(batch.blocks):
                    # A type's rows are one layer's output and the next layer's input.
                    found = {of[0]: block.num_src for of, block in inner.items()}
                    assert outer[relation].num_dst == found.get(destination, outer[relation].num_dst)

    def test_every_edge_is_one_of_its_relation(self, graph: HeteroGraph) -> None:
        """An edge id identifies the edge's source, and its destination by the id's range."""
        batch = self.make_sampler(graph, seed=3).sample(BatchId(epoch=0, index=0), _seeds(graph))
        assert sum(block.num_edges for block in batch.all_blocks)
        for blocks in batch.blocks:
            for relation, block in blocks.items():
                topology = graph.relations[relation]
                assert isinstance(topology, CscGraph)
                sources, destinations = batch.nodes[relation[0]], batch.nodes[relation[2]]
                edge_destinations = np.repeat(destinations[: block.num_dst], np.diff(block.indptr))
                assert (topology.indices[block.edge_ids] == sources[block.indices]).all()
                assert (topology.indptr[edge_destinations] <= block.edge_ids).all()
                assert (block.edge_ids < topology.indptr[edge_destinations + 1]).all()
                assert ((block.indices >= 0) & (block.indices < block.num_src)).all()

    def test_relations_on_the_ssd_give_the_same_batches(self, graph: HeteroGraph) -> None:
        """A loader passes any `Topology`, also one with its edges on the SSD."""
        paged = HeteroGraph(
            num_nodes=graph.num_nodes,
            relations={
                name: GraphOnDisk(held)
                for name, held in graph.relations.items()
                if isinstance(held, CscGraph)
            },
        )
        batch_id, seeds = BatchId(epoch=0, index=1), _seeds(graph)
        found, expected = (self.make_sampler(of, seed=0).sample(batch_id, seeds) for of in (paged, graph))
        reason = "it matters where the edges are"
        require_same(hetero_batch_bytes(found), hetero_batch_bytes(expected), batch_id, reason)

    def test_a_batch_is_made_of_what_passes_over_the_edges_brought(self, graph: HeteroGraph) -> None:
        """A sweepable sampler, see `SweptSampler`, makes the same batches from the draws of its hops."""
        sampler: Any = self.make_sampler(graph, seed=3)
        try:
            rule = sampler.rule
        except (AttributeError, ConfigError):  # sweeps are not supported
            return
        for index, seeds in enumerate(
            (_seeds(graph), _seeds(graph)[:0], graph.type_starts[1:2] + np.arange(9))
        ):
            batch_id = BatchId(epoch=1, index=index)
            drawn = draw_hetero_hops(rule, graph, batch_id, seeds)
            found, expected = sampler.replay(batch_id, seeds, drawn), sampler.sample(batch_id, seeds)
            reason = "a swept batch is another"
            require_same(hetero_batch_bytes(found), hetero_batch_bytes(expected), batch_id, reason)
            nodes = swept_nodes(rule, batch_id, seeds, drawn)
            assert [of_type.tolist() for of_type in nodes] == [
                sorted(of_type.tolist()) for of_type in expected.nodes.values()
            ]

    def test_excluded_edges_of_any_relation_are_never_taken(self, graph: HeteroGraph) -> None:
        """No hop has excluded edges. Nodes still take as many edges, and other nodes draw the same edges.

        A sampler may also refuse exclusion with ConfigError.
        """
        if not self.takes_batch_seeds:
            return
        sampler: Any = self.make_sampler(graph, seed=3)
        batch_id, seeds = BatchId(epoch=1, index=2), _seeds(graph)
        plain = sampler.sample(batch_id, seeds)
        graphs = {name: of for name, of in graph.relations.items() if isinstance(of, CscGraph)}
        nothing = BatchSeeds(nodes=seeds, excluded=(np.empty(0, np.int64),) * len(graphs), links=LINKS)
        same = sampler.sample(batch_id, nothing)
        assert same.links is LINKS
        require_same(hetero_batch_bytes(same), hetero_batch_bytes(plain), batch_id, "links change the draws")
        excluded = {
            name: edges_to_exclude(of, plain.nodes[name[2]][: plain.num_seeds[name[2]]])
            for name, of in graphs.items()
        }
        given = BatchSeeds(nodes=seeds, excluded=tuple(excluded.values()), links=LINKS)
        try:
            found = sampler.sample(batch_id, given)
        except ConfigError:  # exclusion is not supported
            return
        for number, (name, of) in enumerate(graphs.items()):
            require_left_out((blocks[name] for blocks in found.blocks), excluded[name])
            nodes = found.nodes[name[2]][: found.num_seeds[name[2]]]
            require_full(of, nodes, found.blocks[-1][name], plain.blocks[-1][name], excluded[name])
            reversed_one = [*excluded.values()]
            reversed_one[number] = excluded[name][::-1]
            if of.num_edges:
                with pytest.raises(SeedError, match=":".join(name)):
                    sampler.sample(batch_id, BatchSeeds(nodes=seeds, excluded=tuple(reversed_one)))
        if (rule := getattr(sampler, "rule", None)) is not None:
            swept = sampler.replay(batch_id, given, draw_hetero_hops(rule, graph, batch_id, given))
            reason = "a swept batch is another"
            require_same(hetero_batch_bytes(swept), hetero_batch_bytes(found), batch_id, reason)
            assert swept.links is LINKS

    def test_threads_order_and_refused_seeds_do_not_matter(self, graph: HeteroGraph) -> None:
        """One sampler serves many threads. Each gets the batch that it would get alone."""
        ids = [BatchId(epoch=1, index=index) for index in range(16)]

        def one(sampler: HeteroSampler, batch_id: BatchId) -> dict[str, bytes]:
            with pytest.raises(SeedError):
                sampler.sample(batch_id, np.array([0, 1, 0]))
            return hetero_batch_bytes(sampler.sample(batch_id, _seeds(graph, batch_id.index)))

        expected = [one(self.make_sampler(graph, seed=0), batch_id) for batch_id in ids]
        shared = self.make_sampler(graph, seed=0)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda batch_id: one(shared, batch_id), ids))
        for batch_id, ours, alone in zip(ids, found, expected, strict=True):
            require_same(ours, alone, batch_id, "draws depend on calls before or beside")

    def test_a_batch_is_not_the_samplers_scratch(self, graph: HeteroGraph) -> None:
        """A returned batch stays unchanged when the next one is sampled."""
        sampler = self.make_sampler(graph, seed=0)
        first = sampler.sample(BatchId(epoch=0, index=0), _seeds(graph))
        before = hetero_batch_bytes(first)
        sampler.sample(BatchId(epoch=0, index=1), _seeds(graph, 1))
        require_same(hetero_batch_bytes(first), before, first.id, "the next call overwrites a batch")


def _seeds(graph: HeteroGraph, number: int = 0) -> IdArray:
    """Return seeds (80,) of several types in a mixed order, as node numbers over all types.

    Another ``number`` gives other seeds.
    """
    random = np.random.default_rng(number)
    return random.permutation(graph.type_starts[-1])[:_NUM_SEEDS]
