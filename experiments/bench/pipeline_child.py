"""One measurement of the pipeline's benchmark, in a process of its own; prints its result as one JSON line.

pipeline_child.py '{"task": "iterate", "dataset": ..., ...}'
"""

from __future__ import annotations

import json
import sys
import time
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch.nn import functional

from gloader import Dataset, Loader
from gloader.cache import Trace, batch_step, encode_ids
from gloader.config import LoaderSettings, ModelConfig, OptimConfig
from gloader.core.order import EpochOrder
from gloader.core.signals import NEVER
from gloader.errors import BudgetError
from gloader.models import build_model
from gloader.observe.explain import run_json
from gloader.pipeline.gather import HostBatch, gather_cached
from gloader.pipeline.open.load_plan import LoadRequest
from gloader.pipeline.open.tiers import open_feature_tier
from gloader.pipeline.sample import ordered
from gloader.pipeline.seeds import SeedPlan
from gloader.pipeline.send import transfer
from gloader.samplers.graph import float_in_degrees
from gloader.ssd_store.cost.io_rates import Calibration
from gloader.training.train_step import build_optimizer
from gloader.types import BatchId, BatchTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gloader.pipeline.open.tiers import FeatureTier
    from gloader.samplers import Topology
    from gloader.types import ReadyBatch, SampledBatch

Sink = Literal["null", "sage"]
_HIDDEN = 256


def iterate(job: dict[str, Any]) -> dict[str, Any]:
    """Take ``warm`` and then ``batches`` batches from a loader, over the ends of epochs, and time the latter."""
    dataset = Dataset.open(job["dataset"])
    sink = make_sink(job["sink"], dataset, len(job["loader"]["fanouts"]))
    resident = status_bytes("VmRSS")
    called = time.perf_counter()
    loader = Loader(dataset, seeds=dataset.train[: job["seeds"]], **job["loader"])
    constructed = time.perf_counter() - called
    first = 0.0
    warm, count = job["warm"], job["batches"]
    began, cpu_began = called, time.process_time()
    moved: Counter[str] = Counter()
    taken = 0
    with loader:
        while taken < warm + count:
            for batch in loader:
                first = first or time.perf_counter() - called
                sink(batch)
                taken += 1
                if taken == warm:
                    began, cpu_began = time.perf_counter(), time.process_time()
                if taken == warm + count:
                    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
                    break
            stats = asdict(loader.stats)
            moved.update({name: stats[name] for name in _MOVED})
        plan = loader.memory_plan
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "first_batch_s": first,
            "construction_s": constructed,
            "moved": dict(moved),
            "reports": run_json(loader.reports),
            "superbatch": plan.superbatch.num_batches,
            "planned_bytes": plan.total_bytes,
            "budget_bytes": plan.budget_bytes,
            "resident_before": resident,
            "peak_bytes": status_bytes("VmHWM"),
            "bottleneck": loader.bottleneck(),
        }


_MOVED = ("rows_gathered", "cache_hits", "rows_read", "requests", "bytes_read", "bytes_written")


def alone(job: dict[str, Any]) -> dict[str, Any]:
    """Do what the stages do, one after the other, and measure each; the first superbatch is not counted."""
    dataset = Dataset.open(job["dataset"])
    settings, size = job["loader"], job["loader"]["superbatch"]
    order = EpochOrder(
        seeds=dataset.train[: job["seeds"]],
        num_nodes=dataset.num_nodes,
        batch_size=settings["batch_size"],
        seed=0,
    )
    seeds = SeedPlan(order=order, labels=None, types=BatchTypes())
    tier = open_feature_tier(LoadRequest(dataset=dataset, seeds=seeds, settings=_loader_settings(settings)))
    sink = make_sink(job["sink"], dataset, len(settings["fanouts"]))
    meter = Meter()
    stages = SuperbatchSteps(tier, dataset, order, meter, sink)
    superbatches = job["batches"] // size
    try:
        traces = [stages.trace(0, size)]
        for number in range(superbatches + 1):
            if number == 1:
                meter.reset()
                stages.sizes.clear()
            traces.append(stages.trace((number + 1) * size, size))
            stages.execute(number, size, traces[number], traces[number + 1])
            traces[number] = Trace()
        kept = min(1.0, tier.plan.keep_bytes / (3 * size * max(stages.batch_bytes, 1)))
        batches = superbatches * size
        return {
            "cpu_seconds": {name: seconds / batches for name, seconds in meter.cpu.items()},
            "wall_seconds": {name: seconds / batches for name, seconds in meter.wall.items()},
            "kept_share": kept,
            "memory": stages.sizes | {"planner_table_bytes": _table_bytes(tier)},
            "strategies": dict(stages.strategies),
            "misses_per_batch": stages.num_misses / (batches + size),
        }
    finally:
        tier.close()


class Meter:
    """Wall and processor seconds of this process by name."""

    def __init__(self) -> None:
        self.wall: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()

    def reset(self) -> None:
        """Forget everything."""
        self.wall.clear()
        self.cpu.clear()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Count the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] += time.perf_counter() - wall  # type: ignore[assignment]
        self.cpu[name] += time.process_time() - cpu  # type: ignore[assignment]


