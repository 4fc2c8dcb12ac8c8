"""Scenarios for the ranks of exchange tests, each the first rank of a machine; run by `rank_server`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from gloader.core.signals import NEVER, Cancellation
from gloader.distributed.exchange import host_group, notes
from gloader.distributed.exchange.exchange import Exchange
from gloader.distributed.exchange.host_group import HostGroup, cut_connections
from gloader.distributed.exchange.owner import OwnedRows
from gloader.distributed.exchange.transport import Transport, gather
from gloader.errors import ChannelClosedError, MachineLeftError, RankError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.miss_sources import load_misses

MEMORY_BYTES = 1_250_000
MACHINES = "abcd"
_ONE = np.zeros(1)


def wanted(host: int, num_rows: int) -> NDArray[np.int64]:
    """Return the rows that a host misses; the last host misses none."""
    return np.flatnonzero(np.random.default_rng(host).random(num_rows) < 0.7 - 0.2 * host)


def group_of(ranks: Sequence[int], name: str, *, timeout_s: float = 10.0, **how: Any) -> HostGroup:
    """Return the group of ``ranks`` that this rank is one of."""
    machines = [MACHINES[rank] for rank in ranks]
    return HostGroup(ranks, machines, rank=distributed.get_rank(), name=name, timeout_s=timeout_s, **how)


def own_rows(store: FeatureStore, num_hosts: int) -> OwnedRows:
    """Return uneven ranges: the second host of three or more reads no row at all."""
    cuts = {1: [], 2: [200], 3: [450, 450], 4: [100, 100, 500]}[num_hosts]
    return OwnedRows(store=store, bounds=np.array([0, *cuts, store.num_rows]))


def fetch(exchange: Exchange, store: FeatureStore, rows: NDArray[np.int64]) -> None:
    """Exchange ``rows`` and compare them with those of the own disk."""
    expected = np.empty((len(rows), store.dim), store.dtype)
    store.read_into(rows, expected)
    found = np.empty_like(expected)
    with exchange.fetch(0, rows, cancellation=NEVER) as arriving:
        misses = load_misses(store, [rows], cancellation=NEVER, arriving=arriving)
    misses.read_into(0, rows, found, at=np.arange(len(rows)))
    assert found.tobytes() == expected.tobytes()
    assert misses.cost.read.bytes_read == 0


def exchanging(dataset: str, rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Exchange rows in groups of one to four hosts, some of them one after another, in all ways that end well."""
    with FeatureStore.open(dataset) as store:
        for round_number in range(2):
            for ranks in ([3, 1, 0, 2], [0, 1, 2], [3], [2, 3], [1, 0]):
                if rank not in ranks:
                    continue
                if round_number:
                    os.environ["GLOO_SOCKET_IFNAME"] = "lo,lo"
                group = group_of(ranks, f"{ranks} {round_number}")
                exchange = Exchange(
                    group,
                    [own_rows(store, len(ranks))],
                    memory_bytes=MEMORY_BYTES,
                    verify=round_number == 0,
                    rates_s=0.01,
                )
                for number in range(2):
                    numbers = exchange.agree(
                        np.array([number, rank]), cancellation=NEVER, same=("superbatch",)
                    )
                    assert numbers[:, 1].tolist() == ranks
                    fetch(exchange, store, wanted(group.index, store.num_rows))
                distributed.barrier() if len(ranks) == world else None
                exchange.close()
        sizes = _large_and_empty(group_of(range(world), "large", timeout_s=0))
    return {"rounds": exchange.stats.rounds, "sizes": sizes, "threads": _threads()}


def _large_and_empty(group: HostGroup) -> list[int]:
    """Send 40 MB to the next host, nothing to the others."""
    world, size = len(group.names), 40_000_000
    sizes, out_sizes = [0] * world, [0] * world
    sizes[(group.index + 1) % world] = size
    out_sizes[(group.index - 1) % world] = size
    out = np.zeros(size, np.uint8)
    group.all_to_all(out, np.full(size, group.index, np.uint8), out_sizes, sizes, cancellation=NEVER)
    empty = np.empty(0, np.uint8)
    group.all_to_all(empty, empty, [0] * world, [0] * world, cancellation=NEVER)
    distributed.barrier()
    group.close()
    return [int(out.min()), int(out.max())]


def _threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("gloader-")]


class DyingTransport:
    """Gets a signal before one of its collectives."""

    def __init__(self, inner: HostGroup, *, call: int, number: int) -> None:
        self._inner, self._call, self._number = inner, call, number
        self.index, self.names = inner.index, inner.names
        self._num_calls = 0

    def all_to_all(
        self,
        out: NDArray[np.uint8],
        data: NDArray[np.uint8],
        out_sizes: Sequence[int],
        sizes: Sequence[int],
        /,
        *,
        cancellation: Cancellation,
    ) -> None:
        if self._num_calls == self._call:
            os.kill(os.getpid(), self._number)
        self._num_calls += 1
        self._inner.all_to_all(out, data, out_sizes, sizes, cancellation=cancellation)

    def close(self, error: BaseException | None = None) -> None:
        self._inner.close(error)


