"""Ranks' signs of life on several machines, which name a silent rank when a collective fails.

A rank is one of the processes that train together; a collective is a call that all of them make in the same order. Each
rank keeps a note in the process group's key-value store and renews it twice a second. At the rank's end, the note gets
the reason. The other ranks read these notes. `RankGroup` opens the signs, `RankWatch` checks them, and an error is made
from them.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from torch.distributed.distributed_c10d import PrefixStore

from gloader.core.signals import NEVER
from gloader.distributed.exchange.host_group import group_store
from gloader.distributed.exchange.notes import LOST, STOPPED, Patience, StoreNotes, explain, note_of
from gloader.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Sequence


# Notes and `Patience`, which decides when a host counts as lost, are made for numbered collectives. Here the notes
# always have number 1, and `Patience` waits for number 2, which never comes. So only silence, or a note about an end,
# counts as a loss.
_NOTE_NUMBER: Final = 1


class RankSigns:
    """Shows this rank's presence in the process group's store and finds silent ranks. Thread-safe.

    Owns a thread until `close`.

    Parameters
    ----------
    rank : this process's rank
    machines : (W,) the name of each rank's machine
    key : key of these signs: equal on all ranks and never used before
    timeout_s : seconds of silence after which a rank is lost; 0 means no limit
    """

    def __init__(self, *, rank: int, machines: Sequence[str], key: str, timeout_s: float) -> None:
        self._rank = rank
        self._names = [f"rank {number} (machine {machine})" for number, machine in enumerate(machines)]
        self._is_over = threading.Event()  # set by the notes' thread when another rank announces a failure
        self._notes = StoreNotes(
            PrefixStore(f"gloader/ranks/{key}", group_store()),
            index=rank,
            num_hosts=len(machines),
            call=_NOTE_NUMBER,
            alarm=self._is_over.set,
        )
        self._patience = Patience(
            index=rank,
            num_hosts=len(machines),
            call=_NOTE_NUMBER + 1,
            timeout_s=timeout_s,
            now=time.monotonic(),
        )

    def are_missed(self) -> bool:
        """Return whether a rank was silent for too long or has announced its end. Does not wait."""
        is_silent = self._patience.end(self._notes.read(), time.monotonic()) is not None
        return is_silent or self._is_over.is_set()

    def explain(self, cause: str) -> RankError:
        """Return the error that names the lost rank, after a collective failed with ``cause``. Waits a few seconds."""
        return explain(
            self._notes,
            index=self._rank,
            names=self._names,
            keeper=self._names[0],
            cause=cause,
            cancellation=NEVER,
        )

    def fail(self, error: BaseException) -> None:
        """Announce this rank's end to the other ranks, with the reason.

        A RankError is only a reaction to another rank's end, so it is not announced as a reason.
        """
        if isinstance(error, RankError):
            self._notes.write(LOST)
        else:
            # Ctrl-C or SIGTERM: after a loss, torchrun sends SIGTERM to all ranks of a machine. The loss is the cause.
            self._notes.write(note_of(error) if isinstance(error, Exception) else STOPPED)

    def close(self) -> None:
        """Stop the signs. Idempotent."""
        self._notes.close()
