"""The form of a sampled batch: order, prefixes, special fan-outs, special graphs, refused arguments."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import grid, random_graph, star

from gloader.errors import ConfigError, SeedError
from gloader.samplers import CscGraph, NeighborSampler, neighbor
from gloader.types import BatchId, Block, SampledBatch

FIRST = BatchId(epoch=0, index=0)
MODES = [
    {},
    {"replace": True},
    {"weighted": True},
    {"weighted": True, "replace": True},
]


def sample(graph: CscGraph, fanouts: Any, seeds: Any, **options: Any) -> SampledBatch:
    return NeighborSampler(graph, fanouts, **options).sample(FIRST, np.asarray(seeds, dtype=np.int64))


def destinations(block: Block) -> np.ndarray:
    return np.repeat(np.arange(block.num_dst), np.diff(block.indptr))


def check_block(graph: CscGraph, batch: SampledBatch, block: Block) -> None:
    """Every edge of a block is the edge of the graph that it says it is."""
    dst = batch.nodes[destinations(block)]
    assert (graph.indices[block.edge_ids] == batch.nodes[block.indices]).all()
    assert (graph.indptr[dst] <= block.edge_ids).all()
    assert (block.edge_ids < graph.indptr[dst + 1]).all()
    assert block.indptr[0] == 0
    assert block.indptr[-1] == block.num_edges == len(block.edge_ids)
    assert (block.indices < block.num_src).all()


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("max_degree", [12, 60, 300])
def test_every_block_edge_is_an_edge_of_the_graph(
    options: dict[str, bool], dtype: type, max_degree: int
) -> None:
    graph = random_graph(400, max_degree, weighted=True, dtype=dtype)
    seeds = np.random.default_rng(1).permutation(400)[:40]
    batch = sample(graph, [3, 10, 25], seeds, seed=3, **options)
    assert batch.nodes[: batch.num_seeds].tolist() == seeds.tolist()
    assert len(np.unique(batch.nodes)) == len(batch.nodes)
    assert batch.blocks[-1].num_dst == len(seeds)
    assert batch.blocks[0].num_src == len(batch.nodes)
    for outer, inner in zip(batch.blocks, batch.blocks[1:], strict=False):
        assert outer.num_dst == inner.num_src
    for block, fanout in zip(batch.blocks, [25, 10, 3], strict=True):
        check_block(graph, batch, block)
        assert np.diff(block.indptr).max() <= fanout
        if not options.get("replace"):
            assert len(np.unique(block.edge_ids)) == block.num_edges
        if options.get("weighted"):
            assert graph.edge_weight is not None
            assert (graph.edge_weight[block.edge_ids] > 0).all()


def test_types_and_dtypes() -> None:
    batch = sample(random_graph(50, 20), [4, 4], [1, 2, 3])
    assert batch.nodes.dtype == np.int64
    for block in batch.blocks:
        assert (block.indptr.dtype, block.indices.dtype, block.edge_ids.dtype) == (
            np.int32,
            np.int32,
            np.int64,
        )
        assert block.indptr.shape == (block.num_dst + 1,)
    assert batch.id == FIRST


def test_sources_stand_in_first_seen_order() -> None:
    batch = sample(random_graph(200, 30), [5, 5], np.arange(20))
    for block in batch.blocks:
        new = block.indices[block.indices >= block.num_dst]
        _, first = np.unique(new, return_index=True)
        assert new[np.sort(first)].tolist() == list(range(block.num_dst, block.num_src))


def test_a_batch_holds_no_more_memory_than_its_content() -> None:
    batch = sample(random_graph(3000, 40), [10, 10], np.arange(100))
    for array in (batch.nodes, *(a for b in batch.blocks for a in (b.indptr, b.indices, b.edge_ids))):
        owner = array if array.base is None else array.base
        assert owner.nbytes <= array.nbytes + 128


@pytest.mark.reliability("C9")
def test_fanout_zero_gives_a_hop_without_edges() -> None:
    for options in MODES:
        batch = sample(random_graph(30, 9, weighted=True), [0, 4], [5, 6], **options)
        assert batch.blocks[1].num_edges == 0
        assert batch.blocks[1].indptr.tolist() == [0, 0, 0]
        assert (batch.blocks[1].num_src, batch.blocks[0].num_dst) == (2, 2)


@pytest.mark.reliability("C9")
@pytest.mark.parametrize("fanout", [-1, 100, 2**31 - 2])
def test_all_neighbours_come_in_order(fanout: int) -> None:
    graph = random_graph(60, 90)
    degrees = np.diff(graph.indptr)
    seeds = np.flatnonzero(degrees < 100)[:20]
    block = sample(graph, [fanout], seeds).blocks[0]
    expected = [edge for seed in seeds for edge in range(graph.indptr[seed], graph.indptr[seed + 1])]
    assert block.edge_ids.tolist() == expected


@pytest.mark.reliability("C9")
@pytest.mark.parametrize("degree", [1, 4, 5])
def test_a_fanout_of_at_least_the_degree_takes_each_neighbour_once(degree: int) -> None:
    assert sample(star(degree), [5], [0]).blocks[0].edge_ids.tolist() == list(range(degree))


@pytest.mark.reliability("C9")
def test_all_neighbours_with_replacement_come_once_in_order() -> None:
    assert sample(star(7), [-1], [0], replace=True).blocks[0].edge_ids.tolist() == list(range(7))


def test_replacement_draws_as_many_as_asked_for() -> None:
    block = sample(star(3), [50], [0, 1], replace=True).blocks[0]
    assert block.indptr.tolist() == [0, 50, 50]
    assert set(block.edge_ids.tolist()) == {0, 1, 2}


def test_weights_decide_who_can_be_drawn() -> None:
    weights = np.array([0, 1, 0, 2, 3, 0.0])
    for replace in (False, True):
        for fanout in (-1, 3, 6):
            edges = sample(star(6, weights), [fanout], [0], weighted=True, replace=replace).blocks[0].edge_ids
            if replace and fanout > 0:
                assert len(edges) == fanout
                assert set(edges.tolist()) <= {1, 3, 4}
            else:
                assert edges.tolist() == [1, 3, 4]
    nothing = sample(star(6, np.zeros(6)), [3], [0], weighted=True).blocks[0]
    assert nothing.num_edges == 0
    assert sample(star(6, np.zeros(6)), [3], [0], weighted=True, replace=True).blocks[0].num_edges == 0


@pytest.mark.reliability("C4")
def test_parallel_edges_are_kept() -> None:
    graph = CscGraph(indptr=np.array([0, 4, 4]), indices=np.array([1, 1, 1, 0]))
    block = sample(graph, [-1], [0]).blocks[0]
    assert block.indices.tolist() == [1, 1, 1, 0]
    assert block.edge_ids.tolist() == [0, 1, 2, 3]


@pytest.mark.reliability("C5")
def test_a_self_loop_is_an_edge_to_the_node_itself() -> None:
    graph = CscGraph(indptr=np.array([0, 2, 3]), indices=np.array([0, 1, 1]))
    batch = sample(graph, [-1, -1], [1, 0])
    assert batch.nodes.tolist() == [1, 0]
    assert batch.blocks[-1].indices.tolist() == [0, 1, 0]


@pytest.mark.reliability("C6")
@pytest.mark.parametrize("options", MODES)
def test_isolated_nodes_and_graphs_without_edges(options: dict[str, bool]) -> None:
    for num_nodes in (1, 5):
        graph = CscGraph(
            indptr=np.zeros(num_nodes + 1, dtype=np.int64),
            indices=np.empty(0, dtype=np.int32),
            edge_weight=np.empty(0, dtype=np.float32),
        )
        batch = sample(graph, [3, -1], [num_nodes - 1], **options)
        assert batch.nodes.tolist() == [num_nodes - 1]
        assert [block.num_edges for block in batch.blocks] == [0, 0]
        assert all(block.indptr.tolist() == [0, 0] for block in batch.blocks)


@pytest.mark.reliability("C7")
def test_no_seeds_give_an_empty_batch() -> None:
    sampler = NeighborSampler(random_graph(10, 3), [2, 2])
    for empty in (np.empty(0, dtype=np.int64), np.empty(0)):
        batch = sampler.sample(FIRST, empty)
        assert batch.num_seeds == len(batch.nodes) == 0
        assert all(block.indptr.tolist() == [0] and block.num_src == 0 for block in batch.blocks)
        assert sampler.sample_merged(FIRST, empty).num_sampled_edges == (0, 0)


@pytest.mark.reliability("C1")
@pytest.mark.parametrize(
    ("seeds", "named"),
    [
        ([3, -1], r"\[-1\]"),
        ([10], r"\[10\]"),
        ([0, 2**31 - 1, 2**31, 2**31 + 3], rf"\[{2**31 - 1}, {2**31}, {2**31 + 3}\]"),
        ([-(2**31) - 1], rf"\[{-(2**31) - 1}\]"),
        (list(range(10, 30)), r"20 seeds .*\[10, 11, 12, 13, 14\]"),
        (np.array([2**63 + 1], dtype=np.uint64), rf"\[{2**63 + 1}\]"),
    ],
)
def test_seeds_out_of_range(seeds: Any, named: str) -> None:
    sampler = NeighborSampler(random_graph(10, 3), [2])
    with pytest.raises(SeedError, match=rf"seeds are not in 0\.\.9, among them|{named}") as caught:
        sampler.sample(FIRST, np.asarray(seeds))
    assert caught.match(named)


@pytest.mark.reliability("C8")
def test_repeated_seeds() -> None:
    sampler = NeighborSampler(random_graph(10, 3), [2])
    with pytest.raises(SeedError, match=r"2 seeds repeat within the batch, among them \[4, 7\]"):
        sampler.sample(FIRST, np.array([7, 4, 1, 7, 4, 7]))
    assert sampler.sample(FIRST, np.array([7, 4, 1])).num_seeds == 3


@pytest.mark.reliability("C1")
@pytest.mark.parametrize(
    "seeds", [np.array([0.0, 1.0]), np.array([True]), np.array(["1"]), np.array([2**70])]
)
def test_seeds_that_are_no_integers(seeds: np.ndarray) -> None:
    with pytest.raises(SeedError, match=r"seeds have dtype .*; they must be integers"):
        NeighborSampler(random_graph(10, 3), [2]).sample(FIRST, seeds)


def test_seeds_of_two_dimensions() -> None:
    with pytest.raises(SeedError, match=r"seeds have shape \(1, 2\); they must have one dimension"):
        NeighborSampler(random_graph(10, 3), [2]).sample(FIRST, np.array([[1, 2]]))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint64, ">i8"])
def test_seeds_of_any_integer_dtype(dtype: Any) -> None:
    sampler = NeighborSampler(random_graph(100, 9), [2, 2])
    expected = sampler.sample(FIRST, np.array([5, 99]))
    assert sampler.sample(FIRST, np.array([5, 99], dtype=dtype)).nodes.tolist() == expected.nodes.tolist()


def test_without_hops_a_batch_has_its_seeds_alone() -> None:
    batch = NeighborSampler(random_graph(100, 9), []).sample(FIRST, np.array([5, 99]))
    assert (batch.nodes.tolist(), batch.num_seeds, batch.blocks) == ([5, 99], 2, ())


@pytest.mark.reliability("C9")
@pytest.mark.parametrize(
    ("fanouts", "message"),
    [
        ([2**31 - 1], r"fanouts\[0\] is 2147483647; -1 takes all neighbours, and 2,147,483,646 is the most"),
        ([5, -2], r"fanouts\[1\] is -2; it must be at least 0, or -1"),
        ([2.0], r"fanouts\[0\] is 2.0; it must be an integer"),
        ([3, "4"], r"fanouts\[1\] is '4'"),
        ([True], r"fanouts\[0\] is True"),
        ([None], r"fanouts\[0\] is None"),
        ([2**31], r"fanouts\[0\] is 2147483648"),
        ("15,10", "fanouts is '15,10'; pass one integer per hop"),
        (5, "fanouts is 5; pass one integer per hop"),
    ],
)
def test_refused_fanouts(fanouts: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NeighborSampler(random_graph(5, 2), fanouts)


def test_fanouts_of_numpy_integers() -> None:
    assert NeighborSampler(random_graph(5, 2), np.array([3, 2])).fanouts == (3, 2)


def test_refused_options() -> None:
    with pytest.raises(
        ConfigError, match="`gloader prepare edges:FILE OUT` with the columns src, dst, weight"
    ):
        NeighborSampler(random_graph(5, 2), [1], weighted=True)
    with pytest.raises(ConfigError, match=r"seed is 1\.5; it must be an integer"):
        NeighborSampler(random_graph(5, 2), [1], seed=1.5)  # type: ignore[arg-type]


def test_a_hop_too_large_for_local_ids_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbor, "MAX_LOCAL", 20)
    assert sample(star(19), [-1], [0]).blocks[0].num_edges == 19
    with pytest.raises(
        ConfigError, match=r"hop 0 of BatchId\(epoch=0, index=0\) would have 2\*\*31 edges or more"
    ):
        sample(star(21), [-1], [0])


def test_merged_hops_let_only_new_nodes_sample() -> None:
    graph = random_graph(500, 40)
    sampler = NeighborSampler(graph, [4, 3, 2], seed=9)
    merged = sampler.sample_merged(FIRST, np.arange(25))
    assert merged.nodes[:25].tolist() == list(range(25))
    assert len(merged.num_sampled_nodes) == 4
    assert sum(merged.num_sampled_nodes) == len(merged.nodes)
    assert sum(merged.num_sampled_edges) == merged.edge_index.shape[1] == len(merged.edge_ids)
    sources, dst = merged.edge_index
    assert (graph.indices[merged.edge_ids] == merged.nodes[sources]).all()
    ends = np.cumsum([0, *merged.num_sampled_nodes])
    edge_ends = np.cumsum([0, *merged.num_sampled_edges])
    for hop in range(3):
        hop_dst = dst[edge_ends[hop] : edge_ends[hop + 1]]
        assert ((ends[hop] <= hop_dst) & (hop_dst < ends[hop + 1])).all()
    assert merged.edge_index.dtype == np.int32


def test_the_first_hop_is_the_same_in_both_layouts() -> None:
    sampler = NeighborSampler(random_graph(500, 40), [4], seed=9)
    layered, merged = (f(FIRST, np.arange(25)) for f in (sampler.sample, sampler.sample_merged))
    assert layered.nodes.tolist() == merged.nodes.tolist()
    assert layered.blocks[0].edge_ids.tolist() == merged.edge_ids.tolist()


def test_every_part_of_the_address_changes_the_batch() -> None:
    graph = random_graph(300, 60)

    def nodes(seed: int, epoch: int, index: int) -> tuple[int, ...]:
        sampler = NeighborSampler(graph, [5, 5], seed=seed)
        return tuple(sampler.sample(BatchId(epoch=epoch, index=index), np.arange(10)).nodes)

    assert nodes(0, 0, 0) == nodes(0, 0, 0) == nodes(2**64, 0, 0)
    assert len({nodes(*address) for address in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0)]}) == 5


def test_the_layers_of_a_node_are_independent() -> None:
    batch = sample(star(1000), [10, 10], [0])
    assert batch.blocks[0].edge_ids[:10].tolist() != batch.blocks[1].edge_ids.tolist()


def digest(batch: SampledBatch) -> str:
    state = hashlib.sha256(batch.nodes.tobytes())
    for block in batch.blocks:
        for array in (block.indptr, block.indices, block.edge_ids):
            state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


GOLDEN = {
    False: "aabd79898e7420905920a7c8b441a90a0ba19fbe29d1cf24ae8781e4633ae20b",
    True: "3a15873f4b0e65f7143f813269cacff4f89c06d369d99957ce5fdda336e854b9",
}


@pytest.mark.parametrize("replace", [False, True])
def test_batches_are_the_same_on_every_machine_and_in_every_version(replace: bool) -> None:
    sampler = NeighborSampler(grid(), [7, 20, 3], seed=11, replace=replace)
    state = hashlib.sha256()
    for epoch, index in [(0, 0), (0, 1), (3, 2)]:
        seeds = np.arange(index, 97, 9)
        state.update(digest(sampler.sample(BatchId(epoch=epoch, index=index), seeds)).encode())
    assert state.hexdigest() == GOLDEN[replace]
