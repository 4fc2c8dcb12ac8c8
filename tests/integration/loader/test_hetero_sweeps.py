"""A loader of several types whose edges are swept: the batches of edges in memory, and nothing is left behind."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gloader
from gloader.errors import ChecksumError
from gloader.ssd_store.format.format import DATA_OFFSET

from .typed import WIDTHS, TypedGraph, contents, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]
SSD = {"features": "ssd", "cache": 60 * ROW}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> TypedGraph:
    return write_typed(tmp_path_factory.mktemp("typed") / "graph")


@contextlib.contextmanager
def swept(graph: TypedGraph, spill: Path, **settings: Any) -> Iterator[gloader.HeteroLoader]:
    with open_loader(graph, topology="sweep", spill_dir=spill, **settings) as loader:
        yield loader
    assert [file for file in spill.rglob("*") if file.is_file()] == []


def everything(loader: gloader.HeteroLoader, epochs: int = 2) -> list[dict[str, Any]]:
    """The batches of some epochs, with the weights of their edges."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            weights = [
                None if block.edge_weight is None else block.edge_weight.tolist()
                for hop in batch.blocks
                for block in hop.values()
            ]
            found.append({**contents(batch), "weights": weights})
    return found


@pytest.mark.parametrize(
    ("sampling", "home"),
    [
        ({}, {"features": "ram"}),
        ({"layout": "merged"}, SSD | {"io_strategy": "packed", "superbatch": 2}),
        ({"sampler": "weighted", "layout": "merged"}, SSD | {"io_strategy": "staged", "threads": 3}),
        ({"sampler": "weighted"}, {"features": "ram"}),
        ({"sampler": "labor:normalize=true", "fanouts": [3, 0, 2]}, SSD | {"io_strategy": "direct"}),
    ],
    ids=str,
)
def test_batches_are_those_of_edges_in_memory(
    typed: TypedGraph, sampling: dict[str, Any], home: dict[str, Any], tmp_path: Path
) -> None:
    with swept(typed, tmp_path, **sampling, **home) as loader:
        found, stats = [], []
        for _ in range(2):  # a pass may serve more than an epoch
            found += everything(loader, epochs=1)
            stats.append(loader.stats)
        assert "read in sweeps" in loader.explain()
    assert sum(of_epoch.edge_passes for of_epoch in stats) > 0
    assert sum(of_epoch.edge_bytes_read for of_epoch in stats) > 0
    with open_loader(typed, topology="ram", features="ram", **sampling) as loader:
        assert found == everything(loader)


def test_a_state_goes_on_with_swept_edges(typed: TypedGraph, tmp_path: Path) -> None:
    with open_loader(typed, topology="ram", features="ram") as loader:
        expected = everything(loader, epochs=1)
    with swept(typed, tmp_path, features="ram") as loader:
        for _ in zip(range(3), loader, strict=False):
            state = json.loads(json.dumps(loader.state_dict()))
    with swept(typed, tmp_path, **SSD) as loader:
        loader.load_state_dict(state)
        assert everything(loader, epochs=1) == expected[3:]


def test_damaged_edges_of_a_relation_end_the_epoch_and_are_named(tmp_path: Path) -> None:
    graph = write_typed(tmp_path / "graph")
    (tmp_path / "spill").mkdir()
    with swept(graph, tmp_path / "spill", features="ram") as loader:
        file = tmp_path / "graph" / "relations" / "paper__cites__paper" / "indices.npy"
        content = bytearray(file.read_bytes())
        content[DATA_OFFSET] ^= 1
        file.write_bytes(content)
        with pytest.raises(ChecksumError, match="paper__cites__paper"):
            everything(loader)
