"""Each check of the device suite fails a device that is broken in that way."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from unit.testing.broken import must_fail

from gloader.testing.device_suite import DeviceSuite
from gloader.testing.rehearsed_device import RehearsedDevice, RehearsedMark, RehearsedPin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.device.row_table import RowParts


class Rehearsal(RehearsedDevice):
    """What the mutants are made from: passes the suite, see tests/unit/device/test_conformance.py."""

    def __init__(self) -> None:
        super().__init__(reads_in_place=True)


class IsNotThere(Rehearsal):
    @property
    def place(self) -> torch.device:
        return torch.device("cuda", 99)


class IsFull(Rehearsal):
    def free_bytes(self) -> int:
        return 0


class HasOneBuffer(Rehearsal):
    buffer = np.zeros(20_000, np.uint8)

    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        return self.buffer[:num_bytes]


class RoundsBuffersUp(Rehearsal):
    def host_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        return np.zeros(-(-num_bytes // 32) * 32, np.uint8)


class WidensIds(Rehearsal):
    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        found = super().upload(arrays)
        return tuple(tensor.long() if tensor.dtype == torch.int32 else tensor for tensor in found)


class Flattens(Rehearsal):
    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.flatten() for tensor in super().upload(arrays))


class LeavesEmptyOnesOut(Rehearsal):
    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for tensor in super().upload(arrays) if tensor.numel())


class SharesWhatItSends(Rehearsal):
    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(array) for array in arrays)


class CopiesNothing(Rehearsal):
    def copy(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        pass


class ScalesByPlace(Rehearsal):
    def gather(self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
        super().gather(torch.arange(len(ids)), parts, out)


class NeverArrives(Rehearsal):
    def mark(self) -> RehearsedMark:
        class Late(RehearsedMark):
            def is_reached(self) -> bool:
                return False

        return Late(self, None)


class SendsOnce(Rehearsal):
    sent: list[int] = []  # noqa: RUF012 - of the class, so that a second block finds it

    @contextmanager
    def sending(self) -> Iterator[None]:
        if self.sent:
            raise RuntimeError("the stream is taken")
        self.sent.append(1)
        yield


class SamplesIntoSharedMemory(Rehearsal):
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.made = super().empty(shape, dtype)
        return self.made

    def mark_computing(self) -> RehearsedMark:
        self.made.zero_()  # by the next batch
        return super().mark_computing()


class RunsAStepTwice(Rehearsal):
    def most_bytes_of(self, step: Callable[[], object]) -> int:
        step()
        return super().most_bytes_of(step)


class HidesErrors(Rehearsal):
    def most_bytes_of(self, step: Callable[[], object]) -> int:
        try:
            return super().most_bytes_of(step)
        except MemoryError:
            return 0


class AnswersLessThanNothing(Rehearsal):
    def most_bytes_of(self, step: Callable[[], object]) -> int:
        step()
        return -1


class PinsACopy(Rehearsal):
    def pin(self, array: NDArray[Any]) -> RehearsedPin:
        return RehearsedPin(self, array.copy())


PLACE = DeviceSuite.test_tensors_can_be_made_where_batches_are_delivered
BUFFERS = DeviceSuite.test_host_buffers_hold_what_is_written
ARRIVE = DeviceSuite.test_arrays_arrive_as_they_were
OUTLIVES = DeviceSuite.test_what_was_sent_outlives_the_array_where_it_is_a_copy
ROWS = DeviceSuite.test_rows_come_as_they_are_stored_and_are_widened
MARK = DeviceSuite.test_a_mark_is_reached_after_waiting_for_it
THREAD = DeviceSuite.test_another_thread_can_send
SAMPLED = DeviceSuite.test_what_was_sampled_can_be_read_behind_a_mark
STEP = DeviceSuite.test_a_measured_step_is_run_once
PINNED = DeviceSuite.test_pinned_memory_is_the_array_itself

MUTANTS = [
    (PLACE, IsNotThere, []),
    (PLACE, IsFull, []),
    (BUFFERS, HasOneBuffer, [5]),
    (BUFFERS, RoundsBuffersUp, [5]),
    (ARRIVE, WidensIds, []),
    (ARRIVE, Flattens, []),
    (ARRIVE, LeavesEmptyOnesOut, []),
    (OUTLIVES, SharesWhatItSends, []),
    (ROWS, CopiesNothing, [True]),
    (ROWS, ScalesByPlace, [False]),
    (MARK, NeverArrives, []),
    (THREAD, SendsOnce, []),
    (SAMPLED, SamplesIntoSharedMemory, []),
    (STEP, RunsAStepTwice, []),
    (STEP, HidesErrors, []),
    (STEP, AnswersLessThanNothing, []),
    (PINNED, PinsACopy, []),
]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("check", "kind", "arguments"), MUTANTS)
def test_a_broken_device_fails(check: Any, kind: type[Rehearsal], arguments: list[Any]) -> None:
    must_fail(check, DeviceSuite(), kind(), *arguments)


def test_every_check_has_a_mutant() -> None:
    checks = {name for name in vars(DeviceSuite) if name.startswith("test_")}
    assert {check.__name__ for check, _, _ in MUTANTS} == checks
