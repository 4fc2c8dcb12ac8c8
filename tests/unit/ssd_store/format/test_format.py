"""Headers, manifests and opening: what is accepted, and how everything else is refused."""

import json
import os
import stat
import threading
import tracemalloc

import numpy as np
import pytest

from gloader.core.dtypes import STORED_DTYPES
from gloader.errors import (
    ChecksumError,
    FormatError,
    IncompleteStoreError,
    NotAStoreError,
    StoreOpenError,
    TruncatedStoreError,
    VersionError,
)
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.format.array_reader import load_array, load_page_checksums
from gloader.ssd_store.format.format import (
    DATA_OFFSET,
    DATASET_MANIFEST,
    STORE_MANIFEST,
    ArrayRecord,
    Manifest,
    data_bytes,
    file_bytes,
    find_manifest_name,
    load_manifest,
    npy_header,
    parse_manifest,
    seal_manifest,
)
from gloader.testing.faults import FaultyOS


def record(name="features", shape=(3, 5), dtype="float32", **changes):
    fields = {
        "name": name,
        "file": f"{name}.npy",
        "dtype": dtype,
        "shape": shape,
        "num_bytes": data_bytes(dtype, shape),
        "digest": "0123456789abcdef",
        "pages_file": f"{name}.pages",
    }
    return ArrayRecord(**{**fields, **changes})


def body(**changes):
    manifest = Manifest(kind="feature_store", arrays={"features": record()}, metadata={"a": [1, None, "x"]})
    return {**manifest.to_json(), **changes}


def body_with_record(**changes):
    whole = body()
    whole["arrays"]["features"].update(changes)
    return whole


@pytest.fixture(name="store")
def _store(tmp_path):
    path = tmp_path / "store"
    with FeatureWriter(path, num_rows=1000, dim=3, dtype="float32") as writer:
        writer.append(np.arange(3000, dtype=np.float32).reshape(1000, 3))
    return path


# --- headers ---


@pytest.mark.parametrize("dtype", sorted(STORED_DTYPES))
@pytest.mark.parametrize("shape", [(0,), (7,), (3, 5), (2, 0, 4)])
def test_numpy_reads_the_header(tmp_path, dtype, shape):
    header = npy_header(dtype, shape)
    assert len(header) == DATA_OFFSET
    path = tmp_path / "a.npy"
    path.write_bytes(
        header + bytes(file_bytes(data_bytes(dtype, shape)) - DATA_OFFSET)
    )  # padded, as we write it
    loaded = np.load(path, allow_pickle=False)
    assert loaded.shape == shape
    assert loaded.dtype == STORED_DTYPES[dtype].stored


@pytest.mark.parametrize("shape", [(-1, 4), (2**63,), (2**40, 2**40), (1, 1, 1, 1, 1)])
@pytest.mark.reliability("H4")
def test_impossible_shapes_are_refused(shape):
    with pytest.raises(FormatError):
        npy_header("float32", shape)


# --- manifests ---


def test_a_manifest_comes_back():
    manifest = Manifest(
        kind="dataset",
        arrays={
            "features": record(dtype="int8"),
            "features.scale": record("features.scale", (3,)),
        },
        metadata={"name": "däta", "n": 3, "nested": {"x": [1.5, None, True]}},
        required_features=("int8-row-scale",),
        created_by="gloader 9",
    )
    data = manifest.to_bytes()
    assert parse_manifest(data, "x") == manifest
    assert json.loads(data)["metadata"]["name"] == "däta"


def test_metadata_that_is_not_json_is_refused():
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(FormatError, match="must be JSON"):
            Manifest(kind="k", arrays={}, metadata={"x": value}).to_bytes()


