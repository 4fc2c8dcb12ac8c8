"""A loader of many relations opens as many files as it counted at its door."""

import os
import resource
import threading
from typing import Any

import numpy as np
import pytest

from gloader import Dataset, HeteroLoader
from gloader.core import machine
from gloader.errors import StoreOpenError

RELATIONS, NODES, EDGES = 14, 200, 3000
WAYS: dict[str, dict[str, Any]] = {
    "in memory": {"topology": "ram", "features": "ram"},
    "direct": {"topology": "direct", "features": "ssd", "io_strategy": "direct"},
    "packed": {"topology": "sweep", "features": "ssd", "io_strategy": "packed"},
    "weighted": {"topology": "sweep", "features": "ram", "sampler": "weighted"},
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(2)
    relations = [("a", f"r{number}", "b" if number % 2 else "a") for number in range(RELATIONS - 1)]
    relations.append(("b", "back", "a"))
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("many") / "relations",
        num_nodes={"a": NODES, "b": NODES},
        edges={relation: rng.integers(0, NODES, (2, EDGES)) for relation in relations},
        edge_features={relation: rng.random((EDGES, 2), dtype=np.float32) for relation in relations},
        edge_weight={relation: rng.random(EDGES).astype(np.float32) for relation in relations},
        features={name: rng.random((NODES, 8), dtype=np.float32) for name in "ab"},
        labels={"a": rng.integers(0, 3, NODES)},
    )


def most_open(dataset: Dataset, **settings: Any) -> int:
    """Return the most files that are open at a time in an epoch, as often as one can look."""
    found, is_over = [0], threading.Event()

    def look() -> None:
        while not is_over.wait(0.0005):
            found[0] = max(found[0], len(os.listdir("/proc/self/fd")) - 1)  # noqa: PTH208 - names alone

    thread = threading.Thread(target=look)
    thread.start()
    try:
        fixed = {"batch_size": 10, "threads": 1, "memory_budget": "300MB", "cache": "5%", "epochs": 1}
        with HeteroLoader(dataset, fanouts=[2, 2, 2], **fixed, **settings) as loader:
            for _ in loader:
                pass
    finally:
        is_over.set()
        thread.join()
    return found[0]


@pytest.mark.reliability("S12")
@pytest.mark.reliability("B13")
@pytest.mark.parametrize("way", WAYS)
def test_a_run_opens_no_more_files_than_were_counted_at_its_door(
    dataset: Dataset, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = machine._num_open()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (before, hard))
    counted: list[int] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: counted.append(limits[0]))
    most = most_open(dataset, **WAYS[way])
    assert before + RELATIONS < most <= max(counted)
    assert max(counted) - before < 16 * RELATIONS + 150  # a bound that refuses no run that would go


@pytest.mark.reliability("S12")
@pytest.mark.reliability("B13")
def test_too_many_relations_for_the_limit_are_refused_before_a_file_is_opened(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = machine._num_open()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (before + 40, before + 40))
    with pytest.raises(StoreOpenError, match=r"files are open together, .* run `ulimit -n \d+` before"):
        most_open(dataset, **WAYS["packed"])
    assert machine._num_open() == before
