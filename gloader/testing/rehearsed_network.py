"""Networks for tests: hosts as threads of one process, and transports with a given speed.

A host is a machine that exchanges feature rows with the other hosts through its `Transport`. A collective is a call
that all hosts make in the same order, such as `all_to_all`. Each host also has a note that all hosts can read. The note
says that the host is present, that it has ended, or why it failed. An alarm is a note of a failure: it ends the other
hosts' connections. `ThreadHosts` makes the hosts, and `ThrottledTransport` slows any transport down.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.distributed.exchange.notes import END, HERE, LOST, explain, is_here, note_of
from gloader.errors import ChannelClosedError, RankError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.distributed.exchange.transport import Transport


_HOST_POLL_S: Final = 0.01  # seconds between two checks while a host waits for a message
_PRESENT_NOTE: Final = f"{HERE} 1 1"  # the note of a host that has reached its first collective


class ThreadHosts:
    """W hosts, each a `Transport` for its own thread. Owns only memory.

    Parameters
    ----------
    num_hosts : W
    timeout_s : longest wait for another host
    """

    def __init__(self, num_hosts: int, *, timeout_s: float = 10.0) -> None:
        self.names = tuple(f"rank {host} (machine {chr(ord('a') + host)})" for host in range(num_hosts))
        self.timeout_s = timeout_s
        # Guards the fields below. Notified when one of them changes.
        self.changed = threading.Condition()
        self.notes: list[str | None] = [_PRESENT_NOTE] * num_hosts  # by host
        self.parted: set[int] = set()  # hosts whose connections have ended
        # Messages by the collective's number, sender and receiver.
        self.mail: dict[tuple[int, int, int], NDArray[np.uint8]] = {}
        self.hosts = tuple(ThreadHost(self, host) for host in range(num_hosts))


class ThreadHost:
    """One of the hosts, as a `Transport` for one thread. Any thread may close it.

    Parameters
    ----------
    world : all hosts
    index : this host's number
    """

    def __init__(self, world: ThreadHosts, index: int) -> None:
        self.index = index
        self.names = world.names
        self._world = world
        self._num_calls = 0  # collectives called so far
        self._is_closed = False

    def write(self, text: str) -> None:
        """Change this host's note, see `Notes.write`. A note of a failure ends all hosts' connections."""
        world = self._world
        with world.changed:
            # Only the first note about an end counts.
            if is_here(world.notes[self.index]):
                world.notes[self.index] = text
            if not text.startswith(END):
                # The note is an alarm. A host whose connections have ended does not receive it.
                for host, note in enumerate(world.notes):
                    if host not in world.parted:
                        world.notes[host] = LOST if is_here(note) else note
                        world.parted.add(host)
            world.changed.notify_all()

    def read(self) -> Sequence[str | None]:
        """Return all hosts' notes, see `Notes.read`."""
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
        cancellation: Cancellation,
    ) -> None:
        """Send each host its part of ``data``, and fill ``out`` with the parts from all hosts.

        See `Transport.all_to_all`. The sizes are bytes by host.
        """
        world, call = self._world, self._num_calls
        self._num_calls += 1
        with world.changed:
            if self._is_closed:
                raise RankError("this machine has left the exchanges of this run")
            for host, part in enumerate(np.split(data, np.cumsum(sizes)[:-1])):
                world.mail[call, self.index, host] = part.copy()
            world.changed.notify_all()
        deadline = time.monotonic() + world.timeout_s
        parts = [self._take(call, host, deadline, cancellation) for host in range(len(self.names))]
        if [part.shape[0] for part in parts] != list(out_sizes):
            raise RankError(f"hosts sent {[part.shape[0] for part in parts]} bytes, not {list(out_sizes)}")
        out[:] = np.concatenate(parts)

    def close(self, error: BaseException | None = None) -> None:
        """Announce this host's end to the others and leave them, see `Transport.close`. Idempotent."""
        with self._world.changed:
            if self._is_closed:
                return
            self._is_closed = True
        self.write(note_of(error))
        self.vanish()

    def vanish(self) -> None:
        """End the connections silently, like a killed process."""
        with self._world.changed:
            self._world.parted.add(self.index)
            self._world.changed.notify_all()

    def _take(self, call: int, host: int, deadline: float, cancellation: Cancellation) -> NDArray[np.uint8]:
        """Wait for the message from ``host`` in the collective with the number ``call``, and return it.

        Raises
        ------
        ChannelClosedError
            The exchange was cancelled.
        RankError
            A host is lost, or no message came in time.
        """
        world = self._world
        with world.changed:
            while (call, host, self.index) not in world.mail:
                if host in world.parted or self.index in world.parted or time.monotonic() > deadline:
                    break
                if cancellation.is_set():
                    break
                world.changed.wait(_HOST_POLL_S)
            else:
                return world.mail.pop((call, host, self.index))
        if cancellation.is_set():
            self.close()
            raise ChannelClosedError("an exchange with other machines was cancelled")
        raise explain(
            self,
            index=self.index,
            names=self.names,
            keeper=self.names[0],
            cause="no message came",
            cancellation=cancellation,
        )


_POLL_S: Final = 0.05  # seconds between two checks for a cancellation while a throttled transport waits


class ThrottledTransport:
    """Another `Transport`, slowed down to a network's rates. Owns the inner transport.

    A collective takes ``latency_s`` plus the time for this host's sent or received bytes, whichever are more: a network
    card sends and receives at the same time.

    Parameters
    ----------
    inner : the transport that moves the bytes
    bytes_per_s : rate in each direction
    latency_s : latency of each collective in seconds
    """

    def __init__(self, inner: Transport, *, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._inner = inner
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s

    @property
    def index(self) -> int:
        """Number of this host."""
        return self._inner.index

    @property
    def names(self) -> Sequence[str]:
        """The hosts' names in errors."""
        return self._inner.names

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
        """Exchange data as in `Transport.all_to_all`, then wait for the network's time."""
        began = time.monotonic()
        self._inner.all_to_all(out, data, out_sizes, sizes, cancellation=cancellation)
        # A host's own part does not go through the network.
        moved_bytes = max(sum(part) - part[self.index] for part in (out_sizes, sizes))
        due = began + self._latency_s + moved_bytes / self._bytes_per_s
        while (left := due - time.monotonic()) > 0:
            if cancellation.is_set():
                self.close()
                raise ChannelClosedError("an exchange with other machines was cancelled")
            time.sleep(min(left, _POLL_S))

    def close(self, error: BaseException | None = None) -> None:
        """See `Transport.close`."""
        self._inner.close(error)
