"""A loop that only launches: how many batches are on the device, how steps are timed, and how runs end under way."""

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gloader.device import Device
from gloader.pipeline.send import BATCHES_AHEAD
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.types import ReadyBatch

from .conftest import NUM_NODES, Written
from .test_device_tier import MAP, ROW
from .test_loader import _digest, _loader, _stream

BLOCKS = 2  # of device memory in a batch: x, and all the rest
PLACES: list[dict[str, Any]] = [
    {"features": "ram", "device_cache": 0},
    {"features": "ssd", "cache": 60 * ROW, "device_cache": MAP + 150 * ROW},
    {"features": "ram", "device_cache": NUM_NODES * ROW},
]


def _note(found: list[str], batch: ReadyBatch) -> None:
    found.append(_digest(batch))


@pytest.mark.reliability("D13")
@pytest.mark.parametrize("place", PLACES)
def test_no_more_batches_are_on_the_device_than_are_planned_for(
    tiny: Written, on_device: Callable[[Device], None], place: dict[str, Any]
) -> None:
    with _loader(tiny, features="ram") as loader:
        expected = _stream(loader)
    device = RehearsedDevice()
    on_device(device)
    found: list[str] = []
    with _loader(tiny, **place) as loader, device.computing():
        for _ in range(2):
            for batch in loader:
                device.launch(partial(_note, found), batch, seconds=1.0)
                del batch
            # Between epochs too: an evaluation has room.
            assert device.num_blocks <= BLOCKS * (1 + BATCHES_AHEAD)
        assert loader.stats.stage_seconds["compute"] == len(loader)
    device.finish()
    assert found == expected
    assert device.most_blocks <= BLOCKS * (1 + BATCHES_AHEAD)
    assert (device.num_blocks, device.faults) == (0, [])


def test_a_loop_that_only_launches_computes_for_as_long_as_the_device_does(
    tiny: Written, on_device: Callable[[Device], None]
) -> None:
    device = RehearsedDevice(send_s=0.25)  # of which a batch takes two: its small arrays, and its rows
    on_device(device)
    with (
        _loader(tiny, device_cache=0, features="ssd", cache=60 * ROW, superbatch=2) as loader,
        device.computing(),
    ):
        for _ in range(2):
            for batch in loader:
                device.launch(lambda: None, seconds=2.0)
                del batch
        seconds = loader.stats.stage_seconds
        assert (seconds["compute"], seconds["wait"]) == (2.0 * len(loader), 0.0)
        assert "limited by the model: loading costs nothing" in loader.bottleneck()
        measured = [report.measured_step_s for report in loader.reports]
    # The first superbatch is one batch, whose copies have nothing to hide behind.
    assert measured[0] == 2.5
    assert set(measured[1:]) == {2.0}


def test_copies_that_take_longer_than_steps_are_what_the_device_waits_for(
    tiny: Written, on_device: Callable[[Device], None]
) -> None:
    device = RehearsedDevice(send_s=1.0)
    on_device(device)
    with _loader(tiny, device_cache=0, features="ram") as loader, device.computing():
        for batch in loader:
            device.launch(lambda: None, seconds=0.5)
            del batch
        seconds, num_batches = loader.stats.stage_seconds, len(loader)
        assert seconds["compute"] == 0.5 * num_batches
        # One copy after another, 2 s each, without a pause: the link is never idle.
        assert seconds["wait"] == pytest.approx(2.0 + 1.5 * (num_batches - 1))


@pytest.mark.parametrize("is_late", [True, False])
def test_a_loop_may_keep_every_batch(
    tiny: Written, on_device: Callable[[Device], None], is_late: bool
) -> None:
    with _loader(tiny, features="ram") as loader:
        expected = _stream(loader, 1)
    device = RehearsedDevice()
    on_device(device)
    with _loader(tiny, device_cache=0, features="ssd", cache=60 * ROW) as loader:
        if is_late:
            with device.computing():
                kept = list(loader)
        else:
            kept = list(loader)
    device.finish()
    assert [_digest(batch) for batch in kept] == expected
    assert device.num_blocks == BLOCKS * len(kept)


