"""The hosts' notes in the process group's store, and the error that names the host that ended an exchange.

A collective call between machines fails without naming the failed machine. So each host (the first rank of a machine)
keeps a note in the store of torch's process group, a small key-value server that all ranks reach. `HostGroup` uses this
module: `StoreNotes` writes and reads the notes, `Patience` decides from the notes when a wait is useless, and `explain`
makes the error after a failure.

- A note first is `HERE`, with a number that grows twice a second: a sign of life. A host's last note is the way in
  which it ended: `END`, `STOPPED`, `LOST` or `ERROR`.
- A call is one collective of all hosts; calls are numbered. The `HERE` note has the number of the host's last call.
- A silent host has not renewed its note for some time. A late host renews it, and has not reached the call.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from gloader.errors import MachineLeftError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.distributed_c10d import Store

    from gloader.core.signals import Cancellation


HERE: Final = "here"  # the host takes part; its number of signs of life and its last collective follow
LOST: Final = "lost"  # an exchange failed, and this host does not know the reason
END: Final = "end"  # the host ended normally; or "end after" and the name of a host that ended earlier
STOPPED: Final = "stopped"  # a signal ended the host
ERROR: Final = "error: "  # the error's text follows
# Maximum seconds to wait for the others' last notes in `explain`; hosts visit the store twice a second.
PATIENCE_S: Final = 4.0
_READ_AGAIN_S: Final = 0.05  # seconds between two reads in this wait
_AGAIN: Final = "then start all ranks again from the last checkpoint"  # the end of most error texts


def is_here(note: str | None) -> bool:
    """Return whether a host still takes part, or has written no note. Pure."""
    return note is None or note.startswith(HERE)


def has_come(note: str | None, call: int) -> bool:
    """Return whether a host has reached its collective ``call``, or has ended. Pure."""
    if note is None or not is_here(note):
        return note is not None
    return int(note.split()[-1]) >= call


class Notes(Protocol):
    """The hosts' notes to each other. A last note other than `END` alarms all hosts."""

    def write(self, text: str) -> None:
        """Replace `HERE` by a final note; later calls change nothing."""
        ...

    def read(self) -> Sequence[str | None] | None:
        """Return each host's note (W,), where None means no note yet. Return None if the store does not respond."""
        ...


def note_of(error: BaseException | None) -> str:
    """Return the note of a host that ends with ``error``, or normally. Pure."""
    return END if error is None else f"{ERROR}{type(error).__name__}: {error}"


def explain(
    notes: Notes,
    *,
    index: int,
    names: Sequence[str],
    keeper: str,
    cause: str,
    cancellation: Cancellation,
) -> RankError:
    """Return the error that names the host that ended an exchange; waits a few seconds for the others' last notes.

    Parameters
    ----------
    notes : all hosts' notes
    index : this host's number
    names : (W,) the hosts' names
    keeper : the name of the host that keeps the store
    cause : the failure on this host, as text
    cancellation : ends the wait
    """
    host_notes = notes.read()
    witness = _witness(host_notes, index)  # the host whose note has the reason
    # A machine that ended normally is no reason for an alarm: others may still finish collectives with it.
    left = _leaver(host_notes, witness, names)
    notes.write(f"{END} after {left}" if left else LOST)
    deadline = time.monotonic() + PATIENCE_S
    # Wait until a note has the reason, or all other hosts have written their last notes.
    while witness < 0 and _silent(host_notes, index) != [] and time.monotonic() < deadline:
        if cancellation.is_set():
            break
        time.sleep(_READ_AGAIN_S)
        host_notes = notes.read()
        witness = _witness(host_notes, index)
    if host_notes is None:
        return RankError(
            "another machine is gone or does not answer, and neither does the store of the process group, which "
            f"{keeper} or torchrun's agent on its machine keeps: look at this machine first, {_AGAIN} ({cause})"
        )
    if left := _leaver(host_notes, witness, names):
        return MachineLeftError(
            f"{left} has left the run that all machines share; leave loops on all ranks together"
        )
    if witness >= 0:
        return RankError(f"{names[witness]} failed: {str(host_notes[witness]).removeprefix(ERROR)}")
    silent = _silent(host_notes, index) or []
    if silent:
        listed = " and ".join(names[host] for host in silent)
        verb = "is gone or does not answer" if len(silent) == 1 else "are gone or do not answer"
        if not any(has_come(host_notes[host], 1) for host in silent):
            verb = "did not come to the exchange of rows"
        return RankError(f"{listed} {verb}: see the last messages there, {_AGAIN} ({cause})")
    if stopped := [names[host] for host, note in enumerate(host_notes) if note == STOPPED]:
        verb = "was" if len(stopped) == 1 else "were"
        return RankError(f"{' and '.join(stopped)} {verb} ended by a signal; {_AGAIN} ({cause})")
    return RankError(
        f"the connections between {', '.join(names)} broke, and all machines still run: check the network, {_AGAIN} "
        f"({cause})"
    )


