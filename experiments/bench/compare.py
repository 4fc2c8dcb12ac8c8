"""gloader beside what people use today: one graph, model, limit and evaluation, a process for each contender.

    python experiments/bench/compare.py --workdir /some/disk --out experiments/results/DATE-compare.json
    python experiments/bench/compare.py --workdir /some/disk --quick

All contenders train the same GraphSAGE (gloader's convolutions, on the blocks of each) on the same seeds, fan-outs and
batch size, on files that are not in the page cache. Those whose features are on the disk share a memory limit, page
cache included (control group v1; as root): ``--libraries``, the topology as stored, ``--budget-share`` of the feature
bytes, and ``--headroom`` for batches in the making. gloader gets the limit less the libraries as its memory budget. A
contender that the kernel kills, or that runs out of ``--deadline``, is a result.

Every round runs all of them, and who begins changes; the first tries the settings of each peer, of which the
fastest goes on. Beside the JSON come a table (.md) and charts (.svg); `gloader report`
makes a page of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from compare_accuracy import Evaluator
from compare_contenders import QUICK, Contender, Settings, choose
from compare_runs import Run, run
from compare_summary import choose_target, later_seconds, summarize
from pipeline_runs import turns

from gloader import Dataset
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.units import format_bytes, format_seconds, parse_bytes
from gloader.errors import GloaderError
from gloader.lab.bench.environment import provenance, versions
from gloader.lab.report.comparison import Comparison, comparison_charts
from gloader.lab.report.page import as_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.types import IdArray

_GRAPHS = {
    "rmat": "synthetic:rmat,nodes={nodes},edges={edges},dim={dim},classes=8,seed=5",
    "community": "synthetic:community,nodes={nodes},edges={edges},dim={dim},classes=16,seed=5",
}
_MANIFEST = "dataset.json"


def main() -> None:
    """Compare on every graph, and write what came of it."""
    options = read_arguments()
    contenders = choose(options.contenders)
    options.workdir.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOADER_HOME", str(options.workdir / "home"))
    began = time.perf_counter()
    comparisons = [compare(graph, contenders, options) for graph in options.graphs.split(",")]
    result: dict[str, Any] = {
        "benchmark": "compare",
        "comparisons": comparisons,
        "seconds": time.perf_counter() - began,
        "read_ahead_kb": read_ahead(),
        **provenance(),
        "versions": all_versions(),
    }
    if options.out is not None:
        write(options.out, result)
    print(f"done in {format_seconds(result['seconds'])}", flush=True)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    quick = "--quick" in sys.argv
    parser.add_argument("--workdir", type=Path, required=True, help="on the disk to measure; graphs stay")
    parser.add_argument(
        "--out", type=Path, help="JSON file for the results; tables and pictures go beside it"
    )
    parser.add_argument("--quick", action="store_true", help="a small graph and few contenders; two minutes")
    parser.add_argument("--contenders", default=",".join(QUICK) if quick else "all")
    parser.add_argument("--graphs", default="rmat" if quick else ",".join(_GRAPHS))
    parser.add_argument("--nodes", type=int, default=100_000 if quick else 8_000_000)
    parser.add_argument("--edges", type=int, default=1_000_000 if quick else 100_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=1_600 if quick else 51_200, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=100 if quick else 1_024)
    parser.add_argument("--fanout", default="5,5" if quick else "10,10")
    parser.add_argument("--hidden", type=int, default=32 if quick else 256)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--epochs", type=int, default=2 if quick else 6)
    parser.add_argument("--tries", type=int, default=1 if quick else 4, help="settings tried of a peer")
    parser.add_argument("--repeats", type=int, default=1 if quick else 3)
    parser.add_argument(
        "--deadline", type=float, default=60.0 if quick else 240.0, help="seconds of training a run"
    )
    parser.add_argument(
        "--target", type=float, help="accuracy to reach; 99%% of gloader's in memory where left out"
    )
    parser.add_argument("--validation-nodes", type=int, default=1_000 if quick else 5_000)
    parser.add_argument(
        "--budget-share", type=float, default=0.2 if quick else 0.1, help="of the feature bytes"
    )
    parser.add_argument(
        "--libraries", type=parse_bytes, default=parse_bytes("500MB"), help="part of the limit"
    )
    parser.add_argument(
        "--headroom",
        type=parse_bytes,
        default=parse_bytes("40MB" if quick else "100MB"),
        help="part of the limit, for batches in the making",
    )
    parser.add_argument(
        "--cgroup", type=Path, default=Path("/sys/fs/cgroup/memory"), help="where groups are made"
    )
    options = parser.parse_args()
    unknown = [name for name in options.graphs.split(",") if name not in _GRAPHS]
    if unknown:
        parser.error(f"--graphs {options.graphs}: {unknown[0]!r} is not one of {', '.join(_GRAPHS)}")
    for name in ("seeds", "batch_size", "epochs", "repeats", "tries", "validation_nodes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        choose(options.contenders)
    except GloaderError as error:
        parser.error(str(error))
    return options


def compare(graph: str, contenders: Sequence[Contender], options: argparse.Namespace) -> dict[str, Any]:
    """Measure every contender on one graph."""
    dataset = ensure_graph(graph, options)
    share = int(options.budget_share * dataset.feature_bytes)
    limit = options.libraries + dataset.topology_bytes + share + options.headroom
    print(
        f"{dataset.name}: {format_bytes(dataset.feature_bytes)} of features, limit {format_bytes(limit)}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="gloader-compare-", dir=options.workdir) as scratch:
        field = Field(dataset, Path(scratch), limit_bytes=limit, options=options)
        field.warm_up(contenders)
        field.measure(contenders)
        field.evaluate()
        rows = field.rows(contenders)
    result = {
        "graph": {
            "kind": graph,
            "name": dataset.name,
            "num_nodes": dataset.num_nodes,
            "num_edges": dataset.num_edges,
            "feature_dim": dataset.feature_dim,
            "feature_bytes": dataset.feature_bytes,
            "fingerprint": dataset.fingerprint,
        },
        "workload": {
            "fanouts": [int(fanout) for fanout in options.fanout.split(",")],
            "model": f"GraphSAGE, hidden {options.hidden}",
            "is_quick": options.quick,
            **{
                name: getattr(options, name)
                for name in ("seeds", "batch_size", "hidden", "lr", "epochs", "repeats", "validation_nodes")
            },
        },
        "limit_bytes": limit,
        "deadline_s": options.deadline,
        "target_accuracy": field.target,
        "rows": rows,
        "runs": field.runs,
    }
    print(_text(Comparison.from_json(result)), flush=True)
    return result


class Field:
    """The runs of all contenders on one graph."""

    def __init__(
        self,
        dataset: Dataset,
        scratch: Path,
        *,
        limit_bytes: int,
        options: argparse.Namespace,
    ) -> None:
        self._dataset, self._scratch, self._options = dataset, scratch, options
        self._limit_bytes = limit_bytes
        self._seeds = scratch / "seeds.npy"
        np.save(self._seeds, _sample(dataset.train, options.seeds))
        self.runs: dict[str, list[Run]] = {}
        self._chosen: dict[str, Settings] = {}
        self.target: float | None = options.target

    def warm_up(self, contenders: Sequence[Contender]) -> None:
        """Let gloader compile its kernels, and the disk be calibrated, outside the timing."""
        for contender in contenders:
            if contender.system == "gloader" and contender.home == "ssd":
                job = self._job(contender, {}, "warm-up") | {"epochs": 1, "deadline_s": 5.0}
                found = self._run(job, limit_bytes=None)
                print(f"  warm-up: {found['outcome']}", flush=True)
                return

    def measure(self, contenders: Sequence[Contender]) -> None:
        """Run all rounds."""
        by_name = {contender.name: contender for contender in contenders}
        self.runs = {name: [] for name in by_name}
        for number, name in enumerate(turns(list(by_name), self._options.repeats)):
            contender, is_first = by_name[name], number < len(by_name)
            if not is_first and not any(r["epochs"] for r in self.runs[name]):
                continue  # it cannot run, or was killed before it finished anything
            variants = contender.variants[: self._options.tries] if is_first else (self._chosen[name],)
            for variant in variants:
                found = self._measure_one(contender, variant, len(self.runs[name]))
                self.runs[name].append(found)
                if not any(r["epochs"] for r in self.runs[name]):
                    break  # other settings would not help it to run, or to fit
            if is_first:
                self._chosen[name] = min(self.runs[name], key=later_seconds)["variant"]

    def evaluate(self) -> None:
        """Put the accuracy after each epoch into every run, and choose the target."""
        options = self._options
        job = {"fanouts": _fanouts(options), "batch_size": options.batch_size, "hidden": options.hidden}
        evaluator = Evaluator(self._dataset, _sample(self._dataset.valid, options.validation_nodes), job)
        for runs in self.runs.values():
            for found in runs:
                found["accuracy"] = evaluator.accuracies(Path(found.pop("weights")))
        if self.target is None:
            self.target = choose_target(self._kept())

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Return the summary of each contender."""
        kept = self._kept()
        return [
            summarize(contender, kept[contender.name], self.runs[contender.name], self.target)
            for contender in contenders
        ]

    def _kept(self) -> dict[str, list[Run]]:
        """Return the runs with the settings that were chosen."""
        return {
            name: [found for found in runs if found["variant"] == self._chosen[name]]
            for name, runs in self.runs.items()
        }

    def _measure_one(self, contender: Contender, variant: Settings, number: int) -> Run:
        job = self._job(contender, variant, f"{contender.name}-{number}")
        found = self._run(job, limit_bytes=self._limit_bytes if contender.is_limited else None)
        found |= {
            "variant": variant,
            "settings": {**contender.settings, **variant},
            "weights": job["weights"],
        }
        shown = ", ".join(format_seconds(epoch["seconds"]) for epoch in found["epochs"])
        print(f"  {contender.name} {variant or ''}: {found['outcome']}; epochs {shown or 'none'}", flush=True)
        return found

    def _run(self, job: dict[str, Any], *, limit_bytes: int | None) -> Run:
        Path(job["weights"]).mkdir()
        return run(job, parent=self._options.cgroup, limit_bytes=limit_bytes)

    def _job(self, contender: Contender, variant: Settings, label: str) -> dict[str, Any]:
        options = self._options
        settings = {**contender.settings, **variant}
        if contender.system == "gloader":
            settings |= self._budget(contender)
        return {
            "system": contender.system,
            "home": contender.home,
            "dataset": str(self._dataset.root),
            "seeds": str(self._seeds),
            "settings": settings,
            "weights": str(self._scratch / label),
            "fanouts": _fanouts(options),
            "batch_size": options.batch_size,
            "hidden": options.hidden,
            "lr": options.lr,
            "epochs": options.epochs,
            "deadline_s": options.deadline,
            "seed": 0,
        }

    def _budget(self, contender: Contender) -> Settings:
        if contender.home == "memory":
            return {"features": "ram", "memory_budget": 2 * (self._dataset.feature_bytes + self._limit_bytes)}
        return {
            "features": "ssd",
            "memory_budget": self._limit_bytes - self._options.libraries,
            "spill_dir": str(self._scratch),
        }


