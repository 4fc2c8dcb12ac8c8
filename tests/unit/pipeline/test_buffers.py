"""The buffer ring: reuse, bounds, and no overwriting of what somebody still holds."""

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch

from gloader.errors import BudgetError, ChannelClosedError
from gloader.pipeline.buffers import BufferRing, RowForm


def test_a_dropped_buffer_is_used_again_and_a_held_one_is_not() -> None:
    ring = BufferRing(forms=[RowForm(dim=8)], rows=[100], max_bytes=2 * 3200)
    held = ring.acquire([100])[0]
    held[:] = 7
    dropped = ring.acquire([50])[0]
    address = dropped.ctypes.data
    del dropped
    again = ring.acquire([100])[0]
    assert again.ctypes.data == address
    again[:] = 9
    assert (held == 7).all()


def test_a_view_keeps_its_buffer() -> None:
    ring = BufferRing(forms=[RowForm(dim=8)], rows=[100], max_bytes=2 * 3200)
    view = ring.acquire([100])[0][3:5]
    view[:] = 7
    ring.acquire([100])[0][:] = 9
    ring.acquire([100])[0][:] = 9
    assert (view == 7).all()


def test_a_larger_batch_makes_a_larger_buffer_in_the_place_of_a_small_one() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=100)
    del (first := [ring.acquire([10])[0]])[0]
    assert first == []
    assert ring.acquire([20])[0].shape == (20, 1)


@pytest.mark.reliability("J11")
def test_a_buffer_that_is_too_small_is_gone_before_the_larger_one_is_made() -> None:
    made: list[weakref.ref[np.ndarray]] = []

    def allocate(num_bytes: int) -> np.ndarray:
        assert all(ref() is None for ref in made), "the memory of two buffers is taken where one is allowed"
        made.append(weakref.ref(buffer := np.empty(num_bytes, np.uint8)))
        return buffer

    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=100, allocate=allocate)
    ring.acquire([10])[0]
    assert ring.acquire([20])[0].shape == (20, 1)
    assert len(made) == 2


def test_a_batch_larger_than_the_ring_says_needed_and_allowed() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=100)
    with pytest.raises(BudgetError, match=r"120 B.*100 B.*smaller batch size"):
        ring.acquire([30])[0]


def test_holding_every_buffer_and_asking_for_more_is_an_error_not_a_hang() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=80, patience_s=0.1)
    held = [ring.acquire([10])[0], ring.acquire([10])[0]]
    with ring.consumer_waits(), pytest.raises(BudgetError, match="clone what you keep"):
        ring.acquire([10])[0]
    assert len(held) == 2


def test_cancel_wakes_a_waiter_and_resume_gives_buffers_again() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=40)
    held = ring.acquire([10])[0]
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ring.acquire([10])[0]
        except ChannelClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, name="gloader-test")
    thread.start()
    ring.cancel()
    thread.join(5)
    assert len(errors) == 1
    del held
    ring.resume()
    assert ring.acquire([10])[0].shape == (10, 1)


def _lent(ring: BufferRing, rows: int = 10) -> torch.Tensor:
    x = torch.from_numpy(ring.acquire([rows])[0])
    ring.lend([x])
    return x


def test_the_only_buffer_is_taken_back_when_the_next_batch_is_asked_for() -> None:
    ring = BufferRing(forms=[RowForm(dim=2)], rows=[10], max_bytes=100, patience_s=0.1)
    ring.resume(is_lending=True)
    x = _lent(
        ring
    )  # as the variable of a loop, which still names the last batch while it asks for the next one
    with ring.consumer_waits():
        ring.take_back()
        again = ring.acquire([10])[0]
    assert x.shape == (0, 2)
    assert again.shape == (10, 2)


def test_the_last_batch_is_taken_back_when_a_larger_one_comes_that_leaves_room_for_itself_alone() -> None:
    ring = BufferRing(forms=[RowForm(dim=2)], rows=[10], max_bytes=160, patience_s=0.4)
    ring.resume(is_lending=True)
    x = _lent(ring)
    with ring.consumer_waits():
        ring.take_back()  # there is room for another one like it
        assert x.shape == (10, 2)
        larger = ring.acquire([15])[0]
    assert x.shape == (0, 2)
    assert larger.shape == (15, 2)


def test_a_buffer_is_left_where_there_is_another_one() -> None:
    ring = BufferRing(forms=[RowForm(dim=2)], rows=[10], max_bytes=160)
    x = _lent(ring)
    ring.take_back()
    assert x.shape == (10, 2)


def test_autograd_refuses_to_go_back_through_a_batch_that_was_taken_back() -> None:
    ring = BufferRing(forms=[RowForm(dim=2)], rows=[10], max_bytes=100)
    weight = torch.ones(2, 1, requires_grad=True)
    x = _lent(ring)
    loss = (x @ weight).sum()
    ring.take_back()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


def test_a_view_of_the_only_buffer_is_an_error_not_a_hang() -> None:
    ring = BufferRing(forms=[RowForm(dim=2)], rows=[10], max_bytes=100, patience_s=0.1)
    ring.resume(is_lending=True)
    kept = _lent(ring)[:3]
    ring.take_back()
    with ring.consumer_waits(), pytest.raises(BudgetError, match="clone what you keep"):
        ring.acquire([10])[0]
    assert kept.shape == (3, 2)


