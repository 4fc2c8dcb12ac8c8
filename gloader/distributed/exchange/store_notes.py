"""The notes of hosts in the store of their process group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from gloader.distributed.exchange.notes import END, HERE, LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.distributed_c10d import Store

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
