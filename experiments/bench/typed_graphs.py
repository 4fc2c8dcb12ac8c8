"""Typed graphs made of real ones of one type: nodes, words and communities.

Real graphs with several types are hard to come by without a network. A graph with a bag of words is one of three: its
nodes are papers, of whose words every other column is a node of the type "word", without features; the other
columns are the papers' features. Communities that the edges alone tell are nodes too, whose features are the mean of
their papers' on some columns. No relation knows a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.sparse

from gloader import Dataset

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import Relation

PAPER: Final = "paper"
_COMMUNITY_DIM: Final = 64
_ROUNDS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedGraph:
    """The arrays of a graph of several types, as `Dataset.from_numpy_hetero` takes them."""

    num_nodes: dict[str, int]
    features: dict[str, NDArray[np.float32]]
    edges: dict[Relation, NDArray[np.int64]]  # (2, E)
    labels: NDArray[np.int64]  # of the papers
    splits: dict[str, NDArray[np.int64]]  # train, valid, test

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    def write(self, path: Path, name: str) -> Dataset:
        """Write it as a dataset, and open that."""
        return Dataset.from_numpy_hetero(
            path,
            name=name,
            num_nodes=self.num_nodes,
            features=self.features,
            edges=self.edges,
            labels={PAPER: self.labels},
            num_classes=self.num_classes,
            **self.splits,
        )


def typed_graph(folder: Path) -> TypedGraph:
    """Return the typed graph of the one in ``folder`` (graph.npz, features_csr.npz, split.npz)."""
    graph = np.load(folder / "graph.npz")
    indptr, indices = graph["indptr"], graph["indices"].astype(np.int64)
    words: Any = scipy.sparse.load_npz(folder / "features_csr.npz")
    words = words.tocsr()
    targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    features = words[:, ::2].toarray().astype(np.float32)
    has = words[:, 1::2].tocoo()
    has_word = np.stack([has.row, has.col]).astype(np.int64)
    community = _communities(indptr, indices)
    member = np.stack([np.arange(len(community)), community])
    sizes = np.bincount(community)
    means = np.zeros((len(sizes), _COMMUNITY_DIM), np.float32)
    np.add.at(means, community, features[:, :_COMMUNITY_DIM])
    split: Any = np.load(folder / "split.npz")
    return TypedGraph(
        num_nodes={PAPER: len(indptr) - 1, "word": has.shape[1], "community": len(sizes)},
        features={PAPER: features, "community": (means / sizes[:, None]).astype(np.float32)},
        edges={
            (PAPER, "cites", PAPER): np.stack([indices, targets]),
            ("word", "in", PAPER): has_word[::-1].copy(),
            (PAPER, "has", "word"): has_word,
            ("community", "holds", PAPER): member[::-1].copy(),
            (PAPER, "of", "community"): member,
        },
        labels=graph["labels"],
        splits={name: split[name] for name in ("train", "valid", "test")},
    )


def _communities(indptr: NDArray[np.int64], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a community of each node, (N,): a few rounds in which a node joins where most of its neighbours are."""
    found = np.arange(len(indptr) - 1)
    for _ in range(_ROUNDS):
        for node in range(len(found)):
            near = found[indices[indptr[node] : indptr[node + 1]]]
            if len(near):
                names, counts = np.unique(near, return_counts=True)
                found[node] = names[counts.argmax()]
    return np.unique(found, return_inverse=True)[1].astype(np.int64)
