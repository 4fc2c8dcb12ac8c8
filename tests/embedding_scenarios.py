"""Scenarios for ranks that train an embedding together, run by `rank_server`; and torch's embedding in their place.

The loss is that of a small network, whose weights do not change: all that is learned is in the embedding.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

import gloader
from gloader.errors import GloaderError
from gloader.loader.node_embedding import NodeEmbedding
from gloader.pipeline.embedding_optimizers import Adagrad, RowOptimizer, RowwiseAdagrad, SparseAdam
from gloader.pipeline.embedding_rows import slot_bytes

DIM = 6
CACHE_ROWS = 400  # of 600 nodes
DEFAULTS: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 8, "memory_budget": "200MB", "threads": 2}
MODES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "ssd": {"features": "ssd", "cache": 9600, "superbatch": 6},
}
OPTIMIZERS: dict[str, type[RowOptimizer]] = {
    "adagrad": Adagrad,
    "adam": SparseAdam,
    "rowwise": RowwiseAdagrad,
}


def optimizer_of(name: str) -> RowOptimizer:
    """Return an optimizer with a large step, so that rows change in all digits."""
    return OPTIMIZERS[name](lr=0.1)


def loss_of(batch: Any, leaf: torch.Tensor) -> torch.Tensor:
    """Return a loss that depends on every row of a batch, in another way for each row and label."""
    mixed = torch.sin(torch.arange(DIM * DIM, dtype=torch.float32)).reshape(DIM, DIM)
    hidden = torch.tanh(leaf @ mixed)
    block = batch.blocks[-1]
    at = torch.repeat_interleave(torch.arange(block.num_dst), torch.as_tensor(np.diff(block.indptr)))
    around = torch.zeros(len(leaf), DIM).index_add(0, at, hidden[torch.as_tensor(block.indices).long()])
    weights = 1.0 + torch.cos(torch.arange(len(leaf)))[:, None]
    of_seeds = hidden[: batch.num_seeds].sum(1) * batch.y.float()
    return ((hidden + around) * weights).square().mean() + of_seeds.mean()


def training(
    dataset: str,
    rank: int,
    world: int,
    folder: str | Path,
    *,
    mode: str = "ssd",
    optimizer: str = "adagrad",
    table: str | None = None,
    record: str | None = None,
    state: dict[str, Any] | None = None,
    stop: int | None = None,
    epochs: int = 3,
    skips: list[list[int]] | None = None,
    cache_rows: int = CACHE_ROWS,
    pause_s: float = 0.0,
    end: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train, each rank its batches; return the digests of all leaves, and on rank 0 the rows at the end.

    ``table`` keeps the embedding, with the record "first", and continues at ``record``; ``state`` is the loader's.
    After ``stop`` steps of the first epoch the ranks stop, and rank 0 writes the record "stopped". ``end`` says how a
    rank leaves a step early.
    """
    opened = gloader.Dataset.open(dataset)
    rule = optimizer_of(optimizer)
    bytes_of_row = slot_bytes(DIM + rule.state_width(DIM))
    with ExitStack() as stack:
        if record is None:
            embedding = NodeEmbedding(
                opened, dim=DIM, optimizer=rule, folder=table, cache=cache_rows * bytes_of_row
            )
        else:
            embedding = NodeEmbedding.open(opened, table, record=record, cache=cache_rows * bytes_of_row)
        stack.enter_context(embedding)
        if table is not None and record is None and rank == 0:
            embedding.checkpoint("first")
        loader = stack.enter_context(
            gloader.Loader(opened, embeddings=embedding, **(DEFAULTS | MODES[mode] | settings))
        )
        if state is not None:
            loader.load_state_dict(state)
        digests, steps = [], 0
        while loader.epoch < epochs:
            for batch in loader:
                leaf = batch.embedded[""] if "" in batch.embedded else next(iter(batch.embedded.values()))
                digests.append(digest_of(leaf))
                if end is not None and end["rank"] == rank and steps == end["step"]:
                    if end["how"] == "raise":
                        raise ValueError("boom in the loop")
                    break
                if [rank, steps] in (skips or []):
                    embedding.skip(batch)
                else:
                    loss_of(batch, leaf).backward()
                    embedding.step(batch)
                steps += 1
                (Path(folder) / f"ready-{rank}").touch()
                time.sleep(pause_s)
                if steps == stop:
                    break
            else:
                continue
            break
        saved = loader.state_dict()
        if table is not None and rank == 0:
            embedding.checkpoint("stopped")
        loader.close()
        return {
            "digests": digests,
            "state": saved,
            "num_steps": embedding.num_steps,
            "rows": embedding.rows(torch.arange(opened.num_nodes)).tolist() if rank == 0 else None,
        }


