"""Files of earlier builds, in ``tests/golden``, are read as before; `golden_files` wrote them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from golden_files import CONTENTS, GOLDEN, KEYS, WRITERS, embedded_rows, matrix, unpack

from gloader.core.loader_state import STATE_VERSION
from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import RowNotHereError
from gloader.loader import Loader
from gloader.ssd_store import EmbeddingTable
from gloader.ssd_store.format.format import FORMAT_VERSION, KNOWN_FEATURES, read_manifest
from gloader.ssd_store.format.manifest import READABLE_VERSIONS
from gloader.training.checkpoint.save import CHECKPOINT_VERSION, load_checkpoint
from gloader.training.predict import predict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# By the name of the file in tests/golden. A line is added with a file, and none is ever changed.
SHA256 = {
    "1-bytes.tar.xz": "eb0cccb702e5d28760909d0d48cff1e8b67a2f2deaadfb9b2ad7de3287c60a34",
    "1-weighted.tar.xz": "53bb5c806c9ae983c483a0ad7b0c5cc2cc98ceec71f3f1c67fe535075a7aaca8",
    "2-bytes.tar.xz": "cd61953453b9ee04e42c9000df2d4749040270b5f8b1fbbcae2e1e188d7d9b42",
    "2-columns.tar.xz": "15e422ce5fdd0e568a0c0428b2d3c7a6fa64ff0f3400db916fea6997662e76ed",
    "2-embedding.tar.xz": "6b72b4ee22248a76ddeedaf72fde08f90b32631e4604e123b3141e161f329ab9",
    "2-keyed.tar.xz": "948de4a5bd920a9854295418eebfa7f36e78ad926c3503d23befd8d04ece1faf",
    "2-linked.tar.xz": "04fcc285b86c3fd180f31100c12c049e2a2f784eff7d387b307e71fadb10fbd6",
    "2-part.tar.xz": "2c740e2028b0bc898c13465d1b368072e46e133bf98711a48a27076622a3eded",
    "2-rows.tar.xz": "0c1d3f0ce7ff41e3515106016d27606c5a0c27db08006b123119af98ed7fa846",
    "2-typed.tar.xz": "6a1e4555dfc07b6db0b43d3555d8bc4263492ef8db83d984424cd4d13653ccf3",
    "2-weighted.tar.xz": "49db060e3d8367023edd0602bb2c02e5500dc9fb85e4b5113b5b82d0a9c24a27",
    "checkpoint-3-latest.tar.xz": "c173697272e0f0b94085762a30e1b336780e8cf79edf09c3d1355e0ded624032",
    "checkpoint-3.tar.xz": "4f0296f9fd61b405dde31c994c7d7a9a825d4667d9d48f39ffba3a5269052ec1",
    "state-1.json": "3b682358cb3cd5b9ef35e3521609e20406f05bc92d609f1d4a2f13d48fbb0b74",
    "state-2.json": "f61542c7145d7ed5713c4cb4c916c91810ae2a48bedb23c864ec3dc4688d3b6d",
}
# What loader states and checkpoints know a dataset by.
FINGERPRINTS = {
    "1-bytes": "c0c789e70fd7cce43089ec8d63369ce8",
    "1-weighted": "f4366f1e3e5d6a96f001376071fd0ef0",
    "2-bytes": "2752a4741042ae6866efd0f064086961",
    "2-columns": "da4a5bace67f34b888ce138c18aec406",
    "2-keyed": "884de80e95ce37f7d4b071043304bb43",
    "2-linked": "7efa298bf9f02f479688599e24748847",
    "2-part": "cb9c2a736e524780b129269c89230d18",
    "2-rows": "a6b36f69e4acda3d67cdcd61c85ca54c",
    "2-typed": "4a6750b520ae48307b3ddd5782f5a6c4",
    "2-weighted": "e8eab01a0b5411f1b37f73c7c44e32eb",
}
DATASETS = tuple(FINGERPRINTS)
EMBEDDING = "2-embedding"  # a table, no dataset
CHECKPOINTS = {
    "checkpoint-3": "1-weighted",
    "checkpoint-3-latest": "2-weighted",
}  # and what each was trained on
WEIGHTS = {
    "checkpoint-3-latest": "bf8c00527d8ca89e9fd72472a256d52015c07d1a6732b8c0ff3ab9d48594acd0",
    "checkpoint-3": "bf8c00527d8ca89e9fd72472a256d52015c07d1a6732b8c0ff3ab9d48594acd0",
}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Every archive, unpacked."""
    target = tmp_path_factory.mktemp("golden")
    names = [*DATASETS, EMBEDDING, *CHECKPOINTS]
    return {name: unpack(GOLDEN / f"{name}.tar.xz", SHA256[f"{name}.tar.xz"], target) for name in names}


def test_every_golden_file_is_the_one_that_it_was() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in GOLDEN.iterdir()}
    assert found == SHA256


def test_every_version_and_every_feature_of_datasets_has_a_golden_file(golden: Mapping[str, Path]) -> None:
    manifests = [read_manifest(golden[name], "dataset.json") for name in DATASETS]
    versions = {manifest.format_version for manifest in manifests}
    assert versions == set(range(1, FORMAT_VERSION + 1)) == set(READABLE_VERSIONS)
    table = read_manifest(golden[EMBEDDING], "last.json")
    assert {name for each in (*manifests, table) for name in each.required_features} == KNOWN_FEATURES
    assert {manifest.kind for manifest in manifests} == {"dataset", "hetero"}
    dtypes = {record.dtype for manifest in manifests for record in manifest.arrays.values()}
    assert dtypes >= {"float32", "float16", "bfloat16", "int8", "int32", "int64"}


