"""The rates of the network between machines, measured by the collective that rows take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.distributed.exchange.transport import gather
from gloader.ssd_store.cost.exchange import NetworkRates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.distributed.exchange.transport import Transport

_NUM_EMPTY: Final = 5
_FIRST_BYTES: Final = 64 * 2**10  # to each other host
_MOST_BYTES: Final = 8 * 2**20
_LEAST_BYTES: Final = 256 * 2**10  # of a step that says anything of the rate
_WEIGHT: Final = 0.5  # of what was seen last


def measure_rates(transport: Transport, *, seconds: float, is_cancelled: Callable[[], bool]) -> NetworkRates:
    """Return what the network does while all hosts send and receive, by messages that grow for ``seconds``; collective.

    Parameters
    ----------
    transport : to the other hosts; alone, a network is infinitely fast
    seconds : that it takes, about
    is_cancelled : as of `Transport.all_to_all`

    Raises
    ------
    RankError, ChannelClosedError
        As `gather`.
    """
    num_others = len(transport.names) - 1
    if num_others == 0:
        return NetworkRates(bytes_per_s=float("inf"), latency_s=0.0)
    clock = time.perf_counter
    took: list[float] = []
    for _ in range(_NUM_EMPTY):
        started = clock()
        gather(transport, np.zeros(1), is_cancelled=is_cancelled)
        took.append(clock() - started)
    latency_s, spent_s, size, best = min(took), sum(took), _FIRST_BYTES, 0.0
    most = max(_FIRST_BYTES, _MOST_BYTES // num_others)
    # Given back when it is over, as freed memory of other kinds is not.
    data, out = (mapped_bytes(num_others * most) for _ in range(2))
    while True:
        sizes = [0 if host == transport.index else size for host in range(num_others + 1)]
        moved = num_others * size
        started = clock()
        transport.all_to_all(out[:moved], data[:moved], sizes, sizes, is_cancelled=is_cancelled)
        elapsed_s = clock() - started
        spent_s += elapsed_s
        # On a busy machine a step may take less than the quickest empty one did: that says nothing of the network.
        best = max(best, moved / max(elapsed_s - latency_s, elapsed_s / 2))
        # All hosts stop after the same step: when the slowest has spent the time.
        if gather(transport, np.array([spent_s]), is_cancelled=is_cancelled).max() >= seconds:
            return NetworkRates(bytes_per_s=best, latency_s=latency_s)
        size = min(2 * size, most)


def corrected(rates: NetworkRates, steps: Sequence[tuple[int, float]]) -> NetworkRates:
    """Return ``rates`` moved half way to what the fastest of ``steps`` did. Pure.

    A step takes as long as its slowest host, which may have waited for its disk: the fastest speaks of the network.

    Parameters
    ----------
    rates : so far
    steps : bytes from other hosts and seconds of each
    """
    seen = [num_bytes / seconds for num_bytes, seconds in steps if num_bytes >= _LEAST_BYTES and seconds > 0]
    if not seen or rates.bytes_per_s == float("inf"):
        return rates
    return NetworkRates(
        bytes_per_s=(1 - _WEIGHT) * rates.bytes_per_s + _WEIGHT * max(seen), latency_s=rates.latency_s
    )
