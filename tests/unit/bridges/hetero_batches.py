"""A small graph of several types, and native batches of it by a sampler in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gloader.samplers import CscGraph, HeteroGraph
from gloader.types import BatchId, DeviceBlock, HeteroReadyBatch, Relation

NUM_NODES = {"paper": 90, "author": 60, "venue": 7, "patent": 5}
DIMS = {"paper": 6, "author": 0, "venue": 3, "patent": 2}
WRITES, CITES, IN, OF, NEVER = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("paper", "by", "author"),
    ("patent", "cites", "paper"),  # no edge: its sources are in no batch
)
RELATIONS: tuple[Relation, ...] = (WRITES, CITES, IN, OF, NEVER)

Csc = tuple[NDArray[np.int64], NDArray[np.int64]]


class SmallGraph:
    """CSC arrays for each relation, features by type, labels of papers."""

    num_nodes = NUM_NODES

    def __init__(self, seed: int = 7) -> None:
        rng = np.random.Generator(np.random.Philox(seed))
        self.csc: dict[Relation, Csc] = {}
        for relation in RELATIONS:
            source, _, destination = relation
            degrees = rng.integers(0, 8, NUM_NODES[destination]) if relation != NEVER else None
            degrees = np.zeros(NUM_NODES[destination], np.int64) if degrees is None else degrees
            indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
            self.csc[relation] = indptr, rng.integers(0, NUM_NODES[source], indptr[-1])
        self.features = {
            name: rng.standard_normal((count, DIMS[name])).astype(np.float32)
            for name, count in NUM_NODES.items()
        }
        self.labels = rng.integers(0, 4, NUM_NODES["paper"])

    def topology(self) -> HeteroGraph:
        """Return it as samplers take it."""
        relations = {
            relation: CscGraph(indptr=indptr, indices=indices, num_sources=NUM_NODES[relation[0]])
            for relation, (indptr, indices) in self.csc.items()
        }
        return HeteroGraph(num_nodes=NUM_NODES, relations=relations)

    def batch(
        self,
        seeds: Mapping[str, Sequence[int]],
        fanouts: Sequence[int],
        *,
        is_merged: bool = False,
        weigh: bool = False,
    ) -> HeteroReadyBatch:
        """Sample ``fanouts`` neighbours (-1: all) for each node, hop and relation.

        Merged: a node draws once, in the hop after the one that found it. Every block holds what its destinations drew.
        """
        rng = np.random.Generator(np.random.Philox(3))
        nodes = {name: list(seeds.get(name, [])) for name in NUM_NODES}
        places = {name: {node: place for place, node in enumerate(ids)} for name, ids in nodes.items()}
        drawn: dict[
            tuple[Relation, int], list[int]
        ] = {}  # edge ids, by relation and place of the destination
        hops = []
        for fanout in fanouts:
            num_dst = {name: len(ids) for name, ids in nodes.items()}
            edges = {}
            for relation, (indptr, indices) in self.csc.items():
                source, _, destination = relation
                picks = []
                for place in range(num_dst[destination]):
                    if not is_merged or (relation, place) not in drawn:
                        node = nodes[destination][place]
                        listed = np.arange(indptr[node], indptr[node + 1])
                        count = len(listed) if fanout < 0 else min(fanout, len(listed))
                        drawn[relation, place] = rng.choice(listed, count, replace=False).tolist()
                    picks.append(list(drawn[relation, place]))
                    for edge in picks[-1]:
                        if (found := int(indices[edge])) not in places[source]:
                            places[source][found] = len(nodes[source])
                            nodes[source].append(found)
                edges[relation] = picks
            num_src = {name: len(ids) for name, ids in nodes.items()}
            hops.append(
                {
                    relation: self._block(
                        relation,
                        picks,
                        places[relation[0]],
                        num_src[relation[0]],
                        num_dst[relation[2]],
                        weigh=weigh,
                    )
                    for relation, picks in edges.items()
                }
            )
        arrays = {name: np.array(ids, np.int64) for name, ids in nodes.items()}
        return HeteroReadyBatch(
            id=BatchId(epoch=0, index=0),
            x={name: torch.from_numpy(self.features[name][ids]) for name, ids in arrays.items()},
            y=torch.from_numpy(self.labels[list(seeds.get("paper", []))]),
            blocks=tuple(reversed(hops)),
            nodes=arrays,
            num_seeds={name: len(seeds.get(name, [])) for name in NUM_NODES},
        )

    def _block(
        self,
        relation: Relation,
        picks: list[list[int]],
        places: Mapping[int, int],
        num_src: int,
        num_dst: int,
        *,
        weigh: bool,
    ) -> DeviceBlock:
        edges = np.array([edge for listed in picks for edge in listed], np.int64)
        sources = self.csc[relation][1][edges].tolist()
        return DeviceBlock(
            indptr=torch.tensor(np.cumsum([0, *map(len, picks)]), dtype=torch.int32),
            indices=torch.tensor([places[node] for node in sources], dtype=torch.int32),
            edge_ids=torch.from_numpy(edges),
            src_degree=torch.empty(0),
            num_src=num_src,
            num_dst=num_dst,
            edge_weight=torch.from_numpy(edges.astype(np.float32)) if weigh else None,
        )
