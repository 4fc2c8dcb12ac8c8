"""How many threads torch computes with where several ranks share the cores of a machine."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.training.group import RankGroup


@contextmanager
def own_cores(group: RankGroup, device: torch.device) -> Iterator[None]:
    """Compute with this rank's part of the cores.

    torchrun allows each of several ranks one thread unless OMP_NUM_THREADS says otherwise. Another number than one is
    the user's and stays.
    """
    is_ours = not group.is_alone and device.type == "cpu" and torch.get_num_threads() == 1
    with _threads(max(1, _num_cores() // group.most_local) if is_ours else None):
        yield


@contextmanager
def all_cores(group: RankGroup, device: torch.device) -> Iterator[None]:
    """Compute with the cores of all ranks of this machine: while the others wait."""
    is_shared = group.most_local > 1 and device.type == "cpu"
    with _threads(min(_num_cores(), torch.get_num_threads() * group.most_local) if is_shared else None):
        yield


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
