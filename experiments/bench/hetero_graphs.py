"""A made-up graph of ogbn-mag's shape: its types, relations and numbers, with degrees of a power law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.samplers import CscGraph
from gloader.samplers.graph import HeteroGraph

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import Relation

MAG_NODES: Final = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field": 59_965}
MAG_EDGES: Final[dict[Relation, int]] = {
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "has_topic", "field"): 7_505_078,
}
MAG_TRAIN: Final = 629_571
MAG_DIM: Final = 128
MAG_CLASSES: Final = 349
# How skewed the ends of edges are: an id is drawn as N u ** skew, and ids are shuffled after.
_SKEW: Final = {"paper": 1.4, "author": 1.5, "institution": 3.0, "field": 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGraph:
    """A graph of several types in memory, with what a node classifier needs."""

    num_nodes: dict[str, int]
    edges: dict[Relation, NDArray[np.int32]]  # (2, E) sources and destinations, sorted by destination
    features: dict[str, NDArray[np.float32]]  # (N_t, F_t) of papers alone, as ogbn-mag
    labels: NDArray[np.int64]  # (papers,)
    train: NDArray[np.int64]
    num_classes: int

    def to_json(self) -> dict[str, Any]:
        """Return its numbers."""
        return {
            "num_nodes": self.num_nodes,
            "num_edges": {":".join(relation): edges.shape[1] for relation, edges in self.edges.items()},
            "dims": {name: rows.shape[1] for name, rows in self.features.items()},
            "train": len(self.train),
            "num_classes": self.num_classes,
        }

    def csc(self) -> dict[Relation, tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Return offsets and sources of each relation."""
        found = {}
        for relation, (sources, destinations) in self.edges.items():
            counts = np.bincount(destinations, minlength=self.num_nodes[relation[2]])
            found[relation] = np.concatenate([[0], np.cumsum(counts)]), sources
        return found

    def topology(self) -> HeteroGraph:
        """Return it as our samplers take it."""
        return HeteroGraph(
            num_nodes=self.num_nodes,
            relations={
                relation: CscGraph(
                    indptr=indptr, indices=indices, num_sources=self.num_nodes[relation[0]], validate=False
                )
                for relation, (indptr, indices) in self.csc().items()
            },
        )


def make_mag(scale: float = 1.0, *, seed: int = 0, with_features: bool = True) -> TypedGraph:
    """Return ogbn-mag's shape times ``scale``: 4 types and 7 relations, citations in both directions.

    The three relations between types have reverses, "rev_" and their names, as in OGB's examples. Labels show in the
    features of papers; edges know nothing of them.
    """
    random = np.random.default_rng(seed)
    num_nodes = {name: max(20, round(scale * count)) for name, count in MAG_NODES.items()}
    shuffled = {name: random.permutation(count).astype(np.int32) for name, count in num_nodes.items()}
    edges: dict[Relation, NDArray[np.int32]] = {}
    for (source, name, destination), count in MAG_EDGES.items():
        ends = [
            _draw(random, shuffled[kind], _SKEW[kind], max(20, round(scale * count)))
            for kind in (source, destination)
        ]
        pair = np.stack(ends)
        edges[source, name, destination] = (
            np.concatenate([pair, pair[::-1]], axis=1) if source == destination else pair
        )
    for (source, name, destination), pair in list(edges.items()):
        if source != destination:
            edges[destination, f"rev_{name}", source] = pair[::-1]
    num_papers = num_nodes["paper"]
    labels = random.integers(0, MAG_CLASSES, num_papers)
    features = {}
    if with_features:
        rows = random.standard_normal((num_papers, MAG_DIM), dtype=np.float32)
        rows += random.standard_normal((MAG_CLASSES, MAG_DIM), dtype=np.float32)[labels] / 2
        features["paper"] = rows
    return TypedGraph(
        num_nodes=num_nodes,
        edges={relation: _sorted(pair) for relation, pair in edges.items()},
        features=features,
        labels=labels,
        train=np.sort(random.permutation(num_papers)[: max(20, round(scale * MAG_TRAIN))]),
        num_classes=MAG_CLASSES,
    )


def _draw(random: np.random.Generator, ids: NDArray[np.int32], skew: float, count: int) -> NDArray[np.int32]:
    return ids[(len(ids) * random.random(count) ** skew).astype(np.int64)]


def _sorted(pair: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.ascontiguousarray(pair[:, np.argsort(pair[1], kind="stable")])
