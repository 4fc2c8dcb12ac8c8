"""The kinds of runs whose memory is held against their budgets, and the small graphs that they train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of run."""

    name: str
    model: str
    graph: str
    words: tuple[str, ...]
    ranks: int = 1
    is_cold: bool = False


MATRIX_SOURCES = {
    "plain": ["synthetic:community,nodes=60000,edges=900000,dim=128,classes=8,seed=1,train=0.2,valid=0.1"],
    "links": [
        "synthetic:community,nodes=30000,edges=400000,dim=64,classes=8,seed=2",
        "--edge-split",
        "80/10/10",
    ],
}


def matrix_cases() -> Iterator[Case]:
    """Yield the kinds of runs."""
    step = ("--fanout", "10,10", "--batch-size", "512", "--hidden", "64")
    for model in ("gcn", "graphsage", "gat"):
        for features in ("ssd", "ram"):
            words = (*step, "--model", model, "--features", features)
            yield Case(name=f"{features}", model=model, graph="plain", words=words)
        for topology in ("sweep", "direct"):
            words = (*step, "--model", model, "--features", "ssd", "--topology", topology)
            yield Case(name=f"ssd, edges {topology}", model=model, graph="plain", words=words)
    for model in ("rsage", "rgcn", "rgat"):
        for features in ("ssd", "ram"):
            words = (*step, "--model", model, "--features", features)
            yield Case(name=f"typed {features}", model=model, graph="typed", words=words)
    links = (*step, "--task", "link", "--model", "graphsage")
    yield Case(name="link ssd", model="graphsage", graph="links", words=(*links, "--features", "ssd"))
    sage = (*step, "--model", "graphsage", "--features", "ssd")
    yield Case(name="2 ranks ssd", model="graphsage", graph="plain", words=sage, ranks=2)
    yield Case(name="cold ssd", model="graphsage", graph="plain", words=sage, is_cold=True)


def write_typed(folder: Path) -> None:
    """Write a graph of several types, most of whose nodes have no features."""
    rng = np.random.default_rng(5)
    counts = {"package": 9000, "user": 8000, "tag": 4000}
    pairs = [
        ("package", "package"),
        ("user", "package"),
        ("package", "user"),
        ("package", "tag"),
        ("tag", "package"),
    ]
    nodes = rng.permutation(counts["package"])
    Dataset.from_numpy_hetero(
        folder,
        name="typed",
        num_nodes=counts,
        features={"package": rng.standard_normal((counts["package"], 128), dtype=np.float32)},
        edges={
            (a, f"{number}", b): np.stack(
                [rng.integers(0, counts[a], 40_000), rng.integers(0, counts[b], 40_000)]
            )
            for number, (a, b) in enumerate(2 * pairs)
        },
        labels={"package": rng.integers(0, 8, counts["package"])},
        num_classes=8,
        train=nodes[:4000],
        valid=nodes[4000:6000],
        test=nodes[6000:8000],
    ).close()
