"""The dry run on a device measures the larger of a training step and an evaluation."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from gloader.training.run_loader import with_evaluation


class Measured:
    """A device that notes what is asked of it."""

    def __init__(self, free: int) -> None:
        self.asked: list[object] = []
        self._free = free

    def free_bytes(self) -> int:
        self.asked.append("free")
        return self._free

    @contextmanager
    def sending(self):
        yield

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.asked.append(shape)
        return torch.empty(shape, dtype=dtype)


@pytest.mark.reliability("J11")
@pytest.mark.parametrize(("needed", "taken"), [(100, 100), (1000, 250)])
def test_the_step_is_over_before_the_evaluations_memory_is_taken(needed, taken) -> None:
    device = Measured(free=1000)
    with_evaluation(device.asked.append, needed, device)("step")
    assert device.asked == ["step", "free", (taken,)]
