"""Links predicted on real graphs: our mini-batches beside PyG's full batch, on the same split and the same negatives.

    python experiments/bench/link_accuracy.py --data FOLDER --out experiments/results/DATE-links-accuracy

The edges of each graph are dealt out 85/5/10 as `gloader prepare --edge-split` does it, both directions of a pair to
one part, and messages pass over the training edges alone. Negatives of validation and test are random pairs that are no
edges, drawn once for all. Both networks are two layers of GraphSAGE with the mean, and a dot product, and both draw one
wrong destination for each training edge. As OGB's examples do, the test figure of each metric is that of the weights
which were best in that metric on the validation edges, and training stops when it has not risen for a while. PyG takes
all training edges in each step, ours batches of them, with each way to keep predicted edges out of the messages.
Features are projected to --dim random directions for both, so that a run takes minutes. Exits with 1 where ours with
``exclude="none"`` is more than a point below in a mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.sparse
import torch
from sklearn.metrics import roc_auc_score  # type: ignore[import-untyped]
from torch import nn
from torch.nn import functional
from torch_geometric.nn import SAGEConv

from gloader import Dataset
from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.lab.bench.environment import provenance
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.predict import score_pairs
from gloader.training.train import RunFiles, fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HIDDEN: Final = 128
SPLIT: Final = (0.85, 0.05, 0.10)
TOLERANCE: Final = 1.0  # points
EXCLUDES: Final = ("none", "self", "reverse")
OFF: Final = 0.05  # points, that rounding of scores may make
HITS: Final = 10
PYG: Final = "PyG, full batch"
INTRO: Final = (
    "hits@{hits} and AUC of the test edges in per cent, mean and deviation of {seeds} seeds, and the difference to "
    "PyG in points. The same split 85/5/10 and the same {negatives} negatives; features in {dim} random directions; "
    "GraphSAGE with two layers of 128 and a dot product; one wrong destination for each training edge; each metric at "
    "its best epoch on the validation edges."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One network, tested; in per cent."""

    hits: float  # of the weights with the best hits on the validation edges
    auc: float  # of those with the best AUC there
    epochs: int  # until it stopped, of the longer training
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One graph and one way to train, over the seeds."""

    graph: str
    how: str
    runs: tuple[Figures, ...]

    def mean(self, name: str) -> float:
        """Return the mean of a figure over the seeds."""
        return fmean(getattr(run, name) for run in self.runs)

    def spread(self, name: str) -> float:
        """Return its unbiased standard deviation; 0 of one seed."""
        found = [getattr(run, name) for run in self.runs]
        return stdev(found) if len(found) > 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTask:
    """A graph with its split and its negatives."""

    name: str
    dataset: Dataset
    features: torch.Tensor  # (N, F)
    pairs: dict[str, NDArray[np.int64]]  # of each table, (n, 2)

    def judged(self, part: str) -> NDArray[np.int64]:
        """Return the edges of a part and, behind them, what they are compared with, (n, 2)."""
        return np.concatenate([self.pairs[part], self.pairs[f"{part}_neg"]])

    def figures(self, part: str, scores: NDArray[np.float32]) -> tuple[float, float]:
        """Return hits@K and AUC of the scores of `judged`, in per cent."""
        count = len(self.pairs[part])
        edges, others = scores[:count], scores[count:]
        best = np.sort(others)[-HITS]
        truth = np.arange(len(scores)) < count
        return 100 * float((edges > best).mean()), 100 * float(roc_auc_score(truth, scores))


def make_task(folder: Path, root: Path, *, dim: int, negatives: int) -> LinkTask:
    """Return the task of the graph in ``folder`` (graph.npz, features_csr.npz), written below ``root``."""
    graph = np.load(folder / "graph.npz")
    features = scipy.sparse.load_npz(folder / "features_csr.npz").astype(np.float32)
    if 0 < dim < features.shape[1]:
        random = np.random.default_rng(0)
        features = features @ (random.standard_normal((features.shape[1], dim)) / dim**0.5).astype(np.float32)
    features = np.ascontiguousarray(features if isinstance(features, np.ndarray) else features.toarray())
    num_nodes = len(features)
    edges = np.stack([graph["indices"], np.repeat(np.arange(num_nodes), np.diff(graph["indptr"]))])
    wrong = {
        f"{part}_neg": {"edge_index": no_edges(edges, num_nodes, negatives, seed)}
        for seed, part in enumerate(("valid", "test"))
    }
    dataset = Dataset.from_numpy(
        root / folder.name,
        edge_index=edges,
        features=features,
        labels=graph["labels"],
        links=wrong,
        edge_split=SPLIT,
    )
    pairs = {}
    for name, table in dataset.link_tables.items():
        with table.open(max_bytes=table.num_bytes) as rows:
            found = rows.read(np.arange(table.num_rows))
            pairs[name] = np.stack([found.sources, found.destinations], axis=1).astype(np.int64)
    return LinkTask(name=folder.name, dataset=dataset, features=torch.from_numpy(features), pairs=pairs)


def no_edges(edges: NDArray[Any], num_nodes: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return ``count`` random pairs (2, count) of two nodes each that are no edges. Pure."""
    random = np.random.default_rng(seed)
    known = np.unique(edges[0].astype(np.int64) * num_nodes + edges[1])
    drawn = random.integers(0, num_nodes, (2, 2 * count + 100))
    is_new = ~np.isin(drawn[0] * num_nodes + drawn[1], known) & (drawn[0] != drawn[1])
    return drawn[:, is_new][:, :count]