def _witness(host_notes: Sequence[str | None] | None, index: int) -> int:
    """Return the other host whose last note explains the end; -1 if no note does.

    A note with an error goes first, then a normal end, then an end after another host's end.
    """
    others = [
        (host, note) for host, note in enumerate(host_notes or ()) if note is not None and host != index
    ]
    failed = [host for host, note in others if note.startswith(ERROR)]
    done = [host for host, note in others if note == END]
    followed = [host for host, note in others if note.startswith(END)]
    return (failed or done or followed or [-1])[0]


def _leaver(host_notes: Sequence[str | None] | None, witness: int, names: Sequence[str]) -> str:
    """Return the name of the host that left first, from the note of ``witness``; "" if no host left."""
    note = str(host_notes[witness]) if host_notes and witness >= 0 else ""
    return (
        names[witness] if note == END else note.removeprefix(f"{END} after ") if note.startswith(END) else ""
    )


def _silent(host_notes: Sequence[str | None] | None, index: int) -> list[int] | None:
    """Return the other hosts without a last note; None if the store does not respond."""
    if host_notes is None:
        return None
    return [host for host, note in enumerate(host_notes) if host != index and is_here(note)]


class Patience:
    """Bounds a host's wait in a collective: by another host's silence, or by the time since all have reached the call.

    A host that sends signs of life may be late by any time, for example during an evaluation. The object reads no
    clock and no store; it keeps the notes of earlier calls.

    Parameters
    ----------
    index, num_hosts : this host's number, and W
    call : number of the collective
    timeout_s : maximum silence; 0 means no limit
    now : seconds of a clock
    """

    def __init__(self, *, index: int, num_hosts: int, call: int, timeout_s: float, now: float) -> None:
        self._index = index
        self._call = call
        self._timeout_s = timeout_s
        # Each host's note, and the time of its last change.
        self._last: list[tuple[str | None, float]] = [(None, now)] * num_hosts
        self._missed = now  # the last time at which a host had not reached the call

    def end(self, host_notes: Sequence[str | None] | None, now: float) -> str | None:
        """Return the reason to end the wait, or None.

        Parameters
        ----------
        host_notes : the notes of all hosts; None if the store does not respond
        now : seconds of the same clock
        """
        for host, note in enumerate(host_notes or ()):
            if self._last[host][0] != note:
                self._last[host] = (note, now)
            if host != self._index and not has_come(note, self._call):
                self._missed = now
        if not self._timeout_s:
            return None
        silent_since = min(since for host, (_, since) in enumerate(self._last) if host != self._index)
        if now - silent_since > self._timeout_s:
            return f"no sign of life for {self._timeout_s:g} s"
        if now - self._missed > self._timeout_s:
            return f"all machines wait for each other for {self._timeout_s:g} s"
        return None


_LOOK_S: Final = 0.5  # seconds between two visits to the store, each with a sign of life
_ANSWER_S: Final = 1.0  # maximum seconds of the store's response; a slower store counts as gone
_ALARM: Final = "alarm"  # the store's key that is set by a last note other than `END`