class SuperbatchSteps:
    """The work of the pipeline's stages, without its threads."""

    def __init__(
        self,
        tier: FeatureTier,
        dataset: Dataset,
        order: EpochOrder,
        meter: Meter,
        sink: Callable[[ReadyBatch], None],
    ) -> None:
        self._tier, self._ssd, self._dataset = tier, tier.require_ssd()[0], dataset
        self._topology = cast("Topology", tier.topology)
        self._order, self._meter, self._sink = order, meter, sink
        self._positions: dict[int, np.ndarray] = {}
        self.sizes: dict[str, float] = {}
        self.strategies: Counter[str] = Counter()
        self.num_misses = 0
        self.batch_bytes = 0

    def _sample(self, position: int) -> tuple[SampledBatch, np.ndarray]:
        epoch, index = divmod(position, self._order.num_batches)
        if epoch not in self._positions:
            self._positions = {epoch: self._order.epoch_positions(epoch)}
        places = self._order.batch_seeds(self._positions[epoch], index)
        batch = self._tier.sampler.sample(BatchId(epoch=epoch, index=index), self._order.seeds[places])
        return cast("SampledBatch", batch), places

    def trace(self, first: int, size: int) -> Trace:
        """Sample a superbatch for its trace."""
        trace = Trace()
        for position in range(first, first + size):
            with self._meter.measure("sample"):
                batch, _ = self._sample(position)
                trace.append_code(encode_ids(np.sort(batch.nodes)), len(batch.nodes))
        blocks = sum(b.indptr.nbytes + b.indices.nbytes + b.edge_ids.nbytes for b in batch.blocks)
        self.batch_bytes = batch.nodes.nbytes + blocks
        return trace

    def execute(self, number: int, size: int, trace: Trace, lookahead: Trace) -> None:
        """Plan a superbatch, bring its missing rows in and hand its batches to the sink."""
        if not self.sizes:
            tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else 0
        with self._meter.measure("inspect"):
            plan = self._ssd.planner.plan(trace, lookahead)
        if tracemalloc.is_tracing():
            count = trace.num_accesses
            self.sizes = {
                "trace_bytes_per_access": trace.num_bytes / count,
                "plan_bytes_per_access": plan.without_trace().num_bytes / count,
                "planning_peak_bytes_per_access": (tracemalloc.get_traced_memory()[1] - before) / count,
                "accesses": count,
            }
            tracemalloc.stop()
        with self._meter.measure("retrieve"):
            request = self._ssd.retrieval.request(plan, Calibration())
            staged = self._ssd.retrieval.begin(request, request.own, superbatch=number, cancellation=NEVER)
        self.strategies[staged.choice.strategy] += 1
        self.num_misses += plan.num_misses
        for index in range(size):
            with self._meter.measure("sample again"):
                sampled, places = self._sample(number * size + index)
            with self._meter.measure("gather"):
                batch = ordered(sampled, float_in_degrees(self._topology.offsets, sampled.nodes))
                (rows,) = batch.tables
                step = batch_step(staged.plan.batch_actions(index), rows.ascending, rows.order)
                (x,) = self._tier.ring.acquire([len(rows.ascending)])
            with self._meter.measure("retrieve"):
                staged.misses.read_into(index, step.miss_row, x, at=step.miss_pos)
                staged.misses.release(index)
            with self._meter.measure("gather"):
                gather_cached(step, sampled.nodes, x, self._ssd.slots)
            host = HostBatch(
                sampled=sampled,
                x=(x,),
                src_degree=batch.src_degree,
                superbatch=number,
                ends_superbatch=index + 1 == size,
            )
            labels = self._dataset.labels_of(self._order.seeds[places])
            ready = transfer(host, labels, torch.device("cpu"))
            with self._meter.measure("compute"):
                self._sink(cast("ReadyBatch", ready))
            del host, ready, x
        staged.misses.close()


def make_sink(name: Sink, dataset: Dataset, num_layers: int) -> Callable[[ReadyBatch], None]:
    """Return what is done with each batch: nothing, or a training step of GraphSAGE."""
    if name == "null":
        return lambda batch: None  # noqa: ARG005
    torch.manual_seed(0)
    model = build_model(
        ModelConfig(name="graphsage", hidden=_HIDDEN),
        in_dim=dataset.feature_dim,
        out_dim=dataset.num_classes,
        num_layers=num_layers,
    )
    optimizer = build_optimizer(OptimConfig(), model.parameters())

    def step(batch: ReadyBatch) -> None:
        loss = functional.cross_entropy(model(batch.x, batch.blocks), batch.y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def status_bytes(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def _table_bytes(tier: FeatureTier) -> int:
    planner = tier.require_ssd()[0].planner
    return sum(v.nbytes for v in vars(planner).values() if isinstance(v, np.ndarray))


def _loader_settings(settings: dict[str, Any]) -> LoaderSettings:
    return LoaderSettings.of(
        fanouts=settings["fanouts"],
        batch_size=settings["batch_size"],
        features="ssd",
        memory_budget=settings["memory_budget"],
        spill_dir=settings["spill_dir"],
        cache=settings["cache"],
        io_strategy=settings.get("io_strategy", "auto"),
        superbatch=settings["superbatch"],
    )


def main() -> None:
    """Run the job of the command line."""
    job = json.loads(sys.argv[1])
    tasks = {"iterate": iterate, "alone": alone}
    try:
        result = tasks[job["task"]](job)
    except BudgetError as error:
        result = {"refused": str(error)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
