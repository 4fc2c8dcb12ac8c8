"""The start of threads where the system allows no more of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from gloader.errors import ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def thread_errors() -> Iterator[None]:
    """Turn the error of a thread that cannot begin inside the block into `ThreadStartError`.

    Raises
    ------
    ThreadStartError
        The system refuses another thread.
    """
    try:
        yield
    except RuntimeError as error:
        # Python has no class of its own for it, and no errno.
        if "can't start new thread" not in str(error):
            raise
        raise ThreadStartError(
            "the system lets this process start no further thread: give fewer (threads=, OMP_NUM_THREADS), or raise "
            "the limit of processes (`ulimit -u`, pids.max of the control group)"
        ) from error
