"""The result of a run, and the summary of several runs with different seeds.

`gloader.training.train` makes a `RunResult` after each run, and writes the content from `summarize` to ``result.json``.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gloader.core.version import __version__
from gloader.observe.epoch_stats import STAGES, add_tables, hit_rate, hits_by_table
from gloader.observe.peak_memory import peak_rss_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.training.metrics import EpochRecord
    from gloader.training.task import Scores

_PACKAGES = ("torch", "numpy", "numba")  # packages whose versions a result records


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One run's result: its epochs, its resources, and the metric with the weights of the best epoch by validation."""

    seed: int  # the run's random seed
    best_epoch: int  # the epoch with the best validation value, from 0
    # Values of ``metric`` on the validation and test data, with the best weights. Despite the names, the metric may be
    # an error, see ``is_error``. None if the dataset lacks this data.
    valid_acc: float | None
    test_acc: float | None
    # The values of the network alone, if a step such as correct and smooth follows it; those above are behind the step.
    base: Scores | None = None
    epochs: tuple[EpochRecord, ...]
    task: str = "node"  # "node" (classes), "binary", "multilabel", "regression", "link" or "kg"
    metric: str = "acc"  # in ``result.json`` the values are named ``valid_<metric>`` and ``test_<metric>``
    is_error: bool = False  # whether a smaller value is better
    seconds: float  # all time, evaluation and set-up included
    num_parameters: int  # trained weights
    features: str  # home of the features, "ram" or "ssd"
    policy: str  # cache policy
    io_strategy: str  # see `name_strategy`
    sampler_threads: int
    explanation: str  # the loader's predictions and measurements
    # Peak resident memory of each rank (process), if there are several.
    rank_peak_rss_bytes: tuple[int, ...] = ()
    # The traffic from the dataset's URL since it was opened. None without a URL.
    objects: Mapping[str, Any] | None = None
    memory_budget_bytes: int = 0  # the memory budget of one machine, for all of its ranks
    # Peak memory of the first machine, to compare with the budget: the sum over its ranks. A rank's peak is its largest
    # anonymous memory (memory without a file behind it), less the memory after only `import torch`.
    peak_anonymous_bytes: int = 0
    device: str = "cpu"  # "cpu", or the GPU's name


