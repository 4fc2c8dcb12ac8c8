"""One step of a model to see what it takes, without a trace of it left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.types import ReadyBatch


def dry_step(
    model: torch.nn.Module, loss_of: Callable[[ReadyBatch], torch.Tensor]
) -> Callable[[ReadyBatch], None]:
    """Return a function that computes a batch's loss and gradients, and then puts the model back as it was.

    Buffers (running statistics), the training mode and the random states are what they were; gradients are dropped.
    What an optimiser will hold is not there yet: an Adam that has not stepped will take twice the parameters, so
    that many bytes are held during the step.

    Parameters
    ----------
    loss_of : runs ``model`` on a batch and returns the loss
    """

    def step(batch: ReadyBatch) -> None:
        devices = [] if batch.x.device.type == "cpu" else [batch.x.device]
        buffers = [buffer.clone() for buffer in model.buffers()]
        was_training = model.training
        state = [torch.empty((2, *p.shape), dtype=p.dtype, device=p.device) for p in model.parameters()]
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
