"""Memory that two processes share, and the layout of a batch in it.

A segment is a piece of shared memory. It has no name in a file system: one process sends its file descriptor to the
other. The kernel frees it when both processes have ended, even after a crash.

A batch's arrays lie in a segment one after another: nodes, degrees, blocks (one per hop), trees and links. If each seed
has its own nodes, ``trees`` has the index of each node's seed. Links are the node pairs that a batch predicts. The
sender also sends a `BatchShape`, from which the receiver computes each array's dtype, length and offset. `write_batch`
and `read_batch` use the same order. Both are for the ranks of one machine, see `gloader.distributed.wire`. Behind these
arrays lie the batch's slots in each embedding (`write_slots`, `read_slots`): the places of its trainable rows.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

import numpy as np
import torch

from gloader.device.cuda import ONE_PIECE, CudaHostMemory, pin_in_place
from gloader.errors import RankError
from gloader.pipeline.superbatch import BatchSlots
from gloader.types import BatchId, Block, Links

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.device.cuda import PinnedArray
    from gloader.types import AnyBatch, BatchTypes, IdArray


# Seals that forbid to shrink or grow a segment: a read beyond a shrunk segment's end would kill the process (SIGBUS).
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# Seal that forbids later writable mappings; existing mappings stay unchanged. Python has no name for the seal.
_SEAL_FUTURE_WRITE: Final = 0x10


def create_segment(num_bytes: int, *, is_touched: bool = True) -> tuple[int, NDArray[np.uint8]]:
    """Return a descriptor for new shared memory, which the caller owns, and the memory (num_bytes,).

    The memory is unmapped when its last view is freed. With ``is_touched``, all pages are allocated now. For large
    memory this takes long, in one call that Ctrl-C cannot interrupt.
    """
    descriptor = os.memfd_create("gloader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(num_bytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor, map_segment(descriptor, is_touched=is_touched)
    except BaseException:
        os.close(descriptor)
        raise


def map_segment(descriptor: int, *, is_touched: bool = True, is_writable: bool = True) -> NDArray[np.uint8]:
    """Return the descriptor's shared memory (num_bytes,); the caller keeps the descriptor.

    With ``is_touched``, all pages are mapped now. The memory is unmapped when its last view is freed.
    """
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if is_touched else 0)
    access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=flags, prot=access)
    if not is_touched:
        with suppress(OSError, ValueError, AttributeError):  # the system may lack huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8)


def take_segment(descriptor: int, *, is_touched: bool = True, is_writable: bool = True) -> NDArray[np.uint8]:
    """Return the descriptor's shared memory, and close the descriptor; parameters as in `map_segment`."""
    try:
        return map_segment(descriptor, is_touched=is_touched, is_writable=is_writable)
    finally:
        os.close(descriptor)


def seal_contents(descriptor: int) -> None:
    """Refuse further writable mappings, if the kernel supports this (Linux 5.1)."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)


def pin_segment(memory: NDArray[np.uint8], device: torch.device) -> PinnedArray | None:
    """Pin ``memory`` in place, so that ``device`` copies from it directly.

    Returns
    -------
    The pinned memory; None without CUDA, or if the system refuses. Without it, copies are slower.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return pin_in_place(memory, CudaHostMemory(device), chunk_bytes=ONE_PIECE)


ArrayKinds: TypeAlias = Iterator[tuple[type[np.generic], int]]  # dtype and length of each array in order

# The dtypes that links' labels may have, by name.
_LABELS: Final[dict[str, type[np.generic]]] = {"float32": np.float32, "int64": np.int64}
_ALIGNMENT = 64  # bytes, a cache line: every array starts at a multiple


