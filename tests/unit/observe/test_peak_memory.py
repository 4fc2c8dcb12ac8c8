"""The anonymous memory that this process takes."""

import time

import numpy as np
import pytest

from gloader.observe.peak_memory import PeakMemory, anonymous_bytes

MB = 1_000_000


@pytest.mark.reliability("J11")
def test_a_peak_that_is_over_is_remembered() -> None:
    with PeakMemory() as peak:
        before = anonymous_bytes()
        block = np.ones(64 * MB, np.uint8)
        deadline = time.monotonic() + 5
        while peak._most < before + 60 * MB and time.monotonic() < deadline:  # the thread looks, not this one
            time.sleep(0.01)
        seen = peak._most
        del block
    assert seen >= before + 60 * MB
    assert anonymous_bytes() < seen
    assert peak.peak_bytes == seen - peak._bare
