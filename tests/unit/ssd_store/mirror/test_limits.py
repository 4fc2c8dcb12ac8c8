"""Limits on what is asked of an object store."""

import threading

import pytest

from gloader.errors import ConfigError
from gloader.ssd_store.mirror.object_store import Limits, TokenBucket


@pytest.mark.parametrize(
    ("text", "num_bytes", "requests"),
    [
        ("500MB/s,3000req/s", 500e6, 3000),
        (" 3000 req/s , 1.5GiB/s ", 1.5 * 2**30, 3000),
        ("0.5req/s", None, 0.5),
        ("100kb/s", 100e3, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_limits_are_read_as_people_write_them(text, num_bytes, requests):
    limits = Limits.parse(text)
    assert (limits.bytes_per_s, limits.requests_per_s) == (num_bytes, requests)
    assert limits.likely_bytes_per_s == (num_bytes or 1e9)


@pytest.mark.parametrize(
    "text",
    ["500MB", "500MB/s,1GB/s", "3req/s,4req/s", "fast", "0MB/s", "0req/s", "-1MB/s", "1XB/s", "/s", "req/s"],
)
def test_anything_else_is_refused_with_what_is_allowed(text):
    with pytest.raises(ConfigError, match=r"500MB/s,3000req/s|must be above 0"):
        Limits.parse(text)


def test_limits_say_what_they_are():
    assert str(Limits.parse("3000req/s,500MB/s")) == "500 MB/s,3000req/s"
    assert str(Limits()) == "none"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock of all limits."""
    clock = Clock()
    monkeypatch.setattr("gloader.ssd_store.mirror.object_store.monotonic", clock)
    return clock


def test_a_bucket_gives_its_rate_and_no_more_than_a_moment_at_once(clock):
    bucket = TokenBucket(100.0)
    taken = 0
    for _ in range(1000):
        clock.now += bucket.take(7)
        taken += 7
    assert 0.99 <= taken / (clock.now - 100.0) / 100 <= 1.05
    clock.now += 3600  # what nobody took is not saved up
    start = clock.now
    for _ in range(100):
        clock.now += bucket.take(1)
    assert clock.now - start >= 0.7


@pytest.mark.usefixtures("clock")
def test_threads_share_one_rate():
    limits = Limits(bytes_per_s=1000, requests_per_s=10)
    waits = []

    def ask():
        waits.extend(limits.take(10) for _ in range(25))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 100 requests at 10 a second, of which a quarter of a second's worth was saved up.
    assert max(waits) == pytest.approx(99 / 10 - 0.25, abs=1e-6)
