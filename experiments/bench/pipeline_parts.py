"""The parts of the pipeline's benchmark: what is run, and what is made of the results."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from pipeline_graphs import Graph, make_dataset
from pipeline_runs import column, in_turns, is_void, ratio, run, spread

from gloader.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pipeline_runs import Job, Result

FANOUTS = [10, 10, 10]
LIBRARIES_BYTES = 400_000_000  # of the interpreter and its libraries, beside the budget
_FORCED = ("direct", "packed", "staged")
_WIDE_DIM = 1632  # rows of 6.5 KB, a page and a half
_TINY_NODES = 20_000
_FIRST_DIM = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all parts have in common."""

    options: argparse.Namespace
    workdir: Path
    base: Graph
    budget_bytes: int

    def job(
        self,
        graph: Graph,
        *,
        sink: str = "null",
        batches: int | None = None,
        task: str = "iterate",
        **settings: Any,
    ) -> Job:
        """Return a run of whole superbatches on ``graph``, a tenth of its features cached."""
        size = self.options.superbatch
        loader = {
            "fanouts": FANOUTS,
            "batch_size": self.options.batch_size,
            "memory_budget": self.budget_bytes,
            "cache": graph.feature_bytes // 10,
            "superbatch": size,
            "features": "ssd",
            "spill_dir": str(self.workdir),
        }
        return {
            "task": task,
            "dataset": str(make_dataset(self.workdir, graph)),
            "sink": sink,
            "seeds": None,
            "warm": size - 1,  # up to the first superbatch of full size: 1 + 2 + 4 + ... + size / 2
            "batches": self.options.superbatches * size if batches is None else batches,
            "loader": loader | settings,
        }


# --- strategies


