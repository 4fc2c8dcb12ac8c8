"""The parts of a step that ranks make together: the sum of gradients, and the memory that ranks share."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gloader.distributed.embedding_steps import ClientRows, HostSteps, _summed
from gloader.distributed.peers import Peer
from gloader.distributed.shared_memory import (
    bytes_of_slots,
    create_segment,
    read_slots,
    rows_bytes,
    rows_in_segment,
    take_segment,
    write_slots,
)
from gloader.distributed.wire import Gradient, ReadRows, RowsRead, Slots
from gloader.errors import RankError, StateError
from gloader.pipeline.absent_table import AbsentTable
from gloader.pipeline.superbatch import BatchSlots
from gloader.ssd_store.embedding.initial_rows import InitialRows

DIM = 2
_ROWS_OF_SLOTS = torch.tensor([7, 3, 9, 0, 5])


def _rows(num_slots: int = 5) -> Any:
    """Return as much of an embedding's rows as a sum needs."""
    return SimpleNamespace(
        dim=DIM,
        capacity=num_slots,
        table=SimpleNamespace(num_rows=10, width=3),
        rows_in=lambda slots: _ROWS_OF_SLOTS[slots],
    )


def test_gradients_of_a_row_are_added_in_the_order_of_the_ranks() -> None:
    """In float32, 1e8 - 1e8 + 1 is 1, and every other order gives 0."""
    parts = [
        (torch.tensor([0, 1]), torch.tensor([[1e8, 1.0], [2.0, 2.0]])),
        (torch.tensor([3, 0]), torch.tensor([[4.0, 4.0], [-1e8, 1.0]])),
        (torch.tensor([0]), torch.tensor([[1.0, 1.0]])),
    ]
    slots, grad = _summed(_rows(), 6, parts)
    assert (slots.number, slots.slots.tolist()) == (6, [0, 1, 3])
    assert grad is not None
    assert grad.tolist() == [[1.0, 3.0], [2.0, 2.0], [4.0, 4.0]]


def test_a_row_that_repeats_in_a_batch_is_added_up_first() -> None:
    slots, grad = _summed(_rows(), 0, [(torch.tensor([2, 2, 4]), torch.ones(3, DIM))])
    assert slots.slots.tolist() == [2, 4]
    assert grad is not None
    assert grad.tolist() == [[2.0, 2.0], [1.0, 1.0]]


def test_the_first_gradient_of_a_row_keeps_its_sign_of_zero() -> None:
    _, grad = _summed(_rows(), 0, [(torch.tensor([1]), torch.tensor([[-0.0, 0.0]]))])
    assert grad is not None
    assert torch.signbit(grad).tolist() == [[True, False]]


def test_without_any_gradient_there_is_no_sum() -> None:
    slots, grad = _summed(_rows(), 4, [])
    assert (slots.number, len(slots.slots), grad) == (4, 0, None)


def test_slots_are_sent_with_their_width_and_cannot_be_written_by_another_rank() -> None:
    steps = HostSteps(SimpleNamespace(), num_ranks=2)  # type: ignore[arg-type] - no step is made
    memory = steps.allocate(5 * 3 * 4)
    steps.stepping(_rows())
    sent: list[Any] = []
    steps.send([SimpleNamespace(send=lambda message, descriptor: sent.append((message, os.dup(descriptor))))])  # type: ignore[list-item]
    ((message, descriptor),) = sent
    assert message == Slots(embedding=0, num_slots=5, width=3, dim=DIM)
    mapped = take_segment(os.dup(descriptor), is_touched=False, is_writable=False)
    memory.view(np.float32)[:] = np.arange(15)
    rows = mapped.view(np.float32)[:15].reshape(5, 3)
    client = ClientRows(SimpleNamespace(), 0, rows[:, :DIM], num_ranks=2)  # type: ignore[arg-type] - no step is made
    leaf = client.leaf(BatchSlots(number=1, slots=torch.tensor([4, 0])))
    assert leaf.tolist() == [[12.0, 13.0], [0.0, 1.0]]
    assert leaf.requires_grad
    assert client.num_bytes == 60
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    with pytest.raises(PermissionError):
        take_segment(descriptor)


