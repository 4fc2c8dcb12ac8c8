"""The first rank of each machine in a launch, as one gloo group with bounded waits.

`HostGroup` implements the `Transport` of an exchange. gloo is torch's library for collectives between CPUs. It has no
call that ends a running collective, and its errors name no rank. So a host waits in short steps, reads the notes of
the other hosts between the steps, and cuts the connections if the wait is useless. A `Launch` makes the groups.

- A launch is the machines that train together. A machine's host is its first rank, which loads. There are W hosts.
- A note is a host's short text in the process group's store: a sign of life, or the reason for its end. See
  `gloader.distributed.exchange.notes`.
- A call is one collective of all hosts; calls are numbered.
- To cut is to close all connections, which ends running collectives on all hosts with an error.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import math
import os
import threading
import time
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed
from torch.distributed.distributed_c10d import AllToAllOptions, PrefixStore

from gloader.distributed.exchange.notes import Patience, StoreNotes, explain, has_come, is_here, note_of
from gloader.errors import ChannelClosedError, RankError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch.distributed.distributed_c10d import Store

    from gloader.config import ExchangeMode
    from gloader.core.ids import RowRanges
    from gloader.core.signals import Cancellation


_POLL_S: Final = 0.05  # seconds between two tests of a running collective
_LOOK_S: Final = 1.0  # seconds between two reads of the other hosts' notes
# Maximum seconds between a cut, here or on another host, and the end of the running operation; usually milliseconds.
_END_S: Final = 1.0
_CUT_S: Final = 0.001  # seconds that the receive in `cut_connections` waits before it times out
_FOR_EVER: Final = timedelta(days=30)  # gloo's own time limit, which must never count
_LEAVE_S: Final = 2.0  # maximum seconds to wait for a thread inside torch at the end of the process
_CANCELLED: Final = "cancelled"  # a cause: this host's work was cancelled
_CUT: Final = "the connections were ended"  # a cause: another thread cut the connections
_MOST_TEXT: Final = 200  # maximum characters of gloo's error in a message


class HostGroup:
    """A `Transport` over gloo between the first ranks of the machines. Connects at the first use. For one thread.

    Owns a thread from the start. This thread sends signs of life, so that the other hosts wait for a late host, but not
    for a silent host. torch's `new_group` is not used: a second group of the same ranks would find the first group's
    addresses in the store. This group has its own part of the store.

    Parameters
    ----------
    ranks : (W,) ranks of the process group, in any order, the same everywhere
    machines : (W,) the machines' names, for errors
    rank : this process's rank, one of ``ranks``
    name : the group's name: the same everywhere, and never used before
    timeout_s : maximum silence of another host, and maximum wait after all have arrived; 0 means no limit
    store : a store that all hosts reach; by default the process group's store
    """

    def __init__(
        self,
        ranks: Sequence[int],
        machines: Sequence[str],
        *,
        rank: int,
        name: str,
        timeout_s: float,
        store: Store | None = None,
    ) -> None:
        self.index = ranks.index(rank)
        self.names = tuple(
            f"rank {host} (machine {machine})" for host, machine in zip(ranks, machines, strict=True)
        )
        # Name of the host that keeps the store.
        self._keeper = dict(zip(ranks, self.names, strict=True)).get(0, "the machine of rank 0")
        self._timeout_s = timeout_s
        # Guards changes of `_group`, `_is_cut` and `_notes`, as the notes' thread calls `_cut` too.
        self._lock = threading.Lock()
        # Held during each call into torch, so that `leave` can wait for its end.
        self._in_torch = threading.Lock()
        self._group: Any = None  # ProcessGroupGloo; torch has no types for its collectives
        self._is_cut = False  # the connections are unusable
        self._num_calls = 0  # collectives that this host has entered
        self._notes: StoreNotes | None = None  # None if closed, or with one host only
        if len(ranks) > 1:
            self._store = PrefixStore(f"gloader/hosts/{name}", store or group_store())
            self._notes = StoreNotes(
                PrefixStore("notes", self._store), index=self.index, num_hosts=len(ranks), alarm=self._cut
            )
            _OPEN.add(self)

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
        """Send each host its part of ``data`` and fill ``out`` with the parts from all hosts.

        Parameters and errors are those of `Transport.all_to_all`.
        """
        if len(self.names) == 1:
            out[:] = data
            return
        notes = self._connected(cancellation)
        with self._in_torch:
            cause = self._move(notes, out, data, list(out_sizes), list(sizes), cancellation)
        if cause == _CANCELLED:
            raise ChannelClosedError("an exchange with other machines was cancelled")
        if cause:
            raise self._explained(cause, cancellation)

    def close(self, error: BaseException | None = None) -> None:
        """Report this host's end to the others, normal or with ``error``, and close the connections. Idempotent."""
        with self._lock:
            notes, self._notes = self._notes, None
        if notes is not None:
            # The note comes before the end of the connections: a host that notices the end reads the reason.
            notes.write(note_of(error))
            self._cut()
            notes.close()

    def leave(self) -> None:
        """Close at the end of the process, and wait for a thread in torch.

        A thread that returned from torch later, while the process ends, would abort the process.
        """
        self.close()
        if self._in_torch.acquire(timeout=_LEAVE_S):
            self._in_torch.release()

    def _move(
        self,
        notes: StoreNotes,
        out: NDArray[np.uint8],
        data: NDArray[np.uint8],
        out_sizes: list[int],
        sizes: list[int],
        cancellation: Cancellation,
    ) -> str:
        """Run a collective; return "" after success, else the failure as text, or `_CANCELLED`.

        This method never raises, as a traceback would keep torch's objects. A thread that drops such objects while the
        process ends aborts the process.
        """
        with self._lock:
            group = self._group
        if group is None:
            return _CUT
        options = AllToAllOptions()
        options.asyncOp = True
        tensors = (torch.from_numpy(out), torch.from_numpy(data))
        reason = ""
        try:
            work = group.alltoall_base(*tensors, out_sizes, sizes, options)
            reason, has_ended = self._wait(work, notes, cancellation)
            if not has_ended:
                _keep_for_ever(group, work, options, tensors)
                return reason or _CUT
            work.wait()
        except RuntimeError as error:  # gloo raises only this class; its text names source files, and no rank
            return reason or str(error)
        return ""

    def _wait(self, work: Any, notes: StoreNotes, cancellation: Cancellation) -> tuple[str, bool]:
        """Wait for the end of ``work``. Return the reason why this host ended it, or "", and whether it has ended.

        A reason is set once; it leads to a cut, which should end the work within `_END_S`.
        """
        patience = self._patience(notes)
        reason, next_look = "", time.monotonic() + _LOOK_S
        # Deadlines in seconds of the clock: for the work's end after a host has left, and after this host's cut.
        left_by = ended_by = math.inf
        while not work.is_completed():
            if not reason and cancellation.is_set():
                reason = _CANCELLED
                self.close()  # ends the work
            with contextlib.suppress(RuntimeError):  # the caller waits again, and receives the error
                work.wait(timedelta(seconds=_POLL_S))
            now = time.monotonic()
            if not reason and now > next_look:
                host_notes = notes.read()
                # A host writes its last note just before it ends its connections, which should end the work. If the
                # work still runs after `_END_S`, this host cuts the connections.
                if host_notes is not None and not all(map(is_here, host_notes)):
                    left_by = min(left_by, now + _END_S)
                reason = "a machine has left" if now > left_by else patience.end(host_notes, now) or ""
                next_look = now + _LOOK_S
                if reason:
                    self._cut()  # ends the work
            if reason or self._is_cut:
                ended_by = min(ended_by, now + _END_S)
            if now > ended_by:  # gloo has missed the cut: the work will never end
                return reason, False
        return reason, True

    def _patience(self, notes: StoreNotes) -> Patience:
        """Announce this host's next call, and return the bounds of its wait."""
        self._num_calls += 1
        notes.enter(self._num_calls)
        return Patience(
            index=self.index,
            num_hosts=len(self.names),
            call=self._num_calls,
            timeout_s=self._timeout_s,
            now=time.monotonic(),
        )

    def _connected(self, cancellation: Cancellation) -> StoreNotes:
        """Connect at the first call, and return the notes; raises RankError if this host has left or was cut."""
        with self._lock:
            is_new, notes = self._group is None, self._notes
        if notes is None:
            raise RankError(
                "this machine has left the exchanges of this run; begin a new run on all machines"
            )
        if self._is_cut:
            raise self._explained(_CUT, cancellation)
        if is_new:
            self._meet(notes, cancellation)
            with self._in_torch:
                cause = self._connect()
            if cause:
                raise self._explained(cause, cancellation)
        return notes

    def _connect(self) -> str:
        """Connect with all hosts, which are all present; this takes milliseconds. Return "" or the failure as text."""
        try:
            group: Any = distributed.ProcessGroupGloo(
                PrefixStore("gloo", self._store),
                self.index,
                len(self.names),
                timedelta(seconds=self._timeout_s) or _FOR_EVER,
            )
        except RuntimeError as error:
            return str(error)
        # From now on other hosts may be late; `Patience` limits the wait.
        group._set_default_timeout(_FOR_EVER)  # noqa: SLF001 - `set_timeout` is newer than the oldest torch
        with self._lock:
            self._group = None if self._notes is None else group  # this object may be closed by now
        return ""

    def _meet(self, notes: StoreNotes, cancellation: Cancellation) -> None:
        """Wait until all hosts are about to connect."""
        patience = self._patience(notes)
        while True:
            host_notes = notes.read()
            if host_notes is not None and not all(map(is_here, host_notes)):
                raise self._explained("before the machines connected", cancellation)
            if host_notes is not None and all(has_come(note, self._num_calls) for note in host_notes):
                return
            if cancellation.is_set():
                self.close()
                raise ChannelClosedError("the wait for other machines was cancelled")
            if reason := patience.end(host_notes, time.monotonic()):
                raise self._explained(reason, cancellation)
            time.sleep(_POLL_S)

    def _explained(self, cause: str, cancellation: Cancellation) -> RankError:
        """Return the error for a failure with the text ``cause``; the other hosts' notes name the failed host."""
        cause, notes = " ".join(cause.split())[:_MOST_TEXT], self._notes
        if notes is None:
            return RankError(f"the exchange with other machines was closed ({cause})")
        return explain(
            notes,
            index=self.index,
            names=self.names,
            keeper=self._keeper,
            cause=cause,
            cancellation=cancellation,
        )

    def _cut(self) -> None:
        """Close the connections, which ends running operations here and on other hosts. Idempotent."""
        with self._lock:
            group, self._group, self._is_cut = self._group, None, True
        if group is not None:
            cut_connections(group)


