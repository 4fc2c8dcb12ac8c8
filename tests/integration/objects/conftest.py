"""A dataset of several blocks in a folder, and servers of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloader import Dataset
from gloader.ssd_store.mirror import open_mirror
from gloader.testing.range_server import RangeServer

NUM_NODES, DIM = 40_000, 160  # 25.6 MB of features: four blocks
BLOCK_BYTES = 8 * 2**20


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The dataset in a folder, which no test changes."""
    rng = np.random.default_rng(20)
    order = rng.permutation(NUM_NODES)
    return Dataset.from_numpy(
        tmp_path_factory.mktemp("objects") / "papers",
        features=rng.standard_normal((NUM_NODES, DIM)).astype(np.float32),
        labels=rng.integers(0, 3, NUM_NODES),
        num_classes=3,
        edge_index=rng.integers(0, NUM_NODES, (2, 6 * NUM_NODES)),
        train=order[:600],
        valid=order[600:700],
        test=order[700:800],
    )


@pytest.fixture
def served(local: Dataset, tmp_path: Path) -> Path:
    """A folder with a copy of the dataset at ``papers``, which a test may change."""
    folder = tmp_path / "served"
    shutil.copytree(local.root, folder / "papers")
    return folder


@pytest.fixture
def serve(served: Path) -> Iterator[Callable[..., RangeServer]]:
    """Return a function that serves the copy until the test ends."""
    with ExitStack() as stack:

        def start(**options: Any) -> RangeServer:
            return stack.enter_context(RangeServer(served, **options))

        yield start


def make_small_blocks(url: str, mirrors: Path) -> None:
    """Make the mirror of ``url`` in blocks that are small enough for a budget to hold some of the dataset's."""
    _, os_io = open_mirror(url, mirror_dir=mirrors, block_bytes=2**18)
    os_io.close_mirror()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Dataset]]:
    """Return a function that opens a URL with the mirrors below ``tmp_path``; closed at the end."""
    with ExitStack() as stack:

        def open_at(url: str, **keywords: Any) -> Dataset:
            dataset = Dataset.open(url, **{"mirror_dir": tmp_path / "mirrors"} | keywords)
            stack.callback(dataset.close)
            return dataset

        yield open_at
