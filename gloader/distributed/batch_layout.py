"""The layout of a batch's topology in shared memory: one array behind the other. Pure but for the copies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gloader.distributed.seed_layout import PLAIN_SEEDS, SeedShape, seed_arrays
from gloader.errors import RankError
from gloader.types import AnyBatch, BatchId, Block, HeteroBatch, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.distributed.seed_layout import ArrayKinds
    from gloader.types import Relation

_ALIGNMENT = 64  # bytes: every array starts at a cache line, so that both sides read whole lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTypes:
    """What both ranks know of a graph of several types, so that no batch has to name it."""

    nodes: Sequence[str]  # the T types, in the order of the record
    relations: Sequence[Relation]  # K of them, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The sizes of a `Block`."""

    num_src: int
    num_dst: int
    num_edges: int
    is_weighted: bool

    @classmethod
    def of(cls, block: Block) -> BlockShape:
        """Return the sizes of ``block``."""
        return cls(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=block.num_edges,
            is_weighted=block.edge_weight is not None,
        )

    def to_json(self) -> list[Any]:
        """Return the sizes as a JSON array."""
        return [self.num_src, self.num_dst, self.num_edges, self.is_weighted]

    @classmethod
    def from_json(cls, sizes: object) -> BlockShape:
        """Parse a result of `to_json`; raise ValueError if it is none."""
        if isinstance(sizes, list) and [type(size) for size in sizes] == [int, int, int, bool]:
            num_src, num_dst, num_edges, is_weighted = sizes
            return cls(num_src=num_src, num_dst=num_dst, num_edges=num_edges, is_weighted=is_weighted)
        raise ValueError(f"is {sizes!r:.80}, not the sizes of a block")

    def arrays(self) -> ArrayKinds:
        """Yield its arrays."""
        yield np.int32, self.num_dst + 1
        yield np.int32, self.num_edges
        yield np.int64, self.num_edges
        if self.is_weighted:
            yield np.float32, self.num_edges

    def block(self, views: Iterator[NDArray[Any]]) -> Block:
        """Return the block whose arrays come next in ``views``."""
        return Block(
            indptr=next(views),
            indices=next(views),
            edge_ids=next(views),
            num_src=self.num_src,
            num_dst=self.num_dst,
            edge_weight=next(views) if self.is_weighted else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The sizes of a `SampledBatch`, from which both ranks compute where its arrays are."""

    id: BatchId
    num_nodes: int  # U
    num_seeds: int
    blocks: tuple[BlockShape, ...]
    seeds: SeedShape = PLAIN_SEEDS

    @classmethod
    def of(cls, batch: SampledBatch) -> BatchShape:
        """Return the sizes of ``batch``."""
        return cls(
            id=batch.id,
            num_nodes=len(batch.nodes),
            num_seeds=batch.num_seeds,
            blocks=tuple(map(BlockShape.of, batch.blocks)),
            seeds=SeedShape.of(batch),
        )

    def to_json(self) -> list[Any]:
        """Return the sizes as a JSON array."""
        # An array without names: it is sent with every batch.
        blocks = [block.to_json() for block in self.blocks]
        return [self.id.epoch, self.id.index, self.num_nodes, self.num_seeds, blocks, *self.seeds.to_json()]

    @classmethod
    def from_json(cls, sizes: object) -> BatchShape:
        """Parse a result of `to_json`.

        Raises
        ------
        ValueError
            It is none.
        """
        # Types compared as a list: the check of every batch costs no more than the unpacking.
        if isinstance(sizes, list) and [type(size) for size in sizes[:5]] == [int, int, int, int, list]:
            epoch, index, num_nodes, num_seeds, blocks, *seeds = sizes
            return cls(
                id=BatchId(epoch=epoch, index=index),
                num_nodes=num_nodes,
                num_seeds=num_seeds,
                blocks=tuple(map(BlockShape.from_json, blocks)),
                seeds=SeedShape.from_json(seeds),
            )
        raise ValueError(f"is {sizes!r:.80}, not the sizes of a batch")

    @property
    def num_bytes(self) -> int:
        """Bytes that the arrays take."""
        return _num_bytes(self.arrays())

    @property
    def num_degrees(self) -> int:
        """Nodes whose degrees come with the batch."""
        return self.num_nodes

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: nodes, degrees, then those of the blocks, and what comes with the seeds."""
        yield np.int64, self.num_nodes
        yield np.float32, self.num_nodes
        for block in self.blocks:
            yield from block.arrays()
        yield from self.seeds.arrays((self.num_nodes,))

    def read(
        self, memory: NDArray[np.uint8], types: BatchTypes | None = None
    ) -> tuple[SampledBatch, NDArray[np.float32]]:
        """Return the batch and its degrees (U,), as `read_batch` does."""
        if types is not None:
            raise RankError("another rank sent a batch without types; use one kind of loader on all ranks")
        views = _views(self.arrays(), memory)
        nodes, degrees = next(views), next(views)
        blocks = tuple(block.block(views) for block in self.blocks)
        trees, links = self.seeds.read(views, 1)
        sampled = SampledBatch(
            id=self.id,
            nodes=nodes,
            num_seeds=self.num_seeds,
            blocks=blocks,
            links=links,
            trees=None if trees is None else trees[0],
        )
        return sampled, degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroShape:
    """The sizes of a `HeteroBatch`. Types and relations are those of the dataset, in its order, and have no names."""

    id: BatchId
    num_nodes: tuple[int, ...]  # U of each type
    num_seeds: tuple[int, ...]
    hops: tuple[tuple[BlockShape, ...], ...]  # L, of every relation
    seeds: SeedShape = PLAIN_SEEDS

    @classmethod
    def of(cls, batch: HeteroBatch) -> HeteroShape:
        """Return the sizes of ``batch``."""
        return cls(
            id=batch.id,
            num_nodes=tuple(map(len, batch.node_arrays)),
            num_seeds=tuple(batch.num_seeds.values()),
            hops=tuple(tuple(map(BlockShape.of, hop.values())) for hop in batch.blocks),
            seeds=SeedShape.of(batch),
        )

    def to_json(self) -> list[Any]:
        """Return the sizes as a JSON array."""
        hops = [[block.to_json() for block in hop] for hop in self.hops]
        counts = [*self.num_nodes], [*self.num_seeds]
        return [self.id.epoch, self.id.index, *counts, hops, *self.seeds.to_json()]

    @classmethod
    def from_json(cls, sizes: object) -> HeteroShape:
        """Parse a result of `to_json`.

        Raises
        ------
        ValueError
            It is none.
        """
        if isinstance(sizes, list) and [type(size) for size in sizes[:5]] == [int, int, list, list, list]:
            epoch, index, num_nodes, num_seeds, hops, *seeds = sizes
            if {*map(type, chain(num_nodes, num_seeds))} <= {int} and {*map(type, hops)} <= {list}:
                return cls(
                    id=BatchId(epoch=epoch, index=index),
                    num_nodes=tuple(num_nodes),
                    num_seeds=tuple(num_seeds),
                    hops=tuple(tuple(map(BlockShape.from_json, hop)) for hop in hops),
                    seeds=SeedShape.from_json(seeds),
                )
        raise ValueError(f"is {sizes!r:.80}, not the sizes of a batch")

    @property
    def num_bytes(self) -> int:
        """Bytes that the arrays take."""
        return _num_bytes(self.arrays())

    @property
    def num_degrees(self) -> int:
        """Nodes whose degrees come with the batch: none."""
        return 0

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: nodes of each type, no degrees, then those of the blocks, and what comes with the seeds."""
        for count in self.num_nodes:
            yield np.int64, count
        yield np.float32, 0
        for block in chain.from_iterable(self.hops):
            yield from block.arrays()
        yield from self.seeds.arrays(self.num_nodes)

    def read(
        self, memory: NDArray[np.uint8], types: BatchTypes | None = None
    ) -> tuple[HeteroBatch, NDArray[np.float32]]:
        """Return the batch and no degrees (0,), as `read_batch` does."""
        types = self._required(types)
        views = _views(self.arrays(), memory)
        nodes = {name: next(views) for name in types.nodes}
        degrees = next(views)
        blocks = tuple(
            {relation: block.block(views) for relation, block in zip(types.relations, hop, strict=True)}
            for hop in self.hops
        )
        trees, links = self.seeds.read(views, len(types.nodes))
        sampled = HeteroBatch(
            id=self.id,
            nodes=nodes,
            num_seeds=dict(zip(types.nodes, self.num_seeds, strict=True)),
            blocks=blocks,
            links=links,
            trees=None if trees is None else dict(zip(types.nodes, trees, strict=True)),
        )
        return sampled, degrees

    def _required(self, types: BatchTypes | None) -> BatchTypes:
        """Return ``types`` where the batch is of these."""
        if types is None:
            raise RankError("another rank sent a batch of types; use one kind of loader on all ranks")
        counts = {len(types.nodes), len(self.num_nodes), len(self.num_seeds)}
        if len(counts) > 1 or {len(types.relations), *map(len, self.hops)} != {len(types.relations)}:
            raise RankError(
                f"another rank sent a batch of {len(self.num_nodes)} types, where the dataset has {len(types.nodes)} "
                f"types and {len(types.relations)} relations; use one dataset on all ranks"
            )
        return types


AnyShape: TypeAlias = BatchShape | HeteroShape


def shape_of(batch: AnyBatch) -> AnyShape:
    """Return the sizes of ``batch``."""
    return HeteroShape.of(batch) if isinstance(batch, HeteroBatch) else BatchShape.of(batch)


def parse_shape(sizes: object) -> AnyShape:
    """Return what ``to_json`` of the sizes of a batch returned ``sizes`` for; raise ValueError if nothing did."""
    # A batch of several types has a list where the other has one number.
    is_typed = isinstance(sizes, list) and len(sizes) > 2 and type(sizes[2]) is list
    return HeteroShape.from_json(sizes) if is_typed else BatchShape.from_json(sizes)


def write_batch(
    sampled: AnyBatch, degrees: NDArray[np.float32], shape: AnyShape, memory: NDArray[np.uint8]
) -> None:
    """Copy the topology of a batch into shared memory.

    Parameters
    ----------
    sampled : the batch
    degrees : (U,) float32, of its nodes; (0,) of a batch of several types
    shape : its sizes
    memory : (>= shape.num_bytes,) uint8

    Raises
    ------
    TypeError
        An array has another dtype than the layout.
    """
    arrays: list[NDArray[Any]] = [*sampled.node_arrays, degrees]
    for block in sampled.all_blocks:
        arrays += [block.indptr, block.indices, block.edge_ids]
        if block.edge_weight is not None:
            arrays.append(block.edge_weight)
    arrays += seed_arrays(sampled)
    # In the order of the shape's `arrays`, which `read_batch` follows too.
    for view, array in zip(_views(shape.arrays(), memory), arrays, strict=True):
        np.copyto(view, array, casting="no")


def read_batch(
    shape: AnyShape, memory: NDArray[np.uint8], types: BatchTypes | None = None
) -> tuple[AnyBatch, NDArray[np.float32]]:
    """Return the batch that `write_batch` left in ``memory``, and its degrees, as views of it.

    Parameters
    ----------
    shape : its sizes
    memory : (>= shape.num_bytes,) uint8
    types : those of the dataset; None: batches have none

    Raises
    ------
    RankError
        The batch has other types and relations, or does not fit into the memory.
    """
    if shape.num_bytes > len(memory):
        raise RankError(
            f"another rank sent a batch of {shape.num_bytes} B in {len(memory)}; use one version of gloader on all "
            "ranks"
        )
    return shape.read(memory, types)


def _views(arrays: ArrayKinds, memory: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
    """Yield a view of ``memory`` for each of ``arrays``."""
    offset = 0
    for dtype, count in arrays:
        yield memory[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)
        offset += _padded(dtype, count)


def _num_bytes(arrays: ArrayKinds) -> int:
    return sum(_padded(dtype, count) for dtype, count in arrays)


def _padded(dtype: type[np.generic], count: int) -> int:
    return -(-count * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
