"""Impossible values in the hops of swept samplers raise a clear error; ids and positions beyond 32 bits work."""

from __future__ import annotations

import mmap
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from unit.samplers import oracle
from unit.samplers.graphs import random_graph

from gloader.core.offsets import plain_offsets
from gloader.errors import ConfigError, GraphError, SeedError, ShapeError
from gloader.samplers import CscGraph, NeighborSampler
from gloader.samplers.distinct_kernels import order_distinct
from gloader.samplers.pick_rule import UniformPickRule
from gloader.testing.sampler_suite import draw_hops, list_positions
from gloader.types import BatchId

BATCH = BatchId(epoch=3, index=4)
NORESERVE = 0x4000  # of Linux; the module mmap does not name it before Python 3.13


@pytest.mark.parametrize("bad", [-1, 60, 2**31, -(2**40)])
def test_a_drawn_value_that_is_no_node_is_named(bad: int) -> None:
    graph = random_graph(60, 30, dtype=np.int64)
    rule = NeighborSampler(graph, [7], seed=1).rule
    frontier = rule.begin(BATCH, np.arange(60))
    positions = list_positions(rule, frontier)  # type: ignore[arg-type]
    for rank in (0, 100, len(positions) - 1):
        drawn = graph.indices[positions].astype(np.int64)
        drawn[rank] = bad
        at = int(positions[rank])
        node = int(np.searchsorted(graph.indptr, at, side="right")) - 1
        message = f"indices[{at}] = {bad}, an in-neighbour of node {node}, is not in 0..59"
        with pytest.raises(GraphError, match=re.escape(message)):
            rule.extend(frontier, drawn)


def test_values_of_another_batch_are_refused() -> None:
    graph, seeds = random_graph(60, 30), np.arange(20)
    for replace in (False, True):
        sampler = NeighborSampler(graph, [3, 7], seed=1, replace=replace)
        drawn = draw_hops(sampler.rule, graph, BATCH, seeds)  # type: ignore[arg-type]
        count = len(drawn[1])
        for wrong in (drawn[1][:-1], np.append(drawn[1], drawn[1][:1]), drawn[1][:0]):
            message = f"hop 1 of .* takes {count} distinct edges, and {len(wrong)} values were drawn for it"
            with pytest.raises(ShapeError, match=message):
                sampler.replay(BATCH, seeds, [drawn[0], wrong])
        with pytest.raises(ShapeError, match="1 drawn arrays for a batch of 2 hops"):
            sampler.replay(BATCH, seeds, drawn[:1])
        for wrong in (drawn[1].astype(float), drawn[1][::2], drawn[1].reshape(1, -1)):
            with pytest.raises(ShapeError, match=r"the drawn array of hop 1 has shape .* must be contiguous"):
                sampler.replay(BATCH, seeds, [drawn[0], wrong])
        wild = drawn[1].copy()
        wild[5] = 60
        with pytest.raises(GraphError, match=r"= 60, an in-neighbour of node \d+, is not in 0\.\.59"):
            sampler.replay(BATCH, seeds, [drawn[0], wild])


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("stop", [-1, 8, 2**62])
def test_a_list_outside_the_graph_is_named(stop: int, replace: bool) -> None:
    indptr = np.arange(9) * 40
    indptr[4] = stop
    graph = CscGraph(indptr=indptr, indices=np.zeros(320, np.int32), validate=False)
    rule: Any = NeighborSampler(graph, [7], replace=replace).rule
    frontier = rule.begin(BATCH, np.arange(8))
    pages = np.zeros(1, np.uint64)
    for ask in (
        lambda: rule.counts([frontier]),
        lambda: rule.mark(frontier, pages, per_page=8),
        lambda: list_positions(rule, frontier),
    ):
        with pytest.raises(
            GraphError, match=rf"indptr\[[34]:[56]\] = .*{stop}.* is not a range within 0\.\.320"
        ):
            ask()


def test_what_a_rule_is_asked_wrongly() -> None:
    graph = random_graph(60, 30)
    rule: Any = NeighborSampler(graph, [7]).rule
    with pytest.raises(SeedError, match=r"1 seeds repeat within the batch, among them \[3\]"):
        rule.begin(BATCH, np.array([3, 1, 3]))
    with pytest.raises(SeedError, match=r"not in 0\.\.59, among them \[60\]"):
        rule.begin(BATCH, np.array([60]))
    frontier = rule.begin(BATCH, np.arange(9))
    with pytest.raises(ShapeError, match=r"64 bits for the pages of \d+ edges, 4 in a page"):
        rule.mark(frontier, np.zeros(1, np.uint64), per_page=4)
    for shape in ((1, 0), (2, 7)):
        one = np.zeros(shape[0], np.int64)
        with pytest.raises(ShapeError, match=r"there are 1 owners, and a row must have a column"):
            rule.portions([frontier]).fill(np.zeros(shape, np.int64), one, one, np.zeros(shape[0], np.bool_))


