"""Small graphs that several tests share."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gloader.samplers import CscGraph
from gloader.samplers.workspace import WorkspacePool
from gloader.types import AnySeeds, BatchSeeds, IdArray

SHARES = (
    None,
    0.0,
    0.02,
    0.4,
    0.97,
)  # of the edges of a graph, see `some_edges`; None: seeds are a plain array


def some_edges(num_edges: int, share: float | None, random: np.random.Generator) -> tuple[IdArray, ...]:
    """About ``share`` of the edges of a relation, to be excluded; of None nothing is said."""
    return () if share is None else (np.flatnonzero(random.random(num_edges) < share),)


def seeds_without(seeds: IdArray, excluded: tuple[IdArray, ...]) -> AnySeeds:
    """``seeds`` of a batch that takes none of the edges ``excluded`` of each relation."""
    return BatchSeeds(nodes=seeds, excluded=excluded) if excluded else seeds


def use_hash_tables(sampler: Any) -> None:
    """Let a sampler of the hop frame find nodes of any type in hash tables."""
    frame = sampler._frame
    frame._pool = WorkspacePool(partial(frame._make_workspace, dense_limit=0))


def random_graph(
    num_nodes: int, max_degree: int, *, seed: int = 0, weighted: bool = False, dtype: type = np.int32
) -> CscGraph:
    """A graph with degrees from 0 to ``max_degree``, parallel edges and self loops."""
    random = np.random.default_rng(seed)
    degrees = random.integers(0, max_degree + 1, num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    num_edges = int(indptr[-1])
    return CscGraph(
        indptr=indptr,
        indices=random.integers(0, num_nodes, num_edges).astype(dtype),
        edge_weight=random.random(num_edges) * (random.random(num_edges) > 0.2) if weighted else None,
    )


def star(degree: int, edge_weight: np.ndarray | None = None) -> CscGraph:
    """Node 0 receives from nodes 1..degree, edge i from node i + 1; nobody else receives."""
    indptr = np.full(degree + 2, degree, dtype=np.int64)
    indptr[0] = 0
    return CscGraph(indptr=indptr, indices=np.arange(1, degree + 1, dtype=np.int32), edge_weight=edge_weight)


def grid() -> CscGraph:
    """An arithmetic graph, so that the golden digests depend on no random library."""
    degrees = np.arange(97) * 5 % 131
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return CscGraph(indptr=indptr, indices=(np.arange(indptr[-1]) * 31 % 97).astype(np.int32))
