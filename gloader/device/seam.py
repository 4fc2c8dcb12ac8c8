"""The protocol of compute devices, the CPU as one of them, and the choice of a device.

Batches are in the memory of the CPU already, so that `CpuDevice` hands them on.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch

from gloader.core.aligned_memory import warm_bytes
from gloader.device.cuda import CudaDevice
from gloader.device.row_table import gather_rows
from gloader.errors import ConfigError
from gloader.plan.available import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from gloader.device.row_table import RowParts


def settle_vector_math() -> None:
    """Let one thread make the first call of torch's square roots and exponentials. Idempotent, a few microseconds.

    MKL, which torch computes them with on x86, chooses its kernels at the first call of the process. Where several
    threads make that call together, one of them now and then goes on with the choice half made, and gets its part
    with 12 bits. That call is Adam's first step, on weights of more than 2,048 elements, and the losses of a run that
    met it differ from those of the others. A tensor of one element is computed by one thread. See docs/adr/0015.
    """
    torch.ones(1).sqrt()


@dataclass(frozen=True, slots=True)
class CpuMark:
    """Reached at once: the CPU does one thing after another."""

    at_s: float = field(default_factory=time.perf_counter)

    def is_reached(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do nothing."""

    def seconds_since(self, other: CpuMark) -> float:
        """Return the seconds between the two."""
        return self.at_s - other.at_s


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """Hands host memory on as it is."""

    @property
    def place(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def is_asynchronous(self) -> bool:
        """False: the host is the device."""
        return False

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return ordinary memory, touched."""
        return warm_bytes(num_bytes)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return ordinary memory."""
        return torch.empty(shape, dtype=dtype)

    def free_bytes(self) -> int:
        """Return the bytes of memory that are free."""
        return available_memory_bytes()

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return 0: the memory it takes on the host is not measured."""
        step()
        return 0

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Do nothing."""
        yield

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Return tensors over the same memory."""
        return tuple(torch.from_numpy(array) for array in arrays)

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy at once."""
        out.copy_(rows)

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather at once."""
        gather_rows(ids, parts, out=out)

    def mark(self) -> CpuMark:
        """Return a mark that is reached already."""
        return CpuMark()

    def mark_computing(self) -> CpuMark:
        """Return a mark that is reached already."""
        return CpuMark()

    def pin(self, array: NDArray[Any]) -> None:
        """Return None: rows are gathered first."""


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

    def seconds_since(self, other: Self) -> float:
        """Return the seconds that the device took from ``other``, both made by `mark_computing` and reached."""
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

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return touched host memory (num_bytes,), of the kind that the device copies from fastest."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised memory of the device, inside `sending` or `sampling`: that of a batch."""
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

    def sampling(self) -> AbstractContextManager[None]:
        """Make this thread's kernels run beside the computation and what is sent, inside the block."""
        ...

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Copy small arrays to the device; on the CPU the tensors may share memory with ``arrays``."""
        ...

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy host ``rows`` to ``out`` on the device, behind what was sent so far; both (U, F), of one dtype.

        ``rows`` must stay as they are until a later mark is reached.
        """
        ...

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather the rows of a batch as `gloader.device.gather_rows` does, behind what was sent so far.

        The host's rows must stay as they are until a later mark is reached.
        """
        ...

    def mark(self) -> Mark:
        """Return a mark behind what was sent so far."""
        ...

    def mark_computing(self) -> Mark:
        """Return a mark behind what this thread computes on the device so far; for the consumer's."""
        ...

    def pin(self, array: NDArray[Any]) -> Pinned | None:
        """Make ``array`` readable in place by the device; None if it cannot be, and rows have to be copied."""
        ...


def place_of(device: str) -> torch.device:
    """Return the place that ``device`` names.

    Raises
    ------
    ConfigError
        torch knows no such device.
    """
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {device!r} is not known; allowed: cpu, cuda, cuda:0, cuda:1, ..., and auto for a training run"
        ) from error


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
