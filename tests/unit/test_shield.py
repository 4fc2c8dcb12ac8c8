"""Closing goes on after a signal."""

import time

import pytest

from gloader.shield import to_the_end, to_the_end_of_a_finalizer


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
