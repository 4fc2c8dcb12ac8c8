"""Sampling by time once more, in plain Python: of each seed the dictionary of its tree."""

from __future__ import annotations

from dataclasses import dataclass

from unit.samplers.hetero_oracle import relation_key
from unit.samplers.oracle import OracleBlock, layer_key, node_key, uniform, uniform_with_replacement


@dataclass
class TemporalOracle:
    indptr: list[int]
    indices: list[int]
    times: list[int]
    fanouts: list[int]
    seed: int
    strategy: str
    bound: str
    window: int | None
    replace: bool

    def may_take(self, edge: int, asked: int) -> bool:
        time = self.times[edge]
        if self.bound == "<":
            return time < asked and (self.window is None or time >= asked - self.window)
        return time <= asked and (self.window is None or time > asked - self.window)

    def pick(self, key: int, entry: int, node: int, asked: int, fanout: int, excluded: set[int]) -> list[int]:
        edges = [
            edge
            for edge in range(self.indptr[node], self.indptr[node + 1])
            if self.may_take(edge, asked) and edge not in excluded
        ]
        if self.strategy == "last":
            return edges if fanout < 0 else edges[max(len(edges) - fanout, 0) :]
        choose = uniform_with_replacement if self.replace else uniform
        return [edges[at] for at in choose(node_key(key, entry), len(edges), fanout)]

    def sample(
        self,
        address: tuple[int, int],
        seeds: list[int],
        asked: list[int],
        excluded: set[int],
        *,
        is_merged: bool,
    ) -> tuple[list[tuple[int, int]], list[OracleBlock]]:
        """Return the entries (tree, node) and the hops, next to the seeds first."""
        num_nodes = len(self.indptr) - 1
        entries = list(enumerate(seeds))
        trees = [{seed: at} for at, seed in enumerate(seeds)]
        first, hops = 0, []
        for hop, fanout in enumerate(self.fanouts):
            last = len(entries)
            block = OracleBlock([0], [], [], 0, last - first)
            key = layer_key(self.seed, *address, hop)
            for tree, node in entries[first:last]:
                picked = self.pick(key, tree * num_nodes + node, node, asked[tree], fanout, excluded)
                for edge in picked:
                    source = self.indices[edge]
                    if source not in trees[tree]:
                        trees[tree][source] = len(entries)
                        entries.append((tree, source))
                    block.indices.append(trees[tree][source])
                    block.edge_ids.append(edge)
                block.indptr.append(len(block.indices))
            block.num_src = len(entries)
            hops.append(block)
            first = last if is_merged else 0
        return entries, hops


@dataclass
class TypedTemporalOracle:
    """The same of a graph of several types."""

    num_nodes: dict[str, int]
    relations: dict[tuple[str, str, str], TemporalOracle]  # of each, with the fan-outs of its own
    seed: int

    def sample(
        self,
        address: tuple[int, int],
        seeds: list[tuple[str, int]],
        asked: list[int],
        *,
        is_merged: bool,
        excluded: dict[tuple[str, str, str], set[int]],
    ) -> tuple[dict[str, list[tuple[int, int]]], list[list[tuple[list[int], list[int], list[int]]]]]:
        """Return the entries (tree, node) of each type, and of each hop and relation its block."""
        entries: dict[str, list[tuple[int, int]]] = {name: [] for name in self.num_nodes}
        for tree, (name, node) in enumerate(seeds):
            entries[name].append((tree, node))
        # A seed may repeat, and is another one then: local ids are looked up by tree.
        known = {name: {entry: at for at, entry in enumerate(of)} for name, of in entries.items()}
        first = dict.fromkeys(entries, 0)
        hops = []
        for hop in range(len(next(iter(self.relations.values())).fanouts)):
            last = {name: len(of) for name, of in entries.items()}
            blocks = []
            for number, ((source, _, destination), oracle) in enumerate(self.relations.items()):
                key = relation_key(layer_key(self.seed, *address, hop), number)
                indptr: list[int] = [0]
                indices: list[int] = []
                edges: list[int] = []
                for tree, node in entries[destination][first[destination] : last[destination]]:
                    entry = tree * self.num_nodes[destination] + node
                    out = excluded[source, _, destination]
                    for edge in oracle.pick(key, entry, node, asked[tree], oracle.fanouts[hop], out):
                        found = (tree, oracle.indices[edge])
                        if found not in known[source]:
                            known[source][found] = len(entries[source])
                            entries[source].append(found)
                        indices.append(known[source][found])
                        edges.append(edge)
                    indptr.append(len(indices))
                blocks.append((indptr, indices, edges))
            hops.append(blocks)
            first = last if is_merged else first
        return entries, hops
