"""Times of edges in memory and on the SSD: the same batches, few pages, and lists that are not sorted are refused."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.dataset.topology import PagedTopology, open_hetero_topology, open_topology, require_offsets
from gloader.errors import BudgetError, ChecksumError, GraphError
from gloader.samplers import CscGraph, make_temporal_sampler, temporal_call_bytes, temporal_map_bytes
from gloader.samplers.ranges import rank_bounds
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.testing.faults import FaultyOS
from gloader.testing.sampler_suite import batch_bytes, require_same
from gloader.types import BatchId, BatchSeeds

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.samplers import Topology

NUM_NODES, HUB, HUB_EDGES, NUM_EDGES = 2000, 7, 60_000, 100_000
PER_PAGE = 512


class CountingOS(FaultyOS):
    """Counts the pages of times that are read."""

    pages = 0

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """As `FaultyOS.pread_into`."""
        count = super().pread_into(fd, buffer, offset)
        if self._paths.get(fd, "").endswith("edge_time.npy") and offset >= DATA_OFFSET:
            self.pages += count // 4096
        return count


def write(path: Path, *, unsorted: bool = False, dip: bool = False, has_times: bool = True) -> Path:
    """A dataset with times that repeat, and a hub whose list has 118 pages of times."""
    random = np.random.default_rng(3)
    degrees = random.multinomial(NUM_EDGES - HUB_EDGES, np.full(NUM_NODES, 1 / NUM_NODES))
    degrees[HUB] += HUB_EDGES
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    times = random.integers(1_600_000_000, 1_600_030_000, NUM_EDGES)
    times = times[np.lexsort((times, np.repeat(np.arange(NUM_NODES), degrees)))]
    if unsorted:
        random.shuffle(times[indptr[HUB] : indptr[HUB + 1]])
    if dip:  # one time three quarters on, where a search for late times looks after the middle
        middle = (indptr[HUB] + indptr[HUB + 1]) // 2
        times[(middle + 1 + indptr[HUB + 1]) // 2] = times[indptr[HUB]]
    with Dataset.create(path, name="d", num_nodes=NUM_NODES, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(indptr)
        with writer.indices(NUM_EDGES, "int32") as column:
            column.append(random.integers(0, NUM_NODES, NUM_EDGES).astype(np.int32))
        if has_times:
            with writer.edge_time(NUM_EDGES) as column:
                column.append(times)
        with writer.features(2, "float32") as column:
            column.append(random.random((NUM_NODES, 2)).astype(np.float32))
        writer.labels(random.integers(0, 2, NUM_NODES))
        ids = np.arange(NUM_NODES)
        writer.splits(train=ids[:100], valid=ids[100:200], test=ids[200:])
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that nobody changes."""
    return write(tmp_path_factory.mktemp("timed") / "data")


def ask(num_seeds: int = 60, *, seed: int = 0) -> BatchSeeds:
    random = np.random.default_rng(seed)
    nodes = np.append(random.integers(0, NUM_NODES, num_seeds - 2), [HUB, HUB])
    return BatchSeeds(
        nodes=nodes,
        times=random.integers(1_600_000_000, 1_600_030_000, num_seeds),
        excluded=(np.arange(0, NUM_EDGES, 3),),
    )


@pytest.mark.parametrize("max_bytes", [0, 200_000, 600_000])
def test_batches_are_those_of_the_graph_in_memory(original: Path, max_bytes: int) -> None:
    dataset = Dataset.open(original)
    graph = dataset.load_graph()
    with open_topology(dataset, max_bytes=max_bytes, times=True) as topology:
        assert isinstance(topology, PagedTopology)
        for layout, strategy, bound, window in product(
            ("layered", "merged"), ("uniform", "last"), ("<", "<="), (None, 500)
        ):
            how: dict[str, Any] = {"layout": layout, "strategy": strategy, "bound": bound, "window": window}
            found, expected = (make_temporal_sampler(of, [5, 3], 1, **how) for of in (topology, graph))
            batch_id = BatchId(epoch=0, index=3)
            batch = found.sample(batch_id, ask())
            assert batch.blocks[0].num_edges
            require_same(
                batch_bytes(batch),
                batch_bytes(expected.sample(batch_id, ask())),
                batch_id,
                "it matters where the times are",
            )


