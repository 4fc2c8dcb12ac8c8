"""One contender of `embeddings.py`, in a process of its own: phases of epochs with the seconds and bytes of each.

    embedding_child.py '{"part": "train", "contender": "planned", ...}'

All contenders take the same batches of gloader's loader. A phase is "load", where every value of the gradient is 1 and
no network computes, or "model", with R-SAGE. Its first epoch is not counted: it fills caches and compiles kernels.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from embedding_baselines import OnDemandRows, make_flat_file, plain_rowwise

import gloader
from gloader import Dataset, HeteroLoader
from gloader.config import ModelConfig, OptimConfig
from gloader.models import build_hetero_model
from gloader.training.model_spec import schema_of
from gloader.training.train_step import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.types import HeteroReadyBatch

LR: Final = 0.01


class Contender(Protocol):
    """A way to hold trained rows."""

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        """Yield an epoch's batches, each with the rows of the trained type, a tensor that takes gradients."""
        ...

    def step(self) -> None:
        """Change the rows of the batch that came last by their gradients."""
        ...

    def counts(self) -> dict[str, int]:
        """Return what was loaded and written since the start, in rows and bytes."""
        ...

    def finish(self) -> dict[str, Any]:
        """Return figures of the end, such as the seconds of a checkpoint."""
        ...


class Planned:
    """gloader's own rows, on the SSD with a cache or all in slots."""

    def __init__(self, data: Dataset, job: dict[str, Any]) -> None:
        optimizers = {
            "rowwise-adagrad": lambda: gloader.RowwiseAdagrad(lr=LR),
            "adagrad": lambda: gloader.Adagrad(lr=LR),
            "sparse-adam": lambda: gloader.SparseAdam(lr=LR),
        }
        self._type, self._job = job["type"], job
        self.rows = gloader.NodeEmbedding.open(data, Path(job["table"]))
        self.loader = _loader(data, job, embeddings={self._type: self.rows})
        del optimizers

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        for batch in self.loader:
            self._batch = batch
            yield batch, batch.embedded[self._type]

    def step(self) -> None:
        self.rows.step(self._batch)

    def counts(self) -> dict[str, int]:
        return {}

    def finish(self) -> dict[str, Any]:
        began = time.perf_counter()
        self.rows.checkpoint()
        return {"checkpoint_s": time.perf_counter() - began}


class OnDemand:
    """Rows that are read from a file when a batch needs them, and written when they leave their slots."""

    def __init__(self, data: Dataset, job: dict[str, Any]) -> None:
        self._type = job["type"]
        width = _width(job)
        self._rows = OnDemandRows(Path(job["flat"]), data.node_tables[self._type].num_nodes, width, job["cache_bytes"])
        table = torch.from_numpy(self._rows.slots)
        self._weights, self._state = table[:, : job["dim"]], table[:, job["dim"] : width]
        self.loader = _loader(data, job)

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        for batch in self.loader:
            self._slots = torch.from_numpy(self._rows.take(batch.nodes[self._type]))
            self._leaf = self._weights[self._slots].requires_grad_()
            yield batch, self._leaf

    def step(self) -> None:
        assert self._leaf.grad is not None
        plain_rowwise(self._weights, self._state, self._slots, self._leaf.grad, LR, 1e-8)

    def counts(self) -> dict[str, int]:
        return self._rows.counts()

    def finish(self) -> dict[str, Any]:
        return {}


class InTorch:
    """A table of torch in memory, with torch's own sparse optimizer; FBGEMM's rule in plain operations."""

    def __init__(self, data: Dataset, job: dict[str, Any]) -> None:
        self._type, name = job["type"], job["optimizer"]
        self._table = torch.nn.Embedding(data.node_tables[self._type].num_nodes, job["dim"], sparse=True)
        torch.nn.init.uniform_(self._table.weight, -0.1, 0.1)
        self._optimizer: torch.optim.Optimizer | None = None
        if name == "adagrad":
            self._optimizer = torch.optim.Adagrad(self._table.parameters(), lr=LR)
        elif name == "sparse-adam":
            self._optimizer = torch.optim.SparseAdam(list(self._table.parameters()), lr=LR)
        else:
            self._state = torch.zeros(len(self._table.weight), 1)
        self.loader = _loader(data, job)

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        for batch in self.loader:
            yield batch, self._table(torch.from_numpy(batch.nodes[self._type]))

    def step(self) -> None:
        weight = self._table.weight
        if self._optimizer is not None:
            self._optimizer.step()
        else:
            assert weight.grad is not None
            with torch.no_grad():
                grad = weight.grad  # a batch's rows are distinct: nothing has to be summed
                plain_rowwise(weight, self._state, grad._indices()[0], grad._values(), LR, 1e-8)
        weight.grad = None

    def counts(self) -> dict[str, int]:
        return {}

    def finish(self) -> dict[str, Any]:
        return {}