@pytest.mark.reliability("J5")
def test_threads_that_share_an_iterator_take_every_batch(
    tiny: Written, on_device: Callable[[Device], None]
) -> None:
    with _loader(tiny, features="ram", batch_size=4) as loader:
        expected = _stream(loader, 1)
    device = RehearsedDevice()
    on_device(device)
    found: list[str] = []
    with _loader(tiny, device_cache=0, features="ram", batch_size=4) as loader:
        batches = iter(loader)

        def take() -> None:
            with device.computing():
                for batch in batches:
                    device.launch(partial(_note, found), batch)

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    device.finish()
    assert sorted(found) == sorted(expected)


@pytest.mark.reliability("D13")
@pytest.mark.parametrize("reads_in_place", [True, False])
@pytest.mark.parametrize("how", ["break", "close", "drop"])
def test_a_run_that_is_left_waits_for_what_is_under_way(
    tiny: Written, on_device: Callable[[Device], None], reads_in_place: bool, how: str
) -> None:
    with _loader(tiny, features="ram") as loader:
        expected, num_batches = _stream(loader), len(loader)
    device = RehearsedDevice(reads_in_place=reads_in_place)
    on_device(device)
    found: list[str] = []
    loader = _loader(tiny, features="ram", device_cache=MAP + 100 * ROW)
    assert device.num_pinned == reads_in_place
    with device.computing():
        batches = iter(loader)
        device.launch(partial(_note, found), next(batches))
        if how == "close":
            loader.close()
        elif how == "drop":
            del batches, loader
            gc.collect()
        else:
            del batches
            found_again: list[str] = []
            for batch in loader:  # a new run, in the same buffers
                device.launch(partial(_note, found_again), batch)
                del batch
            loader.close()
    # Only now does anything run that nobody had to wait for: it must find its memory, and that of the table.
    device.finish()
    assert found == expected[:1]
    assert (device.faults, device.num_blocks, device.num_pinned) == ([], 0, 0)
    if how == "break":
        assert found_again == expected[num_batches:]
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []


@pytest.mark.reliability("D2")
def test_a_batch_is_whole_whose_successor_cannot_be_sent(
    tiny: Written, on_device: Callable[[Device], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with _loader(tiny, features="ram") as loader:
        expected = _stream(loader, 1)
    device = RehearsedDevice(reads_in_place=True)
    on_device(device)
    gather, calls = device.gather, iter(range(100))

    def fail(*arguments: Any) -> None:
        if next(calls) == 2:
            raise OSError("the third cannot be sent")
        gather(*arguments)

    monkeypatch.setattr(device, "gather", fail)
    found: list[str] = []
    loader = _loader(tiny, features="ram", device_cache=MAP + 100 * ROW)

    def train() -> None:
        with device.computing():
            for batch in loader:
                device.launch(partial(_note, found), batch)

    with pytest.raises(OSError, match="the third"):
        train()
    loader.close()
    device.finish()
    assert found == expected[:2]
    assert (device.faults, device.num_pinned) == ([], 0)


@pytest.mark.reliability("D2")
def test_an_error_of_the_models_kernels_ends_the_loop_and_leaves_nothing(
    tiny: Written, on_device: Callable[[Device], None]
) -> None:
    device = RehearsedDevice()
    on_device(device)
    loader = _loader(tiny, device_cache=0, features="ssd", cache=60 * ROW)

    def broken() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def train() -> None:
        with device.computing():
            for _ in loader:
                device.launch(broken)

    with pytest.raises(RuntimeError, match=r"device-side assert|failed before") as caught:
        train()
    assert any("CUDA_LAUNCH_BLOCKING=1" in note for note in caught.value.__notes__)
    loader.close()
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []


def test_a_held_batch_is_not_overwritten(tiny: Written, on_device: Callable[[Device], None]) -> None:
    device = RehearsedDevice()
    on_device(device)
    seen: list[torch.Tensor] = []
    with _loader(tiny, device_cache=0, features="ram") as loader, device.computing():
        first = next(batches := iter(loader))
        for batch in batches:
            del batch
        device.launch(lambda x: seen.append(x.clone()), first.x)
        device.mark_computing().wait()
        np.testing.assert_array_equal(seen[0].numpy(), tiny.features[first.nodes])
