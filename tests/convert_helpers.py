"""Helpers for tests of conversions: a sink in memory, a plain-Python oracle, small folders of arrays."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gloader.convert.source import EdgeChunk


class ListEdges:
    """An edge stream over (src, dst) or (src, dst, weight) tuples."""

    def __init__(self, edges, *, weighted=False, times=None, is_counted=True):
        self.edges = list(edges)
        self.times = None if times is None else np.asarray(times, np.int64)
        self.has_weights = weighted
        self.num_edges = len(self.edges) if is_counted else None
        self.has_times = times is not None
        self.passes = 0

    def chunks(self, max_edges):
        self.passes += 1
        for start in range(0, len(self.edges), max_edges):
            part = self.edges[start : start + max_edges]
            yield EdgeChunk(
                src=np.array([edge[0] for edge in part], np.int64),
                dst=np.array([edge[1] for edge in part], np.int64),
                weight=np.array([edge[2] for edge in part], np.float32) if self.has_weights else None,
                time=None if self.times is None else self.times[start : start + max_edges],
            )


class Column:
    """A writer that keeps what it is given."""

    def __init__(self, length=None, dtype=None):
        self.length, self.dtype, self.parts, self.is_closed = length, dtype, [], False

    def append(self, chunk):
        self.parts.append(np.array(chunk))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_closed = True

    @property
    def value(self) -> np.ndarray[Any, Any]:
        assert self.is_closed
        return np.concatenate(self.parts) if self.parts else np.empty(0, self.dtype)


class MemorySink:
    """Takes a topology as `DatasetWriter` does, into memory."""

    def indptr(self):
        self.offsets = Column()
        return self.offsets

    def indices(self, num_edges, dtype):
        self.sources = Column(num_edges, dtype)
        return self.sources

    def edge_weight(self, num_edges):
        self.weights = Column(num_edges, "float32")
        return self.weights

    def edge_time(self, num_edges):
        self.times = Column(num_edges, "int64")
        return self.times

    def neighbors(self, *, weighted=False):
        """Return the (source, weight) pairs of each node, weight 1 where there are none."""
        ends, sources = self.offsets.value, self.sources.value
        assert len(sources) == self.sources.length == ends[-1]
        weights = self.weights.value if weighted else np.ones(len(sources))
        return [
            list(zip(sources[a:b].tolist(), weights[a:b].tolist(), strict=True)) for a, b in pairwise(ends)
        ]


def expected_neighbors(edges, num_nodes, rules):
    """Return what `MemorySink.neighbors` must be, the plain way."""
    triples = [(edge[0], edge[1], edge[2] if len(edge) > 2 else 1.0) for edge in edges]
    if rules.self_loops:
        triples = [t for t in triples if t[0] != t[1]] + [(v, v, 1.0) for v in range(num_nodes)]
    found = [[] for _ in range(num_nodes)]
    for src, dst, weight in triples:
        found[dst].append((src, weight, "own"))
        if rules.symmetrize and src != dst:
            found[src].append((dst, weight, "reverse"))
    if not rules.merges:
        return [[(src, weight) for src, weight, _ in entries] for entries in found]
    merged = [_merged(entries) for entries in found]
    if edges and len(edges[0]) == 2:
        return [[(src, 1.0) for src, _ in entries] for entries in merged]
    return merged


def expected_columns(edges, times, num_nodes, rules):
    """Return (source, weight, time, number in the source) of each node's edges, the plain way; number -1: added."""
    rows = [(*edge[:2], edge[2] if len(edge) > 2 else 1.0, number) for number, edge in enumerate(edges)]
    if rules.self_loops:
        rows = [row for row in rows if row[0] != row[1]] + [(v, v, 1.0, -1) for v in range(num_nodes)]
    found = [[] for _ in range(num_nodes)]
    for src, dst, weight, number in rows:
        found[dst].append((src, weight, "own", number))
        if rules.symmetrize and src != dst:
            found[src].append((dst, weight, "reverse", number))
    earliest = min(times, default=0) if times is not None else 0

    def with_time(entries):
        given = [0] * len(edges) if times is None else times
        return [
            (src, weight, earliest if number < 0 else given[number], number)
            for src, weight, number in entries
        ]

    lists = []
    for entries in found:
        plain = [(src, weight, number) for src, weight, _, number in entries]
        if rules.merges:
            sums = dict(_merged([entry[:3] for entry in entries]))
            if edges and len(edges[0]) == 2:
                sums = dict.fromkeys(sums, 1.0)
            plain = [(src, sums[src], min(e[3] for e in entries if e[0] == src)) for src in sums]
        timed = with_time(plain)
        # Python's sort is stable: equal ones stay as they came.
        lists.append(sorted(timed, key=lambda row: (row[2], row[0])) if times is not None else timed)
    return lists


def _merged(entries):
    sums = {}
    for src, weight, side in entries:
        sums.setdefault(src, {"own": 0.0, "reverse": 0.0})[side] += weight
    return [(src, max(sums[src].values())) for src in sorted(sums)]


def write_folder(folder: Path, *, num_nodes=10, dim=3, num_edges=40, seed=0, **replaced):
    """Write a folder for ``npy:``; an array given as None is left out. Return what was written."""
    random = np.random.default_rng(seed)
    arrays = {
        "edges": random.integers(0, num_nodes, (num_edges, 2)),
        "features": random.standard_normal((num_nodes, dim)).astype(np.float32),
        "labels": random.integers(0, 3, num_nodes),
        "train": np.arange(0, num_nodes, 2),
        "valid": np.arange(1, num_nodes, 4),
        "test": np.arange(3, num_nodes, 4),
    } | replaced
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return arrays


def read_all(chunks):
    """Return the edges of a stream as a list of (src, dst) pairs."""
    return [pair for chunk in chunks for pair in zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True)]
