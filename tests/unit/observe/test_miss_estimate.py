"""The estimate of what other cache sizes would miss."""

import numpy as np
import pytest

from gloader.cache import Trace
from gloader.observe.miss_estimate import MissSample

N = 400


def _trace(batches: int) -> Trace:
    rng = np.random.Generator(np.random.Philox(3))
    return Trace(np.unique((N * rng.random(60) ** 2).astype(np.int64)) for _ in range(batches))


def test_the_curve_passes_through_what_was_measured_and_ends_with_everything_in_memory() -> None:
    sample = MissSample(N, max_bytes=10**6)
    sample.offer(_trace(16))
    curve = sample.curve(capacity=50, miss_rate=0.3)
    assert curve is not None
    ratios = curve.misses_at(np.arange(N + 1)) / curve.num_accesses
    assert ratios[50] == pytest.approx(0.3, abs=0.01)
    assert ratios[-1] == 0
    assert (np.diff(ratios) <= 0).all()


def test_the_largest_superbatch_counts() -> None:
    sample = MissSample(N, max_bytes=10**6)
    sample.offer(_trace(4))
    assert sample.curve(capacity=50, miss_rate=0.3) is None
    sample.offer(_trace(16))
    accesses = _trace(16).num_accesses
    sample.offer(_trace(8))
    curve = sample.curve(capacity=50, miss_rate=0.3)
    assert curve is not None
    assert curve.num_accesses == accesses


def test_nothing_is_counted_where_memory_is_too_scarce_for_it() -> None:
    sample = MissSample(N, max_bytes=4 * N - 1)
    sample.offer(_trace(16))
    assert sample.curve(capacity=50, miss_rate=0.3) is None
