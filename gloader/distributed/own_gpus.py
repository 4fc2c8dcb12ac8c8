"""The GPUs of ranks that talk: that each rank has its own, and that they have talked before memory is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import distributed

from gloader.errors import RankSettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The first bucket of gradients that DDP sends.
_FIRST_BYTES: Final = 1 << 20


def backend_of(device_type: str) -> str | None:
    """Return the backend of the process group that carries tensors on such devices; None: none does."""
    # The name that the group was started with may be "nccl", "cuda:nccl" or "cpu:gloo,cuda:nccl"; this one has pairs.
    pairs = (pair.split(":") for pair in distributed.get_backend_config().split(",") if ":" in pair)
    return {kind: name for kind, name in pairs}.get(device_type)  # noqa: C416 - lists of two are no pairs to mypy


def collective_device() -> torch.device:
    """Return the device that tensors of a collective are on: the CPU, where the process group carries them."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if backend_of("cpu") is None
        else torch.device("cpu")
    )


def gpu_of(place: torch.device) -> str | None:
    """Return what tells a GPU from all others; None for the CPU, and for a GPU that is not there."""
    if place.type != "cuda" or not torch.cuda.is_available():
        return None
    index = place.index if ":" in str(place) else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        return None  # whoever opens it says so
    return str(torch.cuda.get_device_properties(index).uuid)


def require_own_gpus(gpus: Mapping[int, str | None], *, may_share: bool) -> None:
    """Raise RankSettingsError where two ranks have one GPU.

    Parameters
    ----------
    gpus : by rank, each as of `gpu_of`
    may_share : whether that was asked for in full; NCCL refuses it all the same
    """
    if may_share and backend_of("cuda") != "nccl":
        return
    first: dict[str, int] = {}
    for rank, gpu in gpus.items():
        if gpu is not None and first.setdefault(gpu, rank) != rank:
            raise RankSettingsError(
                f"ranks {first[gpu]} and {rank} are on one GPU ({gpu}); give each its own: start no more ranks than "
                "there are GPUs, and show each rank all of them or one that no other sees (CUDA_VISIBLE_DEVICES). To "
                "share one, start the process group with gloo, name the GPU on each rank ('cuda:0'), and give "
                "device_cache as a size: 'auto' would count the same free memory twice"
            )


def connect(place: torch.device) -> None:
    """Send something between the devices of the ranks; collective, on devices of one type.

    NCCL takes its memory when devices first talk, hundreds of MB. It is taken now, before what is free is measured.
    """
    if backend_of(place.type) is None:
        return
    distributed.all_reduce(torch.zeros(_FIRST_BYTES, dtype=torch.uint8, device=place))
    if place.type == "cuda":
        torch.cuda.synchronize(place)
