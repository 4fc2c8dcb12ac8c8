"""Passes over edges on the SSD: the sources at the positions that hops take, whatever way they are read."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.signals import NEVER, Cancellation
from gloader.dataset import Dataset, edge_passes
from gloader.dataset.edge_passes import PassSettings, PickedPasses
from gloader.errors import (
    BudgetError,
    ChannelClosedError,
    ChecksumError,
    SpillError,
    StoreError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.samplers import NeighborSampler
from gloader.samplers.neighbor import MergedBlockSampler
from gloader.samplers.pick_rule import UniformPickRule
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import Corruption, FaultyOS
from gloader.testing.sampler_suite import batch_bytes
from gloader.types import BatchId, BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.dataset.edge_passes import PickedHops
    from gloader.samplers.sweeping import Frontier
    from gloader.types import AnySeeds

NUM_NODES, HUB = 4000, 60_000
MOST_EDGES = 100_000  # that are excluded: there are a few more
WAYS = ["direct", "merged", "full", None]
RATES = IoRates(
    random_reads_per_s=1e5, read_bytes_per_s=1e9, write_bytes_per_s=1e9, pack_read_bytes_per_s=1e9
)


def write(path: Path, degrees: np.ndarray, dtype: str) -> Path:
    """Write a graph of parallel edges and self loops, as there are few nodes for its edges."""
    num_nodes, num_edges = len(degrees), int(degrees.sum())
    random = np.random.default_rng(3)
    with Dataset.create(path, name="d", num_nodes=num_nodes, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
        with writer.indices(num_edges, dtype) as column:
            column.append(random.integers(0, num_nodes, num_edges).astype(dtype))
        with writer.features(1, "float32") as column:
            column.append(np.zeros((num_nodes, 1), np.float32))
        writer.labels(np.zeros(num_nodes, np.int64))
        ids = np.arange(num_nodes)
        writer.splits(train=ids[:2], valid=ids[2:3], test=ids[3:])
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("passes")
    degrees = np.random.default_rng(1).poisson(12, NUM_NODES)
    degrees[::9] = 0
    degrees[17] = HUB
    return {
        "int32": write(root / "int32", degrees, "int32"),
        "int64": write(root / "int64", degrees, "int64"),
        "none": write(root / "none", np.zeros(5, np.int64), "int32"),
    }


@contextmanager
def opened(
    path: Path, tmp_path: Path, sampler: Any = None, *, os_io: OsIO = REAL_OS, **settings: Any
) -> Iterator[tuple[PickedPasses, Any, SpillFolder]]:
    spill_io = settings.pop("spill_io", REAL_OS)
    budget = settings.pop("budget_bytes", 10**9)
    dataset = Dataset.open(path, os_io=os_io)
    sampler = sampler or NeighborSampler(Dataset.open(path).load_graph(), [5, 5], seed=1)
    with SpillFolder(tmp_path, budget_bytes=budget, os_io=spill_io) as folder:
        settings = {"memory_bytes": 4 * 2**20, "rates": RATES} | settings
        passes = PickedPasses(dataset, sampler.rule, folder, PassSettings(**settings))
        try:
            yield passes, sampler, folder
        finally:
            passes.close()
        assert folder.used_bytes == 0


def seeds_of(index: int, num_nodes: int) -> np.ndarray:
    return np.random.default_rng(index).permutation(num_nodes)[: min(60, num_nodes)]


def given_of(index: int, num_nodes: int) -> AnySeeds:
    """Every other batch has the hub, and excludes some edges."""
    seeds = seeds_of(index, num_nodes)
    if index % 2 == 0 or num_nodes != NUM_NODES:
        return seeds
    excluded = np.flatnonzero(np.random.default_rng(index).random(MOST_EDGES) < 0.15 * index)
    return BatchSeeds(nodes=np.append(seeds[seeds != 17], 17), excluded=(excluded,))


def wavefront(passes: PickedPasses, sampler: Any, num_batches: int, num_nodes: int) -> list[dict[str, bytes]]:
    """Sample batches by passes that each serve a hop of two superbatches, and give back what is done with."""
    num_hops, size = sampler.rule.num_hops, 3
    batches = [(BatchId(epoch=1, index=b), given_of(b, num_nodes)) for b in range(num_batches)]
    waiting: list[list[tuple[int, Frontier]]] = []
    brought: dict[int, list[tuple[PickedHops, int]]] = {b: [] for b in range(num_batches)}
    found = {}
    for turn in count():
        begun = [
            (b, sampler.rule.begin(*batches[b])) for b in range(num_batches)[turn * size : (turn + 1) * size]
        ]
        waiting = [group for group in [*waiting, begun] if group]
        if not waiting:
            return [found[b] for b in range(num_batches)]
        owners = [owner for group in waiting for owner in group]
        hops = passes.sweep([frontier for _, frontier in owners], label=f"pass {turn}", cancellation=NEVER)
        drawn = {}
        for owner, (b, frontier) in enumerate(owners):
            brought[b].append((hops, owner))
            drawn[b] = sampler.rule.extend(frontier, hops.read(owner))
        waiting = [[(b, drawn[b]) for b, _ in group if drawn[b].hop < num_hops] for group in waiting]
        for b in [b for b, frontier in drawn.items() if frontier.hop == num_hops]:
            values = [hops.read(owner) for hops, owner in brought[b]]
            batch = sampler.replay(*batches[b], values)
            assert set(batch.nodes.tolist()) == set(drawn[b].seen.tolist())
            found[b] = batch_bytes(batch)
            for hops_of_b, owner in brought[b]:
                hops_of_b.release(owner)
    raise AssertionError


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fanouts", "replace", "layout", "dtype"),
    [
        ([5, 5], False, "layered", "int32"),
        ([3, 0, -1], False, "merged", "int64"),
        ([4, 4], True, "layered", "int64"),
    ],
)
def test_batches_are_those_of_a_sampler_in_memory(
    paths: dict[str, Path], tmp_path: Path, fanouts, replace, layout, dtype, way
) -> None:
    graph = Dataset.open(paths[dtype]).load_graph()
    sampler: Any = NeighborSampler(graph, fanouts, seed=5, replace=replace)
    sampler = MergedBlockSampler(sampler) if layout == "merged" else sampler
    with opened(paths[dtype], tmp_path, sampler, way=way) as (passes, _, folder):
        found = wavefront(passes, sampler, 7, NUM_NODES)
        assert folder.used_bytes == 0
    for b, batch in enumerate(found):
        given = given_of(b, NUM_NODES)
        sampled = sampler.sample(BatchId(epoch=1, index=b), given)
        assert batch == batch_bytes(sampled)
        if isinstance(given, BatchSeeds):
            taken = np.concatenate([block.edge_ids for block in sampled.blocks])
            assert not np.isin(taken, given.excluded[0]).any()
            assert not np.array_equal(sampled.nodes, sampler.sample(sampled.id, given.nodes).nodes)


def test_a_graph_without_edges_has_frontiers_that_want_nothing(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    for way in WAYS:
        with opened(paths["none"], tmp_path, way=way) as (passes, sampler, folder):
            found = wavefront(passes, sampler, 4, 5)
            assert [path.name for path in folder.path.iterdir()] == ["owner.json"]
        for b, batch in enumerate(found):
            assert batch == batch_bytes(sampler.sample(BatchId(epoch=1, index=b), seeds_of(b, 5)))


# --- faults ------------------------------------------------------------------------------------------


def frontiers_of(sampler: Any, num: int = 4) -> list[Frontier]:
    return [sampler.rule.begin(BatchId(epoch=0, index=b), seeds_of(b, NUM_NODES)) for b in range(num)]


def positions_of(sampler: Any, frontiers: list[Frontier]) -> np.ndarray:
    """Return the positions of all of them, by the pages that each is known to touch and the batches themselves."""
    found = [
        sampler.sample(frontier.batch_id, seeds_of(frontier.batch_id.index, NUM_NODES)).blocks[-1].edge_ids
        for frontier in frontiers
    ]
    return np.unique(np.concatenate(found))


def attempt(path: Path, tmp_path: Path, **settings: Any) -> list[np.ndarray]:
    """Make a pass, and read what it brought; what is left of it may only be files for the next one."""
    with opened(path, tmp_path, **settings) as (passes, sampler, folder):
        try:
            hops = passes.sweep(frontiers_of(sampler), label="pass 9", cancellation=NEVER)
            return [hops.read(owner) for owner in range(4)]
        finally:
            passes.close()
            assert folder.used_bytes == 0


@pytest.mark.reliability("K2")
@pytest.mark.reliability("B3")
@pytest.mark.parametrize("way", WAYS)
def test_a_flipped_bit_matters_in_a_wanted_page_alone(paths: dict[str, Path], tmp_path: Path, way) -> None:
    graph = Dataset.open(paths["int32"]).load_graph()
    sampler = NeighborSampler(graph, [5, 5], seed=1)
    wanted = positions_of(sampler, frontiers_of(sampler)) // 1024
    unwanted = sorted(set(range(-(-graph.num_edges // 1024))) - set(wanted.tolist()))
    page = int(wanted[len(wanted) // 2])
    right = attempt(paths["int32"], tmp_path, way=way)
    spoilt = FaultyOS(corrupt=Corruption(offset=DATA_OFFSET + page * 4096 + 99, mask=4, file="indices.npy"))
    with pytest.raises(
        ChecksumError, match=rf"indices.npy: page {page} at byte .* with rows {page * 1024} to"
    ) as bad:
        attempt(paths["int32"], tmp_path, os_io=spoilt, way=way)
    assert "asked for" not in str(bad.value)
    for page in (unwanted[0], unwanted[-1]):
        ignored = FaultyOS(corrupt=Corruption(offset=DATA_OFFSET + page * 4096, mask=1, file="indices.npy"))
        for found, expected in zip(
            attempt(paths["int32"], tmp_path, os_io=ignored, way=way), right, strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_marking_ends_where_most_pages_are_wanted_and_damage_elsewhere_is_still_nobodys(
    paths: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_passes, "_FULL_SHARE", 0.02)
    monkeypatch.setattr(edge_passes, "_LOOKS", 1000)
    marked = []
    original = UniformPickRule.mark
    monkeypatch.setattr(
        UniformPickRule, "mark", lambda self, *args, **how: (marked.append(1), original(self, *args, **how))
    )
    num_pages = Dataset.open(paths["int32"]).arrays["indices"].num_pages
    with opened(paths["int32"], tmp_path) as (passes, sampler, _):
        hops = passes.sweep(frontiers_of(sampler), label="pass 9", cancellation=NEVER)
        assert (hops.report.way, hops.report.pages_wanted, len(marked)) == ("full", num_pages, 1)
    # Whoever asks for a way gets it, however many pages are wanted.
    with opened(paths["int32"], tmp_path, way="direct") as (passes, sampler, _):
        hops = passes.sweep(frontiers_of(sampler), label="pass 9", cancellation=NEVER)
        assert hops.report.way == "direct"
        assert hops.report.pages_wanted < num_pages
    test_a_flipped_bit_matters_in_a_wanted_page_alone(paths, tmp_path, None)


@pytest.mark.reliability("B2")
@pytest.mark.reliability("B5")
@pytest.mark.reliability("B6")
def test_a_device_that_fails_or_reads_short_and_a_file_that_was_cut(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    right = attempt(paths["int32"], tmp_path)
    short = attempt(paths["int32"], tmp_path, os_io=FaultyOS(short=3001))
    for found, expected in zip(short, right, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(StoreReadError, match="Input/output error"):
        attempt(paths["int32"], tmp_path, os_io=FaultyOS(fail_at=6, calls={"pread_into"}, repeat=1000))
    with opened(paths["int32"], tmp_path) as (passes, sampler, folder):
        file = Dataset.open(paths["int32"]).root / "indices.npy"
        whole = file.read_bytes()
        try:
            os.truncate(file, 8192)
            with pytest.raises(TruncatedStoreError, match="truncated after it was opened"):
                passes.sweep(frontiers_of(sampler), label="pass 9", cancellation=NEVER)
        finally:
            file.write_bytes(whole)
        assert folder.used_bytes == 0


@pytest.mark.reliability("E1")
def test_a_spill_folder_without_room_says_what_is_needed(paths: dict[str, Path], tmp_path: Path) -> None:
    class Full(FaultyOS):
        def statvfs(self, path):
            found = list(super().statvfs(path))
            found[4] = 1  # free blocks
            return os.statvfs_result(found)

    with pytest.raises(BudgetError, match=r"the pack of pass 9 needs \d+ bytes .* and 4096 are allowed"):
        attempt(paths["int32"], tmp_path, budget_bytes=4096)
    with opened(paths["int32"], tmp_path) as (passes, sampler, folder):
        folder._os_io = Full()
        with pytest.raises(SpillError, match=r"the pack of pass 9 .*needed \d+ bytes .* are free"):
            passes.sweep(frontiers_of(sampler), label="pass 9", cancellation=NEVER)
        assert [path.name for path in folder.path.iterdir()] == ["owner.json"]
        folder._os_io = REAL_OS
    failing = FaultyOS(fail_at=3, error=errno.ENOSPC, calls={"pwrite"}, repeat=100)
    with pytest.raises(SpillError, match=r"packing pass 9, frontier \d"):
        attempt(paths["int32"], tmp_path, spill_io=failing)


def test_what_was_spilled_is_verified_and_its_damage_named(paths: dict[str, Path], tmp_path: Path) -> None:
    with opened(paths["int32"], tmp_path) as (passes, sampler, folder):
        hops = passes.sweep(frontiers_of(sampler), label="pass 9", cancellation=NEVER)
        files = sorted(path for path in folder.path.iterdir() if path.suffix == ".spill")
        content = bytearray(files[1].read_bytes())
        content[77] ^= 8
        files[1].write_bytes(content)
        with pytest.raises(ChecksumError, match=rf"pass 9, frontier 1 \({files[1]}\) is damaged at byte 0"):
            hops.read(1)
        os.truncate(files[2], 0)
        with pytest.raises(ChecksumError, match=r"pass 9, frontier 2 .*it has 0 bytes, \d+ are needed"):
            hops.read(2)
        hops.release(0)
        hops.release(0)
        with pytest.raises(SpillError, match="pass 9, frontier 0 was released"):
            hops.read(0)
        passes.close()
        with pytest.raises(StoreError, match="the reader of the edges is closed"):
            passes.sweep(frontiers_of(sampler), label="pass 10", cancellation=NEVER)


@pytest.mark.reliability("D4")
def test_a_pass_can_be_cancelled_at_any_look_and_leaves_nothing(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    with opened(paths["int64"], tmp_path, memory_bytes=4 * 2**20) as (passes, sampler, folder):
        for last in count(1):
            looks = iter(range(last))
            try:
                passes.sweep(
                    frontiers_of(sampler),
                    label="pass 9",
                    cancellation=Cancellation(lambda looks=looks: next(looks, None) is None),
                )
            except ChannelClosedError:
                assert folder.used_bytes == 0
                continue
            break
        assert last > 9  # counting, marking, and the sweep itself


def test_too_little_memory_is_refused(paths: dict[str, Path], tmp_path: Path) -> None:
    with (
        pytest.raises(BudgetError, match="passes over the edges need 4194304 bytes"),
        opened(paths["int32"], tmp_path, memory_bytes=2**20),
    ):
        pass
    with (
        opened(paths["int32"], tmp_path) as (passes, sampler, _),
        pytest.raises(BudgetError, match="600 batches"),
    ):
        passes.sweep(frontiers_of(sampler, 1) * 600, label="pass 9", cancellation=NEVER)
