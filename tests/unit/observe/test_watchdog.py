"""The rules for a stall, and its message."""

import itertools
import logging
import threading
import time

import pytest

from gloader.errors import ConfigError, StallError
from gloader.observe.instruments import Instruments, Work
from gloader.observe.watchdog import Watchdog
from gloader.types import BatchId

BATCH = BatchId(epoch=0, index=17)
S = 10**9


class Watched:
    """A watchdog with a timeout of 60 s, looked through by hand at made-up times."""

    def __init__(self) -> None:
        self.stalls: list[str] = []
        self.watchdog = Watchdog(60, lambda error: self.stalls.append(str(error)))
        self.instruments = Instruments(watchdog=self.watchdog)
        self._reported: set[object] = set()

    def begin(self, stage: str, at_s: int) -> Work:
        work = self.instruments.working(stage, BATCH).begin()  # type: ignore[arg-type]
        work.since_ns = at_s * S
        return work

    def look(self, at_s: int, *, floor_s: int = 0) -> float:
        """Return the seconds until the next look."""
        return (self.watchdog._look(at_s * S, floor_s * S, self._reported) - at_s * S) / S  # type: ignore[arg-type]


def test_a_stage_that_does_not_return_is_a_stall_reported_once() -> None:
    watched = Watched()
    watched.begin("read", at_s=100)
    assert watched.look(130) == 30
    assert watched.look(159) == 1
    assert watched.stalls == []
    watched.look(160)
    (stall,) = watched.stalls
    assert stall.startswith(
        "stage read of epoch 0, batch 17 has not returned for 1 min 00 s (thread MainThread); the"
    )
    assert "iostat" in stall
    assert "stall_timeout_s is 60; raise it where the work is only slow" in stall
    assert watched.look(500) == 60
    assert len(watched.stalls) == 1


def test_each_stage_that_stalls_is_reported() -> None:
    watched = Watched()
    watched.begin("read", at_s=0)
    gather = watched.begin("gather", at_s=1)
    watched.look(61)
    assert [text.split()[1] for text in watched.stalls] == ["read", "gather"]
    gather.end()
    watched.begin("gather", at_s=100)
    watched.look(160)
    assert len(watched.stalls) == 3


def test_a_sign_of_life_starts_the_clock_again() -> None:
    watched = Watched()
    sweep = watched.begin("stage", at_s=0)
    sweep.since_ns = 50 * S
    assert watched.look(60) == 50
    assert watched.stalls == []


def test_a_loop_that_waits_while_stages_work_is_no_stall() -> None:
    watched = Watched()
    watched.begin("wait", at_s=0)
    watched.begin("stage", at_s=70)
    assert watched.look(100) == 30
    assert watched.stalls == []


def test_a_loop_that_waits_while_nothing_works_is_a_stall() -> None:
    watched = Watched()
    watched.begin("wait", at_s=0)
    watched.watchdog.leave(watched.begin("stage", at_s=10), 40 * S)
    assert watched.look(90) == 10
    watched.look(100)
    (stall,) = watched.stalls
    assert stall == (
        "no stage has worked for 1 min 00 s while the loop waits for epoch 0, batch 17: the pipeline is stuck; the "
        "stacks of all threads are in the log; please report them (stall_timeout_s is 60; raise it where the work is "
        "only slow, 0 turns the watchdog off)"
    )


def test_a_loop_that_computes_is_no_stall_however_long() -> None:
    watched = Watched()
    watched.begin("compute", at_s=0)
    assert watched.look(10_000) == 60
    assert watched.stalls == []


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    watched = Watched()
    watched.begin("read", at_s=0)
    assert watched.look(1000, floor_s=990) == 50
    assert watched.stalls == []


def test_it_names_the_stage_and_logs_every_stack(caplog: pytest.LogCaptureFixture) -> None:
    is_stalled, stalls = threading.Event(), []

    def on_stall(error: StallError) -> None:
        stalls.append(error)
        is_stalled.set()

    watchdog = Watchdog(0.05, on_stall)
    instruments = Instruments(watchdog=watchdog)

    def hang_in_a_read() -> None:
        with instruments.working("read", BATCH):
            assert is_stalled.wait(30)

    watchdog.start()
    reader = threading.Thread(target=hang_in_a_read, name="gloader-read")
    with caplog.at_level(logging.ERROR):
        reader.start()
        reader.join()
        watchdog.close()
    (error,) = stalls
    assert "stage read of epoch 0, batch 17" in str(error)
    assert "(thread gloader-read)" in str(error)
    (logged,) = caplog.records
    assert str(error) in logged.getMessage()
    assert "thread gloader-read:" in logged.getMessage()
    assert "in hang_in_a_read" in logged.getMessage()
    assert "thread MainThread:" in logged.getMessage()
    assert "gloader-watchdog" not in logged.getMessage()


def test_a_handler_that_closes_the_watchdog_or_fails_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    is_told = threading.Event()

    def on_stall(error: StallError) -> None:
        watchdog.close()
        is_told.set()
        raise ValueError("handler")

    watchdog = Watchdog(0.05, on_stall)
    watchdog.start()
    with Instruments(watchdog=watchdog).working("gather", BATCH):
        assert is_told.wait(30)
    watchdog.close()


def test_start_and_close_repeat_and_leave_no_thread() -> None:
    watchdog = Watchdog(60, lambda error: None)
    watchdog.close()
    for _ in range(3):
        watchdog.start()
        watchdog.start()
        assert [t.name for t in threading.enumerate()].count("gloader-watchdog") == 1
        watchdog.close()
        watchdog.close()
        assert "gloader-watchdog" not in [t.name for t in threading.enumerate()]


def test_it_wakes_at_most_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog(0.3, lambda error: None)
    looks = []
    look = watchdog._look

    def count(*args: object) -> int:
        looks.append(time.monotonic())
        return look(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(watchdog, "_look", count)
    instruments = Instruments(watchdog=watchdog)
    works = [instruments.working("read", BATCH).begin() for _ in range(40)]
    for number, work in enumerate(works):  # one is due every 20 ms
        work.since_ns += number * S // 50
    watchdog.start()
    time.sleep(1)
    watchdog.close()
    assert all(later - earlier >= 0.24 for earlier, later in itertools.pairwise(looks))
    assert len(looks) > 1


def test_zero_turns_it_off() -> None:
    watchdog = Watchdog(0, lambda error: None)
    watchdog.start()
    assert "gloader-watchdog" not in [t.name for t in threading.enumerate()]
    watchdog.close()


@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_below_zero_is_refused(timeout: float) -> None:
    with pytest.raises(ConfigError, match=r"stall_timeout_s = .* seconds > 0, or 0"):
        Watchdog(timeout, lambda error: None)
