"""Graphs with trained rows, and their training by torch's own embeddings as the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import gloader
from gloader.types import HeteroReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from gloader.dataset import Dataset
    from gloader.loader.base import BatchLoader

DIM, EPOCHS = 4, 3
PAPERS, AUTHORS, FEATURES = 400, 600, 3
SAMPLING: dict[str, Any] = {"batch_size": 8, "seed": 3}


def write_typed(path: Path) -> Dataset:
    """Write papers with features and labels, and authors without features."""
    rng = np.random.default_rng(1)
    writes = np.stack([rng.integers(0, AUTHORS, 2400), rng.integers(0, PAPERS, 2400)])
    return gloader.Dataset.from_numpy_hetero(
        path,
        num_nodes={"paper": PAPERS, "author": AUTHORS},
        features={"paper": rng.standard_normal((PAPERS, FEATURES)).astype(np.float32)},
        labels={"paper": rng.integers(0, 3, PAPERS)},
        edges={
            ("author", "writes", "paper"): writes,
            ("paper", "by", "author"): writes[::-1].copy(),
            ("paper", "cites", "paper"): rng.integers(0, PAPERS, (2, 1800)),
        },
        train=np.arange(90),
        valid=np.arange(90, 120),
        test=np.arange(120, PAPERS),
    )


def loss_of(batch: HeteroReadyBatch, x: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a number that depends on each row of ``x``, with other gradients for each row and batch."""
    total = torch.zeros(())
    for number, (name, rows) in enumerate(x.items()):
        weights = torch.linspace(-1, 1, rows.shape[1] * 2).reshape(rows.shape[1], 2)
        total = total + ((rows @ weights).tanh() + number).pow(2).sum()
        total = total + (rows * (1 + batch.id.index + len(name))).sin().sum()
    return total


def train(
    loader: BatchLoader[Any], embeddings: Iterable[gloader.NodeEmbedding], epochs: int = EPOCHS
) -> None:
    """Train for some epochs."""
    for _ in range(epochs):
        for batch in loader:
            loss_of(batch.typed, batch.typed.x).backward()
            for embedding in embeddings:
                embedding.step(batch)


def weights_of(embedding: gloader.NodeEmbedding) -> torch.Tensor:
    """Return all present weights."""
    return embedding.rows(np.arange(embedding.num_rows))


class TorchTraining:
    """The same training by ``torch.nn.Embedding(sparse=True)``.

    Parameters
    ----------
    first : the first weights by type
    make : makes the optimizer of one table
    """

    def __init__(
        self,
        first: Mapping[str, torch.Tensor],
        make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.tables = {
            name: torch.nn.Embedding.from_pretrained(rows.clone(), freeze=False, sparse=True)
            for name, rows in first.items()
        }
        self._optimizers = [make(list(table.parameters())) for table in self.tables.values()]

    def step(self, batch: HeteroReadyBatch) -> None:
        """Train on a batch of a loader without embeddings."""
        x = dict(batch.x)
        for name, table in self.tables.items():
            x[name] = torch.cat([x[name], table(torch.from_numpy(batch.nodes[name]))], 1)
        loss_of(batch, x).backward()
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def train(self, loader: BatchLoader[Any], epochs: int = EPOCHS) -> dict[str, torch.Tensor]:
        """Train for some epochs, and return the weights by type."""
        for _ in range(epochs):
            for batch in loader:
                self.step(batch.typed)
        return {name: table.weight.detach() for name, table in self.tables.items()}
