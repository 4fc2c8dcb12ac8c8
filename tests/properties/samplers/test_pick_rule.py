"""The edges that a sampler names before reading equal plain Python's; its batches are remade bit for bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers import oracle
from unit.samplers.graphs import SHARES, seeds_without, some_edges

from gloader.samplers import CscGraph, make_sampler
from gloader.samplers.sweeping import Frontier, swept_nodes
from gloader.testing.sampler_suite import batch_bytes, draw_hops, list_positions
from gloader.types import BatchId

FANOUTS = st.sampled_from([-1, 0, 1, 2, 5, 10, 16, 17, 35, 70])


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    num_nodes = draw(st.integers(1, 12))
    # Isolated nodes; lists within and beyond sixteen draws and 64 bits; a hub longer than any portion.
    degrees = draw(
        st.lists(st.sampled_from([0, 1, 3, 11, 17, 70, 400]), min_size=num_nodes, max_size=num_nodes)
    )
    indptr = [0, *accumulate(degrees)]
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    graph = CscGraph(
        indptr=np.array(indptr),
        indices=random.integers(0, num_nodes, indptr[-1]).astype(draw(st.sampled_from([np.int32, np.int64]))),
    )
    fanouts = draw(st.lists(FANOUTS, min_size=1, max_size=4))
    seed, has_replacement = draw(st.integers(0, 2**64 - 1)), draw(st.booleans())
    excluded = some_edges(graph.num_edges, draw(st.sampled_from(SHARES)), random)
    without = frozenset(edge for of_relation in excluded for edge in of_relation.tolist())
    seeds = np.array(draw(st.lists(st.integers(0, num_nodes - 1), unique=True)), dtype=np.int64)
    return {
        "graph": graph,
        "layout": (layout := draw(st.sampled_from(["layered", "merged"]))),
        "sampler": make_sampler("neighbor", graph, fanouts, seed, replace=has_replacement, layout=layout),
        "oracle": oracle.OracleSampler(
            indptr, graph.indices.tolist(), None, fanouts, seed, has_replacement, without
        ),
        "batch_id": BatchId(epoch=draw(st.integers(0, 2**40)), index=draw(st.integers(0, 2**40))),
        "nodes": seeds,
        "seeds": seeds_without(seeds, excluded),
        "reversed": seeds_without(seeds[::-1], excluded),
    }


def wanted(case: dict[str, Any], frontier: Frontier) -> list[int]:
    """The positions of a frontier, from the oracle."""
    batch_id, expected = frontier.batch_id, case["oracle"]
    key = oracle.layer_key(expected.seed, batch_id.epoch, batch_id.index, frontier.hop)
    fanout = expected.fanouts[frontier.hop]
    return sorted({at for node in frontier.nodes.tolist() for at in expected.pick(key, node, fanout)})


@given(cases(), st.integers(1, 90), st.sampled_from([1, 3, 8, 100]))
def test_hops_want_what_the_sampler_takes(case: dict[str, Any], width: int, per_page: int) -> None:
    graph, rule = case["graph"], case["sampler"].rule
    frontier = rule.begin(case["batch_id"], case["seeds"])
    seen = set(case["nodes"].tolist())
    drawing = seen
    for hop in range(rule.num_hops):
        assert (frontier.hop, frontier.batch_id) == (hop, case["batch_id"])
        assert frontier.seen.tolist() == sorted(seen)
        assert frontier.nodes.tolist() == sorted(drawing)
        assert frontier.nodes.dtype == frontier.seen.dtype == np.int32
        positions = wanted(case, frontier)
        assert list_positions(rule, frontier, width=width).tolist() == positions
        assert rule.counts([frontier, frontier]).tolist() == 2 * [len(positions)]
        num_pages = -(-graph.num_edges // per_page)
        pages = np.zeros(-(-num_pages // 64), dtype=np.uint64)
        rule.mark(frontier, pages, per_page=per_page)
        bits = np.unpackbits(pages.view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == sorted({at // per_page for at in positions})
        drawn = graph.indices[positions]
        drawing = set(drawn.tolist()) - (seen if case["layout"] == "merged" else set())
        drawing |= seen if case["layout"] == "layered" else set()
        seen = seen | set(drawn.tolist())
        frontier = rule.extend(frontier, drawn)
    assert frontier.hop == rule.num_hops
    assert frontier.seen.tolist() == sorted(seen)


@given(cases())
def test_a_batch_is_remade_bit_for_bit(case: dict[str, Any]) -> None:
    sampler, batch_id, seeds = case["sampler"], case["batch_id"], case["seeds"]
    drawn = draw_hops(sampler.rule, case["graph"], batch_id, seeds)
    batch = sampler.sample(batch_id, seeds)
    assert batch_bytes(sampler.replay(batch_id, seeds, drawn)) == batch_bytes(batch)
    assert swept_nodes(sampler.rule, batch_id, seeds, drawn)[0].tolist() == sorted(batch.nodes.tolist())
    # Of another order of seeds the hops draw the same, and only the order within the batch differs.
    again = draw_hops(sampler.rule, case["graph"], batch_id, case["reversed"])
    assert [values.tolist() for values in again] == [values.tolist() for values in drawn]


@given(cases(), st.data())
def test_portions_of_any_width_and_in_any_order_hold_all_positions(
    case: dict[str, Any], data: st.DataObject
) -> None:
    rule = case["sampler"].rule
    frontiers: list[Frontier] = []
    left: list[list[int]] = []
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for index in range(data.draw(st.integers(0, 3))):
        # Every batch excludes edges of its own.
        (excluded,) = some_edges(case["graph"].num_edges, data.draw(st.sampled_from(SHARES[1:])), random)
        of_batch = case | {"oracle": replace(case["oracle"], excluded=frozenset(excluded.tolist()))}
        given_seeds = seeds_without(case["nodes"], (excluded,))
        frontier = rule.begin(BatchId(epoch=1, index=index), given_seeds)
        for _ in range(rule.num_hops):
            frontiers.append(frontier)
            left.append(wanted(of_batch, frontier))
            frontier = rule.extend(frontier, case["graph"].indices[left[-1]])
    portions = rule.portions(frontiers)
    count = len(frontiers)
    ids = np.full((count, data.draw(st.integers(1, 100))), -1)
    taken, ends, has_more = np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count, np.bool_)
    while True:
        portions.fill(ids, taken, ends, has_more)
        for owner, positions in enumerate(left):
            assert taken[owner] == 0
            assert ids[owner, : ends[owner]].tolist() == positions[: ends[owner]]
            assert has_more[owner] == (len(positions) > ends[owner])
        if not has_more.any():
            return
        # Some take nothing, some everything: who takes all is given some, if any are left.
        taken[:] = random.integers(0, ends + 1)
        taken[random.random(count) < 0.5] = 0
        greedy = int(random.choice(np.flatnonzero(has_more)))
        taken[greedy] = ends[greedy]
        assert ends[greedy] > 0
        left = [positions[used:] for positions, used in zip(left, taken.tolist(), strict=True)]