def test_a_buffer_that_is_taken_back_when_patience_is_at_its_end_is_given_still() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=40, patience_s=0.0)
    ring.resume(is_lending=True)
    kept = _lent(ring)
    with ring.consumer_waits():
        assert isinstance(ring.acquire([10])[0], np.ndarray)
    assert kept.shape == (0, 1)


def test_a_batch_that_is_on_its_way_is_waited_for_however_slow_the_disk_is() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[10], max_bytes=40, patience_s=0.05)
    ring.resume(is_lending=True)
    on_its_way = ring.acquire([10])[0]  # read, and not yet gathered, while the consumer has waited for long
    found: list[object] = []

    def wait() -> None:
        try:
            found.append(ring.acquire([10])[0])
        except BudgetError as error:
            found.append(error)

    with ring.consumer_waits():
        thread = threading.Thread(target=wait, name="gloader-test")
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    x = torch.from_numpy(on_its_way)
    del on_its_way
    ring.lend([x])
    ring.take_back()
    with ring.consumer_waits():
        thread.join(5)
    assert isinstance(found[0], np.ndarray)


class _RingWhoseConsumerReceivesMeanwhile(BufferRing):
    """A ring whose consumer receives its batch at the moment another thread has seen that the consumer waits."""

    receive: Callable[[], None] | None = None

    @property
    def _consumer_waits_since(self) -> float | None:
        since, receive = self._since, self.receive
        if receive is not None and threading.current_thread() is not threading.main_thread():
            self.receive = None
            receive()
        return since

    @_consumer_waits_since.setter
    def _consumer_waits_since(self, since: float | None) -> None:
        self._since = since


def test_a_batch_that_has_just_arrived_is_not_taken_back() -> None:
    ring = _RingWhoseConsumerReceivesMeanwhile(
        forms=[RowForm(dim=1)], rows=[10], max_bytes=40, patience_s=0.05
    )
    ring.resume(is_lending=True)
    x = torch.from_numpy(ring.acquire([10])[0])

    def receive() -> None:
        ring.note_wait(is_waiting=False)
        ring.lend([x])

    def gather() -> None:
        with suppress(ChannelClosedError):
            ring.acquire([10])

    thread = threading.Thread(target=gather, name="gloader-test")
    with ring.consumer_waits():
        ring.receive = receive
        thread.start()
        thread.join(0.3)
        ring.receive = None
    receive()
    assert x.shape == (10, 1)
    ring.cancel()
    thread.join(5)


_TWO = (RowForm(dim=3, dtype=np.dtype(np.float32)), RowForm(dim=2, dtype=np.dtype(np.uint16)))


def test_the_rows_of_all_tables_lie_in_one_buffer_apart_from_one_another() -> None:
    ring = BufferRing(forms=_TWO, rows=[5, 4], max_bytes=400)
    first, second = ring.acquire([5, 4])
    first[:], second[:] = 7, 9
    assert (first.shape, first.dtype, second.shape, second.dtype) == ((5, 3), np.float32, (4, 2), np.uint16)
    assert second.ctypes.data - first.ctypes.data == 64  # 60 bytes of the first, and what fills a cache line
    assert (first == 7).all()


def test_a_buffer_comes_back_with_the_last_of_its_tables() -> None:
    ring = BufferRing(forms=_TWO, rows=[5, 4], max_bytes=80, patience_s=0.1)
    first, second = ring.acquire([5, 4])
    address = first.ctypes.data
    kept = second[1:2]
    del first, second
    with ring.consumer_waits(), pytest.raises(BudgetError, match="clone what you keep"):
        ring.acquire([1, 1])
    del kept
    again = ring.acquire([2, 3])
    assert again[0].ctypes.data == address


def test_a_buffer_grows_by_the_most_rows_of_each_table() -> None:
    ring = BufferRing(forms=_TWO, rows=[1, 1], max_bytes=10_000)
    ring.acquire([9, 1])
    ring.acquire([1, 9])
    assert ring.rows == (9, 9)
    with pytest.raises(BudgetError, match="1,000 rows of 12 B and 1 rows of 4 B"):
        ring.acquire([1_000, 1])


@pytest.mark.reliability("L8")
def test_most_rows_of_two_tables_need_not_fit_together_where_no_batch_has_both() -> None:
    """10 rows of 12 B or 30 rows of 4 B: either takes 120 B and a little, both together 240."""
    ring = BufferRing(forms=_TWO, rows=[1, 1], max_bytes=150, patience_s=0.1)
    for _ in range(2):
        for rows in ([10, 1], [1, 20]):
            assert [len(matrix) for matrix in ring.acquire(rows)] == rows
    with pytest.raises(BudgetError, match="40 rows of 12 B and 2 rows of 4 B"):
        ring.acquire([40, 2])


def test_what_was_lent_of_every_table_is_taken_back() -> None:
    ring = BufferRing(forms=_TWO, rows=[5, 4], max_bytes=80)
    ring.resume(is_lending=True)
    x = [torch.from_numpy(matrix.astype(np.float32, copy=False)) for matrix in ring.acquire([5, 4])]
    ring.lend(x)
    ring.take_back()
    assert [features.shape for features in x] == [(0, 3), (0, 2)]


def test_without_tables_nothing_is_waited_for_but_the_end() -> None:
    ring = BufferRing(forms=(), rows=(), max_bytes=0)
    assert ring.acquire([]) == ()
    ring.cancel()
    with pytest.raises(ChannelClosedError):
        ring.acquire([])
    ring.resume()
    assert ring.acquire([]) == ()