class FullSage(nn.Module):
    """Two of PyG's layers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(width, HIDDEN), SAGEConv(HIDDEN, HIDDEN)])
        self.dropout = dropout

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of all nodes."""
        hidden = functional.relu(self.convs[0](x, adjacency))
        made: torch.Tensor = self.convs[1](functional.dropout(hidden, self.dropout, self.training), adjacency)
        return made


def train_pyg(task: LinkTask, seed: int, options: argparse.Namespace) -> Figures:
    """Train PyG's layers on all edges in each step, and test the best of them."""
    began = time.perf_counter()
    torch.manual_seed(seed)
    num_nodes = len(task.features)
    train = torch.from_numpy(task.pairs["train"].T.copy())
    # Rows are destinations; as a sparse matrix PyG need not hold the rows of every edge.
    adjacency = torch.sparse_coo_tensor(
        train.flip(0), torch.ones(train.shape[1]), (num_nodes, num_nodes)
    ).to_sparse_csr()
    network = FullSage(task.features.shape[1], options.dropout)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.lr)
    best, tested = [0.0, 0.0], [0.0, 0.0]  # hits, AUC
    epoch = rose = 0
    while epoch < options.full_epochs and epoch - rose < options.full_patience:
        epoch += 1
        network.train()
        made = network(task.features, adjacency)
        wrong = torch.randint(0, num_nodes, (train.shape[1],))
        source = made[train[0]]
        loss = functional.softplus(-(source * made[train[1]]).sum(1)).mean()
        loss = loss + functional.softplus((source * made[wrong]).sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if epoch % options.full_every == 0:
            valid, test = (
                task.figures(part, pyg_scores(network, task, adjacency, part)) for part in ("valid", "test")
            )
            for number in range(2):
                if valid[number] > best[number]:
                    best[number], tested[number], rose = valid[number], test[number], epoch
    hits, auc = tested
    return Figures(hits=hits, auc=auc, epochs=epoch, seconds=time.perf_counter() - began)


@torch.no_grad()
def pyg_scores(network: FullSage, task: LinkTask, adjacency: torch.Tensor, part: str) -> NDArray[np.float32]:
    """Return the scores of what a part is judged by."""
    network.eval()
    made = network(task.features, adjacency).numpy()
    pairs = task.judged(part)
    scores: NDArray[np.float32] = np.einsum("ij,ij->i", made[pairs[:, 0]], made[pairs[:, 1]])
    return scores


def train_ours(task: LinkTask, exclude: str, seed: int, options: argparse.Namespace) -> Figures:
    """Train as `gloader train --task link` does, once for each metric, and test the best checkpoint."""
    began = time.perf_counter()
    hits, epochs = _train_ours(task, exclude, seed, f"hits@{HITS}", options)
    auc, more = _train_ours(task, exclude, seed, "auc", options)
    return Figures(hits=hits, auc=auc, epochs=max(epochs, more), seconds=time.perf_counter() - began)


def _train_ours(
    task: LinkTask, exclude: str, seed: int, metric: str, options: argparse.Namespace
) -> tuple[float, int]:
    """Return the metric of the test edges and the number of epochs."""
    settings = TrainSettings(
        model=ModelConfig(name="graphsage", hidden=HIDDEN, dropout=options.dropout),
        optim=OptimConfig(
            epochs=options.epochs, lr=options.lr, patience=options.patience, eval_every=options.eval_every
        ),
        loader=LoaderSettings.of(
            fanouts=options.fanout,
            batch_size=options.batch_size,
            seed=seed,
            features="ram",
            memory_budget=options.memory_budget,
        ),
        task="link",
        links=LinkConfig(exclude=exclude, metric=metric),  # type: ignore[arg-type] # one of EXCLUDES
    )
    with TemporaryDirectory(dir=options.work) as folder:
        out = Path(folder) / "run"
        found = fit(task.dataset, settings, device="cpu", files=RunFiles(out=out)).summary
        scores = score_pairs(
            task.dataset,
            load_checkpoint(out),
            task.judged("test"),
            memory_budget_bytes=settings.loader.memory.memory_budget,
        )
    figure = task.figures("test", scores)[metric == "auc"]
    if abs(figure - 100 * found[f"test_{metric}"]) > OFF:
        sys.exit(
            f"{task.name}: gloader says {100 * found[f'test_{metric}']:.3f} of a {metric} of {figure:.3f}"
        )
    return figure, len(found["epoch_seconds"])


def main() -> int:
    """Train every row and write the table."""
    options = _options()
    rows: list[Row] = []
    failed = False
    with TemporaryDirectory(dir=options.work) as work:
        for name in options.graphs:
            task = make_task(options.data / name, Path(work), dim=options.dim, negatives=options.negatives)
            seeds = range(options.seeds)
            theirs = Row(graph=name, how=PYG, runs=tuple(train_pyg(task, seed, options) for seed in seeds))
            rows.append(theirs)
            print(_line(theirs, theirs), flush=True)
            for exclude in options.exclude:
                runs = tuple(train_ours(task, exclude, seed, options) for seed in seeds)
                rows.append(Row(graph=name, how=f"gloader, exclude {exclude}", runs=runs))
                print(_line(rows[-1], theirs), flush=True)
                failed |= exclude == "none" and _lacks(rows[-1], theirs) > TOLERANCE
                if options.out is not None:
                    _write(rows, options)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per graph")
    parser.add_argument("--graphs", nargs="*", default=["cora_planetoid", "dblp", "amazon_cs"])
    parser.add_argument("--exclude", nargs="*", default=EXCLUDES, choices=EXCLUDES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--negatives", type=int, default=1000, help="of validation, and of test")
    parser.add_argument("--dim", type=int, default=256, help="columns of the features; 0 for what there is")
    parser.add_argument("--lr", type=float, default=0.001, help="of both")
    parser.add_argument("--dropout", type=float, default=0.5, help="of both")
    parser.add_argument("--full-epochs", type=int, default=600, help="of PyG, a step each, at most")
    parser.add_argument("--full-patience", type=int, default=100, help="of PyG, in epochs")
    parser.add_argument("--full-every", type=int, default=5, help="epochs between PyG's evaluations")
    parser.add_argument("--epochs", type=int, default=60, help="of ours, at most")
    parser.add_argument("--patience", type=int, default=10, help="of ours, in epochs")
    parser.add_argument("--eval-every", type=int, default=1, help="epochs between our evaluations")
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--memory-budget", default="3GB", help="of ours")
    parser.add_argument("--work", type=Path, default=None, help="folder of the datasets, for a while")
    parser.add_argument("--out", type=Path, default=None, help="the table and its figures, without an ending")
    return parser.parse_args()


def _lacks(ours: Row, theirs: Row) -> float:
    """Return by how many points ours is below, in the figure where it is most."""
    return max(theirs.mean(name) - ours.mean(name) for name in ("hits", "auc"))


def _line(row: Row, theirs: Row) -> str:
    cells = [row.graph, row.how]
    for name in ("hits", "auc"):
        cells.append(f"{row.mean(name):.1f} ± {row.spread(name):.1f}")
        cells.append("" if row is theirs else f"{row.mean(name) - theirs.mean(name):+.1f}")
    cells += [f"{row.mean('epochs'):.0f}", f"{row.mean('seconds'):.0f} s"]
    return f"| {' | '.join(cells)} |"


def _write(rows: Sequence[Row], options: argparse.Namespace) -> None:
    settings = {name: value for name, value in vars(options).items() if name not in ("data", "work", "out")}
    theirs = {row.graph: row for row in rows if row.how == PYG}
    words = " ".join(sys.argv[1:]).replace(str(options.data), "DIR").replace(str(options.out), "FILE")
    head = [
        "# Links predicted on real graphs, beside PyG's full batch",
        "",
        f"`python experiments/bench/link_accuracy.py {words}`",
        "",
        INTRO.format(hits=HITS, negatives=options.negatives, seeds=options.seeds, dim=options.dim),
        "",
        f"| graph | how | hits@{HITS} | to PyG | AUC | to PyG | epochs | time of a run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines = [_line(row, theirs[row.graph]) for row in rows]
    options.out.with_suffix(".md").write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    figures = {
        "benchmark": "link-accuracy",
        **provenance(),
        "settings": settings | {"hidden": HIDDEN, "split": SPLIT},
        "rows": [
            asdict(row)
            | {
                name: {
                    "mean": row.mean(name),
                    "std": row.spread(name),
                    "to_pyg": row.mean(name) - theirs[row.graph].mean(name),
                }
                for name in ("hits", "auc")
            }
            for row in rows
        ],
    }
    options.out.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
