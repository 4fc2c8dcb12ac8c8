"""Notes of hosts in the store of the process group, and the error that names the host which ended an exchange."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from gloader.errors import MachineLeftError, RankError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.distributed_c10d import Store


HERE: Final = "here"  # takes part; behind it, how often it said so, and the number of its last collective
LOST: Final = "lost"  # an exchange failed, and this host does not know why
END: Final = "end"  # left of its own accord, or "end after", and the name of who did so before
STOPPED: Final = "stopped"  # by a signal
ERROR: Final = "error: "  # and what it was
PATIENCE_S: Final = 4.0  # for the notes of others; those who are there look every half second
_ASK_S: Final = 0.05
_AGAIN: Final = "then start all ranks again from the last checkpoint"


def is_here(note: str | None) -> bool:
    """Return whether a host still takes part, or said nothing at all. Pure."""
    return note is None or note.startswith(HERE)


def has_come(note: str | None, call: int) -> bool:
    """Return whether a host has come to its collective ``call``, or has ended. Pure."""
    if note is None or not is_here(note):
        return note is not None
    return int(note.split()[-1]) >= call


class Notes(Protocol):
    """Where hosts leave word. A note other than `HERE` and `END` makes all of them look."""

    def write(self, text: str) -> None:
        """Leave a note in place of `HERE`; a later one changes nothing."""
        ...

    def read(self) -> Sequence[str | None] | None:
        """Return (W,) the note of each host, None where there is none; None in place of all: nobody answers."""
        ...


def note_of(error: BaseException | None) -> str:
    """Return the note of a host that ends with ``error``, or because it is done. Pure."""
    return END if error is None else f"{ERROR}{type(error).__name__}: {error}"


def explain(
    notes: Notes,
    *,
    index: int,
    names: Sequence[str],
    keeper: str,
    cause: str,
    is_cancelled: Callable[[], bool],
) -> RankError:
    """Return the error that names who ended an exchange; waits a few seconds for what the others say.

    Parameters
    ----------
    notes : of all hosts
    index : which of them this is
    names : (W,) what each is called
    keeper : the host where the notes are kept
    cause : what this host saw
    is_cancelled : asked again and again while it waits; true ends the wait
    """
    found = notes.read()
    teller = _teller(found, index)
    # Nobody is to be alarmed because a machine is done: others may still be busy with what it took part in.
    left = _leaver(found, teller, names)
    notes.write(f"{END} after {left}" if left else LOST)
    deadline = time.monotonic() + PATIENCE_S
    while teller < 0 and _silent(found, index) != [] and time.monotonic() < deadline and not is_cancelled():
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
    """Return the host that says why it ended, rather one that failed than one that is done; -1: none does."""
    others = [(host, note) for host, note in enumerate(found or ()) if note is not None and host != index]
    failed = [host for host, note in others if note.startswith(ERROR)]
    done = [host for host, note in others if note == END]
    followed = [host for host, note in others if note.startswith(END)]
    return (failed or done or followed or [-1])[0]


def _leaver(found: Sequence[str | None] | None, teller: int, names: Sequence[str]) -> str:
    """Return the name of the host that left first, as ``teller`` says; empty: none left."""
    note = str(found[teller]) if found and teller >= 0 else ""
    return (
        names[teller] if note == END else note.removeprefix(f"{END} after ") if note.startswith(END) else ""
    )


def _silent(found: Sequence[str | None] | None, index: int) -> list[int] | None:
    """Return the hosts that do not say that it is over; None: nobody answers."""
    if found is None:
        return None
    return [host for host, note in enumerate(found) if host != index and is_here(note)]


class Patience:
    """How long a host waits in a collective: until another is silent for too long, or all are there for too long.

    A host may be late for as long as it likes, say while it evaluates, if only it says that it is there. Pure but for
    what it remembers.

    Parameters
    ----------
    index, num_hosts : of this host, and W
    call : number of the collective
    timeout_s : of silence; 0: for ever
    now : seconds of a clock
    """

    def __init__(self, *, index: int, num_hosts: int, call: int, timeout_s: float, now: float) -> None:
        self._index = index
        self._call = call
        self._timeout_s = timeout_s
        self._last: list[tuple[str | None, float]] = [
            (None, now)
        ] * num_hosts  # notes, and when they were new
        self._missed = now  # when somebody was last seen to be elsewhere

    def end(self, found: Sequence[str | None] | None, now: float) -> str | None:
        """Return why the wait is over; None: it is not.

        Parameters
        ----------
        found : the notes of all hosts; None: nobody answers
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


_LOOK_S: Final = 0.5  # between two looks whether anybody failed, each with a sign of life
_ANSWER_S: Final = 1.0  # a store that takes longer counts as gone
_ALARM: Final = "alarm"


class StoreNotes:
    """Reads and writes the notes of W hosts, and says twice a second that this one is there. Thread-safe.

    Owns a thread until `close`: it alone talks to the store, which may be gone, or hang for as long as it likes.

    Parameters
    ----------
    store : a part of it that nobody has written to
    index, num_hosts : which of the hosts this is, and W
    alarm : called from the thread once another host is `LOST` or failed
    call : number of the collective that this host has come to
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
        """Note that this host has come to its collective ``call``; others read it in half a second."""
        self._call = call

    def write(self, text: str) -> None:
        """Leave a note in place of `HERE`; a later one changes nothing. Waits until it is there, for a second."""
        with self._changed:
            if self._own == HERE:
                self._own = text
            self._changed.notify_all()
            self._wait_for(lambda: self._written == self._own)

    def read(self) -> Sequence[str | None] | None:
        """Return (W,) the note of each host, None where there is none; None in place of all: the store is silent."""
        with self._changed:
            # An answer that is on its way was asked for earlier: it may miss what was written since.
            wanted = self._num_asked = self._num_asked + 1
            self._changed.notify_all()
            return list(self._found) if self._wait_for(lambda: self._num_answers >= wanted) else None

    def close(self) -> None:
        """End the thread, unless the store holds it. Idempotent."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(0 if self._is_silent else _ANSWER_S)

    def _wait_for(self, is_done: Callable[[], bool]) -> bool:
        # A store that did not answer once is not waited for again, until it does.
        is_answered = self._changed.wait_for(is_done, 0 if self._is_silent else _ANSWER_S)
        self._is_silent = not is_answered
        return is_answered

    def _serve(self) -> None:
        # A connection of its own where the store can be cloned: training talks to the store as well.
        try:
            clone = getattr(self._store, "clone", None)
            store = self._store if clone is None else clone()
            while not self._is_over:
                self._look(store)
        except RuntimeError:
            return  # the store is gone: whoever reads hears nothing any more

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
            # Whoever looks for the silent one is to see that this host is none, whatever it is busy with.
            if is_alarmed and self._own == HERE:
                self._own = LOST
            self._changed.wait_for(
                lambda: self._is_over or self._own != self._written or self._num_asked > self._num_answers,
                _LOOK_S,
            )


def _notes_at(store: Store, keys: list[str]) -> list[str | None]:
    # Of many hosts in two questions, as soon as all have written; `get` would wait for one that is not there.
    if keys and store.check(keys):
        return [note.decode() for note in store.multi_get(keys)]
    return [store.get(key).decode() if store.check([key]) else None for key in keys]
