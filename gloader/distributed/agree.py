"""The start of a loader on several ranks: their membership, their GPUs, and their equal settings.

Ranks of the process group exchange tensors of bytes by collectives, never pickles. Each rank must have its own
GPU.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, get_args

import torch
from torch import distributed

from gloader.config import Sharing
from gloader.core.flag_values import require_choice
from gloader.core.machine import distinct_names, host_id, machine_id, named_machine, shown_machine
from gloader.core.version import __version__
from gloader.distributed.wire import Listener
from gloader.errors import ConfigError, RankError, RankSettingsError
from gloader.ssd_store.spill.claim import SpillOwner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# The size of DDP's first bucket of gradients.
_FIRST_BYTES: Final = 1 << 20


def backend_of(device_type: str) -> str | None:
    """Return the backend of the process group for tensors on such devices, or None."""
    # The group may have been started as "nccl", "cuda:nccl" or "cpu:gloo,cuda:nccl"; this form always has pairs.
    pairs = (pair.split(":") for pair in distributed.get_backend_config().split(",") if ":" in pair)
    return {kind: name for kind, name in pairs}.get(device_type)  # noqa: C416 - lists of two are no pairs to mypy


def collective_device() -> torch.device:
    """Return the device for tensors of a collective: the CPU, if the process group supports it."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if backend_of("cpu") is None
        else torch.device("cpu")
    )


def gpu_of(place: torch.device) -> str | None:
    """Return a unique name of a GPU; None for the CPU, and for a missing GPU."""
    if place.type != "cuda" or not torch.cuda.is_available():
        return None
    index = place.index if ":" in str(place) else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        return None  # opening it raises the error
    return str(torch.cuda.get_device_properties(index).uuid)


def require_own_gpus(gpus: Mapping[int, str | None], *, may_share: bool) -> None:
    """Raise RankSettingsError if two ranks share one GPU.

    Parameters
    ----------
    gpus : by rank, each as of `gpu_of`
    may_share : whether every rank requested its GPU by number; NCCL refuses shared GPUs all the same
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
    """Send a message between the devices of the ranks; collective, on devices of one type.

    NCCL allocates hundreds of MB at the first message. It does so now, before free memory is measured.
    """
    if backend_of(place.type) is None:
        return
    distributed.all_reduce(torch.zeros(_FIRST_BYTES, dtype=torch.uint8, device=place))
    if place.type == "cuda":
        torch.cuda.synchronize(place)


# Two containers of one machine may share the boot id but not the network: their ranks cannot reach each other.
_NETWORK = "/proc/self/ns/net"
_PROCESSES = "/proc/self/ns/pid"

_ALL_SEEDS = "rank=0, world_size=1 where this rank is to take all of them"

# Remedies for facts that no flag sets.
_OWN_SEEDS = (
    ": give every rank all seeds, of which it takes its part, or rank=0, world_size=1 where each has seeds "
    "of its own"
)
_HOW_TO_MEND = {
    "num_seeds": _OWN_SEEDS,
    "seeds": _OWN_SEEDS,
    "dataset": ": its fingerprint differs; prepare it with one line on all machines, or copy the folder",
    "version": ": install one version of gloader on all machines",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The rank that a loader serves: its part of every step, and whether all ranks build the loader together."""

    rank: int
    world_size: int
    is_collective: bool  # every rank of the process group builds this loader now
    is_shared: bool  # the ranks of a machine have one loader
    is_assumed: bool = False  # without a given rank and a group of ranks: the process was alone

    def require_own_part(self) -> None:
        """Refuse batches of all seeds in a process that has become one of several ranks.

        A framework may start the process group after the loader was built: Lightning does so in ``fit``.

        Raises
        ------
        ConfigError
            The loader was built without a rank, before the process group existed.
        """
        rank, world_size = _group()
        if self.is_assumed and world_size > 1:
            raise ConfigError(
                f"rank {rank} of {world_size} would take all seeds, as every other rank: this loader was built before "
                "the process group. Build it afterwards (with Lightning in train_dataloader()), or give "
                f"{_ALL_SEEDS}"
            )


def find_membership(sharing: Sharing, rank: int | None, world_size: int | None) -> Membership:
    """Return the requested membership, or that of this process in the process group.

    A loader with the rank and the world size of the process group, given or not, is built by all ranks together. A
    loader with another given rank (0 of 1: all seeds) belongs to this process only.

    Parameters
    ----------
    sharing : "shared" requires one loader for the ranks of a machine, "auto" has one if possible, "private" has none
    rank, world_size : both given, or both None for those of the process group

    Raises
    ------
    ConfigError
        ``sharing`` is unknown, only one of ``rank`` and ``world_size`` was given, or "shared" was given without a
        process group; or neither was given to a process that torchrun started as one of several without a process
        group.
    """
    require_choice("sharing", sharing, get_args(Sharing))
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank {rank} and world_size {world_size}: give both of them, or neither")
    group = _group()
    is_assumed = rank is None and group[1] == 1
    if is_assumed:
        _require_no_launch()
    own = group if rank is None or world_size is None else (rank, world_size)
    is_collective = own == group and group[1] > 1
    if sharing == "shared" and not is_collective:
        raise ConfigError(
            f"sharing='shared' for rank {own[0]} of {own[1]}: start the process group first "
            "(torch.distributed.init_process_group) and give no other rank and world_size, or use sharing='private'"
        )
    return Membership(
        rank=own[0],
        world_size=own[1],
        is_collective=is_collective,
        is_shared=is_collective and sharing != "private",
        is_assumed=is_assumed,
    )