def ensure_graph(graph: str, options: argparse.Namespace) -> Dataset:
    """Return the dataset of a graph, made in the working folder the first time."""
    spec = _GRAPHS[graph].format(nodes=options.nodes, edges=options.edges, dim=options.dim)
    folder = options.workdir / f"compare-{graph}-{options.nodes}-{options.edges}-{options.dim}"
    if not (folder / _MANIFEST).exists():
        print(f"preparing {spec}", flush=True)
        prepare(open_source(spec, SourceOptions()), folder, PrepareOptions())
    return Dataset.open(folder)


def write(out: Path, result: dict[str, Any]) -> None:
    """Write the JSON, the tables and the pictures."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    shown = [Comparison.from_json(values) for values in result["comparisons"]]
    tables = [f"{comparison.heading}\n\n{_text(comparison)}\n" for comparison in shown]
    out.with_suffix(".md").write_text("\n".join([*tables, f"`{result['command']}`", ""]))
    for comparison in shown:
        for chart in comparison_charts(comparison):
            out.with_name(f"{out.stem}-{chart.name}.svg").write_bytes(chart.as_file())


def _text(comparison: Comparison) -> str:
    """Return the table, and below it the settings and what did not go as planned."""
    notes = [f"- {note}" for note in comparison.notes()]
    return "\n".join([as_markdown(comparison.table()), *([""] if notes else []), *notes])


def read_ahead() -> dict[str, int]:
    """Return the read-ahead of every disk in KB, which decides how a memmap without advice fares."""
    return {path.parts[3]: int(path.read_text()) for path in Path("/sys/block").glob("*/queue/read_ahead_kb")}


def all_versions() -> dict[str, str]:
    """Return the versions of everything compared."""
    import importlib.metadata

    found = versions()
    for name in ("gloader", "torch-geometric", "pyg-lib", "torch-sparse"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _fanouts(options: argparse.Namespace) -> list[int]:
    return [int(fanout) for fanout in options.fanout.split(",")]


def _sample(nodes: IdArray, count: int) -> IdArray:
    """Return ``count`` of ``nodes``, or all; always the same ones."""
    rng = np.random.default_rng(0)
    return np.sort(rng.choice(nodes, min(count, len(nodes)), replace=False))


if __name__ == "__main__":
    main()
