"""The protocol for compute devices, the CPU device, and the choice of a device.

The pipeline sends batches through the protocol `Device`, so its code is the same for a GPU and for the CPU.
`CudaDevice` implements the protocol for a GPU. For `CpuDevice`, batches are already in the device's memory, and are
passed on unchanged. `place_of` and `open_device` select the device. A device's ``place`` is its `torch.device`.

A `Mark` is a point in the device's work. A caller waits for a mark to be sure that earlier copies and kernels are
complete.
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
    """Let MKL choose its kernels for square roots and exponentials, in one thread. Idempotent; takes microseconds.

    On x86, torch computes these functions with MKL, which chooses its kernels at the process's first call. If several
    threads make the first call together, one thread may use an incomplete choice, with 12 bits of precision. In a
    training run, the first call would be Adam's first step on weights of more than 2,048 elements, and the losses would
    differ between runs. Loaders therefore make the first call, on a tensor of one element, for which torch uses one
    thread. See docs/adr/0015.
    """
    torch.ones(1).sqrt()


@dataclass(frozen=True, slots=True)
class CpuMark:
    """A `Mark` that is reached when it is made, because the CPU completes each call before it returns."""

    at_s: float = field(default_factory=time.perf_counter)  # seconds of a monotonic clock

    def is_reached(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do nothing."""

    def seconds_since(self, other: CpuMark) -> float:
        """Return the seconds from ``other`` to this mark."""
        return self.at_s - other.at_s


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """The CPU as a device. It passes host memory on unchanged."""

    @property
    def place(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def is_asynchronous(self) -> bool:
        """False: the host is the device."""
        return False

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return ordinary memory whose pages are already touched."""
        return warm_bytes(num_bytes)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return ordinary memory."""
        return torch.empty(shape, dtype=dtype)

    def free_bytes(self) -> int:
        """Return the bytes of free memory."""
        return available_memory_bytes()

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return 0, because host memory is not measured."""
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
        """Copy ``rows`` before the call returns."""
        out.copy_(rows)

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather the rows before the call returns."""
        gather_rows(ids, parts, out=out)

    def mark(self) -> CpuMark:
        """Return a mark that is already reached."""
        return CpuMark()

    def mark_computing(self) -> CpuMark:
        """Return a mark that is already reached."""
        return CpuMark()

    def pin(self, array: NDArray[Any]) -> None:
        """Return None: the CPU gathers rows instead of reading them in place."""


class Mark(Protocol):
    """A point in a device's work, after all earlier transfers."""

    def is_reached(self) -> bool:
        """Return True if the device has reached the mark. Host memory that earlier copies read may then change."""
        ...

    def wait(self) -> None:
        """Wait until the device has reached the mark."""
        ...

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make this thread's later computation wait for the mark, on the device.

        The memory of ``tensors`` is not reused before that computation is over.
        """
        ...

    def seconds_since(self, other: Self) -> float:
        """Return the device's seconds since ``other``. Both are reached marks of `mark_computing`."""
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
    """A compute device for batches.

    Thread-safe. But only one thread may send between two calls of `mark`, because a mark covers the transfers of all
    threads.
    """

    @property
    def place(self) -> torch.device:
        """The device in torch's form."""
        ...

    @property
    def is_asynchronous(self) -> bool:
        """True if a separate thread sends batches while the model computes."""
        ...

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return touched host memory (num_bytes,), of the kind that copies fastest to the device."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialised device memory for a batch, inside `sending` or `sampling`."""
        ...

    def free_bytes(self) -> int:
        """Return the device's free bytes."""
        ...

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step``, such as a training step, and return its peak device bytes minus the bytes in use before it."""
        ...

    def sending(self) -> AbstractContextManager[None]:
        """Return a context manager; in its block, this thread's transfers run parallel to the model's computation."""
        ...

    def sampling(self) -> AbstractContextManager[None]:
        """Return a context manager; in its block, this thread's kernels run parallel to computation and transfers."""
        ...

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Copy small arrays to the device; on the CPU the tensors may share memory with ``arrays``."""
        ...

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy host ``rows`` (U, F) to ``out`` (U, F) on the device, after the earlier transfers. Dtypes are equal.

        The call may return before the copy ends: ``rows`` must not change until a later mark is reached.
        """
        ...

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather the feature rows of a batch's nodes, after the earlier transfers.

        The call may return before the gather ends: the host's rows must not change until a later mark is reached.

        Parameters
        ----------
        ids : (U,) the batch's node ids, on the device
        parts : the tables that hold the rows
        out : (U, F) float32 on the device; see `gloader.device.gather_rows`
        """
        ...

    def mark(self) -> Mark:
        """Return a mark after all transfers that were started so far."""
        ...

    def mark_computing(self) -> Mark:
        """Return a mark after all device work that this thread has started so far on its current stream."""
        ...

    def pin(self, array: NDArray[Any]) -> Pinned | None:
        """Make ``array`` readable in place by the device, or return None if rows must be copied."""
        ...


def place_of(device: str) -> torch.device:
    """Return torch's device for the name ``device``, such as "cuda:1".

    Raises
    ------
    ConfigError
        torch does not support this device.
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
        The device does not exist, or is neither the CPU nor a CUDA device.
    """
    if place.type == "cpu":
        return CpuDevice()
    if place.type == "cuda":
        return CudaDevice(place)
    raise ConfigError(
        f"device={str(place)!r} is neither 'cpu' nor 'cuda'; batches can be moved on with Tensor.to"
    )
