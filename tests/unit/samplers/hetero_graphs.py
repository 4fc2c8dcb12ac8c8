"""Small graphs of several types that several tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gloader.samplers import CscGraph, HeteroGraph
from gloader.types import Relation

CITES, WRITES, WRITTEN = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")
OF, NOTHING, NOBODY = ("field", "of", "paper"), ("author", "no", "field"), ("nobody", "knows", "paper")


def bipartite(
    num_sources: int, num_nodes: int, max_degree: int, *, seed: int = 0, weighted: bool = False
) -> CscGraph:
    """A relation with degrees from 0 to ``max_degree`` and parallel edges."""
    random = np.random.default_rng(seed)
    degrees = random.integers(0, max_degree + 1, num_nodes) * (num_sources > 0)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    num_edges = int(indptr[-1])
    return CscGraph(
        indptr=indptr,
        indices=random.integers(0, max(num_sources, 1), num_edges).astype(np.int32),
        edge_weight=random.random(num_edges) * (random.random(num_edges) > 0.2) if weighted else None,
        num_sources=num_sources,
    )


def typed_graph(
    num_nodes: Mapping[str, int],
    relations: Sequence[Relation],
    *,
    max_degree: int = 30,
    seed: int = 0,
    weighted: bool = False,
    without_edges: Sequence[Relation] = (),
) -> HeteroGraph:
    """A graph of the types and relations given; those ``without_edges`` have none."""
    return HeteroGraph(
        num_nodes=num_nodes,
        relations={
            relation: bipartite(
                num_nodes[relation[0]],
                num_nodes[relation[2]],
                0 if relation in without_edges else max_degree,
                seed=seed + number,
                weighted=weighted,
            )
            for number, relation in enumerate(relations)
        },
    )


def papers(*, max_degree: int = 30, seed: int = 0, weighted: bool = False) -> HeteroGraph:
    """Papers, authors and fields; a relation without edges, and one from a type without nodes."""
    return typed_graph(
        {"paper": 200, "author": 150, "nobody": 0, "field": 20},
        [CITES, WRITES, WRITTEN, NOTHING, NOBODY, OF],
        max_degree=max_degree,
        seed=seed,
        weighted=weighted,
        without_edges=[NOTHING],
    )
