"""Savings and accuracy of batches made of blocks of neighbouring seeds.

Graphs are prepared with rows in community order, where neighbouring ids are mostly neighbouring nodes. For each block
size: unique rows per batch and the misses of a Belady cache of a tenth of the rows, over whole epochs in superbatches
of 64 with look-ahead and carry-over; then the test accuracy of GraphSAGE, mean and deviation over the runs.

    python experiments/bench/seed_blocks.py --data DATA --out experiments/results/DATE-seed-blocks.json

DATA holds folders laid out for ``npy:``, such as ``dblp`` and ``amazon_cs``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gloader.cache import plan_belady
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.core.order import EpochOrder
from gloader.dataset import Dataset
from gloader.lab.bench.environment import provenance
from gloader.samplers import NeighborSampler
from gloader.training.train import fit
from gloader.types import BatchId

if TYPE_CHECKING:
    from gloader.types import IdArray

GRAPHS = ("dblp", "amazon_cs")
CACHE_SHARE = 0.1
SUPERBATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBlocksRow:
    """One graph and block size."""

    graph: str
    num_nodes: int
    seed_blocks: int
    batch_size: int
    rows_per_batch: float
    misses_per_batch: float
    test_acc: float | None
    test_acc_std: float | None

    @property
    def hit_rate(self) -> float:
        """Share of the rows that the cache holds."""
        return 1 - self.misses_per_batch / self.rows_per_batch


def main() -> None:
    """Measure every graph with every block size."""
    args = _parse()
    rows: list[SeedBlocksRow] = []
    for name in args.graphs:
        with tempfile.TemporaryDirectory(prefix="gloader-blocks-", dir=args.workdir) as folder:
            source = open_source(f"npy:{args.data / name}", SourceOptions())
            prepare(source, Path(folder) / name, PrepareOptions(order="community"))
            dataset = Dataset.open(Path(folder) / name)
            for blocks in args.blocks:
                rows.append(_measure(dataset, name, blocks, args))
                print(_markdown(rows[-1], rows), flush=True)
    text = _table(rows, args)
    print(text)
    if args.out is not None:
        result = {
            "benchmark": "seed_blocks",
            "fanouts": args.fanouts,
            "cache_share": CACHE_SHARE,
            "superbatch": SUPERBATCH,
            "sampled_epochs": args.sampled_epochs,
            "training": {"epochs": args.epochs, "runs": args.runs, "lr": args.lr, "hidden": args.hidden},
            **provenance(),
            "rows": [asdict(row) | {"hit_rate": row.hit_rate} for row in rows],
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(text + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of graphs")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--blocks", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fanouts", nargs="+", type=int, default=[10, 10])
    parser.add_argument("--sampled-epochs", type=int, default=4, help="epochs whose rows are counted")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of training")
    parser.add_argument("--runs", type=int, default=3, help="trained networks; 0 leaves the accuracy out")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--out", type=Path, help="JSON file for the result; a table goes beside it, as .md")
    return parser.parse_args()


def _measure(dataset: Dataset, name: str, blocks: int, args: argparse.Namespace) -> SeedBlocksRow:
    trace = _trace(dataset, blocks, args)
    capacity = int(CACHE_SHARE * dataset.num_nodes)
    accuracy, deviation = _train(dataset, blocks, args) if args.runs else (None, None)
    return SeedBlocksRow(
        graph=name,
        num_nodes=dataset.num_nodes,
        seed_blocks=blocks,
        batch_size=args.batch_size,
        rows_per_batch=sum(map(len, trace)) / len(trace),
        misses_per_batch=_misses(trace, capacity) / len(trace),
        test_acc=accuracy,
        test_acc_std=deviation,
    )


def _trace(dataset: Dataset, blocks: int, args: argparse.Namespace) -> list[IdArray]:
    """Return the nodes of each batch of the first epochs."""
    order = EpochOrder(
        seeds=dataset.train,
        num_nodes=dataset.num_nodes,
        batch_size=args.batch_size,
        seed=0,
        seed_blocks=blocks,
    )
    sampler = NeighborSampler(dataset.load_graph(), args.fanouts, seed=0)
    trace = []
    for epoch in range(args.sampled_epochs):
        ordered = order.epoch_seeds(epoch)
        for index in range(order.num_batches):
            seeds = order.batch_seeds(ordered, index)
            trace.append(np.sort(sampler.sample(BatchId(epoch=epoch, index=index), seeds).nodes))
    return trace


def _misses(trace: list[IdArray], capacity: int) -> int:
    """Return the misses of the whole trace, planned superbatch by superbatch from an empty cache."""
    parts = [trace[start : start + SUPERBATCH] for start in range(0, len(trace), SUPERBATCH)]
    resident: IdArray = np.empty(0, dtype=np.int64)
    misses = 0
    for part, coming in zip(parts, [*parts[1:], []], strict=True):
        plan = plan_belady(part, capacity=capacity, resident=resident, lookahead=coming)
        resident = plan.resident_after
        misses += plan.num_misses
    return misses


def _train(dataset: Dataset, blocks: int, args: argparse.Namespace) -> tuple[float, float | None]:
    """Return the mean and the deviation of the test accuracy."""
    settings = TrainSettings(
        model=ModelConfig(name="graphsage", hidden=args.hidden),
        optim=OptimConfig(epochs=args.epochs, lr=args.lr, eval_every=2),
        loader=LoaderSettings.of(
            fanouts=args.fanouts, batch_size=args.batch_size, features="ram", seed_blocks=blocks
        ),
        runs=args.runs,
    )
    result = fit(dataset, settings, device="cpu")
    return result.summary["test_acc"], result.summary["test_acc_std"]


_COLUMNS = (
    "graph",
    "seed blocks",
    "rows per batch",
    "misses per batch",
    "hit rate",
    "misses saved",
    "test accuracy",
)


def _table(rows: list[SeedBlocksRow], args: argparse.Namespace) -> str:
    fanouts = ", ".join(map(str, args.fanouts))
    title = f"Batches of {args.batch_size} seeds, fan-outs {fanouts}, in community order, a Belady cache of a tenth."
    head = [title, "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    return "\n".join([*head, *(_markdown(row, rows) for row in rows)])


def _markdown(row: SeedBlocksRow, rows: list[SeedBlocksRow]) -> str:
    base = min((other for other in rows if other.graph == row.graph), key=lambda other: other.seed_blocks)
    accuracy = "" if row.test_acc is None else f"{row.test_acc:.2%} ± {row.test_acc_std or 0:.2%}"
    cells = (
        row.graph,
        row.seed_blocks,
        f"{row.rows_per_batch:,.0f}",
        f"{row.misses_per_batch:,.0f}",
        f"{row.hit_rate:.1%}",
        f"{1 - row.misses_per_batch / base.misses_per_batch:.0%}",
        accuracy,
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
