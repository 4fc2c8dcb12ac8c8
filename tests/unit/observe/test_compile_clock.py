"""Compiling a kernel counts, calling it does not."""

import time

from numba import njit

from gloader.observe.compile_clock import compile_seconds
from gloader.observe.epoch_stats import StatsRecorder


def test_what_is_compiled_counts_once_with_what_it_calls() -> None:
    @njit
    def inner(x: int) -> int:
        return x + 1

    @njit
    def outer(x: int) -> int:
        return inner(x) * 2

    before, began = compile_seconds(), time.perf_counter()
    recorder = StatsRecorder(0)
    assert outer(20) == 42
    seconds = compile_seconds() - before
    assert 0 < seconds <= time.perf_counter() - began
    assert recorder.snapshot().compile_seconds == seconds
    recorder.start()
    assert outer(21) == 44
    assert recorder.snapshot().compile_seconds == 0
