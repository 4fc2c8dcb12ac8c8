"""A GPU as the compute device: a stream of its own for transfers, pinned memory, events instead of waits."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import torch

from gloader.device.host_memory import pack, pack_offsets, pin_in_place, unpack
from gloader.device.row_gather import gather_rows, has_triton
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.device.host_memory import PinnedArray
    from gloader.device.row_table import RowParts


# Priority of the sending stream, above the model's: its kernels are small, and the next step waits for them.
_SEND_FIRST: Final = -1


class CudaMark:
    """An event on the sending stream."""

    def __init__(self, event: torch.cuda.Event, place: torch.device) -> None:
        self._event = event
        self._place = place

    def is_reached(self) -> bool:
        """Return whether the device got there."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the device got there."""
        self._event.synchronize()

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let this thread's stream wait for the event; ``tensors`` count as used by that stream."""
        stream = torch.cuda.current_stream(self._place)
        stream.wait_event(self._event)
        # Made on the sending stream: the allocator must know of this one, or it reuses the memory too early.
        for tensor in tensors:
            tensor.record_stream(stream)


class CudaDevice:
    """One GPU. Not yet measured on one.

    Parameters
    ----------
    place : a CUDA device; without an index, the current one

    Raises
    ------
    ConfigError
        There is no such device.
    """

    def __init__(self, place: torch.device) -> None:
        if not torch.cuda.is_available():
            raise ConfigError(f"device={str(place)!r}: this torch finds no GPU; use device='cpu'")
        index = place.index if ":" in str(place) else torch.cuda.current_device()
        if not 0 <= index < torch.cuda.device_count():
            raise ConfigError(f"device={str(place)!r}: there are {torch.cuda.device_count()} GPUs")
        self._place = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._place, priority=_SEND_FIRST)  # type: ignore[no-untyped-call]
        # Not the one that sends: a gather over the link would keep every hop behind it waiting.
        self._sampling_stream = torch.cuda.Stream(self._place)  # type: ignore[no-untyped-call]

    @property
    def place(self) -> torch.device:
        """The GPU, with its index."""
        return self._place

    @property
    def is_asynchronous(self) -> bool:
        """True: batches are sent while the model computes."""
        return True

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return pinned memory; it is freed with the array."""
        found: NDArray[np.uint8] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()
        return found

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return memory of the GPU that belongs to this thread's current stream."""
        return torch.empty(shape, dtype=dtype, device=self._place)

    def free_bytes(self) -> int:
        """Return the bytes that are free, including those that torch keeps for later."""
        with torch.cuda.device(self._place):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return int(torch.cuda.mem_get_info()[0])

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        """Run ``step`` and return the most bytes that torch took from the device for it."""
        with torch.cuda.device(self._place):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            # Reserved, not allocated: what torch holds for later is as little free as what it uses.
            before = torch.cuda.memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_reserved()
            torch.cuda.empty_cache()
        return max(most - before, 0)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Make the device and its sending stream the current ones of this thread."""
        with torch.cuda.device(self._place), torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Make the device and its sampling stream the current ones of this thread."""
        with torch.cuda.device(self._place), torch.cuda.stream(self._sampling_stream):
            yield

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Copy ``arrays`` to the device by one copy out of pinned memory."""
        offsets = pack_offsets(arrays)
        # torch's allocator of pinned memory does not give the block out again before the copy from it is over.
        block = torch.empty(offsets[-1], dtype=torch.uint8, pin_memory=True)
        pack(arrays, offsets, block.numpy())
        return unpack(block.to(self._place, non_blocking=True), arrays, offsets)

    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy by the copy engine, beside the model's kernels."""
        out.copy_(rows, non_blocking=True)

    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        """Gather by one kernel."""
        gather_rows(ids, parts, out=out)

    def mark_computing(self) -> CudaMark:
        """Return an event behind everything that this thread's stream was given so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._place))
        return CudaMark(event, self._place)

    def mark(self) -> CudaMark:
        """Return an event behind everything that the sending stream was given so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return CudaMark(event, self._place)

    def pin(self, array: NDArray[Any]) -> PinnedArray | None:
        """Pin ``array`` in place; None if that fails, or without Triton, whose kernel would read it."""
        if not has_triton():
            return None
        pinned = pin_in_place(array, torch.cuda.cudart())  # type: ignore[no-untyped-call]
        if pinned is None:
            forget_error(self._place)
        return pinned


def forget_error(place: torch.device) -> None:
    """Drop the last error of the CUDA runtime, which would otherwise raise it at the next, innocent kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device=place)
