"""Edges beyond memory: sweeps against pages read batch by batch, mapped edges, and edges in memory.

    python experiments/bench/topology.py --workdir /some/disk --out experiments/results/DATE-topology.json
    python experiments/bench/topology.py --dataset DIR --workdir /some/disk --memory-budget 4GB
    python experiments/bench/topology.py --workdir /some/disk --quick

sampling  Seconds of a batch with nothing but its topology: rows of one column, in memory, of the same edges.
          sweep     the loader's passes over the edges, once the wavefront is full, over whole topology superbatches
          direct    the loader, whose batches read their pages, and keep some
          mapped    this project's sampler over a mapping of the edges, as the product had it, in as many threads
          memmap    numpy alone, as DGL's and PyG's users do it: each hop indexes a numpy.memmap once
          ram       the loader with the edges in memory, without a limit: what the machine can do
epoch     Seconds of a batch with the features on the SSD too and a consumer that looks at a number of each row: edges
          in sweeps against edges in memory, with a budget that is larger by their bytes, so that the features get the
          same; over the same batches, once the wavefront is full.

Every run is a process of its own in a memory control group of its own (version 1, as root; without one it goes on and
says so). Its limit, which counts the page cache, is the budget and --allowance for what the budget does not count:
Python, libraries, code. The contenders take turns, and who begins a round changes; figures are medians, ratios those of
the rounds. Files are not in the page cache when a run begins. What was made of graphs stays in the working folder.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from control_group import GROUPS, GroupWatch, call_child, limited
from pipeline_runs import drop_from_page_cache, is_void, turns
from topology_graphs import make_graph, thin_view
from topology_summary import markdown, summarize

from gloader import Dataset
from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.lab.bench.environment import provenance
from gloader.ssd_store.cost.device_rates import rates_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Job = dict[str, Any]
Run = dict[str, Any]
CHILD = Path(__file__).with_name("topology_child.py")
SAMPLING = ("sweep", "direct", "mapped", "memmap", "ram")
EPOCH = ("sweep", "ram")
PARTS = ("sampling", "epoch")
_GRACE_S = 900.0  # of starting, and of a superbatch that was begun before the time was over


def main() -> None:
    """Run the parts and write the results."""
    options = read_arguments()
    workdir = options.workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    os.environ["GLOADER_HOME"] = str(workdir / "home")
    path = options.dataset or make_graph(
        workdir, scale=options.scale, dim=options.dim, memory_budget=options.memory_budget
    )
    dataset = Dataset.open(path)
    result: dict[str, Any] = {
        "benchmark": "topology",
        **provenance(),
        "graph": {
            "source": dataset.metadata.get("source"),
            "num_nodes": dataset.num_nodes,
            "num_edges": dataset.num_edges,
            "edge_bytes": dataset.arrays["indices"].num_bytes,
            "feature_bytes": dataset.feature_bytes,
        },
        "options": {name: str(value) for name, value in vars(options).items() if not isinstance(value, Path)},
        "disk": disk_rates(dataset, workdir),
        "parts": {},
    }
    with tempfile.TemporaryDirectory(prefix="gloader-topology-", dir=workdir) as scratch:
        for part in options.parts:
            jobs = (sampling_jobs if part == "sampling" else epoch_jobs)(options, path, workdir, scratch)
            if not options.quick:
                warm_up(jobs, workdir, options)
            result["parts"][part] = in_turns(part, jobs, options)
            result["summary"] = {name: summarize(name, runs) for name, runs in result["parts"].items()}
            write(result, options.out)
    print(markdown(result))


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; kept")
    parser.add_argument("--out", type=Path, help="JSON file for the results; a page goes beside it, as .md")
    parser.add_argument("--dataset", type=Path, help="on the same disk; else one is made")
    parser.add_argument("--scale", type=float, default=0.1, help="of 30 M nodes and 900 M edges")
    parser.add_argument("--dim", type=int, default=128, help="of the graph that is made")
    parser.add_argument("--quick", action="store_true", help="a tiny graph and a few batches, in seconds")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--ways", default=",".join(SAMPLING), help="of sampling, some of them")
    parser.add_argument("--memory-budget", type=parse_bytes, default=parse_bytes("4GB"))
    parser.add_argument(
        "--allowance",
        type=parse_bytes,
        default=parse_bytes("600MB"),
        help="of the limit, beside the budget",
    )
    parser.add_argument("--spill-budget", type=parse_bytes, default=parse_bytes("10GB"))
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10, 10])
    parser.add_argument("--threads", type=int, default=2, help="that sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=16, help="timed, of those that read for each batch")
    parser.add_argument("--swept-batches", type=int, default=512, help="timed, at least, of those that sweep")
    parser.add_argument(
        "--epoch-batches", type=int, default=512, help="timed, at least, with the features on the SSD"
    )
    parser.add_argument(
        "--deadline", type=float, default=300.0, help="seconds of a run; what it began is ended"
    )
    parser.add_argument("--cgroup", type=Path, default=GROUPS, help="where groups are made")
    options = parser.parse_args(words)
    if options.quick:
        options.scale, options.dim, options.batch_size, options.rounds = 0.0005, 16, 64, 1
        options.memory_budget, options.spill_budget = parse_bytes("100MB"), parse_bytes("20MB")
        options.batches = options.swept_batches = options.epoch_batches = 4
    options.parts, options.ways = options.parts.split(","), options.ways.split(",")
    for flag, given, known in (("--parts", options.parts, PARTS), ("--ways", options.ways, SAMPLING)):
        if unknown := set(given) - set(known):
            parser.error(f"{flag}: {', '.join(sorted(unknown))} unknown; allowed: {', '.join(known)}")
    return options


def disk_rates(dataset: Dataset, workdir: Path) -> dict[str, float]:
    """Measure the disk anew; the runs take what was measured here."""
    rates = rates_of(dataset.features_path, workdir, refresh=True)
    print(
        f"disk: {rates.random_reads_per_s:,.0f} reads/s of 4 KiB, {format_bytes(rates.read_bytes_per_s)}/s in order, "
        f"{format_bytes(rates.write_bytes_per_s)}/s written; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return {
        "random_reads_per_s": rates.random_reads_per_s,
        "read_bytes_per_s": rates.read_bytes_per_s,
        "write_bytes_per_s": rates.write_bytes_per_s,
    }


def sampling_jobs(options: argparse.Namespace, path: Path, workdir: Path, scratch: str) -> dict[str, Job]:
    """Return a job for each way to get at edges, with features that cost nothing."""
    thin = thin_view(path, workdir)
    jobs = {}
    for way in options.ways:
        job = base_job(options, thin, scratch, way, features="ram")
        jobs[way] = job | {
            "batches": options.swept_batches if way == "sweep" else options.batches,
            "deadline_s": options.deadline,
            "limit_bytes": None if way == "ram" else options.memory_budget + options.allowance,
        }
    return jobs


def epoch_jobs(options: argparse.Namespace, path: Path, workdir: Path, scratch: str) -> dict[str, Job]:  # noqa: ARG001 - as `sampling_jobs`
    """Return the jobs of edges in sweeps and in memory, with features on the SSD."""
    jobs = {}
    for way in EPOCH:
        job = base_job(options, path, scratch, way, features="ssd")
        jobs[way] = job | {
            "sink": "touch",
            "batches": options.epoch_batches,
            "deadline_s": options.deadline,
            "limit_bytes": job["loader"]["memory_budget"] + options.allowance,
        }
    return jobs


def base_job(options: argparse.Namespace, dataset: Path, scratch: str, way: str, *, features: str) -> Job:
    """Return what all runs have in common; with edges in memory, the budget is larger by their bytes."""
    edges = Dataset.open(dataset).arrays["indices"].num_bytes if way == "ram" else 0
    return {
        "way": way,
        "dataset": str(dataset.resolve()),
        "warm": options.batches // 4 if features == "ram" else 0,
        "sink": "null",
        "threads": options.threads,
        "loader": {
            "fanouts": options.fanouts,
            "batch_size": options.batch_size,
            "features": features,
            "topology": way if way in {"sweep", "direct", "ram"} else "auto",
            "memory_budget": options.memory_budget + edges,
            "spill_dir": scratch,
            "spill_budget": options.spill_budget,
            "threads": options.threads,
            "trace": True,
        },
    }


def warm_up(jobs: Mapping[str, Job], workdir: Path, options: argparse.Namespace) -> None:
    """Have every kernel compiled and remembered: each job once, on a tiny graph."""
    tiny = make_graph(workdir, scale=0.0005, dim=16, memory_budget=parse_bytes("200MB"))
    for job in jobs.values():
        dataset = tiny if job["loader"]["features"] == "ssd" else thin_view(tiny, workdir)
        loader = job["loader"] | {"batch_size": 64, "memory_budget": parse_bytes("60MB")}
        found = run(
            job | {"dataset": str(dataset), "loader": loader, "batches": 2, "limit_bytes": None}, options
        )
        if "failed" in found:
            print(f"  {job['way']} fails on a tiny graph: {found['failed']}", flush=True)


def in_turns(part: str, jobs: Mapping[str, Job], options: argparse.Namespace) -> dict[str, list[Run]]:
    """Run every job once a round; return the runs of each. One that failed is not run again."""
    found: dict[str, list[Run]] = {name: [] for name in jobs}
    print(f"{part}:", flush=True)
    for name in turns(list(jobs), options.rounds):
        if found[name] and is_void(found[name][-1]):
            continue
        one = run(jobs[name], options)
        found[name].append(one)
        print(f"  {name}: {said(one)}", flush=True)
    return found


def run(job: Job, options: argparse.Namespace) -> Run:
    """Run one job on cold files in a group of its own."""
    drop_from_page_cache(Path(job["dataset"]))
    before = os.getloadavg()[0]
    with limited(options.cgroup, job["limit_bytes"]) as group:
        watch = GroupWatch(group, Path(job["loader"]["spill_dir"]))
        try:
            code, output, errors = call_child(CHILD, job, group=group, timeout_s=job["deadline_s"] + _GRACE_S)
        finally:
            memory = watch.stop()
    found: Run = {"failed": f"exit {code}: {errors.strip()[-2000:]}"}
    if code == 0:
        found = dict(json.loads(output.splitlines()[-1]))
    return found | memory | {"limit_bytes": job["limit_bytes"] if group else None, "load_average": before}


def said(one: Run) -> str:
    """Return a run in a line. Pure."""
    if "failed" in one:
        return f"failed: {one['failed']}"
    peak = one.get("group_peak_anonymous_bytes")
    return (
        ("" if one["is_full"] else "while the wavefront fills: ")
        + f"{format_seconds(one['batch_s'])} a batch over {one['batches']} batches from {one['first']} on, first after "
        f"{format_seconds(one['first_batch_s'])}, read {format_bytes(round(one['bytes_read']))} and wrote "
        f"{format_bytes(round(one['bytes_written']))} a batch, {format_seconds(one['cpu_s'])} of processors a batch"
        + (f", at most {format_bytes(peak)} anonymous" if peak else "")
    )


def write(result: Mapping[str, Any], out: Path | None) -> None:
    """Write what there is so far."""
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
        out.with_suffix(".md").write_text(markdown(result) + "\n")


if __name__ == "__main__":
    main()
