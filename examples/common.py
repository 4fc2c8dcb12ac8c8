"""The parts that the examples share: the command line, the data, and the measure of accuracy."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from gloader import Dataset
from gloader.adapters.pyg import MergedSampler
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepared_cache import ensure_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


def splits(dataset: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training and the test nodes."""
    return torch.tensor(dataset.train), torch.tensor(dataset.test)


def sampler_for(dataset: Dataset, fanouts: list[int]) -> MergedSampler | None:
    """Return None where PyG's own sampler can run, which needs pyg-lib or torch-sparse; elsewhere ours."""
    return None if WITH_PYG_LIB or WITH_TORCH_SPARSE else MergedSampler(dataset.load_graph(), fanouts)


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
