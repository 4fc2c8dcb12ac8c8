"""`verify_directory` finds one changed bit anywhere, and says where."""

import os

import numpy as np
import pytest

from gloader.errors import IncompleteStoreError, NotAStoreError, StoreOpenError, VersionError
from gloader.ssd_store.format.format import DATA_OFFSET, STORE_MANIFEST, load_manifest, seal_manifest
from gloader.ssd_store.format.verification import verify_directory
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS

NUM_ROWS, DIM = 900, 33  # 118,800 bytes: 30 pages, the last one in part


@pytest.fixture(name="store")
def _store(tmp_path):
    path = tmp_path / "store"
    random = np.random.default_rng(0)
    with NewDirectory(path, manifest_name=STORE_MANIFEST) as directory:
        with directory.features("features", num_rows=NUM_ROWS, dim=DIM, dtype="float32") as column:
            column.append(random.standard_normal((NUM_ROWS, DIM)))
        for name, shape in (("labels", (NUM_ROWS,)), ("empty", (0, 4))):
            with directory.array(name, dtype="int64", shape=shape) as writer:
                writer.append(random.integers(0, 9, shape))
        directory.commit("feature_store", {"name": "x"})
    return path


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_a_sound_store_is_sound(store):
    seen = []
    report = verify_directory(store, STORE_MANIFEST, progress=lambda done, total: seen.append((done, total)))
    assert report.is_ok
    assert (report.num_arrays, report.num_bytes) == (3, (30 + 1 + 2 + 1) * 4096)
    assert seen[-1] == (report.num_bytes, report.num_bytes)
    assert seen == sorted(seen)


@pytest.mark.reliability("B3")
@pytest.mark.parametrize("page", [0, 1, 17, 29])
def test_a_flipped_data_bit_is_listed_with_page_offset_and_rows(store, page):
    flip(store / "features.npy", (DATA_OFFSET + page * 4096 + 5) * 8 + 3)
    (problem,) = verify_directory(store, STORE_MANIFEST).problems
    first, last = page * 4096 // (DIM * 4), min((page * 4096 + 4095) // (DIM * 4), NUM_ROWS - 1)
    assert problem.file == "features.npy"
    assert (problem.page, problem.offset, problem.rows) == (page, DATA_OFFSET + page * 4096, (first, last))
    assert f"page {page} at byte {problem.offset} (rows {first}..{last})" in problem.message


@pytest.mark.reliability("B3")
@pytest.mark.parametrize("name", ["features.npy", "features.pages", "labels.npy", "empty.npy", "store.json"])
def test_a_flipped_bit_anywhere_in_a_file_is_found(store, name):
    good = (store / name).read_bytes()
    random = np.random.default_rng(1)
    bits = random.integers(0, len(good) * 8, 60).tolist()
    for bit in [0, DATA_OFFSET * 8 - 1, DATA_OFFSET * 8, len(good) * 8 - 1, *bits]:  # padding included
        if bit >= len(good) * 8:
            continue
        flip(store / name, bit)
        problems = verify_directory(store, STORE_MANIFEST).problems
        assert [problem.file for problem in problems] == [name], bit
        (store / name).write_bytes(good)


def test_several_places_are_all_listed(store):
    for page in (3, 4, 20):
        flip(store / "features.npy", (DATA_OFFSET + page * 4096) * 8)
    flip(store / "labels.npy", DATA_OFFSET * 8)
    problems = verify_directory(store, STORE_MANIFEST).problems
    assert [(problem.file, problem.page) for problem in problems] == [
        ("features.npy", 3),
        ("features.npy", 4),
        ("features.npy", 20),
        ("labels.npy", 0),
    ]


def test_damaged_page_checksums_do_not_hide_damaged_data(store):
    flip(store / "features.pages", DATA_OFFSET * 8)
    flip(store / "features.npy", DATA_OFFSET * 8)
    files = [problem.file for problem in verify_directory(store, STORE_MANIFEST).problems]
    assert files == ["features.pages", "features.npy"]


@pytest.mark.parametrize("size", [0, 1, 4096, 5000, 118_800])
def test_a_cut_file_is_reported(store, size):
    os.truncate(store / "features.npy", size)
    (problem,) = verify_directory(store, STORE_MANIFEST).problems
    assert f"has {size} bytes" in problem.message


def test_a_missing_file_and_a_failing_device_are_reported(store):
    (store / "labels.npy").unlink()
    (problem,) = verify_directory(store, STORE_MANIFEST).problems
    assert "it is missing" in problem.message
    calls = FaultyOS(calls={"pread_into"})
    verify_directory(store, STORE_MANIFEST, os_io=calls)
    for number in range(2, calls.num_calls + 1):  # the first is the manifest
        failing = FaultyOS(calls={"pread_into"}, fail_at=number)
        messages = [
            problem.message for problem in verify_directory(store, STORE_MANIFEST, os_io=failing).problems
        ]
        assert any("Input/output error" in message for message in messages), number


def test_what_cannot_be_verified_is_raised(store, tmp_path):
    with pytest.raises(StoreOpenError, match="nothing here"):
        verify_directory(tmp_path / "missing", STORE_MANIFEST)
    (tmp_path / "other").mkdir()
    with pytest.raises(NotAStoreError):
        verify_directory(tmp_path / "other", STORE_MANIFEST)
    manifest = load_manifest(store, STORE_MANIFEST)
    (store / STORE_MANIFEST).write_bytes(seal_manifest(manifest.to_json() | {"format_version": 3}))
    with pytest.raises(VersionError):
        verify_directory(store, STORE_MANIFEST)
    (store / STORE_MANIFEST).unlink()
    with pytest.raises(IncompleteStoreError):
        verify_directory(store, STORE_MANIFEST)


def test_short_reads_do_not_matter_and_bytes_changed_by_the_device_do(store):
    assert verify_directory(store, STORE_MANIFEST, os_io=FaultyOS(short=1000)).is_ok
    corrupt = FaultyOS(corrupt=(DATA_OFFSET + 5000, 4))
    assert {problem.page for problem in verify_directory(store, STORE_MANIFEST, os_io=corrupt).problems} >= {
        1
    }