def test_a_fan_out_that_no_list_reaches_takes_no_memory() -> None:
    graph = random_graph(60, 30)
    every = NeighborSampler(graph, [-1]).rule
    most = NeighborSampler(graph, [10**9]).rule
    frontier = most.begin(BATCH, np.arange(9))
    assert list_positions(most, frontier, width=1).tolist() == list_positions(every, frontier).tolist()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 5, 20])
def test_ids_and_positions_beyond_32_bits(fanout: int, replace: bool) -> None:
    # Two nodes of every list are written, so that of these 64 GiB a few pages exist.
    num_nodes = 2**33
    hole = mmap.mmap(-1, 8 * (num_nodes + 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    indptr = np.frombuffer(hole, np.int64)
    lists = {5: (0, 3), 2**31 + 9: (2**35, 17), 2**32 + 1: (2**36, 100)}
    # Those with billions of edges take a few, or would be listed for ever.
    lists |= {2**31 - 1: (2**34, 2**32 + 7), num_nodes - 1: (2**37, 2**33)} if fanout > 0 else {}
    for node, (start, degree) in lists.items():
        indptr[node : node + 2] = start, start + degree
    graph: Any = SimpleNamespace(
        num_nodes=num_nodes, num_sources=num_nodes, num_edges=2**38, offsets=plain_offsets(indptr)
    )
    rule = UniformPickRule(graph, (fanout, 5), seed=9, replace=replace, layout="merged")
    seeds = np.array(list(lists))
    frontier = rule.begin(BATCH, seeds)
    assert frontier.nodes.dtype == np.int64
    choose = oracle.uniform_with_replacement if replace else oracle.uniform
    key = oracle.layer_key(9, BATCH.epoch, BATCH.index, 0)
    expected = sorted(
        {
            start + at
            for node, (start, degree) in lists.items()
            for at in choose(oracle.node_key(key, node), degree, fanout)
        }
    )
    assert list_positions(rule, frontier, width=7).tolist() == expected
    assert rule.counts([frontier]).tolist() == [len(expected)]
    pages = np.zeros(2**15, np.uint64)
    per_page = 2**17
    rule.mark(frontier, pages, per_page=per_page)
    bits = np.unpackbits(pages.view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == sorted({at // per_page for at in expected})
    found = rule.extend(frontier, np.array([num_nodes - 2, 7, 2**32, 7]))
    assert found.nodes.tolist() == [7, 2**32, num_nodes - 2]
    assert found.seen.tolist() == sorted([7, 2**32, num_nodes - 2, *lists])
    with pytest.raises(GraphError, match=re.escape(f"= {num_nodes}, an in-neighbour of node 5,")):
        rule.extend(frontier, np.array([num_nodes]))


def test_a_hop_of_2_to_the_31_edges_is_refused_before_a_pass_is_made_for_it() -> None:
    indptr = np.array([0, 2**31])
    graph: Any = SimpleNamespace(num_nodes=1, num_sources=1, num_edges=2**31, offsets=plain_offsets(indptr))
    rule = UniformPickRule(graph, (-1,), seed=0, replace=False, layout="layered")
    with pytest.raises(
        ConfigError, match=r"hop 0 of .* would have 2\*\*31 edges or more; lower the batch size"
    ):
        rule.counts([rule.begin(BATCH, np.array([0]))])


@pytest.mark.parametrize("count", [0, 1, 2, 9, 15, 16, 17, 300, 3000])
@pytest.mark.parametrize("span", [3, 2**20, 2**31 - 2, 2**40])
def test_positions_are_put_in_order(count: int, span: int) -> None:
    random = np.random.default_rng(count)
    for _ in range(5):
        values = random.integers(0, span, count)
        distinct = np.unique(values)
        shuffled = random.permutation(distinct)
        for given, may_repeat in ((values, True), (shuffled, False), (shuffled, True)):
            out = np.full(count + 20, -7)
            padded = np.concatenate([np.zeros(3, np.int64), given, np.full(16, 2**62)])
            kept = order_distinct(padded, 3, len(given), may_repeat, np.empty(16, np.int64), out, 2)
            assert out[2 : 2 + kept].tolist() == distinct.tolist()
            assert (out[2 + len(given) :] == -7).all()
