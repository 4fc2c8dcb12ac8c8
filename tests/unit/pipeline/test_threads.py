"""The loop around a verb: items in order, the end, an error in its place, nothing held while it waits."""

import gc
import threading
import weakref

import pytest

from gloader.errors import ChannelClosedError
from gloader.pipeline.threads import Channel, Failures, Pipeline, StageThread, stage_thread, weak_method


class _Item:
    def __init__(self, number: int) -> None:
        self.number = number


class _Double:
    name = "double"

    def __init__(self, fails_at: int | None = None, error: BaseException | None = None) -> None:
        self._fails_at, self._error = fails_at, error

    def process(self, item: _Item) -> int:
        if item.number == self._fails_at and self._error is not None:
            raise self._error
        return 2 * item.number


class _Noted(Failures):
    def __init__(self) -> None:
        super().__init__(lambda _error: None)
        self.errors: list[BaseException] = []

    def add(self, error: BaseException) -> None:
        self.errors.append(error)


def _filled(count: int, error: BaseException | None = None) -> Channel[_Item]:
    source: Channel[_Item] = Channel(count + 1)
    for number in range(count):
        source.put(_Item(number))
    source.close(error)
    return source


def _drain(out: Channel[int]) -> tuple[list[int], BaseException]:
    found = []
    try:
        while True:
            found.append(out.get())
    except BaseException as error:
        return found, error


def test_the_thread_has_the_name_of_the_verb() -> None:
    assert stage_thread(_Double(), _filled(0), Channel(1), _Noted()).name == "gloader-double"


def test_items_keep_their_order_and_the_end_is_handed_on() -> None:
    out: Channel[int] = Channel(9)
    stage_thread(_Double(), _filled(3), out, Failures(lambda _error: None)).run()
    found, end = _drain(out)
    assert found == [0, 2, 4]
    assert isinstance(end, ChannelClosedError)


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [0, 2])
def test_an_error_comes_behind_the_items_before_it(at: int, kind: type[BaseException]) -> None:
    out: Channel[int] = Channel(9)
    failures, boom = _Noted(), kind("boom")
    stage_thread(_Double(at, boom), _filled(4), out, failures).run()
    found, end = _drain(out)
    assert found == [2 * number for number in range(at)]
    assert end is boom
    assert failures.errors == [boom]  # heard of before its turn


def test_an_error_of_the_stage_before_is_handed_on() -> None:
    out: Channel[int] = Channel(9)
    boom = OSError("disk")
    stage_thread(_Double(), _filled(2, boom), out, _Noted()).run()
    assert _drain(out) == ([0, 2], boom)


def test_what_comes_before_a_put_is_done_though_nobody_takes() -> None:
    out: Channel[int] = Channel(1)
    done: list[int] = []
    seen = threading.Event()

    def note(result: int) -> None:
        done.append(result)
        if len(done) == 2:
            seen.set()

    thread = stage_thread(_Double(), _filled(4), out, _Noted(), before_put=note)
    running = threading.Thread(target=thread.run)
    running.start()
    assert seen.wait(10)  # the second result waits for room
    assert done == [0, 2]
    out.cancel()
    running.join(10)
    assert not running.is_alive()


def test_an_error_before_a_put_ends_the_stream_there() -> None:
    out: Channel[int] = Channel(9)

    def refuse(result: int) -> None:
        if result == 2:
            raise OSError("no room")

    stage_thread(_Double(), _filled(4), out, _Noted(), before_put=refuse).run()
    found, end = _drain(out)
    assert found == [0]
    assert str(end) == "no room"


@pytest.mark.parametrize("end", ["source", "out"])
def test_cancel_ends_a_thread_that_waits(end: str) -> None:
    source: Channel[_Item] = Channel(1) if end == "source" else _filled(3)
    out: Channel[int] = Channel(1)
    running = threading.Thread(target=stage_thread(_Double(), source, out, _Noted()).run)
    running.start()
    (source if end == "source" else out).cancel()
    running.join(10)
    assert not running.is_alive()
    assert isinstance(_drain(out)[1], ChannelClosedError)


def test_nothing_holds_an_item_while_the_next_one_is_waited_for() -> None:
    """What it holds would be a buffer of the ring."""
    source: Channel[_Item] = Channel(1)
    out: Channel[int] = Channel(1)
    running = threading.Thread(target=stage_thread(_Double(), source, out, _Noted()).run)
    running.start()
    item = _Item(1)
    held = weakref.ref(item)
    source.put(item)
    del item
    assert out.get() == 2
    for _ in range(1000):  # the thread goes on to wait
        if held() is None:
            break
        threading.Event().wait(0.01)
    assert held() is None
    source.cancel()
    running.join(10)


def test_the_end_of_a_stream_leaves_nothing_to_collect() -> None:
    """A cycle through the frames of an error would keep the buffers of a run until the next collection."""
    source, out = _filled(2), Channel[int](9)
    stage = _Double()
    held = weakref.ref(stage)
    thread = stage_thread(stage, source, out, Failures(lambda _error: None))
    del stage
    gc.collect()
    gc.disable()
    try:
        thread.run()
        del thread
        assert held() is None
    finally:
        gc.enable()


def test_a_pipeline_cancels_in_order_and_releases_once_all_have_ended() -> None:
    events: list[str] = []

    class Waited:
        def __init__(self, name: str) -> None:
            self.name, self.end = name, threading.Event()

        def cancel(self) -> None:
            events.append(self.name)
            self.end.set()

        def run(self) -> None:
            self.end.wait(10)

    first, second = Waited("first"), Waited("second")
    pipeline = Pipeline(
        [StageThread(name="first", run=first.run), StageThread(name="second", run=second.run)],
        cancels=[first, second],
        failures=Failures(lambda _error: None),
        on_joined=lambda: events.append("released"),
    )
    pipeline.start()
    assert pipeline.close()
    assert events == ["first", "second", "released"]


def test_a_weak_method_does_nothing_once_its_object_is_gone() -> None:
    class Owner:
        def __init__(self) -> None:
            self.told: list[BaseException] = []

        def tell(self, error: BaseException) -> None:
            self.told.append(error)

    owner, boom = Owner(), ValueError("boom")
    tell = weak_method(owner.tell)
    tell(boom)
    assert owner.told == [boom]
    gone = weakref.ref(owner)
    del owner
    assert gone() is None
    tell(boom)