def digest_of(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's bits."""
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:16]


def expected(
    dataset: str,
    *,
    world: int,
    optimizer: str = "adagrad",
    epochs: int = 3,
    skips: list[list[int]] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train torch's embedding in this process with the batches of all ranks; digests by rank, and the rows at the end.

    A step adds the sparse gradients of the ranks' batches in rank order.
    """
    opened = gloader.Dataset.open(dataset)
    with NodeEmbedding(opened, dim=DIM, optimizer=optimizer_of(optimizer)) as first:
        weights = first.rows(torch.arange(opened.num_nodes))
    model = torch.nn.Embedding.from_pretrained(weights, freeze=False, sparse=True)
    kinds = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.SparseAdam}
    rule = kinds[optimizer](model.parameters(), lr=0.1)
    digests: list[list[str]] = [[] for _ in range(world)]
    with ExitStack() as stack:
        stack.enter_context(torch.sparse.check_sparse_tensor_invariants(enable=False))
        loaders = [
            stack.enter_context(
                gloader.Loader(opened, rank=rank, world_size=world, **(DEFAULTS | MODES["ram"] | settings))
            )
            for rank in range(world)
        ]
        steps = num_batches = 0
        for _ in range(epochs):
            for batches in zip(*loaders, strict=True):
                total = None
                for rank, batch in enumerate(batches):
                    leaf = model(torch.from_numpy(batch.nodes))
                    digests[rank].append(digest_of(leaf))
                    if [rank, num_batches] in (skips or []):
                        continue
                    model.weight.grad = None
                    loss_of(batch, leaf).backward()
                    grad = model.weight.grad.coalesce()
                    total = grad if total is None else (total + grad).coalesce()
                model.weight.grad = total
                rule.step()
                steps += total is not None
                num_batches += 1
    return {"digests": digests, "rows": model.weight.detach().tolist(), "num_steps": steps}


def evaluating(dataset: str, rank: int, world: int, folder: str | Path, **settings: Any) -> dict[str, Any]:
    """Train an epoch, evaluate with a frozen view, train another; rank 0 says what rows there are at the evaluation."""
    opened = gloader.Dataset.open(dataset)
    given = DEFAULTS | MODES["ssd"] | settings
    with NodeEmbedding(opened, dim=DIM, optimizer=Adagrad(lr=0.1)) as embedding, ExitStack() as stack:
        training_loader = stack.enter_context(gloader.Loader(opened, embeddings=embedding, **given))
        evaluated = stack.enter_context(
            gloader.Loader(opened, embeddings=embedding.frozen(), seeds=opened.valid, **given)
        )
        found = []
        for _ in range(2):
            for batch in training_loader:
                (leaf,) = batch.embedded.values()
                loss_of(batch, leaf).backward()
                embedding.step(batch)
            rows = embedding.rows(torch.arange(opened.num_nodes))
            for batch in evaluated:
                (leaf,) = batch.embedded.values()
                found.append(bool((leaf == rows[batch.nodes]).all()) and not leaf.requires_grad)
            distributed.barrier()  # no rank trains on while another one evaluates
        refused = []
        for call in (
            lambda: embedding.checkpoint("last"),
            lambda: next(embedding.pieces()),
            lambda: embedding.forget("last"),
            lambda: embedding.folder,
        ):
            try:
                call()
                refused.append("")
            except GloaderError as error:
                refused.append(f"{type(error).__name__}: {error}")
        return {"same": found, "rows": digest_of(rows), "refused": refused, "text": repr(embedding)}


def typed(
    dataset: str, rank: int, world: int, folder: str | Path, epochs: int = 2, **settings: Any
) -> dict[str, Any]:
    """Train an embedding of each type of a typed dataset; return the digests of all leaves, and the rows on rank 0."""
    opened = gloader.Dataset.open(dataset)
    with ExitStack() as stack:
        embeddings = {
            name: stack.enter_context(NodeEmbedding(opened, name, dim=3 + at, optimizer=SparseAdam(lr=0.1)))
            for at, name in enumerate(opened.node_types)
        }
        loader = stack.enter_context(
            gloader.HeteroLoader(opened, embeddings=embeddings, **(DEFAULTS | settings))
        )
        digests = []
        for _ in range(epochs):
            for batch in loader:
                digests.append([digest_of(batch.embedded[name]) for name in embeddings])
                typed_loss(batch.embedded).backward()
                for name, embedding in embeddings.items():
                    if batch.embedded[name].grad is None:
                        embedding.skip(batch)
                    else:
                        embedding.step(batch)
        rows = {}
        if rank == 0:
            rows = {
                name: each.rows(torch.arange(each.num_rows)).tolist() for name, each in embeddings.items()
            }
        return {"digests": digests, "rows": rows}


def typed_loss(leaves: Any) -> torch.Tensor:
    """Return a loss that depends on every row of all types."""
    total = torch.zeros(())
    for leaf in leaves.values():
        if len(leaf):
            weights = torch.cos(torch.arange(leaf.numel())).reshape(leaf.shape)
            total = total + (torch.sin(leaf) * weights).sum()
    return total


def expected_typed(dataset: str, *, world: int, epochs: int = 2, **settings: Any) -> dict[str, Any]:
    """Train torch's embeddings in this process, as `typed` trains those of gloader."""
    opened = gloader.Dataset.open(dataset)
    models, rules = {}, {}
    for at, name in enumerate(opened.node_types):
        with NodeEmbedding(opened, name, dim=3 + at, optimizer=SparseAdam(lr=0.1)) as first:
            weights = first.rows(torch.arange(first.num_rows))
        models[name] = torch.nn.Embedding.from_pretrained(weights, freeze=False, sparse=True)
        rules[name] = torch.optim.SparseAdam(models[name].parameters(), lr=0.1)
    digests: list[list[list[str]]] = [[] for _ in range(world)]
    with ExitStack() as stack:
        loaders = [
            stack.enter_context(
                gloader.HeteroLoader(opened, rank=rank, world_size=world, **(DEFAULTS | settings))
            )
            for rank in range(world)
        ]
        for _ in range(epochs):
            for batches in zip(*loaders, strict=True):
                totals: dict[str, torch.Tensor] = {}
                for rank, batch in enumerate(batches):
                    leaves = {
                        name: model(torch.from_numpy(batch.nodes[name])) for name, model in models.items()
                    }
                    digests[rank].append([digest_of(leaf) for leaf in leaves.values()])
                    for model in models.values():
                        model.weight.grad = None
                    typed_loss(leaves).backward()
                    for name, model in models.items():
                        if model.weight.grad is not None:
                            grad = model.weight.grad.coalesce()
                            totals[name] = (totals[name] + grad).coalesce() if name in totals else grad
                for name, model in models.items():
                    model.weight.grad = totals.get(name)
                    rules[name].step()
    rows = {name: model.weight.detach().tolist() for name, model in models.items()}
    return {"digests": digests, "rows": rows}


def refused(
    dataset: str, rank: int, world: int, folder: str | Path, odd: dict[str, Any], **settings: Any
) -> None:
    """Build a loader that cannot train an embedding; ``odd`` has arguments of the embedding on rank 1."""
    opened = gloader.Dataset.open(dataset)
    machine = settings.pop("machines", None)
    if machine is not None:
        os.environ["GLOADER_MACHINE"] = machine[rank]
    given = {"dim": DIM} | (odd if rank == 1 else {})
    with (
        NodeEmbedding(opened, **given) as embedding,
        gloader.Loader(opened, embeddings=embedding, **(DEFAULTS | settings)) as loader,
    ):
        next(iter(loader))


def slow_step(dataset: str, rank: int, world: int, folder: str | Path, slow: int, **settings: Any) -> None:
    """Let all ranks but ``slow`` wait in a step, for two seconds."""
    opened = gloader.Dataset.open(dataset)
    with (
        NodeEmbedding(opened, dim=DIM, optimizer=Adagrad(lr=0.1)) as embedding,
        gloader.Loader(opened, embeddings=embedding, **(DEFAULTS | MODES["ram"] | settings)) as loader,
    ):
        for batch in loader:
            (leaf,) = batch.embedded.values()
            loss_of(batch, leaf).backward()
            (Path(folder) / f"ready-{rank}").touch()
            if rank == slow:
                time.sleep(2)
            embedding.step(batch)
