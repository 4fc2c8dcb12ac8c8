"""The watch over ranks, by their processes or signs of life: a lost one ends the collectives that wait for it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.training.rank_signs import RankSigns

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
