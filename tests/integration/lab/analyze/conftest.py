"""The dataset that runs are recorded on."""

from pathlib import Path

import pytest

import gloader

from .recorded import write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """A graph of 20,000 nodes with 64 features each, and 16 batches of training nodes an epoch."""
    return write_dataset(tmp_path_factory.mktemp("recorded") / "dataset")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """The same graph with 41 MB of features."""
    return write_dataset(tmp_path_factory.mktemp("wide") / "dataset", dim=512)


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    """A folder for packs; nothing is left there."""
    folder = tmp_path / "spill"
    folder.mkdir()
    return folder
