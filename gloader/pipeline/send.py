"""Send: the pipeline's last step, which turns a gathered batch into tensors on the compute device.

Before this step, the gather step filled a host buffer with the batch's rows. After this step, the `Consumer` hands the
tensors to the training loop; the consumer runs on the loop's thread. `Transfer` copies one batch. `Send` calls
`Transfer` for every batch, and releases host memory that the device has read. On an asynchronous device, `Pace` bounds
the number of batches sent ahead of the computation.

- An asynchronous device, such as a GPU, executes work later than the host requests it.
- A mark is a point in a device's queue of work; the host can test or wait until the device has reached it.
- A table is the feature rows of a node type or a relation. Tables are numbered: node types first, then relations.
- A tier (`DeviceTier`) is the part of a table's rows that the device holds, or reads from host memory itself.
- A block is one hop's edges of a batch, along one relation.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch

from gloader.core.near_names import Named
from gloader.core.signals import SignalSafeCondition
from gloader.device import DeviceTier, open_device
from gloader.device.row_table import fill_cached, rows_as_tensor
from gloader.errors import ChannelClosedError
from gloader.pipeline.row_task import Answers
from gloader.pipeline.sample import count_rows, rows_of
from gloader.types import BatchId, DeviceBlock, HeteroReadyBatch, LinkBatch, ReadyBatch, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.device import Device, Mark
    from gloader.observe.instruments import Instruments
    from gloader.pipeline.buffers import RowMatrix
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.row_task import RowAnswers
    from gloader.pipeline.seeds import SeedLabels
    from gloader.pipeline.superbatch import BatchSlots
    from gloader.types import AnyBatch, AnyReadyBatch, Block, Delivered, IdArray, Links, LocalArray


# Batches on the device in addition to the batch that it computes: one is complete and waits, and one is being sent. If
# sending takes less time than computing, further batches would only take more device memory.
BATCHES_AHEAD: Final = 2


class Pace:
    """Lets the sender send batch i only after the device has begun to compute batch i - 2. Thread-safe.

    The sending thread calls `wait_for_room` before a batch, and the consumer calls `begun` when it delivers a batch.
    The host launches steps faster than the device computes them, and device memory is reused only after the device is
    done with it. Without a bound, every batch with a launched step would be in memory at the same time.
    """

    def __init__(self) -> None:
        self._changed = SignalSafeCondition()  # guards the fields below
        self._begun: deque[Mark] = deque()  # marks of batches that the sender has not waited for
        self._num_sent = 0  # batches counted by `wait_for_room`
        self._is_over = False  # see `cancel`

    def begun(self, mark: Mark) -> None:
        """Add the mark before the computation of the batch that the loop receives now."""
        with self._changed.lock:
            self._begun.append(mark)
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Return whether `wait_for_room` would return without waiting."""
        with self._changed.lock:
            return self._is_first or (bool(self._begun) and self._begun[0].is_reached())

    def wait_for_room(self) -> None:
        """Wait until there is room for one more batch, and count it as sent.

        Raises
        ------
        ChannelClosedError
            The run is over.
        """
        mark = self._changed.when(lambda: self._is_over or self._is_first or self._begun, self._take)
        if mark is not None:
            mark.wait()

    def cancel(self) -> None:
        """End all waits for room, now and later. Idempotent."""
        with self._changed.lock:
            self._is_over = True
            self._changed.notify_all()

    @property
    def _is_first(self) -> bool:
        """True for the first `BATCHES_AHEAD` batches, which need not wait for a computation."""
        return self._num_sent < BATCHES_AHEAD

    def _take(self) -> Mark | None:
        """Count a batch as sent, and return the mark that it waits for, or None. Hold the lock."""
        if self._is_over:
            raise ChannelClosedError("the run is over")
        mark = None if self._is_first else self._begun.popleft()
        self._num_sent += 1
        return mark


# Maximum ratio of allocated rows to requested rows in `roomy`; eight sizes per power of two differ by at most 1/8.
ROOMIER: Final = 1.125


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBatch:
    """A batch on its way to the device."""

    ready: Delivered  # the batch for the loop
    superbatch: int  # number of the batch's superbatch
    ends_superbatch: bool  # whether it is the superbatch's last batch
    slots: tuple[BatchSlots, ...]  # the slots of each embedding's trained rows
    mark: Mark  # after all copies to the device
    # The batch's device memory: at least one tensor in each piece that the allocator gave. The small arrays share one
    # piece, which `y` represents.
    blocks_of_memory: tuple[torch.Tensor, ...]
    # The batch's tensors with feature rows. On the CPU they may lie in a buffer of the ring, so that the consumer
    # records them as lent (`BufferRing.lend`).
    features: tuple[torch.Tensor, ...]

    def receive(self) -> Delivered:
        """Return the batch. The device executes this thread's later work after the copies; the host does not wait."""
        # The tensors are passed so that the allocator does not reuse their memory before this work is over.
        self.mark.precede(self.blocks_of_memory)
        return self.ready