CONTENDERS: Final[dict[str, Callable[[Dataset, dict[str, Any]], Contender]]] = {
    "planned": Planned,
    "planned, all in slots": Planned,
    "on demand": OnDemand,
    "torch": InTorch,
}


def main() -> None:
    """Do the job of the command line and print its figures as JSON."""
    job = json.loads(sys.argv[1])
    print(json.dumps(PARTS[job["part"]](job)))


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Run the phases; return a list with the figures of each epoch, and those of the end."""
    data = Dataset.open(job["dataset"])
    torch.manual_seed(0)
    contender = CONTENDERS[job["contender"]](data, job)
    epochs = []
    watch = Watch()
    for phase in job["phases"]:
        compute = _ones if phase["mode"] == "load" else _model_step(data, job)
        for number in range(phase["epochs"]):
            watch.begin()
            before, began = {**io_bytes(), **contender.counts()}, time.perf_counter()
            num_batches = num_rows = 0
            for batch, rows in contender.batches():
                compute(batch, rows)
                contender.step()
                num_batches += 1
                num_rows += len(rows)
                if num_batches == phase.get("batches"):
                    break
            seconds = time.perf_counter() - began
            after = {**io_bytes(), **contender.counts()}
            found = {name: after[name] - before[name] for name in after}
            found |= {"mode": phase["mode"], "counts": number > 0, "seconds": seconds, "batches": num_batches}
            epochs.append(found | {"rows": num_rows, "anonymous_bytes": watch.peak})
    watch.stop()
    return {"epochs": epochs, "load": os.getloadavg()[0], **contender.finish()}


def _ones(batch: HeteroReadyBatch, rows: torch.Tensor) -> None:  # noqa: ARG001 - as a network's step
    rows.backward(torch.ones_like(rows))


def _model_step(data: Dataset, job: dict[str, Any]) -> Callable[[HeteroReadyBatch, torch.Tensor], None]:
    schema = schema_of(data)
    schema = replace(schema, feature_dims={**schema.feature_dims, job["type"]: job["dim"]})
    model = build_hetero_model(
        ModelConfig(name="rsage", hidden=job["hidden"]),
        schema,
        out_dim=data.num_classes,
        num_layers=len(job["fanouts"]),
    )
    optimizer = build_optimizer(OptimConfig(lr=LR), model.parameters())

    def step(batch: HeteroReadyBatch, rows: torch.Tensor) -> None:
        typed = replace(batch, x={**batch.x, job["type"]: rows})
        loss = torch.nn.functional.cross_entropy(model(typed), batch.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _loader(data: Dataset, job: dict[str, Any], **more: Any) -> HeteroLoader:
    return HeteroLoader(
        data,
        fanouts=tuple(job["fanouts"]),
        batch_size=job["batch_size"],
        seeds=data.train[: job["batch_size"] * job["num_batches"]],
        memory_budget=job["memory_budget"],
        **job.get("settings", {}),
        **more,
    )


def _width(job: dict[str, Any]) -> int:
    dim: int = job["dim"]
    return {"rowwise-adagrad": dim + 1, "adagrad": 2 * dim, "sparse-adam": 3 * dim}[job["optimizer"]]


class Watch:
    """Samples this process's anonymous memory until stopped."""

    def __init__(self) -> None:
        self.peak = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gloader-bench-watch")
        self._thread.start()

    def begin(self) -> None:
        """Begin a new peak."""
        self.peak = anonymous_bytes()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.02):
            self.peak = max(self.peak, anonymous_bytes())


def anonymous_bytes() -> int:
    """Return this process's anonymous resident memory."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def io_bytes() -> dict[str, int]:
    """Return the bytes that this process made the disk read and write so far."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text("ascii").splitlines())
    return {name: int(value) for name, value in lines if name in ("read_bytes", "write_bytes")}


def loaded(job: dict[str, Any]) -> dict[str, int]:  # noqa: ARG001 - as all parts
    """Return what a process holds that has loaded all modules."""
    return {"anonymous_bytes": anonymous_bytes()}


PARTS: Final = {"train": train, "loaded": loaded}

if __name__ == "__main__":
    main()
