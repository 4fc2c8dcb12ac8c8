"""Databases of tables whose rows have times, as datasets, and PyG's rule for them in plain Python.

A world has tables, foreign keys between them, and rows to predict. Each foreign key gives two relations. The time of an
edge is the time of its source row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.dataset import Dataset
from gloader.types import NO_TIME

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray, Relation


@dataclass(frozen=True, kw_only=True)
class World:
    """Tables with few different times, so that many are equal."""

    times: dict[str, IdArray | None]  # the time of each row, by table; None for a table without times
    sizes: dict[str, int]
    edges: dict[Relation, NDArray[np.int64]]  # (2, E) sources and destinations
    target: str  # the table of the rows to predict
    rows: IdArray  # (n,) nodes to predict
    row_times: IdArray  # (n,)

    def time_of(self, table: str, node: int) -> int:
        """Return the time of a row, the least one for a table without times."""
        times = self.times[table]
        return NO_TIME if times is None else int(times[node])

    def write(self, path: Path, **options: Any) -> Dataset:
        """Write the world as a dataset with the table "task.train"."""
        aged = {name: times for name, times in self.times.items() if times is not None}
        edge_time = {
            relation: (
                np.full(pairs.shape[1], NO_TIME)
                if self.times[relation[0]] is None
                else self.times[relation[0]][pairs[0]]
            )
            for relation, pairs in self.edges.items()
        }
        return Dataset.from_numpy_hetero(
            path,
            num_nodes=self.sizes,
            features={
                name: np.arange(2 * size, dtype=np.float32).reshape(size, 2)
                for name, size in self.sizes.items()
            },
            edges=self.edges,
            edge_time=edge_time,
            row_time=aged,
            tables={
                "task.train": {
                    "type": self.target,
                    "nodes": self.rows,
                    "times": self.row_times,
                    "labels": np.arange(len(self.rows)) % 3,
                    "num_classes": 3,
                }
            },
            **options,
        )

    def tree(self, row: int, hops: int, *, is_inclusive: bool = True) -> dict[str, set[int]]:
        """Return the nodes by table that PyG's rule for times of nodes allows in the tree of ``row``.

        A node may be taken if its time is at most the time of the row, or below it unless ``is_inclusive``. A tree
        begins with the node of the row.
        """
        end = int(self.row_times[row]) + is_inclusive
        found: dict[str, set[int]] = {name: set() for name in self.sizes}
        found[self.target].add(int(self.rows[row]))
        for _ in range(hops):
            new = {
                (source, int(first))
                for (source, _, destination), pairs in self.edges.items()
                for first, last in pairs.T
                if int(last) in found[destination] and self.time_of(source, int(first)) < end
            }
            for table, node in new:
                found[table].add(node)
        return found


def world(
    seed: int, *, num_tables: int, most_rows: int = 12, num_times: int = 5, num_predicted: int | None = None
) -> World:
    """Return a random world of ``num_tables`` tables, each with up to two foreign keys, some null."""
    rng = np.random.default_rng(seed)
    names = [f"t{number}" for number in range(num_tables)]
    sizes = {name: int(rng.integers(1, most_rows)) for name in names}
    times = {
        name: None
        if rng.random() < 0.3
        else np.where(
            rng.random(sizes[name]) < 0.15, NO_TIME, rng.integers(-2, num_times, sizes[name])
        ).astype(np.int64)
        for name in names
    }
    edges = {}
    for name in names:
        for number in range(int(rng.integers(1, 3))):
            parent = names[int(rng.integers(num_tables))]
            is_there = rng.random(sizes[name]) < 0.8
            children = np.flatnonzero(is_there)
            parents = rng.integers(0, sizes[parent], len(children))
            edges[name, f"f2p_{number}", parent] = np.stack([children, parents])
            edges[parent, f"p2f_{number}", name] = np.stack([parents, children])
    target = names[int(rng.integers(num_tables))]
    count = int(rng.integers(1, 20)) if num_predicted is None else num_predicted
    return World(
        times=times,
        sizes=sizes,
        edges=edges,
        target=target,
        rows=rng.integers(0, sizes[target], count),
        row_times=rng.integers(-2, num_times, count),
    )
