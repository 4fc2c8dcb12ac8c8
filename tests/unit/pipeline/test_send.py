"""The verb "send": two copies under way, the host's memory back as soon as it was read, errors in their place."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gloader.device import CpuDevice, DeviceTier
from gloader.errors import ChannelClosedError
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.seeds import SeedLabels
from gloader.pipeline.send import BATCHES_AHEAD, Send, SendFeed, SentBatch, Transfer
from gloader.pipeline.threads import Channel, Failures, Pipeline, stage_thread
from gloader.testing.rehearsed_device import OverwritingRing, RehearsedDevice
from gloader.types import BatchId, SampledBatch

from .items import DIM, FEATURES, ORDER, instruments, seconds_of

LABELS = np.arange(100, 120)


def _ring(device: Any, num_buffers: int) -> BufferRing:
    return OverwritingRing(
        forms=[RowForm(dim=DIM)],
        rows=[4],
        max_bytes=num_buffers * 4 * 4 * DIM,
        patience_s=0.1,
        allocate=device.host_buffer,
    )


def _host(ring: BufferRing, index: int) -> HostBatch:
    x = ring.acquire([4])[0]
    x[:] = FEATURES[index : index + 4]
    sampled = SampledBatch(
        id=BatchId(epoch=2, index=index), nodes=np.arange(index, index + 4), num_seeds=4, blocks=()
    )
    degree = np.ones(4, dtype=np.float32)
    return HostBatch(sampled=sampled, x=(x,), src_degree=degree, superbatch=5, ends_superbatch=True)


def _send(device: Any, found: Any = None) -> Send:
    return Send(
        Transfer([DeviceTier(device=device)]),
        SeedLabels(ORDER, LABELS),
        found or instruments(),
    )


def _feed(send: Send) -> tuple[Channel[HostBatch], SendFeed]:
    channel: Channel[HostBatch] = Channel(3)
    return channel, SendFeed(channel, send)


@pytest.mark.reliability("D13")
def test_a_batch_comes_with_its_labels_and_leaves_its_buffer_before_the_next_is_waited_for() -> None:
    device, found = RehearsedDevice(), instruments()
    ring, send = _ring(device, 1), _send(device, found)
    gathered, feed = _feed(send)
    gathered.put(_host(ring, 1))
    sent = send.process(feed.get())
    gathered.close()
    with pytest.raises(ChannelClosedError):
        feed.get()
    ring.note_wait(is_waiting=True)
    assert ring.acquire([4])[0].shape == (4, DIM)  # the only one, while the stream is over
    ready = sent.receive()
    np.testing.assert_array_equal(ready.x.numpy(), FEATURES[1:5])
    positions = ORDER.batch_seeds(ORDER.epoch_positions(2), 1)
    np.testing.assert_array_equal(ready.y.numpy(), LABELS[positions])
    assert (sent.superbatch, sent.ends_superbatch) == (5, True)
    assert seconds_of(found, "transfer", epoch=2) > 0


def test_nobody_waits_for_a_copy_while_the_next_batch_is_there() -> None:
    device = RehearsedDevice()
    ring, send = _ring(device, 3), _send(device)
    gathered, feed = _feed(send)
    send.pace.begun(device.mark_computing())  # the loop has the first
    for index in range(3):
        gathered.put(_host(ring, index))
    sent: list[SentBatch] = []
    for under_way in (1, 1, 1):
        sent.append(send.process(feed.get()))
        assert send._transfer.num_sending == under_way
        # The last one's copy was not waited for, and the one before it only when this one was asked for.
        assert [one.mark.is_reached() for one in sent[-2:]] == [True, False][-len(sent) :]
    for index, one in enumerate(sent):
        np.testing.assert_array_equal(one.receive().x.numpy(), FEATURES[index : index + 4])


def test_nothing_is_held_while_the_loop_is_waited_for() -> None:
    device = RehearsedDevice()
    ring, send = _ring(device, 4), _send(device)
    for index in range(BATCHES_AHEAD):
        send.process(_host(ring, index))
    assert send._transfer.num_sending == 1
    waited: list[int] = []

    def come_back() -> None:
        waited.append(send._transfer.num_sending)
        send.pace.begun(device.mark_computing())

    send.pace._changed.when = lambda ready, act: (come_back(), act())[1]  # type: ignore[method-assign]
    send.process(_host(ring, 3))
    assert waited == [0]


def test_a_device_that_is_the_host_waits_for_nobody() -> None:
    send = _send(CpuDevice())
    for index in range(6):  # more than may be ahead: nobody computes meanwhile
        send.process(_host(_ring(RehearsedDevice(), 1), index))
    assert send._transfer.num_sending == 0


@pytest.mark.reliability("D2")
def test_an_error_of_the_next_batch_leaves_the_one_before_it_whole() -> None:
    device = RehearsedDevice()
    ring, send = _ring(device, 2), _send(device)
    gathered, feed = _feed(send)
    sent: Channel[SentBatch] = Channel(3)
    gathered.put(_host(ring, 0))
    broken = _host(ring, 1)
    object.__setattr__(broken, "x", "no array")
    gathered.put(broken)
    failures = Failures(lambda error: None)
    pipeline = Pipeline(
        [stage_thread(send, feed, sent, failures)],
        cancels=[gathered, send.pace, sent],
        failures=failures,
        on_joined=send.close,
    )
    pipeline.start()
    np.testing.assert_array_equal(sent.get().receive().x.numpy(), FEATURES[:4])
    with pytest.raises(TypeError) as caught:
        sent.get()
    assert caught.value.__notes__ == ["in stage transfer, epoch 2, batch 1"]
    assert pipeline.close()


@pytest.mark.reliability("D13")
def test_the_end_waits_for_what_is_under_way() -> None:
    device = RehearsedDevice()
    ring, send = _ring(device, 1), _send(device)
    sent = send.process(_host(ring, 0))
    send.close()
    ring.note_wait(is_waiting=True)
    ring.acquire([4])[0][:] = -1
    np.testing.assert_array_equal(sent.receive().x.numpy(), FEATURES[:4])
    send.close()


def _fail(*_: object, text: str) -> None:
    raise RuntimeError(text)


def test_a_device_that_failed_is_waited_for_no_longer() -> None:
    device = RehearsedDevice()
    ring, send = _ring(device, 1), _send(device)
    send.process(_host(ring, 0))
    with device.sending():
        device.launch(partial(_fail, text="CUDA error: an illegal memory access was encountered"))
    mark = device.mark()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        mark.wait()
    send.close()
    ring.acquire([4])[0]


def test_a_batch_that_does_not_fit_the_device_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    device = RehearsedDevice()
    send = _send(device)

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device, "empty", refuse)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        send.process(_host(_ring(device, 1), 0))
    assert any("lower batch_size" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("text", ["CUDA error: device-side assert triggered", "something else"])
def test_an_error_of_cuda_may_be_the_models(text: str) -> None:
    device = RehearsedDevice()
    send = _send(device)
    with device.computing():
        device.launch(partial(_fail, text=text))
        send.pace.begun(device.mark_computing())
    with pytest.raises(RuntimeError, match=text) as caught:
        for index in range(1 + BATCHES_AHEAD):
            send.process(_host(_ring(device, 1), index))
    told = [note for note in getattr(caught.value, "__notes__", []) if "CUDA_LAUNCH_BLOCKING=1" in note]
    assert len(told) == text.startswith("CUDA")


def test_a_wait_for_the_loop_ends_with_the_run() -> None:
    device = RehearsedDevice()
    ring, send = _ring(device, 4), _send(device)
    for index in range(BATCHES_AHEAD):
        send.process(_host(ring, index))
    send.pace.cancel()
    with pytest.raises(ChannelClosedError, match="the run is over"):
        send.process(_host(ring, 3))