@pytest.mark.reliability("B4")
def test_every_flipped_bit_of_the_manifest_is_found():
    data = bytearray(Manifest(kind="dataset", arrays={"features": record()}).to_bytes())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumError, match="its own checksum"):
            parse_manifest(bytes(data), "x")
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.reliability("B4")
def test_a_cut_or_extended_manifest_is_found():
    data = Manifest(kind="dataset", arrays={}).to_bytes()
    for damaged in (b"", data[:-1], data[1:], data + b"\n", data[: len(data) // 2], data + data):
        with pytest.raises(ChecksumError):
            parse_manifest(damaged, "x")


@pytest.mark.reliability("H4")
@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [-1, 5]},
        {"shape": [2**62, 2**62]},
        {"shape": [10**30, 1]},
        {"shape": []},
        {"shape": [3, 5.0]},
        {"shape": [3, True]},
        {"shape": "3,5"},
        {"num_bytes": 61},
        {"num_bytes": -60},
        {"dtype": "object"},
        {"dtype": "|O"},
        {"dtype": None},
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"file": "other.npy"},
        {"file": "features.npy\0"},
        {"pages_file": "../features.pages"},
        {"pages_file": ""},
        {"digest": "0123456789ABCDEF"},
        {"digest": "123"},
        {"surprise": 1},
    ],
)
def test_a_hostile_record_is_refused_without_allocation(changes):
    data = seal_manifest(body_with_record(**changes))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            parse_manifest(data, "x")
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.reliability("H4")
@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a..b", "x" * 101, "é", "a\n", "C:\\x"])
def test_a_hostile_array_name_is_refused(name):
    hostile = record().to_json() | {"file": f"{name}.npy", "pages_file": None}
    with pytest.raises(FormatError, match="name has 1 to 100"):
        parse_manifest(seal_manifest(body(arrays={name: hostile})), "x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not a gloader manifest"),
        ({"arrays": []}, "must be an object"),
        ({"kind": 3}, "must be text"),
        ({"metadata": None}, "must be an object"),
        ({"required_features": "x"}, "list of texts"),
        ({"format_version": "1"}, "whole number"),
        ({"format_version": True}, "whole number"),
        ({"arrays": {f"a{i}": {} for i in range(10_001)}}, "at most 10000"),
        ({"arrays": {"A": record("A").to_json(), "a": record("a").to_json()}}, "share a file"),
    ],
)
def test_a_malformed_manifest_is_refused(changes, message):
    with pytest.raises(FormatError, match=message):
        parse_manifest(seal_manifest(body(**changes)), "x")


def test_json_tricks_are_refused():
    def sealed(text):
        whole = seal_manifest({"k": 1}).decode()
        head, tail = whole.index('"k"'), whole.index(',\n  "checksum"')
        import hashlib

        body_text = (whole[:head] + text).encode()
        return body_text + f',\n  "checksum": "{hashlib.sha256(body_text).hexdigest()}"\n}}\n'.encode(), tail

    for text in ('"a": 1, "a": 2', '"a": NaN', '"a": ' + "[" * 100_000, '"a": ' + "9" * 5000, '"\x80": 1'):
        with pytest.raises(FormatError, match="not JSON"):
            parse_manifest(sealed(text)[0], "x")


@pytest.mark.reliability("B10")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 3}, "format version 3 by 'gloader', this build reads 1 and 2"),
        ({"format_version": 0}, "this build reads 1 and 2"),
        ({"byte_order": "big"}, "byte_order is 'big', this build reads 'little'"),
        ({"page_bytes": 8192}, "page_bytes is 8192, this build reads 4096"),
        ({"data_offset": 64}, "data_offset is 64, this build reads 4096"),
        ({"required_features": ["teleport"]}, r"needs features \['teleport'\]"),
    ],
)
def test_another_version_is_refused_with_both_versions(changes, message):
    with pytest.raises(VersionError, match=message):
        parse_manifest(seal_manifest(body(**changes)), "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"format_version": 10**4000},
        {"byte_order": "b" * 5000},
        {"required_features": ["t" * 5000]},
        {"arrays": {"A": record("A").to_json() | {"u" * 5000: 1}}},
    ],
)
def test_what_is_too_long_to_read_is_shortened_in_the_message(changes):
    with pytest.raises((FormatError, VersionError)) as caught:
        parse_manifest(seal_manifest(body(**changes)), "x")
    assert len(str(caught.value)) < 400


@pytest.mark.reliability("B10")
def test_a_store_replaced_by_another_is_refused(store, tmp_path):
    other = tmp_path / "other"
    with FeatureWriter(other, num_rows=1000, dim=3, dtype="float32") as writer:
        writer.append(np.ones((1000, 3), dtype=np.float32))
    (other / STORE_MANIFEST).replace(store / STORE_MANIFEST)
    manifest = load_manifest(store, STORE_MANIFEST)  # same shape: only the checksums can tell
    with pytest.raises(ChecksumError, match="do not match the digest"):
        load_page_checksums(store, manifest.arrays["features"])
    with pytest.raises(ChecksumError, match="do not match the digest"):
        load_array(store, manifest.arrays["features"])


# --- opening ---


def test_a_committed_store_opens(store):
    manifest = load_manifest(store, STORE_MANIFEST)
    features = manifest.arrays["features"]
    assert (features.shape, features.dtype, features.num_pages, features.row_bytes) == (
        (1000, 3),
        "float32",
        3,
        12,
    )
    assert find_manifest_name(store) == STORE_MANIFEST
    assert np.array_equal(load_array(store, features), np.arange(3000, dtype=np.float32).reshape(1000, 3))


