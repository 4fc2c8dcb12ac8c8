"""What the ranks of the default process group tell one another: bytes and facts, never pickles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def place_of_tensors() -> torch.device:
    """Return where tensors have to be that are sent."""
    is_cuda = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda else torch.device("cpu")


def gather_bytes(own: bytes) -> list[bytes]:
    """Return what every rank gave, in the order of ranks; collective. Shorter ones are filled up with spaces."""
    place, count = place_of_tensors(), distributed.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64, device=place) for _ in range(count)]
    distributed.all_gather(sizes, torch.tensor([len(own)], device=place))
    longest = max(int(size) for size in sizes)
    sent = torch.frombuffer(bytearray(own.ljust(longest)), dtype=torch.uint8).to(place)
    found = [torch.empty_like(sent) for _ in range(count)]
    distributed.all_gather(found, sent)
    return [one.cpu().numpy().tobytes() for one in found]


def require_equal(facts: Mapping[int, Mapping[str, Any]], where: str) -> None:
    """Compare the ``facts`` of each rank, JSON values by name, with those of the first. Pure.

    Parameters
    ----------
    where : ends the message: "it has to be the same on every rank"

    Raises
    ------
    ConfigError
        Ranks differ; names the first such fact.
    """
    first = next(iter(facts))
    for rank, card in facts.items():
        for name in {**facts[first], **card}:
            ours, theirs = facts[first].get(name), card.get(name)
            if ours != theirs:
                raise ConfigError(
                    f"{name} is {ours!r} on rank {first} and {theirs!r} on rank {rank}; it has to be the same {where}"
                )
