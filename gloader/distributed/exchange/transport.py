"""The seam to the first ranks of other machines: one collective, and the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from gloader.errors import RankError
from gloader.ssd_store.sweep.wanted_rows import rows_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from numpy.typing import NDArray


class Transport(Protocol):
    """Moves bytes between W hosts, the first ranks of their machines. All of them call the same, in the same order."""

    @property
    def index(self) -> int:
        """Which of the hosts this is."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """(W,) what errors call each host, as "rank 2 (machine b)"."""
        ...

    def all_to_all(
        self,
        out: NDArray[np.uint8],
        data: NDArray[np.uint8],
        out_sizes: Sequence[int],
        sizes: Sequence[int],
        /,
        *,
        is_cancelled: Callable[[], bool],
    ) -> None:
        """Send each host its part of ``data`` and fill ``out`` with what each of them sends, in the order of hosts.

        Parameters
        ----------
        out : receives the sum of ``out_sizes`` bytes
        data : holds the sum of ``sizes`` bytes
        out_sizes, sizes : (W,) bytes from and to each host, zero perhaps
        is_cancelled : asked again and again while it waits; true ends this host's part in the exchanges

        Raises
        ------
        RankError
            Another host is gone, does not answer, failed or left; names it.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        ...

    def close(self, error: BaseException | None = None) -> None:
        """Tell the others that this host ends, with ``error`` or because it is done, and part from them. Idempotent."""
        ...


def gather(transport: Transport, values: NDArray[Any], *, is_cancelled: Callable[[], bool]) -> NDArray[Any]:
    """Return (W, n) the ``values`` of every host, in the order of hosts; collective.

    Parameters
    ----------
    transport : to the other hosts
    values : (n,) int64 or float64, of the same length and dtype on all hosts
    is_cancelled : as of `Transport.all_to_all`

    Raises
    ------
    RankError
        As `Transport.all_to_all`, or what a host sent arrived damaged.
    ChannelClosedError
        ``is_cancelled`` returned true.
    """
    num_hosts = len(transport.names)
    message = sealed(values)
    out = np.empty((num_hosts, message.shape[0]), np.int64)
    sizes = [message.nbytes] * num_hosts
    data = np.tile(message, num_hosts)
    transport.all_to_all(
        out.reshape(-1).view(np.uint8), data.view(np.uint8), sizes, sizes, is_cancelled=is_cancelled
    )
    found = [unsealed(row, name) for row, name in zip(out, transport.names, strict=True)]
    return np.stack(found).view(values.dtype)


def sealed(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return ``values`` (n,) of eight bytes each and their digest, (n + 1,). Pure."""
    words = np.ascontiguousarray(values).view(np.int64)
    return np.append(words, np.array([rows_digest(words)], np.uint64).view(np.int64))


def unsealed(words: NDArray[np.int64], sender: str) -> NDArray[np.int64]:
    """Return what `sealed` was given. Pure.

    Raises
    ------
    RankError
        It is not what was sent.
    """
    values = np.ascontiguousarray(words[:-1])
    if rows_digest(values) != words[-1:].view(np.uint64)[0]:
        raise RankError(
            f"what {sender} sent arrived damaged; check the network and the memory of both machines, then start all "
            "ranks again from the last checkpoint"
        )
    return values
