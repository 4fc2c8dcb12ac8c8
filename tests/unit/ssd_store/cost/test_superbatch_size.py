"""How large superbatches are."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import ConfigError
from gloader.ssd_store.cost.superbatch_size import ramp, size_superbatch

# Batches of 230,000 rows of 512 B, 13% of them missing.
ROOMY = {
    "rows_per_batch": 230_000,
    "misses_per_batch_estimate": 31_000,
    "row_bytes": 512,
    "trace_bytes_per_access": 12.0,
    "memory_share_bytes": 10**12,
    "spill_bytes": 10**12,
    "gap_bytes": 12_288,
    "num_batches_total": None,
}


@pytest.mark.parametrize(
    ("change", "size", "reason"),
    [
        ({}, 512, "the largest there is"),
        ({"memory_share_bytes": 400 * 10**6}, 128, "traces in 400 MB of memory"),
        ({"spill_bytes": 5 * 10**9}, 128, "two packs in 5 GB of disk"),
        ({"row_bytes": 16_384}, 64, "more do not help the cache, and rows of 16.4 KB are not packed"),
        ({"spill_bytes": 0}, 64, "more do not help the cache, and 0 B of disk are too little for packs"),
        ({"num_batches_total": 100}, 128, "the run has 100 batches"),
        ({"memory_share_bytes": 0}, 2, "traces in 0 B of memory"),
        ({"misses_per_batch_estimate": 0, "spill_bytes": 0}, 512, "the largest there is"),
    ],
)
def test_the_tightest_limit_decides_and_is_named(change: dict[str, int], size: int, reason: str) -> None:
    found = size_superbatch(**{**ROOMY, **change})  # type: ignore[arg-type]
    assert (found.num_batches, found.reason) == (size, reason)


@given(
    rows=st.floats(0, 1e7),
    share=st.floats(0, 1),
    row_bytes=st.integers(1, 20_000),
    trace=st.floats(0, 20),
    memory=st.integers(0, 10**11),
    spill=st.integers(0, 10**12),
    gap=st.integers(0, 65536),
    total=st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_a_size_is_a_power_of_two_within_every_limit(
    rows: float,
    share: float,
    row_bytes: int,
    trace: float,
    memory: int,
    spill: int,
    gap: int,
    total: int | None,
) -> None:
    misses = rows * share

    def choose(memory: int, spill: int) -> int:
        return size_superbatch(
            rows_per_batch=rows,
            misses_per_batch_estimate=misses,
            row_bytes=row_bytes,
            trace_bytes_per_access=trace,
            memory_share_bytes=memory,
            spill_bytes=spill,
            gap_bytes=gap,
            num_batches_total=total,
        ).num_batches

    size = choose(memory, spill)
    assert size in {2**k for k in range(1, 10)}
    assert size == 2 or size * rows * trace <= memory
    assert size <= 64 or (row_bytes <= gap and 2 * size * misses * row_bytes <= spill)
    assert total is None or size <= max(2, 2 * total)
    assert choose(2 * memory, spill) >= size


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        size_superbatch(**{**ROOMY, "spill_bytes": -1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (1, [1, 1, 1]),
        (2, [1, 2, 2]),
        (16, [1, 2, 4, 8, 16, 16]),
        (12, [1, 2, 4, 8, 12, 12]),
        (3, [1, 2, 3, 3]),
    ],
)
def test_the_first_superbatches_are_small(size: int, sizes: list[int]) -> None:
    assert list(islice(ramp(size), len(sizes))) == sizes


def test_an_empty_superbatch_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="a superbatch of 0 batches"):
        ramp(0)
