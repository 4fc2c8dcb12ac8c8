"""The protocol for messages between machines, and the measured rates of the network.

Each machine takes part by one process, its host (the machine's first rank). `Transport` has one collective call, which
all hosts make together: each host sends bytes to each host. `gather` and `measure_rates` use this call, and so does the
transfer of rows. `HostGroup` implements the protocol. A sealed message consists of 8-byte words with a digest at the
end. The receiver computes the digest again, to detect damage.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import RankError
from gloader.ssd_store.cost.exchange_cost import NetworkRates
from gloader.ssd_store.sweep.wanted_rows import rows_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation


class Transport(Protocol):
    """Moves bytes between W hosts. All hosts make the same calls in one order."""

    @property
    def index(self) -> int:
        """The number of this host."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """(W,) names of the hosts in errors, such as "rank 2 (machine b)"."""
        ...

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
        """Send each host its part of ``data`` and fill ``out`` with the bytes from each host, in host order.

        Parameters
        ----------
        out : receives the sum of ``out_sizes`` bytes
        data : holds the sum of ``sizes`` bytes
        out_sizes, sizes : (W,) bytes from and to each host, may be zero

        Raises
        ------
        RankError
            Another host is gone, does not respond, failed or left; the error names it.
        ChannelClosedError
            The work was cancelled.
        """
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Report this host's end to the others, normal or with ``error``, and close the connections. Idempotent."""
        ...


def gather(transport: Transport, values: NDArray[Any], *, cancellation: Cancellation) -> NDArray[Any]:
    """Return (W, n) the ``values`` of every host, in host order; collective.

    Parameters
    ----------
    transport : the connection to the other hosts
    values : (n,) int64 or float64, with the same length and dtype on all hosts

    Raises
    ------
    RankError
        A host is gone, does not respond, failed or left; or a host's values arrived damaged.
    ChannelClosedError
        The work was cancelled.
    """
    num_hosts = len(transport.names)
    message = sealed(values)
    out = np.empty((num_hosts, message.shape[0]), np.int64)
    sizes = [message.nbytes] * num_hosts
    data = np.tile(message, num_hosts)
    transport.all_to_all(
        out.reshape(-1).view(np.uint8), data.view(np.uint8), sizes, sizes, cancellation=cancellation
    )
    received = [unsealed(row, name) for row, name in zip(out, transport.names, strict=True)]
    return np.stack(received).view(values.dtype)


def sealed(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return ``values`` (n,), eight bytes each, followed by their digest, (n + 1,). Pure."""
    words = np.ascontiguousarray(values).view(np.int64)
    return np.append(words, np.array([rows_digest(words)], np.uint64).view(np.int64))


def unsealed(words: NDArray[np.int64], sender: str) -> NDArray[np.int64]:
    """Return the values of `sealed` words without the digest. Pure.

    Raises
    ------
    RankError
        The words differ from the sent words.
    """
    values = np.ascontiguousarray(words[:-1])
    if rows_digest(values) != words[-1:].view(np.uint64)[0]:
        raise RankError(
            f"a message from {sender} arrived damaged; check the network and the memory of both machines, then start "
            "all ranks again from the last checkpoint"
        )
    return values


_NUM_EMPTY: Final = 5  # number of almost empty transfers; the fastest is the latency
_FIRST_BYTES: Final = 64 * 2**10  # bytes of the first message to each other host
_MOST_BYTES: Final = 8 * 2**20  # maximum bytes that a host sends in one measured transfer
_LEAST_BYTES: Final = 256 * 2**10  # bytes of the smallest step that measures the rate
_WEIGHT: Final = 0.5  # weight of the latest measurement in the new rate


def measure_rates(transport: Transport, *, seconds: float, cancellation: Cancellation) -> NetworkRates:
    """Measure the network's rates while all hosts send and receive growing messages for ``seconds``; collective.

    Parameters
    ----------
    transport : the connection to the other hosts; with one host the rate is infinite
    seconds : approximate duration

    Raises
    ------
    RankError, ChannelClosedError
        As in `gather`.
    """
    # The latency is measured first. Then messages double until ``seconds`` are over; the fastest gives the rate.
    num_others = len(transport.names) - 1
    if num_others == 0:
        return NetworkRates(bytes_per_s=float("inf"), latency_s=0.0)
    clock = time.perf_counter
    empty_s: list[float] = []
    for _ in range(_NUM_EMPTY):
        started = clock()
        gather(transport, np.zeros(1), cancellation=cancellation)
        empty_s.append(clock() - started)
    latency_s, spent_s, size, best = min(empty_s), sum(empty_s), _FIRST_BYTES, 0.0
    max_size = max(_FIRST_BYTES, _MOST_BYTES // num_others)
    # This memory is unmapped at the end of the function.
    data, out = (mapped_bytes(num_others * max_size) for _ in range(2))
    while True:
        sizes = [0 if host == transport.index else size for host in range(num_others + 1)]
        moved = num_others * size
        started = clock()
        transport.all_to_all(out[:moved], data[:moved], sizes, sizes, cancellation=cancellation)
        elapsed_s = clock() - started
        spent_s += elapsed_s
        # On a busy machine a step may take less time than the fastest empty step, and then measures no rate.
        best = max(best, moved / max(elapsed_s - latency_s, elapsed_s / 2))
        # All hosts stop after the same step, when the slowest host has used the time.
        if gather(transport, np.array([spent_s]), cancellation=cancellation).max() >= seconds:
            return NetworkRates(bytes_per_s=best, latency_s=latency_s)
        size = min(2 * size, max_size)


def corrected(rates: NetworkRates, steps: Sequence[tuple[int, float]]) -> NetworkRates:
    """Return ``rates`` with the bandwidth moved half way to that of the fastest step. Pure.

    A step takes as long as its slowest host, which may have waited for its disk. So only the fastest step measures the
    network.

    Parameters
    ----------
    rates : the rates so far
    steps : bytes from other hosts and seconds of each step
    """
    measured = [
        num_bytes / seconds for num_bytes, seconds in steps if num_bytes >= _LEAST_BYTES and seconds > 0
    ]
    if not measured or rates.bytes_per_s == float("inf"):
        return rates
    return NetworkRates(
        bytes_per_s=(1 - _WEIGHT) * rates.bytes_per_s + _WEIGHT * max(measured), latency_s=rates.latency_s
    )
