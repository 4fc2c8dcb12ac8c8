"""Trained rows on the SSD beside rows read on demand and beside a table in memory, over the same batches.

    python experiments/bench/embeddings.py --workdir DIR --out experiments/results/DATE-embeddings
    python experiments/bench/embeddings.py --workdir DIR --quick

train   A table ten times its cache, each row of it already on the disk. gloader's plan against a file with a cache of
        least recently used rows of the same bytes (io_uring, direct, 128 requests in flight, no look-ahead), and
        against torch's table in memory. "load": no network computes; "model": R-SAGE. gloader is in a memory control
        group (version 1; as root), so that the page cache is no second cache.
fits    A table that fits in memory: gloader with a slot for each row against torch's sparse optimizers.
stale   gloader as it is, and with a copy that waits for no step before it evicts: the most that staleness could gain.

Each contender is a process of its own; they take turns, and the order changes from round to round. All take the batches
of one long epoch, in spans of some batches. The first span of a phase is not counted. Seconds are those of a batch: the
median over spans and rounds. Ratios are medians of the ratios of each round. Processor time is that of all threads;
other programs hardly change it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from control_group import GROUPS, GroupWatch, call_child, limited
from embedding_baselines import drop, make_flat_file
from hetero_graphs import MAG_CLASSES, make_mag

from gloader import Dataset
from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Case = dict[str, Any]

DIM: Final = 128
WIDTHS: Final = {"rowwise-adagrad": DIM + 1, "adagrad": 2 * DIM, "sparse-adam": 3 * DIM}
CHILD: Final = Path(__file__).resolve().with_name("embedding_child.py")
STEP_BYTES: Final = (
    500 << 20
)  # of the limit: the training step of a network, which the loader's budget has no part of
PLANNED: Final = ("planned", "planned without waits")  # contenders in a control group
AIMS: Final = {
    "on demand to planned, load": ">= 5",
    "planned to torch, model": "<= 1.3",
    "bytes written to dirty bytes": "<= 2.2",
    "planned, all in slots to torch, load": "<= 1.1",
    "checkpoint to cache at the disk's rate": "about 1",
    "planned to planned without waits, model": ">= 1.3 for staleness",
}


def main() -> None:
    """Measure the parts, print the table and write it."""
    options = _options()
    options.workdir = options.workdir.resolve()
    options.workdir.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    cases: list[Case] = []
    for part in options.parts:
        for case in PARTS[part](options):
            cases.append(case)
            print(json.dumps(case["ratios"]), flush=True)
            _write(cases, options)
    print("\n".join(_lines(cases)))
    print(f"{time.perf_counter() - began:.0f} s in all")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, required=True, help="folder on the measured disk, 6 GB")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument(
        "--graphs", nargs="*", default=list(GRAPHS), choices=list(GRAPHS), help="of part train"
    )
    parser.add_argument("--nodes", type=int, default=4_000_000, help="of the graph of one type")
    parser.add_argument("--small", type=int, default=1_000_000, help="the same of part fits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=40, help="of a span")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--fanouts", type=int, nargs="*", default=[10, 10])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.1, help="of the table, in the cache")
    parser.add_argument("--budget", type=parse_bytes, default=parse_bytes("1.5GB"), help="of a loader")
    parser.add_argument("--superbatch", type=int, help="batches that are planned together")
    parser.add_argument("--quick", action="store_true", help="one round, smaller graphs")
    parser.add_argument("--out", type=Path, help="two files, .md and .json")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.nodes, options.small, options.graphs = 1, 2_000_000, 500_000, ["one"]
        options.batch_size, options.batches = 256, 24
    return options


def _train(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the figures of each graph whose table is larger than its cache."""
    for graph in options.graphs:
        data, job = GRAPHS[graph](options)
        num_rows = data.node_tables[job["type"]].num_nodes
        row_bytes = 4 * WIDTHS["rowwise-adagrad"]
        job |= {"optimizer": "rowwise-adagrad", "cache_bytes": int(options.share * num_rows * row_bytes)}
        job |= {"flat": str(_flat(num_rows, options)), "template": str(_template(data, job, options))}
        phases = [
            {"mode": "load", "spans": 3, "batches": options.batches},
            {"mode": "model", "spans": 2, "batches": options.batches},
        ]
        some = [{"mode": "load", "spans": 2, "batches": 10}, {"mode": "model", "spans": 2, "batches": 5}]
        jobs = {
            "planned": {**job, "phases": phases},
            "on demand": {**job, "phases": some},
            "torch": {**job, "phases": phases},
        }
        runs = _rounds(jobs, options.rounds if graph == "one" else max(1, options.rounds - 1), options)
        ratios = {}
        for mode in ("load", "model"):
            ratios[f"on demand to planned, {mode}"] = _ratio(runs, "on demand", "planned", mode)
            ratios[f"planned to torch, {mode}"] = _ratio(runs, "planned", "torch", mode)
            used = _ratio(runs, "planned", "torch", mode, "processor_s")
            ratios[f"processor time of planned to torch, {mode}"] = used
        yield {
            "part": "train",
            "graph": graph,
            "num_rows": num_rows,
            "row_bytes": row_bytes,
            "cache_bytes": job["cache_bytes"],
            "ratios": ratios | _own_ratios(runs["planned"], row_bytes),
            "runs": runs,
        }