def _require_no_launch() -> None:
    """Raise ConfigError if torchrun started this process as one of several without a process group.

    torch's own rendezvous reads ``RANK``. Slurm's variables do not count: ``sbatch -n 4`` sets them for a single
    script, and ``srun`` also starts independent runs.
    """
    rank, world_size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    is_launched = rank.isdecimal() and world_size.isdecimal() and int(world_size) > 1
    if is_launched and not (distributed.is_available() and distributed.is_initialized()):
        raise ConfigError(
            f"the environment says rank {rank} of {world_size}, and there is no process group: each rank would take "
            "all seeds. Call torch.distributed.init_process_group before the loader is built, or give "
            f"rank={rank}, world_size={world_size} for this rank's part, or {_ALL_SEEDS}"
        )


def _group() -> tuple[int, int]:
    """Return rank and world size of the process group; without one, those of a single process."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The settings that must be equal on all ranks, by name."""

    batches: Mapping[str, Any]  # JSON values that determine the batches; the same on every rank
    machine: Mapping[str, Any]  # of the loader itself; the same on the ranks that share it
    place: torch.device  # of this rank
    is_cache_sized: bool  # whether the cache's size was set by the user
    part: tuple[int, int] | None = (
        None  # range of this machine's rows: its number, of how many; None means all rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The ranks that share a loader, in ascending order; the first of them hosts it."""

    ranks: tuple[int, ...]
    rank: int
    address: str  # of the host's socket
    token: str  # shows the host that a rank belongs to its team
    num_loaders: int  # on this host, sharing its memory: of its ranks, or of machines rehearsed on it
    listener: Listener | None  # of the host
    hosts: tuple[int, ...]  # the first rank of each machine, ascending
    machines: tuple[str, ...]  # the name of each of these machines; no two are alike
    parts: tuple[tuple[int, int] | None, ...]  # range of rows of each machine
    launch: str  # a name of this loader on all ranks, unlike any other

    @property
    def is_host(self) -> bool:
        """True if this rank loads for the others."""
        return self.rank == self.ranks[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener. Idempotent."""
        if self.listener is not None:
            self.listener.close()


def refuse(membership: Membership, error: BaseException) -> None:
    """Take part in `assemble` only to report to the other ranks why this one cannot load; collective."""
    _gather_cards({"rank": membership.rank, "error": f"{type(error).__name__}: {error}"})


def assemble(membership: Membership, facts: Facts) -> Team:
    """Agree with all ranks of the process group on the loader's settings; collective. Return this machine's ranks.

    Raises
    ------
    RankSettingsError
        Ranks differ in a required setting; raised on every rank, naming the first one.
    RankError
        Another rank cannot load.
    """
    # Before the collective: it sends this address to the others, which connect at once.
    listener = Listener()
    try:
        cards = _gather_cards(_card_or_refusal(membership, facts, listener))
        # A rank that cannot load comes first: its other facts are missing.
        _require_able(cards)
        _require_equal(cards, "batches", "on every rank")
        own = cards[membership.rank]
        local = [card for card in cards if card["machine_id"] == own["machine_id"]]
        if membership.is_shared:
            _require_equal(local, "machine", "on every rank of a machine")
        _meet_devices(cards, facts.place)
    except BaseException:
        listener.close()
        raise
    # Every rank opened a listener before the host was known; the others close theirs.
    host = local[0]
    if host["rank"] != membership.rank:
        listener.close()
    hosts = _first_ranks(cards)
    return Team(
        ranks=tuple(card["rank"] for card in local) if membership.is_shared else (membership.rank,),
        rank=membership.rank,
        address=host["address"],
        token=host["token"],
        num_loaders=_count_loaders(cards, own, is_shared=membership.is_shared),
        listener=listener if host["rank"] == membership.rank else None,
        hosts=hosts,
        machines=distinct_names([cards[rank]["machine_name"] for rank in hosts], hosts),
        parts=tuple(None if (part := cards[rank]["part"]) is None else (part[0], part[1]) for rank in hosts),
        launch=cards[0]["launch"],
    )


def _first_ranks(cards: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the first rank of each machine, ascending. Pure."""
    first: dict[str, int] = {}
    for card in cards:  # in the order of ranks
        first.setdefault(card["machine_id"], card["rank"])
    return tuple(first.values())


def _count_loaders(cards: Sequence[Mapping[str, Any]], own: Mapping[str, Any], *, is_shared: bool) -> int:
    """Return the number of loaders that share the memory of this rank's host. Pure."""
    here = [card for card in cards if card["host_id"] == own["host_id"]]
    return len({card["machine_id"] for card in here}) if is_shared else len(here)


def _card_or_refusal(membership: Membership, facts: Facts, listener: Listener) -> dict[str, Any]:
    """Return the card of this rank; without one, notify the others and raise the reason."""
    try:
        return _own_card(membership, facts, listener)
    except BaseException as error:
        refuse(membership, error)
        raise


def _own_card(membership: Membership, facts: Facts, listener: Listener) -> dict[str, Any]:
    common = {"version": __version__, "sharing": membership.is_shared, "world_size": membership.world_size}
    return {
        "rank": membership.rank,
        "machine_id": f"{machine_id()} {network_id()}",
        "machine_name": shown_machine(),
        "host_id": f"{host_id()} {network_id()}",
        "address": listener.address,
        "token": secrets.token_hex(16),
        "launch": secrets.token_hex(8),
        "part": facts.part,
        "error": None,
        "batches": common | dict(facts.batches),
        "machine": dict(facts.machine),
        "device": {
            "type": facts.place.type,
            "gpu": gpu_of(facts.place),
            "is_cache_sized": facts.is_cache_sized,
        },
    }


def _meet_devices(cards: Sequence[Mapping[str, Any]], place: torch.device) -> None:
    """Let the device of each rank exchange a message with another rank's; collective."""
    devices = {card["rank"]: card["device"] for card in cards}
    gpus = {rank: device["gpu"] for rank, device in devices.items()}
    require_own_gpus(gpus, may_share=all(device["is_cache_sized"] for device in devices.values()))
    # A missing device is refused when it is opened; no rank may wait for it here.
    kinds = {(device["type"], device["gpu"] is not None) for device in devices.values()}
    if kinds in ({("cpu", False)}, {("cuda", True)}):
        connect(place)


def network_id() -> int:
    """Return an id of this process's network, unlike those of other containers on its host."""
    return _inode(_NETWORK)


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - no path
    except OSError:
        return 0


def own_process() -> dict[str, Any]:
    """Return the identity of this process for `is_gone`, as JSON."""
    return {
        "owner": SpillOwner.this_process().to_json(),
        "namespace": _inode(_PROCESSES),
        "machine": named_machine(),
    }


def is_gone(process: Mapping[str, Any]) -> bool:
    """Return whether the process of an `own_process` record has certainly ended.

    For a process on another machine, or in another container, the result is False.
    """
    # A process number is valid only where both see the same processes; rehearsed machines are not compared.
    if process["namespace"] != _inode(_PROCESSES) or process["machine"] != named_machine():
        return False
    owner = SpillOwner.parse(process["owner"])
    return owner.host == os.uname().nodename and owner.is_gone()


def _gather_cards(own: dict[str, Any]) -> list[dict[str, Any]]:
    cards = [json.loads(entry) for entry in gather_bytes(json.dumps(own, default=str).encode())]
    for rank, card in enumerate(cards):
        if not isinstance(card, dict) or card.get("rank") != rank:
            raise RankError(
                f"rank {rank} introduced itself as {card!r}; use one version of gloader on all ranks"
            )
    return cards


def _require_able(cards: Sequence[Mapping[str, Any]]) -> None:
    for card in cards:
        if card["error"] is not None:
            raise RankError(f"rank {card['rank']} cannot build its loader: {card['error']}")


def _require_equal(cards: Sequence[Mapping[str, Any]], part: str, where: str) -> None:
    require_equal({card["rank"]: card[part] for card in cards}, where)


def gather_bytes(own: bytes) -> list[bytes]:
    """Return the bytes of every rank, in rank order; collective. Shorter ones are padded with spaces."""
    device, count = collective_device(), distributed.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(count)]
    distributed.all_gather(sizes, torch.tensor([len(own)], device=device))
    # A collective moves tensors of one size: first the sizes, then all bytes in tensors of the largest size.
    longest = max(int(size) for size in sizes)
    sent = torch.frombuffer(bytearray(own.ljust(longest)), dtype=torch.uint8).to(device)
    found = [torch.empty_like(sent) for _ in range(count)]
    distributed.all_gather(found, sent)
    return [one.cpu().numpy().tobytes() for one in found]


def require_equal(facts: Mapping[int, Mapping[str, Any]], where: str) -> None:
    """Compare the facts of each rank with those of the first. Pure.

    Parameters
    ----------
    facts : by rank; JSON values by name
    where : the end of the message: "it has to be the same on every rank"

    Raises
    ------
    RankSettingsError
        Ranks differ; the error names the first different fact.
    """
    first = next(iter(facts))
    for rank, card in facts.items():
        for name in {**facts[first], **card}:
            ours, theirs = facts[first].get(name), card.get(name)
            if ours != theirs:
                raise RankSettingsError(
                    f"{name} is {ours!r} on rank {first} and {theirs!r} on rank {rank}; it has to be the same {where}"
                    f"{_HOW_TO_MEND.get(name, '')}"
                )
