"""Batches of graphs with several types, made by hand: what a model sees, without a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gloader.models import Schema
from gloader.types import BatchId, DeviceBlock, HeteroReadyBatch, Relation

Edges = Mapping[Relation, Sequence[tuple[int, int]]]  # (source, destination) of each edge

CITES, WRITES, HAS = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "rev_writes", "author"),
)
TOPIC, TOPIC_OF = ("field", "of", "paper"), ("paper", "about", "field")
NUM_NODES = {"paper": 7, "author": 5, "field": 3}
RELATIONS = (CITES, WRITES, HAS, TOPIC, TOPIC_OF)


def small_schema(**changed: Any) -> Schema:
    """Papers with 6 features, authors with 4 and fields with none; five relations."""
    given = {
        "num_nodes": NUM_NODES,
        "feature_dims": {"paper": 6, "author": 4, "field": 0},
        "relations": RELATIONS,
        "targets": ("paper",),
    }
    return Schema(**given | changed)


def random_edges(schema: Schema, *, seed: int, num_edges: int = 12) -> Edges:
    """As many edges of each relation, some of them alike."""
    random = np.random.default_rng(seed)
    return {
        relation: [
            (
                int(random.integers(schema.num_nodes[source])),
                int(random.integers(schema.num_nodes[destination])),
            )
            for _ in range(num_edges)
        ]
        for relation in schema.relations
        for source, _, destination in [relation]
    }


def full_batch(
    schema: Schema,
    edges: Edges,
    seeds: Sequence[int] | Mapping[str, Sequence[int]],
    *,
    num_hops: int,
    x: Mapping[str, torch.Tensor],
    y: Sequence[int] | None = None,
) -> HeteroReadyBatch:
    """Return the batch of all in-edges of ``seeds``, hop by hop, as a sampler with fan-outs of -1 draws it.

    Seeds without a type are of the first target.
    """
    of_type = seeds if isinstance(seeds, Mapping) else {schema.targets[0]: seeds}
    known = {name: list(of_type.get(name, ())) for name in schema.num_nodes}
    hops = []
    for _ in range(num_hops):
        num_dst = {name: len(ids) for name, ids in known.items()}
        drawn = {}
        for relation in schema.relations:
            source, _, destination = relation
            into: dict[int, list[int]] = {}
            for u, v in edges[relation]:
                into.setdefault(v, []).append(u)
            lists = [into.get(v, []) for v in known[destination][: num_dst[destination]]]
            known[source] += dict.fromkeys(u for found in lists for u in found if u not in known[source])
            drawn[relation] = lists
        hops.append(
            {
                relation: _block(lists, known[relation[0]], num_dst[relation[2]])
                for relation, lists in drawn.items()
            }
        )
    return HeteroReadyBatch(
        id=BatchId(epoch=0, index=0),
        x={name: x[name][torch.tensor(ids, dtype=torch.int64)] for name, ids in known.items()},
        y=torch.tensor([0] * len(of_type[schema.targets[0]]) if y is None else list(y)),
        # Sources are counted when the hop is over: blocks of one hop agree on them.
        blocks=tuple(reversed(hops)),
        nodes={name: np.array(ids, dtype=np.int64) for name, ids in known.items()},
        num_seeds={name: len(of_type.get(name, ())) for name in known},
    )


def _block(lists: list[list[int]], sources: list[int], num_dst: int) -> DeviceBlock:
    local = {u: i for i, u in enumerate(sources)}
    indices = [local[u] for found in lists for u in found]
    return DeviceBlock(
        indptr=torch.tensor(np.cumsum([0, *map(len, lists)]), dtype=torch.int32),
        indices=torch.tensor(indices, dtype=torch.int32),
        edge_ids=torch.arange(len(indices)),
        src_degree=torch.empty(0),
        num_src=len(sources),
        num_dst=num_dst,
    )
