"""Reproduce published accuracies: prepare each data set, train by its recipe, score with the official evaluator.

    python experiments/ogb/run.py --root FOLDER --out experiments/results/DATE-ogb

runs every row of benchmarks.yaml, ten networks each; name rows to run only those. FOLDER holds the data sets
(ogbn_arxiv/raw, ...): OGB's are downloaded there where they are not; for the others, and without a network, one line
says what to put where. Writes OUT.md and OUT.json. Exits with 1 where a row could not be run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks import Benchmark, BenchmarkError, DataError, load_benchmarks
from judged_links import JudgedLinks
from score_table import HEAD, ScoreRow, markdown_table
from scores import is_of_links, score, score_links

from gloader.convert.keyed_graph import KeyedGraph
from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source
from gloader.dataset.values import has_label
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.source import GraphSource

HERE = Path(__file__).resolve().parent
_OF_INFERENCE = ("memory-budget", "device")  # settings that `gloader infer` takes as well


def main() -> int:
    """Run the rows that were asked for and write the table."""
    options = _options()
    try:
        benchmarks = load_benchmarks(options.benchmarks, root=options.root)
    except BenchmarkError as error:
        sys.exit(str(error))
    if unknown := set(options.names) - set(benchmarks):
        sys.exit(f"no row is called {', '.join(sorted(unknown))}; there are {', '.join(benchmarks)}")
    options.work.mkdir(parents=True, exist_ok=True)
    print("\n".join(HEAD), flush=True)
    rows, failed = [], 0
    missing: set[str] = set()  # the data that could not be had is not tried again
    for benchmark in [benchmarks[name] for name in options.names or benchmarks]:
        try:
            row = _run(benchmark, _prepare(benchmark, options.work, missing), options)
        except BenchmarkError as error:
            failed += 1
            print(f"{benchmark.name}: {error}", file=sys.stderr, flush=True)
            continue
        rows.append(row)
        print(row.markdown(), flush=True)
        _write(rows, options)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="rows to run; all when none is named")
    parser.add_argument("--root", type=Path, default=Path("dataset"), help="folder of the data sets")
    parser.add_argument("--benchmarks", type=Path, default=HERE / "benchmarks.yaml", help="the list of rows")
    parser.add_argument("--work", type=Path, default=Path("runs/ogb"), help="prepared datasets and runs")
    parser.add_argument(
        "--out", type=Path, default=None, help="writes OUT.md and OUT.json; WORK/ogb when not given"
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--note", default="", help="a sentence that goes above the table")
    parser.add_argument("--keep", action="store_true", help="take finished runs in --work as they are")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="flags of `gloader train` that win over the recipe, such as memory-budget=8GB; the table names them",
    )
    options = parser.parse_args()
    options.out = options.out or options.work / "ogb"
    return options


def _prepare(benchmark: Benchmark, work: Path, missing: set[str]) -> Path:
    """Return the prepared dataset of a row, made the first time; adds to ``missing`` what cannot be had.

    Raises
    ------
    BenchmarkError
        The data is not there or cannot be read; one line that says what to put where.
    """
    name = benchmark.prepared_name
    if name in missing:
        raise DataError("its data is that of a row above, which could not be had")
    prepared = work / "datasets" / name
    missing.add(name)
    benchmark.require_data()
    if not (prepared / "dataset.json").exists():
        _gloader("prepare", benchmark.source, str(prepared), *benchmark.prepare)
    missing.remove(name)
    return prepared


def _run(benchmark: Benchmark, prepared: Path, options: argparse.Namespace) -> ScoreRow:
    """Train and score one row."""
    out = options.work / benchmark.name
    if options.keep and (out / "result.json").exists():
        result = json.loads((out / "result.json").read_text())
    else:
        flags = ["--config", str(benchmark.recipe), "--runs", str(options.runs), "--out", str(out)]
        result = _gloader("train", "--dataset", str(prepared), *flags, *_flags(options.set))
    return ScoreRow(
        name=benchmark.name,
        split=benchmark.split,
        scores=_scores(benchmark, prepared, out, result, options),
        published=benchmark.published,
        seconds=result["total_seconds"],
        features=result["features"],
        peak_rss_bytes=result["peak_rss_bytes"],
    )


def _scores(
    benchmark: Benchmark, prepared: Path, out: Path, result: dict[str, Any], options: argparse.Namespace
) -> tuple[float, ...]:
    """Return what the official evaluator says of each run, whose weights predict every node, or pair, once more.

    Labels and split, or edges and negatives, come from the source and not from the prepared dataset, so that a mistake
    of the preparation cannot hide.
    """
    judge = _judge_links if is_of_links(benchmark.evaluator) else _judge_nodes
    return judge(benchmark, prepared, out, result, options)


def _opened(benchmark: Benchmark) -> GraphSource:
    """Return the benchmark's source, whose nodes have numbers."""
    source = open_source(benchmark.source, SourceOptions())
    if isinstance(source, KeyedGraph):
        raise BenchmarkError(f"{benchmark.source} has nodes with keys; a benchmark's nodes have numbers")
    return source.graph()


