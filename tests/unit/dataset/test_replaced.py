"""A dataset whose folder is replaced while it is open: the old one whole, or an error that names the folder."""

from __future__ import annotations

import errno
import re
import shutil
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader import Loader
from gloader.dataset import Dataset
from gloader.errors import ChecksumError, StoreOpenError
from gloader.ssd_store.os_io import OsIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gloader.config import Verify
    from gloader.ssd_store.os_io import StrPath

NUM_NODES = 600
pytestmark = pytest.mark.reliability("J16")


def write(path: Path, number: int, **options: Any) -> Dataset:
    """Write a dataset whose every row, label and edge says which it is; both have the same shapes."""
    nodes = np.arange(NUM_NODES)
    return Dataset.from_numpy(
        path,
        features=np.full((NUM_NODES, 40), number, np.float32) + nodes[:, None],
        labels=(nodes + number) % 5,
        num_classes=5,
        edge_index=np.stack([(nodes + number) % NUM_NODES, nodes]),
        train=nodes[:300],
        valid=nodes[300:400],
        test=nodes[400:],
        overwrite=True,
        **options,
    )


@pytest.fixture(name="old")
def _old(tmp_path: Path) -> Dataset:
    return write(tmp_path / "d", 0)


def replaced(path: Path) -> str:
    text = f"[Errno {errno.ESTALE}] the store was replaced after it was opened; open it again: '{path}"
    return re.escape(text)


def first_batch(dataset: Dataset, features: str, topology: str = "auto") -> None:
    with Loader(dataset, fanouts=(2,), batch_size=50, features=features, topology=topology) as loader:
        next(iter(loader))


FIRST_USES: dict[str, Callable[[Dataset], Any]] = {
    "features": lambda dataset: dataset.open_features(),
    "features, not verified": lambda dataset: dataset.open_features(verify="off"),
    "labels": lambda dataset: dataset.labels,
    "labels of some": lambda dataset: dataset.labels_of(np.array([3])),
    "graph": lambda dataset: dataset.load_graph(),
    "a loader from the SSD": lambda dataset: first_batch(dataset, "ssd"),
    "a loader in memory": lambda dataset: first_batch(dataset, "ram"),
    "a loader that sweeps": lambda dataset: first_batch(dataset, "ram", "sweep"),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_what_is_opened_after_the_replacement_is_refused(old: Dataset, use: str) -> None:
    write(old.root, 1)
    with pytest.raises(StoreOpenError, match=replaced(old.root)):
        FIRST_USES[use](old)


# Whichever strategy the machine would choose: each opens the file at another time.
PLACES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "direct": {"features": "ssd", "io_strategy": "direct"},
    "staged": {"features": "ssd", "io_strategy": "staged", "superbatch": 1, "cache": 0},
    "packed": {
        "features": "ssd",
        "io_strategy": "packed",
        "superbatch": 2,
        "cache": 0,
        "spill_budget": "64MB",
    },
}


@pytest.mark.parametrize("verify", ["read", "off"])
@pytest.mark.parametrize("place", PLACES)
def test_what_was_opened_before_the_replacement_stays_whole(
    old: Dataset, tmp_path: Path, place: str, verify: Verify
) -> None:
    settings = PLACES[place] | {"spill_dir": tmp_path, "epochs": 4, "verify": verify}
    with Loader(old, fanouts=(2,), batch_size=50, **settings) as loader:
        # More batches than can be staged when the replacement comes.
        for number, batch in enumerate(chain.from_iterable(repeat(loader, 4))):
            if number == 2:
                write(old.root, 1)
            nodes = np.asarray(batch.nodes)
            np.testing.assert_array_equal(np.asarray(batch.x)[:, 0], nodes.astype(np.float32))
            np.testing.assert_array_equal(np.asarray(batch.y), nodes[: len(batch.y)] % 5)


def test_the_same_content_again_and_a_moved_folder(old: Dataset, tmp_path: Path) -> None:
    write(old.root, 0)
    with old.open_features() as store:
        assert store.num_rows == NUM_NODES
    (tmp_path / "d").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreOpenError, match=replaced(old.root)):
        old.open_features()


def test_damage_is_not_taken_for_a_replacement(old: Dataset) -> None:
    with (old.root / "labels.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\x09")
    with pytest.raises(ChecksumError, match=r"labels\.npy: page 0 at byte 4096"):
        _ = old.labels


class SwappingOS(OsIO):
    """Puts another folder in the place of ``root`` just before a file of this name is opened."""

    def __init__(self, root: Path, other: Path, file: str) -> None:
        self.root, self.other, self.file, self.is_done = root, other, file, False

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        if str(path).endswith(self.file) and not self.is_done:
            self.is_done = True
            shutil.rmtree(self.root)
            self.other.rename(self.root)
        return super().open(path, flags, mode)


@pytest.mark.parametrize("verify", ["read", "off"])
@pytest.mark.parametrize("file", ["labels.npy", "features.npy", "features.pages"])
def test_a_replacement_between_two_files_is_noticed(
    old: Dataset, tmp_path: Path, file: str, verify: Verify
) -> None:
    """The files that an opening of features opens, and one that the opening of a dataset does."""
    write(tmp_path / "other", 1)
    os_io = SwappingOS(old.root, tmp_path / "other", file)
    if file == "labels.npy":
        with pytest.raises(StoreOpenError, match=replaced(old.root)):
            Dataset.open(old.root, os_io=os_io).open_features(verify=verify)
        return
    dataset = Dataset(old.root, old._manifest, os_io)
    with pytest.raises(StoreOpenError, match=replaced(old.root)):
        dataset.open_features(verify=verify)
