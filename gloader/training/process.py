"""Settings of a rank's process: its GPU, torch's random state and threads, and the release of freed memory.

A rank is one of the processes that train together; a machine runs one or several. Training, evaluation and prediction
use these functions independently of each other.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from gloader.device import place_of
from gloader.errors import ConfigError
from gloader.observe.peak_memory import release_freed_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.training.group import RankGroup


def resolve_device(device: str, *, local_rank: int = 0) -> torch.device:
    """Return the device for "auto" or a torch device name, on the rank ``local_rank`` of a machine.

    "auto" and "cuda" mean the rank's own GPU. It is the only visible GPU, because SLURM, Kubernetes and Ray may show
    each rank only its own, or the GPU with the number ``local_rank``. Without a GPU, "auto" means the CPU.

    Raises
    ------
    ConfigError
        The name is unknown, or the device does not exist.
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
    """Raise on every rank if two ranks share a GPU, unless the user named the GPU for each rank. Collective.

    Parameters
    ----------
    group : the ranks
    target : this rank's device
    asked : the device as the user gave it, such as "auto" or "cuda:0"

    Raises
    ------
    RankSettingsError
        Two ranks share a GPU. The error names the ranks and a remedy.
    """
    if group.is_alone:
        return
    from gloader.distributed.agree import gpu_of, require_own_gpus

    cards = group.gather({"gpu": gpu_of(target), "is_named": ":" in asked})
    require_own_gpus(
        {rank: card["gpu"] for rank, card in enumerate(cards)},
        may_share=all(card["is_named"] for card in cards),
    )


# Numbers of glibc's options for `mallopt`. Blocks above the first threshold in bytes are mapped separately and returned
# to the system when they are freed. The free end of the heap is returned if it exceeds the second threshold.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
# Normal values: glibc's own upper limits of both thresholds.
_LAZY = {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 64 << 20}
# Values inside `eager_release`: glibc's default trim threshold, and twice its default map threshold.
_EAGER = {_M_MMAP_THRESHOLD: 256 << 10, _M_TRIM_THRESHOLD: 128 << 10}


@contextmanager
def private_randomness(device: torch.device) -> Iterator[None]:
    """Restore the state of torch's random generators, for the CPU and ``device``, at the end of the block."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


def seed_torch(*address: int, device: torch.device) -> None:
    """Seed the generators for the CPU and ``device`` from ``address``: numbers such as seed, epoch and batch."""
    digest = hashlib.blake2b(repr(address).encode(), digest_size=8).digest()
    # The seed fits a signed 64-bit integer. The digest keeps neighbouring addresses from giving related states.
    seed = int.from_bytes(digest, "little") >> 1
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def own_cores(group: RankGroup, device: torch.device) -> Iterator[None]:
    """Let torch compute with this rank's part of the machine's cores inside the block.

    torchrun gives each of several ranks one thread unless OMP_NUM_THREADS is set. So one thread counts as torchrun's
    choice and is changed. Any other number is the user's choice and stays.
    """
    # A GPU does not use torch's threads: the loader's threads get the cores.
    is_ours = not group.is_alone and device.type == "cpu" and torch.get_num_threads() == 1
    with _threads(max(1, _num_cores() // group.most_local) if is_ours else None):
        yield


@contextmanager
def all_cores(group: RankGroup, device: torch.device) -> Iterator[None]:
    """Let torch compute with the cores of all ranks on this machine inside the block, while the other ranks wait."""
    is_shared = group.most_local > 1 and device.type == "cpu"
    with _threads(min(_num_cores(), torch.get_num_threads() * group.most_local) if is_shared else None):
        yield


def _num_cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Let torch compute with ``number`` threads inside the block; None changes nothing."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def eager_release() -> Iterator[None]:
    """Return every larger memory block to the system as soon as it is freed, inside the ``with`` block.

    The setting is for code that holds large memory blocks of many sizes for long: the heap would keep holes between
    them. A training step makes the same blocks again and again, and would be up to half slower with the setting. The
    setting affects the whole process: memory freed by other threads is returned at once too.
    """
    _set(_EAGER)
    try:
        yield
    finally:
        _set(_LAZY)
        # The new threshold affects later blocks only. Blocks freed meanwhile are trimmed now.
        release_freed_memory()


def _set(options: dict[int, int]) -> None:
    """Set options of the C library's allocator. Does nothing without glibc."""
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
