"""Helpers for tests of typed conversions: a small typed graph, the source over it, and a dataset's content."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from convert_helpers import ListEdges

from gloader.convert.readers.arrays import array_features
from gloader.convert.source import GraphSource, NodeSource, RelationSource, Splits
from gloader.types import Relation

WRITES, CITES, IN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("author", "in", "place")


@dataclass
class TypedGraph:
    """A typed graph as plain arrays; types without an entry in ``features`` have none."""

    num_nodes: dict[str, int]
    features: dict[str, np.ndarray]
    edges: dict[Relation, list[tuple]]
    labels: np.ndarray
    splits: dict[str, np.ndarray]
    weighted: set[Relation] = field(default_factory=set)

    def source(self, **changes) -> GraphSource:
        made = GraphSource(
            name="tiny",
            origin="made:tiny",
            nodes=tuple(
                NodeSource(
                    name=name,
                    num_nodes=count,
                    features=array_features(self.features[name]) if name in self.features else None,
                )
                for name, count in self.num_nodes.items()
            ),
            relations=tuple(
                RelationSource(relation=relation, edges=ListEdges(edges, weighted=relation in self.weighted))
                for relation, edges in self.edges.items()
            ),
            labelled="paper",
            num_classes=3,
            labels=self.labels,
            splits=Splits(**self.splits),
        )
        return replace(made, **changes)


def typed_graph(*, seed=0, papers=30, authors=20, places=5) -> TypedGraph:
    """Return papers with features and labels, authors with none, places with narrow features."""
    random = np.random.default_rng(seed)

    def pairs(sources, destinations, count):
        drawn = random.integers(0, [sources, destinations], (count, 2))
        return [tuple(pair) for pair in drawn.tolist()]

    order = random.permutation(papers)
    return TypedGraph(
        num_nodes={"paper": papers, "author": authors, "place": places},
        features={
            "paper": random.standard_normal((papers, 4)).astype(np.float32),
            "place": random.standard_normal((places, 2)).astype(np.float32),
        },
        edges={
            WRITES: [(*pair, float(number % 5)) for number, pair in enumerate(pairs(authors, papers, 80))],
            CITES: pairs(papers, papers, 90),
            IN: pairs(authors, places, 25),
        },
        labels=random.integers(0, 3, papers),
        splits={
            "train": np.sort(order[:15]),
            "valid": np.sort(order[15:20]),
            "test": np.sort(order[20:]),
        },
        weighted={WRITES},
    )


def neighbors(dataset, relation) -> list[list[tuple[int, float]]]:
    """Return the (source, weight) pairs of each destination; weight 1 where the relation has none."""
    graph = dataset.edge_tables[relation].load_graph()
    weights = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    bounds = zip(graph.indptr[:-1].tolist(), graph.indptr[1:].tolist(), strict=True)
    return [list(zip(graph.indices[a:b].tolist(), weights[a:b].tolist(), strict=True)) for a, b in bounds]


def expected_relation(edges, num_destinations, *, weighted=False) -> list[list[tuple[int, float]]]:
    """Return what `neighbors` must be for edges that are kept as they are."""
    found = [[] for _ in range(num_destinations)]
    for source, destination, *weight in edges:
        found[destination].append((source, weight[0] if weighted else 1.0))
    return found


def rows_of(dataset, node_type) -> np.ndarray:
    """Return all features of a type, as float32."""
    table = dataset.node_tables[node_type]
    rows = np.empty((table.num_nodes, table.feature_dim), np.float32)
    with table.open_features() as features:
        features.read_into(np.arange(table.num_nodes), rows)
    return rows


def flat(chunks) -> list[tuple]:
    """Return all edges of a stream."""
    return [edge for chunk in chunks for edge in zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True)]
