"""Packs and staged rows: what they promise beside the right rows."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

import gloader
from gloader.core.signals import NEVER, Cancellation
from gloader.core.thread_times import helping, own_account
from gloader.errors import BudgetError, ChannelClosedError, PlanError, ShapeError, SpillError, StoreError
from gloader.ssd_store import (
    DirectMisses,
    FeatureStore,
    Packer,
    in_ram_bytes,
    load_misses,
    pack_bytes,
    packer_memory_bytes,
)
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.ssd_store.spill.regions import MAX_FILES, plan_regions
from gloader.ssd_store.sweep import drivers
from gloader.ssd_store.sweep.sweeper import EXTENT_BYTES, MAX_PIECE_BYTES, plan_buffers
from gloader.testing.faults import FaultyOS
from gloader.types import ReadStats

NUM_ROWS, DIM = 5000, 100
FEATURES = np.random.default_rng(0).standard_normal((NUM_ROWS, DIM)).astype(np.float32)


def draw(num_batches: int, share: float = 0.1, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(NUM_ROWS) < share) for _ in range(num_batches)]


def read(source, batch: int, rows: np.ndarray) -> np.ndarray:
    out = np.zeros((len(rows), DIM), np.float32)
    source.read_into(batch, rows, out, at=np.arange(len(rows)))
    return out


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "s"
    FeatureStore.create(path, FEATURES).close()
    return path


@pytest.fixture
def store(path: Path):
    with FeatureStore.open(path) as store:
        yield store


@pytest.fixture
def spill(tmp_path: Path):
    with SpillFolder(tmp_path, budget_bytes=10**9) as spill:
        yield spill


@pytest.fixture
def packer(store: FeatureStore, spill: SpillFolder):
    with Packer(store, spill) as packer:
        yield packer


def files(spill: SpillFolder) -> list[str]:
    return sorted(path.name for path in spill.path.iterdir() if path.name != "owner.json")


# --- layout ------------------------------------------------------------------------------------------


def test_regions_are_aligned_contiguous_and_in_few_files() -> None:
    counts = np.random.default_rng(0).integers(0, 300, 1000)
    counts[:100] = 0
    layout = plan_regions(counts, 400)
    pages = -(-counts * 400 // 4096)
    assert layout.file.max() < MAX_FILES
    for number, size in enumerate(layout.file_bytes):
        mine = layout.file == number
        assert size == 4096 * pages[mine].sum()
        assert np.array_equal(layout.start[mine], 4096 * (np.cumsum(pages[mine]) - pages[mine]))
    assert layout.num_bytes == pack_bytes(counts, 400) == 4096 * layout.num_pages == 4096 * pages.sum()


def test_pack_bytes_rounds_each_batch_up_to_pages() -> None:
    assert pack_bytes([], 400) == 0
    assert pack_bytes([0, 1, 10, 11], 400) == 4096 * (0 + 1 + 1 + 2)


@pytest.mark.parametrize("num_batches", [1, 64, 128, 256, 1024])
@pytest.mark.parametrize("memory_bytes", [12 * 2**20, 64 * 2**20])
def test_buffers_stay_within_their_memory(num_batches: int, memory_bytes: int) -> None:
    buffers = plan_buffers(num_batches, memory_bytes)
    assert buffers.ring_bytes + buffers.piece_bytes * buffers.num_pieces <= memory_bytes
    assert buffers.num_pieces > num_batches  # or a sweep could wait for itself
    assert buffers.piece_bytes % 4096 == 0
    assert 4096 <= buffers.piece_bytes <= MAX_PIECE_BYTES


@pytest.mark.parametrize("num_batches", [64, 256, 1024])
def test_recommended_memory_gives_pieces_of_64_kib_or_of_16_where_there_is_little_room(
    num_batches: int,
) -> None:
    lane = 4 * 2**20 + 65536
    most, least = packer_memory_bytes(num_batches), packer_memory_bytes(num_batches, room=2**20)
    assert plan_buffers(num_batches, most - lane).piece_bytes == MAX_PIECE_BYTES
    assert plan_buffers(num_batches, least - lane).piece_bytes >= 16384
    assert least <= packer_memory_bytes(num_batches, room=2**29) <= max(least, 2**25)


def test_too_many_batches_for_the_buffers_are_refused_before_a_byte_is_written(
    store: FeatureStore, spill: SpillFolder
) -> None:
    with pytest.raises(BudgetError, match="needs 2097152 bytes of buffers and 4096 are allowed"):
        Packer(store, spill, memory_bytes=4096)
    with Packer(store, spill, memory_bytes=2**21) as packer:
        with pytest.raises(BudgetError, match=r"1000 batches at once needs \d+ bytes of buffers and \d+ are"):
            packer.pack([np.arange(1)] * 1000, superbatch=0, cancellation=NEVER)
        assert (files(spill), spill.used_bytes) == ([], 0)


# --- what is held ------------------------------------------------------------------------------------


def test_disk_is_taken_at_once_and_given_back_file_by_file(packer: Packer, spill: SpillFolder) -> None:
    misses = draw(32)
    pack = packer.pack(misses, superbatch=0, cancellation=NEVER)
    counts = [len(rows) for rows in misses]
    assert spill.used_bytes == pack.num_bytes == pack_bytes(counts, 4 * DIM)
    assert sum((spill.path / name).stat().st_size for name in files(spill)) == pack.num_bytes
    data = b"".join((spill.path / name).read_bytes() for name in files(spill))
    for rows in misses:  # nothing but the rows and zeros
        region, data = np.split(np.frombuffer(data, np.uint8), [pack_bytes([len(rows)], 4 * DIM)])
        assert region.tobytes().rstrip(b"\0") == FEATURES[rows].tobytes().rstrip(b"\0")
    used = []
    for batch in range(32):
        assert np.array_equal(read(pack, batch, misses[batch]), FEATURES[misses[batch]])
        pack.release(batch)
        pack.release(batch)
        used.append(spill.used_bytes)
    assert used == [pack_bytes(counts[(batch + 1) // 2 * 2 :], 4 * DIM) for batch in range(32)]
    pack.close()


def test_the_files_of_a_pack_serve_the_next_ones(packer: Packer, spill: SpillFolder) -> None:
    """Smaller packs, larger ones, and two at a time: no file is removed while there is room for it."""
    seen: set[str] = set()
    before = None
    for superbatch, num_batches in enumerate((16, 32, 16, 5, 32)):
        misses = draw(num_batches)
        pack = packer.pack(misses, superbatch=superbatch, cancellation=NEVER)
        assert seen <= set(files(spill))
        seen = set(files(spill))
        if before is not None:
            before.close()
        for batch, rows in enumerate(misses):
            assert np.array_equal(read(pack, batch, rows), FEATURES[rows])
            pack.release(batch)
        before = pack
    assert len(seen) <= 32
    assert spill.used_bytes == 0


def test_batches_may_be_read_and_released_in_any_order(packer: Packer, spill: SpillFolder) -> None:
    misses = draw(40)
    pack = packer.pack(misses, superbatch=0, cancellation=NEVER)
    for batch in np.random.default_rng(1).permutation(40).tolist():
        assert np.array_equal(read(pack, batch, misses[batch]), FEATURES[misses[batch]])
        pack.release(batch)
        with pytest.raises(SpillError, match=f"the pack of superbatch 0, batch {batch} was released"):
            read(pack, batch, misses[batch])
    assert spill.used_bytes == 0


def test_memory_is_bounded_and_said(packer: Packer, store: FeatureStore) -> None:
    assert packer.resident_bytes <= 16 * 2**20
    pack = packer.pack(draw(10), superbatch=0, cancellation=NEVER)
    assert pack.resident_bytes <= pack.num_bytes // 512 + 1000
    staged = load_misses(store, draw(10), cancellation=NEVER)
    union = len(np.unique(np.concatenate(draw(10))))
    assert staged.num_bytes == pytest.approx(in_ram_bytes(union, 4 * DIM), abs=4096)
    staged.close()
    assert staged.num_bytes == 0
    with pytest.raises(StoreError, match="the staged rows were given back"):
        read(staged, 0, draw(10)[0])


def test_closing_the_packer_closes_its_packs(store: FeatureStore, spill: SpillFolder) -> None:
    packer = Packer(store, spill)
    packs = [packer.pack(draw(3), superbatch=k, cancellation=NEVER) for k in range(2)]
    read(packs[0], 0, draw(3)[0])
    for _ in range(2):
        packer.close()
    assert (files(spill), spill.used_bytes) == ([], 0)
    with pytest.raises(SpillError, match="was released"):
        read(packs[1], 0, draw(3)[0])
    with pytest.raises(StoreError, match="the packer is closed"):
        packer.pack(draw(3), superbatch=2, cancellation=NEVER)
    assert (files(spill), spill.used_bytes) == ([], 0)


def test_a_pack_outlives_its_store_and_not_its_folder(path: Path, tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path, budget_bytes=10**9)
    store = FeatureStore.open(path)
    with Packer(store, spill) as packer:
        store.close()
        pack = packer.pack(draw(3), superbatch=0, cancellation=NEVER)
        assert np.array_equal(read(pack, 0, draw(3)[0]), FEATURES[draw(3)[0]])
        spill.close()
        with pytest.raises(SpillError, match="closed"):
            packer.pack(draw(3), superbatch=1, cancellation=NEVER)
        pack.close()
    assert list(tmp_path.iterdir()) == []


def test_each_list_is_asked_for_once(packer: Packer, store: FeatureStore) -> None:
    class Lazy:
        def __init__(self) -> None:
            self.asked: list[int] = []

        def __len__(self) -> int:
            return 5

        def __getitem__(self, batch: int) -> np.ndarray:
            self.asked.append(batch)
            return draw(5)[batch].astype(np.int32)

    for make in (
        lambda lazy: packer.pack(lazy, superbatch=0, cancellation=NEVER),
        lambda lazy: load_misses(store, lazy, cancellation=NEVER),
    ):
        lazy = Lazy()
        source = make(lazy)
        assert lazy.asked == [0, 1, 2, 3, 4]
        assert np.array_equal(read(source, 4, draw(5)[4]), FEATURES[draw(5)[4]])


@pytest.mark.parametrize(
    "settings", [{}, {"io": "threads"}, {"os_io": FaultyOS()}], ids=["auto", "threads", "plain"]
)
def test_costs_are_counted_however_requests_are_made(path: Path, tmp_path: Path, settings: Any) -> None:
    misses = draw(4, share=1.0)
    with (
        FeatureStore.open(path, **settings) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        packed = packer.pack(misses, superbatch=0, cancellation=NEVER).cost
        staged = load_misses(store, misses, cancellation=NEVER).cost
        direct = DirectMisses(store).cost
    file_bytes = -(-NUM_ROWS * DIM * 4 // 4096) * 4096
    assert packed.read == ReadStats(
        rows=4 * NUM_ROWS, requests=-(-file_bytes // EXTENT_BYTES), bytes_read=file_bytes
    )
    assert packed.bytes_written == pack_bytes([NUM_ROWS] * 4, 4 * DIM)
    assert staged.read == replace(packed.read, rows=NUM_ROWS)
    assert (staged.writes, staged.bytes_written) == (0, 0)
    assert (direct.read.requests, direct.read.bytes_read, direct.bytes_written) == (0, 0, 0)


def test_the_processor_time_of_sweeping_threads_counts_for_who_sweeps(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helped = []

    def noting(work: Any) -> Any:
        helped.append(work.__name__)
        return helping(work)

    monkeypatch.setattr("gloader.ssd_store.sweep.drivers.helping", noting)
    misses, before = draw(4, share=1.0), own_account().used_ns
    with (
        FeatureStore.open(path, io="threads") as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        load_misses(store, misses, cancellation=NEVER)
        assert set(helped) == {"pread_into"}
        packer.pack(misses, superbatch=0, cancellation=NEVER)
    assert set(helped) == {"pread_into", "pwrite"}
    assert own_account().used_ns > before


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.reliability("E5")
def test_a_pack_serves_all_rows_of_its_batch_or_none(packer: Packer) -> None:
    misses = draw(3)
    pack = packer.pack(misses, superbatch=7, cancellation=NEVER)
    for rows in (misses[1][1:], misses[2], np.append(misses[1], NUM_ROWS - 1)):
        with pytest.raises(PlanError, match="superbatch 7, batch 1 asks for other rows"):
            read(pack, 1, rows)


@pytest.mark.parametrize("rows", [[3, 3], [4, 2], [-1, 2], [0, NUM_ROWS], [[1, 2]], [0.5]], ids=str)
def test_misses_that_are_no_misses_are_refused(rows: list, packer: Packer, store: FeatureStore) -> None:
    misses = [np.arange(3), np.array(rows)]
    with pytest.raises(ShapeError, match="batch 1: missing row"):
        packer.pack(misses, superbatch=0, cancellation=NEVER)
    with pytest.raises(ShapeError, match="batch 1: missing row"):
        load_misses(store, misses, cancellation=NEVER)


def test_of_a_store_that_was_replaced_the_open_file_is_read_and_no_other_packed(
    tmp_path: Path, spill: SpillFolder
) -> None:
    FeatureStore.create(tmp_path / "s", FEATURES[:10]).close()
    with FeatureStore.open(tmp_path / "s") as store:
        FeatureStore.create(tmp_path / "s", FEATURES[10:20], overwrite=True).close()
        with pytest.raises(StoreError, match="replaced after it was opened"):
            Packer(store, spill)
        with closing(load_misses(store, [np.arange(3)], cancellation=NEVER)) as misses:
            assert np.array_equal(read(misses, 0, np.arange(3)), FEATURES[:3])


# --- at the same time --------------------------------------------------------------------------------


def test_packs_are_made_read_and_passed_by_at_the_same_time(
    packer: Packer, store: FeatureStore, spill: SpillFolder
) -> None:
    """The stage thread packs and stages, the gather thread reads the pack before, and others the store."""
    direct, stop = DirectMisses(store), threading.Event()

    def read_directly(seed: int) -> int:
        count = 0
        while not stop.is_set() or not count:
            rows = draw(1, seed=seed)[0]
            assert np.array_equal(read(direct, 0, rows), FEATURES[rows])
            count += 1
        return count

    def read_back(pack, misses: list[np.ndarray]) -> None:
        for batch, rows in enumerate(misses):
            assert np.array_equal(read(pack, batch, rows), FEATURES[rows])
            pack.release(batch)

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read_directly, seed) for seed in range(2)]
        pending = None
        for k in range(6):
            misses = draw(12, seed=k)
            made = (
                packer.pack(misses, superbatch=k, cancellation=NEVER)
                if k % 3
                else load_misses(store, misses, cancellation=NEVER)
            )
            if pending is not None:
                pending.result()
            pending = pool.submit(read_back, made, misses)
        pending.result()
        stop.set()
        assert all(reader.result() for reader in readers)
    assert spill.used_bytes == 0


@pytest.mark.reliability("D4")
@pytest.mark.parametrize("kind", ["packed", "staged"])
def test_a_sweep_can_be_cancelled_at_any_look_and_needs_no_further_kernel_then(
    kind: str, packer: Packer, store: FeatureStore, spill: SpillFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_misses(store, draw(4), cancellation=NEVER)
    packer.pack(draw(4), superbatch=0, cancellation=NEVER).close()
    compiled = list(getattr(drivers._step_or_drain, "signatures", []))
    for name, kernel in list(vars(drivers).items()):
        # A kernel that only an end needs is compiled while a Ctrl-C waits: seconds, on a busy machine more than five.
        if isinstance(kernel, Dispatcher) and name != "_step_or_drain":
            monkeypatch.delattr(drivers, name)
    misses, descriptors = draw(4, share=0.5), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    looks = 0
    for allowed in range(100):
        looks = 0

        def test(allowed: int = allowed) -> bool:
            nonlocal looks
            looks += 1
            return looks > allowed

        cancellation = Cancellation(test)
        try:
            if kind == "packed":
                packer.pack(misses, superbatch=0, cancellation=cancellation).close()
            else:
                load_misses(store, misses, cancellation=cancellation)
        except ChannelClosedError as error:
            assert "was cancelled" in str(error)  # noqa: PT017
            assert (files(spill), spill.used_bytes) == ([], 0)
            assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
        else:
            break
    assert allowed == looks >= 5
    assert list(getattr(drivers._step_or_drain, "signatures", [])) == compiled


def test_the_kernels_do_the_same_without_the_compiler(tmp_path: Path) -> None:
    program = f"""
import numpy as np
from gloader.core.signals import NEVER
from gloader.ssd_store import FeatureStore, Packer, load_misses
from gloader.ssd_store.spill.folder import SpillFolder
x = np.arange(9000, dtype=np.float32).reshape(30, 300)
misses = [np.arange(0, 30, 2), np.arange(0), np.arange(7, 20)]
settings = dict(cancellation=NEVER)
with FeatureStore.create({str(tmp_path / "s")!r}, x) as store:
  with SpillFolder({str(tmp_path)!r}, budget_bytes=10**6) as spill, Packer(store, spill, memory_bytes=2**21) as packer:
    for source in (packer.pack(misses, superbatch=0, **settings), load_misses(store, misses, **settings)):
        for batch, rows in enumerate(misses):
            out = np.zeros((len(rows), 300), np.float32)
            source.read_into(batch, rows, out, at=np.arange(len(rows)))
            assert np.array_equal(out, x[rows])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={
            **os.environ,
            "NUMBA_DISABLE_JIT": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(Path(gloader.__path__[0]).parent),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
