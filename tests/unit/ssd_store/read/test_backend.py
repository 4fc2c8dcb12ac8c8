"""The one rule that chooses between io_uring, threads and plain calls."""

from __future__ import annotations

import errno
import logging

import pytest

from gloader.errors import ConfigError
from gloader.ssd_store.read.backend import choose_executor


def choose(io: str, *, is_direct: bool = True, is_real: bool = True, refused: tuple[str, ...] = ()) -> str:
    def make(kind: str) -> str:
        if kind in refused:
            raise OSError(errno.EPERM, "Operation not permitted")
        return kind

    return choose_executor(io, is_direct=is_direct, is_real=is_real, make=make)


@pytest.mark.parametrize("io", ["auto", "uring", "threads", "buffered"])
def test_other_system_calls_than_the_real_ones_are_made_one_by_one(io: str) -> None:
    assert choose(io, is_real=False) == "plain"


@pytest.mark.parametrize(
    ("io", "is_direct", "chosen"),
    [
        ("auto", True, "uring"),
        ("auto", False, "threads"),  # through the page cache a ring gains nothing
        ("uring", True, "uring"),
        ("uring", False, "uring"),
        ("threads", True, "threads"),
        ("buffered", False, "threads"),
    ],
)
def test_the_fastest_executor_that_was_asked_for_is_taken(io: str, is_direct: bool, chosen: str) -> None:
    assert choose(io, is_direct=is_direct) == chosen


def test_what_the_system_forbids_is_replaced_by_the_next_best(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gloader"):
        assert choose("auto", refused=("uring",)) == "threads"
        assert choose("auto", refused=("uring", "threads")) == "plain"
    assert "io_uring is not available, using threads: Operation not permitted" in caplog.text
    assert "threads are not available, making one request at a time: Operation not permitted" in caplog.text


def test_a_ring_that_was_asked_for_by_name_is_not_replaced() -> None:
    with pytest.raises(ConfigError, match=r"io='uring' is not available here: Operation not permitted"):
        choose("uring", refused=("uring",))
