"""The effect of predicted edges that pass messages: link prediction on one graph with each value of ``exclude``.

    python experiments/links_leakage.py --dataset DIR --out experiments/results/DATE-links-leakage

DIR is a dataset that was prepared with ``--edge-split``. Every value of ``exclude`` trains the same network from the
same seeds on the same split; nothing else differs. The best epoch is that of the validation AUC, and its weights are
tested by AUC and by hits@10, against the same negatives for all. Writes a Markdown table and the figures behind it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gloader import Dataset
from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.lab.bench.environment import provenance
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.link_judge import LinkJudge, LinkMetric
from gloader.training.link_prediction import pair_scorer
from gloader.training.model_spec import LinkSpec
from gloader.training.open_model import open_model
from gloader.training.train import RunFiles, fit

if TYPE_CHECKING:
    from gloader.config import Exclude

EXCLUDES: Final[tuple[Exclude, ...]] = ("none", "self", "reverse")
METRICS: Final = (LinkMetric("auc"), LinkMetric("hits", 10))
BUDGET_BYTES: Final = 1 << 30


def main() -> None:
    """Train with each value of ``exclude``, and write what came of it."""
    options = _options()
    dataset = Dataset.open(options.dataset)
    settings = _settings(options)
    runs = []
    for exclude in EXCLUDES:
        for seed in range(options.seeds):
            runs.append({"exclude": exclude, "seed": seed} | _run(dataset, settings, exclude, seed))
            print(json.dumps(runs[-1]), flush=True)
    rows = [_row(exclude, [run for run in runs if run["exclude"] == exclude]) for exclude in EXCLUDES]
    settings_given = {name: value for name, value in vars(options).items() if name not in ("dataset", "out")}
    result = {"dataset": dataset.name, "settings": settings_given, "rows": rows, "runs": runs}
    options.out.with_suffix(".json").write_text(
        json.dumps(result | provenance(), indent=1) + "\n", encoding="utf-8"
    )
    options.out.with_suffix(".md").write_text(_markdown(dataset, rows, options), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the values of exclude.")
    parser.add_argument("--dataset", required=True, help="prepared with --edge-split")
    parser.add_argument("--out", type=Path, required=True, help="two files, .md and .json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fanout", default="15,10")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--batch-size", type=int, default=1024)
    return parser.parse_args()


def _settings(options: argparse.Namespace) -> TrainSettings:
    return TrainSettings(
        task="link",
        model=ModelConfig(name="graphsage", hidden=options.hidden, dropout=options.dropout),
        optim=OptimConfig(epochs=options.epochs, lr=options.lr),
        loader=LoaderSettings.of(
            fanouts=tuple(map(int, options.fanout.split(","))),
            batch_size=options.batch_size,
            memory_budget=BUDGET_BYTES,
        ),
    )


def _run(dataset: Dataset, settings: TrainSettings, exclude: Exclude, seed: int) -> dict[str, Any]:
    """Train once, and judge the best weights."""
    sampling = replace(settings.loader.sampling, seed=seed)
    links = LinkConfig(exclude=exclude, decoder="dot", metric="auc")
    settings = replace(settings, links=links, loader=replace(settings.loader, sampling=sampling))
    with tempfile.TemporaryDirectory(prefix="gloader-leakage-") as folder:
        (run,) = fit(dataset, settings, files=RunFiles(out=Path(folder))).runs
        judged = _judged(dataset, Path(folder))
    last = run.epochs[-1]
    return {"loss": last.loss, "train_acc": last.train_acc, "best_epoch": run.best_epoch} | judged


def _judged(dataset: Dataset, folder: Path) -> dict[str, float | None]:
    """Return each metric of the edges that were held out."""
    checkpoint = load_checkpoint(folder)
    spec = checkpoint.spec
    assert isinstance(spec, LinkSpec)  # noqa: S101 - a run of links
    found = {}
    with open_model(dataset, checkpoint, budget_bytes=BUDGET_BYTES, device="cpu", scratch=None) as opened:
        for split in ("valid", "test"):
            for metric in METRICS:
                judge = LinkJudge.of(dataset, dataset.link_table(split), metric)
                with pair_scorer(
                    opened.model, opened.inference, spec, budget_bytes=BUDGET_BYTES // 8
                ) as scorer:
                    found[f"{split}_{metric}"] = judge.judge(scorer, budget_bytes=BUDGET_BYTES // 8)
    return found


def _row(exclude: Exclude, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation of every figure of ``runs``."""
    names = [name for name in runs[0] if name not in ("exclude", "seed")]
    values = {name: [run[name] for run in runs] for name in names}
    return {
        "exclude": exclude,
        **{
            name: {"mean": statistics.mean(each), "std": statistics.stdev(each)}
            for name, each in values.items()
        },
    }


def _markdown(dataset: Dataset, rows: list[dict[str, Any]], options: argparse.Namespace) -> str:
    given = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in vars(options).items()
                     if name not in ("dataset", "out"))  # fmt: skip
    heads = ("loss", "training accuracy", "validation AUC", "test AUC", "validation hits@10", "test hits@10")
    keys = ("loss", "train_acc", "valid_auc", "test_auc", "valid_hits@10", "test_hits@10")
    text = f"""# {dataset.name}: what predicted edges that pass messages cost

`python experiments/links_leakage.py --dataset DIR {given} --out FILE`,
2 cores of an x86-64 server with other work beside it. DIR was prepared with `--edge-split 80/10/10`. GraphSAGE and a dot product, one
uniform negative for each edge. Loss and training accuracy are of the last epoch; the others, in %, of the epoch with the best validation AUC.
Mean and standard deviation of {options.seeds} seeds.
"""  # noqa: E501 - a line of the file
    lines = [text, f"| exclude | {' | '.join(heads)} |", "|" + "---|" * (1 + len(heads))]
    for row in rows:
        cells = [f"{row['loss']['mean']:.3f} ± {row['loss']['std']:.3f}"]
        cells += [f"{100 * row[key]['mean']:.1f} ± {100 * row[key]['std']:.1f}" for key in keys[1:]]
        lines.append(f"| {row['exclude']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
