"""The hot rows of several tables, by their edges of all relations."""

import numpy as np
import pytest

from gloader.cache import inclusion_probabilities
from gloader.config import DeviceHotness
from gloader.core.order import EpochOrder
from gloader.device.hot_rows import RowHeat, heat_of_tables
from gloader.samplers import CscGraph, HeteroGraph, NeighborSampler
from gloader.types import IdArray, Relation

NUM_NODES = {"paper": 60, "term": 5, "author": 30}
RELATIONS: tuple[Relation, ...] = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("term", "of", "paper"),
    ("paper", "by", "author"),
)


def _graph() -> HeteroGraph:
    rng = np.random.default_rng(5)

    def edges(relation: Relation) -> CscGraph:
        source, _, destination = relation
        degrees = rng.integers(0, 5, NUM_NODES[destination])
        indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
        indices = (NUM_NODES[source] * rng.random(indptr[-1]) ** 2).astype(np.int32)
        return CscGraph(indptr=indptr, indices=indices, num_sources=NUM_NODES[source])

    return HeteroGraph(num_nodes=NUM_NODES, relations={relation: edges(relation) for relation in RELATIONS})


def _order(seeds: IdArray) -> EpochOrder:
    return EpochOrder(seeds=seeds, num_nodes=sum(NUM_NODES.values()), batch_size=min(len(seeds), 8), seed=0)


def _heat(hotness: DeviceHotness, graph: HeteroGraph, seeds: IdArray) -> tuple[RowHeat, ...]:
    sampler = NeighborSampler(graph.relations[RELATIONS[1]], [2, 2], seed=0)  # not asked: nothing is counted
    return heat_of_tables(
        hotness,
        (0, 2),
        graph=graph,
        sampler=sampler,
        order=_order(seeds),
        fanouts=[(2, 2)] * len(RELATIONS),
        is_collective=False,
    )


def test_the_degree_of_a_row_is_that_along_every_relation_from_its_type() -> None:
    graph = _graph()
    papers, authors = _heat("degree", graph, np.arange(20))
    lists = {relation: edges.indices for relation, edges in graph.relations.items()}
    from_papers = np.concatenate([lists[RELATIONS[1]], lists[RELATIONS[3]]])
    np.testing.assert_array_equal(papers.scores, np.bincount(from_papers, minlength=60))
    np.testing.assert_array_equal(authors.scores, np.bincount(lists[RELATIONS[0]], minlength=30))


def test_the_chance_of_a_row_begins_with_the_seeds_of_its_type() -> None:
    # Numbered through: 60 papers and 5 terms come before the authors.
    papers, authors = _heat("vip", _graph(), np.array([65 + 4, 65 + 9, 3]))
    assert authors.scores[[4, 9]].tolist() == [1, 1]
    assert papers.scores[3] == 1
    assert 0 < (papers.scores > 0).sum() < 60
    assert max(papers.scores.max(), authors.scores.max()) <= 1


@pytest.mark.parametrize("hotness", ["degree", "vip"])
def test_one_type_is_as_hot_as_its_edges_alone_say(hotness: DeviceHotness) -> None:
    topology = _graph().relations[RELATIONS[1]]
    graph = HeteroGraph(num_nodes={"paper": 60}, relations={RELATIONS[1]: topology})
    sampler = NeighborSampler(topology, [2, 2], seed=0)
    order = EpochOrder(seeds=np.arange(0, 60, 3), num_nodes=60, batch_size=4, seed=0)
    (heat,) = heat_of_tables(
        hotness, (0,), graph=graph, sampler=sampler, order=order, fanouts=[(2, 2)], is_collective=False
    )
    scores = np.bincount(topology.indices, minlength=60).astype(np.float64)
    if hotness == "vip":
        scores = inclusion_probabilities(
            topology.offsets,
            topology.sources.pieces,
            seeds=order.seeds,
            batch_size=order.batch_size,
            fanouts=(2, 2),
        )
    np.testing.assert_array_equal(heat.scores, scores)


def test_rows_that_were_not_seen_fill_up_by_their_degree() -> None:
    heat = RowHeat(scores=np.array([0, 3, 0, 1]), degrees=lambda: np.array([5, 0, 9, 0]))
    assert heat.plan(3).rows.tolist() == [1, 2, 3]
    assert heat.plan(1).rows.tolist() == [1]
    assert heat.plan(1).expected_hit_rate == 0.75
    assert heat.plan(0).rows.tolist() == []
    assert heat.plan(4).holds_all
