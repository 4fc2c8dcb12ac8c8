"""The hosts' notes in the process group's store, and the error that names the host that ended an exchange."""

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
PATIENCE_S: Final = 4.0  # maximum wait for the others' notes; active hosts read the notes every half second
_ASK_S: Final = 0.05
_AGAIN: Final = "then start all ranks again from the last checkpoint"


def is_here(note: str | None) -> bool:
    """Return whether a host still takes part, or has written no note. Pure."""
    return note is None or note.startswith(HERE)


def has_come(note: str | None, call: int) -> bool:
    """Return whether a host has reached its collective ``call``, or has ended. Pure."""
    if note is None or not is_here(note):
        return note is not None
    return int(note.split()[-1]) >= call


class Notes(Protocol):
    """The hosts' notes to each other. A note other than `HERE` and `END` alarms all hosts."""

    def write(self, text: str) -> None:
        """Replace `HERE` by a final note; later calls change nothing."""
        ...

    def read(self) -> Sequence[str | None] | None:
        """Return (W,) the note of each host, or None without a note. Returns None if the store does not respond."""
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
    """Return the error that names the host that ended an exchange; waits a few seconds for the others' notes.

    Parameters
    ----------
    notes : all hosts' notes
    index : this host's number
    names : (W,) the hosts' names
    keeper : the host of the store
    cause : the failure on this host
    """
    found = notes.read()
    teller = _teller(found, index)
    # A machine that ended normally is no reason for an alarm: others may still finish collectives with it.
    left = _leaver(found, teller, names)
    notes.write(f"{END} after {left}" if left else LOST)
    deadline = time.monotonic() + PATIENCE_S
    while teller < 0 and _silent(found, index) != [] and time.monotonic() < deadline:
        if cancellation.is_set():
            break
        time.sleep(_ASK_S)
        found = notes.read()
        teller = _teller(found, index)
    if found is None:
        return RankError(
            "another machine is gone or does not answer, and neither does the store of the process group, which "
            f"{keeper} or torchrun's agent beside it keeps: look there first, {_AGAIN} ({cause})"
        )
    if left := _leaver(found, teller, names):
        return MachineLeftError(
            f"{left} has left the run that all machines share; leave loops on all ranks together"
        )
    if teller >= 0:
        return RankError(f"{names[teller]} failed: {str(found[teller]).removeprefix(ERROR)}")
    silent = _silent(found, index) or []
    if silent:
        listed = " and ".join(names[host] for host in silent)
        verb = "is gone or does not answer" if len(silent) == 1 else "are gone or do not answer"
        if not any(has_come(found[host], 1) for host in silent):
            verb = "did not come to the exchange of rows"
        return RankError(f"{listed} {verb}: see what it said last, {_AGAIN} ({cause})")
    if stopped := [names[host] for host, note in enumerate(found) if note == STOPPED]:
        verb = "was" if len(stopped) == 1 else "were"
        return RankError(f"{' and '.join(stopped)} {verb} told to end by a signal; {_AGAIN} ({cause})")
    return RankError(
        f"the connections between {', '.join(names)} broke, and all of them are there: check the network, {_AGAIN} "
        f"({cause})"
    )


def _teller(found: Sequence[str | None] | None, index: int) -> int:
    """Return the host whose note has a reason: one with an error first, then one that ended; -1 without any."""
    others = [(host, note) for host, note in enumerate(found or ()) if note is not None and host != index]
    failed = [host for host, note in others if note.startswith(ERROR)]
    done = [host for host, note in others if note == END]
    followed = [host for host, note in others if note.startswith(END)]
    return (failed or done or followed or [-1])[0]


def _leaver(found: Sequence[str | None] | None, teller: int, names: Sequence[str]) -> str:
    """Return the name of the host that left first, from the note of ``teller``; "" if no host left."""
    note = str(found[teller]) if found and teller >= 0 else ""
    return (
        names[teller] if note == END else note.removeprefix(f"{END} after ") if note.startswith(END) else ""
    )


def _silent(found: Sequence[str | None] | None, index: int) -> list[int] | None:
    """Return the hosts without a final note; None if the store does not respond."""
    if found is None:
        return None
    return [host for host, note in enumerate(found) if host != index and is_here(note)]


