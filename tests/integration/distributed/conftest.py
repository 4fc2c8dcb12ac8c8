"""A small dataset, and a server that runs groups of ranks over it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_server import Ended, RankServer

from gloader import Dataset

NUM_NODES, DIM, NUM_CLASSES, NUM_TRAIN = 600, 24, 5, 103


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random graph of 600 nodes, 4,000 edges and 103 training nodes, on disk."""
    return _write(tmp_path_factory.mktemp("distributed") / "tiny", "float32")


@pytest.fixture
def write_dataset(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes the same graph with rows of another dtype."""
    return lambda dtype: _write(tmp_path / "tiny", dtype)


def _write(path: Path, dtype: str) -> Path:
    rng = np.random.Generator(np.random.Philox(5))
    counts = rng.multinomial(4000, np.full(NUM_NODES, 1 / NUM_NODES))
    order = rng.permutation(NUM_NODES)
    with Dataset.create(path, name="tiny", num_nodes=NUM_NODES, num_classes=NUM_CLASSES) as writer:
        with writer.indptr() as column:
            column.append(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        with writer.indices(4000, "int32") as column:
            column.append((NUM_NODES * rng.random(4000) ** 2).astype(np.int32))
        with writer.features(DIM, dtype) as column:
            column.append(rng.standard_normal((NUM_NODES, DIM)).astype(np.float32))
        writer.labels(rng.integers(0, NUM_CLASSES, NUM_NODES))
        writer.splits(train=order[:NUM_TRAIN], valid=order[NUM_TRAIN:200], test=order[200:])
    return path


@pytest.fixture(scope="session")
def server(
    dataset: Path, private_tmpdir: Path, private_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RankServer]:
    """Starts groups of ranks; it loads every kernel, once for all files."""
    with RankServer(dataset, log=tmp_path_factory.mktemp("ranks") / "log") as server:
        yield server


@pytest.fixture
def run(server: RankServer, dataset: Path) -> Callable[..., list[Ended]]:
    """Return a function that runs a scenario on several ranks of this machine."""

    def run(scenario: str, **settings: Any) -> list[Ended]:
        return server.run(scenario, **({"dataset": str(dataset)} | settings))

    return run
