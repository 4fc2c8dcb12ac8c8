"""Passes over the edges on the SSD, each for hops of many batches: the seam between sampling and reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gloader.ssd_store.sweep.ways import PassWay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.ssd_store.sweep.sweep import SweepCost

__all__ = ["EdgePasses", "PassReport", "PassWay", "SweptHops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """What a pass was predicted to take, and what it took."""

    way: PassWay
    predicted_s: float
    pages_wanted: int  # of the file's
    cost: SweepCost  # measured


class SweptHops(Protocol):
    """What one pass brought, in the spill folder: a drawn array for each frontier. Thread-safe."""

    @property
    def report(self) -> PassReport:
        """What the pass took."""
        ...

    def read(self, owner: int) -> Any:
        """Return what was drawn for ``frontiers[owner]``, read back and verified; see `HopRule`.

        Raises
        ------
        ChecksumError, SpillError
            It was damaged or cut since, or the device fails; or it was released.
        """
        ...

    def release(self, owner: int) -> None:
        """Say that ``frontiers[owner]`` is done: its file goes back with the last owner in it. Idempotent."""
        ...

    def close(self) -> None:
        """Remove what was not released. Idempotent."""
        ...


class EdgePasses(Protocol):
    """Makes passes over the edges of a dataset, one at a time. Owns files, rings and buffers until `close`."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers that are held for it."""
        ...

    def sweep(self, frontiers: Sequence[Any], *, label: str, is_cancelled: Callable[[], bool]) -> SweptHops:
        """Bring what ``frontiers`` draw to the spill folder, in one pass, or leave nothing there.

        Parameters
        ----------
        frontiers : as of the rule, of any batches and hops below L; of batches that wait for one another the earlier
            hops come first
        label : whose pass it is, for messages
        is_cancelled : looked at every few milliseconds

        Raises
        ------
        StoreReadError, TruncatedStoreError, ChecksumError
            The edges cannot be read, or are damaged; names file and page.
        BudgetError, SpillError
            The spill folder has no room, its disk is full or fails.
        ChannelClosedError
            ``is_cancelled`` returned true.
        """
        ...

    def close(self) -> None:
        """Release everything, and close what its passes left. Idempotent."""
        ...