class Patience:
    """Bounds a host's wait in a collective: by the other hosts' silence, or by the time since all have arrived.

    A host that sends signs of life may be late by any time, for example during an evaluation. Pure, except for the
    stored past notes.

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
        self._missed = now  # the last time at which a host was absent

    def end(self, found: Sequence[str | None] | None, now: float) -> str | None:
        """Return the reason to end the wait, or None.

        Parameters
        ----------
        found : the notes of all hosts; None if the store does not respond
        now : seconds of the same clock
        """
        for host, note in enumerate(found or ()):
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


_LOOK_S: Final = 0.5  # interval of reads of the notes, each with a sign of life
_ANSWER_S: Final = 1.0  # a slower store counts as gone
_ALARM: Final = "alarm"


class StoreNotes:
    """Reads and writes the notes of W hosts, and renews this host's sign of life twice a second. Thread-safe.

    Owns a thread until `close`. Only that thread uses the store, as the store may be gone or hang.

    Parameters
    ----------
    store : an unused part of a store
    index, num_hosts : this host's number, and W
    alarm : called from the thread when another host is `LOST` or failed
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
        self._own, self._written, self._call = HERE, "", call
        self._found: list[str | None] = []
        self._num_asked = self._num_answers = self._num_looks = 0
        self._is_over = self._is_silent = False
        self._thread = threading.Thread(target=self._serve, name="gloader-notes", daemon=True)
        self._thread.start()

    def enter(self, call: int) -> None:
        """Note that this host has reached its collective ``call``; the others see it within half a second."""
        self._call = call

    def write(self, text: str) -> None:
        """Replace `HERE` by a final note; later calls change nothing. Waits up to a second until the note is stored."""
        with self._changed:
            if self._own == HERE:
                self._own = text
            self._changed.notify_all()
            self._wait_for(lambda: self._written == self._own)

    def read(self) -> Sequence[str | None] | None:
        """Return (W,) the note of each host, or None without a note. Returns None if the store is silent."""
        with self._changed:
            # A pending response may lack later notes, so that this call waits for a new one.
            wanted = self._num_asked = self._num_asked + 1
            self._changed.notify_all()
            return list(self._found) if self._wait_for(lambda: self._num_answers >= wanted) else None

    def close(self) -> None:
        """End the thread, unless it hangs in the store. Idempotent."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(0 if self._is_silent else _ANSWER_S)

    def _wait_for(self, is_done: Callable[[], bool]) -> bool:
        # After a missing response there is no wait for the store, until it responds again.
        is_answered = self._changed.wait_for(is_done, 0 if self._is_silent else _ANSWER_S)
        self._is_silent = not is_answered
        return is_answered

    def _serve(self) -> None:
        # Training uses the store as well: a store that can be cloned gets a separate connection.
        try:
            clone = getattr(self._store, "clone", None)
            store = self._store if clone is None else clone()
            while not self._is_over:
                self._look(store)
        except RuntimeError:
            return  # the store is gone, and no host reads it any more

    def _look(self, store: Store) -> None:
        with self._changed:
            own, asked = self._own, self._num_asked
        self._num_looks += 1
        store.set(str(self._index), f"{HERE} {self._num_looks} {self._call}" if own == HERE else own)
        if own not in (HERE, self._written) and not own.startswith(END):
            store.set(_ALARM, str(self._index))
        is_alarmed = store.check([_ALARM])
        keys = [str(host) for host in range(self._num_hosts)] if asked > self._num_answers else []
        found = _notes_at(store, keys)
        with self._changed:
            self._written, self._is_silent = own, False
            if keys:
                self._found, self._num_answers = found, asked
            self._changed.notify_all()
        if is_alarmed:
            self._alarm()
        with self._changed:
            # A busy host also renews its sign of life here, so that only a silent host is blamed.
            if is_alarmed and self._own == HERE:
                self._own = LOST
            self._changed.wait_for(
                lambda: self._is_over or self._own != self._written or self._num_asked > self._num_answers,
                _LOOK_S,
            )


def _notes_at(store: Store, keys: list[str]) -> list[str | None]:
    # Two requests suffice for any number of hosts after all have written; `get` would wait for a missing note.
    if keys and store.check(keys):
        return [note.decode() for note in store.multi_get(keys)]
    return [store.get(key).decode() if store.check([key]) else None for key in keys]
