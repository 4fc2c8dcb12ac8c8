"""How reads reach the device: the seam between the planner and io_uring, threads or plain preads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from gloader.ssd_store.read.verify_and_copy import Delivery
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a backend came with the extents of a delivery."""

    next: int  # the first extent that was not started
    unfinished: (
        IdArray  # extents before it whose read failed or came back short; the caller reads them carefully
    )
    bad_page: int = -1  # a page whose checksum differs


class Backend(Protocol):
    """Reads extents into staging slots and delivers them. Delivers a whole extent or reports it unfinished.

    When `read` returns or raises, no read is in flight.
    """

    name: str

    def read(self, fd: int, work: Delivery, start: int, /) -> Progress:
        """Read and deliver extents from ``start`` on, as far as all goes well."""
        ...

    def close(self) -> None:
        """Release threads and rings. Idempotent."""
        ...


class PlainBackend:
    """Leaves every extent to the caller's careful reads: the path on which faults are injected."""

    name = "plain"

    def read(self, _fd: int, work: Delivery, start: int, /) -> Progress:
        """Start nothing."""
        count = work.offset.shape[0]
        return Progress(next=count, unfinished=np.arange(start, count, dtype=np.int64))

    def close(self) -> None:
        """Do nothing."""
