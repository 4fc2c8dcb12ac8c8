"""Datasets with task tables and row times, of one type or of several, and the arrays they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from linked import edge_arrays, write_edges

from gloader.dataset import Dataset
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.dataset.table_writers import TaskTableWriter
    from gloader.types import IdArray

NUM_NODES = {"user": 40, "order": 120}
PLACED, HAS = ("order", "p2f_user", "user"), ("user", "f2p_user", "order")
NONE = np.iinfo(np.int64).min  # the time of a row that has none


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArrays:
    """The arrays of a task table."""

    nodes: IdArray
    times: IdArray | None = None
    labels: NDArray[Any] | None = None
    weights: NDArray[np.float32] | None = None
    kind: Any = None

    def require(self, found: dict[str, NDArray[Any]], rows: IdArray) -> None:
        """Raise AssertionError if ``found`` is not what ``rows`` are."""
        for name in ("nodes", "times", "labels", "weights"):
            expected, there = getattr(self, name), found.get(name)
            assert (expected is None) == (there is None), name
            if expected is not None:
                np.testing.assert_array_equal(there, expected[rows])
                assert there.dtype == expected.dtype

    @property
    def num_classes(self) -> int:
        """The number of classes or of columns; 0 without labels."""
        if self.labels is None:
            return 0
        return self.labels.shape[1] if self.labels.ndim == 2 else 5


def task_arrays(
    count: int,
    *,
    num_nodes: int = 40,
    kind: str | None = "classes",
    times: bool = True,
    weights: bool = True,
    seed: int = 0,
) -> TaskArrays:
    """Return the arrays of a task table of ``count`` rows."""
    rng = np.random.default_rng(seed)
    width = 1 if kind == "binary" else 3
    labels: Any = None if kind is None else rng.integers(0, 5, count)
    if kind in ("binary", "multilabel"):
        labels = rng.integers(0, 2, (count, width)).astype(np.float32)
    if kind == "values":
        labels = rng.standard_normal((count, width)).astype(np.float32)
    return TaskArrays(
        nodes=rng.integers(0, num_nodes, count),
        times=rng.integers(-(2**40), 2**40, count) if times else None,
        labels=labels,
        weights=rng.random(count, np.float32) if weights else None,
        kind=kind,
    )


def write_task_table(writer: TaskTableWriter, arrays: TaskArrays) -> None:
    """Write the arrays, the nodes of them in pieces."""
    count = len(arrays.nodes)
    with writer.nodes(count) as column:
        for part in np.array_split(arrays.nodes, 3):
            column.append(part)
    for name in ("times", "labels", "weights"):
        values = getattr(arrays, name)
        if values is not None:
            with getattr(writer, name)(count) as column:
                column.append(values)


def write_tasks(
    path: Path, tables: Mapping[str, TaskArrays], *, os_io: OsIO = REAL_OS, **settings: Any
) -> Dataset:
    """Write a dataset of one type with 40 nodes and 300 edges, all with times."""
    rng = np.random.default_rng(7)
    with Dataset.create(path, name="tasks", num_nodes=40, num_classes=3, os_io=os_io, **settings) as writer:
        write_edges(writer, edge_arrays(40, 40, 300))
        with writer.features(4, "float32") as rows:
            rows.append(rng.standard_normal((40, 4)).astype(np.float32))
        writer.labels(rng.integers(0, 3, 40))
        writer.splits(train=np.arange(20), valid=np.arange(20, 30), test=np.arange(30, 40))
        with writer.nodes().row_time() as column:
            column.append(np.where(np.arange(40) % 4, rng.integers(0, 10**10, 40), NONE))
        for name, arrays in tables.items():
            table = writer.table(name, label_kind=arrays.kind, num_classes=arrays.num_classes)
            write_task_table(table, arrays)
    return Dataset.open(path)
