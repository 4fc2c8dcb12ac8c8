"""Scenarios for the ranks of a training test; run by `rank_server`, each function on every rank.

Run as a script, it is that server, with these scenarios instead of its own.
"""

import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from typed_batches import full_batch, random_edges, small_schema

from gloader.cli.main import main
from gloader.config import (
    EmbedConfig,
    KnowledgeConfig,
    LinkConfig,
    LoaderSettings,
    ModelConfig,
    OptimConfig,
    StepConfig,
    TrainSettings,
)
from gloader.dataset import Dataset
from gloader.distributed.exchange import notes
from gloader.distributed.exchange.exchange import Exchange
from gloader.errors import RankError
from gloader.loader import Loader
from gloader.models import build_hetero_model
from gloader.training import rank_watch, run_inference
from gloader.training.group import RankGroup
from gloader.training.replica import Replica
from gloader.training.train import RunFiles, fit
from gloader.training.train_step import build_optimizer
from gloader.types import ReadyBatch

MODEL = ModelConfig(hidden=8, dropout=0.0)
OPTIM = OptimConfig(epochs=3, lr=0.01)
LOADER = LoaderSettings.of(fanouts=(4, 3), batch_size=16, threads=1, memory_budget=900_000_000)


def warm_up(dataset: str) -> None:
    """Import what ranks need, torch's compiler for DDP above all, and load every kernel."""
    for name in ("torch._dynamo", "torch.distributed.checkpoint"):
        importlib.import_module(name)
    train(dataset)
    train(dataset, loader={"features": "ssd", "cache": 9600})


class TroubledLoader(Loader):
    """Does something else instead of handing out one batch."""

    signals = {"killed": signal.SIGKILL, "stands still": signal.SIGSTOP, "interrupted": signal.SIGINT}  # noqa: RUF012

    trouble = ""
    at = (0, 0)

    def __iter__(self) -> Iterator[ReadyBatch]:
        for batch in super().__iter__():
            if self.trouble and (batch.id.epoch, batch.id.index) == self.at:
                if self.trouble in self.signals:
                    os.kill(os.getpid(), self.signals[self.trouble])
                raise OSError("boom in the loop")
            yield batch


def train(
    dataset: str,
    *,
    rank: int = 0,
    world: int = 1,
    folder: Path | None = None,
    model: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
    trouble: str = "",
    on: int = 1,
    at: tuple[int, int] = (1, 2),
    odd: dict[str, Any] | None = None,
    sharing: Any = "auto",
    out: str | None = None,
    links: dict[str, Any] | None = None,
    task: Any = "node",
    table: str | None = None,
    embed: dict[str, Any] | None = None,
    **files: Any,
) -> dict[str, Any]:
    """Train, and return what came of it; with ``trouble`` on one rank, or ``odd`` settings of the model on rank 1."""
    if rank == on:
        TroubledLoader.trouble, TroubledLoader.at = trouble, tuple(at)
    model = (model or {}) | ((odd or {}) if rank == 1 else {})
    opened = Dataset.open(dataset)
    found = fit(
        opened,
        TrainSettings(
            model=replace(MODEL, **model),
            optim=replace(OPTIM, **(optim or {})),
            step=StepConfig(**(step or {})),
            loader=LOADER.changed(sharing=sharing, **(loader or {})),
            task=task if links is None else "link",
            links=LinkConfig(**(links or {})),
            table=table,
            embed=EmbedConfig(**(embed or {})),
        ),
        files=RunFiles(out=None if out is None else Path(out), **files),
        loader_factory=TroubledLoader.from_settings
        if opened.kind == "homogeneous" and links is None and "balance" not in (optim or {})
        else None,
    )
    run = found.runs[0]
    return {
        "losses": [record.loss for record in run.epochs],
        "accuracies": [[record.train_acc, record.valid_acc] for record in run.epochs],
        "test_acc": run.test_acc,
        "seeds": [record.stats.seeds for record in run.epochs],
        "batches": [record.stats.batches for record in run.epochs],
        "rows": sum(record.stats.rows_gathered for record in run.epochs),
        "device_hits": sum(record.stats.device_hits for record in run.epochs),
        "summary": {name: found.summary[name] for name in ("best_epoch", "rank_peak_rss_bytes")},
        "model": asdict(replace(MODEL, **model)),
    }


def train_apart(
    *, rank: int, world: int, dataset: str, folder: Path, base: str, **settings: Any
) -> dict[str, Any]:
    """Train into a folder of this rank alone; tell, beside what came of it, the position of each checkpoint."""
    positions: list[tuple[int, int]] = []
    found = train(
        dataset,
        rank=rank,
        world=world,
        out=f"{base}/of-rank-{rank}",
        resume=True,
        is_shared=False,
        on_checkpoint=lambda checkpoint: positions.append(checkpoint.position),
        **settings,
    )
    return found | {"positions": positions}


