"""The steps of an embedding that the ranks of a machine train together.

An embedding is the trainable rows of a node type. The host, the rank that loads for its machine, holds the rows of the
next batches in slots. The other ranks, its clients, map the slots' weights read-only. A leaf is a copy of a batch's
weights that receives a gradient. A step is one update of the rows, with the gradients of one batch of each rank.

`HostSteps` and `ClientSteps` are the two ends of a step. Each rank calls ``step``. The host waits for the gradients of
all ranks, adds those of a row in the order of the ranks, applies the sum once, and releases the clients. So no rank
copies its next leaf before the rows have their new values. The sum is that of the losses of all ranks. torch's
DistributedDataParallel takes the mean of the other gradients; a rank that wants the same here divides its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.distributed.shared_memory import create_segment, seal_contents
from gloader.distributed.wire import Slots
from gloader.errors import ChannelClosedError, StateError
from gloader.pipeline.embedding_rows import BatchSlots

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gloader.distributed.client import LoaderClient
    from gloader.distributed.host import LoaderHost
    from gloader.distributed.wire import Connection
    from gloader.pipeline.embedding_rows import EmbeddingRows

_SLOT_BYTES: Final = 8  # of a slot's number, int64
_WEIGHT_BYTES: Final = 4  # of a gradient's number, float32


class SharedSlots:
    """Allocates the weights of the host's slots in shared memory. Owns the descriptors until `close`."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []  # in the order of the embeddings

    def allocate(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return zeroed memory (num_bytes,) for the weights of the next embedding."""
        # The pages are allocated at their first use, as those of private memory.
        descriptor, memory = create_segment(num_bytes, is_touched=False)
        self._descriptors.append(descriptor)
        return memory[:num_bytes]

    def send(self, embeddings: Sequence[EmbeddingRows], connections: Iterable[Connection]) -> None:
        """Send the slots of all ``embeddings`` to each client.

        Raises
        ------
        EOFError
            A client is gone.
        """
        for descriptor in self._descriptors:
            seal_contents(descriptor)  # only the host writes
        for connection in connections:
            for number, (rows, descriptor) in enumerate(zip(embeddings, self._descriptors, strict=True)):
                message = Slots(embedding=number, num_slots=rows.capacity, dim=rows.dim)
                connection.send(message, descriptor=descriptor)

    def close(self) -> None:
        """Close the descriptors; the memory lives as long as its users. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.pop())


