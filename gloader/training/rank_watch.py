"""The watch over the processes of a machine's ranks: a lost one ends the collectives that wait for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger("gloader")

_LOOK_EVERY_S: Final = 0.5
_END_S: Final = 1.0  # for the thread, which may hang in the transport when that is aborted


class RankWatch:
    """Looks after the processes of ranks, from a thread. Owns it until `close`.

    When one has ended, the process group is aborted. A collective of GPUs is waited for on the device, where no error
    of the transport is heard: its kernel waits for the lost rank until it is told to end.

    Parameters
    ----------
    processes : `gloader.distributed.agree.own_process` of each rank
    """

    def __init__(self, processes: Sequence[Mapping[str, Any]]) -> None:
        self._processes = processes
        self.lost: list[int] = []  # ranks that had ended when the first of them was missed
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
            if gone and not self._is_over.is_set():
                self.lost = gone
                _abort()
                return


def _abort() -> None:
    """End what the process group waits for; with NCCL. gloo hears of a lost rank by its connections."""
    from torch import distributed

    try:
        if (group := distributed.group.WORLD) is not None:
            group.abort()
    # Whatever the transport says to that: the lost rank is what ends the run.
    except Exception as error:  # noqa: BLE001
        logger.warning("the process group cannot be aborted after a rank was lost: %s", error)