def dying(
    dataset: str,
    rank: int,
    world: int,
    folder: Path,
    *,
    victim: int,
    call: int,
    number: int,
    own_store: bool,
    busy_s: float = 0.5,
) -> dict[str, Any]:
    """Lose a rank before one of its collectives; return what the others are told, and after how long."""
    notes.PATIENCE_S = 1.5
    store = None
    if own_store:  # in the first rank's process, as without torchrun
        port = [torch.tensor([0])]
        if rank == 0:
            store = distributed.TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False)
            port = [torch.tensor([store.port])]
        distributed.broadcast(port[0], 0)
        if rank:
            store = distributed.TCPStore(
                "127.0.0.1", int(port[0]), world, timeout=timedelta(seconds=20), wait_for_workers=False
            )
    group: Transport = group_of(range(world), "dying", timeout_s=2.5, store=store)
    if rank == victim:
        assert isinstance(group, HostGroup)
        group = DyingTransport(group, call=call, number=number)
    with FeatureStore.open(dataset) as features:
        exchange = Exchange(group, [own_rows(features, world)], memory_bytes=MEMORY_BYTES, rates_s=0.0)
        started = time.monotonic()
        try:
            exchange.agree(_ONE, cancellation=NEVER)
            if rank == 1 + victim % 2:
                time.sleep(busy_s)  # elsewhere when it happens: nobody is to take it for the one that is gone
            for _ in range(2):
                fetch(exchange, features, wanted(group.index, features.num_rows))
            exchange.agree(_ONE, cancellation=NEVER)
        except RankError as error:
            return {"error": str(error), "seconds": time.monotonic() - started, "threads": _threads()}
    return {"error": "", "seconds": 0.0, "threads": []}


def _kept_of_torch(error: BaseException) -> list[str]:
    """Return what of torch's a traceback keeps: a thread that lets go of it as the process ends aborts there."""
    found = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        found += [
            f"{name} of {frame.f_code.co_name}"
            for name, value in frame.f_locals.items()
            if type(value).__module__.startswith("torch")
        ]
    return found


def cutting(dataset: str, rank: int, world: int, folder: Path) -> list[Any]:
    """End the wait of the first rank for the last one, when the one between them has gone; return what it raised."""
    distributed.barrier()
    group: Any = distributed.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = group.recv([torch.empty(1)], world - 1 - rank, 5)
    with contextlib.suppress(RuntimeError):
        group.recv([torch.empty(1)], 1, 6).wait(timedelta(seconds=20))
    started = time.monotonic()
    if rank == 0:
        cut_connections(group)
    try:
        work.wait(timedelta(seconds=5))
    except RuntimeError as error:
        return [str(error), time.monotonic() - started]


def leaving(dataset: str, rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Cancel a wait on one rank, leave a loop on one, fail on one, and stay away on one, each in a group of its own."""
    notes.PATIENCE_S = 1.5
    found: dict[str, Any] = {}
    ranks = range(world)
    # Cancelled in a collective that nobody else comes to.
    group = group_of(ranks, "cancelled")
    gather(group, _ONE, cancellation=NEVER)
    started = time.monotonic()
    try:
        if rank == 0:
            gather(group, _ONE, cancellation=Cancellation(lambda: time.monotonic() > started + 0.3))
        else:
            time.sleep(0.6)
            gather(group, _ONE, cancellation=NEVER)
    except (ChannelClosedError, MachineLeftError) as error:
        found["cancelled"] = [type(error).__name__, str(error), time.monotonic() - started]
        found["kept"] = _kept_of_torch(error)
    group.close()
    # Left between two collectives while the others wait.
    group = group_of(ranks, "left")
    gather(group, _ONE, cancellation=NEVER)
    try:
        if rank == 1:
            group.close()
            group.close()
        gather(group, _ONE, cancellation=NEVER)
    except RankError as error:
        found["left"] = [type(error).__name__, str(error)]
        found["kept"] += _kept_of_torch(error)
    group.close()
    group = group_of(ranks, "failed")
    gather(group, _ONE, cancellation=NEVER)
    try:
        if rank == 2:
            group.close(OSError("boom on the disk"))
        gather(group, _ONE, cancellation=NEVER)
    except RankError as error:
        found["failed"] = [type(error).__name__, str(error)]
    group.close()
    if rank != 1:
        started = time.monotonic()
        group = group_of(ranks, "absent", timeout_s=1.0)
        time.sleep(0.4 if rank == 0 else 0)  # the other one gives up first: it is not to be named
        try:
            gather(group, _ONE, cancellation=NEVER)
        except RankError as error:
            found["absent"] = [str(error), time.monotonic() - started]
        group.close()
    # Late by more than the time-out, and alive.
    distributed.barrier()
    group = group_of(ranks, "late", timeout_s=1.5)
    if rank == 2:
        time.sleep(2.2)
    gather(group, _ONE, cancellation=NEVER)
    if rank == 0:
        time.sleep(2.2)
    found["late"] = gather(group, np.array([rank]), cancellation=NEVER).tolist()
    distributed.barrier()
    group.close()
    found["threads"] = _threads()
    return found


def deaf(dataset: str, rank: int, world: int, folder: Path) -> dict[str, Any]:
    """Leave, fail and cancel as in `leaving`, though gloo does not notice that a connection has ended."""
    connected: list[Any] = []  # a group that is freed ends its connections
    host_group.cut_connections = connected.append
    notes.PATIENCE_S = 1.5
    found: dict[str, Any] = {"kept": []}
    for name, ends, error in (("left", 1, None), ("failed", 2, OSError("boom")), ("cancelled", 0, None)):
        group = group_of(range(world), name)
        gather(group, _ONE, cancellation=NEVER)
        try:
            if rank == ends and name == "cancelled":
                gather(group, _ONE, cancellation=Cancellation(lambda: True))
            elif rank == ends:
                group.close(error)
            else:
                time.sleep(
                    2.0 if name == "cancelled" else 0.3
                )  # then the first rank has given its collective up
                gather(group, _ONE, cancellation=NEVER)
        except (ChannelClosedError, RankError) as raised:
            found[name] = [type(raised).__name__, str(raised)]
            found["kept"] += _kept_of_torch(raised)
        # A host that ends late would be one that has left.
        distributed.barrier()
        group.close()
    found["threads"] = _threads()
    return found