def test_threads_that_share_few_pages_get_batches_of_their_own(original: Path) -> None:
    dataset = Dataset.open(original)
    ids = [BatchId(epoch=0, index=index) for index in range(8)]
    reference = make_temporal_sampler(dataset.load_graph(), [5, 3], window=900)
    expected = [batch_bytes(reference.sample(each, ask(seed=each.index))) for each in ids]
    with open_topology(dataset, max_bytes=100_000, times=True) as topology, ThreadPoolExecutor(4) as pool:
        sampler = make_temporal_sampler(topology, [5, 3], window=900)
        found = pool.map(lambda each: batch_bytes(sampler.sample(each, ask(seed=each.index))), ids)
        assert list(found) == expected


def test_times_are_held_and_counted_by_those_alone_that_ask(original: Path, tmp_path: Path) -> None:
    dataset = Dataset.open(original)
    assert dataset.time_bytes == 8 * NUM_EDGES
    size = dataset.topology_bytes
    with open_topology(dataset, max_bytes=size) as topology:
        assert isinstance(topology, CscGraph)
        assert topology.times is None
        assert topology.held_bytes == size
    with open_topology(dataset, max_bytes=size, times=True) as topology:
        assert isinstance(topology, PagedTopology)
    with open_topology(dataset, max_bytes=size + 8 * NUM_EDGES, times=True) as topology:
        assert isinstance(topology, CscGraph)
        assert topology.held_bytes == size + 8 * NUM_EDGES
    with open_topology(dataset, max_bytes=0) as topology:
        assert topology.times is None
        few = topology.held_bytes
    with open_topology(dataset, max_bytes=0, times=True) as topology:
        assert topology.held_bytes - few >= 8 * NUM_EDGES // 4096  # checksums, and room to read
    for max_bytes in (0, size, size + 8 * NUM_EDGES):
        with open_hetero_topology(dataset, max_bytes=max_bytes, times=True) as graph:
            (relation,) = graph.relations.values()
            assert relation.times is not None
    timeless = Dataset.open(write(tmp_path / "timeless", has_times=False))
    assert timeless.time_bytes == 0
    with open_topology(timeless, max_bytes=0, times=True) as topology:
        assert topology.times is None


