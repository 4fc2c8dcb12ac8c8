"""One contender of the comparison, in a process of its own; prints a JSON line for the start and for each epoch.

compare_child.py '{"system": "dgl", "dataset": ..., ...}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare_streams import GloaderStream

    from gloader.models import GraphNetwork

_NAMES = ("sample_s", "gather_s", "compute_s", "wait_s")


def main() -> None:
    """Train as the job of the command line says."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    if job["settings"].get("idle_threads") != "spin":  # read when torch is imported
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from gloader.errors import GloaderError

    try:
        train(job)
    except GloaderError as error:
        say("cannot", reason=f"{type(error).__name__}: {error}")


def train(job: dict[str, Any]) -> None:
    """Train epoch by epoch, until they are done or the time is up."""
    import numpy as np
    import torch
    from compare_streams import open_stream

    from gloader import Dataset

    began, read = time.perf_counter(), io_bytes()
    dataset = Dataset.open(job["dataset"])
    seeds = np.load(job["seeds"])
    torch.manual_seed(job["seed"])
    model = make_model(job, dataset.feature_dim, dataset.num_classes)
    stream = open_stream(dataset, seeds, job)
    try:
        say("start", seconds=time.perf_counter() - began, bytes_read=io_bytes()[0] - read[0])
        _train_epochs(job, model, stream, num_batches=-(-len(seeds) // job["batch_size"]))
        if job["system"] == "gloader":
            loader: GloaderStream = stream  # type: ignore[assignment]
            say("explain", **loader.explain())
    finally:
        stream.close()
    say("end", peak_resident_bytes=peak_resident_bytes())


def _train_epochs(job: dict[str, Any], model: GraphNetwork, stream: Any, *, num_batches: int) -> None:
    import numpy as np
    import torch
    from torch.nn import functional

    from gloader.config import OptimConfig
    from gloader.training.train_step import build_optimizer

    optimizer = build_optimizer(OptimConfig(lr=job["lr"]), model.parameters())
    deadline = time.perf_counter() + job["deadline_s"]
    for epoch in range(job["epochs"]):
        spent = dict.fromkeys(_NAMES, 0.0)
        moved, began = io_bytes(), time.perf_counter()
        asked, count, total = began, 0, 0.0
        for x, y, blocks in stream.epoch():
            got = time.perf_counter()
            if job.get("computes", True):
                loss = functional.cross_entropy(model(x, blocks), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += float(loss.detach())
                del loss
            done = time.perf_counter()
            spent["wait_s"] += got - asked
            spent["compute_s"] += done - got
            asked, count = done, count + 1
            del x, y, blocks
            if done > deadline:
                break
        seconds, now = time.perf_counter() - began, io_bytes()
        parts = stream.parts()
        if job["system"] != "gloader":  # these work in the same thread: what they took is no waiting
            converting = parts.pop("convert_s", 0.0)  # the convolutions of the system do it as well
            spent["compute_s"] += converting
            spent["wait_s"] -= converting + sum(parts.get(name, 0.0) for name in ("sample_s", "gather_s"))
        is_whole = count == num_batches
        if is_whole:
            vector = torch.nn.utils.parameters_to_vector(model.parameters())
            np.save(Path(job["weights"]) / f"{epoch}.npy", vector.detach().numpy())
        say(
            "epoch",
            epoch=epoch,
            batches=count,
            num_batches=num_batches,
            seconds=seconds,
            loss=total / max(count, 1),
            bytes_read=now[0] - moved[0],
            bytes_written=now[1] - moved[1],
            **(spent | parts),
        )
        if not is_whole or time.perf_counter() > deadline:
            return


def make_model(job: dict[str, Any], in_dim: int, num_classes: int) -> GraphNetwork:
    """Return the network that all train: our GraphSAGE, without dropout."""
    from gloader.config import ModelConfig
    from gloader.models import build_model

    config = ModelConfig(name="graphsage", hidden=job["hidden"], dropout=0.0)
    return build_model(config, in_dim=in_dim, out_dim=num_classes, num_layers=len(job["fanouts"]))


def say(event: str, **values: Any) -> None:
    """Print one line for the parent; what was said stays known if this process is killed."""
    print(json.dumps({"event": event, **values}), flush=True)


def io_bytes() -> tuple[int, int]:
    """Return the bytes that this process made the disk read and write so far."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    fields = dict(line.split(": ") for line in lines)
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def peak_resident_bytes() -> int:
    """Return the largest resident set of this process."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
