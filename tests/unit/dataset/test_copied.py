"""Arrays that one dataset takes over from another: linked, or else read, verified and written."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import ChecksumError, StoreWriteError
from gloader.ssd_store.format.array_reader import array_pieces
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

N, K = 70_000, 23  # labels of 92 bytes a row: 6 MB, which are read in two steps, with a row across them


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Dataset:
    random = np.random.default_rng(0)
    return Dataset.from_numpy(
        tmp_path / "source",
        features=np.zeros((N, 1), np.float32),
        labels=random.normal(size=(N, K)).astype(np.float32),
        edge_index=random.integers(0, N, (2, 1000)),
        edge_features=random.normal(size=(1000, 3)).astype(np.float32),
    )


def copy(source: Dataset, path: Path, *, os_io: OsIO = REAL_OS, source_io: OsIO = REAL_OS) -> Dataset:
    """Return a dataset with other features and the other arrays of ``source``."""
    arrays = {name: record for name, record in source.arrays.items() if name != "features"}
    with Dataset.create(path, name="copy", num_nodes=N, num_classes=K, os_io=os_io) as writer:
        writer.copied(arrays, source.root, required_features=source.required_features, source_io=source_io)
        with writer.features(2, "float32") as rows:
            rows.append(np.ones((N, 2), np.float32))
    return Dataset.open(path)


class Elsewhere(OsIO):
    """A file system that gives no file a second name."""

    def __init__(self, error: int) -> None:
        self.error = error

    def link(self, source: object, target: object) -> None:
        raise OSError(self.error, "no second name")


def test_arrays_get_a_second_name(tmp_path: Path, source: Dataset) -> None:
    made = copy(source, tmp_path / "copy")
    for name, record in source.arrays.items():
        if name != "features":
            assert made.arrays[name] == record
            assert (made.root / f"{name}.npy").samefile(source.root / f"{name}.npy")
    assert made.required_features == source.required_features
    assert verify_dataset(made.root).is_ok
    assert made.feature_dim == 2


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP])
def test_arrays_are_copied_where_no_second_name_is_given(tmp_path: Path, source: Dataset, error: int) -> None:
    made = copy(source, tmp_path / "copy", os_io=Elsewhere(error))
    assert not (made.root / "labels.npy").samefile(source.root / "labels.npy")
    assert {name: each.digest for name, each in made.arrays.items() if name != "features"} == {
        name: each.digest for name, each in source.arrays.items() if name != "features"
    }
    assert (made.labels == source.labels).all()
    assert verify_dataset(made.root).is_ok


def test_an_array_with_one_second_name_is_copied(tmp_path: Path, source: Dataset) -> None:
    made = copy(source, tmp_path / "copy", os_io=FaultyOS(fail_at=2, calls={"link"}, error=errno.EMLINK))
    assert verify_dataset(made.root).is_ok
    names = [name for name in source.arrays if name != "features"]
    same = [(made.root / f"{name}.npy").samefile(source.root / f"{name}.npy") for name in names]
    assert same == [False, *[True] * (len(names) - 1)]


def test_a_damaged_array_is_not_copied(tmp_path: Path, source: Dataset) -> None:
    with (source.root / "labels.npy").open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"x")
    with pytest.raises(ChecksumError, match=r"labels\.npy: page \d+ at byte"):
        copy(source, tmp_path / "copy", os_io=Elsewhere(errno.EXDEV))
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("fail_at", [1, 2, 7, 99])
def test_a_failing_link_leaves_nothing(tmp_path: Path, source: Dataset, fail_at: int) -> None:
    broken = FaultyOS(fail_at=fail_at, calls={"link"}, error=errno.ENOSPC)
    arrays = len(source.arrays) - 1
    if fail_at > 2 * arrays:
        copy(source, tmp_path / "copy", os_io=broken)
        return
    with pytest.raises(StoreWriteError, match="taking over an array failed"):
        copy(source, tmp_path / "copy", os_io=broken)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    assert verify_dataset(source.root).is_ok


def test_rows_across_two_reads_are_whole(source: Dataset) -> None:
    record = source.arrays["labels"]
    pieces = [piece.copy() for piece in array_pieces(source.root, record)]
    assert len(pieces) > 1
    assert (np.concatenate(pieces) == source.labels).all()
    flat = replace(record, shape=(N * K,))
    assert (
        np.concatenate([each.copy() for each in array_pieces(source.root, flat)]) == source.labels.ravel()
    ).all()
