"""The device that a rank trains on: which GPU is its own, and that no other rank has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gloader.device import place_of
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.training.group import RankGroup


def resolve_device(device: str, *, local_rank: int = 0) -> torch.device:
    """Return the device that "auto" or a torch device's name stands for, for the rank ``local_rank`` of a machine.

    "auto" and "cuda" stand for the rank's own GPU: that of its number where the process sees as many, and the only one
    where it sees one, as under SLURM, Kubernetes or Ray, which show each rank its own.

    Raises
    ------
    ConfigError
        The name is unknown, or the device is not there.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    target = place_of(device)
    if target.type != "cuda":
        return target
    count = torch.cuda.device_count()
    if ":" not in str(target):
        target = torch.device("cuda", 0 if count == 1 else local_rank)
    if not count:
        raise ConfigError(f"device {device!r} is not there: torch sees no GPU; use the device 'cpu'")
    if target.index >= count:
        raise ConfigError(
            f"device {device!r} is not there: torch sees {count} GPUs, for rank {local_rank} of this machine; start as "
            "many ranks, show each rank one GPU (CUDA_VISIBLE_DEVICES), or use the device 'cpu'"
        )
    return target


def require_own_gpu(group: RankGroup, target: torch.device, *, asked: str) -> None:
    """Raise on every rank where two have one GPU, unless each was ``asked`` to use that one; collective.

    Raises
    ------
    RankSettingsError
        Two ranks have one GPU; names them, and says what to do.
    """
    if group.is_alone:
        return
    from gloader.distributed.own_gpus import gpu_of, require_own_gpus

    cards = group.gather({"gpu": gpu_of(target), "is_named": ":" in asked})
    require_own_gpus(
        {rank: card["gpu"] for rank, card in enumerate(cards)},
        may_share=all(card["is_named"] for card in cards),
    )
