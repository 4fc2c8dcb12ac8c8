"""Torch's vector mathematics: one thread makes the first call, so that no run begins with 12-bit square roots."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gloader

from .conftest import Written

_NUM_PROCESSES = 80  # where several threads make the first call, about one process of 16 has other roots
_FIRST_ROOTS = """
import torch
from gloader.vector_math import settle_vector_math
torch.set_num_threads(4)
settle_vector_math()
values = torch.rand(32, 128) + 0.1  # two threads' worth
first, again = values.sqrt(), values.sqrt()
print(int((first != again).sum()))
"""


class _Calls(TorchDispatchMode):
    """Notes the square roots that are asked for: how many elements each has."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.sqrt.default:
            self.sizes.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def test_a_loader_makes_the_first_call_on_one_element(tiny: Written) -> None:
    calls = _Calls()
    with calls, gloader.Loader(tiny.dataset, fanouts=[2], batch_size=16, memory_budget="200MB"):
        pass
    assert calls.sizes == [1]


@pytest.mark.long
def test_the_first_roots_of_a_process_are_those_of_every_later_call() -> None:
    checkout = Path(__file__).parents[3]
    said = [
        subprocess.run(
            [sys.executable, "-c", _FIRST_ROOTS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        ).stdout.strip()
        for _ in range(_NUM_PROCESSES)
    ]
    assert said == ["0"] * _NUM_PROCESSES
