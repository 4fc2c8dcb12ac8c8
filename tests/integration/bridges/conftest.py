"""A small dataset on disk."""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.dataset import Dataset

# DGL has no wheel for Python 3.12 or later, so the extra `dgl` brings none there: these compare with it.
LACKS_DGL = sys.version_info >= (3, 12) and find_spec("dgl") is None
if LACKS_DGL:
    collect_ignore_glob = ["test_dgl_*.py", "test_lightning.py", "test_streams.py", "test_typed_streams.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the examples and imports of DGL where there is none."""
    for item in items if LACKS_DGL else ():
        if item.path.parent == Path(__file__).parent and ("[dgl_" in item.name or "_of_dgl_" in item.name):
            item.add_marker(pytest.mark.skip(reason="DGL has no wheel for this Python"))


NUM_NODES, NUM_EDGES, DIM, NUM_CLASSES, NUM_TRAIN = 600, 4000, 24, 4, 100


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """600 nodes, 4,000 edges, 100 training nodes; the label is in the features."""
    rng = np.random.Generator(np.random.Philox(5))
    labels = rng.integers(0, NUM_CLASSES, NUM_NODES)
    features = rng.standard_normal((NUM_NODES, DIM)).astype(np.float32)
    features[np.arange(NUM_NODES), labels] += 3
    order = rng.permutation(NUM_NODES)
    return Dataset.from_numpy(
        tmp_path_factory.mktemp("adapters") / "tiny",
        features=features,
        labels=labels,
        edge_index=np.stack(
            [(NUM_NODES * rng.random(NUM_EDGES) ** 2).astype(int), rng.integers(0, NUM_NODES, NUM_EDGES)]
        ),
        train=order[:NUM_TRAIN],
        valid=order[NUM_TRAIN:200],
        test=order[200:],
    )


NUM_TYPED = {"paper": 400, "author": 250, "venue": 12, "patent": 6}


@pytest.fixture(scope="session")
def typed(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """Four types and seven relations, three of them reverses; 100 training papers. No batch holds a patent."""
    rng = np.random.Generator(np.random.Philox(6))

    def pairs(source: str, destination: str, count: int) -> Any:
        return np.stack([rng.integers(0, NUM_TYPED[name], count) for name in (source, destination)])

    order = rng.permutation(NUM_TYPED["paper"])
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("adapters") / "typed",
        num_nodes=NUM_TYPED,
        features={
            name: rng.standard_normal((NUM_TYPED[name], dim)).astype(np.float32)
            for name, dim in (("paper", 24), ("venue", 5), ("patent", 3))
        },
        edges={
            ("author", "writes", "paper"): pairs("author", "paper", 1200),
            ("paper", "cites", "paper"): pairs("paper", "paper", 2000),
            ("paper", "in", "venue"): pairs("paper", "venue", 400),
            ("paper", "founds", "patent"): pairs("paper", "patent", 30),
            ("paper", "written_by", "author"): pairs("paper", "author", 1200),
            ("venue", "has", "paper"): pairs("venue", "paper", 400),
            ("patent", "cites", "paper"): np.empty((2, 0), np.int64),
        },
        labels={"paper": rng.integers(0, 4, NUM_TYPED["paper"])},
        train=order[:100],
        valid=order[100:200],
        test=order[200:],
    )


@pytest.fixture
def settings() -> dict[str, Any]:
    """Seven batches an epoch, the last of four seeds."""
    return {"fanouts": [4, 3], "batch_size": 16, "memory_budget": "200MB", "threads": 2, "seed": 1}


@pytest.fixture
def make_loader(dataset: gloader.Dataset, settings: dict[str, Any]) -> Callable[..., gloader.Loader]:
    """Return a function that builds a native loader."""

    def make(**changes: Any) -> gloader.Loader:
        return gloader.Loader(dataset, **(settings | changes))

    return make
