"""Batches are those of the versions before: digests that no change of the code may change.

Of node ids and edges, over two epochs, with features and edges in memory and on the SSD. They were taken before the
code was given its rooms; whoever has to change one changes every result that was ever reproduced by its seed.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader

NODES, EDGES = 3_000, 36_000
FROM_SSD: dict[str, Any] = {"features": "ssd", "cache": 16 * 300, "superbatch": 3, "io_strategy": "packed"}
GOLDEN: list[tuple[dict[str, Any], str]] = [
    ({"fanouts": [4, 3], "layout": "layered"}, "0090886f8f389948d76dd25fbd8f2310"),
    ({"fanouts": [4, 3], "layout": "merged"}, "f7f193c2e20d8084031af5de6d702033"),
    ({"fanouts": [4, 3], "sampler": "labor"}, "95e21ddd335a888dae16d719ec4da794"),
    ({"fanouts": [64, 64], "sampler": "ladies"}, "c0425cfe2dcc346ad6b2fd61a4f4dc4e"),
    ({"fanouts": [64, 64], "sampler": "fastgcn"}, "c592c1105a3f05dfa99fd5af9ddd5799"),
    ({"fanouts": [4, 3], "sampler": "weighted"}, "1ae994ac60c5852f15bb6174901092f0"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with hubs, made by whole-number arithmetic, which is the same everywhere."""
    path = tmp_path_factory.mktemp("golden") / "graph"
    edge = np.arange(EDGES, dtype=np.int64)
    source = (edge * edge * 7919 + 31 * edge) % NODES * (edge % 5) // 4
    node = np.arange(NODES, dtype=np.int64)
    gloader.Dataset.from_numpy(
        path,
        features=np.zeros((NODES, 4), dtype=np.float32),
        labels=node % 3,
        edge_index=np.stack([source, edge % NODES]),
        edge_weight=(1 + edge % 7).astype(np.float32),
        train=node[node % 4 == 0],
        valid=node[node % 4 == 1],
        test=node[node % 4 == 2],
    )
    return path


@pytest.mark.parametrize(
    "place",
    [{"features": "ram"}, FROM_SSD, {"features": "ram", "topology": "direct"}],
    ids=["memory", "ssd", "edges-read"],
)
@pytest.mark.parametrize(
    ("sampling", "digest"),
    GOLDEN,
    ids=lambda value: value if isinstance(value, str) else value.get("sampler"),
)
def test_batches_are_those_of_earlier_versions(
    path: Path,
    sampling: dict[str, Any],
    digest: str,
    place: dict[str, Any],
) -> None:
    found = hashlib.sha256()
    dataset = gloader.Dataset.open(path)
    with gloader.Loader(
        dataset, batch_size=64, seed=11, epochs=2, memory_budget="200MB", **sampling, **place
    ) as loader:
        for _ in range(2):
            for batch in loader:
                found.update(repr((batch.id.epoch, batch.id.index, batch.num_seeds)).encode())
                found.update(batch.nodes.astype(np.int64).tobytes())
                for block in batch.blocks:
                    for tensor in (block.indptr, block.indices, block.edge_ids):
                        found.update(tensor.numpy().astype(np.int64).tobytes())
    assert found.hexdigest()[:32] == digest
