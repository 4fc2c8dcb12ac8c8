"""What the loader asks of a compute device: the one seam between the CPU and CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    import torch
    from numpy.typing import NDArray


class Mark(Protocol):
    """A point in a device's work that was behind everything sent so far."""

    def is_reached(self) -> bool:
        """Return whether the device got there: host memory that it read until then may change."""
        ...

    def wait(self) -> None:
        """Wait until the device got there."""
        ...

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let what this thread computes from now on wait for the mark, on the device.

        The memory of ``tensors`` is not used again before that computation is done with it.
        """
        ...


class Pinned(Protocol):
    """Host memory that the device reads in place, until `close`."""

    @property
    def array(self) -> NDArray[Any]:
        """The memory."""
        ...

    def close(self) -> None:
        """Give it back. Idempotent."""
        ...


class Device(Protocol):
    """Where batches are delivered. Thread-safe, but for what one thread sends between two marks."""

    @property
    def place(self) -> torch.device:
        """As torch names it."""
        ...

    @property
    def is_asynchronous(self) -> bool:
        """Whether batches are sent by a thread of their own, behind the computation."""
        ...

    def host_buffer(self, num_floats: int) -> NDArray[np.float32]:
        """Return host memory, touched, that copies to the device start from best."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes of the device that are free."""
        ...

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return the most bytes it took beyond those taken before it."""
        ...

    def sending(self) -> AbstractContextManager[None]:
        """Let this thread's copies and kernels go beside the computation, inside the block."""
        ...

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Bring small arrays to the device; they may change when this returns, but not where the device is the host."""
        ...

    def mark(self) -> Mark:
        """Return a mark behind what was sent so far."""
        ...

    def pin(self, array: NDArray[Any]) -> Pinned | None:
        """Let the device read ``array`` in place; None where that cannot be, and rows have to be brought."""
        ...
