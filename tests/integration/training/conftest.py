from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from gloader.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

N, CLASSES, DIM = 240, 3, 6


@pytest.fixture(scope="session")
def communities(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A graph whose edges tell the class and whose features, full of noise, hardly do."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, N)
    by_class = [np.flatnonzero(labels == c) for c in range(CLASSES)]
    neighbors = [np.unique(rng.choice(by_class[c], 8)) for c in labels]
    indptr = np.concatenate([[0], np.cumsum([len(found) for found in neighbors])]).astype(np.int64)
    features = (np.eye(CLASSES, DIM)[labels] + rng.normal(scale=1.2, size=(N, DIM))).astype(np.float32)
    order = rng.permutation(N)
    path = tmp_path_factory.mktemp("communities") / "dataset"
    with Dataset.create(path, name="communities", num_nodes=N, num_classes=CLASSES) as writer:
        with writer.indptr() as out:
            out.append(indptr)
        with writer.indices(int(indptr[-1]), "int32") as out:
            out.append(np.concatenate(neighbors).astype(np.int32))
        with writer.features(DIM, "float32") as out:
            out.append(features)
        writer.labels(labels)
        parts = [np.sort(part) for part in np.split(order, [144, 192])]
        writer.splits(train=parts[0], valid=parts[1], test=parts[2])
    return Dataset.open(path)


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tensors this small only lose by being shared between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
