"""Datasets with link tables, edge features and edge times, of one type or of several, and the arrays they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.dataset import Dataset
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.types import EDGE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.dataset.table_writers import LinkTableWriter
    from gloader.dataset.writer import DatasetWriter, EdgeTableWriter
    from gloader.types import IdArray, LinkRows, Relation

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
NUM_NODES = {"user": 40, "item": 25}
NUM_EDGES = {BUYS: 300, BOUGHT: 280}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkArrays:
    """The arrays of a link table."""

    pairs: IdArray  # (n, 4)
    labels: NDArray[Any] | None = None
    times: IdArray | None = None
    negatives: NDArray[Any] | None = None

    def require(self, found: LinkRows, rows: IdArray) -> None:
        """Raise AssertionError if ``found`` is not what ``rows`` are."""
        columns = [found.sources, found.destinations, found.positions, found.reverses]
        np.testing.assert_array_equal(np.stack(columns, axis=1), self.pairs[rows])
        for name in ("labels", "times", "negatives"):
            expected, there = getattr(self, name), getattr(found, name)
            assert (expected is None) == (there is None), name
            if expected is not None:
                np.testing.assert_array_equal(there, expected[rows])
                assert there.dtype == (np.int64 if name == "negatives" else expected.dtype)


def link_arrays(
    count: int,
    *,
    num_sources: int = 40,
    num_destinations: int = 25,
    num_edges: int = 300,
    num_reverses: int = 280,
    labels: str | None = "float32",
    k: int = 3,
    negatives: str = "int32",
    seed: int = 0,
) -> LinkArrays:
    """Return the arrays of a link table of ``count`` rows."""
    rng = np.random.default_rng(seed)
    columns = [(0, num_sources), (0, num_destinations), (-1, num_edges), (-1, num_reverses)]
    return LinkArrays(
        pairs=np.stack([rng.integers(least, limit, count) for least, limit in columns], axis=1),
        labels=None if labels is None else rng.integers(0, 9, count).astype(labels),
        times=rng.integers(-(2**40), 2**40, count),
        negatives=rng.integers(0, num_destinations, (count, k)).astype(negatives) if k else None,
    )


def write_link_table(writer: LinkTableWriter, arrays: LinkArrays) -> None:
    """Write the arrays, the pairs of them in pieces."""
    count = len(arrays.pairs)
    with writer.pairs(count) as column:
        for part in np.array_split(arrays.pairs, 3):
            column.append(part)
    if arrays.labels is not None:
        with writer.labels(count, str(arrays.labels.dtype)) as column:
            column.append(arrays.labels)
    if arrays.times is not None:
        with writer.times(count) as column:
            column.append(arrays.times)
    if arrays.negatives is not None:
        with writer.negatives(count, arrays.negatives.shape[1], str(arrays.negatives.dtype)) as column:
            column.append(arrays.negatives)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeArrays:
    """The arrays of the edges of a relation."""

    indptr: IdArray
    indices: NDArray[np.int32]
    features: NDArray[np.float32] | None
    times: IdArray | None


def edge_arrays(num_nodes: int, num_sources: int, num_edges: int, *, seed: int = 0) -> EdgeArrays:
    """Return edges with three features each, whose times ascend in every list."""
    rng = np.random.default_rng(seed)
    destinations = np.sort(rng.integers(0, num_nodes, num_edges))
    times = rng.integers(0, 10**10, num_edges)
    return EdgeArrays(
        indptr=np.searchsorted(destinations, np.arange(num_nodes + 1)),
        indices=rng.integers(0, num_sources, num_edges).astype(np.int32),
        features=rng.standard_normal((num_edges, 3)).astype(np.float32),
        times=times[np.lexsort((times, destinations))],
    )


def write_edges(
    writer: EdgeTableWriter | DatasetWriter, edges: EdgeArrays, *, dtype: str = "float32"
) -> None:
    """Write the edges with what they have."""
    count = len(edges.indices)
    with writer.indptr() as column:
        column.append(edges.indptr)
    with writer.indices(count, "int32") as column:
        column.append(edges.indices)
    if edges.features is not None:
        with writer.edge_features(count, edges.features.shape[1], dtype) as rows:
            rows.append(edges.features)
    if edges.times is not None:
        with writer.edge_time(count) as column:
            column.append(edges.times)


def write_linked(
    path: Path,
    tables: Mapping[str, LinkArrays],
    *,
    edges: EdgeArrays | None = None,
    dtype: str = "float32",
    num_nodes: int = 40,
    os_io: OsIO = REAL_OS,
    **settings: Any,
) -> Dataset:
    """Write a dataset of one type."""
    rng = np.random.default_rng(7)
    with Dataset.create(
        path, name="linked", num_nodes=num_nodes, num_classes=3, os_io=os_io, **settings
    ) as writer:
        write_edges(writer, edges or edge_arrays(num_nodes, num_nodes, 300), dtype=dtype)
        with writer.features(4, "float32") as rows:
            rows.append(rng.standard_normal((num_nodes, 4)).astype(np.float32))
        writer.labels(rng.integers(0, 3, num_nodes))
        writer.splits(train=np.arange(20), valid=np.arange(20, 30), test=np.arange(30, 40))
        for name, arrays in tables.items():
            write_link_table(writer.links(name), arrays)
    return Dataset.open(path)


def write_linked_types(
    path: Path,
    tables: Mapping[str, tuple[Relation, Relation | None, LinkArrays]],
    *,
    edges: Mapping[Relation, EdgeArrays] | None = None,
    os_io: OsIO = REAL_OS,
    **settings: Any,
) -> Dataset:
    """Write a dataset of users who buy items."""
    of_edges = edges or {
        relation: edge_arrays(NUM_NODES[relation[2]], NUM_NODES[relation[0]], count, seed=count)
        for relation, count in NUM_EDGES.items()
    }
    with Dataset.create_hetero(
        path,
        name="linked",
        num_nodes=NUM_NODES,
        relations=list(of_edges),
        num_classes=3,
        os_io=os_io,
        **settings,
    ) as writer:
        for relation, arrays in of_edges.items():
            write_edges(writer.edges(relation), arrays)
        writer.nodes("item").labels(np.zeros(NUM_NODES["item"], np.int64))
        writer.nodes("item").splits(train=np.arange(9), valid=np.arange(9, 12), test=np.arange(12, 20))
        for name, (relation, reverse, links) in tables.items():
            write_link_table(writer.links(name, relation=relation, reverse=reverse), links)
    return Dataset.open(path)


ONLY = EDGE  # the relation of a dataset of one type
