"""Costs of the pipeline and its overlap: strategies, overlap, epochs, first batches, predictions, memory.

    python experiments/bench/pipeline.py --workdir /some/disk --json experiments/results/DATE-pipeline.json
    python experiments/bench/pipeline.py --workdir /some/disk --quick --parts strategies,memory

strategies  seconds a batch with a null sink: io_strategy auto, direct, packed and staged, where that fits
overlap     seconds of a training step against the busiest resource: all processor seconds over the cores, or the disk
epoch       seconds of an epoch of GraphSAGE 3 x 256 with the features on the SSD, a tenth of them cached, and in memory
first       seconds from the call of Loader to the first batch, kernels compiled, files not in the page cache, and in it
explain     predicted against measured seconds of the superbatches
memory      bytes per access of traces and plans; the peak resident size against the budget and 400 MB
trace       seconds and processor seconds of a run that records what every stage does, over those of one that does not

Every run is a process of its own. The contenders of a part take turns for some rounds, and who begins a round changes;
a ratio is the median of the ratios of the rounds. Datasets are made once and stay in the working folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_graphs import Graph, make_dataset
from pipeline_parts import PARTS, Bench

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.ssd_store.cost.device_rates import rates_of

if TYPE_CHECKING:
    from gloader.ssd_store.cost.io_rates import IoRates


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; kept")
    parser.add_argument("--json", type=Path, help="also write the results here")
    parser.add_argument("--quick", action="store_true", help="small graphs; ends in a minute or two")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=2_000_000, help="of the R-MAT graph")
    parser.add_argument("--edges", type=int, default=40_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--superbatch", type=int, default=32)
    parser.add_argument("--superbatches", type=int, default=2, help="of full size, that are timed")
    parser.add_argument("--memory-budget", default="1.5GB", help="of the runs on the R-MAT graph")
    parser.add_argument("--wide-nodes", type=int, default=150_000, help="of the graph with rows of 6.5 KB")
    parser.add_argument("--wide-batch-size", type=int, default=64)
    parser.add_argument("--epoch-batch-size", type=int, default=64, help="of the runs that train")
    parser.add_argument("--epoch-batches", type=int, default=32)
    parser.add_argument("--first-nodes", type=int, nargs="+", default=[100_000, 2_000_000, 20_000_000])
    parser.add_argument("--first-seeds", type=int, help="of those nodes; every node where not given")
    parser.add_argument(
        "--cgroup",
        type=Path,
        help="a folder of the control group v1 memory controller below which a group may be made; part memory then "
        "also runs under that limit",
    )
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.edges, options.batch_size, options.superbatch = 200_000, 2_000_000, 64, 8
        options.memory_budget, options.wide_nodes, options.wide_batch_size = "250MB", 10_000, 16
        options.rounds, options.epoch_batch_size, options.epoch_batches = 1, 16, 8
        options.first_nodes = [20_000, 500_000]
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} unknown; allowed: {', '.join(PARTS)}")
    return options


def measure_disk(dataset: Path, workdir: Path) -> IoRates:
    """Measure the disk anew; the runs take what was measured here."""
    rates = rates_of(dataset / "features.npy", workdir, refresh=True)
    print(
        f"disk: {rates.random_reads_per_s:,.0f} random reads/s, {format_bytes(rates.read_bytes_per_s)}/s read, "
        f"{format_bytes(rates.write_bytes_per_s)}/s written; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return rates


def main() -> None:
    """Run the parts and write the results."""
    options = read_arguments()
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    os.environ["GLOADER_HOME"] = str(workdir / "home")
    print(f"free disk: {format_bytes(shutil.disk_usage(workdir).free)}", flush=True)
    base = Graph(kind="rmat", nodes=options.nodes, edges=options.edges, dim=options.dim)
    dataset = make_dataset(workdir, base)
    bench = Bench(
        options=options, workdir=workdir, base=base, budget_bytes=parse_bytes(options.memory_budget)
    )
    began = time.perf_counter()
    disk = [asdict(measure_disk(dataset, workdir))]
    results = {}
    for name in options.parts:
        print(f"\n{name}:", flush=True)
        results[name] = PARTS[name](bench)
    disk.append(asdict(measure_disk(dataset, workdir)))
    print(f"{time.perf_counter() - began:.0f} s in all")
    if options.json:
        report = {
            "benchmark": "pipeline",
            "options": {key: str(value) for key, value in vars(options).items()},
            "disk_before_and_after": disk,
            **provenance(),
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