def cut_connections(group: Any) -> None:
    """Close the connections of a ``ProcessGroupGloo``, which ends running operations here and on other hosts.

    gloo has no call for this purpose. But a receive that times out closes all connections of its context. So this
    function waits shortly for a message that never comes.
    """
    # If a connection has already ended, its receive fails at once and closes no other: the next connection is tried.
    others = [rank for rank in range(group.size()) if rank != group.rank()]
    # gloo has one context, a set of connections, for each named interface. A message's tag selects the context.
    tags = range(len(os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")))
    for other, tag in itertools.product(others, tags):
        with contextlib.suppress(RuntimeError):
            group.recv([torch.empty(1, dtype=torch.uint8)], other, tag).wait(timedelta(seconds=_CUT_S))


def _keep_for_ever(*stuck: object) -> None:
    """Keep a stuck operation's objects until the process ends.

    gloo can miss the end of a connection. Its own thread then waits without end for the rest of a message. A group that
    is freed joins this thread, and would never return. The thread also uses the message's memory.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stuck))


def group_store() -> Store:
    """Return the process group's store; RankError without a process group."""
    if distributed.group.WORLD is None:
        raise RankError("the process group has ended; close loaders before it")
    return distributed.group.WORLD.get_group_store()


_OPEN: weakref.WeakSet[HostGroup] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close the groups that are still open when the process ends."""
    # A group that ended together with its process would wait for running operations.
    for group in list(_OPEN):
        group.leave()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The machines of a launch, each with its loading rank and its rows."""

    hosts: tuple[int, ...]  # the ranks that load, in the order of their rows
    names: tuple[str, ...]  # the hosts' machine names
    rank: int  # this process's rank, one of the hosts
    key: str  # this loader's key, the same on all machines
    mode: ExchangeMode  # the setting ``exchange``
    parts: tuple[RowRanges, ...]  # each machine's row range; empty if each machine has all rows
    timeout_s: float  # maximum seconds of another host's silence; 0 means no limit
    verify: bool  # whether rows are compared with their checksums
    # The groups' numbers, counted alike on all machines.
    groups: Iterator[int] = field(default_factory=itertools.count)

    @property
    def index(self) -> int:
        """The number of this machine."""
        return self.hosts.index(self.rank)

    @property
    def must_exchange(self) -> bool:
        """True if machines store different rows or an exchange is required."""
        return bool(self.parts) or self.mode == "always"

    def connect(self) -> HostGroup:
        """Return a new group of the hosts, which connects at its first use. All hosts call this together."""
        return HostGroup(
            self.hosts,
            self.names,
            rank=self.rank,
            name=f"{self.key}-{next(self.groups)}",
            timeout_s=self.timeout_s,
        )
