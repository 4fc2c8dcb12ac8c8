"""The start of a loader on several ranks: their membership, their GPUs, and the check that their settings are equal.

`find_membership` decides first whether a loader belongs to one process or to all ranks. `assemble` is then the first
step of opening a loader for all ranks, before any file is opened (`gloader.distributed.open`). Each rank writes a card,
all ranks exchange their cards, and each rank checks the cards of all.

- A rank is a process of torch's process group. A collective call is made by all ranks, and waits for all of them.
- A team is the ranks of one machine that share a loader. Its host is its first rank, which loads for the team. Only in
  "host_id" does "host" mean the computer.
- A card is a rank's JSON record: its settings, its device, its machine, and the address where it would listen as host.
- A part, as in ``Facts.part``, is the range of feature rows that a machine stores; the other machines store the rest.
- A rehearsed machine is a group of ranks that counts as a separate machine, to try several machines on one computer. So
  a computer may be several machines.
- NCCL and gloo are torch's backends, the libraries that carry out collectives: NCCL between GPUs, gloo between CPUs.
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


# Bytes of the message between devices in `connect`: the size of the first gradient message of torch's
# DistributedDataParallel (DDP).
_FIRST_BYTES: Final = 1 << 20


def backend_of(device_type: str) -> str | None:
    """Return the process group's backend for tensors on devices of this type; None if it has no such backend."""
    # The group may have been started as "nccl", "cuda:nccl" or "cpu:gloo,cuda:nccl". torch's configuration always has
    # the last form, with pairs of a device type and a backend.
    pairs = (pair.split(":") for pair in distributed.get_backend_config().split(",") if ":" in pair)
    return {kind: name for kind, name in pairs}.get(device_type)  # noqa: C416 - lists of two are no pairs to mypy


def collective_device() -> torch.device:
    """Return the device for a collective's tensors: the CPU, or the current GPU if the group has no CPU backend."""
    return (
        torch.device("cuda", torch.cuda.current_device())
        if backend_of("cpu") is None
        else torch.device("cpu")
    )


def gpu_of(place: torch.device) -> str | None:
    """Return the unique id (UUID) of the GPU ``place``; None for the CPU, and for a GPU that does not exist."""
    if place.type != "cuda" or not torch.cuda.is_available():
        return None
    # The device "cuda", without an index, is the current GPU.
    index = place.index if ":" in str(place) else torch.cuda.current_device()
    if index >= torch.cuda.device_count():
        return None  # opening the device raises the error
    return str(torch.cuda.get_device_properties(index).uuid)


def require_own_gpus(gpus: Mapping[int, str | None], *, may_share: bool) -> None:
    """Raise RankSettingsError if two ranks share one GPU.

    Parameters
    ----------
    gpus : each rank's GPU, as `gpu_of` returns it
    may_share : True allows a shared GPU, except with NCCL, which refuses it. Give True only if the user set the size
        of the device's cache on every rank. Ranks that size it themselves would all count the same free memory
    """
    if may_share and backend_of("cuda") != "nccl":
        return
    first: dict[str, int] = {}  # each GPU's first rank
    for rank, gpu in gpus.items():
        if gpu is not None and first.setdefault(gpu, rank) != rank:
            raise RankSettingsError(
                f"ranks {first[gpu]} and {rank} are on one GPU ({gpu}); give each rank its own GPU: start no more "
                "ranks than GPUs, and set CUDA_VISIBLE_DEVICES to all GPUs, or to a different GPU on each rank. To "
                "share a GPU, start the process group with gloo, name the GPU on each rank (device='cuda:0'), and give "
                "device_cache as a size: 'auto' would count the same free memory twice"
            )


def connect(place: torch.device) -> None:
    """Send a message between the ranks' devices, which have one type. Collective.

    NCCL allocates hundreds of MB at the first message. This call makes it do so before free memory is measured.
    """
    if backend_of(place.type) is None:
        return
    distributed.all_reduce(torch.zeros(_FIRST_BYTES, dtype=torch.uint8, device=place))
    if place.type == "cuda":
        torch.cuda.synchronize(place)


# The inode of this file identifies this process's network. Two containers of one computer may have the same boot id but
# different networks. Their ranks cannot connect, so they count as separate machines.
_NETWORK = "/proc/self/ns/net"
# The inode of this file identifies the namespace in which this process's number is valid.
_PROCESSES = "/proc/self/ns/pid"

_ALL_SEEDS = "rank=0, world_size=1 if this rank should take all seeds"