def test_slots_come_back_as_they_were_written_and_longer_ones_are_refused() -> None:
    slots = [BatchSlots(number=8, slots=torch.tensor(each, dtype=torch.int64)) for each in ([3, 1], [], [5])]
    memory = np.zeros(bytes_of_slots([2, 0, 1]), np.uint8)
    write_slots(slots, memory)
    found = read_slots(8, [2, 0, 1], memory)
    memory[:] = 0  # they are copies
    assert [(each.number, each.slots.tolist()) for each in found] == [(8, [3, 1]), (8, []), (8, [5])]
    with pytest.raises(RankError, match="another rank sent 99 slots in 128 B; use one version of gloader"):
        read_slots(8, [99], memory)


def _peer(told: list[Any]) -> Peer:
    return Peer(SimpleNamespace(rank=1, tell=told.append))  # type: ignore[arg-type]


def test_a_gradient_is_kept_for_its_run_and_read_from_the_memory_of_its_rank() -> None:
    peer = _peer([])
    descriptor, memory = create_segment(rows_bytes(2, dim=DIM))
    slots, rows = rows_in_segment(memory, 2, dim=DIM)
    slots[:], rows[:] = [4, 1], [[1, 2], [3, 4]]
    peer.keep(Gradient(run=3, embedding=0, step=7, num_rows=2), descriptor, run=4)
    assert not peer.has_stepped(0, 7)  # of another run, but its memory stays mapped
    peer.keep(Gradient(run=4, embedding=0, step=7, num_rows=2), None, run=4)
    assert peer.has_stepped(0, 7)
    assert not peer.has_stepped(0, 8)
    found = peer.take(0, dim=DIM)
    assert found is not None
    assert [part.tolist() for part in found] == [[4, 1], [[1, 2], [3, 4]]]
    assert not peer.has_stepped(0, 7)
    peer.keep(Gradient(run=4, embedding=0, step=8, num_rows=0), None, run=4)
    assert peer.take(0, dim=DIM) is None
    peer.keep(Gradient(run=4, embedding=0, step=9, num_rows=999), None, run=4)
    with pytest.raises(
        RankError, match=r"rank 1 sent 999 rows of an embedding in \d+ B; use one version of gloader"
    ):
        peer.take(0, dim=DIM)


def test_rows_are_read_into_the_memory_of_the_rank_that_asks_and_errors_are_told() -> None:
    told: list[Any] = []
    peer = _peer(told)
    descriptor, memory = create_segment(rows_bytes(3, dim=DIM))
    rows_in_segment(memory, 3, dim=DIM)[0][:] = [5, 0, 2]
    read = lambda number, ids: np.stack([ids, ids + number], 1).astype(np.float32)  # noqa: E731
    peer.answer(ReadRows(embedding=1, num_rows=3), descriptor, read)
    assert told == [RowsRead()]
    assert rows_in_segment(memory, 3, dim=DIM)[1].tolist() == [[5, 6], [0, 1], [2, 3]]

    def fail(number: int, ids: Any) -> Any:
        raise OSError("the disk is gone")

    peer.answer(ReadRows(embedding=1, num_rows=3), None, fail)
    assert told[1:] == [RowsRead(error="OSError: the disk is gone")]


def test_a_table_of_another_rank_has_its_form_and_refuses_the_rest() -> None:
    initial = InitialRows(seed=0, dim=2, kind="zeros", scale=0.0, state=(0.0,))
    table = AbsentTable(num_rows=4, initial=initial, facts={}, folder=None)
    assert table.width == 3
    table.close()
    for call, what in {
        table.read_into: "rows() without a loader",
        table.pieces: "pieces() and export()",
        table.forget: "forget()",
    }.items():
        with pytest.raises(StateError) as raised:
            call()
        assert str(raised.value) == (
            "rank 0 has the table of this embedding, which the ranks of a machine share: call "
            f'{what} there ("if rank == 0:")'
        )
