"""Memory that two processes share, and the layout of a batch in it.

The memory has no name: the kernel frees it when both processes have ended, in any way. The arrays of a batch lie
one after another: its blocks, its nodes, and the links or trees that come with its seeds.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import numpy as np
import torch

from gloader.device.cuda import ONE_PIECE, CudaHostMemory, pin_in_place
from gloader.errors import RankError
from gloader.types import AnyBatch, BatchId, Block, HeteroBatch, Links, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.device.cuda import PinnedArray
    from gloader.types import Relation


# Neither process can shrink the memory under the other, which would kill it with SIGBUS.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# No later mapping can be writable; present mappings stay unchanged. Python has no name for the seal.
_SEAL_FUTURE_WRITE: Final = 0x10


def create_segment(num_bytes: int, *, is_touched: bool = True) -> tuple[int, NDArray[np.uint8]]:
    """Return a descriptor of new shared memory, which the caller owns, and the memory (num_bytes,).

    Unmapped when the last view is freed. Pages are touched now unless ``is_touched`` is false: large memory takes
    long, in one call that no Ctrl-C interrupts.
    """
    descriptor = os.memfd_create("gloader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(num_bytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor, map_segment(descriptor, is_touched=is_touched)
    except BaseException:
        os.close(descriptor)
        raise


def map_segment(descriptor: int, *, is_touched: bool = True) -> NDArray[np.uint8]:
    """Return the whole shared memory of ``descriptor`` (num_bytes,); the caller keeps the descriptor.

    Its pages are touched if ``is_touched``. Unmapped when the last view is freed.
    """
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if is_touched else 0)
    mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=flags)
    if not is_touched:
        with suppress(OSError, ValueError, AttributeError):  # if the system has huge pages of shared memory
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8)


def take_segment(descriptor: int, *, is_touched: bool = True) -> NDArray[np.uint8]:
    """Return the whole shared memory of ``descriptor``, and close the descriptor."""
    try:
        return map_segment(descriptor, is_touched=is_touched)
    finally:
        os.close(descriptor)


def seal_contents(descriptor: int) -> None:
    """Refuse every further writable mapping of the memory, if the kernel supports it (Linux 5.1)."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)


