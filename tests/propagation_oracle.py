"""Hop columns by plain loops in float64, from the definitions in docs/propagate.md."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np

from gloader.samplers import CscGraph
from gloader.samplers.graph import HeteroGraph
from gloader.training.propagation.propagation_plan import EdgeSizes, GraphSizes


def random_relation(rng, num_sources, num_nodes, num_edges, *, weighted, dtype=np.int32):
    """Return a topology with parallel edges, loops and isolated nodes, as chance has it."""
    destinations = np.sort(rng.integers(0, num_nodes, num_edges))
    return CscGraph(
        indptr=np.searchsorted(destinations, np.arange(num_nodes + 1)).astype(np.int64),
        indices=rng.integers(0, num_sources, num_edges).astype(dtype),
        edge_weight=rng.random(num_edges).astype(np.float32) if weighted else None,
        num_sources=num_sources,
    )


def sizes_of(graph: HeteroGraph, widths) -> GraphSizes:
    """Return the sizes of a graph in memory, with float32 inputs."""
    edges = {
        relation: EdgeSizes(
            num_edges=each.num_edges,
            source_bytes=each.indices.nbytes,
            weight_bytes=0 if each.edge_weight is None else each.edge_weight.nbytes,
            offset_bytes=each.indptr.nbytes,
        )
        for relation, each in graph.relations.items()
    }
    inputs = {name: 4 * graph.num_nodes[name] * width for name, width in widths.items()}
    return GraphSizes(num_nodes=dict(graph.num_nodes), edges=edges, input_bytes=inputs)


def neighbours(topology, direction):
    """Return each receiving node's list of (sender, weight), in the order of the edges."""
    count = topology.num_nodes if direction == "in" else topology.num_sources
    lists = [[] for _ in range(count)]
    for node in range(topology.num_nodes):
        for edge in range(topology.indptr[node], topology.indptr[node + 1]):
            weight = 1.0 if topology.edge_weight is None else float(topology.edge_weight[edge])
            source = int(topology.indices[edge])
            if direction == "in":
                lists[node].append((source, weight))
            else:
                lists[source].append((node, weight))
    return lists


def hop(lists, x, stat, norm, *, loops):
    """Return one hop of one statistic over the rows ``x``."""
    width = x.shape[1]
    degree = np.array([sum(weight for _, weight in each) for each in lists]) + (1.0 if loops else 0.0)
    out = np.zeros((len(lists), width))
    for node, each in enumerate(lists):
        rows = np.array([x[sender] for sender, _ in each]).reshape(-1, width)
        if stat == "mean" and norm == "mean" and degree[node] > 0:
            out[node] = sum((w * x[u] for u, w in each), np.zeros(width)) / degree[node]
        elif stat == "mean" and norm != "mean":
            for u, weight in [*each, *([(node, 1.0)] if loops else [])]:
                if degree[u] > 0 and degree[node] > 0:
                    out[node] += weight * x[u] / np.sqrt(degree[u] * degree[node])
        elif stat != "mean" and len(rows):
            out[node] = {"min": np.min, "max": np.max, "std": np.std}[stat](rows, axis=0)
    return out


def hop_columns(graph, inputs, spec, target, *, loops=True):
    """Return every column group by name."""
    is_plain = len(graph.relations) == 1 and all(each[0] == each[2] for each in graph.relations)
    loops = loops and spec.norm != "mean"
    groups = {"x": inputs[target]} if target in inputs else {}
    steps = [(relation, direction) for direction in spec.directions for relation in graph.relations]
    names = [relation[1] for relation in graph.relations]
    for length in range(1, spec.hops + 1):
        for path in product(steps, repeat=length):
            ends = [(r[0], r[2]) if d == "in" else (r[2], r[0]) for r, d in path]
            fits = all(a[1] == b[0] for a, b in pairwise(ends))
            if not fits or ends[-1][1] != target or ends[0][0] not in inputs:
                continue
            if is_plain and len({d for _, d in path}) > 1:
                continue
            parts = []
            for relation, direction in reversed(path):
                name = relation[1] if names.count(relation[1]) == 1 else ":".join(relation)
                parts.append(name if direction == "in" else "~" + name)
            label = f"{path[0][1]}{length}" if is_plain else "-".join(parts)
            for stat in spec.stats:
                rows = x = inputs[ends[0][0]].astype(np.float64)
                for number, (relation, direction) in enumerate(path):
                    is_last = number == length - 1
                    used = stat if stat in ("min", "max") or is_last else "mean"
                    rows = hop(
                        neighbours(graph.relations[relation], direction), rows, used, spec.norm, loops=loops
                    )
                    if spec.norm == "ppr" and used == "mean":
                        rows = (1 - spec.alpha) * rows + spec.alpha * x
                groups[f"{label}.{stat}"] = rows
    return groups
