"""An inference that is tried again in less of a device's memory."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from gloader.training.inference.placement import FIRST_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.device import Device

logger = logging.getLogger("gloader")


class OnADevice(Protocol):
    """What was placed on a device."""

    @property
    def device(self) -> Device:
        """Computes."""
        ...


PlacedT = TypeVar("PlacedT", bound=OnADevice)
MadeT = TypeVar("MadeT")


def in_less_memory(
    place: Callable[[int], PlacedT], run: Callable[[PlacedT, ExitStack], MadeT], stack: ExitStack
) -> MadeT:
    """Return what ``run`` does; after a device ran out of memory, in half of it.

    Parameters
    ----------
    place : returns a placement in one part in so many of the device's free memory
    run : computes there; what it opens is closed by the stack that it is given
    stack : owns what the attempt that came through opened
    """
    share = FIRST_SHARE
    while True:
        placed = place(share)
        device = placed.device
        # Of this attempt: a folder that it leaves is gone before the next one begins.
        with ExitStack() as attempt:
            try:
                result = run(placed, attempt)
            except torch.OutOfMemoryError:
                if not device.is_asynchronous:
                    raise
                result = None
            else:
                stack.push(attempt.pop_all())
            # What is left of it on the device must not count as taken.
            del placed
        # torch keeps freed memory for the stream that it was taken for; batches come on another one.
        device.free_bytes()
        if result is not None:
            return result
        share *= 2
        logger.warning("evaluation ran out of memory on %s: again, in half of it", device.place)