def test_every_version_of_states_and_the_one_of_checkpoints_has_a_golden_file(
    golden: Mapping[str, Path],
) -> None:
    states = [json.loads((GOLDEN / f"state-{n}.json").read_text()) for n in range(1, STATE_VERSION + 1)]
    assert [each["state"]["version"] for each in states] == [*range(1, STATE_VERSION + 1)]
    assert f"checkpoint-{CHECKPOINT_VERSION}" in CHECKPOINTS


@pytest.mark.parametrize("name", [name for name in DATASETS if not name.endswith("part")])
def test_a_dataset_of_an_earlier_build_is_read_bit_for_bit(golden: Mapping[str, Path], name: str) -> None:
    dataset = Dataset.open(golden[name])
    _require_same(dataset.to_numpy(), CONTENTS[name.partition("-")[2]](), name)
    assert dataset.fingerprint == FINGERPRINTS[name]
    if name.endswith("weighted"):
        assert dataset.original_ids is not None
        assert dataset.original_ids.tolist() == [*range(11, -1, -1)]
    assert not verify_dataset(golden[name]).problems


def test_keys_of_an_earlier_build_find_their_nodes(golden: Mapping[str, Path]) -> None:
    dataset = Dataset.open(golden["2-keyed"])
    assert dataset.keys_of(np.arange(len(KEYS))).tolist() == list(KEYS)
    assert dataset.ids_of(list(KEYS)[::-1]).tolist() == list(range(len(KEYS)))[::-1]


def test_a_part_of_an_earlier_build_has_the_rows_that_it_had(golden: Mapping[str, Path]) -> None:
    dataset = Dataset.open(golden["2-part"])
    assert dataset.ranges is not None
    ((first, past),) = [bounds[1:] for bounds in dataset.ranges.tables.values()]
    rows = np.empty((past - first, dataset.feature_dim), np.float32)
    with dataset.open_features() as features:
        features.read_into(np.arange(first, past), rows)
        with pytest.raises(RowNotHereError):
            features.read_into(np.arange(first - 1, past - 1), rows.copy())
    assert np.array_equal(rows, matrix(dataset.num_nodes, dataset.feature_dim)[first:past])
    assert dataset.fingerprint == FINGERPRINTS["2-part"]
    assert not verify_dataset(golden["2-part"]).problems


def test_an_embedding_table_of_an_earlier_build_has_the_rows_of_its_records(
    golden: Mapping[str, Path],
) -> None:
    for record, num_steps, position in (("best", 1, None), ("last", 3, [0, 2])):
        with EmbeddingTable.open(golden[EMBEDDING], record=record, is_read_only=True) as table:
            first = np.empty((table.num_rows, table.width), np.float32)
            table.initial.fill(np.arange(table.num_rows), first)
            found = np.concatenate([rows for _, rows in table.pieces(5)])
            assert np.array_equal(found, embedded_rows(first)[record])
            assert (table.num_steps, table.facts.get("position")) == (num_steps, position)
            assert table.facts["made"] == "by hand"


@pytest.mark.parametrize(
    "name", [*(name for name in DATASETS if name.startswith(f"{FORMAT_VERSION}-")), EMBEDDING]
)
def test_this_build_writes_the_newest_version_as_it_was_written(
    golden: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    """Another byte is another version: builds that read this one would not know of it."""
    written = tmp_path / name
    WRITERS[name.partition("-")[2]](written)
    assert _contents(written) == _contents(golden[name])


@pytest.mark.parametrize(("version", "name"), [(1, "1-weighted"), (2, "2-weighted")])
def test_a_state_of_an_earlier_build_is_continued_with_its_batches(
    golden: Mapping[str, Path], version: int, name: str
) -> None:
    saved = json.loads((GOLDEN / f"state-{version}.json").read_text())
    with Loader(Dataset.open(golden[name]), fanouts=[2, 2], batch_size=2, seed=5) as loader:
        loader.load_state_dict(saved["state"])
        assert [batch.nodes.tolist() for batch in loader] == saved["batches"]


@pytest.mark.parametrize(("name", "dataset"), CHECKPOINTS.items())
def test_a_checkpoint_of_an_earlier_build_has_its_weights_and_predicts(
    golden: Mapping[str, Path], name: str, dataset: str
) -> None:
    checkpoint = load_checkpoint(golden[name])
    weights = hashlib.sha256()
    for key, tensor in checkpoint.weights.items():
        weights.update(key.encode() + tensor.numpy().tobytes())
    assert weights.hexdigest() == WEIGHTS[name]
    assert checkpoint.fingerprint == FINGERPRINTS[dataset]
    opened = Dataset.open(golden[dataset])
    assert len(predict(opened, checkpoint)) == opened.num_nodes


def _contents(root: Path) -> dict[str, Any]:
    """Return the files of a folder by their names; records as JSON, without the build and their own checksums."""
    files: dict[str, Any] = {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    for name in [name for name in files if name.endswith(".json")]:
        files[name] = json.loads(files[name])
        del files[name]["created_by"], files[name]["checksum"]
    return files


def _require_same(found: Any, expected: Any, where: str) -> None:
    """Require equal values, dtypes and keys all the way down."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name, value in expected.items():
            _require_same(found[name], value, f"{where} {name}")
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), where
        assert found.tobytes() == expected.tobytes(), where
    else:
        assert found == expected, where
