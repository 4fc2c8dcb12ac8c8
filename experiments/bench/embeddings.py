"""Trained rows on the SSD beside rows read on demand, and beside a table in memory, on the same batches.

    python experiments/bench/embeddings.py --workdir DIR --out experiments/results/DATE-embeddings
    python experiments/bench/embeddings.py --workdir DIR --quick

WIP
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from gloader import Dataset

FANOUTS = (10, 5)


def one_type(folder: Path, num_nodes: int, *, skew: float = 2.0, degree: int = 10) -> Dataset:
    """Make a graph of one type without features: destinations at random, sources skewed."""
    random = np.random.default_rng(1)
    num_edges = degree * num_nodes
    ids = random.permutation(num_nodes)
    sources = ids[(num_nodes * random.random(num_edges) ** skew).astype(np.int64)]
    edges = np.stack([sources, random.integers(0, num_nodes, num_edges)])
    return Dataset.from_numpy_hetero(
        folder,
        name="one-type",
        num_nodes={"node": num_nodes},
        edges={("node", "to", "node"): edges},
        labels={"node": random.integers(0, 16, num_nodes)},
        num_classes=16,
    )
