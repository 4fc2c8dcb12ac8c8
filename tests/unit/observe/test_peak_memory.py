"""The anonymous memory that this process takes."""

import mmap
import time

import numpy as np
import pytest

from gloader.observe.peak_memory import PeakMemory, anonymous_bytes

MB = 1_000_000


@pytest.mark.reliability("J11")
def test_a_peak_that_is_over_is_remembered() -> None:
    with PeakMemory() as peak:
        before = anonymous_bytes()
        # Mapped by itself, so that it is gone when it is closed, whatever the heap keeps.
        block = mmap.mmap(-1, 64 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        np.frombuffer(block, np.uint8)[:] = 1
        deadline = time.monotonic() + 5
        while peak._most < before + 60 * MB and time.monotonic() < deadline:  # the thread looks, not this one
            time.sleep(0.01)
        seen = peak._most
        block.close()
    assert seen >= before + 60 * MB
    assert anonymous_bytes() < seen
    assert peak.peak_bytes == seen - peak._bare