class Transfer:
    """Sends batches to the device. The computing thread calls `SentBatch.receive`. Not thread-safe.

    Holds a batch's host memory until the device has read it, so that no buffer is reused too early.

    Parameters
    ----------
    tiers : for each table, the rows that the device holds and reads
    device : the target; None means the device of the tiers
    types : the number of each table in ``tiers``; these numbers are also the arguments of `rows_of`
    """

    def __init__(
        self, tiers: Sequence[DeviceTier], *, device: Device | None = None, types: Sequence[int] = (0,)
    ) -> None:
        self.device = tiers[0].device if device is None else device
        self._tiers = tiers
        self._types = types
        self._sending: deque[tuple[Mark, HostBatch]] = deque()  # batches in the copy, with the mark after it

    def send(self, batch: HostBatch, answers: Answers) -> SentBatch:
        """Start to copy ``batch`` and its seeds' labels to the device; on the CPU nothing is copied.

        If the sampler ran on the device, the nodes and blocks are there already, and only labels and rows are copied.
        """
        # The copies have three steps on the device's stream. Small arrays go first, as the device looks up its rows by
        # the node ids. Each table's rows follow. The mark comes last, so that it is reached after all copies.
        device, sampled = self.device, batch.sampled
        rows = [count_rows(sampled, number) for number in self._types]
        labels = answers.labels if sampled.links is None else sampled.links.labels
        further = answers.small_arrays()
        with device.sending():
            on_device = sampled.on_device
            pairs = None
            try:
                if on_device is None:
                    # The device needs a table's ids only if it takes part in the table's gather (`brings_rows`): it
                    # looks up rows by id, or converts the host's rows. Otherwise `rows_of` is not called, because it
                    # copies the edge positions of all blocks for an edge table.
                    ids = [
                        tier.ids_of(rows_of(sampled, number)) if tier.brings_rows else None
                        for tier, number in zip(self._tiers, self._types, strict=True)
                    ]
                    small = iter(device.upload(tuple(_small_arrays(batch, labels, further, ids))))
                    y, src_degree = next(small), next(small)  # src_degree: as in `HostBatch`
                    sent = list(islice(small, len(further)))
                    # Pairs are sent with 32 bits, and become int64 on the device, as `LinkBatch` has them.
                    pairs = None if sampled.links is None else next(small).long()
                    nodes = [None if table_ids is None else next(small) for table_ids in ids]
                else:
                    # The copy waits, on the device, for the sampled arrays; the host does not wait. The allocator
                    # does not reuse the tensors' memory before the copy is over.
                    on_device.made.precede(on_device.tensors())
                    y, *sent = device.upload((labels, *further))
                    nodes = [on_device.nodes if tier.brings_rows else None for tier in self._tiers]
                x = [
                    self._features(tier, gathered, device_ids, num_rows=num_rows)
                    for tier, num_rows, gathered, device_ids in zip(
                        self._tiers, rows, batch.x, nodes, strict=True
                    )
                ]
                if on_device is None:
                    edge_x = _edge_features(sampled, dict(zip(self._types, x, strict=True)))
                    blocks = [
                        _block_from(block, src_degree, small, device.place, edge_x=block_x)
                        for block, block_x in zip(sampled.all_blocks, edge_x, strict=True)
                    ]
                else:
                    blocks = list(on_device.blocks)
            finally:
                # A batch that fails half-way is held too: the device may be reading its memory.
                mark = device.mark()
                self._sending.append((mark, batch))
        self.release()
        ready = self._ready(sampled, x, y, blocks, _row_fields(sampled, answers, sent))
        delivered: Delivered = ready
        memory = (*x, y) if on_device is None else (*x, y, *on_device.tensors())
        if sampled.links is not None and pairs is not None:
            delivered, memory = _link_batch(ready, sampled.links, pairs), (*memory, pairs)
        # Edge features are views in the blocks, and each view keeps its whole tensor. So the consumer must record the
        # views as lent, too.
        of_edges = (block.edge_x for block in blocks if block.edge_x is not None)
        return SentBatch(
            ready=delivered,
            superbatch=batch.superbatch,
            ends_superbatch=batch.ends_superbatch,
            slots=batch.slots,
            mark=mark,
            blocks_of_memory=memory,
            features=(*x, *of_edges),
        )

    @property
    def advice(self) -> str:
        """Advice for a device with too little memory."""
        return next(
            (tier.advice() for tier in self._tiers if tier.cache is not None),
            self._tiers[0].advice() if self._tiers else "lower batch_size, the fan-outs or the model's width",
        )

    @property
    def num_sending(self) -> int:
        """Number of batches whose host memory is held."""
        return len(self._sending)

    @property
    def oldest(self) -> BatchId:
        """The oldest batch whose host memory is held."""
        return self._sending[0][1].sampled.id

    def release(self) -> None:
        """Release the host memory that the device has read."""
        while self._sending and self._sending[0][0].is_reached():
            self._sending.popleft()

    def wait_for_oldest(self) -> None:
        """Wait until the device has read the oldest held batch, and release its host memory."""
        self._sending[0][0].wait()
        self._sending.popleft()

    def wait(self) -> None:
        """Wait until the device has read everything that was sent, and release the host memory."""
        while self._sending:
            self.wait_for_oldest()

    def forget(self) -> None:
        """Release all host memory. Only for a failed device, which no longer reads it."""
        self._sending.clear()

    def _ready(
        self,
        sampled: AnyBatch,
        x: list[torch.Tensor],
        y: torch.Tensor,
        blocks: list[DeviceBlock],
        of_rows: dict[str, Any],
    ) -> AnyReadyBatch:
        """Return the batch with these tensors and `_row_fields`, in the structure of ``sampled``."""
        if isinstance(sampled, SampledBatch):
            return ReadyBatch(
                id=sampled.id,
                x=x[0],
                y=y,
                blocks=tuple(blocks),
                nodes=sampled.nodes,
                num_seeds=sampled.num_seeds,
                trees=sampled.trees,
                **of_rows,
            )
        rows, left = dict(zip(self._types, x, strict=True)), iter(blocks)  # edge features are in the blocks
        return HeteroReadyBatch(
            id=sampled.id,
            x=Named(
                (name, rows[number] if number in rows else self.device.empty((len(nodes), 0), torch.float32))
                for number, (name, nodes) in enumerate(sampled.nodes.items())
            ),
            y=y,
            blocks=tuple(Named((relation, next(left)) for relation in hop) for hop in sampled.blocks),
            nodes=Named(sampled.nodes),
            num_seeds=Named(sampled.num_seeds),
            trees=None if sampled.trees is None else Named(sampled.trees),
            **of_rows,
        )

    def _features(
        self, tier: DeviceTier, gathered: RowMatrix, nodes: torch.Tensor | None, *, num_rows: int
    ) -> torch.Tensor:
        """Return a table's rows (U, F) on the device.

        Parameters
        ----------
        tier : the device's rows of the table
        gathered : the host's rows, at most (U, F)
        nodes : (U,) row ids on the device; None if the host brings all rows
        num_rows : U
        """
        host, cache = rows_as_tensor(gathered, tier.staged), tier.cache
        # Without a separate device, the loop receives the buffer itself, unless the host gathered no rows because the
        # tier has them all (`brings_all`). Buffers form a ring: after the loop drops its tensors, a buffer is reused.
        if not tier.device.is_asynchronous and not tier.brings_all:
            if nodes is not None and cache is not None and cache.slot_of is not None:
                fill_cached(nodes, cache.table, cache.slot_of, out=host)
            return host
        x = tier.device.empty((roomy(num_rows), host.shape[1]), torch.float32)[:num_rows]
        if nodes is None:
            tier.device.copy(host, x)
        elif cache is None and tier.features is None:
            # The device holds no rows, and only converts the host's rows to float32. They are copied first, in their
            # stored dtype: the copy engine works without the processors that compute the model.
            stored = tier.device.empty((roomy(num_rows), host.shape[1]), host.dtype)[:num_rows]
            tier.device.copy(host, stored)
            tier.device.gather(nodes, tier.parts(stored), x)
        else:  # the rows come from the device's cache and from host memory
            tier.device.gather(nodes, tier.parts(host), x)
        return x


