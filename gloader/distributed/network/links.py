"""Bandwidth and latency between machines, measured with the transfers that an exchange makes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PINGS: Final = 20
_FIRST_BYTES, _LAST_BYTES = 64 * 2**10, 32 * 2**20
_ENOUGH_S: Final = 0.03  # a transfer this long is no burst into buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What the way between two machines does, both sending at once."""

    bytes_per_s: float  # each way
    latency_s: float  # one way

    def to_json(self) -> dict[str, float]:
        """Return the fields as JSON. Pure."""
        return {"bytes_per_s": self.bytes_per_s, "latency_s": self.latency_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a machine measured."""

    pairs: Mapping[int, Link]  # by the number of the other machine
    together: Link  # all machines to all others at once: what this one sends, and how long nothing takes


def measure_links(index: int, size: int, *, seconds: float) -> Links:
    """Measure the way to each other machine, then all at once; collective over the default process group.

    Pairs that share no machine are measured at the same time.

    Parameters
    ----------
    index, size : of this machine, and how many there are: the ranks of the process group
    seconds : of each measurement
    """
    pairs = {}
    for peer in rounds(index, size):
        # Rounds begin together, so that nobody measures beside those of another round.
        distributed.barrier()
        if peer is not None:
            pairs[peer] = _measure_pair(index, peer, seconds)
    distributed.barrier()
    return Links(pairs=pairs, together=_measure_together(size, seconds))


def rounds(index: int, size: int) -> Iterator[int | None]:
    """Yield whom ``index`` meets in each round, everybody once; None: nobody. Pure.

    The circle method of tournaments.
    """
    num_seats = size + size % 2
    for turn in range(num_seats - 1):
        if index == num_seats - 1:
            # Whoever sits still meets the one whose double is the turn.
            peer = next(other for other in range(num_seats - 1) if (2 * other - turn) % (num_seats - 1) == 0)
        else:
            peer = (turn - index) % (num_seats - 1)
            peer = num_seats - 1 if peer == index else peer
        yield peer if peer < size else None


def _measure_pair(index: int, peer: int, seconds: float) -> Link:
    first = index < peer

    def swap(out: torch.Tensor, into: torch.Tensor) -> None:
        sending = distributed.isend(out, peer)
        distributed.recv(into, peer)
        if sending is not None:
            sending.wait()

    def ping() -> None:
        # One after the other: an answer is on its way when the question has come.
        token = torch.zeros(1, dtype=torch.uint8)
        for is_sending in (first, not first):
            distributed.send(token, peer) if is_sending else distributed.recv(token, peer)

    def slowest(elapsed: float) -> float:
        own, other = torch.tensor([elapsed], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        swap(own, other)
        return max(float(own), float(other))

    latency = _typical(ping) / 2
    return Link(bytes_per_s=_rate(swap, slowest, count=1, seconds=seconds), latency_s=latency)


def _measure_together(size: int, seconds: float) -> Link:
    nothing = torch.zeros(size, dtype=torch.uint8)

    def slowest(elapsed: float) -> float:
        longest = torch.tensor([elapsed], dtype=torch.float64)
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        return float(longest)

    def swap(out: torch.Tensor, into: torch.Tensor) -> None:
        distributed.all_to_all_single(into, out)

    latency = _typical(lambda: swap(nothing, torch.empty_like(nothing)))
    rate = _rate(swap, slowest, count=size, seconds=seconds)
    return Link(bytes_per_s=rate * (size - 1), latency_s=latency)


def _typical(act: Callable[[], Any]) -> float:
    taken = []
    for _ in range(_PINGS + 1):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    # The first sets connections up; the slower ones waited for a core, not for the network.
    return sorted(taken[1:])[_PINGS // 4]


def _rate(
    swap: Callable[[torch.Tensor, torch.Tensor], None],
    slowest: Callable[[float], float],
    *,
    count: int,
    seconds: float,
) -> float:
    """Return the bytes a second of ``swap`` with ``count`` equal parts, of one part.

    Parameters
    ----------
    swap : sends one tensor and fills another; all sides call it
    slowest : returns the longest of the times that all sides took: they have to come to the same sizes
    count : parts of the tensors
    seconds : of the measurement
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
                break  # larger ones
            if spent >= seconds:
                return moved / max(taken, 1e-9)
        num_bytes *= 4
