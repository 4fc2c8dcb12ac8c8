"""The layout of a batch's topology in shared memory: one array behind the other. Pure but for the copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.types import BatchId, Block, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_ALIGNMENT = 64  # bytes: every array starts at a cache line, so that both sides read whole lines


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """The sizes of a `Block`."""

    num_src: int
    num_dst: int
    num_edges: int
    is_weighted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """The sizes of a batch, from which both ranks compute where its arrays are."""

    id: BatchId
    num_nodes: int  # U
    num_seeds: int
    blocks: tuple[BlockShape, ...]

    @classmethod
    def of(cls, batch: SampledBatch) -> BatchShape:
        """Return the sizes of ``batch``."""
        blocks = (
            BlockShape(
                num_src=block.num_src,
                num_dst=block.num_dst,
                num_edges=block.num_edges,
                is_weighted=block.edge_weight is not None,
            )
            for block in batch.blocks
        )
        return cls(id=batch.id, num_nodes=len(batch.nodes), num_seeds=batch.num_seeds, blocks=tuple(blocks))

    def to_json(self) -> list[Any]:
        """Return the sizes as a JSON array."""
        # An array without names: it is sent with every batch.
        blocks = [[b.num_src, b.num_dst, b.num_edges, b.is_weighted] for b in self.blocks]
        return [self.id.epoch, self.id.index, self.num_nodes, self.num_seeds, blocks]

    @classmethod
    def from_json(cls, sizes: object) -> BatchShape:
        """Parse a result of `to_json`.

        Raises
        ------
        ValueError
            It is none.
        """
        # Types compared as a list: the check of every batch costs no more than the unpacking.
        if isinstance(sizes, list) and [type(size) for size in sizes] == [int, int, int, int, list]:
            epoch, index, num_nodes, num_seeds, blocks = sizes
            return cls(
                id=BatchId(epoch=epoch, index=index),
                num_nodes=num_nodes,
                num_seeds=num_seeds,
                blocks=tuple(map(_block_shape, blocks)),
            )
        raise ValueError(f"is {sizes!r:.80}, not the sizes of a batch")

    @property
    def num_bytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(_padded(dtype, count) for dtype, count in self._arrays())

    def views(self, memory: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
        """Yield a view of ``memory`` (>= num_bytes,) for each array: nodes, degrees, then those of the blocks."""
        offset = 0
        for dtype, count in self._arrays():
            yield memory[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)
            offset += _padded(dtype, count)

    def _arrays(self) -> Iterator[tuple[type[np.generic], int]]:
        yield np.int64, self.num_nodes
        yield np.float32, self.num_nodes
        for block in self.blocks:
            yield np.int32, block.num_dst + 1
            yield np.int32, block.num_edges
            yield np.int64, block.num_edges
            if block.is_weighted:
                yield np.float32, block.num_edges


def write_batch(
    sampled: SampledBatch, degrees: NDArray[np.float32], shape: BatchShape, memory: NDArray[np.uint8]
) -> None:
    """Copy the topology of a batch into shared memory.

    Parameters
    ----------
    sampled : the batch
    degrees : (U,) float32, of its nodes
    shape : its sizes
    memory : (>= shape.num_bytes,) uint8

    Raises
    ------
    TypeError
        An array has another dtype than the layout.
    """
    arrays: list[NDArray[Any]] = [sampled.nodes, degrees]
    for block in sampled.blocks:
        arrays += [block.indptr, block.indices, block.edge_ids]
        if block.edge_weight is not None:
            arrays.append(block.edge_weight)
    # In the order of `BatchShape._arrays`, which `read_batch` follows too.
    for view, array in zip(shape.views(memory), arrays, strict=True):
        np.copyto(view, array, casting="no")


def read_batch(shape: BatchShape, memory: NDArray[np.uint8]) -> tuple[SampledBatch, NDArray[np.float32]]:
    """Return the batch that `write_batch` left in ``memory``, and its degrees (U,), as views of it."""
    views = shape.views(memory)
    nodes, degrees = next(views), next(views)
    blocks = tuple(
        Block(
            indptr=next(views),
            indices=next(views),
            edge_ids=next(views),
            num_src=block.num_src,
            num_dst=block.num_dst,
            edge_weight=next(views) if block.is_weighted else None,
        )
        for block in shape.blocks
    )
    return SampledBatch(id=shape.id, nodes=nodes, num_seeds=shape.num_seeds, blocks=blocks), degrees


def _block_shape(sizes: object) -> BlockShape:
    if isinstance(sizes, list) and [type(size) for size in sizes] == [int, int, int, bool]:
        num_src, num_dst, num_edges, is_weighted = sizes
        return BlockShape(num_src=num_src, num_dst=num_dst, num_edges=num_edges, is_weighted=is_weighted)
    raise ValueError(f"is {sizes!r:.80}, not the sizes of a block")


def _padded(dtype: type[np.generic], count: int) -> int:
    return -(-count * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
