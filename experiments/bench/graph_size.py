"""The cost of a batch on graphs of 1, 10 and 100 million nodes, at one batch size and one hit rate.

    python experiments/bench/graph_size.py --workdir /some/disk --json experiments/results/DATE-graph-size.json

ssd     Features on the SSD. In-neighbours are drawn from 31,250 nodes that stand at equal distances, so that batches
        are alike at every size: they need as many rows, no two in one block, and Belady's cache of 3,125 rows hits
        alike. Only tables, files and distances grow. (Of a small graph without that, many rows share blocks.)
memory  Features in memory. In-neighbours are drawn from all nodes: what is touched grows with the graph.

Batches of 64 seeds with fan-out 10,10 have about 6,700 rows. Rows that are missed are read directly: a sweep over the
file, which the cost model takes for small graphs, would flatter them. Every case is measured with a null sink (loading
alone) and with a training step of GraphSAGE 2 x 256, once the topology is in memory. Runs are processes of their own;
the sizes take turns, and a ratio is the median of the ratios of the rounds to the smallest graph.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline_graphs import NUM_POPULAR, Graph, make_dataset
from pipeline_runs import column, in_turns, is_void, ratio, spread

from gloader.core.units import format_seconds
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from pipeline_runs import Job, Result

_DEGREE = 10
_WARM_BATCHES = 30  # the ramp of superbatches and the filling of the cache
_BATCHES_BYTES = 500_000_000
_DIMS = {"ssd": 64, "memory": 32}
_KINDS = {"ssd": "popular", "memory": "uniform"}
_CASES: dict[str, dict[str, Any]] = {
    "ssd": {
        "features": "ssd",
        "policy": "belady",
        "cache": NUM_POPULAR // 10 * 4 * _DIMS["ssd"],
        "superbatch": 16,
        "io_strategy": "direct",
        "max_gap": 0,
    },
    "memory": {"features": "ram", "cache": None, "superbatch": None},
}


def main() -> None:
    """Measure every case at every size, print a table, and write the JSON."""
    options = read_arguments()
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    os.environ["GLOADER_HOME"] = str(workdir / "home")
    began = time.perf_counter()
    cases: dict[str, Any] = {}
    for case in options.cases.split(","):
        for sink in ("null", "sage"):
            cases[f"{case}, {sink}"] = measure(case, sink, options, workdir)
            if options.json is not None:
                write(options, cases)
    print(f"{time.perf_counter() - began:.0f} s in all", flush=True)


def write(options: argparse.Namespace, cases: dict[str, Any]) -> None:
    """Write what was measured so far."""
    result = {
        "benchmark": "graph_size",
        "options": {
            name: str(value) for name, value in vars(options).items() if name not in ("workdir", "json")
        },
        "cases": cases,
        **provenance(),
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; graphs stay")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--cases", default=",".join(_CASES), help=f"some of {', '.join(_CASES)}")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=100, help="that are timed, of each run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if unknown := set(options.cases.split(",")) - set(_CASES):
        parser.error(f"--cases: {', '.join(sorted(unknown))} unknown; allowed: {', '.join(_CASES)}")
    return options


def measure(case: str, sink: str, options: argparse.Namespace, workdir: Path) -> dict[str, Any]:
    """Run one case at every size, in turns."""
    jobs = {str(nodes): _job(case, sink, nodes, options, workdir) for nodes in options.nodes}
    results = in_turns(jobs, options.rounds)
    smallest = results[str(min(options.nodes))]
    found: dict[str, Any] = {}
    print(f"\n{case}, {sink}:", flush=True)
    for nodes, runs in results.items():
        if any(is_void(run) for run in runs):
            found[nodes] = runs[-1]
            print(f"  {int(nodes):>11,} nodes: {next(iter(runs[-1].values()))[:300]}", flush=True)
            continue
        found[nodes] = _summary(runs, smallest, _batches(case, sink, options))
        print(f"  {int(nodes):>11,} nodes: {_line(found[nodes])}", flush=True)
    return found


def _job(case: str, sink: str, nodes: int, options: argparse.Namespace, workdir: Path) -> Job:
    graph = Graph(kind=_KINDS[case], nodes=nodes, edges=_DEGREE * nodes, dim=_DIMS[case])
    held = graph.feature_bytes if case == "memory" else 0
    loader = {
        "fanouts": [10, 10],
        "batch_size": options.batch_size,
        "memory_budget": _BATCHES_BYTES + 4 * graph.edges + 40 * nodes + held,
        "spill_dir": str(workdir),
    }
    return {
        "task": "iterate",
        "dataset": str(make_dataset(workdir, graph)),
        "sink": sink,
        "seeds": None,
        "warm": _WARM_BATCHES,
        "batches": _batches(case, sink, options),
        "loader": loader | _CASES[case],
    }


def _batches(case: str, sink: str, options: argparse.Namespace) -> int:
    """Return how many batches take some seconds: those in memory, with no model, take 2 ms each."""
    repeats = 20 if (case, sink) == ("memory", "null") else 1
    return repeats * int(options.batches)


def _summary(runs: list[Result], smallest: list[Result], batches: int) -> dict[str, Any]:
    moved = {name: sum(run["moved"][name] for run in runs) for name in runs[0]["moved"]}
    return {
        "batch_s": spread([s / batches for s in column(runs, "seconds")]),
        "processor_s": spread([s / batches for s in column(runs, "cpu_seconds")]),
        "batch_s to the smallest": ratio(column(runs, "seconds"), column(smallest, "seconds")),
        "processor_s to the smallest": ratio(column(runs, "cpu_seconds"), column(smallest, "cpu_seconds")),
        "hit_share": moved["cache_hits"] / moved["rows_gathered"],
        "moved": moved,
        "reports": [run["reports"] for run in runs],
    }


def _line(found: dict[str, Any]) -> str:
    wall, processor = found["batch_s to the smallest"], found["processor_s to the smallest"]
    return (
        f"{format_seconds(found['batch_s']['median'])} a batch, {wall['median']:.2f} of the smallest "
        f"({wall['least']:.2f} to {wall['most']:.2f}); processor {format_seconds(found['processor_s']['median'])}, "
        f"{processor['median']:.2f} ({processor['least']:.2f} to {processor['most']:.2f}); "
        f"hits {found['hit_share']:.1%}"
    )


if __name__ == "__main__":
    main()
