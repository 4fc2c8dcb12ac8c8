"""A small dataset on disk, with the arrays that went into it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gloader import Dataset, Loader
from gloader.device import Device
from gloader.testing.rehearsed_device import OverwritingRing

from .swept_edges import sweeping

NUM_NODES, DIM, NUM_CLASSES = 600, 24, 5


@dataclass(frozen=True, kw_only=True)
class Written:
    """A dataset and what was written into it."""

    path: Path
    dataset: Dataset
    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]


@pytest.fixture
def write_dataset(tmp_path: Path) -> Callable[..., Written]:
    """Return a function that writes a random graph; ``num_train`` seeds."""

    def write(
        *, num_train: int = 100, num_edges: int = 4000, dtype: str = "float32", name: str = "tiny"
    ) -> Written:
        rng = np.random.Generator(np.random.Philox(5))
        counts = rng.multinomial(num_edges, np.full(NUM_NODES, 1 / NUM_NODES))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        indices = (NUM_NODES * rng.random(num_edges) ** 2).astype(np.int32)
        features = rng.standard_normal((NUM_NODES, DIM)).astype(dtype).astype(np.float32)
        labels = rng.integers(0, NUM_CLASSES, NUM_NODES)
        order = rng.permutation(NUM_NODES)
        path = tmp_path / name
        with Dataset.create(path, name=name, num_nodes=NUM_NODES, num_classes=NUM_CLASSES) as writer:
            with writer.indptr() as column:
                column.append(indptr)
            with writer.indices(num_edges, "int32") as column:
                column.append(indices)
            with writer.features(DIM, dtype) as column:
                column.append(features)
            writer.labels(labels)
            writer.splits(train=order[:num_train], valid=order[num_train:200], test=order[200:])
        return Written(
            path=path,
            dataset=Dataset.open(path),
            features=features,
            labels=labels,
            indptr=indptr,
            indices=indices,
        )

    return write


@pytest.fixture
def tiny(write_dataset: Callable[..., Written]) -> Written:
    """A dataset of 600 nodes, 4,000 edges and 100 training nodes."""
    return write_dataset()


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], None]:
    """Return a function that puts another device in the CPU's place; buffers that come back are overwritten."""

    def put(device: Device) -> None:
        monkeypatch.setattr("gloader.pipeline.open.device_tier.open_device", lambda place: device)
        if device.is_asynchronous:
            monkeypatch.setattr("gloader.pipeline.open.tiers.BufferRing", OverwritingRing)

    return put


@pytest.fixture
def swept(path: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that opens a loader of the module's ``path`` whose passes serve so many batches."""

    @contextmanager
    def swept(num_batches: int = 3, **settings: Any) -> Iterator[Loader]:
        spill = tmp_path / "spill"
        spill.mkdir(exist_ok=True)
        with sweeping(path, spill, num_batches, **settings) as loader:
            yield loader
        assert not list(spill.iterdir())  # nothing is left behind, whatever ended it

    return swept
