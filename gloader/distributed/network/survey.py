"""A survey of the network between the machines of a launch: each setting is tried by making a process group with it."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore

from gloader.core.machine import distinct_names, host_id, machine_id, shown_machine
from gloader.distributed.agree import network_id
from gloader.distributed.network.interfaces import (
    INTERFACE_VARIABLE,
    address_of_host_name,
    list_interfaces,
    open_sockets,
)
from gloader.distributed.network.links import measure_links
from gloader.distributed.network.settings import (
    CONNECTIONS,
    Advice,
    Card,
    Setting,
    Trial,
    advise,
    failed,
    lost_as_it_is,
    settings_to_try,
)
from gloader.errors import ConfigError, RankError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.distributed.distributed_c10d import Store

_POLL_S: Final = 0.05
# Between others: whoever tries a setting ends within the time-out of the group, and measures for a while.
_PATIENCE: Final = 6.0
_LEAVE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The machines, what was tried, and what to do."""

    cards: tuple[Card, ...]
    now: Trial
    others: tuple[Trial, ...]
    advice: Advice


def survey_network(
    store: Store, *, rank: int, world_size: int, timeout_s: float = 10.0, seconds: float = 0.25
) -> Survey:
    """Measure the network between the machines of all ranks; collective. The first rank of each machine measures.

    Makes and ends process groups: there must be none.

    Parameters
    ----------
    store : that all ranks reach, of nothing else
    rank, world_size : of this process
    timeout_s : after which a setting counts as one that does not connect
    seconds : of each measurement

    Raises
    ------
    ConfigError
        All ranks are on one machine.
    RankError
        A rank does not answer; names it.
    """
    meeting = _Meeting(store, patience_s=_PATIENCE * timeout_s)
    place = f"{machine_id()} {network_id()}"
    own = {
        "place": place,
        "card": asdict(
            Card(
                name=shown_machine(),
                host=f"{host_id()} {network_id()}",
                interfaces=tuple(list_interfaces()),
                named=os.environ.get(INTERFACE_VARIABLE, ""),
                resolved=address_of_host_name(),
            )
        ),
    }
    found = meeting.gather("card", own, rank, range(world_size))
    first: dict[str, int] = {}
    for other, one in enumerate(found):
        first.setdefault(one["place"], other)
    hosts = list(first.values())
    names = distinct_names([found[host]["card"]["name"] for host in hosts], hosts)
    cards = tuple(
        Card.from_json({**found[host]["card"], "name": name}) for host, name in zip(hosts, names, strict=True)
    )
    if len(cards) == 1:
        raise ConfigError(
            f"all {world_size} ranks are on one machine, {cards[0].name}: there is no network between them; start "
            "torchrun with --nnodes on each of several machines, or rehearse several with GLOADER_MACHINE"
        )
    trying = _Trying(meeting, hosts=hosts, rank=rank, timeout_s=timeout_s, seconds=seconds)
    lost = lost_as_it_is(cards)
    now = failed(Setting(names=()), lost) if lost else trying.run(Setting(names=()))
    others = [trying.run(setting) for setting in settings_to_try(cards)]
    others += _more_connections(trying, others)
    advice = advise(cards, now, others)
    if advice.trial is not None:
        now, rivals = _measured_again(trying, now, others, advice.trial)
        advice = advise(cards, now, rivals)
    meeting.leave(rank, world_size)
    return Survey(cards=cards, now=now, others=tuple(others), advice=advice)


def _measured_again(
    trying: _Trying, now: Trial, others: Sequence[Trial], best: Trial
) -> tuple[Trial, list[Trial]]:
    """Measure what is to be advised once more, and what it is compared with, so that nobody exports a moment's luck.

    Returns
    -------
    The faster measurement of the setting as it is; those of the others that count: the faster one of the same
    interfaces with one connection, then the slower one of what is to be advised.
    """
    if now.is_connected:
        now = max(now, trying.run(now.setting), key=_speed)
    rivals = [
        max(trial, trying.run(trial.setting), key=_speed)
        for trial in others
        if trial is not best and trial.setting == replace(best.setting, connections=1)
    ]
    return now, [*rivals, min(best, trying.run(best.setting), key=_speed)]


def _speed(trial: Trial) -> float:
    return trial.bytes_per_s


def _more_connections(trying: _Trying, others: Sequence[Trial]) -> list[Trial]:
    """Try several connections through the interfaces that were fastest with one."""
    connected = [trial for trial in others if trial.is_connected]
    if not connected:
        return []
    best = max(connected, key=_speed)
    return [trying.run(Setting(names=best.setting.names, connections=count)) for count in CONNECTIONS]