class BlockShape(NamedTuple):
    """The sizes of a `Block`."""

    num_src: int
    num_dst: int
    num_edges: int
    is_weighted: bool

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: ``indptr``, ``indices``, ``edge_ids`` and weights."""
        yield np.int32, self.num_dst + 1
        yield np.int32, self.num_edges
        yield np.int64, self.num_edges
        if self.is_weighted:
            yield np.float32, self.num_edges


class LinkShape(NamedTuple):
    """The sizes of `Links`."""

    num_pairs: int  # P
    num_positives: int  # the first pairs are positives
    label_dtype: str  # a name in `_LABELS`
    has_times: bool  # whether positives have query times
    num_shared: int  # negatives for each end that all positives share; 0 without any

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: both nodes per pair, labels, link table rows, times, shared negatives."""
        yield np.int32, 2 * self.num_pairs
        yield _LABELS[self.label_dtype], self.num_pairs
        yield np.int64, self.num_pairs
        if self.has_times:
            yield np.int64, self.num_positives
        if self.num_shared:
            yield np.int32, 2 * self.num_shared


class BatchShape(NamedTuple):
    """A sampled batch's sizes, from which both ranks compute its arrays' offsets in a segment.

    A shape is a tuple of numbers and tuples, so that JSON writes it without names: every batch comes with its shape.
    Types and relations are in the dataset's order.
    """

    epoch: int
    batch: int  # index in the epoch
    num_nodes: tuple[int, ...]  # (T,) U per type
    num_seeds: tuple[int, ...]  # (T,)
    hops: tuple[tuple[BlockShape, ...], ...]  # (L, K)
    num_degrees: int  # U with one type, otherwise 0
    has_trees: bool  # whether each seed has its own nodes
    links: tuple[LinkShape, ...]  # at most one

    @property
    def num_bytes(self) -> int:
        """The arrays' total bytes."""
        return sum(_padded(dtype, count) for dtype, count in self.arrays())

    def arrays(self) -> ArrayKinds:
        """Yield the arrays: nodes per type, degrees, blocks, trees per type, links."""
        yield from ((np.int64, count) for count in self.num_nodes)
        yield np.float32, self.num_degrees
        for block in chain.from_iterable(self.hops):
            yield from block.arrays()
        if self.has_trees:
            yield from ((np.int32, count) for count in self.num_nodes)
        for links in self.links:
            yield from links.arrays()

    @classmethod
    def from_json(cls, sizes: object) -> Self:
        """Return the shape from its JSON form ``sizes``; raise ValueError for any other value."""
        epoch, batch, num_nodes, num_seeds, hops, num_degrees, has_trees, links = _checked(
            sizes, [int, int, list, list, list, int, bool, list], "a batch"
        )
        counts, lists = {*map(type, chain(num_nodes, num_seeds))}, {*map(type, hops)}
        if not (counts <= {int} and lists <= {list} and len(links) <= 1):
            raise ValueError(f"is {sizes!r:.80}, not the sizes of a batch")
        return cls(
            epoch=epoch,
            batch=batch,
            num_nodes=tuple(num_nodes),
            num_seeds=tuple(num_seeds),
            hops=tuple(
                tuple(BlockShape(*_checked(block, [int, int, int, bool], "a block")) for block in hop)
                for hop in hops
            ),
            num_degrees=num_degrees,
            has_trees=has_trees,
            links=tuple(map(_link_shape, links)),
        )


def shape_of(batch: AnyBatch, degrees: NDArray[np.float32]) -> BatchShape:
    """Return the sizes of ``batch`` and its nodes' ``degrees``.

    Raises
    ------
    TypeError
        The links' labels are neither float32 nor int64.
    """
    links = batch.links
    if links is not None and links.labels.dtype.name not in _LABELS:
        raise TypeError(f"labels of links have dtype {links.labels.dtype}; they must be float32 or int64")
    return BatchShape(
        epoch=batch.id.epoch,
        batch=batch.id.index,
        num_nodes=tuple(map(len, batch.node_arrays)),
        num_seeds=batch.seed_counts,
        hops=tuple(
            tuple(
                BlockShape(block.num_src, block.num_dst, block.num_edges, block.edge_weight is not None)
                for block in hop
            )
            for hop in batch.hops
        ),
        num_degrees=len(degrees),
        has_trees=batch.may_repeat,
        links=()
        if links is None
        else (
            LinkShape(
                len(links.pairs),
                links.num_positives,
                links.labels.dtype.name,
                links.times is not None,
                0 if links.shared is None else links.shared.shape[1],
            ),
        ),
    )


