"""Ranks that share a loader, whose devices read the features in place: one memory, batches as of private loaders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_scenarios import build, digest
from rank_server import Ended

from gloader import Dataset

Run = Callable[..., list[Ended]]

NUM_NODES, DIM = 600, 24
SOON_S = 5.0


@pytest.fixture(scope="session", params=["float32", "float16", "int8"])
def stored(request: pytest.FixtureRequest, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the small dataset with its features stored in another dtype."""
    if request.param == "float32":
        return dataset
    source = Dataset.open(dataset)
    path = tmp_path_factory.mktemp("stored") / request.param
    arrays = source.to_numpy()
    with Dataset.create(path, name="tiny", num_nodes=NUM_NODES, num_classes=source.num_classes) as writer:
        with writer.indptr() as column:
            column.append(arrays["indptr"])
        with writer.indices(len(arrays["indices"]), "int32") as column:
            column.append(arrays["indices"])
        with writer.features(DIM, request.param) as column:
            column.append(arrays["features"])
        writer.labels(source.labels)
        writer.splits(train=source.train, valid=source.valid, test=source.test)
    return path


def _results(ended: list[Ended]) -> list[Any]:
    assert [(rank.status, rank.error) for rank in ended] == [(0, "")] * len(ended)
    return [rank.result for rank in ended]


def _run(run: Run, *, world: int, reaches: list[bool], **settings: Any) -> list[Any]:
    settings = {"sizes": [0] * world, "mode": "ram", "batch_size": 8} | settings
    return _results(run("with_devices", then="reached", world=world, reaches=reaches, **settings))


def _alone(dataset: Path, rank: int, world: int, **settings: Any) -> list[str]:
    with build(
        str(dataset), rank=rank, world_size=world, mode="ram", batch_size=8, sharing="private", **settings
    ) as loader:
        return [digest(batch) for batch in loader]


def test_all_devices_read_one_memory(run: Run, stored: Path) -> None:
    results = _run(run, world=2, reaches=[True] * 2, dataset=str(stored))
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(stored, rank, 2)
        assert found["gathered"] == 0
        assert found["inode"] == results[0]["inode"] != 0
        assert (found["maps"], found["left"]) == (1, False)
        assert found["borrowed"] == (Dataset.open(stored).feature_bytes if rank else 0)
        assert "device: no rows on cpu, the others read in place from pinned memory" in found["text"]


def test_rows_that_the_devices_hold_are_read_there(run: Run, dataset: Path) -> None:
    results = _run(run, world=3, reaches=[True] * 3, sizes=[4 * NUM_NODES + 150 * 4 * DIM] * 3)
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(dataset, rank, 3)
        assert (found["gathered"], found["inode"]) == (0, results[0]["inode"])
        assert "device: 150 rows (25.0%) on cpu" in found["text"]
        assert "the others read in place" in found["text"]


@pytest.mark.parametrize("on", [0, 2])
def test_where_one_device_cannot_reach_them_the_host_gathers_for_all(
    run: Run, dataset: Path, on: int
) -> None:
    results = _run(run, world=3, reaches=[rank != on for rank in range(3)])
    for rank, found in enumerate(results):
        assert found["digests"] == _alone(dataset, rank, 3)
        assert "read in place" not in found["text"]
        assert found["maps"] == (rank == 0)  # the others let go of it
    assert results[0]["gathered"] > 0


@pytest.mark.reliability("G1")
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_leaves_no_memory_behind(run: Run, killed: int) -> None:
    ended = run(
        "with_devices",
        then="survived",
        kill=killed,
        sizes=[0, 0],
        reaches=[True, True],
        mode="ram",
        batch_size=8,
    )
    assert ended[killed].status == -9
    other = ended[1 - killed]
    assert (other.status, other.error, other.seconds < SOON_S) == (0, "", True)
    assert other.result["error"].startswith(f"rank {killed}")
    assert other.result["inode"] > 0
    assert not other.result["left"]