def test_checksums_of_times_count_where_they_are_read(original: Path) -> None:
    dataset = Dataset.open(original)
    times = 8 * -(-NUM_EDGES // PER_PAGE)
    with pytest.raises(BudgetError) as caught:
        require_offsets(dataset, budget_bytes=0, times=True)
    with pytest.raises(BudgetError) as without:
        require_offsets(dataset, budget_bytes=0)
    sources = 8 * -(-NUM_EDGES // 1024)
    assert f"checksums of their edges {sources} B" in str(without.value)
    assert f"checksums of their edges {(sources + times) / 1000:.2f} KB" in str(caught.value)


def test_of_a_long_list_few_pages_are_read(original: Path) -> None:
    os_io = CountingOS()
    dataset = Dataset.open(original, os_io=os_io)
    with open_topology(dataset, max_bytes=0, io="buffered", times=True) as topology:
        start, count = int(topology.offsets.low[0]), 0
        graph = dataset.load_graph()
        start, count = int(graph.indptr[HUB]), int(graph.indptr[HUB + 1] - graph.indptr[HUB])
        assert topology.times is not None
        assert graph.edge_time is not None
        one = np.array([start]), np.array([count])
        hub = graph.edge_time[start : start + count]
        for bound in (0, 1_600_000_000, int(hub[count // 2]), int(hub[-1]), 2**63 - 1):
            os_io.pages = 0
            (rank,) = rank_bounds(topology.times, *one, np.array([bound]), is_inclusive=False).tolist()
            assert rank == np.searchsorted(hub, bound)
            # 60,000 times are halved six times; up to 1,024 that are left lie in three pages at most.
            assert os_io.pages <= 6 + 3
        # A list of two pages' times is read as it is: no page of it twice.
        os_io.pages = 0
        rank_bounds(topology.times, one[0], np.array([1024]), np.array([0]), is_inclusive=True)
        assert os_io.pages <= 3


def test_both_ends_of_a_window_share_the_pages_of_a_short_list(original: Path) -> None:
    os_io = CountingOS()
    dataset = Dataset.open(original, os_io=os_io)
    seeds = BatchSeeds(nodes=np.array([3]), times=np.array([1_600_020_000]))
    pages = []
    for window in (None, 1000):
        with open_topology(dataset, max_bytes=0, io="buffered", times=True) as topology:
            os_io.pages = 0
            # Of the seed alone: what it takes differs, and lists of that are read for their degrees.
            make_temporal_sampler(topology, [0], window=window).sample(BatchId(epoch=0, index=0), seeds)
            pages.append(os_io.pages)
    assert pages[0] == pages[1] >= 1


def test_lists_that_are_not_sorted_are_refused_in_memory_and_page_by_page(tmp_path: Path) -> None:
    dataset = Dataset.open(write(tmp_path / "data", unsorted=True))
    said = r"edge_time\.npy: edge_time\[\d+\] = \d+ is less than \d+ before it, among the in-edges of node 7"
    with pytest.raises(GraphError, match=said):
        dataset.load_graph()
    assert dataset.load_graph(times=False).times is None
    with open_topology(dataset, max_bytes=0, times=True) as topology:
        for asked in (1_600_000_001, 1_600_015_000, 1_600_029_999):
            seeds = BatchSeeds(nodes=np.array([HUB]), times=np.array([asked]))
            with pytest.raises(
                GraphError, match=r"edge_time\[\d+\] = \d+ is smaller than an earlier entry in"
            ):
                make_temporal_sampler(topology, [3]).sample(BatchId(epoch=0, index=0), seeds)


def test_a_search_sees_a_time_below_one_that_it_saw_before_it(tmp_path: Path) -> None:
    dataset = Dataset.open(write(tmp_path / "data", dip=True))
    with open_topology(dataset, max_bytes=0, times=True) as topology:
        seeds = BatchSeeds(nodes=np.array([HUB]), times=np.array([1_600_029_999]))
        with pytest.raises(GraphError, match=r"edge_time\[\d+\] = \d+ is smaller than an earlier entry in"):
            make_temporal_sampler(topology, [3]).sample(BatchId(epoch=0, index=0), seeds)


def test_a_damaged_page_of_times_is_an_error_of_the_batch_that_reads_it(tmp_path: Path) -> None:
    dataset = Dataset.open(write(tmp_path / "data"))
    with open_topology(dataset, max_bytes=0, times=True) as topology:
        with (dataset.root / "edge_time.npy").open("r+b") as opened:
            opened.seek(DATA_OFFSET + 3)
            opened.write(b"\xff")
        seeds = BatchSeeds(nodes=np.array([0]), times=np.array([1_600_020_000]))
        with pytest.raises(ChecksumError, match=r"edge_time\.npy"):
            make_temporal_sampler(topology, [3]).sample(BatchId(epoch=0, index=0), seeds)


@pytest.mark.parametrize("is_paged", [False, True])
@pytest.mark.parametrize("window", [None, 2000])
def test_what_a_call_takes_beside_its_batch_is_counted(
    original: Path, window: int | None, is_paged: bool
) -> None:
    dataset = Dataset.open(original)
    random = np.random.default_rng(0)
    seeds = BatchSeeds(
        nodes=random.integers(0, NUM_NODES, 3000), times=random.integers(1_600_000_000, 1_600_030_000, 3000)
    )
    with ExitStack() as stack:
        topology: Topology = dataset.load_graph()
        if is_paged:
            topology = stack.enter_context(open_topology(dataset, max_bytes=0, times=True))
        # The first compiles; the second has a workspace of its own.
        first, sampler = (make_temporal_sampler(topology, [30, 20], window=window) for _ in range(2))
        first.sample(BatchId(epoch=0, index=0), seeds)
        tracemalloc.start()
        try:
            sampled = sampler.sample(BatchId(epoch=0, index=1), seeds)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    rows, edges = len(sampled.nodes), sum(block.num_edges for block in sampled.blocks)
    called = temporal_call_bytes(topology, sampled)
    counted = 40 * rows + 16 * edges + called + temporal_map_bytes(rows + edges)
    assert peak <= 1.05 * counted + 100_000
    # Copies of times and sources that come from the disk.
    assert (called > 30 * sampled.blocks[0].num_edges) >= is_paged
