"""Channels: order, bounds, and that every wait ends."""

import threading
from collections.abc import Callable

import pytest

from gloader.errors import ChannelClosedError
from gloader.pipeline.threads import Channel


def _in_thread(target: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="gloader-test")
    thread.start()
    return thread, errors


def test_items_come_out_in_order_and_close_delivers_what_is_inside() -> None:
    channel: Channel[int] = Channel(3)
    for item in range(3):
        channel.put(item)
    channel.close()
    assert [channel.get() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ChannelClosedError):
        channel.get()
    with pytest.raises(ChannelClosedError):
        channel.put(3)


def test_a_full_channel_blocks_put_until_get() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    thread, errors = _in_thread(lambda: channel.put(1))
    thread.join(0.05)
    assert thread.is_alive()
    assert channel.get() == 0
    thread.join(5)
    assert not thread.is_alive()
    assert errors == []
    assert channel.get() == 1


@pytest.mark.parametrize("end", ["close", "error", "cancel"])
def test_a_waiting_get_ends_with_the_stream(end: str) -> None:
    channel: Channel[int] = Channel(1)
    thread, errors = _in_thread(channel.get)
    boom = ValueError("boom")
    {"close": channel.close, "error": lambda: channel.close(boom), "cancel": channel.cancel}[end]()
    thread.join(5)
    assert not thread.is_alive()
    assert (errors[0] is boom) == (end == "error")
    assert isinstance(errors[0], ChannelClosedError) == (end != "error")


def test_an_error_keeps_its_place_behind_the_items_and_the_first_one_stays() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    thread, errors = _in_thread(lambda: channel.put(1))
    first = ValueError("first")
    channel.close(first)
    channel.close(KeyError("second"))
    thread.join(5)
    assert isinstance(errors[0], ChannelClosedError)
    assert channel.get() == 0
    with pytest.raises(ValueError, match="first"):
        channel.get()


def test_cancel_drops_what_is_inside_and_ends_a_waiting_put() -> None:
    channel: Channel[int] = Channel(1)
    channel.put(0)
    thread, errors = _in_thread(lambda: channel.put(1))
    channel.cancel()
    thread.join(5)
    assert isinstance(errors[0], ChannelClosedError)
    with pytest.raises(ChannelClosedError):
        channel.get()
