"""Passes for samplers that look at whole lists: the batches of the sampler in memory, whatever is read at a time."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.signals import NEVER, Cancellation
from gloader.core.thread_times import own_account
from gloader.dataset import Dataset
from gloader.dataset.edge_passes import PassSettings
from gloader.dataset.list_passes import ListPasses, SweptLists
from gloader.errors import (
    BudgetError,
    ChannelClosedError,
    ChecksumError,
    SpillError,
    StoreError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.samplers import CscGraph, make_sampler
from gloader.samplers.list_rule import ListRule
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import FaultyOS
from gloader.testing.sampler_suite import batch_bytes, require_same
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gloader.samplers.sweeping import Frontier

NUM_NODES, HUB = 2000, 5000  # the hub's list spans five pages
PAGE = 4096
MEMORY = 4 * 2**20
RATES = IoRates(
    random_reads_per_s=90_000, read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9
)
IN_MEMORY = 2**30


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lists") / "data")


@pytest.fixture(scope="module")
def graph(original: Path) -> CscGraph:
    return Dataset.open(original).load_graph()


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    target = tmp_path / "data"
    target.mkdir()
    for file in original.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def write(path: Path, *, dtype: str = "int32", num_edges: int | None = None) -> Path:
    """Write a graph with a hub, isolated nodes, parallel edges, self loops and lists whose weights are all 0."""
    random = np.random.default_rng(5)
    degrees = random.integers(0, 30, NUM_NODES)
    degrees[7] = HUB
    degrees[degrees == 3] = 0
    degrees = degrees if num_edges is None else np.zeros_like(degrees)
    total = int(degrees.sum())
    owner = np.repeat(np.arange(NUM_NODES), degrees)
    sources = np.where(random.random(total) < 0.05, owner, random.integers(0, NUM_NODES, total))
    weights = random.random(total) * (random.random(total) > 0.2) * (owner % 11 != 5)
    with Dataset.create(path, name="d", num_nodes=NUM_NODES, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
        with writer.indices(total, dtype) as column:
            column.append(sources.astype(dtype))
        with writer.edge_weight(total) as column:
            column.append(weights.astype(np.float32))
        with writer.features(2, "float32") as column:
            column.append(random.random((NUM_NODES, 2)).astype(np.float32))
        writer.labels(random.integers(0, 2, NUM_NODES))
        ids = np.arange(NUM_NODES)
        writer.splits(train=ids[:100], valid=ids[100:200], test=ids[200:])
    return path


def seeds_of(index: int) -> np.ndarray:
    """Seeds in no order; the hub is among them."""
    seeds = np.random.default_rng(index).permutation(NUM_NODES)[:30]
    return np.unique(np.append(seeds, 7))[::-1].copy()


def swept(graph: Any, name: str, fanouts: Sequence[int], **options: Any) -> Any:
    return make_sampler(name, graph, fanouts, 3, **options)


@contextmanager
def opened(
    path: Path, rule: ListRule, tmp_path: Path, *, os_io: OsIO = REAL_OS, spill_io: OsIO = REAL_OS, **how: Any
) -> Iterator[tuple[ListPasses, SpillFolder]]:
    spill_budget = how.pop("spill_budget", 2**30)
    piece_bytes = how.pop("piece_bytes", None)
    settings = PassSettings(**({"memory_bytes": MEMORY, "rates": RATES} | how))
    with SpillFolder(tmp_path, budget_bytes=spill_budget, os_io=spill_io) as folder:
        passes = ListPasses(Dataset.open(path, os_io=os_io), rule, folder, settings, piece_bytes=piece_bytes)
        try:
            yield passes, folder
        finally:
            passes.close()
        assert folder.used_bytes == 0


def run(passes: ListPasses, sampler: Any, indices: Sequence[int]) -> dict[int, dict[str, bytes]]:
    """Sample batches in a wavefront: every pass serves a hop of one batch, the hop before it of the next, ..."""
    hops = sampler.rule.num_hops
    fronts: dict[int, Frontier] = {}
    drawn: dict[int, list[tuple[SweptLists, int]]] = {index: [] for index in indices}
    for time in range(len(indices) + hops - 1):
        alive = [index for place, index in enumerate(indices) if place <= time < place + hops]
        for index in alive:
            if index not in fronts:
                fronts[index] = sampler.rule.begin(BatchId(epoch=0, index=index), seeds_of(index))
        result = passes.sweep([fronts[index] for index in alive], label="pass", cancellation=NEVER)
        for owner, index in enumerate(alive):
            fronts[index] = sampler.rule.extend(fronts[index], result.read(owner))
            drawn[index].append((result, owner))
    batches = {}
    for index in indices:
        records = [result.read(owner) for result, owner in drawn[index]]
        batch = sampler.replay(BatchId(epoch=0, index=index), seeds_of(index), records)
        assert np.array_equal(np.sort(batch.nodes), fronts[index].seen)
        batches[index] = batch_bytes(batch)
        for result, owner in drawn[index]:
            result.release(owner)
    return batches


def require_equal(
    graph: CscGraph, name: str, fanouts: Sequence[int], found: dict[int, Any], **options: Any
) -> None:
    expected = make_sampler(name, graph, fanouts, 3, **options)
    for index, batch in found.items():
        batch_id = BatchId(epoch=0, index=index)
        wanted = batch_bytes(expected.sample(batch_id, seeds_of(index)))
        require_same(batch, wanted, batch_id, "swept and in memory")


SAMPLERS: list[tuple[str, list[int], dict[str, Any]]] = [
    ("weighted", [4, 3], {}),
    ("weighted", [0, -1, 2], {"importance": False}),
    ("weighted", [5, 0, 40], {"layout": "merged"}),
    ("labor", [4, 3], {"normalize": True}),
    ("labor", [-1, 0, 2], {"share_layers": True}),
]


def test_the_processor_time_of_the_thread_that_reads_counts_for_who_sweeps(
    original: Path, graph: CscGraph, tmp_path: Path
) -> None:
    sampler = swept(graph, "weighted", [4, 3])
    with opened(original, sampler.rule, tmp_path) as (passes, _):
        before = own_account().used_ns
        run(passes, sampler, range(1))
    assert own_account().used_ns > before


@pytest.mark.reliability("F3")
@pytest.mark.parametrize(("name", "fanouts", "options"), SAMPLERS)
def test_batches_are_those_of_the_sampler_in_memory(
    original: Path, graph: CscGraph, tmp_path: Path, name: str, fanouts: list[int], options: dict[str, Any]
) -> None:
    for piece_bytes, memory in ((PAGE, 2**21), (8 * PAGE, MEMORY), (2**20, 2**24)):
        sampler = swept(graph, name, fanouts, **options)
        with opened(original, sampler.rule, tmp_path, piece_bytes=piece_bytes, memory_bytes=memory) as (
            passes,
            _,
        ):
            require_equal(graph, name, fanouts, run(passes, sampler, range(3)), **options)


def test_ids_of_64_bits_and_a_graph_without_edges(tmp_path: Path) -> None:
    # Two pages of such sources have one page of weights, so that a piece of pages may end within one.
    for path, fanouts in (
        (write(tmp_path / "wide", dtype="int64"), [4, -1]),
        (write(tmp_path / "empty", num_edges=0), [4, -1]),
    ):
        graph = Dataset.open(path).load_graph()
        for name in ("weighted", "labor"):
            sampler = swept(graph, name, fanouts)
            with opened(path, sampler.rule, tmp_path, piece_bytes=3 * PAGE) as (passes, _):
                require_equal(graph, name, fanouts, run(passes, sampler, range(2)))


def test_a_pass_reads_in_three_ways_and_brings_the_same(
    original: Path, graph: CscGraph, tmp_path: Path
) -> None:
    sampler = swept(graph, "weighted", [4])
    batch_id = BatchId(epoch=0, index=0)
    # Nodes far apart: between their pages are holes.
    frontier = sampler.rule.begin(batch_id, np.array([0, 600, 1100, 1900]))
    reads, records = {}, []
    for way in ("direct", "merged", "full", None):
        with opened(original, sampler.rule, tmp_path, way=way) as (passes, _):
            result = passes.sweep([frontier], label="pass", cancellation=NEVER)
            reads[way] = result.report
            records.append(result.read(0))
    assert all(np.array_equal(records[0], others) for others in records[1:])
    wanted = reads["direct"].pages_wanted
    assert reads["direct"].cost.read.bytes_read == 2 * wanted * PAGE  # of the edges, and of their weights
    assert reads["direct"].cost.read.requests > reads["full"].cost.read.requests == 2
    assert reads["full"].cost.read.bytes_read > reads["direct"].cost.read.bytes_read
    assert reads["merged"].cost.read.bytes_read >= reads["direct"].cost.read.bytes_read
    # Nothing is forced: on this disk a page alone takes less than a hole.
    assert reads[None].predicted_s == min(reads[way].predicted_s for way in ("direct", "merged", "full"))
    assert {reads[way].way for way in ("direct", "merged", "full")} == {"direct", "merged", "full"}


def pages_of(graph: CscGraph, nodes: np.ndarray) -> set[int]:
    """The pages of the lists of ``nodes``."""
    lists = [(graph.indptr[node], graph.indptr[node + 1]) for node in nodes]
    return {
        page for start, stop in lists if stop > start for page in range(start // 1024, (stop - 1) // 1024 + 1)
    }


def flip(file: Path, page: int) -> None:
    with file.open("r+b") as opened_file:
        opened_file.seek(DATA_OFFSET + page * PAGE + 100)
        byte = opened_file.read(1)[0]
        opened_file.seek(-1, 1)
        opened_file.write(bytes([byte ^ 4]))


@pytest.mark.reliability("K2")
@pytest.mark.reliability("B3")
@pytest.mark.parametrize("name", ["indices", "edge_weight"])
def test_damage_names_file_and_page_where_it_is_wanted(
    path: Path, graph: CscGraph, tmp_path: Path, name: str
) -> None:
    sampler = swept(graph, "weighted", [4])
    seeds = np.array([0, 600, 1900])
    wanted = pages_of(graph, seeds)
    unwanted = next(page for page in range(100) if page not in wanted)
    file = path / Dataset.open(path).arrays[name].file
    frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds)
    with opened(path, sampler.rule, tmp_path, way="full") as (passes, folder):
        flip(file, unwanted)
        result = passes.sweep([frontier], label="pass 1", cancellation=NEVER)
        batch = sampler.replay(frontier.batch_id, seeds, [result.read(0)])
        expected = make_sampler("weighted", graph, [4], 3).sample(frontier.batch_id, seeds)
        require_same(batch_bytes(batch), batch_bytes(expected), frontier.batch_id, "an unwanted page")
        result.release(0)
        last = max(wanted)
        flip(file, last)
        with pytest.raises(
            ChecksumError, match=f"{file}: page {last} at byte .* does not match its checksum"
        ):
            passes.sweep([frontier], label="pass 2", cancellation=NEVER)
        assert folder.used_bytes == 0


@pytest.mark.reliability("B2")
def test_a_file_that_ends_early_and_a_disk_that_fails_raise_and_leave_nothing(
    path: Path, graph: CscGraph, tmp_path: Path
) -> None:
    sampler = swept(graph, "labor", [4])
    frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0))
    failing = FaultyOS(calls={"pread_into"}, fail_at=40, repeat=10_000)
    with (
        opened(path, sampler.rule, tmp_path, os_io=failing, piece_bytes=PAGE) as (passes, folder),
        pytest.raises(StoreReadError, match=r"reading at byte \d+ failed.*indices"),
    ):
        passes.sweep([frontier], label="pass", cancellation=NEVER)
    assert folder.used_bytes == 0
    with opened(path, sampler.rule, tmp_path) as (passes, folder):
        file = path / Dataset.open(path).arrays["indices"].file
        with file.open("r+b") as opened_file:
            opened_file.truncate(DATA_OFFSET + PAGE)
        with pytest.raises(TruncatedStoreError, match="truncated after it was opened"):
            passes.sweep([frontier], label="pass", cancellation=NEVER)
        assert folder.used_bytes == 0


@pytest.mark.reliability("E1")
@pytest.mark.parametrize(
    ("call", "error"), [("pwrite", errno.ENOSPC), ("fallocate", errno.EIO), ("close", errno.EIO)]
)
def test_a_spill_disk_that_is_full_or_fails_raises_and_leaves_nothing(
    original: Path, graph: CscGraph, tmp_path: Path, call: str, error: int
) -> None:
    sampler = swept(graph, "labor", [40])
    frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0))
    spill_io = FaultyOS(calls={call}, fail_at=2 if call == "close" else 1, error=error, repeat=1)
    with opened(original, sampler.rule, tmp_path, spill_io=spill_io) as (passes, folder):
        with pytest.raises(SpillError, match="what pass 4 drew"):
            passes.sweep([frontier], label="pass 4", cancellation=NEVER)
        assert folder.used_bytes == 0
        assert not list(folder.path.glob("*.spill"))
        result = passes.sweep([frontier], label="pass 5", cancellation=NEVER)
        batch = sampler.replay(frontier.batch_id, seeds_of(0), [result.read(0)])
        require_equal(graph, "labor", [40], {0: batch_bytes(batch)})


def test_a_cancelled_pass_leaves_nothing(original: Path, graph: CscGraph, tmp_path: Path) -> None:
    sampler = swept(graph, "labor", [4])
    frontier = sampler.rule.begin(BatchId(epoch=0, index=0), np.arange(NUM_NODES))
    asked = iter([False] * 5)
    with opened(original, sampler.rule, tmp_path, piece_bytes=PAGE) as (passes, folder):
        with pytest.raises(ChannelClosedError, match=r"pass over .*indices.* was cancelled"):
            passes.sweep([frontier], label="pass", cancellation=Cancellation(lambda: next(asked, True)))
        assert folder.used_bytes == 0


@pytest.mark.reliability("E2")
def test_what_was_drawn_is_verified_as_it_is_read_back(
    original: Path, graph: CscGraph, tmp_path: Path
) -> None:
    sampler = swept(graph, "weighted", [-1, 4])
    frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0))
    with opened(original, sampler.rule, tmp_path) as (passes, folder):
        result = passes.sweep([frontier, frontier], label="pass 3", cancellation=NEVER)
        records = result.read(1)
        first, second = ({piece[0].path for piece in owner.pieces} for owner in result._pieces._owners)
        assert first & second
        spilled = min(folder.path.glob("*.spill"))
        with spilled.open("r+b") as opened_file:
            opened_file.seek(50)
            opened_file.write(b"?")
        with pytest.raises(
            ChecksumError, match=r"what pass 3 drew, owner 0 .* is damaged: the page at byte 0"
        ):
            result.read(0)
        spilled.write_bytes(b"")
        with pytest.raises(ChecksumError, match=r"what pass 3 drew, owner 0 .* is damaged: it has 0 bytes"):
            result.read(0)
        result.release(0)
        assert np.array_equal(result.read(1), records)
        assert set(folder._idle) == first - second  # a file with pieces of both stays
        result.release(1)
        result.release(1)
        assert folder.used_bytes == 0
        with pytest.raises(SpillError, match="was released"):
            result.read(1)


def test_what_does_not_fit_is_said_in_bytes(original: Path, graph: CscGraph, tmp_path: Path) -> None:
    sampler = swept(graph, "weighted", [100_000])
    frontier = sampler.rule.begin(BatchId(epoch=0, index=0), seeds_of(0))
    with pytest.raises(BudgetError, match="need 2097152 bytes of buffers and 1000 are allowed"):
        ListPasses(
            Dataset.open(original),
            sampler.rule,
            SpillFolder(budget_bytes=0),
            PassSettings(memory_bytes=1000, rates=RATES),
        )
    with (
        opened(original, sampler.rule, tmp_path, spill_budget=PAGE) as (passes, folder),
        pytest.raises(
            BudgetError, match=r"for 2000 frontiers at once needs \d+ bytes of buffers and \d+ are"
        ),
    ):
        passes.sweep([frontier] * 2000, label="pass", cancellation=NEVER)
    sampler = swept(graph, "weighted", [10])
    with opened(original, sampler.rule, tmp_path, spill_budget=PAGE) as (passes, folder):
        with pytest.raises(BudgetError, match=r"what pass 1 drew needs \d+ bytes"):
            passes.sweep([frontier], label="pass 1", cancellation=NEVER)
        assert folder.used_bytes == 0
        passes.close()
        with pytest.raises(StoreError, match="the passes over it are closed"):
            passes.sweep([frontier], label="pass 2", cancellation=NEVER)