class StoreNotes:
    """Reads and writes the notes of W hosts, and renews this host's sign of life twice a second. Thread-safe.

    Owns a thread until `close`. Only that thread uses the store, as the store may be gone or hang.

    Parameters
    ----------
    store : an unused part of a store
    index, num_hosts : this host's number, and W
    alarm : called from the thread after a host's last note was `LOST`, `STOPPED` or `ERROR`
    call : number of this host's current collective
    """

    def __init__(
        self, store: Store, *, index: int, num_hosts: int, alarm: Callable[[], object], call: int = 0
    ) -> None:
        self._store = store
        self._index = index
        self._num_hosts = num_hosts
        self._alarm = alarm
        self._changed = threading.Condition()
        self._note, self._written, self._call = HERE, "", call  # this host's note, and the note in the store
        self._host_notes: list[str | None] = []  # the notes at the last read
        self._num_requests = self._num_answers = self._num_looks = 0  # `read` calls, answered calls, visits
        self._is_over = self._is_silent = False
        self._thread = threading.Thread(target=self._serve, name="gloader-notes", daemon=True)
        self._thread.start()

    def enter(self, call: int) -> None:
        """Note that this host has reached the collective ``call``; the others see this within half a second."""
        self._call = call

    def write(self, text: str) -> None:
        """Replace `HERE` by a final note; later calls change nothing. Waits up to a second until the note is stored."""
        with self._changed:
            if self._note == HERE:
                self._note = text
            self._changed.notify_all()
            self._wait_for(lambda: self._written == self._note)

    def read(self) -> Sequence[str | None] | None:
        """Return each host's note (W,), where None means no note yet. Return None if the store is silent."""
        with self._changed:
            # A pending response may lack later notes, so that this call waits for a new response.
            number = self._num_requests = self._num_requests + 1
            self._changed.notify_all()
            return list(self._host_notes) if self._wait_for(lambda: self._num_answers >= number) else None

    def close(self) -> None:
        """End the thread, unless it hangs in the store. Idempotent."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(0 if self._is_silent else _ANSWER_S)

    def _wait_for(self, is_done: Callable[[], bool]) -> bool:
        """Wait for the thread's visit to the store; return False if the store is silent. The caller holds the lock."""
        # After a missing response there is no wait for the store, until it responds again.
        is_answered = self._changed.wait_for(is_done, 0 if self._is_silent else _ANSWER_S)
        self._is_silent = not is_answered
        return is_answered

    def _serve(self) -> None:
        """Visit the store until `close`; the thread's function."""
        # Training uses the store as well: a store that can be cloned gets a separate connection.
        try:
            clone = getattr(self._store, "clone", None)
            store = self._store if clone is None else clone()
            while not self._is_over:
                self._look(store)
        except RuntimeError:
            return  # the store is gone, and no host reads it any more

    def _look(self, store: Store) -> None:
        """Write this host's note, read the others' notes if requested, and wait for the next visit to the store."""
        with self._changed:
            note, number = self._note, self._num_requests
        self._num_looks += 1
        store.set(str(self._index), f"{HERE} {self._num_looks} {self._call}" if note == HERE else note)
        # A new last note, except a normal end, alarms all hosts.
        if note not in (HERE, self._written) and not note.startswith(END):
            store.set(_ALARM, str(self._index))
        is_alarmed = store.check([_ALARM])
        keys = [str(host) for host in range(self._num_hosts)] if number > self._num_answers else []
        host_notes = _notes_at(store, keys)
        with self._changed:
            self._written, self._is_silent = note, False
            if keys:
                self._host_notes, self._num_answers = host_notes, number
            self._changed.notify_all()
        if is_alarmed:
            self._alarm()
        with self._changed:
            # A busy host also renews its sign of life here, so that only a silent host is blamed.
            if is_alarmed and self._note == HERE:
                self._note = LOST
            self._changed.wait_for(
                lambda: (
                    self._is_over or self._note != self._written or self._num_requests > self._num_answers
                ),
                _LOOK_S,
            )


def _notes_at(store: Store, keys: list[str]) -> list[str | None]:
    """Return the note at each key; None for a missing note."""
    # Two requests suffice for any number of hosts after all have written; `get` would wait for a missing note.
    if keys and store.check(keys):
        return [note.decode() for note in store.multi_get(keys)]
    return [store.get(key).decode() if store.check([key]) else None for key in keys]
