"""Checks that the device waits in the right places, by sending and reading late, through the seam of devices alone."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
import torch
from gpu_findings import GpuFinding, not_checked, required
from gpu_place import burn, device_of, factor_of, sync

from gloader.device import RowParts, RowTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_sizes import Clock, Sizes

    from gloader.device import Device, Mark

DIM: Final = 128
_NUM_IDS: Final = 8  # sets of ids that take turns
_PATIENCE_S: Final = 60.0  # for the other thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What is sent by the seam of devices alone, and which side is late."""

    is_staged: bool  # from a buffer that is written again and again; else from memory that is read in place
    burn: int  # multiplications in front of each batch, on the late side
    is_sender_late: bool


def check_race(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Send batches to a late consumer, and late batches to a consumer; then without what holds them together."""
    late = (("the sender", True), ("the consumer", False))
    for (who, is_late), is_staged in clock.each((side, kind) for side in late for kind in (True, False)):
        what = f"{'staged' if is_staged else 'in place'}, {who} late"
        stream = Stream(is_staged=is_staged, burn=4, is_sender_late=is_late)
        yield wrong_batches(f"wrong batches, {what}", *_wrong_of_stream(sizes, stream, clock))
    for what, is_late, owner in clock.each(
        (
            ("record_stream", False, torch.Tensor),
            ("wait_event", True, torch.cuda.Stream),
        ),
        lambda control: f"without {control[0]}",
    ):
        name = f"wrong batches, control without {what}"
        must_be = "more than 0, or the others prove little"
        if not sizes.is_gpu:
            yield not_checked(name, must_be=must_be)
            continue
        stream = Stream(is_staged=True, burn=8, is_sender_late=is_late)
        with mock.patch.object(owner, what, return_value=None):
            wrong, num = _wrong_of_stream(sizes, stream, clock)
        if wrong == 0 and num < sizes.streamed:
            yield not_checked(name, f"there was time for {num} alone", must_be=must_be)
        else:
            yield required(name, wrong > 0, must_be, note=f"{wrong} of {num}", predicted="so")


def wrong_batches(name: str, wrong: int, num: int) -> GpuFinding:
    """Return that none was wrong, or how many were.

    Parameters
    ----------
    name : of the stream
    wrong : of them
    num : batches that there was time for
    """
    if num == 0:
        return not_checked(name, "no time was left, or memory cannot be pinned")
    return required(name, wrong == 0, "0", note=f"{wrong} of {num}", predicted="0")


def _wrong_of_stream(sizes: Sizes, stream: Stream, clock: Clock) -> tuple[int, int]:
    """Send from a thread, and return how many batches were wrong, of how many."""
    device = device_of(sizes)
    rng = np.random.default_rng(0)
    rows = max(sizes.batch_rows // 10, 1)
    num_nodes = 5 * rows
    features = rng.standard_normal((num_nodes, DIM), dtype=np.float32)
    ids = [rng.permutation(num_nodes)[:rows] for _ in range(_NUM_IDS)]
    pinned = None if stream.is_staged else device.pin(features)
    if not stream.is_staged and pinned is None:
        return 0, 0
    bring = _way(device, features, rows, stream)
    sent: queue.Queue[tuple[Mark, torch.Tensor, torch.Tensor] | BaseException] = queue.Queue(1)
    is_over = threading.Event()

    def send() -> None:
        marks: list[Mark] = []
        try:
            factor = factor_of(sizes)
            for number in range(sizes.streamed):
                if len(marks) > 1:  # two buffers: the older one may be written again
                    marks.pop(0).wait()
                with device.sending():
                    burn(factor, stream.burn if stream.is_sender_late else 0)
                    (nodes,) = device.upload([ids[number % _NUM_IDS]])
                    x = bring(number, ids[number % _NUM_IDS], nodes)
                    marks.append(device.mark())
                sent.put((marks[-1], x, nodes), timeout=_PATIENCE_S)
                del x, nodes
                if is_over.is_set() or clock.left_s == 0:
                    break
            sent.put(StopIteration(), timeout=_PATIENCE_S)
            for mark in marks:
                mark.wait()
        except BaseException as error:  # noqa: BLE001 - raised by the consumer
            if not is_over.is_set():
                sent.put(error)

    thread = threading.Thread(target=send, name="gpu-check-send", daemon=True)
    thread.start()
    try:
        sums = _consume(sizes, sent, 0 if stream.is_sender_late else stream.burn)
    finally:
        is_over.set()
        while thread.is_alive():  # it may wait for the consumer, which has given up
            with suppress(queue.Empty):
                sent.get(timeout=0.05)
        sync(sizes)
        if pinned is not None:
            pinned.close()
    wanted = [int(features[each].view(np.int32).sum(dtype=np.int64)) for each in ids]
    return sum(int(found) != wanted[k % _NUM_IDS] for k, found in enumerate(sums)), len(sums)


def _way(
    device: Device, features: Any, rows: int, stream: Stream
) -> Callable[[int, Any, torch.Tensor], torch.Tensor]:
    """Return what brings a batch, of its number, its ids on the host and on the device."""
    host = RowTable(rows=torch.from_numpy(features))
    in_place = RowParts(table=None, slot_of=None, host=host, is_host_by_id=True)
    buffers = [device.host_buffer(rows * 4 * DIM).view(np.float32).reshape(rows, DIM) for _ in range(2)]

    def bring(number: int, ids: Any, nodes: torch.Tensor) -> torch.Tensor:
        x = device.empty((rows, DIM), torch.float32)
        if stream.is_staged:
            np.take(features, ids, axis=0, out=buffers[number % 2])
            device.copy(torch.from_numpy(buffers[number % 2]), x)
        else:
            device.gather(nodes, in_place, x)
        return x

    return bring


def _consume(sizes: Sizes, sent: queue.Queue[Any], times: int) -> list[int]:
    """Add up the bits of each batch behind a slow computation, and never wait for the device meanwhile."""
    factor, sums = factor_of(sizes), []
    while True:
        item = sent.get(timeout=_PATIENCE_S)
        if isinstance(item, StopIteration):
            break
        if isinstance(item, BaseException):
            raise item
        mark, x, nodes = item
        mark.precede((x, nodes))
        burn(factor, times)
        sums.append(x.view(torch.int32).sum(dtype=torch.int64))
        del item, mark, x, nodes  # the allocator has the memory back while the device has yet to read it
    return [int(total) for total in sums]