class HostSteps:
    """The host's end of an embedding's steps. For the thread of the training loop.

    Parameters
    ----------
    host : the connections to the other ranks
    number : number of the embedding
    rows : the rows in their slots
    num_ranks : R, the ranks of the machine
    """

    def __init__(self, host: LoaderHost, number: int, rows: EmbeddingRows, *, num_ranks: int) -> None:
        self._host = host
        self._number = number
        self._rows = rows
        self._num_ranks = num_ranks

    def leaf(self, slots: BatchSlots, device: torch.device | None = None) -> torch.Tensor:
        """Return a copy of the batch's weights (U, D) on ``device``, which receives a gradient."""
        return self._rows.leaf(slots, device)

    def restart(self) -> None:
        """Make the rows ready for another run; see `EmbeddingRows.restart`."""
        self._rows.restart()

    def step(self, slots: BatchSlots, grad: torch.Tensor | None) -> None:
        """End the step of this rank's batch, together with all other ranks.

        Parameters
        ----------
        slots : the slots of this rank's batch
        grad : (U, D) the gradient of the batch's leaf; None without a gradient

        Raises
        ------
        RankError
            Another rank failed, is gone, or left the epoch before this step.
        """
        step = slots.number // self._num_ranks
        try:
            parts = self._host.gradients(self._number, step, dim=self._rows.dim)
            if grad is not None:
                parts.insert(0, (slots.slots, grad.detach().cpu()))
            self._rows.step(*self._summed(slots.number, parts))
        except BaseException as error:
            self._host.end_with(error)
            raise
        self._host.release_step(self._number, step)

    def _summed(
        self, number: int, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[BatchSlots, torch.Tensor | None]:
        """Return the distinct slots of all ranks, and the sum of their gradients; ``parts`` are in rank order."""
        if not parts:
            return BatchSlots(number=number, slots=torch.empty(0, dtype=torch.int64)), None
        places, grads = (torch.cat(column) for column in zip(*parts, strict=True))
        # torch adds the gradients of a slot in their order here: its sort on the CPU is stable.
        grad = torch.sparse_coo_tensor(
            places.unsqueeze(0), grads, (self._rows.capacity, self._rows.dim), check_invariants=False
        ).coalesce()
        return BatchSlots(number=number, slots=grad.indices()[0]), grad.values()


class ClientSteps:
    """A client's end of an embedding's steps. For the thread of the training loop.

    Parameters
    ----------
    client : the connection to the host
    number : number of the embedding
    weights : (C, D) float32, the weights of the host's slots; read-only
    num_ranks : R, the ranks of the machine
    """

    def __init__(
        self, client: LoaderClient, number: int, weights: NDArray[np.float32], *, num_ranks: int
    ) -> None:
        self._client = client
        self._number = number
        self._weights = weights
        self._num_ranks = num_ranks
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)  # shared with the host, for slots and gradients

    @property
    def num_bytes(self) -> int:
        """Bytes of the host's memory that this rank maps."""
        return self._weights.nbytes

    def leaf(self, slots: BatchSlots, device: torch.device | None = None) -> torch.Tensor:
        """Return a copy of the batch's weights (U, D) on ``device``, which receives a gradient."""
        return torch.from_numpy(self._weights[slots.slots.numpy()]).to(device).requires_grad_()

    def restart(self) -> None:
        """Do nothing: the host makes its rows ready for another run."""

    def step(self, slots: BatchSlots, grad: torch.Tensor | None) -> None:
        """Send this rank's gradient to the host, and wait until the host has applied the step.

        Parameters
        ----------
        slots, grad : as in `HostSteps.step`

        Raises
        ------
        RankError
            Another rank failed, or the host is gone.
        StateError
            This rank has left the epoch of the batch.
        """
        num_rows, descriptor = 0, None
        if grad is not None:
            num_rows, dim = grad.shape
            descriptor = self._fit(gradient_bytes(num_rows, dim=dim))
            places, rows = gradients_in(self._memory, num_rows, dim=dim)
            places.copy_(slots.slots)
            rows.copy_(grad.detach())
        try:
            step = slots.number // self._num_ranks
            self._client.take_step(self._number, step, num_rows=num_rows, descriptor=descriptor)
        except ChannelClosedError as error:
            raise StateError(
                "this rank has left the epoch of the batch; call step(batch) before the loop ends or breaks"
            ) from error
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _fit(self, num_bytes: int) -> int | None:
        """Make the memory hold ``num_bytes``; return the descriptor of new memory, which the caller owns, or None."""
        if len(self._memory) >= num_bytes:
            return None
        self._memory = np.empty(0, np.uint8)  # freed before the larger memory is allocated
        descriptor, self._memory = create_segment(num_bytes)
        return descriptor


def gradient_bytes(num_rows: int, *, dim: int) -> int:
    """Return the bytes of ``num_rows`` slots and their gradients. Pure."""
    return num_rows * (_SLOT_BYTES + _WEIGHT_BYTES * dim)


def gradients_in(
    memory: NDArray[np.uint8], num_rows: int, *, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of the slots (num_rows,) int64 and gradients (num_rows, dim) float32 in a client's memory. Pure."""
    first, stop = _SLOT_BYTES * num_rows, gradient_bytes(num_rows, dim=dim)
    rows = memory[first:stop].view(np.float32).reshape(num_rows, dim)
    return torch.from_numpy(memory[:first].view(np.int64)), torch.from_numpy(rows)
