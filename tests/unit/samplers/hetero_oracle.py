"""Typed sampling once more, in plain Python integers, lists and dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from unit.samplers.oracle import (
    MASK,
    OracleBlock,
    OracleSampler,
    layer_key,
    mix,
    node_key,
    uniform,
    uniform_with_replacement,
)

from gloader.samplers import CscGraph, HeteroGraph
from gloader.types import IdArray, Relation

Picks = list[list[int]]  # positions in a relation's edges, of each destination


def relation_key(key: int, number: int) -> int:
    return key if number == 0 else mix((key + mix(number)) & MASK)


@dataclass
class HeteroOracle:
    graph: HeteroGraph
    fanouts: list[list[int]]  # of each relation
    seed: int
    replace: bool = False
    weighted: bool = False
    together: bool = False  # collective fan-outs, those of the first relation
    excluded: Sequence[IdArray] = ()  # of each relation; (): none
    starts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = dict(zip(self.graph.node_types, self.graph.type_starts.tolist(), strict=False))

    def separate(self, key: int, hop: int, destinations: dict[str, list[int]]) -> list[Picks]:
        """What each relation takes by draws of its own."""
        picks = []
        for number, (relation, topology) in enumerate(self.graph.relations.items()):
            assert isinstance(topology, CscGraph)
            weights = topology.edge_weight if self.weighted else None
            sampler = OracleSampler(
                topology.indptr.tolist(),
                topology.indices.tolist(),
                None if weights is None else weights.tolist(),
                [],
                0,
                self.replace,
                frozenset(self.excluded[number].tolist()) if self.excluded else frozenset(),
            )
            this, fanout = relation_key(key, number), self.fanouts[number][hop]
            picks.append([sampler.pick(this, node, fanout) for node in destinations[relation[2]]])
        return picks

    def collective(self, key: int, hop: int, destinations: dict[str, list[int]]) -> list[Picks]:
        """What relations take where one graph of all types is drawn from, as OGB's scripts make it."""
        relations = list(self.graph.relations)
        # One CSC graph: a node's in-edges of all relations in order; (relation, position) of each edge beside it.
        numbered = []
        for number, (relation, topology) in enumerate(self.graph.relations.items()):
            assert isinstance(topology, CscGraph)
            for node, (start, stop) in enumerate(zip(topology.indptr, topology.indptr[1:], strict=False)):
                numbered += [(self.starts[relation[2]] + node, number, at) for at in range(start, stop)]
        numbered.sort()
        merged = np.array([node for node, _, _ in numbered], dtype=np.int64)
        indptr = np.searchsorted(merged, np.arange(self.graph.type_starts[-1] + 1))
        choose = uniform_with_replacement if self.replace else uniform
        picks: list[Picks] = [[] for _ in relations]
        for name, nodes in destinations.items():
            into = [number for number, relation in enumerate(relations) if relation[2] == name]
            for node in nodes if into else []:
                start, stop = indptr[self.starts[name] + node : self.starts[name] + node + 2].tolist()
                this = node_key(relation_key(key, into[0]), node)
                taken = [numbered[start + at] for at in choose(this, stop - start, self.fanouts[0][hop])]
                for number in into:
                    picks[number].append([at for _, of, at in taken if of == number])
        return picks

    def hop(
        self, address: tuple[int, int], hop: int, nodes: dict[str, list[int]], first: dict[str, int]
    ) -> list[OracleBlock]:
        """Let ``nodes[type][first[type]:]`` sample and append what they find."""
        destinations = {name: found[first[name] :] for name, found in nodes.items()}
        draw = self.collective if self.together else self.separate
        picks = draw(layer_key(self.seed, *address, hop), hop, destinations)
        blocks = []
        for (source, _, destination), topology, taken in zip(
            self.graph.relations, self.graph.relations.values(), picks, strict=True
        ):
            assert isinstance(topology, CscGraph)
            local = {node: at for at, node in enumerate(nodes[source])}
            block = OracleBlock([0], [], [], 0, len(destinations[destination]))
            for edges in taken:
                for edge in edges:
                    node = int(topology.indices[edge])
                    if node not in local:
                        local[node] = len(nodes[source])
                        nodes[source].append(node)
                    block.indices.append(local[node])
                    block.edge_ids.append(edge)
                block.indptr.append(len(block.indices))
            blocks.append(block)
        for (source, _, _), block in zip(self.graph.relations, blocks, strict=True):
            block.num_src = len(nodes[source])
        return blocks

    def sample(
        self, epoch: int, index: int, seeds: dict[str, list[int]]
    ) -> tuple[dict[str, list[int]], list[dict[Relation, OracleBlock]]]:
        nodes = {name: list(seeds.get(name, [])) for name in self.graph.num_nodes}
        none = dict.fromkeys(nodes, 0)
        num_hops = len(self.fanouts[0])
        hops = [self.hop((epoch, index), hop, nodes, none) for hop in range(num_hops)]
        return nodes, [dict(zip(self.graph.relations, blocks, strict=True)) for blocks in reversed(hops)]

    def sample_merged(
        self, epoch: int, index: int, seeds: dict[str, list[int]]
    ) -> tuple[dict[str, list[int]], list[dict[Relation, OracleBlock]]]:
        """The hops, next to the seeds first."""
        nodes = {name: list(seeds.get(name, [])) for name in self.graph.num_nodes}
        first, hops = dict.fromkeys(nodes, 0), []
        for hop in range(len(self.fanouts[0])):
            before = {name: len(found) for name, found in nodes.items()}
            blocks = self.hop((epoch, index), hop, nodes, first)
            hops.append(dict(zip(self.graph.relations, blocks, strict=True)))
            first = before
        return nodes, hops