def _link_shape(sizes: object) -> LinkShape:
    """Return the shape from its JSON form ``sizes``; raise ValueError for any other value."""
    shape = LinkShape(*_checked(sizes, [int, int, str, bool, int], "links"))
    counts = 0 <= shape.num_positives <= shape.num_pairs and shape.num_shared >= 0
    if not (counts and shape.label_dtype in _LABELS):
        raise ValueError(f"is {sizes!r:.80}, not the sizes of links")
    return shape


def _checked(sizes: object, kinds: list[type], noun: str) -> list[Any]:
    """Return ``sizes`` if it is a list whose values have these ``kinds``; raise ValueError otherwise."""
    # One comparison of lists: the check of every batch costs no more than the unpacking.
    if isinstance(sizes, list) and [type(size) for size in sizes] == kinds:
        return sizes
    raise ValueError(f"is {sizes!r:.80}, not the sizes of {noun}")


def write_batch(
    sampled: AnyBatch, degrees: NDArray[np.float32], shape: BatchShape, memory: NDArray[np.uint8]
) -> None:
    """Copy a batch's topology into shared memory.

    Parameters
    ----------
    sampled : the batch
    degrees : (U,) float32, the nodes' degrees; (0,) for a batch with several types
    shape : the batch's sizes
    memory : (>= shape.num_bytes,) uint8

    Raises
    ------
    TypeError
        An array's dtype differs from the layout.
    """
    arrays: list[NDArray[Any] | None] = [*sampled.node_arrays, degrees]
    for block in sampled.all_blocks:
        arrays += [block.indptr, block.indices, block.edge_ids, block.edge_weight]
    arrays += sampled.tree_arrays
    if (links := sampled.links) is not None:
        shared = None if links.shared is None else links.shared.reshape(-1)
        arrays += [links.pairs.reshape(-1), links.labels, links.edge_ids, links.times, shared]
    present = (array for array in arrays if array is not None)
    # The arrays are in the order of `BatchShape.arrays`, as in `read_batch`.
    for view, array in zip(_views(shape.arrays(), memory), present, strict=True):
        np.copyto(view, array, casting="no")


def read_batch(
    shape: BatchShape,
    memory: NDArray[np.uint8],
    types: BatchTypes,
    *,
    copies_ids: bool = False,
) -> tuple[AnyBatch, NDArray[np.float32]]:
    """Return the batch that `write_batch` wrote to ``memory``, and its degrees, as views.

    Parameters
    ----------
    shape : the batch's sizes
    memory : (>= shape.num_bytes,) uint8
    types : the batches' types
    copies_ids : whether ids, trees and links are copied instead of viewed. The loop may keep these arrays, and a view
        would keep the whole segment

    Raises
    ------
    RankError
        The batch has other types and relations, or does not fit into the memory.
    """
    if shape.num_bytes > len(memory):
        raise RankError(
            f"another rank sent a batch of {shape.num_bytes} B in a segment of {len(memory)} B; use one version of "
            "gloader on all ranks"
        )
    _require_types(shape, types)
    views = _views(shape.arrays(), memory)
    own = np.copy if copies_ids else np.asarray  # for arrays that the loop may keep
    nodes = [own(next(views)) for _ in shape.num_nodes]
    degrees = next(views)
    hops = [
        [
            Block(
                indptr=next(views),
                indices=next(views),
                edge_ids=own(next(views)),
                num_src=block.num_src,
                num_dst=block.num_dst,
                edge_weight=next(views) if block.is_weighted else None,
            )
            for block in hop
        ]
        for hop in shape.hops
    ]
    trees = [own(next(views)) for _ in shape.num_nodes] if shape.has_trees else []
    links = [
        Links(
            pairs=own(next(views)).reshape(-1, 2),
            labels=own(next(views)),
            edge_ids=own(next(views)),
            num_positives=sizes.num_positives,
            times=own(next(views)) if sizes.has_times else None,
            shared=own(next(views)).reshape(2, -1) if sizes.num_shared else None,
        )
        for sizes in shape.links
    ]
    sampled = types.batch(
        batch_id=BatchId(epoch=shape.epoch, index=shape.batch),
        nodes=nodes,
        num_seeds=shape.num_seeds,
        hops=hops,
        links=links[0] if links else None,
        trees=trees,
    )
    return sampled, degrees


