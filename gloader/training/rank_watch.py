"""The watch over a run's ranks: a lost rank ends the collectives of the others.

Ranks on one machine are watched by their processes; ranks on several machines by signs of life.
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


# Every rank exists from the start, so only silence counts as a loss.
_THERE: Final = 1


class RankSigns:
    """Shows this rank's presence in the process group's store, and finds silent ranks. Thread-safe.

    Owns a thread until `close`.

    Parameters
    ----------
    rank : of this process
    machines : (W,) the name of each rank's machine
    key : of these signs: the same on all ranks, and never used before
    timeout_s : longest silence of a rank; 0 means for ever
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
        """Return whether a rank was silent for too long, or has announced its end; to be polled."""
        is_silent = self._patience.end(self._notes.read(), time.monotonic()) is not None
        return is_silent or self._is_over.is_set()

    def explain(self, cause: str) -> RankError:
        """Return the error that names the rank that ended a collective with ``cause``; waits a few seconds."""
        return explain(
            self._notes,
            index=self._rank,
            names=self._names,
            keeper=self._names[0],
            cause=cause,
            is_cancelled=lambda: False,
        )

    def fail(self, error: BaseException) -> None:
        """Announce to the others that this rank ends, and why, unless it only reacts to another's end."""
        if isinstance(error, RankError):
            self._notes.write(LOST)
        else:
            # Ctrl-C, or SIGTERM: torchrun sends it to all ranks of a machine after a loss; the lost rank is the cause.
            self._notes.write(note_of(error) if isinstance(error, Exception) else STOPPED)

    def close(self) -> None:
        """Stop the signs. Idempotent."""
        self._notes.close()


logger = logging.getLogger("gloader")

_LOOK_EVERY_S: Final = 0.5
_END_S: Final = 1.0  # for the thread, which may hang in the transport when that is aborted


class RankWatch:
    """Watches the processes of ranks from a thread. Owns the thread until `close`.

    When a process has ended, the process group is aborted. A GPU collective is waited for on the device, which gets
    no error of the transport: its kernel waits for the lost rank until the abort. When a rank's
    signs are missing, the connections of gloo are closed as well: it would wait longer for a silent rank.

    Parameters
    ----------
    processes : `gloader.distributed.agree.own_process` of each rank
    signs : of life of all ranks; None if all are on this machine
    """

    def __init__(self, processes: Sequence[Mapping[str, Any]], signs: RankSigns | None) -> None:
        self._processes = processes
        self._signs = signs
        self.lost: list[int] = []  # ranks that had ended when the first loss was noticed
        self.has_ended_group = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gloader-lost", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: ranks may end from now on. Idempotent."""
        self._is_over.set()

    def close(self) -> None:
        """Stop watching, and wait a moment for the thread. Idempotent."""
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
    """End the process group's waits. gloo notices an ended process by its connections."""
    import torch
    from torch import distributed

    from gloader.distributed.exchange.host_group import cut_connections

    try:
        if (group := distributed.group.WORLD) is not None:
            group.abort()  # with NCCL
            if is_missed:
                cut_connections(group._get_backend(torch.device("cpu")))  # noqa: SLF001 - no public name
    # The transport's own errors do not matter: the lost rank ends the run.
    except Exception as error:  # noqa: BLE001
        logger.warning("the process group cannot be aborted after a rank was lost: %s", error)