def train_on_machines(
    *,
    rank: int,
    dataset: str,
    names: list[str],
    datasets: list[str] | None = None,
    dies_serving: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train on the machine ``names[rank]``, with its dataset; kill a rank as it serves one that evaluates."""
    os.environ["GLOADER_MACHINE"] = names[rank]
    notes.PATIENCE_S = 2.0
    if rank == dies_serving:
        serve = run_inference.serve_rows

        def die_serving(exchange: Exchange, **how: Any) -> None:
            Exchange.fetch = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
            serve(exchange, **how)

        run_inference.serve_rows = die_serving
    return train(dataset if datasets is None else datasets[rank], rank=rank, **settings)


def commanded(
    *, rank: int, world: int, dataset: str, folder: Path, names: list[str], port: int, words: list[str]
) -> dict[str, Any]:
    """Run the command line on the machine ``names[rank]``, ready after two epochs; return status and threads left."""
    distributed.barrier()  # both have met: a group that is left at once fails where it is still being made
    distributed.destroy_process_group()
    places = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in places.items()} | {"GLOADER_MACHINE": names[rank]}
    notes.PATIENCE_S = 2.0
    metrics = Path(words[words.index("--out") + 1]) / "metrics.jsonl"

    def get_ready() -> None:
        while not metrics.exists() or metrics.read_text().count("\n") < 2:
            time.sleep(0.02)
        (folder / f"ready-{rank}").touch()

    threading.Thread(target=get_ready, daemon=True).start()
    status = main(["train", "--dataset", dataset, *words])
    threads = [one.name for one in threading.enumerate() if one.name.startswith("gloader")]
    return {"status": status, "threads": threads}


def typed_steps(*, rank: int, world: int, dataset: str, folder: Path) -> list[Any]:
    """Return the weights after steps on batches of several types: each rank on its own, or one on all of them."""
    group = RankGroup.current() if world > 1 else RankGroup.alone()
    schema = small_schema()
    torch.manual_seed(0)
    config = ModelConfig(name="rgat", hidden=8, heads=2, dropout=0.0)
    model = build_hetero_model(config, schema, out_dim=3, num_layers=2)
    replica = Replica(model, StepConfig(), group, num_steps=2)
    optimizer = build_optimizer(OptimConfig(lr=0.05), model.parameters())
    x = {
        name: torch.randn(count, schema.feature_dims[name], generator=torch.Generator().manual_seed(1))
        for name, count in schema.num_nodes.items()
    }
    edges = random_edges(schema, seed=3, num_edges=3)
    found = {}
    for step, seeds in enumerate(([[4], [0]], [[1], [2]])):
        own = [seeds[rank]] if world > 1 else seeds
        optimizer.zero_grad()
        for ids in own:
            batch = full_batch(schema, edges, ids, num_hops=2, x=x, y=[ids[0] % 3])
            _, loss = replica.forward(batch)
            replica.backward(loss / len(own), num_seeds=1, is_last=False)
        # Beside the weights: Adam hardly sees the scale of a gradient.
        found |= {
            f"{name}, gradient {step}": p.grad for name, p in model.named_parameters() if p.grad is not None
        }
        optimizer.step()
    found |= model.state_dict()
    return [{name: value.to_dense().tolist() for name, value in found.items()}]


def announced(dataset: str, **settings: Any) -> list[str]:
    """Return what is logged on a rank while training fails."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("gloader").addHandler(Handler(logging.ERROR))
    try:
        train(dataset, **settings)
    except Exception as error:
        lines.append(f"raised {type(error).__name__}: {error}")
    return lines


def working(*, rank: int, dataset: str, world: int, folder: Path) -> list[Any]:
    """Return what ranks hear of work of the first one that takes several signs of life, and of work that fails."""
    group = RankGroup.current()

    def work() -> list[int]:
        time.sleep(1.3)
        return [rank, 7]

    def fail() -> None:
        raise ValueError("no such thing")

    found: list[Any] = [group.run_on_first(work), group.sum({"a": 0.1 * (rank + 1)})]
    try:
        group.run_on_first(fail)
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    error = OSError("only here") if rank == 1 else None
    try:
        group.agree(error)
    except Exception as raised:
        found.append(f"{type(raised).__name__}: {raised}")
    return found


def leaving(*, rank: int, dataset: str, world: int, folder: Path) -> None:
    """Wait for another rank that ends without a word."""
    group = RankGroup.current()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.gather(rank)


def on_devices(*, rank: int, dataset: str, world: int, folder: Path) -> list[Any]:
    """Wait for a rank that is killed, as for GPUs: only an abort of the process group ends that."""
    group = RankGroup.current()
    aborted = threading.Event()
    rank_watch._abort = lambda **_: aborted.set()
    began = time.monotonic()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        with group.watching():
            if not aborted.wait(15.0):
                raise TimeoutError("nobody aborted the process group")
            raise RuntimeError("CUDA error: unspecified launch failure")
    except RankError as error:
        seconds = time.monotonic() - began
        time.sleep(1.0)  # as `gloader train` does: the others hear of the lost rank first
        return [str(error), seconds]


def done_first(*, rank: int, dataset: str, world: int, folder: Path) -> bool:
    """Return whether a rank that was done, and ended, counted as lost."""
    group = RankGroup.current()
    aborted = threading.Event()
    rank_watch._abort = lambda **_: aborted.set()
    rank_watch._LOOK_EVERY_S = 0.02
    gather = group.gather

    def late(value: Any) -> list[Any]:
        found = gather(value)
        if rank == 0:
            time.sleep(0.3)
        return found

    group.gather = late
    with group.watching():
        pass
    return aborted.is_set()


def knowledge(
    dataset: str, *, rank: int, world: int, folder: Path, out: str, epochs: int, resume: bool
) -> Any:
    """Train on a knowledge graph; return the losses, and the mean reciprocal rank of the test's triples."""
    settings = TrainSettings(
        task="kg",
        model=ModelConfig(name="complex"),
        optim=OptimConfig(epochs=epochs),
        loader=LoaderSettings.of(fanouts=(5, 5), batch_size=32, threads=1, memory_budget=1_500_000_000),
        links=LinkConfig(negatives="uniform:16,shared"),
        knowledge=KnowledgeConfig(dim=8),
        embed=EmbedConfig(lr=0.1),
    )
    (run,) = fit(Dataset.open(dataset), settings, files=RunFiles(out=Path(out), resume=resume)).runs
    return [epoch.loss for epoch in run.epochs], run.test_acc


if __name__ == "__main__":
    import rank_server

    sys.modules["rank_scenarios"] = sys.modules["__main__"]
    rank_server._serve(sys.argv[1])
