"""Whatever bytes come: a manifest or a header is accepted as written, or refused by a typed error."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gloader.errors import ChecksumError, FormatError, VersionError
from gloader.ssd_store.feature_store import FeatureWriter
from gloader.ssd_store.format.format import (
    STORE_MANIFEST,
    ArrayRecord,
    Manifest,
    data_bytes,
    parse_manifest,
    seal_manifest,
)
from gloader.ssd_store.format.manifest import is_array_name, is_plain_name
from gloader.ssd_store.format.verification import verify_directory
from gloader.ssd_store.write.new_directory import NewDirectory

# fsync is most of the time on a disk, and nothing to these tests.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
REFUSED = (FormatError, ChecksumError, VersionError)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DTYPES = st.sampled_from(["float32", "float16", "bfloat16", "int8", "int64"])
SHAPES = st.lists(st.integers(0, 50), min_size=1, max_size=3).map(tuple)


@pytest.mark.reliability("H4")
@given(st.binary(max_size=2000))
def test_any_bytes_as_manifest(data):
    with pytest.raises(REFUSED):
        parse_manifest(data, "x")


def valid_body():
    record = ArrayRecord(
        name="features",
        file="features.npy",
        dtype="float32",
        shape=(3, 5),
        num_bytes=60,
        digest="0" * 16,
        pages_file="features.pages",
    )
    return Manifest(kind="dataset", arrays={"features": record}).to_json()


@pytest.mark.reliability("H4")
@given(st.dictionaries(st.sampled_from([*valid_body(), "extra"]), JSON, max_size=3))
def test_any_values_in_a_sealed_manifest(changes):
    data = seal_manifest({**valid_body(), **changes})
    try:
        manifest = parse_manifest(data, "x")
    except REFUSED:
        return
    assert all(is_plain_name(record.file) for record in manifest.arrays.values())


@pytest.mark.reliability("H4")
@given(st.sampled_from(["file", "dtype", "shape", "num_bytes", "digest", "pages_file", "extra"]), JSON)
def test_any_value_in_a_sealed_record(key, value):
    body = valid_body()
    body["arrays"]["features"][key] = value
    try:
        record = parse_manifest(seal_manifest(body), "x").arrays["features"]
    except REFUSED:
        return
    assert record.file == "features.npy"
    assert record.num_bytes == data_bytes(record.dtype, record.shape)


PARTS = st.text(alphabet="ab_.-/~A0\\\0é ", max_size=8) | st.sampled_from(
    [
        "nodes",
        "relations",
        "a__b__c",
        "a__b",
        "..",
        ".",
        "",
        "features",
        "nodes/",
        "a" * 101,
        "a__" * 100 + "a",
    ]
)


@pytest.mark.reliability("H4")
@given(
    st.tuples(st.sampled_from(["nodes", "relations", "links"]), PARTS, PARTS).map("/".join)
    | st.lists(PARTS, max_size=5).map("/".join)
    | st.text(max_size=20)
)
@example("relations/a__b/x")
@example("relations/a__b__c/x")
@example("nodes/a__b/x")
@example("links/a__b/x")
@example("links/a/x")
def test_a_name_is_a_file_in_the_folder_or_in_that_of_a_type_relation_or_link_table(name):
    """An oracle that takes paths apart says the same, and no accepted name leads out of the folder."""
    *folders, last = name.split("/")
    spelled = ["nodes", "links"] if len(folders) == 2 and "__" not in folders[1] else ["relations"]
    is_right = is_plain_name(last) and (
        not folders
        or (
            len(folders) == 2
            and folders[1] != ""
            and folders[0] in spelled
            and (folders[0] != "relations" or folders[1].count("__") >= 2)
            and len(folders[1]) <= (240 if folders[0] == "relations" else 100)
            and all(
                is_plain_name(folders[1][at : at + 100].strip("-.") or ".")
                for at in range(0, len(folders[1]), 50)
            )
            and folders[1][0] not in "-."
            and folders[1][-1] not in "-."
            and ".." not in folders[1]
        )
    )
    assert is_array_name(name) == is_right
    if is_right:
        path = Path("/root/store", f"{name}.npy")
        assert Path(os.path.normpath(path)) == path
        assert len(path.parts) == 4 + len(folders)


@pytest.mark.reliability("H4")
@given(
    st.sampled_from(["nodes/paper/labels", "links/train/pairs"]),
    st.sampled_from(["file", "pages_file"]),
    st.lists(PARTS, max_size=5).map("/".join),
)
def test_a_record_in_a_folder_names_its_own_files(name, key, value):
    record = {
        "file": f"{name}.npy",
        "dtype": "int64",
        "shape": [3],
        "num_bytes": 24,
        "digest": "0" * 16,
        "pages_file": f"{name}.pages",
    }
    required = ["array-folders", "link-tables"]
    body = {**valid_body(), "required_features": required}
    parse_manifest(seal_manifest({**body, "arrays": {name: record}}), "x")
    for feature in required[: 2 if name.startswith("links") else 1]:
        left = [each for each in required if each != feature]
        with pytest.raises(FormatError, match=feature):
            parse_manifest(seal_manifest({**body, "arrays": {name: record}, "required_features": left}), "x")
    with pytest.raises(FormatError, match=rf"its files must be {name}\.npy"):
        parse_manifest(seal_manifest({**body, "arrays": {name: {**record, key: value}}}), "x")


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_metadata_comes_back(metadata):
    manifest = Manifest(kind="dataset", arrays={}, metadata=metadata)
    data = manifest.to_bytes()
    assert parse_manifest(data, "x").metadata == metadata
    json.loads(data)


@given(DTYPES, SHAPES, st.lists(st.integers(0, 50), max_size=4), st.randoms())
def test_the_bytes_do_not_depend_on_the_chunks(dtype, shape, cuts, random):
    stored = np.dtype({"bfloat16": "uint16"}.get(dtype, dtype))
    array = np.frombuffer(random.randbytes(data_bytes(dtype, shape)), dtype=stored).reshape(shape)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        files = []
        for name, bounds in (("whole", []), ("parts", sorted(min(cut, shape[0]) for cut in cuts))):
            path = Path(folder) / name
            with NewDirectory(path, manifest_name=STORE_MANIFEST) as directory:
                with directory.array("a", dtype=dtype, shape=shape) as writer:
                    for chunk in np.split(array, bounds):
                        writer.append(chunk)
                directory.commit("x", {})
            files.append({file.name: file.read_bytes() for file in path.iterdir()})
            assert np.load(path / "a.npy", allow_pickle=False).tobytes() == array.tobytes()
        assert files[0] == files[1]


@pytest.mark.reliability("B3")
@pytest.mark.reliability("B4")
@given(
    st.integers(1, 300),
    st.integers(1, 40),
    st.sampled_from(["float32", "int8"]),
    st.floats(0, 1),
    st.integers(0, 7),
)
def test_one_changed_bit_anywhere_is_found(num_rows, dim, dtype, where, bit):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "s"
        with FeatureWriter(path, num_rows=num_rows, dim=dim, dtype=dtype) as writer:
            writer.append(np.random.default_rng(0).standard_normal((num_rows, dim)))
        files = sorted(path.iterdir())
        sizes = [file.stat().st_size for file in files]
        position = int(where * (sum(sizes) - 1))
        for file, size in zip(files, sizes, strict=True):
            if position < size:
                data = bytearray(file.read_bytes())
                data[position] ^= 1 << bit
                file.write_bytes(data)
                break
            position -= size
        assert [problem.file for problem in verify_directory(path, STORE_MANIFEST).problems] == [file.name]
