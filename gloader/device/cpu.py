"""The CPU as the compute device: batches are in its memory already. It can rehearse what a GPU does."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.core.aligned_memory import warm_bytes
from gloader.device.host_memory import pack, pack_offsets, unpack
from gloader.device.row_gather import gather_rows
from gloader.memory.available import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.device.row_table import RowParts


@dataclass(frozen=True, slots=True)
class CpuMark:
    """Reached at once: the CPU does one thing after another."""

    def is_reached(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostArray:
    """An array that needs no pinning."""

    array: NDArray[Any]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDevice:
    """Hands host memory on as it is.

    Parameters
    ----------
    rehearses : take a GPU's path instead: packed copies, a sending thread, a gather into new memory. For tests
    reaches_features : read features in place that are in memory, without gathering them first. For tests
    """

    rehearses: bool = False
    reaches_features: bool = False

    @property
    def place(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def is_asynchronous(self) -> bool:
        """Whether a GPU is rehearsed."""
        return self.rehearses

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
        """Return tensors over the same memory; over a packed copy if a GPU is rehearsed."""
        if not self.rehearses:
            return tuple(torch.from_numpy(array) for array in arrays)
        # The copy of `CudaDevice.upload`, from memory to memory.
        offsets = pack_offsets(arrays)
        block = np.empty(offsets[-1], dtype=np.uint8)
        pack(arrays, offsets, block)
        return unpack(torch.from_numpy(block), arrays, offsets)

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

    def pin(self, array: NDArray[Any]) -> HostArray | None:
        """Return ``array`` if features are read in place, else None."""
        return HostArray(array=array) if self.reaches_features else None
