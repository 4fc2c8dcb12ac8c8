"""Open files are counted against the limit of the process before they are needed."""

import os
import resource

import pytest

from gloader.core.machine import SPARE, require_descriptors
from gloader.errors import StoreOpenError

NUM_OPEN = 10


@pytest.fixture(name="limits")
def _limits(monkeypatch):
    """The limits that a process has, soft and hard, which a test may change."""
    limits = [100, 1000]
    monkeypatch.setattr(os, "listdir", lambda _: ["fd"] * NUM_OPEN)
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.__setitem__(slice(None), pair))
    return limits


def test_nothing_is_changed_where_there_is_room(limits):
    require_descriptors(100 - NUM_OPEN - SPARE)
    assert limits == [100, 1000]


@pytest.mark.reliability("S12")
def test_the_soft_limit_is_raised_where_the_hard_one_has_room(limits):
    require_descriptors(101 - NUM_OPEN - SPARE)
    assert limits == [101, 1000]
    require_descriptors(1000 - NUM_OPEN - SPARE)
    assert limits == [1000, 1000]
    limits[:] = [100, resource.RLIM_INFINITY]
    require_descriptors(10**6)
    assert limits[0] == 10**6 + NUM_OPEN + SPARE


@pytest.mark.reliability("S12")
def test_more_than_the_hard_limit_is_refused_with_both_numbers_and_what_to_type(limits):
    with pytest.raises(StoreOpenError, match=r"1,001 files .* allows 1,000: run `ulimit -n 1024` before"):
        require_descriptors(1001 - NUM_OPEN - SPARE)
    assert limits == [100, 1000]


def test_no_limit_is_none(limits):
    limits[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    require_descriptors(10**9)
