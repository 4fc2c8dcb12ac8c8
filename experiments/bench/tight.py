"""Tight memory: rows of 6.5 KB under a hard limit, beside the Ginex way; and loading alone at 512 B rows.

    python experiments/bench/tight.py --workdir /some/disk --json experiments/results/DATE-tight.json
    python experiments/bench/tight.py --workdir /some/disk --parts loading

wide     A graph of the shape of a social network of 870,000 nodes and 67 M edges, 1,632 floats a row (5.7 GB):
         GraphSAGE 2 x 128, fan-out 10,10, batches of 1,024 of 50,000 seeds, under a hard limit of 2 GB (control group
         v1; as root). gloader against Ginex's way: one read per missed row, a cache that each superbatch begins anew.
loading  The same graph with rows of 512 B and a null sink: 10% cached, against all features in memory.

Every run is a process of its own; the contenders take turns and who begins a round changes. Printed are seconds of an
epoch, the first not counted, bytes read against what the missed rows hold, and the ratio of the rounds (median).
Graphs are made once and stay in the working folder (6.5 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from compare_contenders import choose
from compare_runs import run
from pipeline_graphs import Graph, make_dataset
from pipeline_runs import ratio, turns

from gloader import Dataset
from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.ssd_store.cost.device_rates import rates_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from compare_contenders import Contender
    from compare_runs import Run

_WIDE_DIM, _NARROW_DIM = 1632, 128
_FANOUTS = [10, 10]


def main() -> None:
    """Run the parts, print what came of them and write the JSON."""
    options = read_arguments()
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    os.environ["GLOADER_HOME"] = str(workdir / "home")
    results: dict[str, Any] = {}
    began = time.perf_counter()
    for name in options.parts.split(","):
        print(f"{name}:", flush=True)
        results[name] = PARTS[name](options, workdir)
    print(f"{time.perf_counter() - began:.0f} s in all")
    if options.json:
        report = {
            "benchmark": "tight",
            **provenance(),
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; kept")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3, help="of each run; the first is not counted")
    parser.add_argument("--nodes", type=int, default=870_000)
    parser.add_argument("--edges", type=int, default=67_000_000)
    parser.add_argument("--seeds", type=int, default=50_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--kind", default="social", help="of graph; see pipeline_graphs.py")
    parser.add_argument("--limit", type=parse_bytes, default=parse_bytes("2GB"), help="of part wide")
    parser.add_argument(
        "--beside",
        type=parse_bytes,
        default=parse_bytes("600MB"),
        help="of the limit: libraries and the training step",
    )
    parser.add_argument(
        "--spill-budget", type=parse_bytes, default=parse_bytes("40GB"), help="of gloader's packs"
    )
    parser.add_argument("--deadline", type=float, default=400.0, help="seconds of training a run")
    parser.add_argument(
        "--cgroup", type=Path, default=Path("/sys/fs/cgroup/memory"), help="where groups are made"
    )
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} unknown; allowed: {', '.join(PARTS)}")
    if options.epochs < 2 or options.rounds < 1:
        parser.error("--epochs must be at least 2, and --rounds 1")
    return options


def wide(options: argparse.Namespace, workdir: Path) -> dict[str, Any]:
    """Compare `gloader` with the Ginex way under the limit."""
    dataset = _dataset(options, workdir, _WIDE_DIM)
    limited: dict[str, Any] = {"features": "ssd", "memory_budget": options.limit - options.beside}
    found = _in_turns(
        options,
        workdir,
        dataset,
        {contender.name: (contender, limited) for contender in choose("gloader,gloader-ginex")},
        limit_bytes=options.limit,
    )
    return _compared(found, "gloader", "gloader-ginex", goal="0.6 at most, better 0.5")


def loading(options: argparse.Namespace, workdir: Path) -> dict[str, Any]:
    """Compare loading with a tenth of the features cached with loading from memory; nobody computes."""
    dataset = _dataset(options, workdir, _NARROW_DIM)
    cached: dict[str, Any] = {"features": "ssd", "cache": 0.1, "memory_budget": 800_000_000}
    whole: dict[str, Any] = {"features": "ram", "memory_budget": 2_000_000_000}
    contenders = dict(zip(("gloader", "gloader-memory"), choose("gloader,gloader-memory"), strict=True))
    found = _in_turns(
        options,
        workdir,
        dataset,
        {
            "gloader": (contenders["gloader"], cached),
            "gloader-memory": (contenders["gloader-memory"], whole),
        },
        limit_bytes=None,
    )
    return _compared(found, "gloader", "gloader-memory", goal="1.8 at most")


PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {"wide": wide, "loading": loading}


def _dataset(options: argparse.Namespace, workdir: Path, dim: int) -> Dataset:
    graph = Graph(kind=options.kind, nodes=options.nodes, edges=options.edges, dim=dim)
    dataset = Dataset.open(make_dataset(workdir, graph))
    rates = rates_of(dataset.features_path, workdir, refresh=True)
    print(
        f"  {graph.name}; disk: {rates.random_reads_per_s:,.0f} reads/s of 4 KiB, "
        f"{rates.medium_reads_per_s:,.0f} of 16, "
        f"{rates.wide_reads_per_s:,.0f} of 64, {format_bytes(rates.read_bytes_per_s)}/s in order, "
        f"{format_bytes(rates.write_bytes_per_s)}/s written; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return dataset


def _in_turns(
    options: argparse.Namespace,
    workdir: Path,
    dataset: Dataset,
    contenders: dict[str, tuple[Contender, dict[str, Any]]],
    *,
    limit_bytes: int | None,
) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory(prefix="gloader-tight-", dir=workdir) as scratch:
        seeds = Path(scratch) / "seeds.npy"
        rng = np.random.default_rng(0)
        np.save(
            seeds, np.sort(rng.choice(dataset.train, min(options.seeds, len(dataset.train)), replace=False))
        )
        for name in turns(list(contenders), options.rounds):
            contender, settings = contenders[name]
            job = {
                "system": contender.system,
                "home": contender.home,
                "dataset": str(dataset.root),
                "seeds": str(seeds),
                "settings": {
                    **contender.settings,
                    **settings,
                    "spill_dir": scratch,
                    "spill_budget": options.spill_budget,
                },
                "weights": scratch,
                "fanouts": _FANOUTS,
                "batch_size": options.batch_size,
                "hidden": 128,
                "lr": 0.003,
                "epochs": options.epochs,
                "deadline_s": options.deadline,
                "seed": 0,
                "computes": limit_bytes is not None,
            }
            found[name].append(run(job, parent=options.cgroup, limit_bytes=limit_bytes))
            _print(name, found[name][-1], 4 * dataset.feature_dim)
    return found


def _print(name: str, found: Run, row_bytes: int) -> None:
    print(f"  {name}: {found['outcome']}", flush=True)
    for epoch in found["epochs"]:
        missed = epoch["rows"] * (1 - epoch["hit_rate"]) * row_bytes
        epoch["missed_bytes"] = missed
        print(
            f"    epoch {epoch['epoch'] + 1}: {format_seconds(epoch['seconds'])}, waited "
            f"{format_seconds(epoch['wait_s'])}, missed {format_bytes(missed)}, "
            f"read {format_bytes(epoch['bytes_read'])} "
            f"({epoch['bytes_read'] / max(missed, 1):.2f} of it), wrote {format_bytes(epoch['bytes_written'])}",
            flush=True,
        )
    if found.get("group_peak_bytes"):
        print(f"    peak of the control group: {format_bytes(found['group_peak_bytes'])}", flush=True)
    for line in found.get("explanation", "").splitlines():
        print(f"      {line}", flush=True)


def _compared(found: dict[str, list[Run]], one: str, other: str, *, goal: str) -> dict[str, Any]:
    seconds = {
        name: [
            median(epoch["seconds"] for epoch in each["epochs"][1:])
            for each in runs
            if len(each["epochs"]) > 1
        ]
        for name, runs in found.items()
    }
    result: dict[str, Any] = {"runs": found, "epoch_s": seconds}
    if all(len(each) == len(found[one]) for each in seconds.values()):
        result["ratio"] = ratio(seconds[one], seconds[other])
        print(f"  {one} / {other}: {result['ratio']['median']:.2f} (goal: {goal})", flush=True)
    return result


if __name__ == "__main__":
    main()
