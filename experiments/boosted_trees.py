"""LightGBM on the columns of `gloader propagate`: test scores with and without hops, beside networks.

    python experiments/boosted_trees.py --data FOLDER --out experiments/results/DATE-boosted-trees

FOLDER holds a folder for each graph, with graph.npz and features_csr.npz. A graph is prepared and propagated once. The
sets of columns are the node's own features, those with the number of in-edges, and the hop columns with one statistic
and with two. A run trains on the training nodes, stops early by the validation nodes, and scores the test nodes: ROC
AUC for two classes, accuracy for more. The settings of LightGBM are the same for all sets. Networks are trained on the
same splits by `gloader train`: GraphSAGE on the graph, SIGN on the hop columns. The script writes a Markdown table and
its figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lightgbm
import numpy as np
from sklearn.metrics import accuracy_score, roc_auc_score

import gloader
from gloader import Dataset
from gloader.lab.bench.environment import provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

HOPS: Final = 3
# Wide rows have a smaller share of columns a tree, or a tree of amazon_cs would take ten times as long.
SETTINGS: Final = {
    "learning_rate": 0.05,
    "num_leaves": 31,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "verbose": -1,
}
COLUMNS_PER_TREE: Final = 400
MOST_TREES, PATIENCE = 500, 30
STATS: Final = {"tolokers": ("mean", "std")}
NETWORK: Final = "--hidden 128 --dropout 0.2 --lr 0.003 --batch-size 512 --epochs 20 --eval-every 2"
NETWORKS: Final = {"graphsage": "--fanout 15,10 --residual", "sign": "--batch-norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The nodes' columns by group, with labels and splits."""

    groups: dict[str, NDArray[np.float32]]  # (N, width) by the name of the group
    labels: NDArray[np.int64]  # (N,)
    splits: tuple[NDArray[np.int64], ...]  # ids of training, validation and test nodes
    propagate_s: float  # seconds of `gloader.propagate`

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return int(self.labels.max()) + 1

    def sets(self) -> dict[str, NDArray[np.float32]]:
        """Return the sets of columns to compare, by name."""
        means = [name for name in self.groups if name.endswith(".mean")]
        chosen = {
            "own features": ["x"],
            "and the number of in-edges": ["x", "degree"],
            "and means of 3 hops": ["x", *means],
        }
        if any(name.endswith(".std") for name in self.groups):
            chosen["and deviations of 3 hops"] = [name for name in self.groups if name != "degree"]
        return {name: np.concatenate([self.groups[one] for one in ones], 1) for name, ones in chosen.items()}


def main() -> None:
    """Run every set of columns of every graph and write the table."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for graph in options.graphs:
        columns = _columns(graph, options)
        rows += _rows(graph, columns, options)
        rows += [_network(name, graph, columns, options) for name in options.networks]
    origin = provenance()
    text = _table(rows, origin)
    print(text)
    if options.out is not None:
        result = {
            "benchmark": "boosted_trees",
            **origin,
            "settings": {**SETTINGS, "seeds": options.seeds},
            "rows": rows,
        }
        options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        options.out.with_suffix(".md").write_text(text, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="LightGBM with and without hop columns.")
    parser.add_argument("--data", type=Path, required=True, help="folder with a folder for each graph")
    parser.add_argument("--graphs", nargs="*", default=["tolokers", "amazon_cs"])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/boosted_trees"), help="prepared graphs")
    parser.add_argument("--out", type=Path, help="two files, .md and .json")
    return parser.parse_args()


def _columns(graph: str, options: argparse.Namespace) -> Columns:
    """Prepare and propagate a graph unless that is done, and read its columns."""
    prepared, hops = options.work / graph, options.work / f"{graph}-hops"
    if not prepared.exists():
        command = [sys.executable, "-m", "gloader", "prepare", f"npy:{options.data / graph}", str(prepared)]
        subprocess.run(command, check=True)
    dataset, started = Dataset.open(prepared), time.perf_counter()
    found = gloader.propagate(
        dataset, hops, hops=HOPS, norm="mean", stats=STATS.get(graph, ("mean",)), overwrite=True
    )
    seconds = time.perf_counter() - started
    assert isinstance(found, Dataset)  # noqa: S101 - a folder
    arrays = found.to_numpy()
    groups = {
        name: np.ascontiguousarray(arrays["features"][:, start:stop])
        for name, start, stop in found.metadata["hops"]["columns"]
    }
    groups["degree"] = np.diff(arrays["indptr"]).astype(np.float32)[:, None]
    splits = tuple(np.asarray(arrays[part]) for part in ("train", "valid", "test"))
    return Columns(groups=groups, labels=arrays["labels"], splits=splits, propagate_s=seconds)


def _rows(graph: str, columns: Columns, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the scores of a graph's sets of columns."""
    rows = []
    for name, matrix in columns.sets().items():
        runs = [_run(matrix, columns, seed) for seed in options.seeds]
        has_hops = name not in ("own features", "and the number of in-edges")
        propagate_s = columns.propagate_s if has_hops else 0.0
        rows.append(
            _row(graph, "LightGBM", name, matrix.shape[1], columns, runs) | {"propagate_s": propagate_s}
        )
    return rows


