"""The samplers once more, in plain Python integers, lists and dictionaries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def layer_key(*fields: int) -> int:
    key = 0
    for field in fields:
        key = mix((key + GOLDEN + field) & MASK)
    return key


def node_key(key: int, node: int) -> int:
    return mix(key ^ ((node * GOLDEN + 1) & MASK))


def word(key: int, index: int) -> int:
    return mix((key + (index + 1) * GOLDEN) & MASK)


def bounded(key: int, draw: int, bound: int) -> int:
    bits = word(key, draw // 2) >> 32 if draw % 2 else word(key, draw // 2) % 2**32
    if bound >= 2**32:
        return word(key, draw + 2**40) * bound >> 64
    index = draw + 2**40
    while bits * bound % 2**32 < 2**32 % bound:
        bits = word(key, index) >> 32
        index += 2**40
    return bits * bound >> 32


def unit(key: int, draw: int) -> float:
    return ((word(key, draw) >> 11) + 1) * 2.0**-53


def uniform(key: int, degree: int, fanout: int) -> list[int]:
    if fanout < 0 or degree <= fanout:
        return list(range(degree))
    taken: list[int] = []
    for j in range(fanout):
        top = degree - fanout + j
        at = bounded(key, j, top + 1)
        taken.append(top if at in taken else at)
    return taken


def uniform_with_replacement(key: int, degree: int, fanout: int) -> list[int]:
    if fanout < 0 or degree == 0:
        return list(range(degree))
    return [bounded(key, j, degree) for j in range(fanout)]


def by_weight(key: int, weights: list[float], fanout: int) -> list[int]:
    positive = [at for at, weight in enumerate(weights) if weight > 0]
    if fanout < 0 or len(positive) <= fanout:
        return positive
    return sorted(positive, key=lambda at: (-math.log(unit(key, at)) / weights[at], at))[:fanout]


def by_weight_with_replacement(key: int, weights: list[float], fanout: int) -> list[int]:
    positive = [at for at, weight in enumerate(weights) if weight > 0]
    if fanout < 0 or not positive:
        return positive
    sums, total = [], 0.0
    for weight in weights:
        total += weight
        sums.append(total)
    chosen = []
    for j in range(fanout):
        goal = unit(key, j) * total
        chosen.append(next((at for at in positive if sums[at] >= goal), positive[-1]))
    return chosen


@dataclass
class OracleBlock:
    indptr: list[int]
    indices: list[int]
    edge_ids: list[int]
    num_src: int
    num_dst: int


@dataclass
class OracleSampler:
    indptr: list[int]
    indices: list[int]
    weights: list[float] | None
    fanouts: list[int]
    seed: int
    replace: bool
    excluded: frozenset[int] = frozenset()

    def pick(self, key: int, node: int, fanout: int) -> list[int]:
        start, stop = self.indptr[node], self.indptr[node + 1]
        key = node_key(key, node)
        if self.weights is None:
            left = [edge for edge in range(start, stop) if edge not in self.excluded]
            choose = uniform_with_replacement if self.replace else uniform
            return [left[at] for at in choose(key, len(left), fanout)]
        choose_by_weight = by_weight_with_replacement if self.replace else by_weight
        return [start + at for at in choose_by_weight(key, self.weights[start:stop], fanout)]

    def hop(self, address: tuple[int, int], hop: int, nodes: list[int], first: int) -> OracleBlock:
        """Let ``nodes[first:]`` sample and append what they find."""
        local = {node: i for i, node in enumerate(nodes)}
        last = len(nodes)
        block = OracleBlock([0], [], [], 0, last - first)
        key = layer_key(self.seed, *address, hop)
        for i in range(first, last):
            for edge in self.pick(key, nodes[i], self.fanouts[hop]):
                source = self.indices[edge]
                if source not in local:
                    local[source] = len(nodes)
                    nodes.append(source)
                block.indices.append(local[source])
                block.edge_ids.append(edge)
            block.indptr.append(len(block.indices))
        block.num_src = len(nodes)
        return block

    def sample(self, epoch: int, index: int, seeds: list[int]) -> tuple[list[int], list[OracleBlock]]:
        nodes = list(seeds)
        blocks = [self.hop((epoch, index), hop, nodes, 0) for hop in range(len(self.fanouts))]
        return nodes, blocks[::-1]

    def sample_merged(self, epoch: int, index: int, seeds: list[int]) -> tuple[list[int], list[OracleBlock]]:
        nodes, first = list(seeds), 0
        hops = []
        for hop in range(len(self.fanouts)):
            before = len(nodes)
            hops.append(self.hop((epoch, index), hop, nodes, first))
            first = before
        return nodes, hops

    def sample_merged_blocks(
        self, epoch: int, index: int, seeds: list[int]
    ) -> tuple[list[int], list[OracleBlock]]:
        """Each node's draws are looked up by its name, for every block that has it as a destination."""
        nodes, hops = self.sample_merged(epoch, index, seeds)
        drawn: list[list[tuple[int, int]]] = []
        for hop in hops:
            for start, stop in pairwise(hop.indptr):
                drawn.append(list(zip(hop.indices[start:stop], hop.edge_ids[start:stop], strict=True)))
        blocks = []
        num_dst = len(seeds)
        for hop in hops:
            edges = [edge for node in range(num_dst) for edge in drawn[node]]
            indptr = [0, *accumulate(len(drawn[node]) for node in range(num_dst))]
            blocks.append(
                OracleBlock(indptr, [s for s, _ in edges], [e for _, e in edges], hop.num_src, num_dst)
            )
            num_dst = hop.num_src
        return nodes, blocks[::-1]