def _fits(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the figures of each optimizer with the whole table in memory."""
    data, job = _one(options, options.small)
    num_rows = data.node_tables[job["type"]].num_nodes
    for name, width in WIDTHS.items():
        job |= {
            "optimizer": name,
            "cache_bytes": 4 * width * num_rows,
            "memory_budget": 12 * width * num_rows,
        }
        phases = [{"mode": "load", "spans": 3, "batches": options.batches // 2}]
        if name == "rowwise-adagrad":
            phases.append({"mode": "model", "spans": 3, "batches": options.batches // 2})
        own = "planned, all in slots"
        runs = _rounds(
            {own: {**job, "phases": phases}, "torch": {**job, "phases": phases}}, options.rounds, options
        )
        modes = [str(phase["mode"]) for phase in phases]
        yield {
            "part": "fits",
            "graph": "one",
            "optimizer": name,
            "num_rows": num_rows,
            "ratios": {f"{own} to torch, {mode}": _ratio(runs, own, "torch", mode) for mode in modes}
            | {
                f"processor time of {own} to torch, {mode}": _ratio(runs, own, "torch", mode, "processor_s")
                for mode in modes
            },
            "runs": runs,
        }


def _stale(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the figures of the plan with and without waits for steps."""
    data, job = _one(options, options.nodes)
    num_rows = data.node_tables[job["type"]].num_nodes
    row_bytes = 4 * WIDTHS["rowwise-adagrad"]
    job |= {"optimizer": "rowwise-adagrad", "cache_bytes": int(options.share * num_rows * row_bytes)}
    job |= {"template": str(_template(data, job, options))}
    phases = [{"mode": "model", "spans": 3, "batches": options.batches}]
    runs = _rounds({name: {**job, "phases": phases} for name in PLANNED}, max(1, options.rounds - 1), options)
    ratios = {
        f"{' to '.join(PLANNED)}, {phase['mode']}": _ratio(runs, *PLANNED, str(phase["mode"]))
        for phase in phases
    }
    yield {"part": "stale", "graph": "one", "num_rows": num_rows, "ratios": ratios, "runs": runs}


PARTS: Final = {"train": _train, "fits": _fits, "stale": _stale}


def _one(options: argparse.Namespace, num_nodes: int | None = None) -> tuple[Dataset, Case]:
    """Return the graph of one type, made where it is missing: destinations at random, sources skewed."""
    num_nodes = num_nodes or options.nodes
    folder = options.workdir / f"one-{num_nodes}"
    if not folder.exists():
        random = np.random.default_rng(1)
        ids = random.permutation(num_nodes)
        # Of N nodes, the most popular tenth has a third of the edges.
        sources = ids[(num_nodes * random.random(10 * num_nodes) ** 2).astype(np.int64)]
        edges = np.stack([sources, random.integers(0, num_nodes, 10 * num_nodes)])
        train, rest = np.split(random.permutation(num_nodes), [num_nodes // 2])
        Dataset.from_numpy_hetero(
            folder,
            num_nodes={"node": num_nodes},
            edges={("node", "to", "node"): edges},
            labels={"node": random.integers(0, 16, num_nodes)},
            num_classes=16,
            train=train,
            valid=rest[:1000],
            test=rest[1000:2000],
        )
    return Dataset.open(folder), _job(options, folder, "node")


def _mag(options: argparse.Namespace) -> tuple[Dataset, Case]:
    """Return a graph of ogbn-mag's shape, whose authors have trained rows beside the features of papers."""
    folder = options.workdir / "mag"
    if not folder.exists():
        graph = make_mag()
        rest = np.setdiff1d(np.arange(len(graph.labels)), graph.train)
        Dataset.from_numpy_hetero(
            folder,
            num_nodes=graph.num_nodes,
            features=graph.features,
            edges=dict(graph.edges),
            labels={"paper": graph.labels},
            num_classes=MAG_CLASSES,
            train=graph.train,
            valid=rest[:1000],
            test=rest[1000:2000],
        )
    return Dataset.open(folder), _job(options, folder, "author") | {"settings": {"features": "ram"}}


GRAPHS: Final[dict[str, Callable[[argparse.Namespace], tuple[Dataset, Case]]]] = {"one": _one, "mag": _mag}


def _job(options: argparse.Namespace, folder: Path, node_type: str) -> Case:
    """Return what the jobs on a graph have in common."""
    return {
        "part": "train",
        "dataset": str(folder),
        "type": node_type,
        "dim": DIM,
        "fanouts": options.fanouts,
        "batch_size": options.batch_size,
        "hidden": options.hidden,
        "memory_budget": options.budget,
        "superbatch": options.superbatch,
    }


def _flat(num_rows: int, options: argparse.Namespace) -> Path:
    """Return the file of rows that are read on demand."""
    path: Path = options.workdir / f"flat-{num_rows}"
    if not path.exists():
        make_flat_file(path, num_rows, WIDTHS["rowwise-adagrad"])
    return path


def _template(data: Dataset, job: Case, options: argparse.Namespace) -> Path:
    """Return a table of which all rows are on the disk, in one run, made where it is missing."""
    folder: Path = options.workdir / f"table-{Path(data.root).name}"
    if not folder.exists():
        _call({**job, "part": "fill", "table": str(folder)}, None)
    return folder


def _rounds(jobs: dict[str, Case], rounds: int, options: argparse.Namespace) -> dict[str, list[Case]]:
    """Return the figures of each contender's runs."""
    runs: dict[str, list[Case]] = {name: [] for name in jobs}
    for number in range(rounds):
        for name in jobs if number % 2 == 0 else reversed(jobs):
            runs[name].append(_run({**jobs[name], "contender": name}, options))
            last = {key: value for key, value in runs[name][-1].items() if key != "spans"}
            seconds = [round(span["seconds"] / span["batches"], 4) for span in runs[name][-1]["spans"]]
            print(json.dumps({"contender": name, "batch_s": seconds, **last}), flush=True)
    return runs


def _run(job: Case, options: argparse.Namespace) -> Case:
    """Run a contender once, with cold files."""
    scratch: Path = options.workdir / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    limit = None
    if job["contender"].startswith("planned"):
        job = {**job, "table": str(scratch / "table"), "spill": str(scratch)}
        if "template" in job:  # files of a table never change, so that a copy may share them
            shutil.copytree(job["template"], job["table"], copy_function=os.link)
            limit = _call({**job, "part": "loaded"}, None)["anonymous_bytes"] + options.budget + STEP_BYTES
    drop(options.workdir)
    found = _call(job, limit)
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def _call(job: Case, limit: int | None) -> Case:
    """Return what a job prints, and the memory of its control group if it has a limit."""
    with limited(GROUPS, limit) as group:
        watch = GroupWatch(group)
        try:
            status, output, errors = call_child(CHILD, job, group=group, timeout_s=600)
        finally:
            peaks = watch.stop()
    if status != 0:
        raise SystemExit(f"{job.get('contender', job['part'])} ended with {status}: {errors[-3000:]}")
    found: Case = json.loads(output.splitlines()[-1])
    return {**found, **peaks, "limit_bytes": limit} if limit else found


def _seconds(run: Case, mode: str, unit: str) -> float:
    """Return the seconds of a batch, the median of the counted spans."""
    counted = [span for span in run["spans"] if span["mode"] == mode and span["counts"]]
    return float(statistics.median(span[unit] / span["batches"] for span in counted))


def _ratio(runs: dict[str, list[Case]], own: str, peer: str, mode: str, unit: str = "seconds") -> list[float]:
    """Return a contender's seconds to another's, the ratio of each round."""
    pairs = zip(runs[own], runs[peer], strict=True)
    return [round(_seconds(one, mode, unit) / _seconds(other, mode, unit), 3) for one, other in pairs]


def _own_ratios(runs: list[Case], row_bytes: int) -> dict[str, list[float]]:
    """Return each run's written bytes to those of changed rows that left the cache, and its checkpoint's seconds."""
    found: dict[str, list[float]] = {}
    for run in runs:
        counted = [span for span in run["spans"] if span["counts"]]
        dirty = row_bytes * sum(span["dirty_evictions"] for span in counted)
        for name, key in (("by counters", "bytes_written"), ("by /proc", "write_bytes")):
            written = sum(span[key] for span in counted)
            found.setdefault(f"bytes written to dirty bytes, {name}", []).append(round(written / dirty, 3))
        found.setdefault("checkpoint to cache at the disk's rate", []).append(
            round(run["checkpoint_s"] / run["write_cache_s"], 3)
        )
    return found


def _write(cases: list[Case], options: argparse.Namespace) -> None:
    if options.out is None:
        return
    body = {**provenance(), "options": {name: str(value) for name, value in vars(options).items()}}
    body["options"]["workdir"] = "DIR"
    text = json.dumps({**body, "cases": cases}, indent=1).replace(str(options.workdir), "DIR")
    options.out.with_suffix(".json").write_text(text + "\n", "utf-8")
    machine = body["machine"]
    shape = f"{machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB, load {machine['load_average_1min']:.1f}"
    foot = f"`{body['command']}`, {shape}; the commit is in the JSON beside this file."
    lines = [*_lines(cases), "", foot]
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n", "utf-8")


def _lines(cases: list[Case]) -> Iterator[str]:
    """Yield the tables."""
    yield "| part | graph | ratio | median | rounds | aim |"
    yield "|---|---|---|---|---|---|"
    for case in cases:
        graph = f"{case['graph']}, {case['num_rows']:,} rows" + (
            f", {case['optimizer']}" if "optimizer" in case else ""
        )
        for name, values in case["ratios"].items():
            aim = next((AIMS[key] for key in AIMS if name.startswith(key)), "")
            rounds = ", ".join(f"{value:.2f}" for value in values)
            yield f"| {case['part']} | {graph} | {name} | {statistics.median(values):.2f} | {rounds} | {aim} |"
    yield ""
    yield "| part | graph | contender | phase | a batch | its rows | read | written | anonymous memory |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for case in cases:
        for name, runs in case["runs"].items():
            for mode in ("load", "model"):
                if any(span["mode"] == mode for span in runs[0]["spans"]):
                    yield f"| {case['part']} | {case['graph']} | {name} | {mode} | {_cells(runs, mode)} |"


def _cells(runs: list[Case], mode: str) -> str:
    """Return the cells of a contender's phase."""
    spans = [span for run in runs for span in run["spans"] if span["mode"] == mode and span["counts"]]

    def per_batch(name: str) -> float:
        return float(statistics.median(span[name] / span["batches"] for span in spans))

    cells = [
        format_seconds(per_batch("seconds")),
        f"{per_batch('rows'):,.0f}",
        *(f"{format_bytes(per_batch(name))}" for name in ("read_bytes", "write_bytes")),
        format_bytes(max(span["anonymous_bytes"] for span in spans)),
    ]
    return " | ".join(cells)


if __name__ == "__main__":
    main()