def roomy(num_rows: int) -> int:
    """Return the number of rows to allocate for ``num_rows``: at most `ROOMIER` times as many. Pure.

    There are eight such numbers between two powers of two. A GPU allocator keeps freed memory in the requested sizes:
    with few different sizes, a later batch can reuse an earlier batch's memory.
    """
    step = 1 << max(num_rows.bit_length() - 4, 0)
    return -(-num_rows // step) * step


def transfer(batch: HostBatch, labels: NDArray[Any], device: torch.device) -> Delivered:
    """Copy a batch to a device that holds no rows, and wait for the copy; on the CPU features are not copied.

    Parameters
    ----------
    batch : the batch with its rows (U, F)
    labels : the seeds' labels, (B,) classes or (B, k) values
    device : the target
    """
    sender = Transfer([DeviceTier(device=open_device(device))])
    sent = sender.send(batch, Answers(labels=labels))
    sender.wait()
    return sent.receive()


def to_device_block(block: Block, src_degree: torch.Tensor, device: torch.device) -> DeviceBlock:
    """Return a block as tensors on a device.

    Parameters
    ----------
    block : the block in host memory
    src_degree : (U,) float32, in-degree of each of the batch's nodes in the full graph, on the device
    device : the target
    """
    tensors = (torch.from_numpy(array).to(device) for array in _block_arrays(block))
    return _block_from(block, src_degree, tensors, device)


def _row_fields(sampled: AnyBatch, answers: Answers, sent: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return the fields of a ready batch for rows of a task table, from the tensors of `Answers.small_arrays`."""
    left = iter(sent)
    fields: dict[str, Any] = {
        "row_ids": answers.row_ids,
        "weights": None if answers.weights is None else next(left),
        "row_seeds": None if answers.row_seeds is None else next(left),
    }
    if answers.ages is not None:
        ages = [None if of_type is None else next(left) for of_type in answers.ages]
        if isinstance(sampled, SampledBatch):
            (fields["row_age"],) = ages
        else:
            named = zip(sampled.nodes, ages, strict=True)
            fields["row_age"] = Named((name, each) for name, each in named if each is not None)
    return fields


def _small_arrays(
    batch: HostBatch,
    labels: NDArray[Any],
    further: Sequence[NDArray[Any]],
    ids: Sequence[IdArray | LocalArray | None],
) -> Iterator[NDArray[Any]]:
    """Yield all arrays except the features, in the order in which `Transfer.send` uses them."""
    yield labels
    yield batch.src_degree
    yield from further
    if (links := batch.sampled.links) is not None:
        # One array for both, because each array of a batch is a copy of its own.
        yield links.pairs if links.shared is None else np.concatenate([links.pairs, links.shared.T])
    yield from (of_table for of_table in ids if of_table is not None)
    for block in batch.sampled.all_blocks:
        yield from _block_arrays(block)


def _block_arrays(block: Block) -> Iterator[NDArray[Any]]:
    """Yield a block's offsets, sources and, if it has them, weights, in the order that `_block_from` expects."""
    yield block.indptr
    yield block.indices
    if block.edge_weight is not None:
        yield block.edge_weight


def _edge_features(sampled: AnyBatch, x: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
    """Return each block's edge features, in the order of ``all_blocks``, as views of a relation's features.

    ``all_blocks`` lists hop after hop, and in each hop one block per relation.

    Parameters
    ----------
    sampled : the batch
    x : (U, F) rows of each table, by the table's number
    """
    num_types, num_blocks = len(sampled.node_arrays), len(sampled.all_blocks)
    by_relation: dict[int, Iterator[torch.Tensor]] = {
        number - num_types: iter(
            torch.split(rows, [block.num_edges for block in sampled.edges_of(number - num_types)])
        )
        for number, rows in x.items()
        if number >= num_types
    }
    if not by_relation:
        return [None] * num_blocks
    num_relations = num_blocks // max(len(sampled.blocks), 1)
    return [
        next(by_relation[block % num_relations]) if block % num_relations in by_relation else None
        for block in range(num_blocks)
    ]


def _link_batch(ready: AnyReadyBatch, links: Links, pairs: torch.Tensor) -> LinkBatch:
    """Return ``ready`` with ``links``; ``pairs`` (P, 2) int64 are on the device, shared negatives (k, 2) follow."""
    num_pairs = len(links.pairs)
    return LinkBatch(
        batch=ready,
        pairs=pairs[:num_pairs],
        labels=ready.y,
        edge_ids=links.edge_ids,
        num_positives=links.num_positives,
        times=links.times,
        shared=None if links.shared is None else pairs[num_pairs:].T,
    )


def _block_from(
    block: Block,
    src_degree: torch.Tensor,
    tensors: Iterator[torch.Tensor],
    place: torch.device,
    *,
    edge_x: torch.Tensor | None = None,
) -> DeviceBlock:
    """Return a block made of the next arrays in ``tensors``, in the order of `_block_arrays`."""
    return DeviceBlock(
        indptr=next(tensors),
        indices=next(tensors),
        # A function: edge ids are copied only if the model reads them.
        edge_ids=partial(_tensor_at, block.edge_ids, place),
        src_degree=src_degree[: block.num_src],
        num_src=block.num_src,
        num_dst=block.num_dst,
        edge_weight=None if block.edge_weight is None else next(tensors),
        edge_x=edge_x,
    )


def _tensor_at(array: IdArray, place: torch.device) -> torch.Tensor:
    """Return ``array`` at ``place``, ordered after this thread's work there; on the CPU in the same memory."""
    tensor = torch.from_numpy(array)
    if place.type == "cpu":
        return tensor
    with torch.cuda.device(place):
        # torch keeps the pinned memory until the copy is complete, so that this thread does not wait for the device.
        return tensor.pin_memory().to(place, non_blocking=True)


logger = logging.getLogger("gloader")

# Maximum number of copies in flight: while the device reads one batch, the host requests the copy of the next batch, so
# that the link is never idle.
_SENDS: Final = 2

# For batches whose links have the labels.
_NO_ANSWERS: Final = Answers(labels=np.empty(0, dtype=np.int64))
_CUDA_ERROR: Final = "CUDA error"  # text in each of torch's errors from the CUDA runtime
# A note for these errors.
_IS_LATE: Final = (
    "CUDA reports errors late, at a later call of any thread: this one may come from the model's own kernels, such as "
    "a label beyond the classes; set CUDA_LAUNCH_BLOCKING=1 in the environment to see the call that failed"
)


class GatheredBatches(Protocol):
    """The source of batches for a sending thread."""

    def has_next(self) -> bool:
        """Return whether `get` would return a batch without waiting."""
        ...

    def get(self) -> HostBatch:
        """Wait for the next batch, and return it."""
        ...


class Send:
    """Sends batches, and releases host memory as soon as the device has read it.

    For an asynchronous device it runs on its own thread, with up to two copies in flight. Otherwise it runs on the
    consumer's thread. Before the thread waits for anything else, it completes all copies: during the wait it could not
    release their host memory.

    Parameters
    ----------
    transfer : copies the batches
    labels : labels for each batch; None if the batch's links have labels
    instruments : measure the transfer
    """

    name: Final = "send"  # the thread's name; its work is measured as "transfer"

    def __init__(
        self, transfer: Transfer, labels: SeedLabels | RowAnswers | None, instruments: Instruments
    ) -> None:
        self._transfer = transfer
        self._labels = labels
        self._instruments = instruments
        self.pace = Pace()

    @property
    def device(self) -> Device:
        """The device that receives the batches."""
        return self._transfer.device

    def process(self, batch: HostBatch) -> SentBatch:
        """Start the transfer of ``batch``; the device may still read the host's memory."""
        try:
            return self._process(batch)
        except torch.OutOfMemoryError as error:
            error.add_note(self._transfer.advice)
            raise
        except RuntimeError as error:
            if _CUDA_ERROR in str(error):
                error.add_note(_IS_LATE)
            raise

    def _process(self, batch: HostBatch) -> SentBatch:
        """Start the transfer of ``batch`` after the pace allows it; errors have no advice yet."""
        is_asynchronous = self.device.is_asynchronous
        if is_asynchronous:
            if not self.pace.has_room():
                self.let_go()
            # This wait is not measured as a transfer: its length depends on the model.
            self.pace.wait_for_room()
        with self._instruments.working("transfer", batch.sampled.id):
            answers = _NO_ANSWERS if self._labels is None else self._labels.answers(batch.sampled)
            sent = self._transfer.send(batch, answers)
        # The host waits for the previous batch only now: the device then continues with this batch without a gap.
        self.let_go(keep=_SENDS - 1 if is_asynchronous else 0)
        return sent

    def let_go(self, *, keep: int = 0) -> None:
        """Wait until the device has read all batches except the last ``keep``, and release their memory."""
        while self._transfer.num_sending > keep:
            # The wait is measured as the oldest batch's transfer, so that errors are reported for this batch.
            with self._instruments.working("transfer", self._transfer.oldest):
                self._transfer.wait_for_oldest()

    def close(self) -> None:
        """Wait for the copies in flight: only then may their memory be reused or unpinned. Idempotent."""
        try:
            self._transfer.wait()
        except Exception:
            logger.debug("a copy that was under way at the end failed", exc_info=True)
            self._transfer.forget()


class SendFeed:
    """Provides the sender with batches; before a wait for a batch, the sender releases its held memory.

    Parameters
    ----------
    source : the batches
    send : the sender, which releases its memory
    """

    def __init__(self, source: GatheredBatches, send: Send) -> None:
        self._source = source
        self._send = send

    def get(self) -> HostBatch:
        """Wait for the next batch, and return it."""
        if not self._source.has_next():
            self._send.let_go()
        return self._source.get()
