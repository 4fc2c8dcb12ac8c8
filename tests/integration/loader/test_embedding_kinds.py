"""Trained rows with each kind of batch: one type, links, queries at a time, edge features, and a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gloader
from gloader.dataset import Dataset
from gloader.device import Device
from gloader.pipeline.embed import try_with_rows
from gloader.pipeline.embedding_optimizers import SparseAdam
from gloader.pipeline.embedding_rows import slot_bytes
from gloader.testing.rehearsed_device import RehearsedDevice

from .linked import NUM_NODES, write_linked
from .trained import DIM, TorchTraining, train, weights_of, write_typed

ADAM = SparseAdam(lr=0.05)
COMMON: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 10, "memory_budget": "200MB", "seed": 2}
PLACES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "ssd": {"features": "ssd", "cache": 4096, "superbatch": 3},
}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A graph of one type with features, edge features, times and a link table."""
    return write_linked(tmp_path_factory.mktemp("linked") / "data").dataset


@contextmanager
def embedded(dataset: Dataset, name: str = "node", **settings: Any) -> Iterator[gloader.NodeEmbedding]:
    with gloader.NodeEmbedding(dataset, name, dim=DIM, optimizer=ADAM, seed=7, **settings) as embedding:
        yield embedding


def _torch_training(first: torch.Tensor, name: str = "node") -> TorchTraining:
    return TorchTraining({name: first}, lambda parameters: torch.optim.SparseAdam(parameters, lr=0.05))


def _check(dataset: Dataset, kind: Any, place: dict[str, Any], **settings: Any) -> None:
    """Train with rows in few slots, and compare with torch."""
    with kind(dataset, **settings, **COMMON) as loader:
        most = max(
            len(np.unique(batch.typed.nodes["node"]))
            for _ in range(30 if len(loader) < 30 else 9)
            for batch in loader
        )
    with embedded(dataset, cache=slot_bytes(3 * DIM) * (most + 10)) as embedding:
        first = weights_of(embedding)
        with kind(dataset, embeddings=embedding, epochs=2, **settings, **place, **COMMON) as loader:
            train(loader, [embedding], epochs=2)
        oracle = _torch_training(first)
        with kind(dataset, **settings, **COMMON) as loader:
            oracle.train(loader, epochs=2)
        assert torch.equal(weights_of(embedding), oracle.tables["node"].weight.detach())
        assert not torch.equal(weights_of(embedding), first)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_nodes_of_one_type(linked: Dataset, place: dict[str, Any]) -> None:
    _check(linked, gloader.Loader, place)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_links(linked: Dataset, place: dict[str, Any]) -> None:
    _check(linked, gloader.LinkLoader, place, edges="train", negatives="uniform:2")


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_nodes_that_repeat_in_a_batch(linked: Dataset, place: dict[str, Any]) -> None:
    """The trees of seeds with times share no nodes; torch adds the gradients of a node's places, and so do we."""
    rng = np.random.default_rng(0)
    seeds, times = rng.integers(0, NUM_NODES, 120), rng.integers(300, 1000, 120)
    settings: dict[str, Any] = {"seeds": seeds, "times": times, "time_strategy": "uniform"}
    with gloader.Loader(linked, **settings, **COMMON) as loader:
        assert any(len(np.unique(batch.nodes)) < len(batch.nodes) for batch in loader)
    _check(linked, gloader.Loader, place, **settings)


def test_rows_come_to_an_asynchronous_device_after_the_step_of_the_batch_before(
    tmp_path: Path, on_device: Callable[[Device], None]
) -> None:
    """Two batches are sent ahead, and their rows are made at the delivery."""
    dataset = write_typed(tmp_path / "typed")
    given: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 8, "seed": 3, "memory_budget": "200MB"}
    with embedded(dataset, "author") as embedding:
        first = weights_of(embedding)
    oracle = _torch_training(first, "author")

    def step(x: torch.Tensor, number: int) -> None:
        (x * (1 + number)).sin().sum().backward()

    with gloader.HeteroLoader(dataset, **given) as loader:
        table = oracle.tables["author"]
        optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.05)
        for batch in loader:
            step(table(torch.from_numpy(batch.nodes["author"])), batch.id.index)
            optimizer.step()
            optimizer.zero_grad()
    device = RehearsedDevice()
    on_device(device)
    with (
        embedded(dataset, "author") as embedding,
        gloader.HeteroLoader(
            dataset, embeddings={"author": embedding}, features="ram", device_cache=0, **given
        ) as loader,
        device.computing(),
    ):
        for batch in loader:
            step(batch.x["author"], batch.id.index)
            embedding.step(batch)
        assert torch.equal(weights_of(embedding), table.weight.detach())
    device.finish()
    assert device.faults == []


def test_a_trial_step_has_blank_rows(linked: Dataset) -> None:
    """The memory of a step is measured before any row is trained: with the columns that batches will have."""
    seen = []
    with (
        embedded(linked) as embedding,
        gloader.LinkLoader(linked, embeddings=embedding, device_dry_run=seen.append, **COMMON) as loader,
    ):
        assert not seen  # on the CPU nothing is tried
        batch = next(iterator := iter(loader))
        try_with_rows({"node": 2 * DIM}, seen.append, batch)
        (tried,) = seen
        assert tried.batch.x.shape == (len(batch.batch.nodes), batch.batch.x.shape[1] + 2 * DIM)
        assert tried.embedded["node"].is_leaf
        assert not tried.embedded["node"].detach().any()
        del iterator
