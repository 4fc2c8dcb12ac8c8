"""A trial step of a model, for measuring the step's memory, which leaves the model unchanged.

The memory plan runs the function from `dry_step` inside `Device.most_bytes_of`, before training begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.types import AnyReadyBatch

    B = TypeVar("B", bound=AnyReadyBatch)


def has_other_ranks() -> bool:
    """Return True if this process belongs to a group of several ranks, whose devices communicate."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def dry_step(model: torch.nn.Module, loss_of: Callable[[B], torch.Tensor]) -> Callable[[B], None]:
    """Return a function that computes a batch's loss and gradients, and then restores the model.

    Buffers (running statistics), the training mode and the random states are restored. Gradients are dropped.

    Parameters
    ----------
    model : the model, on its training device
    loss_of : runs ``model`` on a batch and returns the loss
    """

    def step(batch: B) -> None:
        """Run forward and backward pass, and restore the model even after an error."""
        devices = [] if batch.y.device.type == "cpu" else [batch.y.device]
        buffers = [buffer.clone() for buffer in model.buffers()]
        was_training = model.training
        # Training keeps memory between steps, so the trial must hold as much, here as copies of the parameters. Adam
        # keeps two copies after its first step. With other ranks, DDP keeps the gradients once more, in its buckets.
        copies = 3 if has_other_ranks() else 2
        state = [torch.empty((copies, *p.shape), dtype=p.dtype, device=p.device) for p in model.parameters()]
        with torch.random.fork_rng(devices=devices):
            try:
                model.train()
                loss_of(batch).backward()  # type: ignore[no-untyped-call]
            finally:
                model.zero_grad(set_to_none=True)
                model.train(was_training)
                with torch.no_grad():
                    for buffer, before in zip(model.buffers(), buffers, strict=True):
                        buffer.copy_(before)
                del state

    return step
