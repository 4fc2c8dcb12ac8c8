"""Ctrl-C and SIGTERM wait for the end of what they must not cut short."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from forking import in_child

from gloader.core.signals import (
    act_at_sigterm,
    close_in_finalizer,
    forget_sigterm,
    interruption_first,
    is_signal_pending,
    run_together,
    uninterrupted,
)
from gloader.observe.instruments import Work
from gloader.observe.watchdog import Watchdog
from gloader.pipeline.consumer import EpochIterator
from gloader.pipeline.threads import Failures, Pipeline, StageThread
from gloader.ssd_store.os_io import Descriptor
from gloader.ssd_store.spill.folder import SpillFolder

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@pytest.fixture(autouse=True)
def _sigterm_raises() -> Iterator[None]:
    """As `gloader` the command has it."""
    previous = signal.signal(signal.SIGTERM, lambda *_: exit_143())
    yield
    signal.signal(signal.SIGTERM, previous)


def exit_143() -> None:
    raise SystemExit(143)


def error_of(number: signal.Signals) -> type[BaseException]:
    return KeyboardInterrupt if number == signal.SIGINT else SystemExit


@BOTH
@pytest.mark.parametrize("times", [1, 3])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals, times: int) -> None:
    done = []
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(error_of(number)), uninterrupted():
        for _ in range(times):
            signal.raise_signal(number)
        done.append(True)
    assert done == [True]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_the_first_of_two_kinds_is_raised() -> None:
    with pytest.raises(SystemExit), uninterrupted():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_a_block_inside_another_waits_for_the_outer_one() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
        done.append(True)
    assert done == [True]


def test_errors_of_the_block_are_raised_and_hidden_by_a_signal() -> None:
    with pytest.raises(OSError, match="disk"), uninterrupted():
        raise OSError("disk")
    with pytest.raises(KeyboardInterrupt) as caught, uninterrupted():
        signal.raise_signal(signal.SIGINT)
        raise OSError("disk")
    assert isinstance(caught.value.__context__, OSError)


def test_a_signal_that_a_block_takes_for_a_failure_is_raised_at_its_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruption_first():
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        raise OSError("what became of it")
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(OSError, match="no signal"), interruption_first():
        raise OSError("no signal")


def test_whoever_insists_is_not_kept() -> None:
    sent = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        for number in range(100):
            sent.append(number)
            signal.raise_signal(signal.SIGINT)
    assert len(sent) == 8
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_that_python_does_not_handle_are_left_alone() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_other_threads_have_no_signals() -> None:
    seen = []

    def run() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_wait_inside_a_block_learns_of_a_signal() -> None:
    assert not is_signal_pending()
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        assert not is_signal_pending()
        signal.raise_signal(signal.SIGINT)
        assert is_signal_pending()
    assert not is_signal_pending()


@BOTH
def test_a_signal_in_a_finalizer_arrives_after_it(number: signal.Signals) -> None:
    done = []

    def close() -> None:
        signal.raise_signal(number)
        done.append(True)

    class Held:
        def __del__(self) -> None:
            close_in_finalizer(close)

    with pytest.raises(error_of(number)):
        Held()
        assert done == [True]
        time.sleep(5)


@contextmanager
def signal_at_a_start(when: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Send Ctrl-C as the next thread begins."""
    begin: Callable[[threading.Thread], None] = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if when == "before":
            signal.raise_signal(signal.SIGINT)
        begin(thread)
        if when == "after":
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        yield


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_owns_threads_is_closed_though_a_signal_came_at_their_start(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog = Watchdog(60.0, lambda _error: None)
    with signal_at_a_start(when, monkeypatch), pytest.raises(KeyboardInterrupt):
        watchdog.start()
    watchdog.close()

    ended, joined = [], []

    def stage() -> None:
        time.sleep(0.05)
        ended.append(True)

    pipeline = Pipeline(
        [StageThread(name="first", run=stage), StageThread(name="second", run=stage)],
        cancels=[],
        failures=Failures(lambda _error: None),
        on_joined=lambda: joined.append(len(ended)),
    )
    with signal_at_a_start(when, monkeypatch), pytest.raises(KeyboardInterrupt):
        pipeline.start()
    assert pipeline.close()
    assert joined == [2]  # what they use is released after them
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")] == []


def test_a_join_in_a_close_is_not_cut_short() -> None:
    """CPython before 3.13 takes the thread for ended then."""
    go_on = threading.Event()

    def stage() -> None:
        go_on.wait(20)

    pipeline = Pipeline(
        [StageThread(name="gloader-slow", run=stage)],
        cancels=[],
        failures=Failures(lambda _error: None),
        on_joined=lambda: None,
    )
    pipeline.start()
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    release = threading.Timer(0.3, go_on.set)
    interrupt.start()
    release.start()
    with pytest.raises(KeyboardInterrupt):
        pipeline.close()
    assert go_on.is_set()
    assert pipeline.close()
    interrupt.join()
    release.join()


@pytest.mark.parametrize("owner", ["tasks", "pipeline", "watchdog"])
def test_a_ctrl_c_that_meets_the_end_of_a_thread_is_not_swallowed(owner: str) -> None:
    """Python ignores what a handler raises inside a callback of a weak reference, as `threading` has to each thread."""
    refs: list[weakref.ref[threading.Thread]] = []

    def interrupt(_ref: weakref.ref[threading.Thread]) -> None:
        signal.raise_signal(signal.SIGINT)

    def observe() -> None:
        refs.append(weakref.ref(threading.current_thread(), interrupt))

    if owner == "tasks":
        with pytest.raises(KeyboardInterrupt):
            run_together([observe], threads=1, name="together")
    elif owner == "pipeline":
        pipeline = Pipeline(
            [StageThread(name="gloader-quick", run=observe)],
            cancels=[],
            failures=Failures(lambda _error: None),
            on_joined=lambda: None,
        )
        pipeline.start()
        with pytest.raises(KeyboardInterrupt):
            pipeline.close()
    else:
        watchdog = Watchdog(60.0, lambda _error: None)
        watchdog.start()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "gloader-watchdog")
        refs.append(weakref.ref(thread, interrupt))
        del thread
        with pytest.raises(KeyboardInterrupt):
            watchdog.close()
    assert refs[0]() is None