def _row(
    graph: str, learner: str, name: str, width: int, columns: Columns, runs: list[dict[str, float]]
) -> dict[str, Any]:
    """Return the mean of some runs."""
    row: dict[str, Any] = {"graph": graph, "learner": learner, "columns": name, "width": width}
    row |= {"metric": "ROC AUC" if columns.num_classes == 2 else "accuracy"}
    row |= {key: statistics.fmean(run[key] for run in runs) for key in ("score", "seconds")}
    row["score_std"] = statistics.stdev(run["score"] for run in runs) if len(runs) > 1 else 0.0
    print(json.dumps(row), flush=True)
    return {**row, "runs": runs}


def _network(name: str, graph: str, columns: Columns, options: argparse.Namespace) -> dict[str, Any]:
    """Train a network by the command, once for each seed."""
    data = options.work / (f"{graph}-hops" if name == "sign" else graph)
    words = [
        *NETWORK.split(),
        *NETWORKS[name].split(),
        "--task",
        "binary" if columns.num_classes == 2 else "node",
    ]
    runs = []
    for seed in options.seeds:
        out = options.work / f"{graph}-{name}-{seed}"
        command = [sys.executable, "-m", "gloader", "train", "--dataset", str(data), "--model", name, *words]
        command += ["--seed", str(seed), "--out", str(out), "--overwrite"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = json.loads((out / "result.json").read_text("utf-8"))
        score = found[f"test_{'auroc' if columns.num_classes == 2 else 'acc'}"]
        runs.append({"score": 100 * score, "seconds": found["total_seconds"]})
    width = sum(matrix.shape[1] for group, matrix in columns.groups.items() if group != "degree")
    if name != "sign":
        return _row(graph, name, "own features", columns.groups["x"].shape[1], columns, runs) | {
            "propagate_s": 0.0
        }
    every = list(columns.sets())[-1]
    return _row(graph, name, every, width, columns, runs) | {"propagate_s": columns.propagate_s}


def _run(matrix: NDArray[np.float32], columns: Columns, seed: int) -> dict[str, float]:
    """Train once; return the test score in per cent, the seconds and the number of trees."""
    train, valid, test = columns.splits
    num_classes = columns.num_classes
    kind: dict[str, Any] = {"objective": "binary", "metric": "auc"}
    if num_classes > 2:
        kind = {"objective": "multiclass", "metric": "multi_error", "num_class": num_classes}
    share = min(0.8, COLUMNS_PER_TREE / matrix.shape[1])
    started = time.perf_counter()
    fitted = lightgbm.Dataset(matrix[train], columns.labels[train])
    model = lightgbm.train(
        {**SETTINGS, **kind, "feature_fraction": share, "seed": seed},
        fitted,
        MOST_TREES,
        valid_sets=[lightgbm.Dataset(matrix[valid], columns.labels[valid], reference=fitted)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    seconds = time.perf_counter() - started
    scores, labels = model.predict(matrix[test]), columns.labels[test]
    score = roc_auc_score(labels, scores) if num_classes == 2 else accuracy_score(labels, scores.argmax(1))
    return {"score": 100 * float(score), "seconds": seconds, "trees": model.best_iteration}


def _table(rows: list[dict[str, Any]], origin: dict[str, Any]) -> str:
    """Return the rows as Markdown."""
    seeds = len(rows[0]["runs"])
    lines = [
        f"Test scores in per cent, mean and standard deviation over {seeds} seeds of LightGBM {lightgbm.__version__}.",
        f"Steps of `gloader propagate --hops {HOPS} --norm mean`; training stops after {PATIENCE} trees without gain.",
        "",
        "| graph | learner | columns | width | metric | score | seconds a run | seconds to propagate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['graph']} | {row['learner']} | {row['columns']} | {row['width']:,} | {row['metric']} "
        f"| {row['score']:.1f} ± {row['score_std']:.1f} | {row['seconds']:.1f} | {row['propagate_s']:.1f} |"
        for row in rows
    ]
    machine = origin["machine"]
    lines += ["", f"`{origin['command']}`, {machine['cores']} cores, {machine['memory_bytes'] / 1e9:.0f} GB."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
