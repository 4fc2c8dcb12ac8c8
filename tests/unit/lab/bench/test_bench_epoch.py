"""The epoch benchmark on a small dataset: its figures' shape and sums, not their size."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.lab.bench.features import bench_epoch

if TYPE_CHECKING:
    from pathlib import Path

N, E, F = 400, 4000, 8


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset.from_numpy(
        tmp_path / "made",
        features=rng.random((N, F), dtype=np.float32),
        labels=rng.integers(0, 3, N),
        edge_index=rng.integers(0, N, (2, E)),
    )


def test_the_result_is_json_with_every_run_and_what_an_epoch_moved(dataset: Dataset) -> None:
    report = json.loads(json.dumps(bench_epoch(dataset, fanouts=[3, 2], batch_size=60, epochs=2, threads=1)))
    assert {name: len(seconds) for name, seconds in report["runs_seconds"].items()} == {"ssd": 2, "ram": 2}
    assert report["ratio_to_ram"] == report["seconds_per_epoch"] / report["ram_seconds_per_epoch"]
    assert report["workload"]["batches"] == 4  # 240 training nodes
    assert 0 <= report["hit_rate"] < 1
    assert report["bytes_read_per_epoch"] > 0
    assert report["seeds_per_second"] == pytest.approx(240 / report["seconds_per_epoch"])


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"cache_share": 0.0}, {"cache_share": 1.5}])
def test_impossible_workloads_are_refused(dataset: Dataset, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="needs epochs >= 1 and 0 < cache_share <= 1"):
        bench_epoch(dataset, **wrong)  # type: ignore[arg-type]
