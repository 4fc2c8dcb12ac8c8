"""The watch over a run's ranks: if a rank is lost, the watch ends the waits of this rank's collectives.

A rank is one of the processes that train together. It is lost if its process on this machine has ended, or if its signs
of life (`RankSigns`) are missing for too long. A collective is a call that all ranks make together; without the watch
it would wait for a lost rank. `RankGroup.watching` runs the watch.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.training.rank_signs import RankSigns


logger = logging.getLogger("gloader")

_LOOK_EVERY_S: Final = 0.5  # seconds between two checks of the ranks
# Longest wait for the thread's end, in seconds: it may hang in the transport during the abort.
_END_S: Final = 1.0


class RankWatch:
    """Watches the ranks' processes from a thread. Owns the thread until `close`.

    When a rank is lost, the watch aborts the process group. A GPU collective needs this: its kernel on the device
    receives no transport errors and waits for the lost rank until the abort. When a rank's signs are missing, the
    watch also closes gloo's connections, because gloo would wait longer for a silent rank.

    Parameters
    ----------
    processes : `gloader.distributed.agree.own_process` of each rank
    signs : all ranks' signs of life; None if all are on this machine
    """

    def __init__(self, processes: Sequence[Mapping[str, Any]], signs: RankSigns | None) -> None:
        self._processes = processes
        self._signs = signs
        # Ranks on this machine whose processes had ended when the first loss was noticed.
        self.lost: list[int] = []
        self.has_ended_group = False  # whether the watch has aborted the process group
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gloader-lost", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching: from now on ranks may end. Idempotent."""
        self._is_over.set()

    def close(self) -> None:
        """Stop watching and wait a moment for the thread. Idempotent."""
        self.end()
        self._thread.join(_END_S)

    def _watch(self) -> None:
        """Check all ranks until the end, or until one is lost. Body of the thread."""
        from gloader.distributed.agree import is_gone

        while not self._is_over.wait(_LOOK_EVERY_S):
            gone = [rank for rank, process in enumerate(self._processes) if is_gone(process)]
            is_missed = self._signs is not None and self._signs.are_missed()
            if (gone or is_missed) and not self._is_over.is_set():
                self.lost, self.has_ended_group = gone, True
                _abort(is_missed=is_missed)
                return


def _abort(*, is_missed: bool) -> None:
    """End the process group's waits. ``is_missed`` means that a rank is silent, which gloo does not notice itself."""
    import torch
    from torch import distributed

    from gloader.distributed.exchange.host_group import cut_connections

    try:
        if (group := distributed.group.WORLD) is not None:
            group.abort()  # for NCCL
            if is_missed:
                cut_connections(group._get_backend(torch.device("cpu")))  # noqa: SLF001 - no public name
    # Errors of the transport do not matter: the lost rank ends the run anyway.
    except Exception as error:  # noqa: BLE001
        logger.warning("the process group cannot be aborted after a rank was lost: %s", error)
