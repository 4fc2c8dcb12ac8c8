"""Blocks that come from a store that fails."""

import errno
import threading
import time
from collections import Counter

import pytest

from gloader.core.signals import Cancellation
from gloader.core.thread_times import own_account
from gloader.errors import ChannelClosedError, ChecksumError, StoreError, StoreReadError
from gloader.ssd_store.mirror import Limits
from gloader.ssd_store.mirror.block_fetch import BlockRequest, Fetcher, pause_s
from gloader.ssd_store.mirror.object_store import open_objects
from gloader.testing.faults import FaultyObjects

CONTENT = bytes(range(251)) * 40
LENGTH = 100


@pytest.fixture(scope="module", name="stored")
def _stored():
    objects = open_objects("memory://fetch")
    objects.put("a", CONTENT)
    return objects


class Run:
    """A fetcher over a store with faults, and what came."""

    def __init__(self, stored, *, limits=None, most=64, timeout_s=60.0, **faults):
        self.objects = FaultyObjects(stored, **faults)
        self.etag = stored.head("a").etag
        self.fetcher = Fetcher(
            self.objects, limits=limits or Limits(), most_requests=most, timeout_s=timeout_s
        )
        self.came = {}

    def ask(self, number, take=None, **options):
        def keep_bytes(data):
            self.came[number] = bytes(data)

        request = BlockRequest(
            name="a", number=number, start=number * LENGTH, length=LENGTH, etag=options.pop("etag", self.etag)
        )
        return self.fetcher.ask(request, take or keep_bytes, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.objects.go_on.set()
        self.fetcher.close()


def expected(numbers):
    return {number: CONTENT[number * LENGTH : (number + 1) * LENGTH] for number in numbers}


def bring(run, count):
    asked = [run.ask(number) for number in range(count)]
    for each in asked:
        run.fetcher.wait(each)
    assert run.came == expected(range(count))


def test_blocks_come_many_at_a_time_and_never_more_than_allowed(stored):
    with Run(stored, most=5, delay_s=0.005) as run:
        bring(run, 60)
        assert run.objects.most_running == 5
    counts = run.fetcher.counts
    assert (counts.requests, counts.retries, counts.bytes) == (60, 0, 60 * LENGTH)


def test_the_processor_time_of_a_block_counts_for_who_asked_for_it(stored):
    before = own_account().used_ns
    with Run(stored) as run:
        bring(run, 1)
        assert own_account().used_ns > before


@pytest.mark.reliability("O5")
@pytest.mark.parametrize(
    "kind", [errno.EBUSY, errno.ETIMEDOUT, errno.ECONNRESET, errno.EIO, "cut", "long", "alien"]
)
def test_what_fails_is_asked_for_again_and_the_same_bytes_come(stored, kind):
    with Run(stored, fault=lambda number, _: kind if number % 3 == 0 else None) as run:
        bring(run, 50)
    counts = run.fetcher.counts
    assert counts.retries > 0
    assert counts.requests == 50 + counts.retries
    assert counts.paused_s > 0


def first_of(*numbers, fault):
    """Return a fault of the first request for each of some blocks."""
    # By block: the n-th request may be the second one for a block that failed before.
    left = dict.fromkeys((number * LENGTH for number in numbers), fault)
    return lambda _, asked: left.pop(asked.start, None)


def test_every_block_that_failed_is_asked_for_and_no_other_once_more(stored):
    with Run(stored, fault=first_of(3, 8, fault=errno.EIO)) as run:
        bring(run, 30)
    assert Counter(asked.start // LENGTH for asked in run.objects.asked) == Counter([*range(30), 3, 8])


@pytest.mark.reliability("O4")
@pytest.mark.parametrize("kind", [errno.EBUSY, errno.ETIMEDOUT])
def test_a_store_that_asks_to_slow_down_is_asked_less_and_then_more_again(stored, kind):
    with Run(stored, fault=lambda number, _: kind if number < 16 else None, delay_s=0.003) as run:
        asked = [run.ask(number) for number in range(16)]
        for each in asked:
            run.fetcher.wait(each)
        slow = run.fetcher.width
        assert slow < 12
        asked = [run.ask(number) for number in range(16, 100)]
        for each in asked:
            run.fetcher.wait(each)
        assert run.fetcher.width > slow


def test_errors_that_are_no_sign_of_haste_do_not_slow_down(stored):
    with Run(stored, fault=lambda number, _: errno.EIO if number < 16 else None) as run:
        bring(run, 16)
        assert run.fetcher.width >= 16


def test_a_window_that_nobody_fills_does_not_open(stored):
    with Run(stored) as run:
        for number in range(100):
            run.fetcher.wait(run.ask(number))
        assert run.fetcher.width == 16


def test_the_oldest_comes_first_a_repeated_one_before_those_behind_it(stored):
    fault = lambda number, _: errno.EIO if number == 2 else None  # noqa: E731
    with Run(stored, most=1, fault=fault, delay_s=0.004) as run:
        bring(run, 20)
    order = [asked.start // LENGTH for asked in run.objects.asked]
    assert order[:3] == [0, 1, 2]
    again = order.index(2, 3)
    assert again <= 3 + 3  # those that came in its pause, of one or two milliseconds
    assert [each for each in order[:2] + order[3:] if each != 2] == [each for each in range(20) if each != 2]


@pytest.mark.parametrize("kind", [errno.ENOENT, errno.EACCES, errno.ESTALE, errno.EINVAL])
def test_what_cannot_get_better_is_raised_at_once(stored, kind):
    with (
        Run(stored, fault=lambda *_: kind) as run,
        pytest.raises(StoreReadError, match="injected") as caught,
    ):
        run.fetcher.wait(run.ask(4))
    assert caught.value.errno == kind
    assert len(run.objects.asked) == 1


@pytest.mark.reliability("O2")
def test_what_never_comes_is_given_up_with_url_range_and_reason(stored):
    with (
        Run(stored, fault=lambda *_: errno.EBUSY) as run,
        pytest.raises(StoreReadError) as caught,
    ):
        run.fetcher.wait(run.ask(4))
    text = str(caught.value)
    assert "block 4 (bytes 400 to 499) was given up after 10 requests" in text
    assert f"errno {errno.EBUSY} (injected)" in text
    assert text.endswith("'memory://fetch/a'")
    assert len(run.objects.asked) == 10


def test_another_content_is_refused_by_the_etag(stored):
    with (
        Run(stored) as run,
        pytest.raises(StoreReadError, match="ETag") as caught,
    ):
        run.fetcher.wait(run.ask(0, etag='"of another"'))
    assert caught.value.errno == errno.ESTALE


def test_a_damaged_block_is_asked_for_once_more_and_then_refused(stored):
    def refuse(_data):
        raise ChecksumError("damaged")

    with Run(stored) as run, pytest.raises(ChecksumError, match="damaged"):
        run.fetcher.wait(run.ask(0, refuse))
    assert len(run.objects.asked) == 2


@pytest.mark.reliability("O3")
def test_a_request_that_hangs_is_given_up_and_repeated(stored):
    with Run(stored, timeout_s=0.3, fault=first_of(0, 5, fault="hang")) as run:
        bring(run, 30)
        assert run.fetcher.counts.retries == 2
        # What the hanging threads bring in the end counts nowhere.
        run.objects.go_on.set()
        bring(run, 30)
    assert run.fetcher.counts.requests == 62


def test_what_a_request_says_that_was_given_up_counts_nowhere(stored):
    is_repeated = threading.Event()

    def fault(number, _):
        if number == 0:
            is_repeated.wait(5)
            return errno.EACCES  # which no request would be repeated for
        is_repeated.set()
        time.sleep(0.2)
        return None

    with Run(stored, timeout_s=0.3, fault=fault) as run:
        bring(run, 1)
        assert run.fetcher.counts.retries == 1


def test_a_wait_is_cancelled_though_the_store_hangs(stored):
    with Run(stored, fault=lambda *_: "hang") as run:
        started = time.monotonic()
        with pytest.raises(ChannelClosedError, match="block 0"):
            run.fetcher.wait(run.ask(0), cancellation=Cancellation(lambda: time.monotonic() > started + 0.1))
        assert time.monotonic() - started < 1


def test_closing_tells_whoever_waits_and_refuses_others(stored):
    with Run(stored, fault=lambda *_: "hang") as run:
        asked = run.ask(0)
        threading.Timer(0.05, run.fetcher.close).start()
        with pytest.raises(StoreError, match="closed; open the dataset again"):
            run.fetcher.wait(asked)
        with pytest.raises(StoreError, match="closed; open the dataset again"):
            run.ask(1)


def test_what_nobody_wants_any_more_is_not_asked_for(stored):
    with Run(stored, most=1, delay_s=0.01) as run:
        asked = [run.ask(number) for number in range(10)]
        forgotten = [each for each in asked[3:] if run.fetcher.forget(each)]
        for each in asked[:3]:
            run.fetcher.wait(each)
        assert len(forgotten) == 7
    assert run.came == expected(range(3))


def test_limits_hold_requests_back(stored):
    with Run(stored, limits=Limits(requests_per_s=100)) as run:
        started = time.monotonic()
        bring(run, 60)
        # A quarter of a second's worth is saved up.
        assert time.monotonic() - started > 0.25
    assert run.fetcher.counts.limited_s > 0.25


def test_requests_that_wait_for_a_limit_are_not_late(stored):
    with Run(stored, limits=Limits(requests_per_s=40), timeout_s=0.1) as run:
        bring(run, 30)  # the last of those that are let in together waits four times as long as one may take
    assert run.fetcher.counts.limited_s > 0.15
    assert run.fetcher.counts.retries == 0


def test_requests_go_on_while_what_came_is_kept(stored):
    is_kept, kept = threading.Event(), []

    def keep():
        is_kept.wait(5)
        kept.append(1)

    with Run(stored, most=2) as run:
        first = run.ask(0, keep=keep)
        run.fetcher.wait(first)
        others = [run.ask(number) for number in range(1, 20)]
        for each in others:
            run.fetcher.wait(each)
        assert not kept
        is_kept.set()
        began = time.monotonic()
    assert kept == [1]  # closing waited for it, and no longer
    assert time.monotonic() - began < 5


def test_pauses_double_and_differ_between_blocks(real_pauses):
    requests = [BlockRequest(name="a", number=n, start=0, length=1, etag="") for n in range(20)]
    for attempt, base in ((1, 0.1), (2, 0.2), (4, 0.8), (9, 5.0)):
        pauses = [pause_s(request, attempt) for request in requests]
        assert all(base / 2 <= pause <= base * 1.5 for pause in pauses)
        assert len(set(pauses)) == 20
        assert pauses == [pause_s(request, attempt) for request in requests]
