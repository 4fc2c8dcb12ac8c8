"""Rows of a matrix in order, on the device that computes: held there, copied in place, or read and sent ahead."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from gloader.device import RowTable
from gloader.training.inference.overlap import num_ahead, send_ahead

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from numpy.typing import NDArray

    from gloader.device import Device
    from gloader.training.inference.activations import Rows
    from gloader.training.inference.overlap import Sent


class DeviceRows:
    """Rows on the device: its features, or activations.

    Parameters
    ----------
    table : on the device; row i is that of node i
    """

    def __init__(self, table: RowTable) -> None:
        self._table = table

    @classmethod
    def blank(cls, *, num_rows: int, width: int, place: torch.device) -> DeviceRows:
        """Return rows to be written."""
        return cls(RowTable(rows=torch.empty(num_rows, width, device=place)))

    def write_slab(self, columns: slice, chunks: Iterable[torch.Tensor]) -> None:
        """Write all rows of ``columns`` from consecutive ``chunks``."""
        row = 0
        for chunk in chunks:
            self._table.rows[row : row + len(chunk), columns] = chunk
            row += len(chunk)

    def columns(self, columns: slice) -> torch.Tensor:
        """Return ``columns`` of all rows: a view, to be written."""
        return self._table.rows[:, columns]

    def chunk(self, start: int, stop: int) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` as float32; a view where they are stored so."""
        return _widened(self._table, self._table.rows[start:stop], start)

    def close(self) -> None:
        """Let go of the table. Idempotent."""
        self._table = RowTable(rows=self._table.rows[:0].clone())


class PinnedRows:
    """The features in host memory that the device copies from in place. Does not own them.

    Parameters
    ----------
    table : all rows as they are stored, in pinned memory, and their factors on the device
    """

    def __init__(self, table: RowTable) -> None:
        self.table = table

    def close(self) -> None:
        """Do nothing: the features are the loader's."""


AnyRows: TypeAlias = "Rows | PinnedRows | DeviceRows"


def stream_rows(
    rows: AnyRows,
    device: Device,
    *,
    shape: tuple[int, int],
    rows_per_read: int,
    buffers: Callable[[], Sequence[NDArray[np.uint8]]],
) -> Generator[tuple[int, torch.Tensor]]:
    """Yield the first row of consecutive chunks and the chunks, float32 on ``device``.

    Each is good until the next is asked for. Close the generator: it joins the thread that reads ahead.

    Parameters
    ----------
    rows : (N, width)
    device : computes
    shape : N and width
    rows_per_read : of a chunk
    buffers : returns `num_ahead` of `Device.host_buffer`, each with room for a chunk; called where rows are read on the
        host to be copied
    """
    num_rows, width = shape
    starts = range(0, num_rows, rows_per_read)
    if isinstance(rows, DeviceRows):
        for start in starts:
            yield start, rows.chunk(start, min(start + rows_per_read, num_rows))
        return
    send: Callable[[int, int], Sent]
    if isinstance(rows, PinnedRows):
        send = _CopyInPlace(rows.table.rows, device, rows_per_read)
    else:
        most = min(rows_per_read, num_rows)
        memory = (
            [buffer[: 4 * most * width].view(np.float32).reshape(most, width) for buffer in buffers()]
            if device.is_asynchronous
            else [np.empty((most, width), dtype=np.float32) for _ in range(num_ahead(device))]
        )
        send = _ReadAndCopy(rows, device, memory, num_rows)
    with closing(send_ahead(starts, send, device, name="infer")) as chunks:
        for start, (x,) in zip(starts, chunks, strict=True):
            yield start, _widened(rows.table, x, start) if isinstance(rows, PinnedRows) else x


class _CopyInPlace:
    """Sends a chunk from where it is, as it is stored."""

    def __init__(self, rows: torch.Tensor, device: Device, rows_per_read: int) -> None:
        self._rows = rows
        self._device = device
        self._rows_per_read = rows_per_read

    def __call__(self, start: int, slot: int) -> Sent:  # noqa: ARG002 - there are no buffers
        part = self._rows[start : start + self._rows_per_read]
        return _copied(part, self._device)


class _ReadAndCopy:
    """Reads a chunk into a buffer and sends it; on the CPU the buffer itself is computed on."""

    def __init__(
        self, rows: Rows, device: Device, memory: Sequence[NDArray[np.float32]], num_rows: int
    ) -> None:
        self._rows = rows
        self._device = device
        self._memory = memory
        self._num_rows = num_rows

    def __call__(self, start: int, slot: int) -> Sent:
        part = self._memory[slot][: self._num_rows - start]
        self._rows.read(start, start + len(part), part)
        x = torch.from_numpy(part)
        return _copied(x, self._device) if self._device.is_asynchronous else ((x,), self._device.mark())


def _copied(rows: torch.Tensor, device: Device) -> Sent:
    with device.sending():
        x = device.empty(tuple(rows.shape), rows.dtype)
        device.copy(rows, x)
        return (x,), device.mark()


def _widened(table: RowTable, part: torch.Tensor, start: int) -> torch.Tensor:
    """Return ``part``, the rows of ``table`` from ``start`` on, as float32."""
    rows = part.to(torch.float32)
    return rows if table.scale is None else rows * table.scale[start : start + len(part), None]
