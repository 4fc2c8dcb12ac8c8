"""Compiling a kernel counts, calling it does not."""

import math
import time

import pytest
from numba import njit

from gloader.observe import compile_clock
from gloader.observe.compile_clock import compile_seconds, say_compiling
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


@pytest.mark.parametrize("after_s", [0, 3600])
def test_a_loader_says_once_that_kernels_are_compiled_and_not_of_a_few(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    def kernels(module: str) -> None:
        for step in range(2):

            def kernel(x: int, step: int = step) -> int:
                return x + step

            kernel.__module__ = module
            njit(kernel)(1)

    monkeypatch.setattr(compile_clock, "_WARN_AFTER_S", after_s)
    monkeypatch.setattr(compile_clock._CLOCK, "has_warned", False)
    monkeypatch.setattr(compile_clock._CLOCK, "reported_from_s", math.inf)
    kernels("gloader.samplers.some")
    say_compiling()
    kernels("own_script")
    assert caplog.messages == []
    kernels("gloader.samplers.some")
    say_compiling()
    kernels("gloader.samplers.some")
    told = ["compiling gloader's kernels, once on this machine: up to a minute on two cores"]
    assert caplog.messages == (told if after_s == 0 else [])
