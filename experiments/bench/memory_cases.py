"""The kinds of runs whose memory is held against their budgets, and the small graphs that they train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

    @property
    def title(self) -> str:
        """The model and what is special about the run."""
        return f"{self.model} {self.name}"


MATRIX_SOURCES = {
    "plain": ["synthetic:community,nodes=40000,edges=600000,dim=128,classes=8,seed=1,train=0.15,valid=0.1"],
    "links": [
        "synthetic:community,nodes=20000,edges=60000,dim=64,classes=8,seed=2",
        "--edge-split",
        "80/10/10",
    ],
}
_STEP = ("--fanout", "10,10", "--batch-size", "512", "--hidden", "64")
_ON_SSD = ("--features", "ssd")


def matrix_cases() -> Iterator[Case]:
    """Yield the kinds of runs."""
    for model, graph in (("gcn", "plain"), ("graphsage", "plain"), ("gat", "plain"), ("gine", "told")):
        for features in ("ssd", "ram"):
            yield _case(features, model, graph, "--features", features)
        for home in ("sweep", "direct"):
            yield _case(f"ssd, edges {home}", model, graph, *_ON_SSD, "--topology", home)
    for model in ("rsage", "rgcn", "rgat"):
        for features in ("ssd", "ram"):
            yield _case(f"typed {features}", model, "typed", "--features", features)
        yield _case("typed ssd, edges sweep", model, "typed", *_ON_SSD, "--topology", "sweep")
    for model in ("graphsage", "gcn"):
        for features in ("ssd", "ram"):
            yield _case(f"link {features}", model, "links", "--task", "link", "--features", features)
    for model in ("rsage", "rgcn"):
        yield _case("typed link ssd", model, "pairs", "--task", "link", *_ON_SSD)
    for model, graph in (("graphsage", "plain"), ("gat", "plain"), ("rsage", "typed")):
        for features in ("ssd", "ram"):
            yield _case(f"2 ranks {graph} {features}", model, graph, "--features", features, ranks=2)
    for model, graph in (("graphsage", "plain"), ("rgcn", "typed")):
        yield _case(f"cold {graph} ssd", model, graph, *_ON_SSD, is_cold=True)
    yield _case("cold link ssd", "graphsage", "links", "--task", "link", *_ON_SSD, is_cold=True)
    yield _case("cold 2 ranks plain ssd", "graphsage", "plain", *_ON_SSD, ranks=2, is_cold=True)


def _case(name: str, model: str, graph: str, *words: str, ranks: int = 1, is_cold: bool = False) -> Case:
    words = (*_STEP, "--model", model, *words)
    return Case(name=name, model=model, graph=graph, words=words, ranks=ranks, is_cold=is_cold)


def write_graphs(folder: Path) -> None:
    """Write the graphs that are not made up by gloader: with features of edges, and of several types."""
    _write_told(folder / "told")
    _write_typed(folder / "typed")
    _write_typed(folder / "pairs", edge_split=(0.8, 0.1, 0.1), edge_split_relation="1")


def _write_told(folder: Path) -> None:
    """Write a graph of one type whose edges have features."""
    rng = np.random.default_rng(6)
    num_nodes, num_edges = 20_000, 200_000
    nodes = rng.permutation(num_nodes)
    Dataset.from_numpy(
        folder,
        edge_index=rng.integers(0, num_nodes, (2, num_edges)),
        features=rng.standard_normal((num_nodes, 128), dtype=np.float32),
        edge_features=rng.standard_normal((num_edges, 16), dtype=np.float32),
        labels=rng.integers(0, 8, num_nodes),
        train=nodes[:5000],
        valid=nodes[5000:7000],
        test=nodes[7000:9000],
    ).close()


def _write_typed(folder: Path, **options: Any) -> None:
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
        **options,
    ).close()