class _Meeting:
    """Hands JSON values round by a store, which every rank reaches whatever gloo does. Names who does not answer."""

    def __init__(self, store: Store, *, patience_s: float) -> None:
        self.store = store
        self._patience_s = patience_s

    def gather(self, name: str, own: Any, rank: int, ranks: Sequence[int]) -> list[Any]:
        """Return the value of each of ``ranks``; ``own`` is this one's, where it is among them."""
        if rank in ranks:
            self.store.set(f"{name}/{rank}", json.dumps(own))
        deadline = time.monotonic() + self._patience_s
        # Polled, because a store's own wait names nobody.
        missing = list(ranks)
        while missing:
            missing = [other for other in missing if not self.store.check([f"{name}/{other}"])]
            if missing and time.monotonic() > deadline:
                raise RankError(
                    f"rank {', '.join(map(str, missing))} did not answer for {self._patience_s:.0f} s; see "
                    "its own error"
                )
            if missing:
                time.sleep(_POLL_S)
        return [json.loads(self.store.get(f"{name}/{other}")) for other in ranks]

    def leave(self, rank: int, world_size: int) -> None:
        """Say that this rank needs the store no more; the first, which may keep it, waits for the others a while."""
        self.store.set(f"left/{rank}", "yes")
        deadline = time.monotonic() + _LEAVE_S
        while rank == 0 and time.monotonic() < deadline:
            if all(self.store.check([f"left/{other}"]) for other in range(world_size)):
                return
            time.sleep(_POLL_S)


class _Trying:
    """Tries settings, one after another, with the first rank of each machine; the other ranks hear of it."""

    def __init__(
        self, meeting: _Meeting, *, hosts: Sequence[int], rank: int, timeout_s: float, seconds: float
    ) -> None:
        self._meeting = meeting
        self._hosts = hosts
        self._rank = rank
        self._timeout_s = timeout_s
        self._seconds = seconds
        self._count = 0

    def run(self, setting: Setting) -> Trial:
        """Return what comes of ``setting``; collective."""
        self._count += 1
        own = self._measure(setting) if self._rank in self._hosts else None
        found = self._meeting.gather(f"trial-{self._count}", own, self._rank, self._hosts)
        return _trial_of(setting, found)

    def _measure(self, setting: Setting) -> dict[str, Any]:
        index, size = self._hosts.index(self._rank), len(self._hosts)
        before = open_sockets()
        value = setting.value_on(index) if setting.names else None
        try:
            with _exported(value), self._group(index, size):
                used = sorted({address for one, address in open_sockets().items() if one not in before})
                links = measure_links(index, size, seconds=self._seconds)
        # gloo raises plain RuntimeErrors, for an interface that is not there as for a time-out.
        except RuntimeError as error:
            return {"error": " ".join(str(error).split())[:300]}
        return {
            "error": "",
            "used": used,
            "pairs": {peer: link.to_json() for peer, link in links.pairs.items()},
            "together": links.together.to_json(),
        }

    @contextmanager
    def _group(self, index: int, size: int) -> Iterator[None]:
        store = PrefixStore(f"group-{self._count}", self._meeting.store)
        timeout = timedelta(seconds=self._timeout_s)
        distributed.init_process_group("gloo", store=store, rank=index, world_size=size, timeout=timeout)
        try:
            yield
        finally:
            distributed.destroy_process_group()


@contextmanager
def _exported(value: str | None) -> Iterator[None]:
    """Set the variable that gloo reads when a group is made, inside the block; None leaves it as it is."""
    before = os.environ.get(INTERFACE_VARIABLE)
    if value is not None:
        os.environ[INTERFACE_VARIABLE] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(INTERFACE_VARIABLE, None)
            if before is not None:
                os.environ[INTERFACE_VARIABLE] = before


def _trial_of(setting: Setting, found: Sequence[dict[str, Any]]) -> Trial:
    """Return what the machines together found. Pure."""
    errors = [one["error"] for one in found if one["error"]]
    if errors:
        return failed(setting, errors[0])
    pairs = {}
    for index, one in enumerate(found):
        for peer, link in one["pairs"].items():
            if index < int(peer):
                pairs[index, int(peer)] = (link["bytes_per_s"], link["latency_s"])
    return Trial(
        setting=setting,
        used=tuple(next(iter(one["used"]), "") for one in found),
        bytes_per_s=min(one["together"]["bytes_per_s"] for one in found),
        latency_s=max(one["together"]["latency_s"] for one in found),
        pairs=pairs,
        error="",
    )
