"""A training script whose two ranks a framework starts: Lightning (``ddp``, ``ddp_spawn``) or Accelerate.

Each rank writes what it saw as JSON: the seeds of its steps with a loader that was built inside the process group, and
what a loader that was built before said when it was used.

Run as ``python framework_ranks.py FRAMEWORK DATASET FOLDER``.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")  # Lightning's advice on workers, logging and deprecations of torch

import lightning  # noqa: E402
import torch  # noqa: E402
from torch import distributed  # noqa: E402

import gloader  # noqa: E402
from gloader.adapters.pyg import NeighborLoader  # noqa: E402

SETTINGS: dict[str, Any] = {"shuffle": True, "memory_budget": "64MB", "features": "ram", "threads": 1}


def build(path: str) -> NeighborLoader:
    """Return the loader of a script that says nothing about ranks."""
    dataset = gloader.Dataset.open(path)
    return NeighborLoader(dataset, [2], torch.from_numpy(dataset.train), batch_size=10, **SETTINGS)


class Module(lightning.LightningModule):
    """A linear layer on the seeds' own features; notes the seeds of each step."""

    def __init__(self, path: str, folder: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(24, 4)
        self.path, self.folder = path, Path(folder)
        self.seen: list[int] = []

    def train_dataloader(self) -> NeighborLoader:
        return build(self.path)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        self.seen += batch.n_id[: batch.batch_size].tolist()
        return torch.nn.functional.cross_entropy(self.layer(batch.x[: batch.batch_size]), batch.y)

    def on_train_end(self) -> None:
        note(self.folder, self.seen, None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def note(folder: Path, seen: list[int], refused: str | None) -> None:
    """Write what this rank saw."""
    kind = "seen" if refused is None else "refused"
    (folder / f"{kind}-{distributed.get_rank()}.json").write_text(
        json.dumps(seen if refused is None else refused)
    )


def trainer(strategy: str) -> lightning.Trainer:
    """Return a trainer of two processes on the CPU."""
    return lightning.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def with_lightning(strategy: str, path: str, folder: str) -> None:
    """Fit with the module's own loader; then with one that was built before there was a group."""
    early = build(path)
    trainer(strategy).fit(Module(path, folder))
    try:
        trainer(strategy).fit(Module(path, folder), early)
    except gloader.errors.GloaderError as error:
        if strategy == "ddp":
            note(Path(folder), [], str(error))
        else:  # the loader does not get as far as the ranks
            (Path(folder) / "refused.json").write_text(json.dumps(str(error)))


def with_accelerate(path: str, folder: str) -> None:
    """Train with a loader that is built after the ``Accelerator``, and use one that was built before."""
    from accelerate import Accelerator

    early = build_or_refused(path)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(24, 4)
    model, loader = accelerator.prepare(model, build(path))
    seen: list[int] = []
    for batch in loader:
        seen += batch.n_id[: batch.batch_size].tolist()
        accelerator.backward(model(batch.x[: batch.batch_size]).sum())
    note(Path(folder), seen, None)
    note(Path(folder), [], early)
    distributed.destroy_process_group()


def build_or_refused(path: str) -> str:
    """Return what a loader says that is built before the group, in a process that torchrun started."""
    try:
        build(path)
    except gloader.errors.ConfigError as error:
        return str(error)
    return "built"


if __name__ == "__main__":
    framework, *rest = sys.argv[1:]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if framework == "accelerate":
        with_accelerate(*rest)
    else:
        with_lightning(framework, *rest)