def summarize(results: Sequence[RunResult]) -> dict[str, Any]:
    """Return the content for ``result.json`` from one or more runs: means, and summed traffic.

    Three entries are read from the system: this process's peak memory, the versions, and the machine.
    ``*_std`` is the unbiased standard deviation over the runs, or None for one run.
    """
    metric = results[0].metric
    epochs = [epoch for result in results for epoch in result.epochs]
    stats = [epoch.stats for epoch in epochs]
    train_seconds = sum(epoch.seconds for epoch in epochs)
    stage_seconds: dict[str, float] = {stage: sum(s.stage_seconds[stage] for s in stats) for stage in STAGES}
    summary: dict[str, Any] = {
        "task": results[0].task,
        "metric": metric,
        **_mean_and_std(f"test_{metric}", [result.test_acc for result in results]),
        **_mean_and_std(f"valid_{metric}", [result.valid_acc for result in results]),
        "best_epoch": [result.best_epoch for result in results],
        "epoch_seconds": [epoch.seconds for epoch in epochs],
        "evaluate_seconds": [epoch.evaluate_seconds for epoch in epochs],
        "total_seconds": sum(result.seconds for result in results),
        "batches": sum(s.batches for s in stats),
        "seeds_per_second": sum(s.seeds for s in stats) / max(train_seconds, 1e-9),
        "rows_gathered": sum(s.rows_gathered for s in stats),
        "hit_rate": hit_rate(stats),
        "rows_read": sum(s.rows_read for s in stats),
        "bytes_read": sum(s.bytes_read for s in stats),
        "bytes_written": sum(s.bytes_written for s in stats),
        "requests": sum(s.requests for s in stats),  # reads of feature rows from the SSD
        "edge_passes": sum(s.edge_passes for s in stats),  # passes over the edge file
        "edge_bytes_read": sum(s.edge_bytes_read for s in stats),
        "edge_bytes_written": sum(s.edge_bytes_written for s in stats),
        "stage_seconds": stage_seconds,
        "overlap_efficiency": _overlap(stage_seconds, train_seconds, results[0].sampler_threads),
        "memory_budget_bytes": max(result.memory_budget_bytes for result in results),
        "peak_anonymous_bytes": max(result.peak_anonymous_bytes for result in results),
        "peak_rss_bytes": peak_rss_bytes(),
        # There is one peak per rank. It includes the process's earlier runs, so the last run's peaks cover all runs.
        "world_size": max(1, len(results[-1].rank_peak_rss_bytes)),
        "rank_peak_rss_bytes": list(results[-1].rank_peak_rss_bytes),
        # The first run stands for all runs here, because they differ only in their seed.
        "num_parameters": results[0].num_parameters,
        "features": results[0].features,
        "policy": results[0].policy,
        "io_strategy": results[0].io_strategy,
        "runs": [
            {
                "seed": r.seed,
                f"test_{metric}": r.test_acc,
                f"valid_{metric}": r.valid_acc,
                "best_epoch": r.best_epoch,
                **(
                    {}
                    if r.base is None
                    else {f"base_test_{metric}": r.base.test, f"base_valid_{metric}": r.base.valid}
                ),
            }
            for r in results
        ],
        "best_run": max(range(len(results)), key=lambda i: _worth(results[i])),
        "versions": versions(),
        "machine": {"device": results[0].device, **machine()},
    }
    base = [result.base for result in results if result.base is not None]
    if base:
        summary |= _mean_and_std(f"base_test_{metric}", [scores.test for scores in base])
        summary |= _mean_and_std(f"base_valid_{metric}", [scores.valid for scores in base])
    # The traffic is counted since the dataset was opened, so the last run's numbers cover all runs.
    if results[-1].objects is not None:
        summary["objects"] = dict(results[-1].objects)
    tables = add_tables(s.tables for s in stats)
    if not tables:
        return summary
    hits = hits_by_table(stats)
    return summary | {"tables": {name: counts | {"hit_rate": hits[name]} for name, counts in tables.items()}}


def _worth(result: RunResult) -> float:
    """Return a number that is larger for a better run."""
    if result.valid_acc is None:
        return -math.inf
    return -result.valid_acc if result.is_error else result.valid_acc


def name_strategy(asked: str, chosen: Sequence[str]) -> str:
    """Return text on a run's I/O strategy, such as "auto: packed 12, direct 3". Pure.

    Parameters
    ----------
    asked : the requested strategy, which is the whole text unless it is "auto"
    chosen : the strategy of each superbatch. A superbatch is a group of batches whose rows are read with one strategy.
        The text has the number of superbatches for each strategy
    """
    if asked != "auto" or not chosen:
        return asked
    counts = sorted(Counter(chosen).items(), key=lambda item: (-item[1], item[0]))
    return "auto: " + ", ".join(f"{strategy} {count}" for strategy, count in counts)


def versions() -> dict[str, str]:
    """Return the versions that influence the numbers of a run."""
    found = {name: metadata.version(name) for name in _PACKAGES}
    return {"gloader": __version__, "python": platform.python_version(), **found}


def machine() -> dict[str, str | int]:
    """Return hardware facts that influence a run's seconds, without any name of the machine."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _processor() -> str:
    """Return the processor's model name, or the architecture if it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _overlap(stage_seconds: dict[str, float], seconds: float, sampler_threads: int) -> float:
    """Return the slowest stage's time divided by the wall time. It is 1 if all other stages run during this stage."""
    # `STAGES` also contains "wait". This is the time in which the training loop waits for a batch, so it is no work.
    spent = {stage: time for stage, time in stage_seconds.items() if stage != "wait"}
    # The "sample" seconds are summed over the parallel sampling threads.
    spent["sample"] /= max(sampler_threads, 1)
    return min(1.0, max(spent.values()) / seconds) if seconds > 0 else 0.0


def _mean_and_std(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return entries ``name`` and ``name_std`` over the known ``values``."""
    known = [value for value in values if value is not None]
    return {
        name: statistics.fmean(known) if known else None,
        f"{name}_std": statistics.stdev(known) if len(known) > 1 else None,
    }
