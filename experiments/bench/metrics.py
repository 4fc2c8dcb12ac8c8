"""Seconds and memory of exact metrics, beside scikit-learn's on the same scores.

Each metric and contender runs in a process of its own, which makes the scores, computes the metric once for few scores
(imports and compiled kernels) and then for all of them several times. The contenders take turns. Memory is the peak
above what the process held before the first computation for all scores. The difference is that of the values, with
scikit-learn's computed once more in float64: it sums the errors of float32 values in float32.

    python experiments/bench/metrics.py --scores 10000000 --out experiments/results/DATE-scores.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.lab.bench.environment import provenance
from gloader.training.scores import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SHARE = 0.3  # of label 1
LEVELS = {"distinct": 0, "ties": 1000}  # the scores' number of different values; 0 for those of float32
WARM_SCORES = 1000


def main() -> None:
    """Measure every metric with both contenders, or one of them in a child process."""
    args = _parse()
    if args.child is not None:
        print(json.dumps(_measured(*args.child, num_scores=args.scores, repeats=args.repeats)))
        return
    rows = [
        _row(metric, scores, args)
        for metric in METRICS
        for scores in (LEVELS if metric in ("auroc", "ap") else ("distinct",))
    ]
    text = _table(rows, args)
    print(text)
    if args.out is not None:
        result = {"benchmark": "scores", "num_scores": args.scores, "share_of_ones": SHARE, **provenance()}
        args.out.write_text(json.dumps({**result, "rows": rows}, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text + "\n")


def _row(metric: str, scores: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of both contenders, whose processes take turns."""
    found: dict[str, list[dict[str, Any]]] = {"gloader": [], "scikit-learn": []}
    for _ in range(args.processes):
        for contender, results in found.items():
            command = [sys.executable, __file__, "--child", contender, metric, scores]
            command += ["--scores", str(args.scores), "--repeats", str(args.repeats)]
            results.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    row: dict[str, Any] = {"metric": metric, "scores": scores}
    for contender, results in found.items():
        seconds = [value for result in results for value in result["seconds"]]
        row[contender] = {
            "median_s": median(seconds),
            "seconds": seconds,
            "peak_bytes": max(result["peak_bytes"] for result in results),
            "value": results[0]["value"],
        }
    ours, theirs = row["gloader"], row["scikit-learn"]
    row["times_as_fast"] = theirs["median_s"] / ours["median_s"]
    row["difference"] = abs(ours["value"] - theirs["value"])
    print(f"{metric}, {scores}: {row['times_as_fast']:.1f} times as fast", flush=True)
    return row


def _measured(contender: str, metric: str, scores: str, *, num_scores: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of each repetition, the peak above the start in bytes, and the metric's value."""
    compute = _ours(metric) if contender == "gloader" else _theirs(metric)
    made, labels = _data(metric, LEVELS[scores], num_scores)
    compute(made[:WARM_SCORES], labels[:WARM_SCORES])
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        value = compute(made, labels)
        seconds.append(time.perf_counter() - began)
    peak = max(_status("VmHWM") - before, 0)
    if contender == "scikit-learn":
        value = compute(made.astype(np.float64), labels)
    return {"seconds": seconds, "peak_bytes": peak, "value": value}


def _status(name: str) -> int:
    """Return a value of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def _data(metric: str, levels: int, num_scores: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return float32 scores and labels: 0 and 1, or values for a metric of values."""
    rng = np.random.default_rng(0)
    labels = (rng.random(num_scores, np.float32) < SHARE).astype(np.int64)
    scores = rng.standard_normal(num_scores, np.float32)
    scores += labels
    if levels:
        scores = np.round(scores * (levels / 8)) / np.float32(levels / 8)
    if METRICS[metric].kinds == ("values",):
        return scores, (scores + rng.standard_normal(num_scores, np.float32))
    return scores, labels


def _ours(metric: str) -> Callable[[NDArray[Any], NDArray[Any]], float]:
    """Return gloader's metric."""
    return lambda scores, labels: METRICS[metric].compute(scores, labels).value


def _theirs(metric: str) -> Callable[[NDArray[Any], NDArray[Any]], float]:
    """Return scikit-learn's metric."""
    from sklearn import metrics

    by_name: dict[str, Callable[[NDArray[Any], NDArray[Any]], float]] = {
        "auroc": lambda scores, labels: float(metrics.roc_auc_score(labels, scores)),
        "ap": lambda scores, labels: float(metrics.average_precision_score(labels, scores)),
        "acc": lambda scores, labels: float(metrics.accuracy_score(labels, scores > 0.5)),
        "f1": lambda scores, labels: float(metrics.f1_score(labels, scores > 0.5)),
        "f1-macro": lambda scores, labels: float(metrics.f1_score(labels, scores > 0.5, average="macro")),
        "mae": lambda scores, labels: float(metrics.mean_absolute_error(labels, scores)),
        "rmse": lambda scores, labels: float(metrics.root_mean_squared_error(labels, scores)),
        "r2": lambda scores, labels: float(metrics.r2_score(labels, scores)),
    }
    return by_name[metric]


def _table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Return the figures as Markdown, with the command."""
    times = f"median of {args.processes * args.repeats}, each contender in {args.processes} processes"
    names = (
        "metric",
        "scores",
        "gloader, s",
        "scikit-learn, s",
        "times as fast",
        "gloader, MB",
        "scikit-learn, MB",
    )
    lines = [
        (
            f"Exact metrics of {args.scores:,} float32 scores: {times}. Memory is the peak above scores and labels. "
            "The difference is from the value that scikit-learn computes in float64."
        ),
        "",
        f"| {' | '.join(names)} | difference |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        ours, theirs = row["gloader"], row["scikit-learn"]
        lines.append(
            f"| {row['metric']} | {row['scores']} | {ours['median_s']:.3f} | {theirs['median_s']:.3f} | "
            f"{row['times_as_fast']:.1f} | {ours['peak_bytes'] / 1e6:.0f} | {theirs['peak_bytes'] / 1e6:.0f} | "
            f"{row['difference']:.1e} |"
        )
    machine = provenance()["machine"]
    shape = f"{machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB, shared with other jobs"
    command = f"python experiments/bench/metrics.py --scores {args.scores} --repeats {args.repeats}"
    lines += ["", f"Machine: {shape}. Command: `{command} --processes {args.processes}`."]
    return "\n".join(lines)


def _parse() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scores", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--child", nargs=3, metavar=("CONTENDER", "METRIC", "SCORES"), help="used by the script itself"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
