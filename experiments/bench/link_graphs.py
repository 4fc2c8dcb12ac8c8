"""A made-up graph of ogbl-citation2's shape, every edge of which is to be predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader import Dataset

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CITATION_NODES: Final = 2_927_963
CITATION_EDGES: Final = 30_387_995
CITATION_DIM: Final = 128
_SKEW: Final = 1.6  # an id is drawn as N u ** skew, and ids are shuffled after
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGraph:
    """Edges in CSC form, and features."""

    indptr: NDArray[np.int64]
    sources: NDArray[np.int32]  # (E,) in the order of positions
    destinations: NDArray[np.int32]
    features: NDArray[np.float32]

    def to_json(self) -> dict[str, Any]:
        """Return its numbers."""
        num_nodes, dim = self.features.shape
        return {"num_nodes": num_nodes, "num_edges": len(self.sources), "dim": dim}


def make_citations(scale: float = 1.0, *, seed: int = 0) -> LinkGraph:
    """Return ogbl-citation2's shape times ``scale``, with degrees of a power law."""
    random = np.random.default_rng(seed)
    num_nodes, num_edges = int(CITATION_NODES * scale), int(CITATION_EDGES * scale)
    names = random.permutation(num_nodes).astype(np.int32)

    def ends() -> NDArray[np.int32]:
        return names[(num_nodes * random.random(num_edges) ** _SKEW).astype(np.int64)]

    sources, destinations = ends(), random.integers(0, num_nodes, num_edges).astype(np.int32)
    order = np.argsort(destinations, kind="stable")
    counts = np.bincount(destinations, minlength=num_nodes)
    return LinkGraph(
        indptr=np.concatenate([[0], np.cumsum(counts)]),
        sources=sources[order],
        destinations=destinations[order],
        features=random.standard_normal((num_nodes, CITATION_DIM), dtype=np.float32),
    )


def write_citations(root: Path, graph: LinkGraph) -> Dataset:
    """Write ``graph`` with a link table "train" of all its edges, none of which has a reverse, and open it."""
    num_nodes, dim = graph.features.shape
    num_edges = len(graph.sources)
    with Dataset.create(root, name="citations", num_nodes=num_nodes, num_classes=2) as writer:
        with writer.indptr() as array:
            array.append(graph.indptr)
        with writer.indices(num_edges, "int32") as array:
            array.append(graph.sources)
        with writer.features(dim, "float32") as column:
            column.append(graph.features)
        writer.labels(np.zeros(num_nodes, np.int64))
        nothing = np.empty(0, np.int64)
        writer.splits(train=np.arange(1), valid=nothing, test=nothing)
        table = writer.links("train")
        with table.pairs(num_edges) as array:
            for start in range(0, num_edges, _CHUNK):
                here = slice(start, min(start + _CHUNK, num_edges))
                positions = np.arange(here.start, here.stop)
                columns = (
                    graph.sources[here],
                    graph.destinations[here],
                    positions,
                    np.full(len(positions), -1),
                )
                array.append(np.stack([column.astype(np.int64) for column in columns], axis=1))
    return Dataset.open(root)
