"""A survey of the network between a launch's machines, for ``gloader doctor --network``.

A setting names the network interface of each machine that gloo, torch's library for transfers between CPUs, uses (see
`gloader.distributed.network.interfaces`). `survey_network` exchanges the machines' cards, tries each setting in a
separate process group, measures it by `measure_links`, and gives advice.

- A launch is the machines that train together. The first rank of each machine measures; it is the machine's host.
- A link is the measured bandwidth and latency between two machines.
- A card is a machine's description. A trial is a setting with its measurements.
- The store is a small key-value server of torch, which every rank reaches, even if gloo cannot connect.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore

from gloader.core.machine import distinct_names, host_id, machine_id, shown_machine
from gloader.core.records import Records
from gloader.distributed.agree import network_id
from gloader.distributed.network.interfaces import (
    CONNECTIONS,
    INTERFACE_VARIABLE,
    Card,
    NetworkAdvice,
    NetworkTrial,
    Setting,
    address_of_host_name,
    advise,
    failed,
    list_interfaces,
    lost_as_it_is,
    open_sockets,
    settings_to_try,
)
from gloader.errors import ConfigError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.distributed.distributed_c10d import Store


_PINGS: Final = 20  # number of timed transfers for a latency
_FIRST_BYTES, _LAST_BYTES = 64 * 2**10, 32 * 2**20  # bytes of the smallest and of the largest transfer
# Minimum seconds of a measured transfer: a shorter transfer would measure the system's buffers, not the network.
_ENOUGH_S: Final = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Bandwidth and latency between two machines that both send at the same time."""

    bytes_per_s: float  # in each direction
    latency_s: float  # in one direction

    def to_json(self) -> dict[str, float]:
        """Return the fields as JSON. Pure."""
        return {"bytes_per_s": self.bytes_per_s, "latency_s": self.latency_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLinks:
    """The measurements of one machine."""

    pairs: Mapping[int, Link]  # by the number of the other machine
    # While all machines send: this machine's sending rate, and the time of an almost empty exchange.
    together: Link


def measure_links(index: int, size: int, *, seconds: float) -> MachineLinks:
    """Measure the link to each other machine, then all links together. Collective over the default process group.

    Pairs without a common machine are measured at the same time.

    Parameters
    ----------
    index, size : this machine's rank in the process group, and the number of machines
    seconds : time per measurement
    """
    pairs = {}
    for peer in rounds(index, size):
        # Rounds begin together, so that no pair is measured during another round.
        distributed.barrier()
        if peer is not None:
            pairs[peer] = _measure_pair(index, peer, seconds)
    distributed.barrier()
    return MachineLinks(pairs=pairs, together=_measure_together(size, seconds))


def rounds(index: int, size: int) -> Iterator[int | None]:
    """Yield the partner of ``index`` in each round; None in a round without a partner. Pure.

    Each other machine is the partner once, by the circle method of round-robin tournaments.
    """
    num_seats = size + size % 2
    for turn in range(num_seats - 1):
        if index == num_seats - 1:
            # The last seat stays in place. Twice its partner's number equals the turn, modulo ``num_seats - 1``.
            peer = next(other for other in range(num_seats - 1) if (2 * other - turn) % (num_seats - 1) == 0)
        else:
            peer = (turn - index) % (num_seats - 1)
            peer = num_seats - 1 if peer == index else peer
        yield peer if peer < size else None  # an odd number of machines leaves one seat empty


def _measure_pair(index: int, peer: int, seconds: float) -> Link:
    """Measure the link between the machines ``index`` and ``peer``, which both call this."""
    first = index < peer

    def swap(out: torch.Tensor, into: torch.Tensor) -> None:
        """Send ``out`` to the other machine and receive ``into`` at the same time."""
        sending = distributed.isend(out, peer)
        distributed.recv(into, peer)
        if sending is not None:
            sending.wait()

    def ping() -> None:
        """Send one byte from the first machine, and the answer of the second machine after it has arrived."""
        token = torch.zeros(1, dtype=torch.uint8)
        for is_sending in (first, not first):
            distributed.send(token, peer) if is_sending else distributed.recv(token, peer)

    def slowest(elapsed: float) -> float:
        """Return the longer of both machines' ``elapsed`` seconds."""
        ours, theirs = torch.tensor([elapsed], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        swap(ours, theirs)
        return max(float(ours), float(theirs))

    latency = _typical(ping) / 2  # a ping is one message in each direction
    return Link(bytes_per_s=_rate(swap, slowest, count=1, seconds=seconds), latency_s=latency)


def _measure_together(size: int, seconds: float) -> Link:
    """Measure the links of all ``size`` machines while all send to all. Collective."""
    nothing = torch.zeros(size, dtype=torch.uint8)

    def slowest(elapsed: float) -> float:
        """Return the longest of all machines' ``elapsed`` seconds."""
        longest = torch.tensor([elapsed], dtype=torch.float64)
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        return float(longest)

    def swap(out: torch.Tensor, into: torch.Tensor) -> None:
        distributed.all_to_all_single(into, out)

    latency = _typical(lambda: swap(nothing, torch.empty_like(nothing)))
    rate = _rate(swap, slowest, count=size, seconds=seconds)
    return Link(bytes_per_s=rate * (size - 1), latency_s=latency)


def _typical(transfer: Callable[[], Any]) -> float:
    """Return the typical seconds of ``transfer``, which is repeated."""
    elapsed = []
    for _ in range(_PINGS + 1):
        began = time.perf_counter()
        transfer()
        elapsed.append(time.perf_counter() - began)
    # The first transfer sets up connections. The lower quartile counts, because slow transfers waited for a core.
    return sorted(elapsed[1:])[_PINGS // 4]


def _rate(
    swap: Callable[[torch.Tensor, torch.Tensor], None],
    slowest: Callable[[float], float],
    *,
    count: int,
    seconds: float,
) -> float:
    """Return the bytes per second for one of the ``count`` equal parts that ``swap`` moves.

    Tensors grow until a transfer takes `_ENOUGH_S`. The remaining time measures transfers of this size.

    Parameters
    ----------
    swap : sends one tensor and fills another; all sides call it
    slowest : returns the longest time of all sides, so that all choose the same sizes
    count : parts of the tensors
    seconds : time of the measurement
    """
    num_bytes, spent = _FIRST_BYTES, 0.0
    while True:
        out = torch.ones(count * num_bytes, dtype=torch.uint8)
        into = torch.empty_like(out)
        swap(out, into)
        moved, taken = 0, 0.0
        while True:
            began = time.perf_counter()
            swap(out, into)
            elapsed = slowest(time.perf_counter() - began)
            moved, taken, spent = moved + num_bytes, taken + elapsed, spent + elapsed
            if elapsed < _ENOUGH_S and num_bytes * count < _LAST_BYTES and spent < seconds:
                break  # continue with larger tensors
            if spent >= seconds:
                return moved / max(taken, 1e-9)
        num_bytes *= 4


_POLL_S: Final = 0.05  # seconds between two reads of the store
# Maximum wait for the trial of a setting, as a multiple of the time-out. A rank connects within one time-out, and then
# measures for a while.
_PATIENCE: Final = 6.0
_LEAVE_S: Final = 5.0  # maximum seconds that the first rank waits at the end for the other ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The machines, the trials, and the advice."""

    cards: tuple[Card, ...]
    now: NetworkTrial  # of the current setting
    others: tuple[NetworkTrial, ...]  # of other settings
    advice: NetworkAdvice


def survey_network(
    store: Store, *, rank: int, world_size: int, timeout_s: float = 10.0, seconds: float = 0.25
) -> Survey:
    """Measure the network between the machines of all ranks; collective. The first rank of each machine measures.

    The survey makes and destroys process groups, so none may exist before.

    Parameters
    ----------
    store : reached by all ranks, and used for nothing else
    rank, world_size : the rank of this process, and the number of ranks
    timeout_s : time after which a setting counts as not connecting
    seconds : time per measurement

    Raises
    ------
    ConfigError
        All ranks are on one machine.
    RankError
        A rank does not answer; the error names it.
    """
    exchange = _StoreExchange(store, patience_s=_PATIENCE * timeout_s)
    place = f"{machine_id()} {network_id()}"
    own_entry = {
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
    entries = exchange.gather("card", own_entry, rank, range(world_size))
    first: dict[str, int] = {}  # the first rank at each place
    for other, entry in enumerate(entries):
        first.setdefault(entry["place"], other)
    hosts = list(first.values())
    names = distinct_names([entries[host]["card"]["name"] for host in hosts], hosts)
    cards = tuple(
        Records().read(Card, {**entries[host]["card"], "name": name})
        for host, name in zip(hosts, names, strict=True)
    )
    if len(cards) == 1:
        raise ConfigError(
            f"all {world_size} ranks are on one machine, {cards[0].name}: there is no network between them; start "
            "torchrun with --nnodes on each of several machines, or rehearse several with GLOADER_MACHINE"
        )
    runner = _TrialRunner(exchange, hosts=hosts, rank=rank, timeout_s=timeout_s, seconds=seconds)
    # A setting that cannot connect is not tried: its trial would take until the time-out.
    reason = lost_as_it_is(cards)
    now = failed(Setting(names=()), reason) if reason else runner.run(Setting(names=()))
    others = [runner.run(setting) for setting in settings_to_try(cards)]
    others += _more_connections(runner, others)
    advice = advise(cards, now, others)
    if advice.trial is not None:
        now, rivals = _measured_again(runner, now, others, advice.trial)
        advice = advise(cards, now, rivals)
    exchange.leave(rank, world_size)
    return Survey(cards=cards, now=now, others=tuple(others), advice=advice)


def _measured_again(
    runner: _TrialRunner, now: NetworkTrial, others: Sequence[NetworkTrial], best: NetworkTrial
) -> tuple[NetworkTrial, list[NetworkTrial]]:
    """Measure the best setting and its rivals again, so that the advice does not depend on a lucky measurement.

    Returns
    -------
    The faster trial of the present setting, and the other trials to compare: the faster trial of the best setting with
    only one connection, then the slower trial of the best setting.
    """
    if now.is_connected:
        now = max(now, runner.run(now.setting), key=_speed)
    rivals = [
        max(trial, runner.run(trial.setting), key=_speed)
        for trial in others
        if trial is not best and trial.setting == replace(best.setting, connections=1)
    ]
    return now, [*rivals, min(best, runner.run(best.setting), key=_speed)]


def _speed(trial: NetworkTrial) -> float:
    """Return the rate by which trials are compared, in bytes per second."""
    return trial.bytes_per_s


def _more_connections(runner: _TrialRunner, others: Sequence[NetworkTrial]) -> list[NetworkTrial]:
    """Try several connections per pair through the interfaces that were fastest with one connection."""
    connected = [trial for trial in others if trial.is_connected]
    if not connected:
        return []
    best = max(connected, key=_speed)
    return [runner.run(Setting(names=best.setting.names, connections=count)) for count in CONNECTIONS]


class _StoreExchange:
    """Exchanges JSON values between ranks through a store. Errors name the ranks that do not answer."""

    def __init__(self, store: Store, *, patience_s: float) -> None:
        self.store = store
        self._patience_s = patience_s

    def gather(self, name: str, own: Any, rank: int, ranks: Sequence[int]) -> list[Any]:
        """Return the value of each of ``ranks``; ``own`` is this rank's value, if this rank is one of them."""
        if rank in ranks:
            self.store.set(f"{name}/{rank}", json.dumps(own))
        deadline = time.monotonic() + self._patience_s
        # The store is read again and again, as its own wait could not name the missing rank.
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
        """Note that this rank no longer needs the store. Rank 0 may own the store, so it waits for the other ranks."""
        self.store.set(f"left/{rank}", "yes")
        deadline = time.monotonic() + _LEAVE_S
        while rank == 0 and time.monotonic() < deadline:
            if all(self.store.check([f"left/{other}"]) for other in range(world_size)):
                return
            time.sleep(_POLL_S)


class _TrialRunner:
    """Tries settings in turn with the first rank of each machine; the other ranks receive the trials."""

    def __init__(
        self, exchange: _StoreExchange, *, hosts: Sequence[int], rank: int, timeout_s: float, seconds: float
    ) -> None:
        self._exchange = exchange
        self._hosts = hosts
        self._rank = rank
        self._timeout_s = timeout_s
        self._seconds = seconds
        self._count = 0

    def run(self, setting: Setting) -> NetworkTrial:
        """Return the trial of ``setting``; collective."""
        self._count += 1
        measured = self._measure(setting) if self._rank in self._hosts else None
        results = self._exchange.gather(f"trial-{self._count}", measured, self._rank, self._hosts)
        return _trial_of(setting, results)

    def _measure(self, setting: Setting) -> dict[str, Any]:
        """Return this machine's measurements with ``setting``, or the error, as a JSON object."""
        index, size = self._hosts.index(self._rank), len(self._hosts)
        before = open_sockets()
        value = setting.value_on(index) if setting.names else None
        try:
            with _exported(value), self._group(index, size):
                used = sorted({address for name, address in open_sockets().items() if name not in before})
                links = measure_links(index, size, seconds=self._seconds)
        # gloo raises plain RuntimeErrors, both for a missing interface and for a time-out. Their texts are long.
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
        """Make a process group of the hosts for the block."""
        store = PrefixStore(f"group-{self._count}", self._exchange.store)
        timeout = timedelta(seconds=self._timeout_s)
        distributed.init_process_group("gloo", store=store, rank=index, world_size=size, timeout=timeout)
        try:
            yield
        finally:
            distributed.destroy_process_group()


@contextmanager
def _exported(value: str | None) -> Iterator[None]:
    """Set gloo's interface variable for the block, which makes a process group; None leaves it unchanged."""
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


def _trial_of(setting: Setting, results: Sequence[dict[str, Any]]) -> NetworkTrial:
    """Combine the measurements of all machines into the trial of ``setting``. Pure."""
    errors = [result["error"] for result in results if result["error"]]
    if errors:
        return failed(setting, errors[0])
    pairs = {}
    for index, result in enumerate(results):
        for peer, link in result["pairs"].items():
            if index < int(peer):
                pairs[index, int(peer)] = (link["bytes_per_s"], link["latency_s"])
    return NetworkTrial(
        setting=setting,
        used=tuple(next(iter(result["used"]), "") for result in results),
        bytes_per_s=min(result["together"]["bytes_per_s"] for result in results),
        latency_s=max(result["together"]["latency_s"] for result in results),
        pairs=pairs,
        error="",
    )
