"""Small arrays go to the device as one block; large ones are pinned in place: whole pages, each once, and undone."""

import logging

import numpy as np
import pytest
import torch
from forking import in_child

from gloader.device.cuda import pack, pack_offsets, pin_in_place, unpack

PAGE = 4096


def test_every_array_comes_out_as_it_was() -> None:
    arrays = [
        np.arange(5, dtype=np.int64),
        np.arange(3, dtype=np.int32),
        np.empty(0, dtype=np.int32),
        np.linspace(0, 1, 7, dtype=np.float32),
        np.arange(12, dtype=np.float64).reshape(3, 4),
        np.arange(20, dtype=np.int32)[::2],
    ]
    offsets = pack_offsets(arrays)
    assert all(offset % 16 == 0 for offset in offsets)
    block = np.full(offsets[-1], 255, dtype=np.uint8)
    pack(arrays, offsets, block)
    tensors = unpack(torch.from_numpy(block), arrays, offsets)
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.numpy().dtype == array.dtype
        np.testing.assert_array_equal(tensor.numpy(), array)
        array[...] = 0  # a copy: the sampler's arrays may go
    assert tensors[0].tolist() == [0, 1, 2, 3, 4]


def test_nothing_packs_into_nothing() -> None:
    assert pack_offsets([]) == (0,)
    assert unpack(torch.empty(0, dtype=torch.uint8), [], (0,)) == ()


class Runtime:
    """Stands for the CUDA runtime; refuses from the call ``fails_at`` on."""

    def __init__(self, fails_at: int = 1000) -> None:
        self.pinned: dict[int, int] = {}
        self.calls = 0
        self.is_interrupted = False
        self.interrupted_at = 0
        self._fails_at = fails_at

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        self.calls += 1
        if self.calls > self._fails_at:
            return 2
        pages = range(address // PAGE, -(-(address + num_bytes) // PAGE))
        for other, size in self.pinned.items():
            taken = range(other // PAGE, -(-(other + size) // PAGE))
            assert not set(pages) & set(taken), "a page is pinned twice"
        self.pinned[address] = num_bytes
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        del self.pinned[address]
        return 0

    def cudaGetErrorString(self, status: int) -> str:  # noqa: N802 - CUDA's name
        return "out of memory"


@pytest.mark.parametrize("shift", [0, 4, 4092])
@pytest.mark.parametrize("num_bytes", [4, PAGE, 5 * PAGE + 8, 6 * PAGE])
def test_every_byte_is_pinned_once_and_unpinned(shift: int, num_bytes: int) -> None:
    memory = np.zeros(8 * PAGE + num_bytes, dtype=np.uint8)
    start = -memory.ctypes.data % PAGE + shift
    array = memory[start : start + num_bytes].view(np.float32)
    runtime = Runtime()
    pinned = pin_in_place(array, runtime, chunk_bytes=2 * PAGE)
    assert pinned is not None
    assert pinned.array is array
    assert sum(runtime.pinned.values()) == num_bytes
    assert min(runtime.pinned) == array.ctypes.data
    pinned.close()
    pinned.close()
    assert runtime.pinned == {}


def test_what_cannot_be_pinned_whole_is_not_pinned_at_all(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(fails_at=2)
    with caplog.at_level(logging.WARNING):
        assert pin_in_place(np.zeros(10 * PAGE, np.uint8), runtime, chunk_bytes=2 * PAGE) is None
    assert runtime.calls == 3
    assert runtime.pinned == {}
    assert "41 KB of host memory cannot be pinned in place (CUDA error 2: out of memory)" in caplog.text


def test_what_was_pinned_before_an_interrupt_is_unpinned() -> None:
    runtime = Runtime()
    runtime.interrupted_at = 2
    with pytest.raises(KeyboardInterrupt):
        pin_in_place(np.zeros(10 * PAGE, np.uint8), runtime, chunk_bytes=2 * PAGE)
    assert (runtime.calls, runtime.pinned) == (2, {})


def test_an_interrupted_close_can_be_finished() -> None:
    runtime = Runtime()
    pinned = pin_in_place(np.zeros(4 * PAGE, np.uint8), runtime, chunk_bytes=2 * PAGE)
    assert pinned is not None
    runtime.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        pinned.close()
    pinned.close()
    assert runtime.pinned == {}


def test_a_forked_child_leaves_pinned_memory_to_its_parent() -> None:
    runtime = Runtime()
    pinned = pin_in_place(np.zeros(PAGE, np.uint8), runtime)
    assert pinned is not None

    def close() -> None:
        pinned.close()
        assert len(runtime.pinned) == 1

    assert in_child(close) == 0
    pinned.close()
    assert runtime.pinned == {}


def test_nothing_needs_no_pinning() -> None:
    runtime = Runtime()
    assert pin_in_place(np.empty(0, np.float32), runtime) is not None
    assert runtime.calls == 0
