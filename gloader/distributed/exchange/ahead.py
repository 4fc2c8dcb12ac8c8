"""Work that a thread does ahead, while the one that asked for it goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gloader.core.processor_time import helping
from gloader.core.thread_start import thread_errors

if TYPE_CHECKING:
    from collections.abc import Callable


class Ahead:
    """One piece of work at a time, each in a thread of its own. For one thread; owns what is under way until `wait`.

    Parameters
    ----------
    name : of the threads
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Begin ``work``; what was under way has been waited for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by `wait`
                self._error = error

        thread = threading.Thread(target=helping(run), name=self._name, daemon=True)
        with thread_errors():
            thread.start()
        self._thread = thread

    def wait(self) -> None:
        """Wait until the work is done, and raise what it raised, once; without any, return."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
