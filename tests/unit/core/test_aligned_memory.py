"""Memory of buffers: where it begins, and that it goes back to the system."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from gloader.core.aligned_memory import mapped_bytes, warm_bytes

MEGABYTE = 10**6


def _resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 4097])
def test_memory_begins_on_a_page_and_has_the_size_that_was_asked_for(num_bytes: int) -> None:
    assert warm_bytes(num_bytes).shape == (num_bytes,)
    assert mapped_bytes(num_bytes).nbytes == max(-(-num_bytes // 4096), 1) * 4096
    assert mapped_bytes(num_bytes).ctypes.data % 4096 == 0


def test_buffers_that_threads_made_go_back_to_the_system() -> None:
    """The C library keeps blocks of up to 32 MB in an arena of the thread once a large one was freed."""
    left: list[np.ndarray] = []

    def make() -> None:
        np.ones(30 * MEGABYTE, np.uint8)  # freed: from here on blocks of this size come from the arena
        buffers = [warm_bytes(10 * MEGABYTE) for _ in range(4)]
        left.append(np.ones(MEGABYTE, np.uint8))  # above them, so that the arena cannot shrink
        buffers.clear()

    before = _resident_bytes()
    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _resident_bytes() - before < 20 * MEGABYTE
