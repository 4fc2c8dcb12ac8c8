"""A trial step of a model, which shows the memory that a step takes and leaves the model as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.types import AnyReadyBatch

    B = TypeVar("B", bound=AnyReadyBatch)


def has_other_ranks() -> bool:
    """Return whether this process belongs to a group of several ranks, whose devices talk."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def dry_step(model: torch.nn.Module, loss_of: Callable[[B], torch.Tensor]) -> Callable[[B], None]:
    """Return a function that computes a batch's loss and gradients, and then puts the model back as it was.

    Buffers (running statistics), the training mode and the random states are restored; gradients are dropped.

    Parameters
    ----------
    model : on the device that it will train on
    loss_of : runs ``model`` on a batch and returns the loss
    """

    def step(batch: B) -> None:
        devices = [] if batch.y.device.type == "cpu" else [batch.y.device]
        buffers = [buffer.clone() for buffer in model.buffers()]
        was_training = model.training
        # What training holds beside a step is held during it: an Adam that has not stepped yet will take twice the
        # parameters, and with other ranks DDP takes their gradients once more, in the buckets that it sends.
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