def strategies(bench: Bench) -> dict[str, Any]:
    """Compare "auto" with every forced strategy on several workloads."""
    base, options = bench.base, bench.options
    wide = Graph(kind="rmat", nodes=options.wide_nodes, edges=10 * options.wide_nodes, dim=_WIDE_DIM)
    tiny = replace(base, nodes=_TINY_NODES, edges=20 * _TINY_NODES)
    half_budget = bench.budget_bytes + base.feature_bytes // 2
    cases: dict[str, tuple[Graph, dict[str, Any]]] = {
        "R-MAT, 10% cached": (base, {}),
        "R-MAT, 50% cached": (base, {"cache": base.feature_bytes // 2, "memory_budget": half_budget}),
        "rows of 6.5 KB": (wide, {"batch_size": options.wide_batch_size}),
        "tiny": (tiny, {"batch_size": options.wide_batch_size}),
    }
    return {name: _compare(bench, name, graph, settings) for name, (graph, settings) in cases.items()}


def _compare(bench: Bench, name: str, graph: Graph, settings: dict[str, Any]) -> dict[str, Any]:
    auto: dict[str, Any] = {"features": "auto"} if name == "tiny" else {}
    jobs = {"auto": bench.job(graph, **settings, **auto)} | {
        forced: bench.job(graph, io_strategy=forced, **settings) for forced in _FORCED
    }
    results = in_turns(jobs, bench.options.rounds)
    found: dict[str, Any] = {}
    print(f"  {name}", flush=True)
    for strategy, runs in results.items():
        seconds = [s / jobs[strategy]["batches"] for s in column(runs, "seconds")]
        if not seconds:
            found[strategy] = runs[-1]
            print(f"    {strategy:7} not run: {next(iter(runs[-1].values()))[:150]}", flush=True)
            continue
        last = runs[-1]
        found[strategy] = {"batch_s": spread(seconds), "moved": last["moved"], "chosen": _chosen(last)}
        moved = last["moved"]
        print(
            f"    {strategy:7} {_ms(found[strategy]['batch_s'])} a batch, "
            f"processor {_per(last, 'cpu_seconds', jobs[strategy])}, read {format_bytes(moved['bytes_read'])}, "
            f"wrote {format_bytes(moved['bytes_written'])}, {_chosen(last) or 'in memory'}",
            flush=True,
        )
    forced_runs = {s: column(results[s], "seconds") for s in _FORCED}
    measured = {s: seconds for s, seconds in forced_runs.items() if len(seconds) == bench.options.rounds}
    best = min(measured, key=lambda s: median(measured[s]))
    found["best"] = best
    found["auto/best"] = ratio(column(results["auto"], "seconds"), measured[best])
    print(f"    auto / {best}: {_ratio(found['auto/best'])} (issue: 1.10 at most)", flush=True)
    return found


def _chosen(result: Result) -> dict[str, int]:
    counts: dict[str, int] = {}
    for superbatch in result["reports"]["superbatches"]:
        strategy = superbatch["choice"]["strategy"]
        counts[strategy] = counts.get(strategy, 0) + 1
    return counts


# --- overlap


def overlap(bench: Bench) -> dict[str, Any]:
    """Compare a training step with the resource that is busiest, each stage run alone."""
    settings = {"batch_size": bench.options.epoch_batch_size}
    alone_jobs = {"alone": bench.job(bench.base, sink="sage", task="alone", **settings)}
    full_jobs = {"full": bench.job(bench.base, sink="sage", **settings)}
    results = in_turns(alone_jobs | full_jobs, bench.options.rounds)
    cores = len(os.sched_getaffinity(0))
    found: dict[str, Any] = {"rounds": []}
    ratios = []
    for alone, full in zip(results["alone"], results["full"], strict=True):
        if is_void(alone) or is_void(full):
            found["rounds"].append({"alone": alone, "full": full})
            continue
        cpu = dict(alone["cpu_seconds"])
        cpu["sample again"] *= 1 - alone["kept_share"]
        step = full["seconds"] / full_jobs["full"]["batches"]
        bounds = {"cores": sum(cpu.values()) / cores, "disk": alone["wall_seconds"]["retrieve"]}
        found["rounds"].append(
            {
                "step_s": step,
                "step_cpu_s": full["cpu_seconds"] / full_jobs["full"]["batches"],
                "cpu_alone_s": cpu,
                "wall_alone_s": alone["wall_seconds"],
                "bounds_s": bounds,
            }
        )
        ratios.append(step / max(bounds.values()))
        print("  alone: " + ", ".join(f"{name} {format_seconds(s)}" for name, s in cpu.items()), flush=True)
        print(
            f"  step {format_seconds(step)}, processor in it {format_seconds(found['rounds'][-1]['step_cpu_s'])}; all "
            f"processor seconds over {cores} cores {format_seconds(bounds['cores'])}, disk alone "
            f"{format_seconds(bounds['disk'])}: {ratios[-1]:.3f}",
            flush=True,
        )
    if ratios:
        found["step/slowest"] = spread(ratios)
        print(f"  step / slowest resource: {_ratio(found['step/slowest'])} (issue: 1.10 at most)", flush=True)
    return found


# --- epoch


def epoch(bench: Bench) -> dict[str, Any]:
    """Compare epochs from the SSD with epochs in memory."""
    results = in_turns(_epoch_jobs(bench), bench.options.rounds)
    found: dict[str, Any] = {}
    seconds = {name: [s / 2 for s in column(runs, "seconds")] for name, runs in results.items()}
    for name, runs in results.items():
        if not seconds[name]:
            return {name: runs[-1]}
        found[name] = {"epoch_s": spread(seconds[name]), "last": runs[-1]}
        print(
            f"  {name:4} {format_seconds(median(seconds[name]))} an epoch, processor "
            f"{format_seconds(runs[-1]['cpu_seconds'] / 2)}; {runs[-1]['bottleneck']}",
            flush=True,
        )
    found["ssd/ram"] = ratio(seconds["ssd"], seconds["ram"])
    print(f"  ssd / ram: {_ratio(found['ssd/ram'])} (issue: 1.15 at most, goal 1.05)", flush=True)
    return found


def _epoch_jobs(bench: Bench) -> dict[str, Job]:
    count, size = bench.options.epoch_batches, bench.options.epoch_batch_size
    held = bench.budget_bytes + bench.base.feature_bytes
    ssd = bench.job(bench.base, sink="sage", batches=2 * count, batch_size=size)
    ram = bench.job(
        bench.base,
        sink="sage",
        batches=2 * count,
        batch_size=size,
        memory_budget=held,
        features="ram",
        cache=None,
    )
    one_epoch = {"warm": count, "seeds": count * size}
    return {"ssd": ssd | one_epoch, "ram": ram | one_epoch}


# --- first


def first(bench: Bench) -> dict[str, Any]:
    """Time the first batch for graphs of several sizes, with files that are not in the page cache, and that are."""
    found: dict[str, Any] = {}
    for nodes in bench.options.first_nodes:
        graph = Graph(kind="uniform", nodes=nodes, edges=10 * nodes, dim=_FIRST_DIM)
        budget = max(bench.budget_bytes, 4 * graph.edges * 5 // 2 + graph.feature_bytes)
        jobs = {
            kind: bench.job(
                graph, batches=1, superbatch=None, memory_budget=budget, features=kind, cache=cache
            )
            | {"warm": 0, "seeds": bench.options.first_seeds}
            for kind, cache in (("ssd", graph.feature_bytes // 10), ("ram", None))
        }
        run(jobs["ssd"])  # loads the kernels, measures the disk
        found[graph.name] = {
            files: _first_batches(graph, files, in_turns(jobs, bench.options.rounds, is_cold=files == "cold"))
            for files in ("cold", "cached")
        }
    return found


def _first_batches(graph: Graph, files: str, results: dict[str, list[Result]]) -> dict[str, Any]:
    found = {
        kind: {name: spread(column(runs, name)) for name in ("first_batch_s", "construction_s")}
        for kind, runs in results.items()
        if column(runs, "first_batch_s")
    }
    for kind, times in found.items():
        print(
            f"  {graph.nodes:>11,} nodes, {graph.edges:>12,} edges, files {files}, features {kind}: first batch after "
            f"{format_seconds(times['first_batch_s']['median'])} ({times['first_batch_s']['most']:.2f} s at most), "
            f"of that {format_seconds(times['construction_s']['median'])} in Loader() (issue: 3 s)",
            flush=True,
        )
    return found


# --- explain


def explain(bench: Bench) -> dict[str, Any]:
    """Compare what was predicted for each superbatch with what was measured."""
    jobs = {
        "null sink": bench.job(bench.base),
        "null sink, direct": bench.job(bench.base, io_strategy="direct"),
        "GraphSAGE": bench.job(bench.base, sink="sage", batch_size=bench.options.epoch_batch_size),
    }
    results = in_turns(jobs, bench.options.rounds)
    found: dict[str, Any] = {}
    for name, runs in results.items():
        # A superbatch of the ramp is over before anything was learned from the one before it.
        reports = [r for run_ in runs if not is_void(run_) for r in _full_superbatches(run_)]
        errors = {
            what: [
                abs(r[f"predicted_{what}_s"] / r[f"measured_{what}_s"] - 1)
                for r in reports
                if r[f"predicted_{what}_s"] and r[f"measured_{what}_s"]
            ]
            for what in ("retrieval", "step")
        }
        found[name] = {
            "median_error": {what: median(e) for what, e in errors.items() if e},
            "all_superbatches": [
                {what: run_["reports"][f"{what}_error"] for what in errors}
                for run_ in runs
                if not is_void(run_)
            ],
            "reports": reports,
        }
        said = ", ".join(f"{what} to {error:.0%}" for what, error in found[name]["median_error"].items())
        print(f"  {name}: {said} over {len(reports)} full superbatches (issue: the step to 20%)", flush=True)
    return found


def _full_superbatches(result: Result) -> list[dict[str, Any]]:
    return [r for r in result["reports"]["superbatches"] if r["num_batches"] == result["superbatch"]]


# --- memory


def memory(bench: Bench) -> dict[str, Any]:
    """Measure what traces and plans take, and the whole process against its budget."""
    found: dict[str, Any] = {}
    alone = run(bench.job(bench.base, task="alone", batches=bench.options.superbatch))
    if not is_void(alone):
        m = alone["memory"]
        # Alive: the plans of two superbatches, and the traces of two more that are sampled or looked ahead at.
        held = 2 * m["plan_bytes_per_access"] + 2 * m["trace_bytes_per_access"]
        tables = m["planner_table_bytes"] / (4 * m["accesses"])
        found["per_access"] = m | {"alive": held / 4, "tables": tables}
        print(
            f"  per access: trace {m['trace_bytes_per_access']:.2f} B, plan {m['plan_bytes_per_access']:.2f} B; "
            f"the four superbatches alive {held / 4:.2f} B and the planner's tables {tables:.2f} B "
            f"(issue: 6 B at most); while planning {m['planning_peak_bytes_per_access']:.2f} B",
            flush=True,
        )
    for share in (1.0, 1.5):
        job = bench.job(
            bench.base, memory_budget=int(share * bench.budget_bytes), cache=None, superbatch=None
        )
        job |= {"warm": 2, "batches": 4 * bench.options.superbatch}
        found[f"budget x {share}"] = run(job)
        _print_peak(found[f"budget x {share}"])
    if bench.options.cgroup is None:
        print("  no run under a control group: name a folder for one with --cgroup", flush=True)
        return found
    with _group(bench.options.cgroup, bench.budget_bytes + LIBRARIES_BYTES) as group:
        job = bench.job(bench.base, cache=None, superbatch=None)
        job |= {"warm": 2, "batches": 4 * bench.options.superbatch}
        found["cgroup"] = run(job, cgroup=group)
        print(
            f"  within a control group of {format_bytes(bench.budget_bytes + LIBRARIES_BYTES)}:", flush=True
        )
        _print_peak(found["cgroup"])
    return found


def _print_peak(result: Result) -> None:
    if is_void(result):
        print(f"    {next(iter(result.values()))[:300]}", flush=True)
        return
    allowed = result["budget_bytes"] + LIBRARIES_BYTES
    print(
        f"  budget {format_bytes(result['budget_bytes'])}: peak {format_bytes(result['peak_bytes'])}, of that "
        f"{format_bytes(result['resident_before'])} before the loader; {result['peak_bytes'] / allowed:.0%} of budget "
        f"and 400 MB",
        flush=True,
    )


@contextmanager
def _group(parent: Path, limit_bytes: int) -> Iterator[Path]:
    """Make a control group (v1, memory) with a limit, and remove it."""
    group = parent / f"gloader-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield group
    finally:
        with suppress(OSError):
            group.rmdir()


# --- trace


def trace(bench: Bench) -> dict[str, Any]:
    """Compare batches whose events are recorded with batches whose are not."""
    jobs = {"plain": bench.job(bench.base), "traced": bench.job(bench.base, trace=True)}
    results = in_turns(jobs, bench.options.rounds)
    found: dict[str, Any] = {
        what: ratio(column(results["traced"], what), column(results["plain"], what))
        for what in ("seconds", "cpu_seconds")
    }
    for what, values in found.items():
        print(f"  traced / plain, {what}: {_ratio(values)} (issue: 1.01 at most)", flush=True)
    return found


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "strategies": strategies,
    "overlap": overlap,
    "epoch": epoch,
    "first": first,
    "explain": explain,
    "memory": memory,
    "trace": trace,
}


def _ms(values: dict[str, float]) -> str:
    least, most = values["least"] * 1e3, values["most"] * 1e3
    return f"{values['median'] * 1e3:8.1f} ms ({least:.1f} to {most:.1f})"


def _per(result: Result, name: str, job: Job) -> str:
    return format_seconds(result[name] / job["batches"])


def _ratio(values: dict[str, float]) -> str:
    return f"{values['median']:.3f} ({values['least']:.3f} to {values['most']:.3f})"