# Remedies for facts that differ between ranks and have no flag, by the fact's name; the end of the error's text.
_OWN_SEEDS = (
    ": pass all seeds on every rank, which takes its part of them, or pass rank=0, world_size=1 if each rank has "
    "its own seeds"
)
_HOW_TO_MEND = {
    "num_seeds": _OWN_SEEDS,
    "seeds": _OWN_SEEDS,
    "dataset": ": its fingerprint differs; prepare it with one line on all machines, or copy the folder",
    "version": ": install one version of gloader on all machines",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A loader's rank and world size, which determine its share of the seeds, and whether other ranks take part."""

    rank: int
    world_size: int
    is_collective: bool  # whether every rank of the process group builds this loader at the same time
    is_shared: bool  # whether the ranks of a machine share one loader
    # True if this is rank 0 of 1 only because the user gave no rank and the process group had no other rank, or did not
    # exist yet; see `require_own_part`.
    is_assumed: bool = False

    def require_own_part(self) -> None:
        """Refuse to load all seeds in a process that has become one of several ranks.

        A framework may start the process group after the loader was built: Lightning does so in ``fit``.

        Raises
        ------
        ConfigError
            The loader was built without a rank, before the process group existed.
        """
        rank, world_size = _group()
        if self.is_assumed and world_size > 1:
            raise ConfigError(
                f"rank {rank} of {world_size} would take all seeds, and so would every other rank: this loader was "
                "built before the process group. Build it afterwards (with Lightning in train_dataloader()), or give "
                f"{_ALL_SEEDS}"
            )


def find_membership(sharing: Sharing, rank: int | None, world_size: int | None) -> Membership:
    """Return the requested membership, or this process's membership in the process group.

    If the rank and the world size are those of the process group, whether given or not, all ranks build the loader
    together. With another rank or world size the loader belongs to this process only; rank 0 of 1 takes all seeds.

    Parameters
    ----------
    sharing : "shared" requires one loader per machine, "auto" shares if possible, "private" never shares
    rank, world_size : both given, or both None for the process group's values

    Raises
    ------
    ConfigError
        ``sharing`` is unknown. Only one of ``rank`` and ``world_size`` was given. "shared" was given without a process
        group. Or neither was given, and torchrun started several processes without a process group.
    """
    require_choice("sharing", sharing, get_args(Sharing))
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank {rank} and world_size {world_size}: give both of them, or neither")
    group = _group()  # rank and world size
    is_assumed = rank is None and group[1] == 1
    if is_assumed:
        _require_no_launch()
    requested = group if rank is None or world_size is None else (rank, world_size)
    is_collective = requested == group and group[1] > 1
    if sharing == "shared" and not is_collective:
        raise ConfigError(
            f"sharing='shared' for rank {requested[0]} of {requested[1]}: start the process group first "
            "(torch.distributed.init_process_group) and give no other rank and world_size, or use sharing='private'"
        )
    return Membership(
        rank=requested[0],
        world_size=requested[1],
        is_collective=is_collective,
        is_shared=is_collective and sharing != "private",
        is_assumed=is_assumed,
    )


def _require_no_launch() -> None:
    """Raise ConfigError if torchrun started this process as one of several and there is no process group.

    torchrun sets ``RANK`` and ``WORLD_SIZE``, which torch's rendezvous reads, so only these count. Slurm's variables
    prove nothing: ``sbatch -n 4`` sets them for a single script, and ``srun`` also starts independent runs.
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
    """Return rank and world size of the process group; (0, 1) without a process group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a rank for its card: settings that ranks must have in common, and facts about its device."""

    batches: Mapping[str, Any]  # JSON values that determine the batches; must be the same on every rank
    machine: Mapping[str, Any]  # the loader's other settings; must be the same on ranks that share a loader
    place: torch.device  # this rank's device
    is_cache_sized: bool  # whether the user set the size of the device's cache
    # This machine's row range: its number and the number of ranges. None means all rows.
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The ranks that share a loader, the first of which is the host, and what all ranks know of all machines.

    A private loader's team is its rank alone, which is its own host. Nothing connects to it: ``address``, ``token`` and
    ``listener`` are then without use.
    """

    ranks: tuple[int, ...]  # ascending; only this rank if the loader is private
    rank: int  # this process's rank
    address: str  # socket address of the machine's first rank, the host of a shared loader
    token: str  # proves to the host that a rank belongs to its team
    # Loaders on this computer, which divide its memory: one per machine if they are shared, else one per rank.
    num_loaders: int
    listener: Listener | None  # on the machine's first rank; None on its other ranks
    hosts: tuple[int, ...]  # the first rank of each machine, ascending
    machines: tuple[str, ...]  # distinct machine names, in the order of hosts
    parts: tuple[tuple[int, int] | None, ...]  # `Facts.part` of each machine, in the order of hosts
    launch: str  # unique name of this loader, the same on all ranks

    @property
    def is_host(self) -> bool:
        """True if this rank loads for its team, which may be this rank alone."""
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
    """Report to the other ranks, which are in `assemble`, why this rank cannot load. Collective."""
    _gather_cards({"rank": membership.rank, "error": f"{type(error).__name__}: {error}"})


def assemble(membership: Membership, facts: Facts) -> Team:
    """Agree with all ranks of the process group on the loader's settings, and return this machine's team. Collective.

    Raises
    ------
    RankSettingsError
        Ranks differ in a setting that must be equal. The error names the first such setting.
    RankError
        Another rank cannot load.
    """
    # The listener is opened before the collective: the cards carry its address, and ranks may connect immediately.
    listener = Listener()
    try:
        cards = _gather_cards(_card_or_refusal(membership, facts, listener))
        # The ranks' errors are checked first: the card of a rank that cannot load has no other facts.
        _require_able(cards)
        _require_equal(cards, "batches", "on every rank")
        own_card = cards[membership.rank]
        local = [card for card in cards if card["machine_id"] == own_card["machine_id"]]
        if membership.is_shared:
            _require_equal(local, "machine", "on every rank of a machine")
        _meet_devices(cards, facts.place)
    except BaseException:
        listener.close()
        raise
    # Every rank opened a listener before the first rank of its machine was known; the other ranks close theirs.
    host = local[0]
    if host["rank"] != membership.rank:
        listener.close()
    hosts = _first_ranks(cards)
    return Team(
        ranks=tuple(card["rank"] for card in local) if membership.is_shared else (membership.rank,),
        rank=membership.rank,
        address=host["address"],
        token=host["token"],
        num_loaders=_count_loaders(cards, own_card, is_shared=membership.is_shared),
        listener=listener if host["rank"] == membership.rank else None,
        hosts=hosts,
        machines=distinct_names([cards[rank]["machine_name"] for rank in hosts], hosts),
        # A part is a list of two in the JSON of the card; it becomes a pair again.
        parts=tuple(None if (part := cards[rank]["part"]) is None else (part[0], part[1]) for rank in hosts),
        launch=cards[0]["launch"],
    )


def _first_ranks(cards: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the first rank of each machine, ascending. Pure."""
    first: dict[str, int] = {}
    for card in cards:  # in rank order
        first.setdefault(card["machine_id"], card["rank"])
    return tuple(first.values())


def _count_loaders(
    cards: Sequence[Mapping[str, Any]], own_card: Mapping[str, Any], *, is_shared: bool
) -> int:
    """Return the number of loaders on this rank's computer: one per machine if shared, else one per rank. Pure."""
    neighbours = [card for card in cards if card["host_id"] == own_card["host_id"]]
    return len({card["machine_id"] for card in neighbours}) if is_shared else len(neighbours)


def _card_or_refusal(membership: Membership, facts: Facts, listener: Listener) -> dict[str, Any]:
    """Return this rank's card. If this fails, report the error to the other ranks, and raise it."""
    try:
        return _own_card(membership, facts, listener)
    except BaseException as error:
        refuse(membership, error)
        raise


def _own_card(membership: Membership, facts: Facts, listener: Listener) -> dict[str, Any]:
    """Return the card of a rank that can load: its "error" is None. A card of `refuse` has an error text instead."""
    common = {"version": __version__, "sharing": membership.is_shared, "world_size": membership.world_size}
    return {
        "rank": membership.rank,
        "machine_id": f"{machine_id()} {network_id()}",
        "machine_name": shown_machine(),
        "host_id": f"{host_id()} {network_id()}",  # of the computer, which may be several rehearsed machines
        "address": listener.address,
        "token": secrets.token_hex(16),  # only the host's token counts, see `Team.token`
        "launch": secrets.token_hex(8),  # only rank 0's name counts, see `Team.launch`
        "part": facts.part,
        "error": None,
        "batches": common | dict(facts.batches),  # must be equal on all ranks
        "machine": dict(facts.machine),  # must be equal on the ranks of a team
        "device": {
            "type": facts.place.type,
            "gpu": gpu_of(facts.place),
            "is_cache_sized": facts.is_cache_sized,
        },
    }


def _meet_devices(cards: Sequence[Mapping[str, Any]], place: torch.device) -> None:
    """Check that no two ranks share a GPU, and exchange a message between all devices. Collective."""
    devices = {card["rank"]: card["device"] for card in cards}
    gpus = {rank: device["gpu"] for rank, device in devices.items()}
    require_own_gpus(gpus, may_share=all(device["is_cache_sized"] for device in devices.values()))
    # The devices exchange a message only if all are CPUs, or all are GPUs that exist. A missing GPU raises its error
    # later, when it is opened; here the other ranks would wait for its message.
    kinds = {(device["type"], device["gpu"] is not None) for device in devices.values()}
    if kinds in ({("cpu", False)}, {("cuda", True)}):
        connect(place)


def network_id() -> int:
    """Return an id of this process's network; containers with their own networks have different ids."""
    return _inode(_NETWORK)


def _inode(path: str) -> int:
    """Return the number of the file behind ``path``; 0 if there is no such file."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - no path
    except OSError:
        return 0


def own_process() -> dict[str, Any]:
    """Return this process's identity as JSON values. Training ranks exchange it, to find with `is_gone` a lost rank."""
    return {
        "owner": SpillOwner.this_process().to_json(),
        "namespace": _inode(_PROCESSES),
        "machine": named_machine(),
    }


def is_gone(process: Mapping[str, Any]) -> bool:
    """Return whether the process of an `own_process` record has certainly ended.

    The result is False for a process on another machine or in another container.
    """
    # A process number is valid only within one process namespace. Rehearsed machines count as different machines.
    if process["namespace"] != _inode(_PROCESSES) or process["machine"] != named_machine():
        return False
    owner = SpillOwner.parse(process["owner"])
    return owner.host == os.uname().nodename and owner.is_gone()


def _gather_cards(own_card: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every rank's card, in rank order. Collective.

    A value that JSON lacks, for example a ``Path``, is sent as text (``default=str``).
    """
    cards = [json.loads(entry) for entry in gather_bytes(json.dumps(own_card, default=str).encode())]
    for rank, card in enumerate(cards):
        if not isinstance(card, dict) or card.get("rank") != rank:
            raise RankError(f"rank {rank} sent {card!r} as its card; use one version of gloader on all ranks")
    return cards


def _require_able(cards: Sequence[Mapping[str, Any]]) -> None:
    """Raise RankError with the error of the first rank that cannot load."""
    for card in cards:
        if card["error"] is not None:
            raise RankError(f"rank {card['rank']} cannot build its loader: {card['error']}")


def _require_equal(cards: Sequence[Mapping[str, Any]], group: str, where: str) -> None:
    """Check the cards' settings in ``group``, "batches" or "machine", as `require_equal`."""
    require_equal({card["rank"]: card[group] for card in cards}, where)


def gather_bytes(own: bytes) -> list[bytes]:
    """Return every rank's bytes, in rank order; entries shorter than the longest end with spaces. Collective."""
    device, count = collective_device(), distributed.get_world_size()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(count)]
    distributed.all_gather(sizes, torch.tensor([len(own)], device=device))
    # A collective needs tensors of one size: the sizes come first, then all bytes in tensors of the largest size.
    longest = max(int(size) for size in sizes)
    sent = torch.frombuffer(bytearray(own.ljust(longest)), dtype=torch.uint8).to(device)
    received = [torch.empty_like(sent) for _ in range(count)]
    distributed.all_gather(received, sent)
    return [entry.cpu().numpy().tobytes() for entry in received]


def require_equal(facts: Mapping[int, Mapping[str, Any]], where: str) -> None:
    """Raise an error if any rank's facts differ from the first rank's facts. Pure.

    Parameters
    ----------
    facts : for each rank, JSON values by name
    where : the end of the message, such as "on every rank"

    Raises
    ------
    RankSettingsError
        Ranks differ; the error names the first different fact.
    """
    first = next(iter(facts))
    for rank, card in facts.items():
        for name in {**facts[first], **card}:
            ours, theirs = facts[first].get(name), card.get(name)
            if ours != theirs and repr(ours) != repr(theirs):  # NaN differs from itself
                raise RankSettingsError(
                    f"{name} is {ours!r} on rank {first} and {theirs!r} on rank {rank}; it has to be the same {where}"
                    f"{_HOW_TO_MEND.get(name, '')}"
                )
