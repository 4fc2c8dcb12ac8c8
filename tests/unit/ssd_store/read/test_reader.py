"""Opening a store, its options, and what a read costs."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.errors import ChecksumError, ConfigError, NotAStoreError, ShapeError, StoreError, StoreOpenError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.read import lane
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.suites import make_features, same_bits

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = make_features(5000, 128, "float32")  # 8 rows a page, 625 pages


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader") / "s"
    FeatureStore.create(folder, FEATURES).close()
    return folder


def read(store: FeatureStore, rows: list[int] | np.ndarray) -> np.ndarray:
    out = np.empty((len(rows), store.dim), np.float32)
    store.read_into(np.asarray(rows, np.int64), out)
    return out


def test_create_returns_an_open_store(tmp_path: Path) -> None:
    with FeatureStore.create(tmp_path / "s", FEATURES[:10]) as store:
        assert same_bits(read(store, [9, 0]), FEATURES[[9, 0]])
    with pytest.raises(ShapeError, match=r"\(N, F\) matrix, got shape \(3,\)"):
        FeatureStore.create(tmp_path / "t", np.zeros(3, np.float32))


def test_writer_takes_chunks(tmp_path: Path) -> None:
    with FeatureStore.writer(tmp_path / "s", num_rows=100, dim=128, dtype=np.float32) as writer:
        for start in range(0, 100, 30):
            writer.append(FEATURES[start : min(start + 30, 100)])
    with FeatureStore.open(tmp_path / "s") as store:
        assert same_bits(read(store, range(100)), FEATURES[:100])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 1e-2)])
def test_narrow_stores_are_close_to_the_original(dtype: str, tolerance: float, tmp_path: Path) -> None:
    features = np.random.default_rng(0).standard_normal((50, 100)).astype(np.float32)
    with FeatureStore.create(tmp_path / "s", features, dtype=dtype) as store:
        assert store.logical_dtype == dtype
        assert store.row_bytes == 100 * np.dtype(store.dtype).itemsize
        error = np.abs(read(store, range(50)) - features)
        assert error.max() <= tolerance * np.abs(features).max()
        loaded = np.empty((50, 100), np.float32)
        store.load().read_into(np.arange(50), loaded)
        assert same_bits(loaded, read(store, range(50)))


def test_properties(path: Path) -> None:
    with FeatureStore.open(path) as store:
        assert (store.num_rows, store.dim, store.row_bytes, store.logical_dtype) == (
            5000,
            128,
            512,
            "float32",
        )
        assert len(store.digest) == 16
        assert store.is_direct
        assert 8 * 625 < store.resident_bytes < 16 * 2**20


def test_a_page_is_read_once_however_many_rows_it_holds(path: Path) -> None:
    with FeatureStore.open(path, gap_bytes=0) as store:
        rows = np.array([0, 1, 7, 7, 3, 800, 801])
        stats = store.read_into(rows, np.empty((7, 128), np.float32))
        assert (stats.rows, stats.requests, stats.bytes_read) == (7, 2, 8192)


def test_gaps_are_read_through_when_that_is_cheaper(path: Path) -> None:
    rows, out = np.arange(0, 800, 16), np.empty((50, 128), np.float32)
    with FeatureStore.open(path, gap_bytes=0) as store:
        assert store.read_into(rows, out).requests == 50
    with FeatureStore.open(path, gap_bytes=4096) as store:
        assert store.read_into(rows, out).requests == 2  # 99 pages, at most 64 a read
        assert same_bits(out, FEATURES[rows])


@pytest.mark.parametrize("io", ["auto", "threads", "buffered"])
@pytest.mark.parametrize("queue_depth", [1, 2, 300, None])
def test_any_depth_gives_the_same_rows(io: str, queue_depth: int | None, path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 5000, 4000)
    with FeatureStore.open(path, io=io, queue_depth=queue_depth, gap_bytes=0) as store:
        for _ in range(3):
            assert same_bits(read(store, rows), FEATURES[rows])


def test_load_keeps_some_rows_in_memory(path: Path) -> None:
    with FeatureStore.open(path) as store:
        some = store.load(np.array([4000, 2, 2]))
    # A device that reads 512-byte rows in place asks for four lines of 128 bytes each time, not for five.
    assert some.array.ctypes.data % 4096 == 0
    assert same_bits(read(some, [2, 0, 1]), FEATURES[[2, 4000, 2]])


def test_rows_are_loaded_to_memory_that_is_given(tmp_path: Path) -> None:
    num_bytes = 100 * 128 * 4
    memory = np.full(num_bytes + 4096, 7, dtype=np.uint8)
    with FeatureStore.create(tmp_path / "s", FEATURES[:100]) as store:
        loaded, own = store.load(into=memory), store.load()
        assert np.shares_memory(loaded.array, memory[:num_bytes])
        assert (memory[num_bytes:] == 7).all()
        assert same_bits(read(loaded, range(100)), FEATURES[:100])
        assert (
            own.array.ctypes.data % 4096 == 0
        )  # a device that reads a row in place reads no line more than it has


def test_another_column_of_a_dataset(tmp_path: Path) -> None:
    with NewDirectory(tmp_path / "d", manifest_name="dataset.json") as directory:
        with directory.features("features", num_rows=10, dim=128, dtype="float32") as writer:
            writer.append(FEATURES[:10])
        with directory.features("paper", num_rows=7, dim=128, dtype="float32") as writer:
            writer.append(FEATURES[20:27])
        with directory.array("labels", dtype="int64", shape=(10,)) as labels:
            labels.append(np.arange(10))
        directory.commit("dataset", {})
    with FeatureStore.open(tmp_path / "d", column="paper") as store:
        assert same_bits(read(store, range(7)), FEATURES[20:27])
    with pytest.raises(ConfigError, match=r"no column 'nope'; it has features, paper, labels"):
        FeatureStore.open(tmp_path / "d", column="nope")
    with pytest.raises(ShapeError, match=r"column 'labels' has shape \(10,\)"):
        FeatureStore.open(tmp_path / "d", column="labels")


def test_refuses_unknown_settings(path: Path) -> None:
    with pytest.raises(
        ConfigError, match="io='mmap' is unknown; choose one of auto, uring, threads, buffered"
    ):
        FeatureStore.open(path, io="mmap")
    with pytest.raises(ConfigError, match="verify='never' is unknown; choose one of read, open, off"):
        FeatureStore.open(path, verify="never")
    with pytest.raises(ConfigError, match="direct='maybe' is unknown; choose one of auto, require, off"):
        FeatureStore.open(path, direct="maybe")
    with pytest.raises(ConfigError, match="gap_bytes=-1 must be at least 0"):
        FeatureStore.open(path, gap_bytes=-1)
    with pytest.raises(ConfigError, match="queue_depth=0 must be at least 1"):
        FeatureStore.open(path, queue_depth=0)


def test_refuses_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreOpenError, match="there is nothing here"):
        FeatureStore.open(tmp_path / "missing")
    with pytest.raises(NotAStoreError, match=r"it has no store\.json or dataset\.json"):
        FeatureStore.open(tmp_path)


def test_close_is_idempotent_and_final(path: Path) -> None:
    store = FeatureStore.open(path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="the store is closed; open it again"):
        read(store, [0])


def test_close_waits_for_the_readers(path: Path) -> None:
    store = FeatureStore.open(path, gap_bytes=0)
    rows = np.random.default_rng(0).integers(0, 5000, 3000)
    outcomes: list[bool | str] = []

    def work() -> None:
        try:
            while True:
                outcomes.append(same_bits(read(store, rows), FEATURES[rows]))
        except StoreError as error:
            outcomes.append("closed" if "the store is closed" in str(error) else str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(outcomes) < 5:
        threading.Event().wait(0.005)
    store.close()
    for thread in threads:
        thread.join(30)
    assert outcomes.count("closed") == 3
    assert set(outcomes) == {True, "closed"}


def test_io_uring_that_is_forbidden_falls_back_to_threads(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(lane, "Uring", forbidden)
    with caplog.at_level(logging.INFO, "gloader"), FeatureStore.open(path) as store:
        assert store.backend == "threads"
        assert same_bits(read(store, [77]), FEATURES[[77]])
    assert "io_uring is not available" in caplog.text
    with pytest.raises(
        ConfigError, match=r"io='uring' is not available here: .*not permitted; use io='auto'"
    ):
        FeatureStore.open(path, io="uring")


@pytest.mark.reliability("B3")
@pytest.mark.parametrize("io", ["auto", "threads", "buffered"])
@pytest.mark.parametrize("bit", [0, 3 * 4096 * 8 + 1234, 624 * 4096 * 8 + 4096 * 8 - 1])
def test_a_flipped_bit_is_found_when_its_page_is_read(io: str, bit: int, tmp_path: Path) -> None:
    FeatureStore.create(tmp_path / "s", FEATURES).close()
    file = tmp_path / "s" / "features.npy"
    with file.open("r+b") as raw:
        raw.seek(4096 + bit // 8)
        byte = raw.read(1)[0]
        raw.seek(4096 + bit // 8)
        raw.write(bytes([byte ^ 1 << bit % 8]))
    page = bit // (4096 * 8)
    rows = np.arange(page * 8, page * 8 + 8)
    others = np.setdiff1d(np.arange(5000), rows)
    with FeatureStore.open(tmp_path / "s", io=io) as store:
        assert same_bits(read(store, others), FEATURES[others])
        place = f"page {page} at byte {4096 * (page + 1)}, with rows {rows[0]} to {rows[-1]}"
        expected = rf"features\.npy: {place} \(requested: {rows[5]}\)"
        with pytest.raises(ChecksumError, match=expected):
            read(store, [int(rows[5])])
        with pytest.raises(ChecksumError, match=f"page {page} "):
            read(store, range(5000))
        assert same_bits(read(store, others), FEATURES[others])
    with pytest.raises(ChecksumError, match=f"page {page} "):
        FeatureStore.open(tmp_path / "s", io=io, verify="open")
    with FeatureStore.open(tmp_path / "s", io=io, verify="off") as store:
        assert not same_bits(read(store, rows), FEATURES[rows])


def test_verification_at_open_is_not_repeated(path: Path) -> None:
    with FeatureStore.open(path, verify="open") as store:
        assert store.resident_bytes < 8 * 2**20 + 8 * 625
        assert same_bits(read(store, [4999]), FEATURES[[4999]])


def test_memory_is_bounded_by_the_ring_and_not_by_the_request(path: Path) -> None:
    with FeatureStore.open(path, ring_bytes=2**20) as store:
        rows = np.tile(np.arange(5000), 20)  # 51 MB of output, 2.5 MB of file
        assert store.resident_bytes == 2**20 + 8 * 625
        assert same_bits(read(store, rows[::-1]), FEATURES[rows[::-1]])
        assert store.resident_bytes == 2**20 + 8 * 625
