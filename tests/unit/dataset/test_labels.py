"""The labels of some nodes, without the labels of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import ChecksumError, ShapeError
from gloader.ssd_store.format.format import DATA_OFFSET

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.types import IdArray

NUM_NODES = 2000


@pytest.fixture
def labels() -> IdArray:
    return np.random.default_rng(0).integers(-1, 9, NUM_NODES)


@pytest.fixture
def dataset(tmp_path: Path, labels: IdArray) -> Dataset:
    with Dataset.create(tmp_path / "d", name="d", num_nodes=NUM_NODES, num_classes=9) as writer:
        with writer.indptr() as column:
            column.append(np.zeros(NUM_NODES + 1, dtype=np.int64))
        with writer.indices(0, "int32"):
            pass
        with writer.features(1, "float32") as column:
            column.append(np.zeros((NUM_NODES, 1), dtype=np.float32))
        writer.labels(labels)
        writer.splits(train=np.arange(9), valid=np.arange(0), test=np.arange(0))
    return Dataset.open(tmp_path / "d")


def test_labels_of_some_nodes(dataset: Dataset, labels: IdArray) -> None:
    nodes = np.random.default_rng(1).integers(0, NUM_NODES, 500)
    found = dataset.labels_of(nodes)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, labels[nodes])
    assert dataset.labels_of(np.empty(0, dtype=np.int64)).shape == (0,)
    assert "labels" not in dataset.__dict__  # the whole column was not kept


def test_labels_are_verified_and_nodes_checked(dataset: Dataset) -> None:
    with pytest.raises(
        ShapeError, match=r"positions in 'labels' must be in 0\.\.1999; these are not: \[2000\]"
    ):
        dataset.labels_of(np.array([5, NUM_NODES]))
    with (dataset.root / "labels.npy").open("r+b") as file:
        file.seek(DATA_OFFSET + 9000)
        file.write(b"\x07")
    assert dataset.labels_of(np.array([5])).shape == (1,)
    place = r"labels\.npy: page 2 at byte 12288, with rows 1024 to 1535, does not match its checksum"
    for read in (lambda: dataset.labels_of(np.array([5, 1024])), lambda: dataset.labels):
        with pytest.raises(ChecksumError, match=place):
            read()


@pytest.mark.parametrize("name", ["indptr", "indices", "edge_weight", "labels", "train", "original_ids"])
def test_damage_of_any_array_is_named_by_its_pages(tmp_path: Path, name: str) -> None:
    """Also where verifying the whole would say that the file is damaged, and no more."""
    nodes = np.arange(NUM_NODES)
    dataset = Dataset.from_numpy(
        tmp_path / "d",
        features=np.zeros((NUM_NODES, 1), np.float32),
        labels=nodes % 3,
        edge_index=np.stack([nodes, nodes[::-1]]),
        edge_weight=np.ones(NUM_NODES, np.float32),
        train=nodes[:1200],
        valid=nodes[1200:1300],
        test=nodes[1300:],
        order="degree",
    )
    for offset in (20, 4096 + 9):
        with (dataset.root / f"{name}.npy").open("r+b") as file:
            file.seek(DATA_OFFSET + offset)
            byte = file.read(1)
            file.seek(DATA_OFFSET + offset)
            file.write(bytes([byte[0] ^ 64]))
    per_page = 4096 // dataset.arrays[name].row_bytes
    rows = rf"with rows 0 to {per_page - 1}, does not match its checksum \(also page 1\)"
    place = rf"{name}\.npy: page 0 at byte 4096, {rows}"
    with pytest.raises(ChecksumError, match=place):
        dataset.load_graph() if name in ("indptr", "indices", "edge_weight") else getattr(dataset, name)
    problems = verify_dataset(dataset.root).problems
    assert [(problem.file, problem.page) for problem in problems] == [(f"{name}.npy", 0), (f"{name}.npy", 1)]
