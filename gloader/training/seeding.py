"""Torch's randomness, addressed: every draw of a run depends on (seed, epoch, batch) alone."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def private_randomness(device: torch.device) -> Iterator[None]:
    """Restore the state of torch's generators at exit, whatever the block drew."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def seed_torch(*address: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of ``device`` from the numbers in ``address``."""
    digest = hashlib.blake2b(repr(address).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
