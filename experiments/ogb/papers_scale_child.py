"""One half of the run at papers100M's scale, in a process of its own; prints its figures as one JSON line.

papers_scale_child.py '{"task": "prepare", "spec": ..., "dataset": ..., "budget": ..., "dtype": ...}'
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional
from watch import anonymous_bytes

from gloader import Dataset, Loader
from gloader.config import LoaderSettings, ModelConfig, OptimConfig
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.observe.peak_memory import peak_rss_bytes
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.model_spec import ModelSpec
from gloader.training.process import seed_torch
from gloader.training.result import name_strategy
from gloader.training.run_budget import RunBudget, share_budget
from gloader.training.step_memory import largest, parameter_bytes, probe, step_bytes
from gloader.training.train_step import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.types import ReadyBatch

_CPU = torch.device("cpu")


def prepare_graph(job: dict[str, Any]) -> dict[str, Any]:
    """Generate and prepare the graph within the budget; return the report."""
    began = time.perf_counter()
    source = open_source(job["spec"], SourceOptions(memory_budget_bytes=job["budget"]))
    opened = time.perf_counter() - began
    options = PrepareOptions(dtype=job["dtype"], memory_budget_bytes=job["budget"])
    report = prepare(source, Path(job["dataset"]), options)
    figures = asdict(report) | {"path": None, "open_seconds": opened}
    return figures | {"peak_resident_bytes": peak_rss_bytes()}


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train for ``job["batches"]`` batches within the budget; return what they cost."""
    began = time.perf_counter()
    dataset = Dataset.open(job["dataset"])
    settings = LoaderSettings.of(
        fanouts=job["fanouts"],
        batch_size=job["batch_size"],
        features="ssd",
        policy=job["policy"],
        spill_budget=job["spill"],
        spill_dir=job["scratch"],
    )
    spec = ModelSpec(
        config=ModelConfig(name=job["model"], hidden=job["hidden"]),
        in_dim=dataset.feature_dim,
        out_dim=dataset.num_classes,
        num_layers=len(settings.sampling.fanouts),
        add_self_loops=True,
    )
    budget = _share(job["budget"], dataset, settings, spec)
    step = _make_step(spec)
    probed = time.perf_counter() - began
    called = time.perf_counter()
    loader = Loader.from_settings(dataset, settings.changed(memory_budget=budget.loader_bytes))
    constructed = time.perf_counter() - called
    took = _Times()
    with loader:
        while len(took.steps) < job["batches"]:
            for batch in loader:
                took.arrived()
                took.trained(step(batch), rows=len(batch.nodes))
                if len(took.steps) == job["batches"]:
                    break
            stats = asdict(loader.stats)
        return {
            **took.figures(),
            "first_batch_s": took.first_batch - called,
            "probe_seconds": probed,
            "construction_seconds": constructed,
            "batches_per_epoch": len(loader),
            "shares": budget.explain(),
            "plan": loader.explain().splitlines(),
            "superbatch": loader.memory_plan.superbatch.num_batches,
            "strategy": name_strategy("auto", [report.choice.strategy for report in loader.reports]),
            "last_epoch": stats,
            "bottleneck": loader.bottleneck(),
            "parameters": parameter_bytes(spec) // 4,
            "peak_resident_bytes": peak_rss_bytes(),
        }


def _share(total: int, dataset: Dataset, settings: LoaderSettings, spec: ModelSpec) -> RunBudget:
    """Return the shares that `gloader train` would deal out, with the least for an evaluation: there is none."""
    seeds = plan_training_seeds(dataset, settings.sampling, are_named=False)
    batch = largest(probe(dataset, seeds, settings))
    step = 0 if batch is None else step_bytes(spec, batch)
    shares = share_budget(total_bytes=total, parameter_bytes=parameter_bytes(spec), step_bytes=step)
    return shares[-1]


def _make_step(spec: ModelSpec) -> Callable[[ReadyBatch], float]:
    """Return what trains on one batch and returns its loss."""
    seed_torch(0, -1, device=_CPU)
    model = spec.build()
    optimizer = build_optimizer(OptimConfig(), model.parameters())

    def step(batch: ReadyBatch) -> float:
        seed_torch(0, batch.id.epoch, batch.id.index, device=_CPU)
        loss = functional.cross_entropy(model(batch.x, batch.blocks), batch.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    return step


class _Times:
    """When batches came and how long they took."""

    def __init__(self) -> None:
        self.first_batch = 0.0
        self.waits: list[float] = []
        self.steps: list[float] = []  # wait and training together
        self.losses: list[float] = []
        self.rows: list[int] = []
        self._came = self._done = time.perf_counter()

    def arrived(self) -> None:
        """Note that a batch came."""
        self._came = time.perf_counter()
        self.first_batch = self.first_batch or self._came
        self.waits.append(self._came - self._done)

    def trained(self, loss: float, *, rows: int) -> None:
        """Note that the batch is done with."""
        now = time.perf_counter()
        self.steps.append(now - self._done)
        self.losses.append(loss)
        self.rows.append(rows)
        self._done = now

    def figures(self) -> dict[str, Any]:
        """Return medians and sums; the first batch is apart, as it waits for the first plan."""
        later, waits = self.steps[1:] or self.steps, self.waits[1:] or self.waits
        return {
            "batches": len(self.steps),
            "seconds": sum(self.steps),
            "step_median_s": median(later),
            "step_p90_s": float(np.quantile(later, 0.9)),
            "wait_median_s": median(waits),
            "rows_per_batch": sum(self.rows) / len(self.rows),
            "loss_first_10": float(np.mean(self.losses[:10])),
            "loss_last_10": float(np.mean(self.losses[-10:])),
        }


if __name__ == "__main__":
    tasks = {"prepare": prepare_graph, "train": train}
    given = json.loads(sys.argv[1])
    start = {"start_anonymous_bytes": anonymous_bytes(Path("/proc/self"))}
    print(json.dumps(start | tasks[given["task"]](given), default=str))