def bytes_of_slots(counts: Iterable[int]) -> int:
    """Return the bytes of a batch's slots; ``counts`` are their numbers in each embedding. Pure."""
    return sum(_padded(np.int64, count) for count in counts)


def write_slots(slots: Sequence[BatchSlots], memory: NDArray[np.uint8]) -> None:
    """Copy a batch's slots in each embedding into shared memory."""
    views = _views(((np.int64, len(each.slots)) for each in slots), memory)
    for view, each in zip(views, slots, strict=True):
        np.copyto(view, each.slots.numpy(), casting="no")


def read_slots(number: int, counts: Sequence[int], memory: NDArray[np.uint8]) -> tuple[BatchSlots, ...]:
    """Return copies of the slots that `write_slots` wrote.

    Parameters
    ----------
    number : the batch's number in the plan of the slots
    counts : numbers of the slots in each embedding
    memory : (>= bytes_of_slots(counts),) uint8

    Raises
    ------
    RankError
        The slots do not fit into the memory.
    """
    if bytes_of_slots(counts) > len(memory):
        raise RankError(
            f"another rank sent {sum(counts)} slots in {len(memory)} B; use one version of gloader on all ranks"
        )
    # The batch's step comes long after its blocks were used: a view would keep the whole segment until then.
    views = _views(((np.int64, count) for count in counts), memory)
    return tuple(BatchSlots(number=number, slots=torch.tensor(view)) for view in views)


def _require_types(shape: BatchShape, types: BatchTypes) -> None:
    """Raise RankError if the batch's types and relations are not those of this rank's dataset."""
    num_types, num_relations = len(types.nodes), len(types.relations)
    counts = {num_types, len(shape.num_nodes), len(shape.num_seeds)}
    if len(counts) > 1 or not {*map(len, shape.hops)} <= {num_relations}:
        raise RankError(
            f"another rank sent a batch of {len(shape.num_nodes)} types, where the dataset has {num_types} types and "
            f"{num_relations} relations; use one dataset and one kind of loader on all ranks"
        )


def _views(arrays: ArrayKinds, memory: NDArray[np.uint8]) -> Iterator[NDArray[Any]]:
    """Yield a view of ``memory`` for each array, in order, at aligned offsets."""
    offset = 0
    for dtype, count in arrays:
        yield memory[offset : offset + count * np.dtype(dtype).itemsize].view(dtype)
        offset += _padded(dtype, count)


def _padded(dtype: type[np.generic], count: int) -> int:
    """Return the bytes of an array with ``count`` elements, rounded up to `_ALIGNMENT`."""
    return -(-count * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT


_ID_BYTES: Final = 8  # of a slot or a row's id, int64
_WEIGHT_BYTES: Final = 4  # of a weight or a gradient, float32


def rows_bytes(num_rows: int, *, dim: int) -> int:
    """Return the bytes of ``num_rows`` slots or ids and their float32 rows. Pure."""
    return num_rows * (_ID_BYTES + _WEIGHT_BYTES * dim)


def rows_in_segment(
    memory: NDArray[np.uint8], num_rows: int, *, dim: int
) -> tuple[IdArray, NDArray[np.float32]]:
    """Return views of the slots or ids (num_rows,) int64 and of the rows (num_rows, dim) float32 in memory. Pure."""
    first, stop = _ID_BYTES * num_rows, rows_bytes(num_rows, dim=dim)
    return memory[:first].view(np.int64), memory[first:stop].view(np.float32).reshape(num_rows, dim)
