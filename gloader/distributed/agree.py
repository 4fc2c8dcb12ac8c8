"""The start: all ranks tell one another what they are about to load, and find those of their machine."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gloader.core.version import __version__
from gloader.distributed.collective import gather_bytes, require_equal
from gloader.distributed.wire import Listener
from gloader.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.distributed.place import Place

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = "/proc/self/ns/net"  # addresses of sockets are known within one


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What has to be the same on every rank, by name: of the batches, and of how a machine brings them."""

    batches: Mapping[str, Any]  # JSON values; on all ranks
    machine: Mapping[str, Any]  # on the ranks that share a loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The ranks that share a loader, in ascending order; the first of them hosts it."""

    ranks: tuple[int, ...]
    rank: int
    address: str  # of the host's socket
    token: str  # shows the host that a rank belongs to it
    num_local: int  # ranks on this machine, whether they share or not
    listener: Listener | None  # of the host

    @property
    def is_host(self) -> bool:
        """Whether this rank loads for the others."""
        return self.rank == self.ranks[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener. Idempotent."""
        if self.listener is not None:
            self.listener.close()


def refuse(place: Place, error: BaseException) -> None:
    """Take part in `assemble`, and tell the other ranks why this one cannot load anything; collective."""
    _gather_cards({"rank": place.rank, "error": f"{type(error).__name__}: {error}"})


def assemble(place: Place, facts: Facts) -> Team:
    """Agree with all ranks of the process group on what is loaded; collective. Return the ranks of this machine.

    Raises
    ------
    ConfigError
        Ranks differ in something that has to be the same; raised on every rank, naming the first such thing.
    RankError
        Another rank cannot load anything.
    """
    listener = Listener()
    try:
        cards = _gather_cards(_own_card(place, facts, listener))
        _require_able(cards)
        _require_equal(cards, "batches", "on every rank")
        own = cards[place.rank]
        local = [card for card in cards if card["machine_id"] == own["machine_id"]]
        if place.is_shared:
            _require_equal(local, "machine", "on every rank of a machine")
    except BaseException:
        listener.close()
        raise
    host = local[0]
    if host["rank"] != place.rank:
        listener.close()
    return Team(
        ranks=tuple(card["rank"] for card in local) if place.is_shared else (place.rank,),
        rank=place.rank,
        address=host["address"],
        token=host["token"],
        num_local=len(local),
        listener=listener if host["rank"] == place.rank else None,
    )


def _own_card(place: Place, facts: Facts, listener: Listener) -> dict[str, Any]:
    common = {"version": __version__, "sharing": place.is_shared, "world_size": place.world_size}
    return {
        "rank": place.rank,
        "machine_id": f"{_BOOT_ID.read_text().strip()} {os.stat(_NETWORK).st_ino}",  # noqa: PTH116 - no path
        "address": listener.address,
        "token": secrets.token_hex(16),
        "error": None,
        "batches": common | dict(facts.batches),
        "machine": dict(facts.machine),
    }


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
