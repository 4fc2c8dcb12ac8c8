"""Reproduce the accuracy table: prepare each graph, train by its recipes, compare with the reference.

    python experiments/accuracy.py --data FOLDER

FOLDER holds one folder per graph (graph.npz, features_csr.npz, split.npz, and reference.json with the test accuracy
of full-batch training, and of an MLP). The handwritten digits of builtin:digits are always a row; their
references are trained, see full_batch.py. Writes a Markdown table and the figures behind it, and exits with 1 where a
row falls short of its reference by more than one point.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from full_batch import digits_references, given_references

from gloader.lab.bench.environment import provenance

EXPERIMENTS = Path(__file__).resolve().parent
RECIPES = EXPERIMENTS / "recipes"
MODELS = ("graphsage", "gcn")
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyRow:
    """One dataset and model."""

    dataset: str
    model: str
    test_acc: float
    test_std: float | None
    reference: float
    mlp: float  # which sees no edges
    majority: float  # share of the test nodes in the class that most training nodes have
    seconds: float  # of all runs, evaluation included
    features: str
    peak_rss_bytes: int

    @property
    def difference(self) -> float:
        """Points above the reference, as a fraction."""
        return self.test_acc - self.reference

    @property
    def is_met(self) -> bool:
        """Whether the row is at most one point below its reference."""
        return self.difference >= -TOLERANCE


def main() -> int:
    """Train every row that was asked for and write the table."""
    options = _options()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.datasets or _datasets(options.data):
        source = "builtin:digits" if name == "digits" else f"npy:{options.data / name}"
        prepared = options.work / f"datasets-{options.dtype}" / name
        if not prepared.exists():
            prepared.parent.mkdir(exist_ok=True)
            _gloader("prepare", source, str(prepared), "--dtype", options.dtype)
        references = digits_references() if name == "digits" else given_references(options.data / name)
        for model in options.models:
            rows.append(_train(name, model, prepared, references, options))
            print(_markdown_row(rows[-1]), flush=True)
    _write(rows, options)
    return 0 if all(row.is_met for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Reproduce the accuracy table.")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per graph")
    parser.add_argument("--work", type=Path, default=Path("runs/accuracy"), help="prepared graphs and runs")
    parser.add_argument("--out", type=Path, default=EXPERIMENTS / "results", help="folder of the table")
    parser.add_argument("--datasets", nargs="*", default=None, help="only these")
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--dtype", default="float32", help="of the stored features")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="take finished runs in --work as they are")
    return parser.parse_args()


def _datasets(data: Path) -> list[str]:
    """Return the graphs in ``data`` that have recipes, then the digits."""
    found = sorted(path.parent.name for path in data.glob("*/reference.json"))
    return [name for name in found if (RECIPES / f"{name}-gcn.yaml").exists()] + ["digits"]


def _train(
    name: str, model: str, prepared: Path, references: dict[str, Any], options: argparse.Namespace
) -> AccuracyRow:
    out = options.work / f"{name}-{model}-{options.dtype}"
    if options.keep and (out / "result.json").exists():
        result = json.loads((out / "result.json").read_text())
    else:
        recipe = RECIPES / f"{name}-{model}.yaml"
        flags = ["--config", str(recipe), "--runs", str(options.runs), "--out", str(out)]
        result = _gloader("train", "--dataset", str(prepared), *flags)
    return AccuracyRow(
        dataset=name,
        model=model,
        test_acc=result["test_acc"],
        test_std=result["test_acc_std"],
        reference=references[model]["test_acc_mean"],
        mlp=references["mlp"]["test_acc_mean"],
        majority=references["majority"],
        seconds=result["total_seconds"],
        features=result["features"],
        peak_rss_bytes=result["peak_rss_bytes"],
    )


def _gloader(*arguments: str) -> dict[str, Any]:
    """Run one command of gloader in a process of its own and return its JSON."""
    command = [sys.executable, "-m", "gloader", *arguments, "--json"]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}")
    return dict(json.loads(done.stdout))


def _markdown_row(row: AccuracyRow) -> str:
    spread = "" if row.test_std is None else f" ± {100 * row.test_std:.1f}"
    return (
        f"| {row.dataset} | {row.model} | {100 * row.test_acc:.1f}{spread} | {100 * row.reference:.1f} "
        f"| {100 * row.difference:+.1f} | {100 * row.mlp:.1f} | {100 * row.majority:.1f} | {row.seconds:.0f} s "
        f"| {row.features} |"
    )


def _write(rows: list[AccuracyRow], options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    head = [
        f"Test accuracy in per cent, mean of {options.runs} seeds; features stored as {options.dtype}.",
        "",
        "| dataset | model | gloader | reference | difference | MLP | largest class | time | features |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    table = "\n".join([*head, *map(_markdown_row, rows)]) + "\n"
    stem = "accuracy" if options.dtype == "float32" else f"accuracy-{options.dtype}"
    (options.out / f"{stem}.md").write_text(table, encoding="utf-8")
    figures = {
        "benchmark": "accuracy",
        **provenance(),
        "rows": [asdict(row) | {"difference": row.difference} for row in rows],
    }
    (options.out / f"{stem}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
