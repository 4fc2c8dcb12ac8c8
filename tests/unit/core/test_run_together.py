"""Tasks run on threads together: their results in order, the first error, and no thread left behind."""

import os
import signal
import threading
import time

import pytest

from gloader.core.signals import run_together


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("together")]


@pytest.mark.parametrize("threads", [1, 2, 5, 9])
def test_results_come_in_the_order_of_the_tasks(threads: int) -> None:
    ran_on: set[str] = set()

    def task(number: int) -> int:
        ran_on.add(threading.current_thread().name)
        time.sleep(0.01 * (5 - number))
        return number

    tasks = [lambda number=number: task(number) for number in range(5)]
    assert run_together(tasks, threads=threads, name="together") == list(range(5))
    assert ran_on == {f"together-{i}" for i in range(min(threads, 5))}
    assert names() == []


def test_no_task_needs_no_thread() -> None:
    assert run_together([], threads=3, name="together") == []


def test_the_error_of_the_first_task_that_failed_is_raised_once_all_have_ended() -> None:
    ended = []

    def fail(number: int) -> int:
        time.sleep(0.05 * (3 - number))
        ended.append(number)
        if number:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        run_together([lambda n=n: fail(n) for n in range(3)], threads=3, name="together")
    assert sorted(ended) == [0, 1, 2]
    assert names() == []


def test_a_ctrl_c_leaves_no_thread_behind() -> None:
    ended = threading.Event()

    def task() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_together([task, task], threads=2, name="together")
    assert ended.is_set()
    assert names() == []


def test_after_a_ctrl_c_a_long_task_is_told_to_end() -> None:
    cut, was_told = threading.Event(), []

    def task() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        was_told.append(cut.wait(20))

    with pytest.raises(KeyboardInterrupt):
        run_together([task], threads=1, name="together", cancel=cut.set)
    assert was_told == [True]
    assert names() == []


def test_after_a_ctrl_c_no_other_task_is_begun() -> None:
    ran = []

    def task(number: int) -> None:
        ran.append(number)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

    with pytest.raises(KeyboardInterrupt):
        run_together([lambda n=n: task(n) for n in range(3)], threads=1, name="together")  # type: ignore[misc]
    assert ran == [0]
    assert names() == []
