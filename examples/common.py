"""The parts that the examples share: the command line, the data, and the measure of accuracy."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from publications import CITES, make_publications
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from gloader import Dataset
from gloader.adapters.pyg import MergedSampler
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gloader.types import LinkRows

os.environ.setdefault("DGLBACKEND", "pytorch")  # or DGL asks, and writes a file into the home folder

SPEC = "synthetic:community,nodes=20000,edges=200000,dim=64,classes=8,seed=5"


def parse() -> tuple[Dataset, int]:
    """Return the dataset that the command line names, made the first time, and the number of epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", default=SPEC, help="a folder made by `gloader prepare`, or a source")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    return Dataset.open(ensure_dataset(args.dataset, SourceOptions(), PrepareOptions())), args.epochs


def parse_typed() -> tuple[Dataset, int]:
    """Return the dataset of several types that the command line names, and the number of epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", help="a folder made by `gloader prepare`; left out: a publication graph")
    parser.add_argument("--papers", type=int, default=12_000, help="of the publication graph")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    path = Path(args.dataset or f"{tempfile.gettempdir()}/gloader-publications-{args.papers}")
    if args.dataset is None and not path.exists():
        graph = make_publications(args.papers)
        arrays = {"num_nodes": graph.num_nodes, "features": graph.features, "edges": graph.edges}
        Dataset.from_numpy_hetero(
            path,
            **arrays,
            labels={"paper": graph.labels},
            **graph.splits,
            add_reverse=True,
            symmetrize=[CITES],
        )
    return Dataset.open(path), args.epochs


def parse_links() -> tuple[Dataset, int]:
    """Return the dataset that the command line names, with its edges split, and the number of epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--dataset", default=SPEC, help="a folder of `gloader prepare --edge-split`, or a source"
    )
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(0)
    split = PrepareOptions(edge_split=(0.8, 0.1, 0.1))
    return Dataset.open(ensure_dataset(args.dataset, SourceOptions(), split)), args.epochs


def links(dataset: Dataset, name: str) -> LinkRows:
    """Return the edges of a link table: sources, destinations, and positions in the graph."""
    table = dataset.link_table(name)
    with table.open(max_bytes=table.num_bytes) as rows:
        return rows.read(np.arange(table.num_rows))


def splits(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training and the test nodes."""
    return torch.tensor(dataset.train), torch.tensor(dataset.test)


def sampler_for(dataset: Dataset, fanouts: list[int]) -> MergedSampler | None:
    """Return None where PyG's own sampler can run, which needs pyg-lib or torch-sparse; elsewhere ours."""
    if WITH_PYG_LIB or WITH_TORCH_SPARSE:
        return None
    graph = dataset.load_hetero_graph() if dataset.kind == "hetero" else dataset.load_graph()
    return MergedSampler(graph, fanouts)


def prefetched(dataset: Dataset, feature: str, label: str) -> dict[str, dict[str, list[str]]]:
    """Return what a sampler of DGL's has to be told to fetch, by type."""
    names = [name for name, table in dataset.node_tables.items() if table.has_features]
    return {
        "prefetch_node_feats": {name: [feature] for name in names},
        "prefetch_labels": {dataset.labelled.name: [label]},
    }


def auc(right: torch.Tensor, wrong: torch.Tensor) -> float:
    """Return how often the score of an edge is above that of a pair that is none."""
    ranks = torch.cat([right, wrong]).argsort().argsort().double()
    beaten = ranks[: len(right)].sum() - len(right) * (len(right) - 1) / 2
    return float(beaten) / (len(right) * len(wrong))


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: Iterable[Any], outputs: Callable[[Any], Any]) -> float:
    """Return the share of seeds that ``model`` gets right.

    Parameters
    ----------
    model : put into evaluation mode meanwhile
    batches : mini-batches around the seeds
    outputs : from a batch to predictions (B, classes) and labels (B,)
    """
    model.eval()
    right = total = 0
    for batch in batches:
        predicted, labels = outputs(batch)
        right += int((predicted.argmax(dim=1) == labels).sum())
        total += len(labels)
    model.train()
    return right / total
