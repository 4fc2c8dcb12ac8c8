"""Processor time of a thread and of its helpers: what one burns is counted once, for whom it was burnt."""

import threading
import time

import pytest
from processor_time import BURN_NS, burn, run_on_thread

from gloader.core.thread_times import helping, own_account, thread_ns


def test_what_helpers_use_counts_for_who_asked_them() -> None:
    began, own_began = thread_ns(), time.thread_time_ns()
    work = helping(burn)
    for _ in range(3):
        run_on_thread(work)
    own = time.thread_time_ns() - own_began
    assert own < BURN_NS  # this thread only waited
    assert thread_ns() - began >= 3 * BURN_NS


def test_what_other_threads_use_does_not_count() -> None:
    before = own_account().used_ns
    run_on_thread(burn)
    run_on_thread(lambda: run_on_thread(helping(burn)))  # for another thread
    assert own_account().used_ns == before


def test_the_helpers_of_a_helper_count_too() -> None:
    began = thread_ns()
    run_on_thread(helping(lambda: run_on_thread(helping(burn))))
    assert thread_ns() - began >= BURN_NS


def test_help_that_fails_counts_and_the_error_is_its_own() -> None:
    def fail() -> int:
        burn()
        raise ValueError("x")

    before = own_account().used_ns
    with pytest.raises(ValueError, match="x"):
        helping(fail)()
    assert own_account().used_ns - before >= BURN_NS


def test_arguments_and_result_are_those_of_the_work() -> None:
    assert helping(divmod)(7, 4) == (1, 3)


def test_helpers_of_one_thread_do_not_lose_each_others_time() -> None:
    before, work = own_account().used_ns, helping(burn)
    threads = [threading.Thread(target=lambda: [work() for _ in range(4)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own_account().used_ns - before >= 16 * BURN_NS