def pin_segment(memory: NDArray[np.uint8], device: torch.device) -> PinnedArray | None:
    """Pin ``memory`` in place, so that ``device`` copies from it directly.

    Returns
    -------
    The pinned memory; None without CUDA, or if the system refuses: then copies are slower.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return pin_in_place(memory, CudaHostMemory(device), chunk_bytes=ONE_PIECE)


ArrayKinds: TypeAlias = Iterator[tuple[type[np.generic], int]]  # dtype and length of one array after another

_LABELS: Final[dict[str, type[np.generic]]] = {"float32": np.float32, "int64": np.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """The sizes of `Links`."""

    num_pairs: int  # P
    num_positives: int
    label_dtype: str  # of `_LABELS`
    has_times: bool = False

    @classmethod
    def of(cls, links: Links) -> LinkShape:
        """Return the sizes of ``links``; raise TypeError if labels have another dtype."""
        if links.labels.dtype.name not in _LABELS:
            raise TypeError(f"labels of links have dtype {links.labels.dtype}; they must be float32 or int64")
        return cls(
            num_pairs=len(links.pairs),
            num_positives=links.num_positives,
            label_dtype=links.labels.dtype.name,
            has_times=links.times is not None,
        )

    def to_json(self) -> list[Any]:
        """Return the sizes as a JSON array."""
        times = [True] if self.has_times else []
        return [self.num_pairs, self.num_positives, self.label_dtype, *times]

    @classmethod
    def from_json(cls, sizes: object) -> LinkShape:
        """Parse a result of `to_json`; raise ValueError for anything else."""
        if isinstance(sizes, list) and [type(size) for size in sizes[:3]] == [int, int, str]:
            num_pairs, num_positives, label_dtype, *times = sizes
            if 0 <= num_positives <= num_pairs and label_dtype in _LABELS and times in ([], [True]):
                return cls(
                    num_pairs=num_pairs,
                    num_positives=num_positives,
                    label_dtype=label_dtype,
                    has_times=bool(times),
                )
        raise ValueError(f"is {sizes!r:.80}, not the sizes of links")

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: both ends of the pairs, labels, rows of the link table, times."""
        yield np.int32, 2 * self.num_pairs
        yield _LABELS[self.label_dtype], self.num_pairs
        yield np.int64, self.num_pairs
        if self.has_times:
            yield np.int64, self.num_positives

    def links(self, views: Iterator[NDArray[Any]]) -> Links:
        """Return the links from the next arrays in ``views``."""
        return Links(
            pairs=next(views).reshape(-1, 2),
            labels=next(views),
            edge_ids=next(views),
            num_positives=self.num_positives,
            times=next(views) if self.has_times else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedShape:
    """The sizes of seed data other than plain nodes: the pairs of links, and the tree of each node."""

    links: LinkShape | None = None
    has_trees: bool = False

    @classmethod
    def of(cls, batch: AnyBatch) -> Self:
        """Return the sizes of the seed data of ``batch``."""
        links = None if batch.links is None else LinkShape.of(batch.links)
        return cls(links=links, has_trees=batch.trees is not None)

    def to_json(self) -> list[Any]:
        """Return the sizes as the last items of a batch's JSON array; empty for plain nodes."""
        if self.links is None and not self.has_trees:
            return []
        return [None if self.links is None else self.links.to_json(), self.has_trees]

    @classmethod
    def from_json(cls, sizes: list[Any]) -> Self:
        """Parse a result of `to_json`; raise ValueError for anything else."""
        if not sizes:
            return cls()
        if len(sizes) == 2 and type(sizes[1]) is bool and (sizes[0] is not None or sizes[1]):
            links = None if sizes[0] is None else LinkShape.from_json(sizes[0])
            return cls(links=links, has_trees=sizes[1])
        raise ValueError(f"is {sizes!r:.80}, not the sizes of links")

    def arrays(self, num_nodes: Sequence[int]) -> ArrayKinds:
        """Yield the arrays: trees of each type's nodes, then those of the links."""
        if self.has_trees:
            for count in num_nodes:
                yield np.int32, count
        if self.links is not None:
            yield from self.links.arrays()

    def read(
        self, views: Iterator[NDArray[Any]], num_types: int
    ) -> tuple[list[NDArray[np.int32]] | None, Links | None]:
        """Return the trees of each type, and the links, from the next arrays in ``views``; None for absent ones."""
        trees = [next(views) for _ in range(num_types)] if self.has_trees else None
        return trees, None if self.links is None else self.links.links(views)


PLAIN_SEEDS: Final = SeedShape()


def seed_arrays(batch: AnyBatch) -> list[NDArray[Any]]:
    """Return the arrays of a `SeedShape`, in its order."""
    found: list[NDArray[Any]] = []
    if batch.trees is not None:
        found += batch.trees.values() if isinstance(batch, HeteroBatch) else [batch.trees]
    if batch.links is not None:
        found += [batch.links.pairs.reshape(-1), batch.links.labels, batch.links.edge_ids]
        found += [] if batch.links.times is None else [batch.links.times]
    return found


_ALIGNMENT = 64  # bytes: every array starts at a cache line, so that both sides read whole lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTypes:
    """The types and relations that both ranks share, so that batches need not name them."""

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
        """Parse a result of `to_json`; raise ValueError for anything else."""
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
        """Return the block from the next arrays in ``views``."""
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
    """The sizes of a `SampledBatch`, from which both ranks compute the places of its arrays."""

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
            Anything else.
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
        """Number of nodes with degrees in the batch."""
        return self.num_nodes

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: nodes, degrees, blocks, then the data of the seeds."""
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
    """The sizes of a `HeteroBatch`. Types and relations are those of the dataset, in its order, without names."""

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
            Anything else.
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
        """Number of nodes with degrees in the batch: 0."""
        return 0

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: nodes of each type, no degrees, blocks, then the data of the seeds."""
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
        """Return ``types`` if the batch has them."""
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
    """Return the shape from its ``to_json`` form ``sizes``; raise ValueError for anything else."""
    # A batch of several types has a list in the place of one number.
    is_typed = isinstance(sizes, list) and len(sizes) > 2 and type(sizes[2]) is list
    return HeteroShape.from_json(sizes) if is_typed else BatchShape.from_json(sizes)


def write_batch(
    sampled: AnyBatch, degrees: NDArray[np.float32], shape: AnyShape, memory: NDArray[np.uint8]
) -> None:
    """Copy the topology of a batch into shared memory.

    Parameters
    ----------
    sampled : the batch
    degrees : (U,) float32, of its nodes; (0,) for a batch of several types
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
    # In the order of the shape's `arrays`, as in `read_batch`.
    for view, array in zip(_views(shape.arrays(), memory), arrays, strict=True):
        np.copyto(view, array, casting="no")


def read_batch(
    shape: AnyShape, memory: NDArray[np.uint8], types: BatchTypes | None = None
) -> tuple[AnyBatch, NDArray[np.float32]]:
    """Return the batch that `write_batch` wrote to ``memory``, and its degrees, as views of the memory.

    Parameters
    ----------
    shape : its sizes
    memory : (>= shape.num_bytes,) uint8
    types : those of the dataset, if batches have several; otherwise None

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
