"""Accuracy over several node types: our R-GCN, R-GAT and R-SAGE on sampled batches beside PyG's full-batch ones.

    python experiments/bench/hetero_accuracy.py --data FOLDER --out experiments/results/DATE-hetero-accuracy

Typed graphs are made of the real ones in FOLDER, see `typed_graphs`. The reference is made of PyG's ``HeteroConv`` over
``SAGEConv`` or ``GATConv`` and a Linear for each type, with learned rows for words, and trained on the whole graph at
once; ours by `gloader.training`, with features in memory or on the SSD. The same splits, and the test accuracy at the
best epoch on the validation nodes of each of the seeds. Exits with 1 where a mean is more than a point below.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv
from typed_graphs import PAPER, TypedGraph, typed_graph

from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.lab.bench.environment import provenance
from gloader.training.train import fit

if TYPE_CHECKING:
    from gloader import Dataset

HIDDEN: Final = 64
HEADS: Final = 4
DROPOUT: Final = 0.5
LAYERS: Final = 2
FULL_EPOCHS: Final = 100
FULL_LR: Final = 0.005
TOLERANCE: Final = 0.01
MODELS: Final = ("rgcn", "rgat", "rsage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One graph and model."""

    graph: str
    model: str
    test_acc: float
    test_std: float
    reference: float
    reference_std: float
    mlp: float  # on the features of the papers alone
    seconds: float
    reference_seconds: float
    features: str

    @property
    def difference(self) -> float:
        """Points above the reference, as a fraction."""
        return self.test_acc - self.reference


class FullBatch(nn.Module):
    """Two layers of PyG's modules over the whole graph: OGB's R-GCN, or MAG240M's baselines."""

    def __init__(self, name: str, graph: TypedGraph) -> None:
        super().__init__()
        self.is_rgcn = name == "rgcn"
        self.activation = functional.elu if name == "rgat" else functional.relu
        widths = {kind: rows.shape[1] for kind, rows in graph.features.items()}
        self.embs = nn.ParameterDict(
            {
                kind: nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, HIDDEN)))
                for kind, count in graph.num_nodes.items()
                if kind not in widths
            }
        )
        dims = dict.fromkeys(graph.num_nodes, HIDDEN) | widths
        self.convs, self.roots, self.norms = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for depth in range(LAYERS):
            out = graph.num_classes if self.is_rgcn and depth == LAYERS - 1 else HIDDEN
            convs = {key: _conv(name, (dims[key[0]], dims[key[2]]), out) for key in graph.edges}
            self.convs.append(HeteroConv(convs, aggr="sum"))
            self.roots.append(nn.ModuleDict({kind: nn.Linear(dims[kind], out) for kind in dims}))
            self.norms.append(nn.ModuleDict({kind: nn.BatchNorm1d(out) for kind in dims}))
            dims = dict.fromkeys(dims, out)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, graph.num_classes),
        )

    def forward(self, x: dict[str, torch.Tensor], edges: dict[Any, torch.Tensor]) -> torch.Tensor:
        """Return the logits of all papers."""
        x = x | dict(self.embs.items())
        for depth in range(LAYERS):
            found = self.convs[depth](x, edges)
            x = {kind: root(x[kind]) + found[kind] for kind, root in self.roots[depth].items()}  # type: ignore[operator]
            if self.is_rgcn and depth == LAYERS - 1:
                return x[PAPER]
            for kind, rows in x.items():
                norm = self.norms[depth][kind]  # type: ignore[index]
                rows = self.activation(rows if self.is_rgcn else norm(rows))  # noqa: PLW2901
                x[kind] = functional.dropout(rows, DROPOUT, self.training)
        logits: torch.Tensor = self.mlp(x[PAPER])
        return logits


