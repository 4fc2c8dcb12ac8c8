"""Directories of format version 1: every reader takes them and finds their damage; nothing new is written so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from arrived_rows import arrange, play
from version_1 import as_version_1, digest, page_checksums

from gloader.core.signals import NEVER
from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import ChecksumError, FormatError
from gloader.ssd_store import FeatureStore, Packer, load_misses
from gloader.ssd_store.format.array_reader import load_page_checksums
from gloader.ssd_store.format.format import DATA_OFFSET, parse_manifest, seal_manifest
from gloader.ssd_store.spill.folder import SpillFolder

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.config import IoMode, Verify

NUM_NODES, DIM = 3000, 20
RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.standard_normal((NUM_NODES, DIM)).astype(np.float32)
INDICES = RANDOM.integers(0, NUM_NODES, (9, NUM_NODES))
EDGES = np.stack([INDICES.reshape(-1), np.tile(np.arange(NUM_NODES), 9)])


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    path = tmp_path / "d"
    labels = np.arange(NUM_NODES) % 7
    weights = np.linspace(0, 1, EDGES.shape[1], dtype=np.float32)
    Dataset.from_numpy(path, features=FEATURES, labels=labels, edge_index=EDGES, edge_weight=weights)
    return path


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(DATA_OFFSET + offset)
        byte = file.read(1)
        file.seek(DATA_OFFSET + offset)
        file.write(bytes([byte[0] ^ 4]))


def test_it_holds_what_it_held(path: Path) -> None:
    before = Dataset.open(path)
    expected = before.to_numpy() | {"some": before.labels_of(np.array([5, 2999]))}
    assert {record.pages_file for record in before.arrays.values()} == {
        f"{name}.pages" for name in before.arrays
    }
    as_version_1(path)
    assert sorted(file.name for file in path.glob("*.pages")) == ["features.pages"]
    after = Dataset.open(path)
    actual = after.to_numpy() | {"some": after.labels_of(np.array([5, 2999]))}
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)
    assert after.fingerprint != before.fingerprint
    assert verify_dataset(path).is_ok


@pytest.mark.parametrize(("io", "verify"), [("auto", "read"), ("threads", "open"), ("buffered", "read")])
def test_rows_are_verified_by_its_own_checksum(path: Path, io: IoMode, verify: Verify) -> None:
    as_version_1(path)
    rows, out = np.arange(0, NUM_NODES, 3), np.empty((NUM_NODES // 3, DIM), np.float32)
    with FeatureStore.open(path, io=io, verify=verify) as store:
        store.read_into(rows, out)
        np.testing.assert_array_equal(out, FEATURES[rows])
    damage(path / "features.npy", 7 * 4096 + 900)
    with (
        pytest.raises(ChecksumError, match=r"features\.npy: page 7 at byte 32768"),
        FeatureStore.open(path, io=io, verify=verify) as store,
    ):
        store.read_into(rows, out)


def test_sweeps_and_packs_read_it(path: Path) -> None:
    as_version_1(path)
    misses = [np.arange(batch, NUM_NODES, 5) for batch in range(5)]
    for is_damaged in (False, True):
        if is_damaged:
            damage(path / "features.npy", 7 * 4096 + 900)
        with (
            FeatureStore.open(path) as store,
            SpillFolder(budget_bytes=10**8) as spill,
            Packer(store, spill) as packer,
        ):
            for sweep in (
                lambda lists: packer.pack(lists, superbatch=0, cancellation=NEVER),
                lambda lists: load_misses(store, lists, cancellation=NEVER),
            ):
                if is_damaged:
                    with pytest.raises(ChecksumError, match="page 7 at byte 32768"):
                        sweep(misses)
                    continue
                source = sweep(misses)
                out = np.empty((len(misses[3]), DIM), np.float32)
                source.read_into(3, misses[3], out, at=np.arange(len(out)))
                np.testing.assert_array_equal(out, FEATURES[misses[3]])
                source.close()


def test_rows_that_arrive_for_it_are_not_compared_with_its_own_checksums(path: Path) -> None:
    as_version_1(path)
    rows, rng = np.arange(0, NUM_NODES, 2), np.random.default_rng(0)
    layout = arrange(rows, 4 * DIM, owners=2, rounds=2, rng=rng)
    with FeatureStore.open(path) as store:
        arriving, _ = play(layout, FEATURES)
        source = load_misses(store, [rows], cancellation=NEVER, arriving=arriving)
        out = np.empty((len(rows), DIM), np.float32)
        source.read_into(0, rows, out, at=np.arange(len(out)))
        np.testing.assert_array_equal(out, FEATURES[rows])


def test_page_checksums_are_learnt_in_a_pass_that_the_digest_vouches_for(path: Path) -> None:
    records = as_version_1(path)
    for name in ("features", "indices", "train"):
        data = (path / f"{name}.npy").read_bytes()[DATA_OFFSET:]
        np.testing.assert_array_equal(load_page_checksums(path, records[name]), page_checksums(data))
        assert digest(page_checksums(data)) == records[name].digest
    damage(path / "indices.npy", 5000)
    with pytest.raises(
        ChecksumError, match=r"indices\.npy: the bytes do not match the digest .* no page checksums"
    ):
        load_page_checksums(path, records["indices"])
    with pytest.raises(ChecksumError, match=r"indices\.npy: the bytes do not match the digest"):
        Dataset.open(path).load_graph()
    (problem,) = verify_dataset(path).problems
    assert (problem.file, problem.page) == ("indices.npy", None)


def test_an_array_of_version_2_must_have_page_checksums(path: Path) -> None:
    body = parse_manifest((path / "dataset.json").read_bytes(), path).to_json()
    body["arrays"]["labels"]["pages_file"] = None  # type: ignore[index, call-overload]
    with pytest.raises(FormatError, match=r"labels\.npy and labels\.pages in the same folder"):
        parse_manifest(seal_manifest(body), path)
