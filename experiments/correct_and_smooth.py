"""Correct and smooth on real graphs: the accuracy of the network alone, behind both steps, and of other settings.

    python experiments/correct_and_smooth.py --data FOLDER --out experiments/results/DATE-correct-and-smooth

FOLDER holds one folder per graph (graph.npz, features_csr.npz, split.npz, and reference.json with the test accuracies
of full-batch training). Each graph is trained with some seeds. Then both steps are computed again from the same
networks with other shares of the neighbours and other numbers of hops. Writes a Markdown table and its figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from accuracy import _gloader
from full_batch import given_references

from gloader import Dataset
from gloader.lab.bench.environment import provenance
from gloader.training import correct_and_smooth
from gloader.training.checkpoint.save import Checkpoint, load_checkpoint
from gloader.training.predict import predict

GRAPHS: Final = ("cora_planetoid", "amazon_cs", "dblp", "coauthor_phy", "tolokers")
TRAINING: Final = {
    "--fanout": "10,10", "--hidden": "128", "--batch-size": "512", "--lr": "0.003", "--patience": "20",
    "--memory-budget": "4GB",
}  # fmt: skip
FLAGS: Final = [word for pair in TRAINING.items() for word in pair]
EPOCHS: Final = {"coauthor_phy": 10}  # of wide rows, which need few
SETTINGS: Final = (
    (0.5, 20),
    (0.95, 20),
    (0.8, 5),
    (0.8, 10),
    (0.8, 20),
    (0.8, 50),
)  # share of the neighbours, hops
SPLITS: Final = ("valid", "test")
VALID: Final = "valid_acc"


def main() -> int:
    """Train every graph and write the table."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = [_row(name, options) for name in options.graphs]
    _write(rows, options)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Correct and smooth on real graphs.")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per graph")
    parser.add_argument("--work", type=Path, default=Path("runs/correct-and-smooth"), help="graphs and runs")
    parser.add_argument("--out", type=Path, required=True, help="the two files, without their suffix")
    parser.add_argument("--graphs", nargs="*", default=GRAPHS)
    parser.add_argument("--runs", type=int, default=3, help="seeds, at least 2")
    return parser.parse_args()


def _row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return one graph's figures."""
    prepared, out = options.work / "datasets" / name, options.work / name
    if not prepared.exists():
        prepared.parent.mkdir(exist_ok=True)
        _gloader("prepare", f"npy:{options.data / name}", str(prepared))
    flags = [
        "--epochs",
        str(EPOCHS.get(name, 60)),
        "--runs",
        str(options.runs),
        "--overwrite",
        "--out",
        str(out),
    ]
    result = _gloader("train", "--dataset", str(prepared), "--model", "correct-and-smooth", *FLAGS, *flags)
    references = given_references(options.data / name)
    with closing(Dataset.open(prepared)) as dataset:
        saved = [load_checkpoint(out / f"run-{number}") for number in range(options.runs)]
        settings = [
            {"alpha": alpha, "hops": hops, **_measured(dataset, saved, alpha, hops)}
            for alpha, hops in SETTINGS
        ]
        base = _measured(dataset, [_without_steps(checkpoint) for checkpoint in saved], 0.0, 0)
        sizes = {"nodes": dataset.num_nodes, "edges": dataset.num_edges, "classes": dataset.num_classes}
    found = {
        "graph": name,
        **sizes,
        **{key: value for key, value in result.items() if "_acc" in key},
        "epoch_s": statistics.median(result["epoch_seconds"]),
        "base": base,
        "settings": settings,
        **{f"{model}_test_acc": references[model]["test_acc_mean"] for model in ("mlp", "graphsage", "gcn")},
    }
    print(_markdown(found), flush=True)
    return found


def _without_steps(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint as one of an mlp, whose network is the same."""
    spec: Any = checkpoint.spec
    config = replace(spec.config, name="mlp")
    return replace(checkpoint, spec=replace(spec, config=config))


def _measured(dataset: Dataset, saved: list[Checkpoint], alpha: float, hops: int) -> dict[str, Any]:
    """Return the mean accuracies of predictions with other settings of both steps, and the least seconds."""
    module: Any = correct_and_smooth
    before = module.SHARE, module.HOPS
    module.SHARE, module.HOPS = alpha, hops
    seconds, accuracies = [], []
    try:
        for checkpoint in saved:
            started = time.perf_counter()
            classes = predict(dataset, checkpoint, memory_budget_bytes=4 << 30)
            seconds.append(time.perf_counter() - started)
            nodes = {split: getattr(dataset, split) for split in SPLITS}
            accuracies.append(
                [float(np.mean(classes[ids] == dataset.labels_of(ids))) for ids in nodes.values()]
            )
    finally:
        module.SHARE, module.HOPS = before
    means = np.mean(accuracies, axis=0)
    return {"valid_acc": means[0], "test_acc": means[1], "seconds": min(seconds)}


def _markdown(row: dict[str, Any]) -> str:
    figures = [
        f"{100 * row[f'{name}_acc']:.1f} ± {100 * (row[f'{name}_acc_std'] or 0):.1f}"
        for name in ("base_test", "test")
    ]
    given = [f"{100 * row[f'{model}_test_acc']:.1f}" for model in ("graphsage", "gcn")]
    return f"| {' | '.join([row['graph'], *figures, *given])} |"


def _write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    by_setting = [
        f"| {row['graph']} | {' | '.join(f'{100 * each[VALID]:.1f}' for each in row['settings'])} |"
        for row in rows
    ]
    origin = provenance()
    lines = [
        f"Test accuracy in per cent, mean and standard deviation of {options.runs} seeds. The network alone is an MLP",
        f"of two layers ({' '.join(FLAGS)}). SAGE and GCN are",
        "the full-batch references of the same split.",
        "",
        "| graph | network alone | correct and smooth | SAGE | GCN |",
        "|---|---|---|---|---|",
        *map(_markdown, rows),
        "",
        "Validation accuracy of the same networks with other shares of the neighbours, and other numbers of hops:",
        "",
        f"| graph | {' | '.join(f'{alpha}, {hops} hops' for alpha, hops in SETTINGS)} |",
        f"|---{'|---' * len(SETTINGS)}|",
        *by_setting,
        "",
        f"`{origin['command']}`, commit {origin['commit']}, 2 cores, 24 GB.",
    ]
    options.out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    content = {"benchmark": "correct and smooth", **origin, "rows": rows}
    options.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
