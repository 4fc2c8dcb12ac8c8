"""The embeddings that the ranks of a machine train together.

An embedding is the trainable rows of a node type. The host, the rank that loads for its machine, holds the rows of the
next batches in slots. The other ranks, its clients, map the slots read-only. A leaf is a copy of a batch's weights that
receives a gradient. A step is one update of the rows, with the gradients of one batch of each rank.

Each rank calls for a step. The host (`HostSteps`) waits for the gradients of all ranks, adds those of a row in the
order of the ranks, applies the sum once, and releases the clients (`ClientRows`). So no rank copies its next leaf
before the rows have their new values. The sum is the gradient of the sum of all ranks' losses. torch's
DistributedDataParallel takes the mean of the other gradients; a rank that wants the same here divides its own.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from gloader.distributed.shared_memory import create_segment, rows_bytes, rows_in_segment, seal_contents
from gloader.distributed.wire import Slots
from gloader.errors import ChannelClosedError, StateError
from gloader.pipeline.absent_table import elsewhere
from gloader.pipeline.superbatch import BatchSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from gloader.distributed.client import LoaderClient
    from gloader.distributed.wire import Connection
    from gloader.pipeline.embedding_rows import EmbeddingRows
    from gloader.types import IdArray


class OtherRanks(Protocol):
    """The host's connections to the other ranks, as a step uses them; see `gloader.distributed.host.LoaderHost`."""

    def gradients(self, embedding: int, step: int, *, dim: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Wait for the slots and gradients of every other rank."""
        ...

    def release_step(self, embedding: int, step: int, *, num_steps: int) -> None:
        """Tell the other ranks that a step was applied."""
        ...

    def end_with(self, error: BaseException) -> None:
        """End all ranks with ``error``."""
        ...


class HostSteps:
    """The host's end: the slots in shared memory, and the steps of all ranks. Owns descriptors until `send` or `close`.

    Parameters
    ----------
    host : the connections to the other ranks
    num_ranks : R, the ranks of the machine
    """

    def __init__(self, host: OtherRanks, *, num_ranks: int) -> None:
        self._host = host
        self.num_ranks = num_ranks
        self._rows: list[EmbeddingRows] = []
        self._descriptors: list[int] = []  # of the slots of each embedding

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return zeroed memory (num_bytes,) for the slots of the next embedding."""
        # The pages are allocated at their first use, as those of private memory.
        descriptor, memory = create_segment(num_bytes, is_touched=False)
        self._descriptors.append(descriptor)
        return memory[:num_bytes]

    def stepping(self, rows: EmbeddingRows) -> Callable[[BatchSlots, torch.Tensor | None], None]:
        """Return the function that makes a step of the next embedding with the gradients of all ranks.

        The function is for the thread of the training loop. It raises RankError if another rank failed, is gone, or
        left the epoch before the step.
        """
        self._rows.append(rows)
        return partial(self._step, len(self._rows) - 1)

    def send(self, connections: Iterable[Connection]) -> None:
        """Send the slots of all embeddings to the clients.

        Raises
        ------
        EOFError
            A client is gone.
        """
        for descriptor in self._descriptors:
            seal_contents(descriptor)  # only the host writes
        for connection in connections:
            for number, (rows, descriptor) in enumerate(zip(self._rows, self._descriptors, strict=True)):
                message = Slots(
                    embedding=number, num_slots=rows.capacity, width=rows.table.width, dim=rows.dim
                )
                connection.send(message, descriptor=descriptor)
        self.close()

    def read(self, embedding: int, ids: IdArray) -> NDArray[np.float32]:
        """Return the newest weights (M, D) of the rows ``ids`` (M,), for a client that makes no step meanwhile."""
        return self._rows[embedding].read(ids)

    def close(self) -> None:
        """Close the descriptors; the memory lives as long as its users. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _step(self, embedding: int, slots: BatchSlots, grad: torch.Tensor | None) -> None:
        """End the step of this rank's batch, together with all other ranks; see `stepping`."""
        rows, number = self._rows[embedding], slots.number // self.num_ranks
        try:
            parts = self._host.gradients(embedding, number, dim=rows.dim)
            if grad is not None:
                parts.insert(0, (slots.slots, grad.detach().cpu()))
            rows.step(*_summed(rows, slots.number, parts))
        except BaseException as error:
            self._host.end_with(error)
            raise
        self._host.release_step(embedding, number, num_steps=rows.num_steps)


def _summed(
    rows: EmbeddingRows, number: int, parts: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> tuple[BatchSlots, torch.Tensor | None]:
    """Return the distinct slots of all ranks, and the sums of their gradients.

    Parameters
    ----------
    rows : the rows in their slots
    number : of a batch of the step
    parts : slots (U,) and gradients (U, D) of each rank with a gradient, in rank order
    """
    distinct = [_distinct(rows, *part) for part in parts]
    if not distinct:
        return BatchSlots(number=number, slots=torch.empty(0, dtype=torch.int64)), None
    places, inverse = np.unique(torch.cat([slots for slots, _ in distinct]).numpy(), return_inverse=True)
    total, is_empty = torch.empty(len(places), rows.dim), torch.ones(len(places), dtype=torch.bool)
    start = 0
    for slots, grad in distinct:
        at = torch.from_numpy(inverse[start : start + len(slots)])
        start += len(slots)
        # The first gradient of a row is copied, and not added to 0: 0 + -0.0 is not -0.0.
        again = torch.nonzero(~is_empty[at]).squeeze(1)
        added = total[at[again]] + grad[again]
        total.index_copy_(0, at, grad).index_copy_(0, at[again], added)
        is_empty[at] = False
    return BatchSlots(number=number, slots=torch.from_numpy(places)), total


def _distinct(
    rows: EmbeddingRows, slots: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch's distinct slots and their gradients; those of a row that repeats are added as torch does."""
    ids = rows.rows_in(slots)
    found, first = np.unique(ids.numpy(), return_index=True)
    if len(found) == len(ids):
        return slots, grad
    # torch's own sum, because its order of equal rows is that of its sort.
    shape = (rows.table.num_rows, rows.dim)
    summed = torch.sparse_coo_tensor(ids.unsqueeze(0), grad, shape, check_invariants=False).coalesce()
    return slots[torch.from_numpy(first)], summed.values()


class ClientRows:
    """A client's view of an embedding: leaves from the mapped slots, and everything else by the host.

    For one thread, that of the training loop.

    Parameters
    ----------
    client : the connection to the host
    number : number of the embedding
    slots : (C, D) float32, the weights of the host's slots; read-only
    num_ranks : R, the ranks of the machine

    Attributes
    ----------
    num_steps : optimizer steps in the life of the table
    """

    def __init__(
        self, client: LoaderClient, number: int, slots: NDArray[np.float32], *, num_ranks: int
    ) -> None:
        self.num_steps = 0
        self._client = client
        self._number = number
        self._weights = slots
        self._num_ranks = num_ranks
        self._gradients = _OwnSegment()
        self._wanted = _OwnSegment()

    @property
    def num_bytes(self) -> int:
        """Bytes of the host's memory that this rank maps."""
        return len(self._weights) * self._weights.strides[0]

    @property
    def bytes_read(self) -> int:
        """0: the host reads."""
        return 0

    @property
    def bytes_written(self) -> int:
        """0: the host writes."""
        return 0

    def leaf(self, slots: BatchSlots, device: torch.device | None = None) -> torch.Tensor:
        """Return a copy of the batch's weights (U, D) on ``device``, which receives a gradient."""
        return torch.from_numpy(self._weights[slots.slots.numpy()]).to(device).requires_grad_()

    def step(self, slots: BatchSlots, grad: torch.Tensor | None) -> None:
        """Send this rank's gradient to the host, and wait until the host has applied the step.

        Parameters
        ----------
        slots : the slots of this rank's batch
        grad : (U, D) the gradient of its leaf; None without a gradient

        Raises
        ------
        RankError
            Another rank failed, or the host is gone.
        StateError
            This rank has left the epoch of the batch.
        """
        num_rows, dim = (0, 0) if grad is None else grad.shape
        with self._gradients.fitting(rows_bytes(num_rows, dim=dim)) as (memory, descriptor):
            if grad is not None:
                places, rows = rows_in_segment(memory, num_rows, dim=dim)
                places[:] = slots.slots.numpy()
                torch.from_numpy(rows).copy_(grad.detach())
            try:
                self.num_steps = self._client.take_step(
                    self._number, slots.number // self._num_ranks, num_rows=num_rows, descriptor=descriptor
                )
            except ChannelClosedError as error:
                raise StateError(
                    "this rank has left the epoch of the batch; call step(batch) before the loop ends or breaks"
                ) from error

    def read(self, ids: IdArray) -> NDArray[np.float32]:
        """Return the newest weights (M, D) of the rows ``ids`` (M,), which the host reads.

        Raises
        ------
        RankError
            The host could not read them, or is gone.
        """
        num_rows, dim = len(ids), self._weights.shape[1]
        with self._wanted.fitting(rows_bytes(num_rows, dim=dim)) as (memory, descriptor):
            wanted, rows = rows_in_segment(memory, num_rows, dim=dim)
            wanted[:] = ids
            self._client.read_rows(self._number, num_rows=num_rows, descriptor=descriptor)
            return rows.copy()

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:  # noqa: ARG002 - as of the host
        """Raise StateError: only the host goes over all rows."""
        raise elsewhere("pieces() and export()")

    def flush(self) -> None:
        """Do nothing: the host writes its rows."""

    def restart(self) -> None:
        """Do nothing: the host makes its rows ready for another run."""

    def close(self) -> None:
        """Release the memory of gradients. Idempotent."""
        self._gradients, self._wanted = _OwnSegment(), _OwnSegment()


class _OwnSegment:
    """A client's shared memory for ids and float32 rows, which grows when needed."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    @contextmanager
    def fitting(self, num_bytes: int) -> Iterator[tuple[NDArray[np.uint8], int | None]]:
        """Return memory of at least ``num_bytes``, and its descriptor if it is new, else None."""
        if len(self._memory) >= num_bytes:
            yield self._memory, None
            return
        self._memory = np.empty(0, np.uint8)  # freed before the larger memory is allocated
        descriptor, self._memory = create_segment(num_bytes)
        try:
            yield self._memory, descriptor
        finally:
            os.close(descriptor)
