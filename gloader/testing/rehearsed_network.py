"""A network between machines that is as slow as asked for, and a machine that ends or stops in a given round."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from gloader.errors import ChannelClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.distributed.exchange.transport import Transport

_POLL_S: Final = 0.05


class ThrottledTransport:
    """Another `Transport`, no faster than a network of these rates. Owns it as whoever made it does.

    A collective takes ``latency_s``, and the bytes that this host sends to others, or receives from them, whichever are
    more: a network card does both at once.

    Parameters
    ----------
    inner : moves the bytes
    bytes_per_s : each way
    latency_s : of each collective
    """

    def __init__(self, inner: Transport, *, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._inner = inner
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s

    @property
    def index(self) -> int:
        """Which of the hosts this is."""
        return self._inner.index

    @property
    def names(self) -> Sequence[str]:
        """What errors call each host."""
        return self._inner.names

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
        """As `Transport.all_to_all`, and then wait for as long as the network would have taken."""
        began = time.monotonic()
        self._inner.all_to_all(out, data, out_sizes, sizes, is_cancelled=is_cancelled)
        moved = max(sum(part) - part[self.index] for part in (out_sizes, sizes))
        due = began + self._latency_s + moved / self._bytes_per_s
        while (left := due - time.monotonic()) > 0:
            if is_cancelled():
                self.close()
                raise ChannelClosedError("an exchange with other machines was cancelled")
            time.sleep(min(left, _POLL_S))

    def close(self, error: BaseException | None = None) -> None:
        """As `Transport.close`."""
        self._inner.close(error)


class EndingTransport:
    """Another `Transport`, whose process gets a signal in a given collective: SIGKILL and SIGSTOP end it and halt it.

    Parameters
    ----------
    inner : moves the bytes
    collective : in which the signal comes, from 0, before anything is sent
    signal_number : the signal
    """

    def __init__(self, inner: Transport, *, collective: int, signal_number: int) -> None:
        self._inner = inner
        self._left = collective
        self._signal = signal_number

    @property
    def index(self) -> int:
        """Which of the hosts this is."""
        return self._inner.index

    @property
    def names(self) -> Sequence[str]:
        """What errors call each host."""
        return self._inner.names

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
        """As `Transport.all_to_all`, unless this is the one."""
        if self._left == 0:
            os.kill(os.getpid(), self._signal)
        self._left -= 1
        self._inner.all_to_all(out, data, out_sizes, sizes, is_cancelled=is_cancelled)

    def close(self, error: BaseException | None = None) -> None:
        """As `Transport.close`."""
        self._inner.close(error)
