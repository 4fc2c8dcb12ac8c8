"""One contender of `embeddings.py`, in a process of its own: phases of spans with the seconds and bytes of each.

    embedding_child.py '{"part": "train", "contender": "planned", ...}'

All contenders take the same batches of gloader's loader, one after another. A span is a number of them. A phase has
some spans: "load", where every value of the gradient is 1 and no network computes, or "model", with R-SAGE. Its first
span is not counted: it fills caches and compiles kernels.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from embedding_baselines import OnDemandRows

import gloader
from gloader import Dataset, HeteroLoader
from gloader.cache.write_plan import WritePlan, WriteStep
from gloader.config import ModelConfig, OptimConfig
from gloader.models import build_hetero_model
from gloader.pipeline.embedding_optimizers import OPTIMIZERS
from gloader.ssd_store import EmbeddingTable
from gloader.training.model_spec import schema_of
from gloader.training.train_step import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.types import HeteroReadyBatch

LR: Final = 0.01


class Contender(Protocol):
    """A way to hold trained rows."""

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        """Yield batches without end, each with the rows of the trained type, a tensor that takes gradients."""
        ...

    def step(self) -> None:
        """Change the rows of the batch that came last by their gradients."""
        ...

    def counts(self) -> dict[str, int]:
        """Return what was loaded and written since the start, in rows and bytes."""
        ...

    def finish(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return figures of the end, such as the seconds of a checkpoint."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Planned:
    """gloader's own rows: on the SSD with a cache, or all in slots."""

    def __init__(self, data: Dataset, job: dict[str, Any]) -> None:
        self._type, table = job["type"], Path(job["table"])
        if "template" in job:
            self.rows = gloader.NodeEmbedding.open(data, table, cache=job["cache_bytes"])
        else:
            self.rows = _new_rows(data, job, table)
        self.loader = _loader(data, job, embeddings={self._type: self.rows}, spill_dir=job["spill"])

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        """Yield batches and leaves."""
        for batch in _endless(self.loader):
            self._batch = batch
            assert batch.embedded is not None  # noqa: S101
            yield batch, batch.embedded[self._type]

    def step(self) -> None:
        """Step."""
        self.rows.step(self._batch)

    def counts(self) -> dict[str, int]:
        """Return the counters of the rows."""
        counts = self.rows.stats
        return {
            "loads": counts.loaded_forward + counts.loaded_table + counts.loaded_late,
            "dirty_evictions": counts.evicted_forward + counts.evicted_table,
            **asdict(counts),
        }

    def finish(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the seconds of a checkpoint, and of writing the bytes of the cache."""
        written, began = self.counts()["bytes_written"], time.perf_counter()
        self.rows.checkpoint()
        seconds, written = time.perf_counter() - began, self.counts()["bytes_written"] - written
        return {"checkpoint_s": seconds, "checkpoint_bytes": written, "write_cache_s": _write_seconds(job)}

    def close(self) -> None:
        """Close loader and rows."""
        self.loader.close()
        self.rows.close()


def _without_waits(data: Dataset, job: dict[str, Any]) -> Planned:
    """Return gloader's rows with loads that wait for no step: a row may leave before its last change, which is lost."""
    batch = WritePlan.batch

    def hurried(plan: WritePlan, index: int) -> WriteStep:
        return replace(batch(plan, index), wait_for=0)

    WritePlan.batch = hurried  # type: ignore[method-assign,assignment]
    return Planned(data, job)


class OnDemand:
    """Rows that are read from a file when a batch needs them, and written when they leave their slots."""

    def __init__(self, data: Dataset, job: dict[str, Any]) -> None:
        self._type, dim, width = job["type"], job["dim"], _width(job)
        num_rows = data.node_tables[self._type].num_nodes
        self._rows = OnDemandRows(Path(job["flat"]), num_rows, width, job["cache_bytes"])
        table = torch.from_numpy(self._rows.slots)
        self._weights, self._state = table[:, :dim], table[:, dim:width]
        self._optimizer = OPTIMIZERS[job["optimizer"]](lr=LR)
        self.loader = _loader(data, job)
        self._num_steps = 0

    def batches(self) -> Iterator[tuple[HeteroReadyBatch, torch.Tensor]]:
        """Yield batches and leaves."""
        for batch in _endless(self.loader):
            self._slots = torch.from_numpy(self._rows.take(batch.nodes[self._type]))
            self._leaf = self._weights.index_select(0, self._slots).requires_grad_()
            yield batch, self._leaf

    def step(self) -> None:
        """Step, with gloader's rule."""
        self._num_steps += 1
        grad: Any = self._leaf.grad
        self._optimizer.apply(self._weights, self._state, self._slots, grad, self._num_steps)

    def counts(self) -> dict[str, int]:
        """Return rows loaded and written."""
        return self._rows.counts()

    def finish(self, job: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as all
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Close loader and file."""
        self.loader.close()
        self._rows.close()


class InTorch:
    """A table of torch in memory, with torch's sparse optimizer. Row-wise Adagrad, which torch lacks, is gloader's."""

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
        """Yield batches and rows."""
        for batch in _endless(self.loader):
            yield batch, self._table(torch.from_numpy(batch.nodes[self._type]))

    def step(self) -> None:
        """Step, with torch's optimizer."""
        weight = self._table.weight
        if self._optimizer is not None:
            self._optimizer.step()
        else:
            grad: Any = weight.grad  # of a batch's rows, which are distinct: nothing has to be summed
            ids, values = grad._indices()[0], grad._values()  # noqa: SLF001 - without a copy
            OPTIMIZERS["rowwise-adagrad"](lr=LR).apply(weight.detach(), self._state, ids, values, 1)
        weight.grad = None

    def counts(self) -> dict[str, int]:
        """Return nothing."""
        return {}

    def finish(self, job: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - as all
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Close the loader."""
        self.loader.close()


def _write_seconds(job: dict[str, Any]) -> float:
    """Return the seconds in which a plain file takes the bytes of the cache, synced."""
    piece = np.ones(16 << 20, np.uint8)
    path = Path(job["spill"], "written")
    began = time.perf_counter()
    with path.open("wb") as file:
        for first in range(0, job["cache_bytes"], len(piece)):
            file.write(piece[: job["cache_bytes"] - first].data)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


CONTENDERS: Final[dict[str, Callable[[Dataset, dict[str, Any]], Contender]]] = {
    "planned": Planned,
    "planned, all in slots": Planned,
    "planned without waits": _without_waits,
    "on demand": OnDemand,
    "torch": InTorch,
}


def main() -> None:
    """Do the job of the command line and print its figures as JSON."""
    job = json.loads(sys.argv[1])
    print(json.dumps(PARTS[job["part"]](job)))


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Run the phases; return a list with the figures of each span, and those of the end."""
    data = Dataset.open(job["dataset"])
    torch.manual_seed(0)
    began = time.perf_counter()
    contender = CONTENDERS[job["contender"]](data, job)
    found: dict[str, Any] = {"open_s": time.perf_counter() - began}
    spans, watch, batches = [], Watch(), contender.batches()
    for phase in job["phases"]:
        compute = _ones if phase["mode"] == "load" else _model_step(data, job)
        for number in range(phase["spans"]):
            watch.begin()
            before, began = {**io_bytes(), **contender.counts()}, time.perf_counter()
            used = time.process_time()
            num_rows = 0
            for batch, rows in islice(batches, phase["batches"]):
                compute(batch, rows)
                contender.step()
                num_rows += len(rows)
            seconds, used = time.perf_counter() - began, time.process_time() - used
            after = {**io_bytes(), **contender.counts()}
            span: dict[str, Any] = {name: after[name] - before[name] for name in after}
            span |= {"mode": phase["mode"], "counts": number > 0, "seconds": seconds, "rows": num_rows}
            span["processor_s"] = used
            spans.append(span | {"batches": phase["batches"], "anonymous_bytes": watch.peak})
    watch.stop()
    found |= {"spans": spans, "load": os.getloadavg()[0], **contender.finish(job)}
    contender.close()
    return found


def _ones(batch: HeteroReadyBatch, rows: torch.Tensor) -> None:  # noqa: ARG001 - as a network's step
    rows.backward(torch.ones_like(rows))  # type: ignore[no-untyped-call]


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
        memory_budget=job["memory_budget"],
        superbatch=job["superbatch"],
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
        self._thread = threading.Thread(target=self._run, name="gloader-bench-watch", daemon=True)
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


def _endless(loader: HeteroLoader) -> Iterator[HeteroReadyBatch]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def fill(job: dict[str, Any]) -> dict[str, Any]:
    """Make a table whose rows are all on the disk."""
    with _new_rows(Dataset.open(job["dataset"]), job, Path(job["table"])) as rows:
        table = rows._rows.stored  # noqa: SLF001 - no public way writes rows without training
        assert isinstance(table, EmbeddingTable)  # noqa: S101
        piece = np.empty((1 << 16, table.width), np.float32)
        for first in range(0, table.num_rows, len(piece)):
            ids = np.arange(first, min(first + len(piece), table.num_rows))
            table.initial.fill(ids, piece[: len(ids)])
            table.append(ids, piece[: len(ids)])
        rows.checkpoint()
    return {}


def _new_rows(data: Dataset, job: dict[str, Any], folder: Path) -> gloader.NodeEmbedding:
    """Return new rows."""
    return gloader.NodeEmbedding(
        data,
        job["type"],
        dim=job["dim"],
        optimizer=OPTIMIZERS[job["optimizer"]](lr=LR),
        folder=folder,
        cache=job["cache_bytes"],
    )


def loaded(job: dict[str, Any]) -> dict[str, int]:  # noqa: ARG001 - as all parts
    """Return what a process holds that has loaded all modules."""
    return {"anonymous_bytes": anonymous_bytes()}


PARTS: Final = {"train": train, "fill": fill, "loaded": loaded}

if __name__ == "__main__":
    main()
