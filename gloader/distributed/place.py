"""Where this process stands among the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from torch import distributed

from gloader.config import Sharing
from gloader.core.flag_values import require_choice
from gloader.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of every step that a loader takes, and whether all ranks build it together."""

    rank: int
    world_size: int
    is_collective: bool  # every rank of the process group builds this loader now
    is_shared: bool  # the ranks of a machine have one loader


def find_place(sharing: Sharing, rank: int | None, world_size: int | None) -> Place:
    """Return the place that was given, or that of this process in the process group.

    A loader with the rank and the world size of the process group, given or not, is built by all ranks together.

    Raises
    ------
    ConfigError
        ``sharing`` is unknown, only one of ``rank`` and ``world_size`` was given, or sharing was asked for where there
        is nobody to share.
    """
    require_choice("sharing", sharing, get_args(Sharing))
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank {rank} and world_size {world_size}: give both of them, or neither")
    group = _group()
    own = group if rank is None or world_size is None else (rank, world_size)
    is_collective = own == group and group[1] > 1
    if sharing == "shared" and not is_collective:
        raise ConfigError(
            f"sharing='shared' for rank {own[0]} of {own[1]}: start the process group first "
            "(torch.distributed.init_process_group) and give no other rank and world_size, or use sharing='private'"
        )
    return Place(
        rank=own[0],
        world_size=own[1],
        is_collective=is_collective,
        is_shared=is_collective and sharing != "private",
    )


def _group() -> tuple[int, int]:
    """Return rank and world size of the process group; one alone where there is none."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
