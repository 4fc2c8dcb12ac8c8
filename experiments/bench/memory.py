"""The memory budget against what is taken: every command, model and home of the features, over many budgets.

A run is `gloader prepare`, `train` (which evaluates, too) or `infer`, a process each. What counts is anonymous memory
(Anonymous and Pss_Shmem of `smaps_rollup`, of the process and its children, read every few milliseconds) less that of
a bare `import torch`: at most the budget. As root, each runs in a control group (v1) of exactly that: budget and
interpreter, with its page cache and the kernel's own memory. A run that the budget is too small for has to say so, and
is marked as refused.

Three graphs for each budget, all made for it, so that it is full: one whose features do not fit (`ssd`, from numpy
files), one whose features fit barely (`ram`, its edges from a CSV file), and one whose topology takes more than half
(`paged`, made up by gloader). What is run again replaces its row in the file; the others stay.

    python experiments/bench/memory.py --workdir DIR --out experiments/results/DATE-memory.json

With --matrix small graphs of one and of several types are trained on instead: models, homes of features and of edges,
one rank and two, compiled kernels or none, with budgets from the least that `gloader train` says is enough upwards.

    python experiments/bench/memory.py --matrix --workdir DIR --out experiments/results/DATE-budget.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from control_group import limited
from measure_memory import bare_torch_bytes, measure, paths
from memory_cases import MATRIX_SOURCES, Case, matrix_cases, write_graphs

from gloader.core.units import format_bytes, parse_bytes
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup/memory")
MB = 1_000_000
_REFUSED = 2  # the exit status of a budget that is too small
_BATCHES = 12  # of an epoch: enough for caches to be full
_PIECE_BYTES = 64 * MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph that fills a budget."""

    home: str  # "ssd", "ram" or "paged"
    num_nodes: int
    num_edges: int
    dim: int
    batch_size: int
    train_share: float

    @property
    def source(self) -> str:
        """Return what it is prepared from."""
        return {"ssd": "npy", "ram": "csv", "paged": "synthetic"}[self.home]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One command, and what it took."""

    command: str
    model: str
    features: str
    budget_bytes: int
    outcome: str  # "done", "refused", "killed" or the error
    peak_bytes: int  # of anonymous memory above a bare `import torch`
    group_peak_bytes: int | None  # with page cache and kernel memory; None: no group
    seconds: float
    words: str
    commit: str
    own_peak_bytes: int | None = None  # as the program says; None: it said nothing

    @property
    def over_bytes(self) -> int:
        """By how much the budget was exceeded; negative where it was not."""
        return self.peak_bytes - self.budget_bytes

    @property
    def holds(self) -> bool:
        """Whether it stayed within its budget, or said that it cannot."""
        own = self.own_peak_bytes or 0
        return max(self.over_bytes, own - self.budget_bytes) <= 0 and self.outcome in {"done", "refused"}

    @property
    def key(self) -> tuple[int, str, str, str]:
        """What no two rows share, in the order of the table."""
        return self.budget_bytes, self.features, self.command, self.model


def graph_of(home: str, budget_bytes: int) -> Graph:
    """Return a graph that fills a budget. Pure."""
    # Wider rows for large budgets, of which fewer batches fill a cache; and no more than 64 floats where edges matter.
    dim = 128 if budget_bytes < 3_000 * MB else 512
    batch_size = 256 if budget_bytes < 2_000 * MB else 1024 if budget_bytes < 8_000 * MB else 4096
    if home == "paged":
        num_edges = int(0.6 * budget_bytes / 4)
        num_nodes, dim = num_edges // 40, 64
    else:
        # All rows, where they stay on the SSD, are more than a cache can be; in memory they leave room for a step.
        on_ssd = 1.1 if budget_bytes < 3_000 * MB else 0.75
        share = on_ssd if home == "ssd" else 0.7 - 105 * MB / budget_bytes
        num_nodes = int(share * budget_bytes / (4 * dim))
        num_edges = (10 if home == "ssd" else 5) * num_nodes  # lines of CSV are slow to write
    return Graph(
        home=home,
        num_nodes=num_nodes,
        num_edges=num_edges,
        dim=dim,
        batch_size=batch_size,
        train_share=min(0.6, _BATCHES * batch_size / num_nodes),
    )


def main() -> None:
    """Run every combination, print the table and write it."""
    args = _parse()
    bare = bare_torch_bytes()
    print(f"bare import torch: {format_bytes(bare)} of anonymous memory", flush=True)
    runs: dict[tuple[int, str, str, str], Run] = {}
    with tempfile.TemporaryDirectory(dir=args.workdir, prefix="gloader-memory-") as name:
        for run in matrix(Path(name), args, bare=bare) if args.matrix else ():
            print(_line(run), flush=True)
            runs = _earlier(args.out) | runs | {run.key: run}
            if args.out is not None:
                _write(args.out, runs, bare=bare)
        for budget in () if args.matrix else args.budgets:
            for home in args.features:
                bench = _Bench(Path(name), budget, graph_of(home, budget), bare=bare, args=args)
                for run in bench.runs():
                    print(_line(run), flush=True)
                    # Others may add their rows meanwhile.
                    runs = _earlier(args.out) | runs | {run.key: run}
                    if args.out is not None:
                        _write(args.out, runs, bare=bare)
                bench.close()
    print(markdown(list((_earlier(args.out) | runs).values()), bare=bare))
    if not all(run.holds for run in runs.values()):
        raise SystemExit("a run exceeded its budget")


class _Bench:
    """The runs with one budget and one home of the features."""

    def __init__(
        self, folder: Path, budget: int, graph: Graph, *, bare: int, args: argparse.Namespace
    ) -> None:
        self._budget, self._graph, self._bare, self._args = budget, graph, bare, args
        self._dataset, self._out = folder / "dataset", folder / "run"
        self._source = folder / "source"
        self._folder = folder
        self._commit = str(provenance()["commit"])

    def runs(self) -> Iterator[Run]:
        """Prepare, then train and predict with each model."""
        graph = self._graph
        words = write_source(graph, self._source)
        yield self._run(f"prepare {graph.source}", "-", "prepare", *words, str(self._dataset))
        shutil.rmtree(self._source, ignore_errors=True)
        for model in self._args.models:
            shutil.rmtree(self._out, ignore_errors=True)
            train = self._run(
                "train, evaluate", model, "train", "--dataset", str(self._dataset), "--out", str(self._out),
                "--model", model, "--features", "ram" if graph.home == "ram" else "ssd", "--fanout", "10,10",
                "--batch-size", str(graph.batch_size), "--hidden", "64", "--epochs", "1", "--json",
            )  # fmt: skip
            yield train
            if train.outcome == "done":
                yield self._run(
                    "infer", model, "infer", "--dataset", str(self._dataset), "--checkpoint", str(self._out), "--out",
                    str(self._folder / "predicted.npy"),
                )  # fmt: skip

    def _run(self, command: str, model: str, *words: str) -> Run:
        cold = self._folder / "kernels"
        shutil.rmtree(cold, ignore_errors=True)
        limit = self._budget + self._bare
        line = [sys.executable, "-m", "gloader", *words, "--memory-budget", str(self._budget)]
        with limited(self._args.cgroup, limit) as group:
            env = {"NUMBA_CACHE_DIR": str(cold)} if self._args.cold else {}
            began = time.perf_counter()
            code, error, peak = measure(line, group=group, env=env)
            seconds = time.perf_counter() - began
            group_peak, was_killed = None, False
            if group is not None:
                group_peak = int((group / "memory.max_usage_in_bytes").read_text())
                was_killed = "oom_kill 0" not in (group / "memory.oom_control").read_text()
        refused = code == _REFUSED and "budget" in error
        outcome = "killed" if was_killed else "done" if code == 0 else "refused" if refused else error[-300:]
        return Run(
            command=command,
            model=model,
            features=self._graph.home,
            budget_bytes=self._budget,
            outcome=outcome,
            peak_bytes=max(0, peak - self._bare),
            group_peak_bytes=group_peak,
            seconds=seconds,
            words=" ".join(words).replace(str(self._folder), "FOLDER"),
            commit=self._commit,
        )

    def close(self) -> None:
        """Remove the dataset."""
        shutil.rmtree(self._dataset, ignore_errors=True)


def matrix(folder: Path, args: argparse.Namespace, *, bare: int) -> Iterator[Run]:
    """Yield the runs of every case: each with the least budget that is enough, then each with the next larger one."""
    write_graphs(folder)
    for name, source in MATRIX_SOURCES.items():
        line = [sys.executable, "-m", "gloader", "prepare", *source, str(folder / name), "--json"]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env=os.environ | paths())
    commit = str(provenance()["commit"])
    known = {} if args.least is None else json.loads(args.least.read_text())
    cases = [
        case for case in matrix_cases() if not args.cases or any(word in case.title for word in args.cases)
    ]

    def run(case: Case, budget: int) -> Run:
        return _matrix_run(folder, case, budget, bare=bare, commit=commit)

    with ThreadPoolExecutor(args.jobs) as pool:
        least = {case: known[case.title] for case in cases if case.title in known}
        asked = [case for case in cases if case not in least]
        for case, refused in zip(asked, pool.map(partial(run, budget=50 * MB), asked), strict=True):
            named = re.search(r"--memory-budget (\w+) or more", refused.outcome)
            if named is None:
                yield refused
            else:
                least[case] = parse_bytes(named[1])
                print(f"{case.title}: {named[1]} or more, said in {refused.seconds:.0f} s", flush=True)
        for factor in args.factors:
            yield from pool.map(lambda case, by=factor: run(case, int(by * least[case])), least)


def _matrix_run(folder: Path, case: Case, budget: int, *, bare: int, commit: str) -> Run:
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks), "-m"]
    words = [*case.words, "--dataset", str(folder / case.graph), "--epochs", "1", "--json", "--device", "cpu"]
    line = [sys.executable, "-m", *(ranks if case.ranks > 1 else []), "gloader", "train", *words]
    with tempfile.TemporaryDirectory(dir=folder) as own:
        out = Path(own, "run")
        env = {"NUMBA_CACHE_DIR": f"{own}/kernels"} if case.is_cold else {}
        began = time.perf_counter()
        code, error, peak = measure(
            [*line, "--out", str(out), "--memory-budget", str(budget)],
            group=None,
            env=env,
            is_launcher=case.ranks > 1,
        )
        result = json.loads((out / "result.json").read_text()) if code == 0 else {}
    return Run(
        command=f"train {case.name}",
        model=case.model,
        features=case.graph,
        budget_bytes=budget,
        outcome="done" if code == 0 else _why(error),
        peak_bytes=max(0, peak - case.ranks * bare),
        group_peak_bytes=None,
        seconds=time.perf_counter() - began,
        words=" ".join(words).replace(str(folder), "FOLDER"),
        commit=commit,
        own_peak_bytes=result.get("peak_anonymous_bytes"),
    )


def _why(error: str) -> str:
    """Return the budget that a refusal names, or the end of another error. Pure."""
    named = re.search(r"--memory-budget \w+ or more", error)
    return error[-300:] if named is None else f"refused: {named[0]}"


def write_source(graph: Graph, folder: Path) -> list[str]:
    """Write what a graph is prepared from; return the words of `gloader prepare` that name it.

    Parameters
    ----------
    graph : its sizes
    folder : made for it; removed by the caller
    """
    share = graph.train_share
    if graph.source == "synthetic":
        sizes = f"nodes={graph.num_nodes},edges={graph.num_edges},dim={graph.dim}"
        return [f"synthetic:rmat,{sizes},classes=8,seed=5,train={share:.6f},valid={share:.6f}"]
    folder.mkdir()
    rng = np.random.default_rng(5)
    # What the features are makes no difference: some rows, again and again.
    rows = rng.standard_normal((_PIECE_BYTES // (4 * graph.dim), graph.dim), dtype=np.float32)
    with (folder / "features.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (graph.num_nodes, graph.dim)}
        )
        for first in range(0, graph.num_nodes, len(rows)):
            file.write(rows[: graph.num_nodes - first].data)
    np.save(folder / "labels.npy", rng.integers(0, 8, graph.num_nodes))
    count = int(share * graph.num_nodes)
    splits = np.split(rng.permutation(graph.num_nodes)[: 3 * count], [count, 2 * count])
    for name, ids in zip(("train", "valid", "test"), splits, strict=True):
        np.save(folder / f"{name}.npy", ids)
    # Some nodes are asked for more often than others.
    sources = (graph.num_nodes * rng.random(graph.num_edges, np.float32) ** 2).astype(np.int32)
    np.minimum(sources, graph.num_nodes - 1, out=sources)
    targets = rng.integers(0, graph.num_nodes, graph.num_edges, np.int32)
    if graph.source == "npy":
        np.save(folder / "edge_index.npy", np.stack([sources, targets]))
        return [f"npy:{folder}"]
    with (folder / "edges.csv").open("w") as lines:
        lines.write("src,dst\n")
        for first in range(0, graph.num_edges, 1 << 20):
            part = slice(first, first + (1 << 20))
            pairs = zip(sources[part].tolist(), targets[part].tolist(), strict=True)
            lines.writelines(f"{source},{target}\n" for source, target in pairs)
    return [
        f"edges:{folder / 'edges.csv'}", "--features", str(folder / "features.npy"), "--labels",
        str(folder / "labels.npy"), "--splits", str(folder),
    ]  # fmt: skip


def markdown(runs: list[Run], *, bare: int) -> str:
    """Return the table of all runs. Pure."""
    lines = [
        f"Anonymous memory above a bare `import torch` ({format_bytes(bare)}), in MB: from outside, and the own line.",
        "",
        "| command | model | features | budget | peak | own line | over by | group peak | outcome |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in sorted(runs, key=lambda run: run.key):
        group = "-" if run.group_peak_bytes is None else f"{run.group_peak_bytes / MB:,.0f}"
        cells = (
            run.command,
            run.model,
            run.features,
            f"{run.budget_bytes / MB:,.0f}",
            f"{run.peak_bytes / MB:,.0f}",
            "-" if run.own_peak_bytes is None else f"{run.own_peak_bytes / MB:,.0f}",
            f"{run.over_bytes / MB:+,.0f}",
            group,
            run.outcome + ("" if run.holds else " **exceeded**"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    held = sum(run.holds for run in runs)
    return "\n".join([*lines, "", f"{held} of {len(runs)} runs held.", ""])


def by_budget(runs: list[Run]) -> list[dict[str, Any]]:
    """Return what the runs with each budget took. Pure."""
    found = []
    for budget in sorted({run.budget_bytes for run in runs}):
        mine = [run for run in runs if run.budget_bytes == budget]
        found.append(
            {
                "budget": format_bytes(budget),
                "num_runs": len(mine),
                "num_held": sum(run.holds for run in mine),
                "num_refused": sum(run.outcome == "refused" for run in mine),
                "most_bytes": max(run.peak_bytes for run in mine),
                "allowed_bytes": budget,
            }
        )
    return found


def _earlier(out: Path | None) -> dict[tuple[int, str, str, str], Run]:
    """Return the rows that a file has."""
    if out is None or not out.exists():
        return {}
    rows: list[dict[str, Any]] = json.loads(out.read_text())["runs"]
    derived = {"over_bytes", "holds"}
    runs = [Run(**{name: row[name] for name in row.keys() - derived}) for row in rows]
    return {run.key: run for run in runs}


def _write(out: Path, runs: dict[tuple[int, str, str, str], Run], *, bare: int) -> None:
    rows = [
        asdict(run) | {"over_bytes": run.over_bytes, "holds": run.holds} for _, run in sorted(runs.items())
    ]
    found = provenance() | {"bare_torch_bytes": bare, "budgets": by_budget(list(runs.values())), "runs": rows}
    out.write_text(json.dumps(found, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(list(runs.values()), bare=bare))


def _line(run: Run) -> str:
    mark = "ok " if run.holds else "BAD"
    return (
        f"{mark} {run.command:17} {run.model:10} {run.features:5} budget {run.budget_bytes / MB:6,.0f} MB "
        f"peak {run.peak_bytes / MB:6,.0f} over {run.over_bytes / MB:+6,.0f} group "
        f"{(run.group_peak_bytes or 0) / MB:6,.0f} {run.seconds:5.0f} s {run.outcome}"
    )


def _parse() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workdir", type=Path, help="where datasets are made: 2.5 times the largest budget")
    parser.add_argument("--budgets", type=lambda text: [parse_bytes(word) for word in words(text)],
                        default="300MB,512MB,1GB,2GB,4GB,8GB")  # fmt: skip
    parser.add_argument("--models", type=words, default="graphsage,gcn,gat")
    parser.add_argument("--features", type=words, default="ssd,ram,paged")
    parser.add_argument(
        "--matrix", action="store_true", help="small graphs, every kind of run, least budgets"
    )
    parser.add_argument(
        "--cases", type=words, default=[], help="of the matrix: those whose names have a word"
    )
    parser.add_argument("--factors", type=lambda text: [float(word) for word in words(text)],
                        default="1,1.1,1.3,1.7,2.5", help="of the least budget")  # fmt: skip
    parser.add_argument(
        "--least", type=Path, help="of the matrix: JSON, the least budgets of cases that are known, in bytes"
    )
    parser.add_argument("--jobs", type=int, default=2, help="of the matrix: runs at a time")
    parser.add_argument("--cold", action="store_true", help="compile every kernel in every run")
    parser.add_argument("--cgroup", type=Path, default=CGROUP, help="where groups are made")
    parser.add_argument("--out", type=Path, help="JSON file; the table is written beside it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
