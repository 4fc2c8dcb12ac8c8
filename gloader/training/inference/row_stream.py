"""Rows of a matrix, streamed in order to the computing device while it computes, and back.

An inference reads its inputs and writes its outputs with these functions (`layer_pass`). `stream_rows` yields chunks of
rows on the device. A thread reads and copies the next chunks meanwhile (`send_ahead`). `fetch_behind` copies results
back to the host while the next result is computed. A mark is a point in the device's queue of work. `Mark.wait` waits
until the device has reached it; `Mark.precede` makes the device's later computation wait for it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import torch

from gloader.device import RowTable
from gloader.errors import ChannelClosedError
from gloader.pipeline.threads import Channel, Failures, Pipeline, stage_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.device import Device, Mark
    from gloader.training.inference.layer_rows import RowChoice, Rows
    from gloader.types import IdArray


T = TypeVar("T")
# Tensors on the device whose copy has begun, and the mark after the copy.
Sent: TypeAlias = "tuple[tuple[torch.Tensor, ...], Mark]"

# Items in progress: the host reads one, one is in transfer, and the device computes with one.
AHEAD: Final = 3
# Nothing is copied on the CPU: the host reads one item and computes with another.
_AHEAD_ON_CPU: Final = 2


def num_ahead(device: Device) -> int:
    """Return the maximum number of items in progress in `send_ahead`, which needs as many buffers."""
    return AHEAD if device.is_asynchronous else _AHEAD_ON_CPU


def send_ahead(
    items: Iterable[T], send: Callable[[T, int], Sent], device: Device, *, name: str
) -> Generator[tuple[torch.Tensor, ...]]:
    """Yield the tensors that ``send`` copies to the device for each item, in a thread ahead of the computation.

    Tensors stay valid until the next ones are requested. Closing the generator joins the thread.

    Parameters
    ----------
    items : the items, consumed by the thread
    send : called in the thread with an item and the number of a free buffer, below `num_ahead`
    device : the receiving device
    name : the thread's name

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    """
    # Free buffers go to the thread, and sent items come back from it.
    free: Channel[_Slot] = Channel(num_ahead(device))
    for number in range(num_ahead(device)):
        free.put(_Slot(number, None))
    sent: Channel[_OnItsWay] = Channel(1)
    failures = Failures(sent.fail)
    stage = _Send(send, free, name)
    thread = Pipeline(
        [stage_thread(stage, _Items(iter(items)), sent, failures)],
        cancels=[free, sent],
        failures=failures,
        on_joined=stage.wait,
    )
    try:
        thread.start()
        while True:
            try:
                found = sent.get()
            except ChannelClosedError:
                return
            # The device's later computation waits for the copy; this thread does not.
            found.mark.precede(found.tensors)
            yield found.tensors
            # The device may be far behind this thread. The thread reuses the slot's memory, on the host and on the
            # device, only after this mark.
            free.put(_Slot(found.slot, device.mark_computing()))
            del found
    finally:
        thread.close()


def fetch_behind(
    chunks: Iterable[torch.Tensor], device: Device, buffers: Callable[[], Sequence[NDArray[np.uint8]]]
) -> Generator[NDArray[np.float32]]:
    """Yield ``chunks`` in host memory. While one is in use, the next is computed and copied.

    A chunk stays valid until the next is requested.

    Parameters
    ----------
    chunks : float32 chunks on the device
    device : the chunks' device
    buffers : returns two or more results of `Device.host_buffer`, each with room for any chunk; not called on the CPU
    """
    if not device.is_asynchronous:
        for chunk in chunks:
            yield chunk.numpy()
        return
    behind: tuple[Mark, NDArray[np.float32]] | None = None  # the newest copy: its mark and its host memory
    try:
        for number, chunk in enumerate(chunks):
            memory = buffers()[number % 2][: chunk.nbytes].view(np.float32).reshape(tuple(chunk.shape))
            # The copy runs after the computation on the same stream: later computation waits for it, the host does not.
            torch.from_numpy(memory).copy_(chunk, non_blocking=True)
            before, behind = behind, (device.mark_computing(), memory)
            if before is not None:
                before[0].wait()
                yield before[1]
        if behind is not None:
            behind[0].wait()
            yield behind[1]
    finally:
        # This wait happens on every exit: the caller may free the buffers.
        if behind is not None:
            behind[0].wait()


@dataclass(frozen=True, slots=True)
class _Slot:
    """A buffer for one item that is free again."""

    number: int  # number of the buffer
    computed: Mark | None  # the mark after the computation that used the slot; None if it was never used


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """An item in transfer to the device."""

    slot: int  # number of its buffer
    tensors: tuple[torch.Tensor, ...]
    mark: Mark  # the mark after its copy


class _Items(Generic[T]):
    """An iterator in the form of an input channel of `stage_thread`."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items

    def get(self) -> T:
        for item in self._items:
            return item
        raise ChannelClosedError("there are no more items")


class _Send:
    """The thread's stage: sends items. It fills a buffer only after the device no longer uses the buffer."""

    def __init__(self, send: Callable[[Any, int], Sent], free: Channel[_Slot], name: str) -> None:
        self.name = name
        self._send = send
        self._free = free
        self._last: Mark | None = None

    def process(self, item: Any) -> _OnItsWay:
        slot = self._free.get()
        if slot.computed is not None:
            slot.computed.wait()
        tensors, self._last = self._send(item, slot.number)
        return _OnItsWay(slot.number, tensors, self._last)

    def wait(self) -> None:
        """Wait until the device has read all host memory, which is freed with the thread."""
        if self._last is not None:
            self._last.wait()


