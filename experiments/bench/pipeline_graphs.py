"""The datasets that the pipeline's benchmark runs on, made once in its working folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader import Dataset
from gloader.lab.bench.graphs import synthetic_graph

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.dataset.writer import DatasetWriter

NUM_CLASSES = 32
NUM_POPULAR = 31_250
_CHUNK_BYTES = 64 * 2**20
_CHUNK_EDGES = 2**24
_SOCIAL_SKEW = 2.5  # node floor(N u**2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A dataset to be made.

    "rmat" has Graph500's skew. The others have the same in-degree everywhere and are made quickly: "uniform" draws
    in-neighbours from all nodes, "popular" from 31,250 of them that stand at equal distances, so that batches of one
    size need the same rows however large the graph. "social" prefers some of them as mildly as a social network does:
    1,024 seeds with fan-out 10,10 need 96,000 of 870,000 rows, where R-MAT needs 35,000.
    """

    kind: str
    nodes: int
    edges: int
    dim: int

    @property
    def name(self) -> str:
        """A folder name."""
        return f"{self.kind}-{self.nodes}-{self.edges}-{self.dim}"

    @property
    def row_bytes(self) -> int:
        """One float32 row."""
        return 4 * self.dim

    @property
    def feature_bytes(self) -> int:
        """All rows."""
        return self.row_bytes * self.nodes


def make_dataset(workdir: Path, graph: Graph) -> Path:
    """Return the folder of the dataset of ``graph``; every node that has in-edges is a training node."""
    folder = workdir / graph.name
    if folder.exists():
        return folder
    print(f"making {graph.name}", flush=True)
    with Dataset.create(folder, name=graph.name, num_nodes=graph.nodes, num_classes=NUM_CLASSES) as writer:
        train = _write_rmat(writer, graph) if graph.kind == "rmat" else _write_even(writer, graph)
        rng = np.random.default_rng(0)
        rows = max(_CHUNK_BYTES // graph.row_bytes, 1)
        with writer.features(graph.dim, "float32") as column:
            for start in range(0, graph.nodes, rows):
                column.append(rng.random((min(rows, graph.nodes - start), graph.dim), np.float32))
        writer.labels(np.arange(graph.nodes, dtype=np.int64) % NUM_CLASSES)
        nobody = np.empty(0, np.int64)
        writer.splits(train=train, valid=nobody, test=nobody)
    return folder


def _write_rmat(writer: DatasetWriter, graph: Graph) -> np.ndarray:
    topology = synthetic_graph("rmat", num_nodes=graph.nodes, num_edges=graph.edges, seed=1)
    with writer.indptr() as column:
        column.append(topology.indptr)
    with writer.indices(graph.edges, "int32") as column:
        column.append(topology.indices)
    return np.flatnonzero(np.diff(topology.indptr))


def _write_even(writer: DatasetWriter, graph: Graph) -> np.ndarray:
    rng = np.random.default_rng(1)
    sources = min(NUM_POPULAR, graph.nodes) if graph.kind == "popular" else graph.nodes
    distance = graph.nodes // sources
    with writer.indptr() as column:
        column.append(np.arange(graph.nodes + 1, dtype=np.int64) * graph.edges // graph.nodes)
    names = rng.permutation(graph.nodes).astype(
        np.int32
    )  # so that popular nodes are no neighbours in the file
    with writer.indices(graph.edges, "int32") as column:
        for start in range(0, graph.edges, _CHUNK_EDGES):
            count = min(_CHUNK_EDGES, graph.edges - start)
            if graph.kind == "social":
                column.append(names[(graph.nodes * rng.random(count) ** _SOCIAL_SKEW).astype(np.int32)])
            else:
                column.append(rng.integers(0, sources, count, dtype=np.int32) * np.int32(distance))
    return np.arange(graph.nodes)