def _conv(name: str, dims: tuple[int, int], out: int) -> nn.Module:
    conv: nn.Module = SAGEConv(dims, out, root_weight=False, bias=name == "rsage")
    if name == "rgat":
        conv = GATConv(dims, out // HEADS, heads=HEADS, add_self_loops=False)
    return conv


def train_reference(name: str, graph: TypedGraph, seed: int) -> float:
    """Return the test accuracy of PyG's modules, or of an MLP on the papers' features, at the best validation epoch."""
    torch.manual_seed(seed)
    x = {kind: torch.from_numpy(rows) for kind, rows in graph.features.items()}
    edges = {key: torch.from_numpy(pair) for key, pair in graph.edges.items()}
    y = torch.from_numpy(graph.labels)
    splits = {part: torch.from_numpy(ids) for part, ids in graph.splits.items()}
    if name == "mlp":
        network: nn.Module = nn.Sequential(
            nn.Linear(x[PAPER].shape[1], HIDDEN),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, graph.num_classes),
        )
    else:
        network = FullBatch(name, graph)
    given = (x[PAPER],) if name == "mlp" else (x, edges)
    optimizer = torch.optim.Adam(network.parameters(), lr=FULL_LR)
    best = (0.0, 0.0)
    for _ in range(FULL_EPOCHS):
        network.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(network(*given)[splits["train"]], y[splits["train"]])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        network.eval()
        with torch.no_grad():
            is_right = (network(*given).argmax(dim=1) == y).float()
        valid, test = (float(is_right[splits[part]].mean()) for part in ("valid", "test"))
        if valid > best[0]:
            best = (valid, test)
    return best[1]


def train_ours(dataset: Dataset, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the summary of our runs."""
    settings = TrainSettings(
        model=ModelConfig(
            name=name,  # type: ignore[arg-type]
            hidden=HIDDEN,
            heads=HEADS,
            dropout=DROPOUT,
            batch_norm=name != "rgcn",
        ),
        optim=OptimConfig(epochs=options.epochs, lr=options.lr, eval_every=2),
        loader=LoaderSettings.of(
            fanouts=(15, 10), batch_size=options.batch_size, memory_budget="3GB", features=options.features
        ),
        runs=options.seeds,
    )
    return fit(dataset, settings, device="cpu").summary


def main() -> int:
    """Train every row and write the table."""
    options = _options()
    rows = []
    with TemporaryDirectory(dir=options.work) as work:
        for name in options.graphs:
            graph = typed_graph(options.data / name)
            dataset = graph.write(Path(work) / name, name)
            mlp = fmean(train_reference("mlp", graph, seed) for seed in range(options.seeds))
            for model in options.models:
                started = time.perf_counter()
                references = [train_reference(model, graph, seed) for seed in range(options.seeds)]
                reference_seconds = time.perf_counter() - started
                found = train_ours(dataset, model, options)
                rows.append(
                    Row(
                        graph=name,
                        model=model,
                        test_acc=found["test_acc"],
                        test_std=found["test_acc_std"] or 0.0,
                        reference=fmean(references),
                        reference_std=stdev(references) if len(references) > 1 else 0.0,
                        mlp=mlp,
                        seconds=found["total_seconds"],
                        reference_seconds=reference_seconds,
                        features=found["features"],
                    )
                )
                print(_line(rows[-1]), flush=True)
    if options.out is not None:
        _write(rows, options)
    return 0 if all(row.difference >= -TOLERANCE for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Accuracy over several node types, beside PyG's full batch.")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per graph")
    parser.add_argument("--graphs", nargs="*", default=["cora_planetoid", "dblp"])
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--features", default="ram", choices=["ram", "ssd"])
    parser.add_argument("--work", type=Path, default=None, help="folder of the datasets, for a while")
    parser.add_argument("--out", type=Path, default=None, help="the table and its figures, without an ending")
    return parser.parse_args()


def _line(row: Row) -> str:
    ours, theirs = (100 * row.test_acc, 100 * row.test_std), (100 * row.reference, 100 * row.reference_std)
    return (
        f"| {row.graph} | {row.model} | {ours[0]:.1f} ± {ours[1]:.1f} | {theirs[0]:.1f} ± {theirs[1]:.1f} "
        f"| {100 * row.difference:+.1f} | {100 * row.mlp:.1f} | {row.seconds:.0f} s | {row.reference_seconds:.0f} s "
        f"| {row.features} |"
    )


def _write(rows: list[Row], options: argparse.Namespace) -> None:
    head = [
        f"Test accuracy in per cent over three node types, made of the graphs named; mean of {options.seeds} seeds.",
        "",
        "| graph | model | gloader | PyG, full batch | difference | MLP | time | PyG's time | features |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    options.out.with_suffix(".md").write_text("\n".join([*head, *map(_line, rows)]) + "\n", encoding="utf-8")
    settings = {
        name: value for name, value in vars(options).items() if name not in ("data", "work", "out")
    } | {
        "hidden": HIDDEN,
        "heads": HEADS,
        "dropout": DROPOUT,
        "full_epochs": FULL_EPOCHS,
        "full_lr": FULL_LR,
    }
    figures = {
        "benchmark": "hetero-accuracy",
        **provenance(),
        "settings": settings,
        "rows": [asdict(row) | {"difference": row.difference} for row in rows],
    }
    options.out.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
