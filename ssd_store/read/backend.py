"""The seam between planned reads and the device: io_uring, threads or plain calls, and the rule that chooses."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.config import IoMode
    from gloader.ssd_store.read.verify_kernels import ReadJob
    from gloader.types import IdArray

_LOG = logging.getLogger(__name__)
_Executor = TypeVar("_Executor")

ExecutorKind: TypeAlias = Literal["uring", "threads", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgress:
    """How far a backend came with the extents of a job."""

    next: int  # the first extent that was not started
    # Extents before it whose read failed or came back short; the caller reads them carefully.
    unfinished: IdArray
    bad_page: int = -1  # a page whose checksum differs


class Backend(Protocol):
    """Reads extents into bounce slots, verifies them and copies their rows out.

    An extent is copied whole or reported unfinished. When `read` returns or raises, no read is in flight.
    """

    name: str

    def read(self, fd: int, job: ReadJob, start: int, /) -> ReadProgress:
        """Read extents from ``start`` on, as far as all goes well.

        Parameters
        ----------
        fd : descriptor of the file
        job : what to read, and where its rows go
        start : number of the first extent to read
        """
        ...

    def close(self) -> None:
        """Release threads and rings. Idempotent."""
        ...


class PlainBackend:
    """Leaves every extent to the caller's careful reads: the path on which faults are injected."""

    name = "plain"

    def read(self, _fd: int, job: ReadJob, start: int, /) -> ReadProgress:
        """Start nothing.

        Parameters
        ----------
        job, start : as for `Backend.read`
        """
        count = job.offset.shape[0]
        return ReadProgress(next=count, unfinished=np.arange(start, count, dtype=np.int64))

    def close(self) -> None:
        """Do nothing."""


def choose_executor(
    io: IoMode,
    *,
    is_direct: bool,
    is_real: bool,
    make: Callable[[ExecutorKind], _Executor],
) -> _Executor:
    """Return the fastest executor that ``io`` and the system allow, for reads and for sweeps.

    Parameters
    ----------
    io : IoMode
        What the user asked for; "auto" takes io_uring if the file is open with O_DIRECT.
    is_direct : bool
        Whether the file is. Through the page cache, io_uring would hand most reads to threads of its own.
    is_real : bool
        Whether the system calls are the real ones. Kernels cannot make others, so only "plain" is right then.
    make : callable
        Makes the executor of a kind, or raises `OSError` if the system forbids it.

    Raises
    ------
    ConfigError
        ``io`` is "uring" and there is none.
    """
    if not is_real:
        return make("plain")
    if io == "uring" or (io == "auto" and is_direct):
        try:
            return make("uring")
        except OSError as error:
            reason = error.strerror or str(error)
            if io == "uring":
                raise ConfigError(f"io='uring' is not available here: {reason}; use io='auto'") from error
            _LOG.info("io_uring is not available, using threads: %s", reason)
    try:
        return make("threads")
    except OSError as error:
        _LOG.info("threads are not available, making one request at a time: %s", error.strerror or error)
        return make("plain")
