"""The CPU as the compute device: batches are in its memory already."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gloader.core.aligned_memory import warm_bytes
from gloader.device.row_gather import gather_rows
from gloader.plan.available import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.device.row_table import RowParts


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
