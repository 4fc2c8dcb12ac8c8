"""The consumer's drop of a batch runs no code in which a Ctrl-C could get lost."""

import sys
from types import FrameType
from typing import Any

import pytest

from gloader.pipeline.buffers import BufferRing, RowForm


@pytest.mark.reliability("D4")
def test_a_buffer_comes_back_without_a_line_of_python() -> None:
    """An exception in a callback of the garbage collector is printed and lost, an interrupt too."""
    ring = BufferRing(forms=[RowForm(dim=2)], rows=[3], max_bytes=24)
    array = ring.acquire([3])[0]
    array[:] = 7
    address = array.ctypes.data
    entered: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    del array
    sys.setprofile(None)
    assert entered == []
    again = ring.acquire([2])[0]
    assert again.ctypes.data == address


def test_a_buffer_that_grew_too_small_is_freed() -> None:
    ring = BufferRing(forms=[RowForm(dim=1)], rows=[1], max_bytes=400)
    for rows in range(1, 101):
        array = ring.acquire([rows])[0]
        del array
    assert len(ring._leases) == 1
