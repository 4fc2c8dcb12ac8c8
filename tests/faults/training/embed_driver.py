"""Runs with embeddings that are killed at changes of the disk, and resumed; run as a program, prints one JSON line.

embed_driver.py FOLDER STEP [CALL ...]    kill a run before every STEP-th change, resume each, and compare it with a
                                          whole run; a change is one of the named system calls, or of all
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gloader.config import EmbedConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.ssd_store.os_io import OsIO
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.train import RunFiles, fit

CHANGES = (
    "write",
    "pwrite",
    "fsync",
    "fsync_dir",
    "mkdir",
    "link",
    "replace",
    "rename_noreplace",
    "unlink",
    "rmtree",
)
SETTINGS = TrainSettings(
    model=ModelConfig(name="rsage", hidden=4, dropout=0.0),
    optim=OptimConfig(epochs=2, lr=0.02, checkpoint_every=2),
    # A cache of a few batches, so that rows come from runs.
    embed=EmbedConfig(dims={"a": 3, "b": 2}, lr=0.3, cache=0.5),
    loader=LoaderSettings.of(fanouts=(2, 1), batch_size=6, threads=1, memory_budget=1_500_000_000),
)


def make_dataset(folder: Path) -> Dataset:
    """Return 40 nodes of one type with labels, and 60 of another, without features."""
    random = np.random.default_rng(0)
    pairs = np.stack([random.integers(0, 60, 200), random.integers(0, 40, 200)])
    return Dataset.from_numpy_hetero(
        folder,
        num_nodes={"a": 40, "b": 60},
        features={},
        edges={("b", "to", "a"): pairs, ("a", "of", "b"): pairs[::-1].copy()},
        labels={"a": np.arange(40) % 2},
        train=np.arange(24),
        valid=np.arange(24, 32),
        test=np.arange(32, 40),
    )


def train(dataset: Dataset, out: Path) -> list[Any]:
    """Train, or resume, and return all figures that depend on the bits of the rows."""
    run = fit(dataset, SETTINGS, files=RunFiles(out=out, resume=True)).runs[0]
    return [run.test_acc, *([each.loss, each.valid_acc] for each in run.epochs)]


def count_changes(kill_at: int, calls: Sequence[str]) -> list[int]:
    """Count changes of the disk from now on, in a list of one number; the process ends before number ``kill_at``."""
    count, lock = [0], threading.Lock()

    def stepping(name: str) -> Any:
        real = getattr(OsIO, name)

        def call(self: OsIO, *given: Any, **keywords: Any) -> Any:
            with lock:
                count[0] += 1
                if count[0] == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *given, **keywords)

        return call

    for name in calls:
        setattr(OsIO, name, stepping(name))
    return count


def in_child(
    dataset: Dataset, out: Path, *, kill_at: int = 0, calls: Sequence[str] = CHANGES
) -> dict[str, Any] | None:
    """Train in a child; return its figures and its changes of the disk, or None if it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            count = count_changes(kill_at, calls)
            found = {"figures": train(dataset, out), "changes": count[0]}
            os.write(writer, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return None if os.WIFSIGNALED(status) else json.loads(text or b"{}")


def untidy(out: Path) -> list[str]:
    """Return what the folder's embeddings have besides the records that the checkpoint names."""
    saved = load_checkpoint(out).embeddings
    assert saved is not None
    names = [path.name for path in out.glob("embeddings*") if path != saved.folder]
    for name in ("a", "b"):
        records = {path.name.partition(".")[0] for path in (saved.folder / name).glob("0*")}
        names += sorted(records ^ {saved.present, saved.best})
    return names


def main(folder: Path, step: int, calls: Sequence[str]) -> None:
    """Kill before every ``step``-th of the ``calls`` of a whole run."""
    dataset = make_dataset(folder / "dataset")
    whole = in_child(dataset, folder / "whole", calls=calls)
    assert whole is not None
    kills, wrong, rest = 0, [], untidy(folder / "whole")
    for number in range(1 + step // 2, whole["changes"] + 1, step):
        out = folder / f"{number}"
        kills += in_child(dataset, out, kill_at=number, calls=calls) is None
        resumed = in_child(dataset, out)
        if resumed is None or resumed.get("figures") != whole["figures"]:
            wrong.append(number)
        rest += untidy(out)
    print(json.dumps({"changes": whole["changes"], "kills": kills, "wrong": wrong, "rest": rest}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or CHANGES)
