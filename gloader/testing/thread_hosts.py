"""Hosts that are threads of one process: the transport of an exchange without a network, for tests."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.distributed.exchange.notes import END, HERE, LOST, explain, is_here, note_of
from gloader.errors import ChannelClosedError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_POLL_S: Final = 0.01
_THERE: Final = f"{HERE} 1 1"  # has come to its first collective


class ThreadHosts:
    """W hosts, each a `Transport` for a thread of its own. Owns nothing but memory.

    Parameters
    ----------
    num_hosts : W
    timeout_s : longest wait for another host
    """

    def __init__(self, num_hosts: int, *, timeout_s: float = 10.0) -> None:
        self.names = tuple(f"rank {host} (machine {chr(ord('a') + host)})" for host in range(num_hosts))
        self.timeout_s = timeout_s
        self.changed = threading.Condition()
        self.notes: list[str | None] = [_THERE] * num_hosts
        self.parted: set[int] = set()  # hosts whose connections have ended
        self.mail: dict[tuple[int, int, int], NDArray[np.uint8]] = {}  # by collective, sender and receiver
        self.hosts = tuple(ThreadHost(self, host) for host in range(num_hosts))


class ThreadHost:
    """One of the hosts: a `Transport`. For one thread; any may close it.

    Parameters
    ----------
    world : all hosts
    index : which of them this is
    """

    def __init__(self, world: ThreadHosts, index: int) -> None:
        self.index = index
        self.names = world.names
        self._world = world
        self._num_calls = 0
        self._is_closed = False

    def write(self, text: str) -> None:
        """Leave a note, as `Notes.write`."""
        world = self._world
        with world.changed:
            if is_here(world.notes[self.index]):
                world.notes[self.index] = text
            if not text.startswith(END):
                for host, note in enumerate(world.notes):
                    # Those that are gone hear no alarm.
                    if host not in world.parted:
                        world.notes[host] = LOST if is_here(note) else note
                        world.parted.add(host)
            world.changed.notify_all()

    def read(self) -> Sequence[str | None]:
        """Return the notes of all hosts, as `Notes.read`."""
        with self._world.changed:
            return list(self._world.notes)

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
        """Send each host its part of ``data`` and fill ``out``, as `Transport.all_to_all`."""
        world, call = self._world, self._num_calls
        self._num_calls += 1
        with world.changed:
            if self._is_closed:
                raise RankError("this machine has left the exchanges of this run")
            for host, part in enumerate(np.split(data, np.cumsum(sizes)[:-1])):
                world.mail[call, self.index, host] = part.copy()
            world.changed.notify_all()
        deadline = time.monotonic() + world.timeout_s
        parts = [self._take(call, host, deadline, is_cancelled) for host in range(len(self.names))]
        if [part.shape[0] for part in parts] != list(out_sizes):
            raise RankError(f"hosts sent {[part.shape[0] for part in parts]} bytes, not {list(out_sizes)}")
        out[:] = np.concatenate(parts)

    def close(self, error: BaseException | None = None) -> None:
        """Tell the others that this host ends, and part from them, as `Transport.close`. Idempotent."""
        with self._world.changed:
            if self._is_closed:
                return
            self._is_closed = True
        self.write(note_of(error))
        self.vanish()

    def vanish(self) -> None:
        """End the connections without a word, as a process does that is killed."""
        with self._world.changed:
            self._world.parted.add(self.index)
            self._world.changed.notify_all()

    def _take(
        self, call: int, host: int, deadline: float, is_cancelled: Callable[[], bool]
    ) -> NDArray[np.uint8]:
        world = self._world
        with world.changed:
            while (call, host, self.index) not in world.mail:
                if host in world.parted or self.index in world.parted or time.monotonic() > deadline:
                    break
                if is_cancelled():
                    break
                world.changed.wait(_POLL_S)
            else:
                return world.mail.pop((call, host, self.index))
        if is_cancelled():
            self.close()
            raise ChannelClosedError("an exchange with other machines was cancelled")
        raise explain(
            self,
            index=self.index,
            names=self.names,
            keeper=self.names[0],
            cause="no message came",
            is_cancelled=is_cancelled,
        )
