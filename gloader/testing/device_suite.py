"""The conformance suite for compute devices. A test class inherits `DeviceSuite` and makes the device.

A device receives batches: `upload` copies arrays to it, and `gather` puts a batch's feature rows into one tensor. An
asynchronous device, such as a GPU, works later than the call. Work for the device is given inside ``sending()``. A
mark, like CUDA's event, is a point in the given work for which threads can wait.
"""

# ruff: noqa: S101 - tests that are shipped, for devices elsewhere to inherit

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gloader.device.row_table import RowParts, RowTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.device.seam import Device


def make_arrays() -> list[NDArray[Any]]:
    """Return small arrays with every dtype of a batch, among them an empty array and a matrix. Pure."""
    return [
        np.arange(5, dtype=np.int64),
        np.arange(7, dtype=np.int32),
        np.zeros(0, dtype=np.int32),
        np.linspace(-1, 1, 3, dtype=np.float32),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.linspace(0, 1, 4),
    ]


class DeviceSuite:
    """Checks for every `Device`. A test class inherits them and provides `make_device`."""

    def make_device(self) -> Device:
        """Return a device."""
        raise NotImplementedError

    @pytest.fixture
    def device(self) -> Device:
        """The device. Override this if it needs other fixtures."""
        return self.make_device()

    def test_tensors_can_be_made_where_batches_are_delivered(self, device: Device) -> None:
        """`place` is an existing torch device with free memory."""
        assert torch.zeros(2, device=device.place).sum().item() == 0
        assert device.free_bytes() > 0

    @pytest.mark.parametrize("num_bytes", [1, 20, 16388])
    def test_host_buffers_hold_what_is_written(self, device: Device, num_bytes: int) -> None:
        """A buffer is one flat, writable byte array, separate for each call."""
        first, second = device.host_buffer(num_bytes), device.host_buffer(num_bytes)
        for buffer in (first, second):
            assert (buffer.shape, buffer.dtype) == ((num_bytes,), np.dtype(np.uint8))
            assert buffer.flags.c_contiguous
        # The buffers are written in turn: shared memory would show the second value in the first buffer.
        first[:], second[:] = 1, 2
        assert first.sum() == num_bytes

    def test_arrays_arrive_as_they_were(self, device: Device) -> None:
        """Arrays of every dtype and shape in a batch, empty ones included, arrive in the given order."""
        arrays = make_arrays()
        with device.sending():
            tensors = device.upload(arrays)
            mark = device.mark()
        mark.wait()
        assert len(tensors) == len(arrays)
        for tensor, array in zip(tensors, arrays, strict=True):
            assert tensor.device.type == device.place.type
            assert tensor.shape == array.shape
            assert tensor.cpu().numpy().dtype == array.dtype
            assert np.array_equal(tensor.cpu().numpy(), array)

    def test_what_was_sent_outlives_the_array_where_it_is_a_copy(self, device: Device) -> None:
        """An asynchronous device no longer needs the arrays when `upload` returns, because buffers are reused."""
        array = np.arange(9, dtype=np.float32)
        with device.sending():
            (tensor,) = device.upload([array])
            mark = device.mark()
        # On the host the tensor is the array and must follow its changes.
        if device.is_asynchronous:
            array[:] = -1
        mark.wait()
        assert tensor.tolist() == list(range(9))

    @pytest.mark.parametrize("is_copied", [False, True])
    def test_rows_come_as_they_are_stored_and_are_widened(self, device: Device, is_copied: bool) -> None:
        """int8 rows are gathered from a host buffer or from a copy on the device, each times its node's factor."""
        rows = device.host_buffer(6).view(np.int8).reshape(3, 2)
        rows[:] = [[1, -2], [3, 4], [-128, 127]]
        scale = torch.tensor([9.0, 0.5, 9.0, 2.0, 0.25], device=device.place)
        with device.sending():
            (ids,) = device.upload([np.array([3, 1, 4], dtype=np.int32)])
            host = torch.from_numpy(rows)
            if is_copied:
                host = device.empty((3, 2), torch.int8)
                device.copy(torch.from_numpy(rows), host)
            out = device.empty((3, 2), torch.float32)
            parts = RowParts(table=None, slot_of=None, host=RowTable(rows=host, scale=scale))
            device.gather(ids, parts, out)
            mark = device.mark()
        mark.wait()
        assert out.tolist() == [[2.0, -4.0], [1.5, 2.0], [-32.0, 31.75]]

    def test_a_mark_is_reached_after_waiting_for_it(self, device: Device) -> None:
        """`wait` ends, even twice. After `precede`, this thread's computation sees the sent data."""
        with device.sending():
            tensors = device.upload([np.arange(1000, dtype=np.int64)])
            mark = device.mark()
        mark.precede(tensors)
        assert int(tensors[0].sum()) == 499_500
        mark.wait()
        mark.wait()
        assert mark.is_reached()

    def test_another_thread_can_send(self, device: Device) -> None:
        """A separate thread sends the batches of an asynchronous device, one block after another."""
        sums: list[int] = []

        def send() -> None:
            for number in range(3):
                with device.sending():
                    (tensor,) = device.upload([np.full(4, number)])
                    mark = device.mark()
                mark.wait()
                sums.append(int(tensor.sum()))

        thread = threading.Thread(target=send)
        thread.start()
        thread.join()
        assert sums == [0, 4, 8]

    def test_what_was_sampled_can_be_read_behind_a_mark(self, device: Device) -> None:
        """A sampling thread makes the batch's memory, writes to it, and waits for its own mark."""
        with device.sampling():
            made = device.empty((3,), torch.int64)
            made.fill_(7)
            device.mark_computing().wait()
        assert made.tolist() == [7, 7, 7]

    def test_a_measured_step_is_run_once(self, device: Device) -> None:
        """`most_bytes_of` runs the step, raises its error, and never returns a negative number."""
        steps: list[int] = []
        assert device.most_bytes_of(lambda: steps.append(1)) >= 0
        assert steps == [1]
        with pytest.raises(MemoryError, match="the step's own"):
            device.most_bytes_of(self._fail)

    def test_pinned_memory_is_the_array_itself(self, device: Device) -> None:
        """The device reads ``array`` in place until `close`, or `pin` returns None."""
        array = np.arange(12, dtype=np.float32).reshape(4, 3)
        pinned = device.pin(array)
        if pinned is not None:
            assert np.shares_memory(pinned.array, array)
            assert np.array_equal(pinned.array, array)
            pinned.close()
            pinned.close()

    @staticmethod
    def _fail() -> None:
        """Raise an error as a step could."""
        raise MemoryError("the step's own")
