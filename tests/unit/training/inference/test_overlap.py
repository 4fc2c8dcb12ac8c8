"""Sent-ahead data is complete when it is used, and no buffer is reused before its use."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from gloader.device import CpuDevice
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training.inference.layer_rows import InputRows
from gloader.training.inference.row_stream import AHEAD, fetch_behind, send_ahead, stream_rows

ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


class _Matrix:
    def read_into(self, rows, out) -> None:
        out[:] = ROWS[rows]


def _chunks(device):
    buffers = [device.host_buffer(4 * 2 * 3) for _ in range(AHEAD)]
    return stream_rows(
        InputRows(_Matrix()), device, shape=ROWS.shape, rows_per_read=2, buffers=lambda: buffers
    )


def test_a_stream_that_only_launches_finds_every_chunk_as_it_was_read() -> None:
    """Nothing runs before somebody waits: a buffer that is filled too early, or dropped, shows in the copies."""
    device = RehearsedDevice()
    out = torch.zeros(20, 3)
    with device.computing(), closing(_chunks(device)) as chunks:
        for start, x in chunks:
            device.launch(lambda to, x, first=start: to[first : first + 2].copy_(x), out, x)
    device.finish()
    assert np.array_equal(out.numpy(), ROWS)
    assert device.faults == []
    # The device is never further behind than its buffers: memory of no more chunks is held.
    assert device.most_bytes <= (AHEAD + 1) * 32


def test_chunks_are_sent_beside_the_computation() -> None:
    """A copy that is given to the sending stream has not run when it was given."""
    device = RehearsedDevice()
    left = []

    class Noting:
        def __getattr__(self, name: str):
            return getattr(device, name)

        def copy(self, rows, out) -> None:
            device.copy(rows, out)
            left.append(not torch.equal(rows, out))

    with closing(_chunks(Noting())) as chunks:
        assert all(torch.equal(x, torch.from_numpy(ROWS[start : start + 2])) for start, x in chunks)
    assert left == 10 * [True]


def test_a_stream_that_is_left_has_read_what_was_sent_before_its_buffers_go() -> None:
    device = RehearsedDevice()
    with closing(_chunks(device)) as chunks:
        next(chunks)
    device.finish()
    assert device.faults == []
    assert [thread.name for thread in threading.enumerate() if "infer" in thread.name] == []


@pytest.mark.parametrize("device", [CpuDevice(), RehearsedDevice()], ids=["cpu", "late"])
def test_results_come_back_in_order_while_the_next_is_computed(device) -> None:
    events: list[str] = []
    buffers = [device.host_buffer(4 * 6) for _ in range(2)]

    def computed():
        for number in range(3):
            events.append(f"computed {number}")
            yield torch.full((2, 3 - number), float(number))

    for number, chunk in enumerate(fetch_behind(computed(), device, lambda: buffers)):
        events.append(f"used {number}")
        assert np.array_equal(chunk, np.full((2, 3 - number), number, dtype=np.float32))
    ahead = ["computed 0", "computed 1", "used 0", "computed 2", "used 1", "used 2"]
    assert events == (ahead if device.is_asynchronous else sorted(events, key=lambda event: event[-1]))


def test_an_error_of_the_sender_reaches_the_caller_and_ends_the_thread() -> None:
    def send(item: int, slot: int):
        if item == 3:
            raise OSError("the disk is gone")
        return (torch.zeros(1),), device.mark()

    device = RehearsedDevice()
    got = []
    with (
        closing(send_ahead(range(9), send, device, name="infer")) as sent,
        pytest.raises(OSError, match="gone"),
    ):
        got.extend(sent)
    assert len(got) <= 3
    assert [thread.name for thread in threading.enumerate() if "infer" in thread.name] == []
