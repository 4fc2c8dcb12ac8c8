"""The seam between the loader and a compute device: one protocol for the CPU and CUDA, and the choice of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gloader.device.cpu import CpuDevice
from gloader.device.cuda import CudaDevice
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    import torch
    from numpy.typing import NDArray


class Mark(Protocol):
    """A point in a device's work, behind everything that was sent before it."""

    def is_reached(self) -> bool:
        """Return whether the device got there: host memory that it read until then may change."""
        ...

    def wait(self) -> None:
        """Wait until the device got there."""
        ...

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make what this thread computes from now on wait for the mark, on the device.

        The memory of ``tensors`` is not given out again before that computation is over.
        """
        ...


class Pinned(Protocol):
    """Host memory that the device reads in place, until `close`."""

    @property
    def array(self) -> NDArray[Any]:
        """The memory."""
        ...

    def close(self) -> None:
        """Unpin the memory. Idempotent."""
        ...


class Device(Protocol):
    """A compute device that batches are sent to. Thread-safe, except that one thread sends between two marks."""

    @property
    def place(self) -> torch.device:
        """The device as torch names it."""
        ...

    @property
    def is_asynchronous(self) -> bool:
        """Whether batches are sent by a thread of their own, behind the computation."""
        ...

    def host_buffer(self, num_floats: int) -> NDArray[np.float32]:
        """Return touched host memory (num_floats,), of the kind that the device copies from fastest."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes of the device that are free."""
        ...

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return the most device bytes that it held, beyond those held before it."""
        ...

    def sending(self) -> AbstractContextManager[None]:
        """Make this thread's copies and kernels run beside the computation, inside the block."""
        ...

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Copy small arrays to the device; on the CPU the tensors may share memory with ``arrays``."""
        ...

    def mark(self) -> Mark:
        """Return a mark behind what was sent so far."""
        ...

    def pin(self, array: NDArray[Any]) -> Pinned | None:
        """Make ``array`` readable in place by the device; None if it cannot be, and rows have to be copied."""
        ...


def open_device(place: torch.device) -> Device:
    """Return the device at ``place``.

    Raises
    ------
    ConfigError
        There is none, or it is neither the CPU nor a CUDA device.
    """
    if place.type == "cpu":
        return CpuDevice()
    if place.type == "cuda":
        return CudaDevice(place)
    raise ConfigError(
        f"device={str(place)!r} is neither 'cpu' nor 'cuda'; batches can be moved on with Tensor.to"
    )
