"""A topology that does not fit is read page by page: the same batches, and damage is an error that names the page."""

from __future__ import annotations

import os
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from counted_pages import CountingOS
from version_1 import as_version_1

from gloader.core.order import EpochOrder
from gloader.dataset import Dataset
from gloader.dataset.topology import PagedTopology, open_topology
from gloader.device.hot_rows import heat_of_tables
from gloader.errors import (
    BudgetError,
    ChecksumError,
    ForkError,
    GraphError,
    ShapeError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.pipeline.open.disk import FeatureFile
from gloader.pipeline.open.tiers import static_rows
from gloader.samplers import CscGraph, HeteroGraph, call_bytes, make_sampler
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.testing.faults import Corruption, FaultyOS
from gloader.testing.sampler_suite import batch_bytes
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.samplers import Topology
    from gloader.types import Sampler

NUM_NODES, NUM_EDGES = 3000, 40_000
PAGES, MANY = 2 * 40, 40  # of indices and weights; as many as may be kept of a topology that does not fit
SLOT_BYTES, ENTRY_BYTES = 4096 + 5, 4
SAMPLERS: list[tuple[str, list[int], dict[str, Any]]] = [
    ("neighbor", [5, 5], {}),
    ("neighbor:replace=true", [5, 5], {}),
    ("neighbor", [-1, 3], {"layout": "merged"}),
    ("weighted", [5, 5], {}),
    ("weighted:replace=true", [5, 0, 5], {}),
    ("weighted", [5, -1], {"layout": "merged"}),
    ("labor", [5, 5], {}),
    ("labor:iterations=1", [5, 5], {}),
    ("ladies", [64, 0, 64], {}),
    ("fastgcn", [64, 64], {"adjacency": "gcn"}),
]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with weights, and a hub whose list spans pages."""
    return write(tmp_path_factory.mktemp("topology") / "data")


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    target = tmp_path / "data"
    target.mkdir()
    for file in original.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def write(path: Path, *, indices: np.ndarray | None = None, offsets: dict[int, int] | None = None) -> Path:
    random = np.random.default_rng(3)
    degrees = random.multinomial(NUM_EDGES - 3000, np.full(NUM_NODES, 1 / NUM_NODES))
    degrees[7] += 3000
    sources = random.integers(0, NUM_NODES, NUM_EDGES).astype(np.int32) if indices is None else indices
    with Dataset.create(path, name="d", num_nodes=NUM_NODES, num_classes=2) as writer:
        with writer.indptr() as column:
            indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
            for node, offset in (offsets or {}).items():
                indptr[node] = offset
            column.append(indptr)
        with writer.indices(NUM_EDGES, "int32") as column:
            column.append(sources)
        with writer.edge_weight(NUM_EDGES) as column:
            column.append((random.random(NUM_EDGES) * (random.random(NUM_EDGES) > 0.1)).astype(np.float32))
        with writer.features(2, "float32") as column:
            column.append(random.random((NUM_NODES, 2)).astype(np.float32))
        writer.labels(random.integers(0, 2, NUM_NODES))
        ids = np.arange(NUM_NODES)
        writer.splits(train=ids[:100], valid=ids[100:200], test=ids[200:])
    return path


@contextmanager
def paged(path: Path, *, pages: int = 0, os_io: OsIO = REAL_OS, **how: Any) -> Iterator[PagedTopology]:
    """Open the topology at ``path`` with room for ``pages`` pages."""
    max_bytes = 2 * (ENTRY_BYTES * PAGES + SLOT_BYTES * pages)
    with open_topology(Dataset.open(path, os_io=os_io), max_bytes=max_bytes, **how) as topology:
        assert isinstance(topology, PagedTopology)
        yield topology


def batch(sampler: Sampler, index: int) -> dict[str, bytes]:
    return batch_bytes(sampler.sample(BatchId(epoch=0, index=index), np.arange(index * 50, index * 50 + 50)))


def overwrite(file: Path, start: int, data: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(DATA_OFFSET + start)
        opened.write(data)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no path is wanted


@pytest.mark.parametrize("pages", [0, 1, 7, MANY])
@pytest.mark.parametrize(("spec", "fanouts", "settings"), SAMPLERS, ids=str)
def test_every_sampler_gives_the_batches_of_the_graph_in_memory(
    original: Path, spec: str, fanouts: list[int], settings: dict[str, Any], pages: int
) -> None:
    expected = make_sampler(spec, Dataset.open(original).load_graph(), fanouts, 5, **settings)
    with paged(original, pages=pages) as topology:
        sampler = make_sampler(spec, topology, fanouts, 5, **settings)
        for index in (0, 1, 0):
            assert batch(sampler, index) == batch(expected, index)


@pytest.mark.parametrize("io", ["threads", "buffered"])
def test_threads_that_share_few_pages_get_batches_of_their_own(original: Path, io: str) -> None:
    specs = ("neighbor", "weighted", "labor")
    graph = Dataset.open(original).load_graph()
    expected = {spec: [batch(make_sampler(spec, graph, [5, 5]), i) for i in range(8)] for spec in specs}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with paged(original, pages=5, io=io) as topology, ThreadPoolExecutor(8) as pool:
            samplers = {spec: make_sampler(spec, topology, [5, 5]) for spec in specs}
            tasks = [(spec, i, pool.submit(batch, samplers[spec], i)) for i in range(8) for spec in specs]
            assert all(task.result() == expected[spec][i] for spec, i, task in tasks)
    finally:
        sys.setswitchinterval(interval)


def test_one_that_fits_is_held_and_needs_its_files_no_longer(path: Path) -> None:
    dataset = Dataset.open(path)
    with open_topology(dataset, max_bytes=dataset.topology_bytes) as topology:
        assert isinstance(topology, CscGraph)
        assert topology.held_bytes == dataset.topology_bytes
        before = batch(make_sampler("weighted", topology, [5]), 0)
        for name in ("indptr", "indices", "edge_weight"):
            os.truncate(path / f"{name}.npy", 0)
        assert batch(make_sampler("weighted", topology, [5]), 0) == before


def test_what_is_held_is_counted(original: Path) -> None:
    with paged(original, pages=7) as few, paged(original, pages=MANY) as many:
        assert few.kept_bytes == 7 * SLOT_BYTES + PAGES * ENTRY_BYTES
        assert many.held_bytes - few.held_bytes == (MANY - 7) * SLOT_BYTES
        # Offsets of the nodes, checksums, pages, and what passes through on its way.
        assert few.held_bytes - few.kept_bytes - few.offsets.num_bytes - 8 * PAGES < 4 << 20


@pytest.mark.reliability("J11")
@pytest.mark.parametrize("spec", ["neighbor", "weighted", "labor", "labor:iterations=1", "ladies", "fastgcn"])
@pytest.mark.parametrize("is_paged", [True, False])
def test_what_a_call_takes_beside_its_batch_is_counted(original: Path, spec: str, is_paged: bool) -> None:
    """Copies of edges that come from the disk, what it takes to sort them, and candidates."""
    seeds = np.arange(1000)
    with ExitStack() as stack:
        topology: Topology = Dataset.open(original).load_graph()
        if is_paged:
            topology = stack.enter_context(paged(original))
        # The first compiles; the second has a workspace of its own, which is small beside the rest.
        first, sampler = (
            make_sampler(spec, topology, [1000 if spec in {"ladies", "fastgcn"} else 20]) for _ in range(2)
        )
        first.sample(BatchId(epoch=0, index=0), seeds)
        tracemalloc.start()
        try:
            sampled = sampler.sample(BatchId(epoch=0, index=1), seeds)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    rows, edges = len(sampled.nodes), sampled.blocks[0].num_edges
    counted = 40 * rows + 16 * edges + call_bytes(spec, topology, sampled)
    assert peak <= 1.05 * counted + 100_000
    # Of 13,000 in-edges none is held, and each of those that are taken waits for its page.
    assert (call_bytes(spec, topology, sampled) > 30 * edges) >= is_paged


@pytest.mark.parametrize("pages", [0, MANY])
def test_all_edges_come_in_order(original: Path, pages: int) -> None:
    graph = Dataset.open(original).load_graph()
    assert graph.edge_weight is not None
    with paged(original, pages=pages) as topology:
        assert topology.weights is not None
        sources = np.concatenate([piece.copy() for piece in topology.sources.pieces()])
        weights = np.concatenate([piece.copy() for piece in topology.weights.pieces()])
        assert (topology.num_nodes, topology.num_edges) == (NUM_NODES, NUM_EDGES)
        nodes = np.array([7, 0, 2999])
        assert topology.in_degrees(nodes).tolist() == graph.in_degrees(nodes).tolist()
    assert sources.tobytes() == graph.indices.tobytes()
    assert weights.tobytes() == graph.edge_weight.tobytes()


@pytest.mark.parametrize(("who", "passes"), [("degree", 1), ("vip", 2), ("static", 1), ("fastgcn", 1)])
def test_whoever_wants_all_edges_reads_every_page_once_a_pass_and_in_order(
    original: Path, who: str, passes: int
) -> None:
    os_io = CountingOS()
    dataset = Dataset.open(original, os_io=os_io)
    order = EpochOrder(seeds=dataset.train, num_nodes=NUM_NODES, batch_size=50, seed=3)
    with open_topology(dataset, max_bytes=0) as topology:
        os_io.pages.clear()
        if who == "fastgcn":
            pick = make_sampler("fastgcn", topology, [64])._frame.picks[0]
            met = Barrier(4)
            with ThreadPoolExecutor(4) as pool:
                norms = [pool.submit(lambda: (met.wait(), pick._graph_norms.tobytes())[1]) for _ in range(4)]
                assert len({task.result() for task in norms}) == 1
        elif who == "static":
            with dataset.open_features() as store:
                os_io.pages.clear()
                table = FeatureFile(rows=dataset.labelled.feature_rows, store=store, is_of_edges=False)
                static_rows(topology, table, 10, np.empty(0, np.int64))
        else:
            sampler = make_sampler("neighbor", topology, [5, 5])
            heat_of_tables(
                who,
                (0,),
                graph=HeteroGraph.of_one_type(topology),
                sampler=sampler,
                order=order,
                fanouts=[(5, 5)],
                is_collective=False,
            )
        assert os_io.pages == list(range(MANY)) * passes


def test_positions_that_are_no_edges_are_refused(original: Path) -> None:
    with paged(original) as topology:
        for wrong in (-1, NUM_EDGES, 2**62):
            with pytest.raises(
                ShapeError, match=rf"indices\.npy: positions \[{wrong}\] are not in 0\.\.39999"
            ):
                topology.sources.at(np.array([0, wrong]))


def test_arrays_of_version_1_without_page_checksums_are_read_page_by_page(path: Path) -> None:
    expected = batch(make_sampler("weighted", Dataset.open(path).load_graph(), [5, 5]), 0)
    as_version_1(path)
    with paged(path, pages=3) as topology:
        sampler = make_sampler("weighted", topology, [5, 5])
        assert batch(sampler, 0) == expected
        overwrite(path / "indices.npy", 0, b"\x05" * 40_000)
        with pytest.raises(ChecksumError, match=r"indices\.npy: page \d at byte"):
            make_sampler("neighbor", topology, [-1]).sample(BatchId(epoch=0, index=0), np.arange(100))
    overwrite(path / "indices.npy", 0, b"\x06" * 40_000)
    with pytest.raises(ChecksumError, match=r"indices\.npy"), paged(path):
        pass


@pytest.mark.reliability("J1")
@pytest.mark.parametrize("file", ["indices", "edge_weight"])
@pytest.mark.parametrize("damage", ["a quarter", "a bit"])
def test_damage_after_the_opening_is_raised_by_the_batch_that_reads_the_page(
    path: Path, file: str, damage: str
) -> None:
    everyone = np.arange(NUM_NODES)
    with paged(path) as topology:
        sampler = make_sampler("weighted", topology, [5])
        sampler.sample(BatchId(epoch=0, index=0), everyone)
        if damage == "a bit":
            byte = (path / f"{file}.npy").read_bytes()[DATA_OFFSET + 70_001]
            overwrite(path / f"{file}.npy", 70_001, bytes([byte ^ 4]))
        else:
            overwrite(path / f"{file}.npy", 16 * 4096, bytes(10 * 4096))
        first = 17 if damage == "a bit" else 16
        for epoch in (1, 2):
            with pytest.raises(
                ChecksumError, match=rf"{file}\.npy: page {first} at byte {4096 * (first + 1)}, "
            ):
                sampler.sample(BatchId(epoch=epoch, index=0), everyone)
        # Lists before the damage are read as ever.
        assert sampler.sample(BatchId(epoch=0, index=1), np.arange(100)).num_seeds == 100


@pytest.mark.reliability("J2")
@pytest.mark.parametrize("file", ["indices", "edge_weight"])
def test_a_file_that_is_cut_after_the_opening_is_an_error(path: Path, file: str) -> None:
    with paged(path) as topology:
        sampler = make_sampler("weighted", topology, [5])
        os.truncate(path / f"{file}.npy", DATA_OFFSET + 70_001)
        with pytest.raises(TruncatedStoreError, match=rf"{file}\.npy: bytes .* but the file now has 74097"):
            sampler.sample(BatchId(epoch=0, index=0), np.arange(NUM_NODES))
        assert sampler.sample(BatchId(epoch=0, index=1), np.arange(100)).num_seeds == 100


@pytest.mark.reliability("J2")
@pytest.mark.parametrize("file", ["indptr", "indices", "edge_weight"])
def test_a_file_that_was_cut_is_refused_at_the_opening(path: Path, file: str) -> None:
    dataset, before = Dataset.open(path), descriptors()
    os.truncate(path / f"{file}.npy", DATA_OFFSET + 100)
    with pytest.raises(TruncatedStoreError, match=rf"{file}\.npy"), open_topology(dataset, max_bytes=0):
        pass
    assert descriptors() == before


@pytest.mark.reliability("J3")
def test_a_neighbour_that_is_no_node_is_refused_though_its_checksum_is_right(tmp_path: Path) -> None:
    sources = np.zeros(NUM_EDGES, np.int32)
    sources[[30_000, 30_001]] = [NUM_NODES, -1]
    write(tmp_path / "data", indices=sources)
    with paged(tmp_path / "data") as topology:
        sampler = make_sampler("neighbor", topology, [-1])
        message = r"indices\.npy: indices\[30000\] = 3000 is not a node: it must be in 0\.\.2999; its checksums hold"
        with pytest.raises(GraphError, match=message):
            sampler.sample(BatchId(epoch=0, index=0), np.arange(NUM_NODES))
        with pytest.raises(GraphError, match=message):
            list(topology.sources.pieces())


@pytest.mark.reliability("J3")
@pytest.mark.parametrize(
    ("node", "offset", "message"),
    [
        (1000, 7, r"indptr\[1000\] = 7 is smaller than \d+ before it; offsets must not decrease"),
        (
            NUM_NODES,
            NUM_EDGES - 1,
            r"indptr\[3000\], its end, is 39999; it must be the number of edges, 40000",
        ),
        (0, 1, r"indptr\[0\] is 1; it must be 0"),
        (5, -1, r"indptr\[5\] = -1 is not an edge position: it must be in 0\.\.40000"),
    ],
)
def test_offsets_that_cannot_be_are_refused_at_the_opening(
    tmp_path: Path, node: int, offset: int, message: str
) -> None:
    write(tmp_path / "data", offsets={node: offset})
    with (
        pytest.raises(GraphError, match=rf"indptr\.npy: {message}; its checksums hold"),
        paged(tmp_path / "data"),
    ):
        pass


@pytest.mark.reliability("J1")
@pytest.mark.parametrize("is_version_1", [False, True])
def test_offsets_that_were_damaged_are_refused_as_that(path: Path, is_version_1: bool) -> None:
    """Though they descend: what is told is that the file was damaged, not that it was written so."""
    if is_version_1:
        as_version_1(path)
    overwrite(path / "indptr.npy", 4096, b"\xff" * 8)
    with (
        pytest.raises(
            ChecksumError, match=r"indptr\.npy: " + ("" if is_version_1 else "page 1 at byte 8192")
        ),
        paged(path),
    ):
        pass


def test_short_reads_are_continued(original: Path) -> None:
    expected = batch(make_sampler("neighbor", Dataset.open(original).load_graph(), [5, 5]), 0)
    with paged(original, os_io=FaultyOS(short=1000)) as topology:
        assert batch(make_sampler("neighbor", topology, [5, 5]), 0) == expected


def test_a_bit_that_flips_on_the_way_is_seen(original: Path) -> None:
    corrupt = Corruption(offset=DATA_OFFSET + 9, mask=4, file="indices.npy")
    with paged(original, os_io=FaultyOS(corrupt=corrupt)) as topology:
        sampler = make_sampler("neighbor", topology, [-1])
        with pytest.raises(ChecksumError, match=r"indices\.npy: page 0 at byte 4096"):
            batch(sampler, 0)


def test_a_device_that_fails_is_an_error_and_the_next_batch_is_right(original: Path) -> None:
    expected = batch(make_sampler("neighbor", Dataset.open(original).load_graph(), [5]), 0)
    os_io = FaultyOS(calls={"pread_into"})
    with paged(original, os_io=os_io, pages=3) as topology:
        sampler = make_sampler("neighbor", topology, [5])
        os_io._fail_from = os_io.num_calls + 1
        os_io._fail_until = os_io._fail_from + 1
        with pytest.raises(
            StoreReadError, match=r"reading at byte \d+ failed: Input/output error.*indices\.npy"
        ):
            batch(sampler, 0)
        assert batch(sampler, 0) == expected


def test_a_child_of_the_process_is_refused(original: Path) -> None:
    with paged(original) as topology:
        array: Any = topology.sources
        array._array._pid += 1
        for read in (lambda: topology.sources.at(np.arange(3)), lambda: next(topology.sources.pieces())):
            with pytest.raises(
                ForkError, match=r"indices\.npy was opened by process \d+, of which this is a child"
            ):
                read()


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_failure_at_the_opening_leaves_no_descriptor(original: Path, fail_at: int) -> None:
    dataset, before = Dataset.open(original), descriptors()
    dataset._os_io = FaultyOS(fail_at=fail_at, calls={"open", "fstat"})
    try:
        with open_topology(dataset, max_bytes=0):
            pass
    except OSError:
        pass
    assert descriptors() == before


def test_who_wants_an_array_of_edges_is_told_why_there_is_none(original: Path) -> None:
    with paged(original) as topology, pytest.raises(BudgetError, match=r"the 40,000 edges .*load_graph\(\)"):
        _ = topology.indices


@pytest.mark.reliability("J2")
def test_nothing_is_mapped(original: Path) -> None:
    for pages in (0, MANY):
        with paged(original, pages=pages) as topology:
            batch(make_sampler("weighted", topology, [5]), 0)
            assert str(original) not in Path("/proc/self/maps").read_text()
