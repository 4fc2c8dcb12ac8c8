"""A number of feature buffers that was asked for is the number that there is, and changes no batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.errors import ConfigError
from gloader.replay.recording import read_recording

SETTINGS: dict[str, Any] = {
    "fanouts": [3, 2],
    "batch_size": 16,
    "memory_budget": "200MB",
    "spill_budget": 0,
    "threads": 1,
    "epochs": 1,
    "trace": True,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """A small graph."""
    rng = np.random.default_rng(0)
    return gloader.Dataset.from_numpy(
        tmp_path_factory.mktemp("buffers") / "dataset",
        edge_index=rng.integers(0, 500, (2, 3000)),
        features=rng.standard_normal((500, 8), np.float32),
        labels=rng.integers(0, 3, 500),
        train=np.arange(100),
        valid=np.arange(100, 110),
        test=np.arange(110, 120),
    )


def run(dataset: gloader.Dataset, folder: Path, **settings: Any) -> tuple[int, int, list[Any]]:
    """Return the buffers that were planned and those that there were, and the features of all batches."""
    with gloader.Loader(dataset, **SETTINGS, **settings) as loader:
        rows = [batch.x.clone().numpy() for batch in loader]
        loader.write_trace(folder / "trace.json")
        shape = read_recording(folder / "trace.json").header.shape
        return loader.memory_plan.num_buffers, shape.num_buffers, rows


@pytest.mark.parametrize("features", ["ram", "ssd"])
def test_as_many_as_were_asked_for_and_no_more_from_idle_memory(
    dataset: gloader.Dataset, tmp_path: Path, features: str
) -> None:
    _, by_itself, expected = run(dataset, tmp_path, features=features)
    assert by_itself > 5  # 200 MB are far more than this graph needs
    for number in (1, 2, 4):
        planned, there, rows = run(dataset, tmp_path, features=features, buffers=number)
        assert (planned, there) == (number, number)
        assert all(np.array_equal(one, other) for one, other in zip(rows, expected, strict=True))


def test_none_is_refused(dataset: gloader.Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="buffers is 0; it must be at least 1"):
        run(dataset, tmp_path, buffers=0)
