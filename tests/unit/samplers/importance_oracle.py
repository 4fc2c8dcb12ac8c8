"""LABOR, LADIES, FastGCN and the weights of weighted sampling once more, in plain Python."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from unit.samplers.oracle import layer_key, node_key, unit

SCALE = 2**53


@dataclass
class Hop:
    """Taken edges of each destination, as {edge: weight}."""

    taken: list[dict[int, float]] = field(default_factory=list)


def number(key: int, node: int) -> int:
    return node_key(key, node) >> 11


def is_below(key: int, node: int, chance: float) -> bool:
    return number(key, node) < int(min(chance, 1.0) * SCALE)


def scale_for(chances: list[float], fanout: int) -> float:
    """The c with sum(1 / min(1, c * chance)) = d * d / fanout, by bisection."""
    if fanout < 0 or len(chances) <= fanout:
        return math.inf
    target = len(chances) ** 2 / fanout
    low, high = 0.0, max(1 / chance for chance in chances)
    for _ in range(200):
        middle = (low + high) / 2
        if sum(1 / min(1.0, middle * chance) if middle else math.inf for chance in chances) > target:
            low = middle
        else:
            high = middle
    return high


@dataclass
class ImportanceOracle:
    indptr: list[int]
    indices: list[int]
    seed: int

    def edges(self, node: int) -> range:
        return range(self.indptr[node], self.indptr[node + 1])

    def sources(self, nodes: list[int]) -> set[int]:
        return {self.indices[edge] for node in nodes for edge in self.edges(node)}

    def emit(
        self, nodes: list[int], chance_of: dict[tuple[int, int], float], taken: set[tuple[int, int]]
    ) -> Hop:
        """Take the pairs (destination, source) of ``taken`` with their chances."""
        hop = Hop()
        for node in nodes:
            hop.taken.append({})
            for edge in self.edges(node):
                pair = (node, self.indices[edge])
                if pair in taken:
                    hop.taken[-1][edge] = 1 / min(1.0, chance_of[pair])
        return hop

    def labor(self, key: int, nodes: list[int], fanout: int, iterations: int) -> Hop:
        if fanout == 0:
            return Hop(taken=[{} for _ in nodes])
        chances = dict.fromkeys(self.sources(nodes), 1.0)
        for _ in range(iterations):
            scales = self.scales(nodes, chances, fanout)
            tops = dict.fromkeys(chances, 0.0)
            for node in nodes:
                for edge in self.edges(node):
                    source = self.indices[edge]
                    tops[source] = max(tops[source], scales[node])
            chances = {source: min(1.0, chance * tops[source]) for source, chance in chances.items()}
        scales = self.scales(nodes, chances, fanout)
        chance_of = {
            (node, self.indices[edge]): scales[node] * chances[self.indices[edge]]
            for node in nodes
            for edge in self.edges(node)
        }
        taken = {pair for pair, chance in chance_of.items() if is_below(key, pair[1], chance)}
        return self.emit(nodes, chance_of, taken)

    def scales(self, nodes: list[int], chances: dict[int, float], fanout: int) -> dict[int, float]:
        return {
            node: scale_for([chances[self.indices[edge]] for edge in self.edges(node)], fanout)
            for node in nodes
        }

    def degree(self, node: int) -> int:
        return len(self.edges(node))

    def norms(self, nodes: list[int], adjacency: str) -> dict[int, float]:
        norms = dict.fromkeys(self.sources(nodes), 0.0)
        for node in nodes:
            for edge in self.edges(node):
                source = self.indices[edge]
                if adjacency == "gcn":
                    norms[source] += 1 / ((self.degree(node) + 1) * (self.degree(source) + 1))
                else:
                    norms[source] += 1 / self.degree(node) ** 2
        return norms

    def ladies(self, key: int, nodes: list[int], size: int, adjacency: str) -> Hop:
        norms = self.norms(nodes, adjacency)
        ranks = sorted((number(key, node) + 1) / SCALE / norm for node, norm in norms.items())
        threshold = math.inf if size < 0 or len(ranks) <= size else ranks[size]
        chosen = {
            node: min(1.0, norm * threshold)
            for node, norm in norms.items()
            if (number(key, node) + 1) / SCALE / norm < threshold
        }
        return self.of_nodes(nodes, chosen)

    def fastgcn(self, key: int, nodes: list[int], size: int, adjacency: str) -> Hop:
        everyone = list(range(len(self.indptr) - 1))
        norms = self.norms(everyone, adjacency)
        low, high = 0.0, max((1 / norm for norm in norms.values()), default=1.0)
        if size < 0 or size >= len(norms):
            low = high = math.inf
        for _ in range(200 if high < math.inf else 0):
            middle = (low + high) / 2
            if sum(min(1.0, middle * norm) for norm in norms.values()) < size:
                low = middle
            else:
                high = middle
        chosen = {
            node: min(1.0, high * norm) for node, norm in norms.items() if is_below(key, node, high * norm)
        }
        return self.of_nodes(nodes, chosen if size else {})

    def of_nodes(self, nodes: list[int], chosen: dict[int, float]) -> Hop:
        chance_of = {
            (node, self.indices[edge]): chosen.get(self.indices[edge], 0.0)
            for node in nodes
            for edge in self.edges(node)
        }
        return self.emit(nodes, chance_of, {pair for pair in chance_of if pair[1] in chosen})

    def key(self, epoch: int, index: int, hop: int) -> int:
        return layer_key(self.seed, epoch, index, hop)


def weighted_importance(key: int, weights: list[float], fanout: int) -> dict[int, float]:
    """{position: weight} of a destination whose node key is ``key``, without replacement."""
    positive = [at for at, weight in enumerate(weights) if weight > 0]
    arrivals = sorted((-math.log(unit(key, at)) / weights[at], at) for at in positive)
    if fanout == 0 or not positive:
        return {}
    if fanout < 0 or len(positive) <= fanout:
        return dict.fromkeys(positive, len(weights) / len(positive))
    beyond = arrivals[fanout][0]
    return {
        at: len(weights) / len(positive) / (1 - math.exp(-weights[at] * beyond))
        for _, at in arrivals[:fanout]
    }
