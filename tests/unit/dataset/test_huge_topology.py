"""Graphs of more edges than 31 and 32 bits count, and offsets of more nodes than are read at a time."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from huge_graph import HugeGraph

from gloader.core.offsets import Offsets, compact_offsets, offsets_of, plain_offsets
from gloader.dataset import Dataset
from gloader.dataset.topology import PagedTopology, open_topology
from gloader.errors import ChecksumError
from gloader.samplers import make_sampler
from gloader.testing.sampler_suite import batch_bytes
from gloader.types import BatchId

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.config import Layout


@pytest.mark.parametrize("hubs", [[2**31 + 10], [2**33 + 5, 2**32]], ids=["2**31", "2**33"])
def test_edges_beyond_31_bits_are_sampled_from_the_ssd(tmp_path: Path, hubs: list[int]) -> None:
    degrees = np.random.default_rng(0).integers(0, 7, 300)
    degrees[100 : 100 + len(hubs)] = hubs
    huge = HugeGraph(plain_offsets(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)))
    seeds = np.arange(90, 130)
    address = BatchId(epoch=0, index=0)
    for spec in ("neighbor", "neighbor:replace=true"):
        huge.pages.clear()
        expected = make_sampler(spec, huge, [8, 8]).sample(address, seeds)
        path = tmp_path / spec.replace(":", "-")
        with open_topology(huge.write(path), max_bytes=64 << 20) as topology:
            assert isinstance(topology, PagedTopology)
            sampler = make_sampler(spec, topology, [8, 8])
            found = sampler.sample(address, seeds)
            assert batch_bytes(found) == batch_bytes(expected)
            # Behind the hub every edge lies beyond, and some of its own picks do.
            positions = np.concatenate([block.edge_ids for block in found.blocks])
            assert positions.max() > hubs[0] > 2**31
            # The rest of the file is a hole.
            with pytest.raises(ChecksumError, match=r"indices\.npy: page \d+ at byte \d+"):
                sampler.sample(BatchId(epoch=1, index=0), seeds)


@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_nodes_beyond_31_bits_are_sampled(layout: Layout) -> None:
    """Almost all pages of the offsets of 2**31 + 256 nodes are never written, and so take no memory."""
    num_nodes = 2**31 + 256
    low, base = np.zeros(num_nodes + 1, np.uint16), np.zeros((num_nodes >> 6) + 1, np.int64)
    # The last 300 nodes have ten in-edges each.
    indptr = 10 * np.arange(301)
    blocks = np.arange(num_nodes - 300, num_nodes + 1) >> 6
    base[blocks[::-1]] = indptr[::-1]
    low[-301:] = indptr - base[blocks]
    for array in (low, base):
        array.flags.writeable = False  # as offsets are
    graph = HugeGraph(Offsets(low=low, base=base, wide=base[:0]))
    seeds = np.array([num_nodes - 1, 5, 2**31 + 3, num_nodes - 300])
    found = make_sampler("neighbor", graph, [5, 5], layout=layout).sample(BatchId(epoch=0, index=0), seeds)
    assert found.nodes.dtype == np.int64
    assert len(np.unique(found.nodes)) == len(found.nodes) > 50
    for block in found.blocks:
        nodes = found.nodes[: block.num_dst]
        destinations = np.repeat(nodes, np.diff(block.indptr))
        assert graph.source_of(block.edge_ids).tolist() == found.nodes[block.indices].tolist()
        assert (block.edge_ids // 10 + num_nodes - 300).tolist() == destinations.tolist()
        assert (np.diff(block.indptr) == 5 * (nodes != 5))[: len(seeds)].all()


def test_offsets_are_made_of_many_pieces_of_the_file(tmp_path: Path) -> None:
    """A piece is 4 MiB of indptr, or 524,288 nodes."""
    num_nodes = 530_000
    degrees = np.zeros(num_nodes, dtype=np.int64)
    degrees[[3, 70_000, 524_287, 524_288, num_nodes - 1]] = [5, 70_000, 3, 65_536, 1]
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    with Dataset.create(tmp_path / "data", name="d", num_nodes=num_nodes, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(indptr)
        with writer.indices(int(indptr[-1]), "int32") as column:
            column.append(np.zeros(indptr[-1], np.int32))
        with writer.features(1, "float16") as column:
            column.append(np.zeros((num_nodes, 1), np.float16))
        writer.labels(np.zeros(num_nodes, np.int64))
        writer.splits(train=np.arange(3), valid=np.arange(0), test=np.arange(0))
    with open_topology(Dataset.open(tmp_path / "data"), max_bytes=0) as topology:
        assert offsets_of(topology.offsets, np.arange(num_nodes + 1)).tobytes() == indptr.tobytes()
        assert len(topology.offsets.wide) == 2 * 64


def test_offsets_are_never_in_memory_as_a_whole_but_compact() -> None:
    num_nodes = 1 << 21

    def pieces():
        for start in range(0, num_nodes + 1, 1 << 14):
            yield np.arange(start, min(start + (1 << 14), num_nodes + 1))

    tracemalloc.start()
    try:
        offsets = compact_offsets(pieces(), num_nodes)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert offsets.num_bytes < 2.13 * num_nodes
    assert peak < offsets.num_bytes + 1_000_000
