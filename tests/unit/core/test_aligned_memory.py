"""Memory of buffers: where it begins, and that it goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gloader.core.aligned_memory import mapped_bytes, warm_bytes

MEGABYTE = 10**6


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 4097])
def test_memory_begins_on_a_page_and_has_the_size_that_was_asked_for(num_bytes: int) -> None:
    assert warm_bytes(num_bytes).shape == (num_bytes,)
    assert mapped_bytes(num_bytes).nbytes == max(-(-num_bytes // 4096), 1) * 4096
    assert mapped_bytes(num_bytes).ctypes.data % 4096 == 0


_THREADS = """
import threading
from pathlib import Path
import numpy as np
from gloader.core.aligned_memory import warm_bytes

def resident():
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

# Mapped, and freed: from here on the C library serves blocks of up to this size from an arena of the thread.
np.ones(30 * 10**6, np.uint8)
left, grown = [], []

def make():
    buffers = [warm_bytes(10 * 10**6) for _ in range(4)]
    left.append(np.ones(10**6, np.uint8))  # above them, so that the arena cannot shrink
    grown.append(resident() - before)
    buffers.clear()

before = resident()
for _ in range(2):
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
print(grown[0], resident() - before)
"""


def test_buffers_that_threads_made_go_back_to_the_system() -> None:
    """The C library keeps blocks of up to 32 MB in an arena of the thread once a large one was freed.

    In a process of its own: what an arena kept of other tests would be counted here.
    """
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True)
    held, left = (int(number) for number in done.stdout.split())
    assert held > 30 * MEGABYTE, "the buffers were touched"
    assert left < 20 * MEGABYTE
