"""The watch over the ranks of a run: a lost rank ends the collectives of the others.

Ranks on one machine are watched by their processes, ranks on several by signs of life.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from torch.distributed.distributed_c10d import PrefixStore

from gloader.distributed.exchange.host_group import group_store
from gloader.distributed.exchange.notes import LOST, STOPPED, Patience, StoreNotes, explain, note_of
from gloader.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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


logger = logging.getLogger("gloader")

_LOOK_EVERY_S: Final = 0.5
_END_S: Final = 1.0  # for the thread, which may hang in the transport when that is aborted


class RankWatch:
    """Looks after the processes of ranks, from a thread. Owns it until `close`.

    When one has ended, the process group is aborted. A collective of GPUs is waited for on the device, where no error
    of the transport is heard: its kernel waits for the lost rank until it is told to end. When one is missed by its
    signs, the connections of gloo are ended as well: it would wait for a silent rank for longer.

    Parameters
    ----------
    processes : `gloader.distributed.agree.own_process` of each rank
    signs : of life of all ranks; None: all are on this machine
    """

    def __init__(self, processes: Sequence[Mapping[str, Any]], signs: RankSigns | None) -> None:
        self._processes = processes
        self._signs = signs
        self.lost: list[int] = []  # ranks that had ended when the first of them was missed
        self.has_ended_group = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gloader-lost", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look no more: ranks may end from now on. Idempotent."""
        self._is_over.set()

    def close(self) -> None:
        """End, and wait a moment for the thread. Idempotent."""
        self.end()
        self._thread.join(_END_S)

    def _watch(self) -> None:
        from gloader.distributed.agree import is_gone

        while not self._is_over.wait(_LOOK_EVERY_S):
            gone = [rank for rank, process in enumerate(self._processes) if is_gone(process)]
            is_missed = self._signs is not None and self._signs.are_missed()
            if (gone or is_missed) and not self._is_over.is_set():
                self.lost, self.has_ended_group = gone, True
                _abort(is_missed=is_missed)
                return


def _abort(*, is_missed: bool) -> None:
    """End what the process group waits for. gloo hears of a process that has ended by its connections."""
    import torch
    from torch import distributed

    from gloader.distributed.exchange.host_group import cut_connections

    try:
        if (group := distributed.group.WORLD) is not None:
            group.abort()  # with NCCL
            if is_missed:
                cut_connections(group._get_backend(torch.device("cpu")))  # noqa: SLF001 - no public name
    # Whatever the transport says to that: the lost rank is what ends the run.
    except Exception as error:  # noqa: BLE001
        logger.warning("the process group cannot be aborted after a rank was lost: %s", error)
