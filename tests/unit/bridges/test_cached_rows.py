"""Rows for loops that gloader does not drive: right whatever is asked for, and refused in workers."""

import os
from typing import get_args

import numpy as np
import pytest

from gloader.bridges.cached_rows import CachedRows
from gloader.cache import OnlineName
from gloader.errors import ConfigError, ForkError, SeedError, StoreReadError
from gloader.types import ReadStats

N, F = 200, 5


class Matrix:
    """A source in memory that can be told to fail."""

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).standard_normal((N, F)).astype(np.float32)
        self.num_rows, self.dim, self.dtype = N, F, np.dtype(np.float32)
        self.is_broken = False

    def read_into(self, rows, out, /, *, at=None):
        if self.is_broken:
            raise StoreReadError("the disk is gone")
        out[slice(len(rows)) if at is None else at] = self.rows[rows]
        return ReadStats(rows=len(rows), requests=1, bytes_read=rows.size * F * 4)


@pytest.mark.parametrize("policy", get_args(OnlineName))
@pytest.mark.parametrize("cache", [0, 1200, "1MB"])
def test_rows_are_right_in_any_order_and_with_repeats(policy, cache):
    source = Matrix()
    rows = CachedRows(source, cache=cache, policy=policy)
    rng = np.random.default_rng(1)
    asked = 0
    for _ in range(30):
        ids = rng.integers(0, N, rng.integers(0, 40))
        np.testing.assert_array_equal(rows.gather(ids), source.rows[ids])
        asked += len(np.unique(ids))
    assert rows.hits + rows.read.rows == asked
    assert (rows.hits > 0) == (rows.num_slots > 0)


def test_ids_of_any_integer_width_are_taken():
    source = Matrix()
    rows = CachedRows(source, cache="1MB")
    np.testing.assert_array_equal(rows.gather(np.array([3, 1], np.int32)), source.rows[[3, 1]])


def test_ids_out_of_range_are_refused():
    with pytest.raises(SeedError, match=r"2 of 3 ids are not rows 0..199, among them \[200, -1\]"):
        CachedRows(Matrix()).gather(np.array([200, 0, -1]))


def test_a_failed_read_raises_and_the_next_one_is_right():
    source = Matrix()
    rows = CachedRows(source, cache="1MB")
    rows.gather(np.arange(50))
    source.is_broken = True
    with pytest.raises(StoreReadError, match="the disk is gone"):
        rows.gather(np.arange(40, 60))
    source.is_broken = False
    np.testing.assert_array_equal(rows.gather(np.arange(100)), source.rows[:100])


def test_a_policy_that_needs_the_future_is_refused():
    with pytest.raises(ConfigError, match=r"policy='belady'.*the future is unknown; choose one of lru"):
        CachedRows(Matrix(), policy="belady")


def test_a_worker_process_is_refused(monkeypatch):
    rows = CachedRows(Matrix())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ForkError, match="filter_per_worker=False"):
        rows.gather(np.arange(3))
