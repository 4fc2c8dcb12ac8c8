"""Lists that stream by in pieces give the batches of the sampler that has them in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gloader.errors import ConfigError, GraphError, ShapeError
from gloader.samplers import CscGraph, make_sampler
from gloader.samplers import list_rule as list_rules
from gloader.samplers.list_rule import ListDraws, ListRule
from gloader.samplers.rng import layer_key, relation_key
from gloader.samplers.sweeping import Frontier
from gloader.testing.sampler_suite import batch_bytes, require_same
from gloader.types import BatchId

NODES = 40


def make_lists(seed: int) -> CscGraph:
    """A hub, isolated nodes, parallel edges, self loops, weights of 0 and lists of nothing else."""
    random = np.random.default_rng(seed)
    degrees = random.choice([0, 1, 3, 9, 40], NODES)
    degrees[random.integers(NODES)] = 300
    owner = np.repeat(np.arange(NODES), degrees)
    sources = np.where(random.random(len(owner)) < 0.1, owner, random.integers(0, NODES, len(owner)))
    # Few different weights: arrivals of the same number tie.
    weights = random.choice([0.0, 0.25, 1.0, 3.5], len(owner)) * (owner % 5 != 2)
    return CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        indices=sources.astype(np.int32),
        edge_weight=weights.astype(np.float32),
    )


# Every option with every other; pieces, room and fan-outs go round beside them, and meet in other ways.
KINDS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("weighted", {"importance": on, "layout": layout})
        for on in (True, False)
        for layout in ("layered", "merged")
    ),
    *(
        ("labor", {"share_layers": one, "normalize": other})
        for one in (True, False)
        for other in (True, False)
    ),
]
FANOUTS = [[2, 5], [5, 0, -1], [17, 1], [-1, 2], [1000]]
SIZES, CAPACITIES = [1, 7, 64, 10_000], [1, 5, 40]


def draw_all(
    rule: ListRule, graph: CscGraph, frontiers: list[Frontier], *, size: int, capacity: int
) -> list[np.ndarray]:
    """Let lists pass in pieces of ``size`` edges; owners gather ``capacity`` words."""
    words: list[list[np.ndarray]] = [[] for _ in frontiers]

    def take(owner: int, data: np.ndarray) -> None:
        assert len(data) <= capacity
        words[owner].append(data.copy())

    draws = ListDraws(rule, frontiers, capacity=capacity)
    for begin in range(0, graph.num_edges, size):
        here = slice(begin, begin + size)
        draws.offer(begin, graph.indices[here].copy(), graph.edge_weight[here].copy(), take)
    draws.finish(take)
    return [np.concatenate([np.empty(0, rule.word_dtype), *parts]) for parts in words]


@pytest.mark.parametrize(
    "case", [*range(24), *(pytest.param(case, marks=pytest.mark.long) for case in range(24, 480))]
)
def test_any_pieces_give_the_batch_of_the_sampler_in_memory(case: int) -> None:
    kind, fanouts = KINDS[case % 8], FANOUTS[case % 5]
    size, capacity, seed = SIZES[case // 8 % 4], CAPACITIES[case % 3], 2**64 - case
    graph = make_lists(case)
    sampler: Any = make_sampler(kind[0], graph, fanouts, seed, **kind[1])
    seeds = [np.random.default_rng(index).permutation(NODES)[: 4 * index] for index in range(3)]
    ids = [BatchId(epoch=1, index=index) for index in range(3)]
    frontiers = [sampler.rule.begin(*begin) for begin in zip(ids, seeds, strict=True)]
    drawn: list[list[np.ndarray]] = [[], [], []]
    for _ in fanouts:
        found = draw_all(sampler.rule, graph, frontiers, size=size, capacity=capacity)
        for records, of_batch in zip(found, drawn, strict=True):
            of_batch.append(records)
        frontiers = [sampler.rule.extend(*one) for one in zip(frontiers, found, strict=True)]
    for batch_id, of_batch, nodes, frontier in zip(ids, drawn, seeds, frontiers, strict=True):
        batch = sampler.replay(batch_id, nodes, of_batch)
        expected = sampler.sample(batch_id, nodes)
        require_same(batch_bytes(batch), batch_bytes(expected), batch_id, "pieces and whole lists")
        assert np.array_equal(np.sort(batch.nodes), frontier.seen)


def list_graph(weights: list[float], *, validate: bool = True) -> CscGraph:
    """Node 0 receives from itself by every edge."""
    return CscGraph(
        indptr=np.array([0, len(weights), len(weights)]),
        indices=np.zeros(len(weights), np.int32),
        edge_weight=np.array(weights, np.float32),
        validate=validate,
    )


@pytest.mark.parametrize("fanout", [-1, 2])
@pytest.mark.parametrize("weight", [-1.0, np.inf, np.nan])
def test_weights_that_cannot_be_are_the_error_of_the_sampler_in_memory(fanout: int, weight: float) -> None:
    graph = list_graph([1.0, weight, 1.0, 1.0], validate=False)
    sampler: Any = make_sampler("weighted", graph, [fanout])
    batch_id, seeds = BatchId(epoch=0, index=0), np.array([0])
    with pytest.raises(
        GraphError, match=r"edge_weight\[0:4\], the in-edges of node 0: one is below 0 or not finite"
    ):
        draw_all(sampler.rule, graph, [sampler.rule.begin(batch_id, seeds)], size=3, capacity=64)
    if fanout > 0:
        with pytest.raises(
            GraphError, match=r"edge_weight\[0:4\], the in-edges of node 0: one is below 0 or not finite"
        ):
            sampler.sample(batch_id, seeds)


def test_edges_that_are_left_out_and_records_of_others_are_noticed() -> None:
    graph = list_graph([1.0] * 8)
    sampler: Any = make_sampler("weighted", graph, [2, 2], 1)
    rule, batch_id, seeds = sampler.rule, BatchId(epoch=0, index=0), np.array([0])
    frontier = rule.begin(batch_id, seeds)
    values = np.zeros(2, np.int32), np.ones(2, np.float32)
    draws = ListDraws(rule, [frontier], capacity=64)
    draws.offer(0, *values, lambda _owner, _words: None)
    with pytest.raises(GraphError, match="edge 2, an in-edge of node 0, was passed over: edges from 4 on"):
        draws.offer(4, *values, lambda _owner, _words: None)
    with pytest.raises(GraphError, match="edge 2, an in-edge of node 0, was passed over"):
        draws.finish(lambda _owner, _words: None)
    records = draw_all(rule, graph, [frontier], size=8, capacity=64)[0]
    assert len(sampler.replay(batch_id, seeds, [records, records]).nodes) == 1
    for wrong in (records[:0], np.tile(records, 2), np.abs(records)):
        with pytest.raises(GraphError, match=r"hop 1 of .*: \d records do not match its 1 nodes"):
            sampler.replay(batch_id, seeds, [records, wrong])
    with pytest.raises(ShapeError, match="1 drawn arrays for a batch of 2 hops"):
        sampler.replay(batch_id, seeds, [records])
    with pytest.raises(GraphError, match=r"77, the source of an edge that hop 0 of .* took, is not in 0..1"):
        rule.extend(frontier, np.array([-1, 77, 0], np.int32))


def test_a_list_too_long_for_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = list_graph([1.0] * 8)
    rule = make_sampler("labor", graph, [2]).rule  # type: ignore[attr-defined]
    monkeypatch.setattr(list_rules.list_kernels, "MOST_EDGES", 7)
    frontier = rule.begin(BatchId(epoch=0, index=0), np.array([0]))
    with pytest.raises(ConfigError, match=r"has 8 in-edges, .* at most 7 per list; use topology='direct'"):
        rule.mark(frontier, np.zeros(1, np.uint64), per_page=1024)


@pytest.mark.parametrize(
    ("name", "options", "instead"),
    [("weighted", {"replace": True}, "weighted:replace=false"), ("labor", {"iterations": 1}, "iterations=0")],
)
def test_samplers_that_look_at_lists_twice_have_no_rule(
    name: str, options: dict[str, Any], instead: str
) -> None:
    sampler: Any = make_sampler(name, list_graph([1.0]), [2], **options)
    with pytest.raises(ConfigError, match=f"reads each edge only once; use .*{instead}"):
        sampler.rule  # noqa: B018 - a property that raises


@pytest.mark.parametrize("kind", ["weighted", "labor"])
def test_lists_of_any_relation_are_drawn_by_the_key_of_their_own(kind: str) -> None:
    rule = make_sampler(kind, list_graph([1.0] * 8), [2], 3).rule  # type: ignore[attr-defined]
    frontier = rule.begin(BatchId(epoch=1, index=5), np.array([0]))
    of_batch = layer_key(3, 1, 5, 0)
    for number in range(3):
        assert replace(rule, relation=number).key(frontier) == relation_key(of_batch, number)


def test_the_pages_that_are_marked_are_those_that_hold_the_lists_and_no_other() -> None:
    degrees = np.array([3, 0, 4, 1, 8, 5])  # edges 0 to 2, 3 to 6, 7, 8 to 15, 16 to 20, of four to a page
    graph = CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        indices=np.zeros(21, np.int32),
        edge_weight=np.ones(21, np.float32),
    )
    rule = make_sampler("weighted", graph, [2]).rule  # type: ignore[attr-defined]
    wanted = {0: {0}, 1: set(), 2: {0, 1}, 3: {1}, 4: {2, 3}, 5: {4, 5}}
    for node, pages in wanted.items():
        marked = np.zeros(1, np.uint64)
        taken = rule.mark(rule.begin(BatchId(epoch=0, index=0), np.array([node])), marked, per_page=4)
        assert {page for page in range(64) if int(marked[0]) >> page & 1} == pages
        assert taken == min(degrees[node], 2)
