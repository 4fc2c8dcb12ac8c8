"""Both maps from nodes to local ids: the same batches, over growth, reuse and the end of the labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from unit.samplers.graphs import random_graph, use_hash_tables

from gloader.samplers import NeighborSampler, node_map
from gloader.samplers.make import node_map_bytes
from gloader.samplers.node_map import DenseMap, HashMap, hash_map_bytes
from gloader.testing.sampler_suite import batch_bytes
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator

MAPS = [DenseMap, HashMap]


@pytest.fixture(autouse=True)
def wrapping_hashes() -> Iterator[None]:
    with np.errstate(over="ignore"):  # interpreted kernels multiply numpy scalars
        yield


def first_seen(seeds: list[int], sources: list[int]) -> tuple[list[int], list[int]]:
    local = {seed: i for i, seed in enumerate(seeds)}
    labels = [local.setdefault(source, len(local)) for source in sources]
    return list(local), labels


def check(number_map: DenseMap | HashMap, num_nodes: int, rounds: int) -> None:
    random = np.random.default_rng(4)
    for _ in range(rounds):
        seeds = random.permutation(num_nodes)[: random.integers(0, 30)]
        graph_indices = random.integers(0, num_nodes, 2000).astype(np.int32)
        nodes = np.empty(num_nodes + 1, dtype=np.int64)
        assert number_map.begin(seeds, nodes) == 0
        known, expected_nodes = len(seeds), seeds.tolist()
        for num_edges in (
            random.integers(0, 50),
            random.integers(0, 700),
        ):  # below and above the prefetch distance
            edge_ids = random.integers(0, 2000, num_edges)
            out = np.empty(num_edges, dtype=np.int32)
            known = number_map.relabel(graph_indices, edge_ids, nodes, known, out)
            expected_nodes, labels = first_seen(expected_nodes, graph_indices[edge_ids].tolist())
            assert out.tolist() == labels
            assert nodes[:known].tolist() == expected_nodes


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("num_nodes", [40, 3000])
def test_labels_are_given_in_first_seen_order(kind: type[DenseMap | HashMap], num_nodes: int) -> None:
    check(kind(num_nodes), num_nodes, rounds=12)


@pytest.mark.parametrize("kind", MAPS)
def test_repeats_are_counted(kind: type[DenseMap | HashMap]) -> None:
    nodes = np.empty(10, dtype=np.int64)
    assert kind(9).begin(np.array([3, 1, 3, 3, 1]), nodes) == 3


@pytest.mark.parametrize("kind", MAPS)
def test_labels_start_again_before_they_overflow(
    kind: type[DenseMap | HashMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_map, "LABEL_END", 3 * 800)
    check(kind(800), 800, rounds=12)


def test_the_last_labels_of_32_bits_are_usable() -> None:
    for kind in MAPS:
        number_map = kind(800)
        number_map._base = 2**31 - 802
        check(number_map, 800, rounds=3)


def test_a_table_survives_growth_within_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_map, "_MIN_SLOTS", 2)
    check(HashMap(3000), 3000, rounds=6)


def test_colliding_nodes_are_told_apart() -> None:
    # All of these fall into the last slots of a table of 1024, so that probing wraps around its end.
    candidates = np.arange(300_000)
    slots = (candidates.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(54)
    seeds = candidates[slots >= 1021][:300]
    number_map, nodes = HashMap(300_000), np.empty(301, dtype=np.int64)
    assert number_map.begin(seeds, nodes) == 0
    out = np.empty(300, dtype=np.int32)
    assert number_map.relabel(seeds[::-1].copy(), np.arange(300), nodes, 300, out) == 300
    assert out.tolist() == list(range(299, -1, -1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_both_maps_give_identical_batches(dtype: type) -> None:
    graph = random_graph(2000, 70, dtype=dtype)
    dense, hashed = NeighborSampler(graph, [10, 10, 5]), NeighborSampler(graph, [10, 10, 5])
    use_hash_tables(hashed)
    for i in range(4):
        seeds = np.arange(i, 2000, 23)
        batch = BatchId(epoch=0, index=i)
        assert batch_bytes(dense.sample(batch, seeds)) == batch_bytes(hashed.sample(batch, seeds))
    assert isinstance(hashed._frame._pool._free[0].found[0].map, HashMap)
    assert isinstance(dense._frame._pool._free[0].found[0].map, DenseMap)


def test_what_a_thread_keeps_for_a_large_graph_follows_from_its_batches() -> None:
    hashed = HashMap(10**9)
    for found in (1, 512, 513, 100_000):
        hashed.begin(np.arange(found), np.empty(found, np.int64))
        assert hashed._keys.nbytes + hashed._labels.nbytes == hash_map_bytes(found)
    assert node_map_bytes("neighbor", num_nodes=50_000_000, found=10) == 200_000_000
    assert node_map_bytes("weighted", num_nodes=50_000_001, found=1_500_000) == 12 * 2**22
    assert node_map_bytes("labor", num_nodes=50_000_001, found=10) == 8 * 50_000_001
