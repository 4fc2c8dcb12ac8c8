"""Small datasets with link tables: edges within communities, split into those that pass messages and held-out ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gloader.dataset import Dataset


def community_edges(
    num_nodes: int = 120, communities: int = 4, per_node: int = 5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the community of each node, and distinct edges (E, 2) within communities, the lower id first."""
    rng = np.random.default_rng(seed)
    of = rng.integers(0, communities, num_nodes)
    members = [np.flatnonzero(of == c) for c in range(communities)]
    ends = np.array([(v, rng.choice(members[of[v]])) for v in range(num_nodes) for _ in range(per_node)])
    ends = np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1)
    return of, rng.permutation(np.unique(ends, axis=0))


def write_links(
    path: Path,
    tables: dict[str, dict[str, Any]],
    *,
    num_nodes: int,
    graph: np.ndarray,
    features: np.ndarray,
    name: str = "links",
    original_ids: np.ndarray | None = None,
) -> Dataset:
    """Write a graph of one type with link tables.

    Parameters
    ----------
    path : of the dataset
    tables : of each the keys pairs (n, 2), and labels, times, negatives where it has them
    num_nodes : N
    graph : (E, 2) edges that pass messages, in both directions
    features : (N, F)
    """
    both = np.unique(np.concatenate([graph, graph[:, ::-1]]), axis=0)
    keys = both[:, 1] * num_nodes + both[:, 0]  # by destination, then source
    order = np.argsort(keys)
    both, keys = both[order], keys[order]
    with Dataset.create(path, name=name, num_nodes=num_nodes, num_classes=1) as writer:
        with writer.indptr() as out:
            out.append(np.r_[0, np.cumsum(np.bincount(both[:, 1], minlength=num_nodes))].astype(np.int64))
        with writer.indices(len(both), "int32") as out:
            out.append(both[:, 0].astype(np.int32))
        with writer.features(features.shape[1], "float32") as out:
            out.append(features.astype(np.float32))
        writer.labels(np.full(num_nodes, -1))
        nobody = np.empty(0, np.int64)
        writer.splits(train=nobody, valid=nobody, test=nobody)
        if original_ids is not None:
            writer.original_ids(original_ids)
        for table, columns in tables.items():
            _write_table(writer.links(table), columns, keys, num_nodes)
    return Dataset.open(path)


def _write_table(writer: Any, columns: dict[str, Any], keys: np.ndarray, num_nodes: int) -> None:
    pairs = np.asarray(columns["pairs"], np.int64).reshape(-1, 2)

    def positions(source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        wanted = destination * num_nodes + source
        at = np.searchsorted(keys, wanted)
        return np.where(keys[np.minimum(at, len(keys) - 1)] == wanted, at, -1)

    with writer.pairs(len(pairs)) as out:
        here, back = positions(*pairs.T), positions(*pairs.T[::-1])
        out.append(np.stack([*pairs.T, here, back], axis=1))
    for name in ("labels", "times"):
        if name in columns:
            values = np.asarray(columns[name])
            opened = (
                writer.labels(len(pairs), str(values.dtype)) if name == "labels" else writer.times(len(pairs))
            )
            with opened as out:
                out.append(values)
    if "negatives" in columns:
        values = np.asarray(columns["negatives"], np.int64)
        with writer.negatives(len(pairs), values.shape[1], "int64") as out:
            out.append(values)


def split_communities(path: Path, *, per_row: int = 0, shared: int = 0, **options: Any) -> Dataset:
    """Write the communities as a dataset with the tables train, valid and test, and given negatives if any."""
    num_nodes = options.setdefault("num_nodes", 120)
    of, edges = community_edges(num_nodes)
    rng = np.random.default_rng(7)
    cuts = [int(0.8 * len(edges)), int(0.9 * len(edges))]
    parts = dict(zip(("train", "valid", "test"), np.split(edges, cuts), strict=True))
    tables: dict[str, dict[str, Any]] = {name: {"pairs": pairs} for name, pairs in parts.items()}
    for name in ("valid", "test"):
        if per_row:
            tables[name]["negatives"] = rng.integers(0, num_nodes, (len(parts[name]), per_row))
        if shared:
            tables[f"{name}_neg"] = {"pairs": rng.integers(0, num_nodes, (shared, 2))}
    features = np.eye(4, 8)[of] + rng.normal(scale=0.8, size=(num_nodes, 8))
    return write_links(path, tables, graph=parts["train"], features=features, **options)
