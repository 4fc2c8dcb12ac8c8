"""A graph of which only the size is known: what the plans of a run look at, made up to that size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.prepare_plan import check_stored_dtype
from gloader.convert.source import Source, Splits
from gloader.core.ids import id_dtype
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.samplers.arguments import resolve_fanouts
from gloader.ssd_store.format.manifest import ArrayRecord, Manifest
from gloader.ssd_store.format.npy_header import data_bytes
from gloader.types import BatchId, Block, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.config import SamplingSettings
    from gloader.convert.source import EdgeChunk

_NUM_BATCHES: Final = 3  # that are drawn, as many as a loader makes before it plans


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedGraph:
    """Nodes of one type, their features and edges, as numbers."""

    num_nodes: int
    num_edges: int  # as stored: of an undirected graph twice as many as it has
    feature_dim: int
    dtype: str = "float32"  # that features are stored in
    num_train: int | None = None  # seeds of an epoch; None: a hundredth of the nodes
    num_classes: int = 100

    def __post_init__(self) -> None:
        """Raise ConfigError where there can be no such graph."""
        for name in ("num_nodes", "num_edges", "feature_dim", "num_classes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        check_stored_dtype(self.dtype)
        if self.num_train is not None and not 1 <= self.num_train <= self.num_nodes:
            raise ConfigError(f"num_train is {self.num_train}; it must be in 1..{self.num_nodes}")

    @property
    def num_seeds(self) -> int:
        """Nodes that are trained on."""
        return max(1, self.num_nodes // 100) if self.num_train is None else self.num_train

    def dataset(self) -> Dataset:
        """Return a dataset whose record says these sizes; there are no files behind it."""
        ids = id_dtype(self.num_nodes).name
        arrays = [
            _record("indptr", "int64", self.num_nodes + 1),
            _record("indices", ids, self.num_edges),
            _record("features", self.dtype, self.num_nodes, self.feature_dim),
            _record("labels", "int64", self.num_nodes),
            _record("train", "int64", self.num_seeds),
            *(_record(name, "int64", 0) for name in ("valid", "test")),
        ]
        if self.dtype == "int8":
            arrays.append(_record("features.scale", "float32", self.num_nodes))
        manifest = Manifest(
            kind="dataset",
            arrays={record.name: record for record in arrays},
            metadata={"name": "sized", "num_classes": self.num_classes},
        )
        return Dataset(Path("sized"), manifest)

    def source(self) -> Source:
        """Return a source of these sizes, for the plan of a conversion; there is nothing to read."""
        ids = np.broadcast_to(np.zeros(1, np.int64), self.num_nodes)  # as long, and no memory
        return Source(
            name="sized",
            origin="a graph of this size",
            num_nodes=self.num_nodes,
            num_classes=self.num_classes,
            edges=_SizedEdges(self.num_edges),
            features=_SizedRows(self.num_nodes, self.feature_dim),
            labels=ids,
            splits=Splits(train=ids[: self.num_seeds], valid=ids[:0], test=ids[:0]),
        )

    def batches(self, sampling: SamplingSettings) -> list[SampledBatch]:
        """Return the first batches of a graph of this size whose edges were drawn at random. Pure.

        Every node has about the same degree there, and a batch meets few nodes twice: with hubs, as most graphs have
        them, batches are smaller. Neighbours are taken uniformly, whatever the sampler.
        """
        (fanouts,) = resolve_fanouts(sampling.fanouts, tuple(self.dataset().relations))
        random = np.random.default_rng(sampling.seed)
        size = min(sampling.batch_size, self.num_seeds)
        return [self._batch(index, size, fanouts, random) for index in range(_NUM_BATCHES)]

    def _batch(
        self, index: int, num_seeds: int, fanouts: tuple[int, ...], random: np.random.Generator
    ) -> SampledBatch:
        nodes = random.choice(self.num_nodes, num_seeds, replace=False, shuffle=False)
        blocks: list[Block] = []
        for fanout in fanouts:
            degrees = random.poisson(self.num_edges / self.num_nodes, len(nodes))
            counts = degrees if fanout < 0 else np.minimum(degrees, fanout)
            sources = random.integers(0, self.num_nodes, int(counts.sum()))
            found = np.concatenate([nodes, _without(sources, nodes)])
            blocks.insert(0, _block(counts, len(found), random))
            nodes = found
        return SampledBatch(
            id=BatchId(epoch=0, index=index), nodes=nodes, num_seeds=num_seeds, blocks=tuple(blocks)
        )


def _without(ids: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct ``ids`` that are not ``known``, ascending. Pure.

    As `np.setdiff1d`, which hashes: of a million ids that takes a second, and sorting them a hundredth of it.
    """
    ids, known = np.sort(ids), np.sort(known)
    distinct = ids[np.flatnonzero(np.diff(ids, prepend=-1))]
    places = np.minimum(np.searchsorted(known, distinct), len(known) - 1)
    return distinct[known[places] != distinct]


def _block(counts: NDArray[np.int64], num_src: int, random: np.random.Generator) -> Block:
    """Return a block with so many edges into each destination; who neighbours whom does not matter here."""
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    num_edges = int(indptr[-1])
    return Block(
        indptr=indptr,
        indices=random.integers(0, num_src, num_edges, dtype=np.int32),
        edge_ids=np.zeros(num_edges, np.int64),
        num_src=num_src,
        num_dst=len(counts),
    )


def _record(name: str, dtype: str, *shape: int) -> ArrayRecord:
    return ArrayRecord(
        name=name,
        file=f"{name}.npy",
        dtype=dtype,
        shape=shape,
        num_bytes=data_bytes(dtype, shape),
        digest="0" * 16,
        pages_file=f"{name}.pages",
    )


@dataclass(frozen=True, slots=True)
class _SizedEdges:
    """An `EdgeStream` that nobody reads."""

    num_edges: int
    has_weights: bool = False
    has_times: bool = False

    def chunks(self, max_edges: int) -> Iterator[EdgeChunk]:
        """Refuse: there are no edges."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _SizedRows:
    """A `FeatureStream` that nobody reads."""

    num_rows: int
    dim: int
    dtype: np.dtype[np.generic] = np.dtype(np.float32)  # noqa: RUF009 - a dtype does not change

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Refuse: there are no rows."""
        raise NotImplementedError
