"""References of the accuracy table: what full-batch training and an MLP reach on the same splits.

    python experiments/full_batch.py --data FOLDER --out FILE

Graphs of FOLDER come with theirs (reference.json); the handwritten digits are trained here, by the same protocol.
Beside them stands the share of the test nodes that are of the class that most training nodes have: an accuracy near it
says little, and so does one near the MLP's, which sees no edges.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch_geometric.nn import GCNConv, SAGEConv

from gloader import Dataset
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset
from gloader.lab.bench.environment import provenance

DIGITS = "builtin:digits"
HIDDEN, DROPOUT, LR, EPOCHS, SEEDS = 128, 0.5, 0.003, 200, 3
PROTOCOL = (
    f"full batch, 2 layers, hidden {HIDDEN}, dropout {DROPOUT}, Adam lr {LR}, {EPOCHS} epochs, test accuracy at the "
    f"best validation epoch, {SEEDS} seeds"
)


class TwoLayers(torch.nn.Module):
    """Two convolutions, or two linear layers that see no edges."""

    def __init__(self, kind: str, width_in: int, width_out: int) -> None:
        super().__init__()
        layer: Any = {"graphsage": SAGEConv, "gcn": GCNConv, "mlp": torch.nn.Linear}[kind]
        self.layers = torch.nn.ModuleList([layer(width_in, HIDDEN), layer(HIDDEN, width_out)])
        self.has_edges = kind != "mlp"

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return the scores of all nodes."""
        edges = (edge_index,) if self.has_edges else ()
        hidden = functional.dropout(functional.relu(self.layers[0](x, *edges)), DROPOUT, self.training)
        scores: torch.Tensor = self.layers[1](hidden, *edges)
        return scores


def main() -> int:
    """Collect the references and write them."""
    parser = argparse.ArgumentParser(description="References of the accuracy table.")
    parser.add_argument("--data", type=Path, required=True, help="folder with one folder per graph")
    parser.add_argument("--out", type=Path, required=True, help="JSON")
    options = parser.parse_args()
    rows = [given_references(path.parent) for path in sorted(options.data.glob("*/reference.json"))]
    rows.append(digits_references())
    values = {"benchmark": "references", **provenance(), "rows": rows}
    options.out.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return 0


def digits_references() -> dict[str, Any]:
    """Train the references of the handwritten digits."""
    dataset = Dataset.open(ensure_dataset(DIGITS, SourceOptions(), PrepareOptions()))
    data = dataset.to_pyg()
    kinds = {
        kind: [_train(kind, data, seed) for seed in range(SEEDS)] for kind in ("mlp", "graphsage", "gcn")
    }
    return {
        "dataset": "digits",
        "protocol": PROTOCOL,
        "majority": _majority(dataset.labels, dataset.train, dataset.test),
        **{
            kind: {"test_acc_mean": fmean(found), "test_acc_std": stdev(found)}
            for kind, found in kinds.items()
        },
    }


def given_references(folder: Path) -> dict[str, Any]:
    """Return the references that a graph came with."""
    content = json.loads((folder / "reference.json").read_text())
    labels = np.load(folder / "graph.npz")["labels"]
    split = np.load(folder / "split.npz")
    return {
        "dataset": content["dataset"],
        "protocol": content["protocol"],
        "majority": _majority(labels, split["train"], split["test"]),
        "mlp": content["mlp"],
        "graphsage": content["sage"],
        "gcn": content["gcn"],
    }


def _majority(labels: Any, train: Any, test: Any) -> float:
    most = int(np.bincount(labels[train][labels[train] >= 0]).argmax())
    return float((labels[test] == most).mean())


def _train(kind: str, data: Any, seed: int) -> float:
    torch.manual_seed(seed)
    model = TwoLayers(kind, data.num_features, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    best = (0.0, 0.0)  # of the validation nodes, of the test nodes
    for _ in range(EPOCHS):
        model.train()
        loss = functional.cross_entropy(
            model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask]
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.eval()
        with torch.no_grad():
            is_right = model(data.x, data.edge_index).argmax(dim=1) == data.y
        valid, test = (float(is_right[mask].float().mean()) for mask in (data.val_mask, data.test_mask))
        if valid > best[0]:
            best = (valid, test)
    return best[1]


if __name__ == "__main__":
    raise SystemExit(main())