@pytest.mark.parametrize("kind", [EpochIterator, Descriptor, Work])
def test_what_is_dropped_all_the_time_has_no_finalizer_in_python(kind: type) -> None:
    """Python swallows a Ctrl-C that arrives inside one."""
    assert not hasattr(kind, "__del__")


@pytest.fixture
def _sigterm_ends() -> Iterator[None]:
    """As in a program that does not handle it."""
    previous = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, previous)


@pytest.mark.usefixtures("_sigterm_ends")
@pytest.mark.parametrize("is_forgotten", [False, True])
def test_sigterm_ends_a_process_after_its_last_acts(is_forgotten: bool) -> None:
    reader, writer = os.pipe()

    def fail() -> None:
        raise OSError("an act that fails keeps no other from its turn")

    def child() -> None:
        act_at_sigterm("failing", fail)
        act_at_sigterm("writing", lambda: os.write(writer, b"done"))
        if is_forgotten:
            with uninterrupted():  # as in `close`
                forget_sigterm("failing")
                forget_sigterm("writing")
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        signal.raise_signal(signal.SIGTERM)

    assert in_child(child) == -signal.SIGTERM
    os.close(writer)
    assert os.read(reader, 9) == (b"" if is_forgotten else b"done")
    os.close(reader)


@pytest.mark.usefixtures("_sigterm_ends")
def test_a_forked_child_acts_for_nobody_at_sigterm() -> None:
    act_at_sigterm("parent", lambda: os._exit(3))
    try:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert in_child(lambda: signal.raise_signal(signal.SIGTERM)) == -signal.SIGTERM
    finally:
        forget_sigterm("parent")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_the_users_stays(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with SpillFolder(tmp_path, budget_bytes=0):
        assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGTERM) is handler


PROGRAM = """
import atexit, os, signal, sys
from gloader.core.signals import close_in_finalizer, expect_signals_at_exit

def at_exit():
    close_in_finalizer(lambda: signal.raise_signal(signal.SIGINT))
    print("first", flush=True)
    if "twice" in sys.argv:
        signal.raise_signal(signal.SIGINT)
    print("done")

expect_signals_at_exit()
expect_signals_at_exit()
atexit.register(at_exit)  # later than ours, and so called before it, if both were of the same kind
"""


@pytest.mark.reliability("J12")
@pytest.mark.parametrize(
    ("more", "status", "printed"), [([], 0, "first\ndone\n"), (["twice"], -2, "first\n")]
)
def test_ctrl_c_at_the_end_of_the_interpreter_prints_nothing(
    more: list[str], status: int, printed: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *more], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, printed, "")
