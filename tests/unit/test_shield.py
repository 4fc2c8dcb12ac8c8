"""Closing goes on after a signal."""

import signal
import threading
import time

import pytest

from gloader.channel import Channel
from gloader.pipeline import Failures, Pipeline, StageThread
from gloader.shield import join_begun, to_the_end, to_the_end_of_a_finalizer
from gloader.watchdog import Watchdog


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("times", [1, 3])
def test_what_a_signal_cut_short_is_done_again_and_the_first_signal_is_raised(
    kind: type[BaseException], times: int
) -> None:
    signals = [kind(i) for i in range(times)]
    left, done = list(signals), []

    def close() -> None:
        if left:
            raise left.pop(0)
        done.append(True)

    with pytest.raises(kind) as caught:
        to_the_end(close)
    assert caught.value is signals[0]
    assert done == [True]


def test_other_errors_are_raised_at_once() -> None:
    calls = []

    def close() -> None:
        calls.append(1)
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        to_the_end(close)
    assert calls == [1]


def test_whoever_insists_is_not_kept() -> None:
    def close() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_the_end(close)


def test_a_signal_in_a_finalizer_arrives_after_it() -> None:
    left, done = [KeyboardInterrupt()], []

    def close() -> None:
        if left:
            raise left.pop()
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        to_the_end_of_a_finalizer(close)
        assert done == [True]
        time.sleep(5)


def test_the_result_is_returned() -> None:
    assert to_the_end(lambda: 7) == 7


class _CutShort(threading.Event):
    """What `Thread.start` waits for: a signal comes instead, and the thread itself needs a while to begin."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        raise KeyboardInterrupt

    def set(self) -> None:
        time.sleep(0.02)
        super().set()


@pytest.fixture
def _signal_while_a_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        thread._started = _CutShort()  # type: ignore[attr-defined]
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def _signal_before_a_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("_signal_while_a_thread_begins")
def test_a_thread_is_joined_though_a_signal_came_while_it_began() -> None:
    done = []
    thread = threading.Thread(target=lambda: done.append(True))
    with pytest.raises(KeyboardInterrupt):
        thread.start()
    assert join_begun(thread)
    assert done == [True]


def test_a_thread_that_never_began_is_not_waited_for() -> None:
    assert not join_begun(threading.Thread(target=lambda: None))


@pytest.mark.parametrize("when", ["_signal_while_a_thread_begins", "_signal_before_a_thread_begins"])
def test_what_owns_threads_is_closed_though_a_signal_cut_their_start_short(
    when: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(when)
    watchdog = Watchdog(60.0, lambda _error: None)
    with pytest.raises(KeyboardInterrupt):
        watchdog.start()
    watchdog.close()

    ready: Channel[int] = Channel(1)
    ended, joined = [], []

    def stage() -> None:
        time.sleep(0.05)
        ended.append(True)

    pipeline = Pipeline(
        [StageThread(name="first", run=stage), StageThread(name="second", run=stage)],
        ready,
        cancels=[],
        failures=Failures(lambda _error: None),
        on_joined=lambda: joined.append(len(ended)),
    )
    with pytest.raises(KeyboardInterrupt):
        pipeline.start()
    assert pipeline.close()
    assert joined == [1 if "while" in when else 0]  # what the first one uses is released after it


def test_a_join_that_ctrl_c_cut_short_is_done_again() -> None:
    """CPython before 3.13 takes the thread for ended then."""
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, args=(20,))
    thread.start()
    for _ in range(2):
        main = threading.main_thread().ident
        assert main is not None
        interrupt = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            join_begun(thread)
        interrupt.join()
    threading.Timer(0.2, go_on.set).start()
    assert join_begun(thread)
    assert go_on.is_set()
    assert thread not in threading.enumerate()


def test_a_join_has_an_end() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, args=(20,))
    thread.start()
    assert join_begun(thread, 0.05)
    assert thread.is_alive()
    go_on.set()
    assert join_begun(thread)
