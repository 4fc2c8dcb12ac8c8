"""Signs of life of ranks on several machines: who is named when a collective of theirs fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from torch.distributed.distributed_c10d import PrefixStore

from gloader.distributed.exchange.host_group import group_store
from gloader.distributed.exchange.notes import LOST, STOPPED, Patience, explain, note_of
from gloader.distributed.exchange.store_notes import StoreNotes
from gloader.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Every rank is there from the start; none of them is seen at a later point, so that only silence counts.
_THERE: Final = 1


class RankSigns:
    """Says in the store of the process group that this rank is there, and tells which others do not. Thread-safe.

    Owns a thread until `close`.

    Parameters
    ----------
    rank : of this process
    machines : (W,) the name of each rank's machine
    key : of these signs: the same on all ranks, and one that none had before
    timeout_s : longest silence of a rank; 0: for ever
    """

    def __init__(self, *, rank: int, machines: Sequence[str], key: str, timeout_s: float) -> None:
        self._rank = rank
        self._names = [f"rank {one} (machine {machine})" for one, machine in enumerate(machines)]
        self._is_over = threading.Event()
        self._notes = StoreNotes(
            PrefixStore(f"gloader/ranks/{key}", group_store()),
            index=rank,
            num_hosts=len(machines),
            call=_THERE,
            alarm=self._is_over.set,
        )
        self._patience = Patience(
            index=rank,
            num_hosts=len(machines),
            call=_THERE + 1,
            timeout_s=timeout_s,
            now=time.monotonic(),
        )

    def are_missed(self) -> bool:
        """Return whether a rank was silent for too long, or has said that it is over; to be asked again and again."""
        is_silent = self._patience.end(self._notes.read(), time.monotonic()) is not None
        return is_silent or self._is_over.is_set()

    def explain(self, cause: str) -> RankError:
        """Return the error that names who ended a collective, of which this rank saw ``cause``; waits a few seconds."""
        return explain(
            self._notes,
            index=self._rank,
            names=self._names,
            keeper=self._names[0],
            cause=cause,
            is_cancelled=lambda: False,
        )

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank ends, and why, unless it only heard of another's end."""
        if isinstance(error, RankError):
            self._notes.write(LOST)
        else:
            # Ctrl-C, or SIGTERM: torchrun sends that to all ranks of a machine that lost one, who is to be named.
            self._notes.write(note_of(error) if isinstance(error, Exception) else STOPPED)

    def close(self) -> None:
        """Say nothing any more. Idempotent."""
        self._notes.close()