def test_a_table_of_edges_is_told_how_it_becomes_a_dataset(tmp_path):
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    with pytest.raises(StoreOpenError, match=r"gloader prepare edges:.*edges\.csv edges-data"):
        find_manifest_name(tmp_path / "edges.csv")
    for name in ("edges.csv", "none"):
        with pytest.raises(StoreOpenError, match="once: gloader prepare") as caught:
            load_manifest(tmp_path / name, DATASET_MANIFEST)
        # One sentence, not a chain of three errors.
        assert caught.value.__suppress_context__
        assert caught.value.__cause__ is None


@pytest.mark.reliability("B12")
def test_paths_that_are_no_store(tmp_path):
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in (
        ("missing", "there is nothing here"),
        ("file", "this is not a folder, but a dataset is one; make it once"),
        ("fifo", "this is not a folder"),
        ("loop", "form a loop"),
    ):
        with pytest.raises(StoreOpenError, match=message) as caught:
            load_manifest(tmp_path / name, STORE_MANIFEST)
        assert not isinstance(caught.value, NotAStoreError)
        assert isinstance(caught.value, OSError)
        assert name in str(caught.value)
        with pytest.raises(StoreOpenError):
            find_manifest_name(tmp_path / name)


@pytest.mark.reliability("B12")
@pytest.mark.parametrize("name", ["store.json", "features.npy", "features.pages"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_a_file_of_the_wrong_kind_does_not_hang(store, name, kind):
    (store / name).unlink()
    {
        "fifo": os.mkfifo,
        "folder": lambda path: path.mkdir(),
        "loop": lambda path: path.symlink_to(name),
    }[kind](store / name)
    outcome = []

    def attempt():
        try:
            load_manifest(store, STORE_MANIFEST)
        except StoreOpenError as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(10)
    if thread.is_alive():  # free the thread before failing
        os.close(os.open(store / name, os.O_WRONLY | os.O_NONBLOCK))
    assert outcome
    assert name in str(outcome[0])


@pytest.mark.reliability("B12")
def test_no_permission(store):
    with pytest.raises(StoreOpenError, match="permission denied"):
        load_manifest(store, STORE_MANIFEST, os_io=FaultyOS(fail_at=1, error=13))


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(NotAStoreError, match=r"has no store\.json or dataset\.json"):
        find_manifest_name(tmp_path)
    with pytest.raises(NotAStoreError, match=r"has no store\.json"):
        load_manifest(tmp_path, STORE_MANIFEST)


def test_data_without_a_commit_record(store):
    (store / STORE_MANIFEST).unlink()
    with pytest.raises(IncompleteStoreError, match="its creation never finished"):
        load_manifest(store, STORE_MANIFEST)
    with pytest.raises(IncompleteStoreError):
        find_manifest_name(store)


@pytest.mark.parametrize("name", ["features.npy", "features.pages"])
def test_a_missing_file(store, name):
    (store / name).unlink()
    with pytest.raises(IncompleteStoreError, match="it is missing"):
        load_manifest(store, STORE_MANIFEST)


@pytest.mark.parametrize("name", ["features.npy", "features.pages"])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 5000, -4096, -1])
def test_a_cut_file(store, name, size):
    full = (store / name).stat().st_size
    size = size if size >= 0 else full + size
    os.truncate(store / name, size)
    with pytest.raises(TruncatedStoreError, match=f"has {size} bytes, expected {full}"):
        load_manifest(store, STORE_MANIFEST)


def test_a_file_that_grew(store):
    with (store / "features.npy").open("ab") as file:
        file.write(b"x")
    with pytest.raises(FormatError, match="was changed"):
        load_manifest(store, STORE_MANIFEST)


@pytest.mark.reliability("B4")
@pytest.mark.parametrize("name", ["features.npy", "features.pages"])
def test_a_flipped_bit_in_a_header_is_found_at_open(store, name):
    good = (store / name).read_bytes()
    for bit in [*range(0, 1000, 7), DATA_OFFSET * 8 - 1]:
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        (store / name).write_bytes(data)
        with pytest.raises(FormatError, match="header does not declare"):
            load_manifest(store, STORE_MANIFEST)


@pytest.mark.reliability("B4")
def test_a_flipped_bit_in_the_page_checksums_is_found_at_open(store):
    features = load_manifest(store, STORE_MANIFEST).arrays["features"]
    good = (store / "features.pages").read_bytes()
    for bit in [*range(DATA_OFFSET * 8, DATA_OFFSET * 8 + 24 * 8), len(good) * 8 - 1]:
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        (store / "features.pages").write_bytes(data)
        with pytest.raises(ChecksumError, match="do not match the digest"):
            load_page_checksums(store, features)


def test_opening_changes_nothing(store):
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in store.iterdir()}
    manifest = load_manifest(store, STORE_MANIFEST)
    load_array(store, manifest.arrays["features"])
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in store.iterdir()} == before
    assert stat.S_ISDIR(store.stat().st_mode)
