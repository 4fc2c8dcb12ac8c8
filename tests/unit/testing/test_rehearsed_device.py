"""The rehearsal shows each mistake that CUDA would forgive on most days, and none where there is none."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gloader.device import RowParts, RowTable
from gloader.pipeline.buffers import RowForm
from gloader.testing.rehearsed_device import OverwritingRing, RehearsedDevice, poison

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def _copied(device: RehearsedDevice, rows: Any) -> tuple[torch.Tensor, Any]:
    """Send ``rows``; return where they go, and the mark behind that."""
    with device.sending():
        x = device.empty((4, 3), torch.float32)
        device.copy(torch.from_numpy(rows), x)
    return x, device.mark()


def _host(device: RehearsedDevice) -> Any:
    rows = device.host_buffer(ROWS.nbytes).view(np.float32).reshape(4, 3)
    rows[:] = ROWS
    return rows


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64"])
def test_poison_is_nothing_that_a_batch_holds(dtype: str) -> None:
    values = np.zeros(5, dtype=dtype)
    poison(values)
    if dtype == "int8":
        assert (np.abs(values.astype(int)) > 63).all()
    else:
        assert (~np.isfinite(values) if dtype in ("float16", "float32") else np.abs(values) > 1e9).all()


@pytest.mark.parametrize("waits", [True, False])
def test_host_memory_that_is_written_before_the_copy_is_over(waits: bool) -> None:
    device = RehearsedDevice()
    rows = _host(device)
    x, mark = _copied(device, rows)
    if waits:
        mark.wait()
    rows[:] = -1
    mark.wait()
    assert np.array_equal(x.numpy(), ROWS) == waits


def test_host_memory_that_is_dropped_or_unpinned_before_the_copy_is_over() -> None:
    device = RehearsedDevice(reads_in_place=True)
    x, mark = _copied(device, _host(device))
    mark.wait()
    assert x.isnan().all()
    pinned = device.pin(ROWS.copy())
    assert pinned is not None
    x, mark = _copied(device, pinned.array)
    pinned.close()
    mark.wait()
    assert x.isnan().all()
    assert device.faults == ["memory of (4, 3) torch.float32 was gone"]


def test_pageable_memory_is_read_before_the_call_returns() -> None:
    device = RehearsedDevice()
    rows = ROWS.copy()
    x, mark = _copied(device, rows)
    rows[:] = -1
    mark.wait()
    assert np.array_equal(x.numpy(), ROWS)


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_that_computes_before_the_rows_are_there(waits: bool) -> None:
    device = RehearsedDevice()
    rows = _host(device)
    x, mark = _copied(device, rows)
    seen: list[torch.Tensor] = []
    with device.computing():
        if waits:
            mark.precede([x])
        device.launch(lambda tensor: seen.append(tensor.clone()), x)
        device.mark_computing().wait()
    assert np.array_equal(seen[0].numpy(), ROWS) == waits


@pytest.mark.parametrize("recorded", [True, False])
def test_device_memory_that_is_dropped_before_another_stream_is_done_with_it(recorded: bool) -> None:
    device = RehearsedDevice()
    rows = _host(device)
    x, mark = _copied(device, rows)
    seen: list[torch.Tensor] = []
    with device.computing():
        mark.precede([x] if recorded else [])
        device.launch(lambda tensor: seen.append(tensor.clone()), x)
        del x
    assert device.num_blocks == recorded
    device.finish()
    assert np.array_equal(seen[0].numpy(), ROWS) == recorded
    assert device.num_blocks == 0


def test_what_a_stream_does_itself_comes_before_the_next_user_of_the_memory() -> None:
    device = RehearsedDevice()
    seen: list[torch.Tensor] = []
    with device.computing():
        x = device.empty((4,), torch.float32)
        device.launch(torch.Tensor.zero_, x)
        device.launch(lambda tensor: seen.append(tensor.clone()), x[1:])
        del x
    assert device.num_blocks == 0
    device.finish()
    assert seen[0].tolist() == [0, 0, 0]


def test_a_table_that_is_gone_is_a_fault() -> None:
    device = RehearsedDevice()
    table = RowTable(rows=torch.from_numpy(ROWS.copy()))
    for is_there in (True, False):
        with device.sending():
            (ids,) = device.upload([np.array([2, 1])])
            x = device.empty((2, 3), torch.float32)
            device.gather(ids, RowParts(table=table, slot_of=None, host=None), x)
        if not is_there:
            del table
        device.finish()
        assert np.array_equal(x.numpy(), ROWS[[2, 1]]) == is_there
    assert len(device.faults) == 1


def test_an_error_stays_and_memory_ends() -> None:
    device = RehearsedDevice(num_bytes=100)
    with device.sending(), pytest.raises(torch.cuda.OutOfMemoryError, match="no 104 B left"):
        device.empty((26,), torch.float32)

    def fail() -> None:
        raise ValueError("the kernel's own")

    with device.computing():
        device.launch(fail)
        mark = device.mark_computing()
    with pytest.raises(ValueError, match="the kernel's own"):
        mark.wait()
    with pytest.raises(RuntimeError, match="failed before: ValueError"):
        device.mark().wait()


def test_every_stream_has_its_time_and_waits_for_others() -> None:
    device = RehearsedDevice(send_s=2.0)
    nothing: Callable[[], None] = lambda: None  # noqa: E731 - a kernel
    x, sent = _copied(device, _host(device))
    with device.computing():
        begin = device.mark_computing()
        device.launch(nothing, seconds=1.0)
        sent.precede([x])
        waited = device.mark_computing()
        device.launch(nothing, seconds=3.0)
        end = device.mark_computing()
    assert not begin.is_reached()
    end.wait()
    assert (waited.seconds_since(begin), end.seconds_since(waited)) == (2.0, 3.0)
    device.launch(nothing, seconds=4.0)  # on the host, which came here at 5
    assert device.mark_computing().seconds_since(end) == 4.0


def test_a_ring_overwrites_what_comes_back() -> None:
    ring = OverwritingRing(forms=[RowForm(dim=3)], rows=[4], max_bytes=48, patience_s=0.1)
    x = ring.acquire([4])[0]
    x[:] = ROWS
    memory = np.frombuffer(x.base.base, dtype=np.float32)  # type: ignore[union-attr]
    assert memory.sum() == ROWS.sum()
    del x
    assert np.isnan(memory).all()
    ring.acquire([4])[0]