def _judge_nodes(
    benchmark: Benchmark, prepared: Path, out: Path, result: dict[str, Any], options: argparse.Namespace
) -> tuple[float, ...]:
    source = _opened(benchmark)
    nodes: NDArray[np.int64] = getattr(source.splits, benchmark.split)
    nodes = nodes[has_label(source.labels)[nodes]]
    truth = source.labels[nodes]
    metric = result.get("metric", "acc")
    scores = []
    for run, figures in enumerate(result["runs"]):
        predicted = _infer(prepared, _folder(out, result, run), "predictions.npy", options)
        scores.append(score(benchmark.evaluator, truth, predicted[nodes]))
        ours = figures[f"{benchmark.split}_{metric}"]
        _require_equal(run, scores[-1], ours, count=len(nodes), what="nodes")
    return tuple(scores)


def _judge_links(
    benchmark: Benchmark, prepared: Path, out: Path, result: dict[str, Any], options: argparse.Namespace
) -> tuple[float, ...]:
    judged = JudgedLinks.of(_opened(benchmark).links, benchmark.split)
    pairs = out / "pairs.npy"
    np.save(pairs, judged.pairs)
    scores = []
    for run, figures in enumerate(result["runs"]):
        folder = _folder(out, result, run)
        edges, negatives = judged.parted(
            _infer(prepared, folder, "scores.npy", options, "--pairs", str(pairs))
        )
        scores.append(score_links(benchmark.evaluator, edges, negatives))
        ours = figures[f"{benchmark.split}_{result['metric']}"]
        _require_equal(run, scores[-1], ours, count=judged.num_edges, what="edges")
    pairs.unlink()  # gigabytes, where each edge has a thousand
    return tuple(scores)


def _folder(out: Path, result: dict[str, Any], run: int) -> Path:
    return out if len(result["runs"]) == 1 else out / f"run-{run}"


def _infer(prepared: Path, folder: Path, name: str, options: argparse.Namespace, *flags: str) -> NDArray[Any]:
    """Return what the checkpoint in ``folder`` predicts."""
    settings = [pair for pair in options.set if pair.partition("=")[0] in _OF_INFERENCE]
    places = ["--checkpoint", str(folder), "--out", str(folder / name)]
    _gloader("infer", "--dataset", str(prepared), *places, *flags, *_flags(settings))
    predicted: NDArray[Any] = np.load(folder / name)
    return predicted


def _require_equal(run: int, official: float, ours: float, *, count: int, what: str) -> None:
    """Raise BenchmarkError where the two differ by more than rounding can: 1 node or edge, or 1 in 10,000."""
    if abs(official - ours) * count > max(1.5, 1e-4 * count):
        raise BenchmarkError(
            f"run {run}: the official evaluator says {official:.6f} of {count} {what}, gloader "
            f"said {ours:.6f}; the prepared dataset is not the source's"
        )


def _flags(settings: list[str]) -> list[str]:
    """Return ``epochs=2`` as ``--epochs 2``."""
    flags = []
    for pair in settings:
        key, equals, value = pair.partition("=")
        if not equals:
            sys.exit(f"--set {pair}: write KEY=VALUE, such as memory-budget=8GB")
        flags += [f"--{key}", value]
    return flags


def _gloader(*arguments: str) -> dict[str, Any]:
    """Run one command of gloader in a process of its own and return its JSON; what it says goes on to the user.

    Raises
    ------
    BenchmarkError
        The command failed; with its own message.
    """
    command = [sys.executable, "-m", "gloader", *arguments, "--json"]
    reason = f"gloader {arguments[0]} failed"
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process,
    ):
        for line in process.stderr or ():
            if line.startswith("error: "):
                reason = line.removeprefix("error: ").strip()
            else:
                print(line, end="", file=sys.stderr, flush=True)
        if process.wait():
            raise BenchmarkError(reason)
        output.seek(0)
        return dict(json.load(output))


def _write(rows: list[ScoreRow], options: argparse.Namespace) -> None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    table = markdown_table(rows, runs=options.runs, settings=options.set, note=options.note)
    options.out.with_suffix(".md").write_text(table, encoding="utf-8")
    figures = {
        "note": options.note,
        "runs": options.runs,
        "settings": options.set,
        "rows": [row.figures() for row in rows],
        **provenance(),
    }
    options.out.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