class DeviceRows:
    """Rows on the device: features or activations.

    Parameters
    ----------
    table : the table on the device; row i belongs to node i
    """

    def __init__(self, table: RowTable) -> None:
        self._table = table

    @classmethod
    def blank(cls, *, num_rows: int, width: int, place: torch.device) -> DeviceRows:
        """Return a table whose rows are not written yet."""
        return cls(RowTable(rows=torch.empty(num_rows, width, device=place)))

    def write_slab(self, columns: slice, chunks: Iterable[torch.Tensor]) -> None:
        """Write all rows of ``columns`` from consecutive ``chunks``."""
        row = 0
        for chunk in chunks:
            self._table.rows[row : row + len(chunk), columns] = chunk
            row += len(chunk)

    def columns(self, columns: slice) -> torch.Tensor:
        """Return a writable view of all rows' ``columns``."""
        return self._table.rows[:, columns]

    def chunk(self, chosen: RowChoice) -> torch.Tensor:
        """Return the chosen rows as float32. A slice of rows that are stored as float32 is a view."""
        return _widened(self._table, self._table.rows[chosen], chosen)

    def close(self) -> None:
        """Release the table. Idempotent."""
        self._table = RowTable(rows=self._table.rows[:0].clone())


class PinnedRows:
    """Features in pinned host memory, which the device copies directly. Does not own them.

    Parameters
    ----------
    table : all rows as stored, in pinned memory, and their scale factors on the device
    """

    def __init__(self, table: RowTable) -> None:
        self.table = table

    def close(self) -> None:
        """Do nothing: the loader owns the features."""


AnyRows: TypeAlias = "Rows | PinnedRows | DeviceRows"


def stream_rows(
    rows: AnyRows,
    device: Device,
    *,
    shape: tuple[int, int],
    rows_per_read: int,
    buffers: Callable[[], Sequence[NDArray[np.uint8]]],
    nodes: IdArray | None = None,
) -> Generator[tuple[int, torch.Tensor]]:
    """Yield consecutive chunks, float32 on ``device``, each with the number of its first row.

    A chunk stays valid until the next is requested. Closing the generator joins the thread that reads ahead.

    Parameters
    ----------
    rows : (N, width), the rows
    device : the computing device
    shape : number of rows to yield, and width
    rows_per_read : rows per chunk
    buffers : returns `num_ahead` results of `Device.host_buffer`, each with room for a chunk; called only if the host
        reads rows for another device
    nodes : (num_rows,) the rows to yield, in any order; None yields all rows in order
    """
    num_rows, width = shape

    def chosen(start: int) -> slice | IdArray:
        part = slice(start, min(start + rows_per_read, num_rows))
        return part if nodes is None else nodes[part]

    starts = range(0, num_rows, rows_per_read)
    if isinstance(rows, DeviceRows):
        for start in starts:
            yield start, rows.chunk(_on(chosen(start), device))
        return
    send: Callable[[slice | IdArray, int], Sent]
    if isinstance(rows, PinnedRows):
        send = _CopyInPlace(rows.table.rows, device)
    else:
        most = min(rows_per_read, num_rows)
        memory = (
            [buffer[: 4 * most * width].view(np.float32).reshape(most, width) for buffer in buffers()]
            if device.is_asynchronous
            else [np.empty((most, width), dtype=np.float32) for _ in range(num_ahead(device))]
        )
        send = _ReadAndCopy(rows, device, memory)
    with closing(send_ahead(map(chosen, starts), send, device, name="infer")) as chunks:
        for start, (x,) in zip(starts, chunks, strict=True):
            if isinstance(rows, PinnedRows):
                yield start, _widened(rows.table, x, _on(chosen(start), device))
            else:
                yield start, x


class _CopyInPlace:
    """Sends stored rows directly from their pinned memory. Called with the rows and an unused slot number."""

    def __init__(self, rows: torch.Tensor, device: Device) -> None:
        self._rows = rows
        self._device = device

    def __call__(self, chosen: slice | IdArray, slot: int) -> Sent:  # noqa: ARG002 - there are no buffers
        return _copied(self._rows[chosen], self._device)


class _ReadAndCopy:
    """Reads a chunk into a buffer and sends it. On the CPU the buffer itself is the chunk.

    Called with the rows and the number of the buffer.
    """

    def __init__(self, rows: Rows, device: Device, memory: Sequence[NDArray[np.float32]]) -> None:
        self._rows = rows
        self._device = device
        self._memory = memory

    def __call__(self, chosen: slice | IdArray, slot: int) -> Sent:
        if isinstance(chosen, slice):
            part = self._memory[slot][: chosen.stop - chosen.start]
            self._rows.read(chosen.start, chosen.stop, part)
        else:
            part = self._memory[slot][: len(chosen)]
            self._rows.take(chosen, part)
        x = torch.from_numpy(part)
        return _copied(x, self._device) if self._device.is_asynchronous else ((x,), self._device.mark())


def _copied(rows: torch.Tensor, device: Device) -> Sent:
    """Begin the copy of host ``rows`` to the device; return the copy and the mark after it."""
    with device.sending():
        x = device.empty(tuple(rows.shape), rows.dtype)
        device.copy(rows, x)
        return (x,), device.mark()


def _on(chosen: slice | IdArray, device: Device) -> RowChoice:
    """Return ``chosen`` as an index of tensors on the device."""
    return chosen if isinstance(chosen, slice) else torch.from_numpy(chosen).to(device.place)


def _widened(table: RowTable, part: torch.Tensor, chosen: RowChoice) -> torch.Tensor:
    """Return ``part``, the ``chosen`` rows of ``table``, as float32."""
    rows = part.to(torch.float32)
    return rows if table.scale is None else rows * table.scale[chosen].unsqueeze(1)
