"""Passes over the edges on the SSD, each for the hops of many batches.

`EdgePasses` is the seam between sampling and reading. `PickedPasses` serves samplers that know the positions of the
edges that they take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from gloader.ssd_store.cost.profile import default_sweep_gap_bytes
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.columns import stored_array
from gloader.ssd_store.read.lane import ReadSettings
from gloader.ssd_store.spill.regions import RegionStore, SharedBuffers, plan_regions
from gloader.ssd_store.sweep.passes import PassWay, plan_pass, plan_pass_buffers
from gloader.ssd_store.sweep.supply import WantedPositions
from gloader.ssd_store.sweep.sweeper import plan_buffers
from gloader.ssd_store.sweep.wanted_rows import count_bits, empty_bits, require_going

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.dataset.topology import AnyEdges
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.sweeping import Frontier
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.ssd_store.spill.regions import Regions
    from gloader.ssd_store.sweep.sweeper import SweepCost
    from gloader.types import IdArray


__all__ = ["EdgePasses", "PassReport", "PassWay", "SweptHops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassReport:
    """The predicted and the measured cost of a pass."""

    way: PassWay
    predicted_s: float
    pages_wanted: int  # of the file's
    cost: SweepCost  # measured


class SweptHops(Protocol):
    """The hops of one pass, in the spill folder: a drawn array for each frontier. Thread-safe."""

    @property
    def report(self) -> PassReport:
        """The cost of the pass."""
        ...

    def read(self, owner: int) -> Any:
        """Return the draws for ``frontiers[owner]``, read back and verified; see `HopRule`.

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
        """Remove the files that were not released. Idempotent."""
        ...


class EdgePasses(Protocol):
    """Makes passes over the edges of a dataset, one at a time. Owns files, rings and buffers until `close`."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers that are held for it."""
        ...

    def sweep(self, frontiers: Sequence[Any], *, label: str, is_cancelled: Callable[[], bool]) -> SweptHops:
        """Bring the draws of ``frontiers`` to the spill folder, in one pass, or leave nothing there.

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
        """Release everything, also the passes' files. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCall:
    """The name of one pass, for messages, and its cancellation."""

    label: str
    is_cancelled: Callable[[], bool]  # looked at every few milliseconds

    def require_going(self, doing: str) -> None:
        """Raise ChannelClosedError if the pass is cancelled; ``doing`` names the step, such as "marking lists of"."""
        require_going(self.is_cancelled, f"{doing} {self.label}")


# Of the pages. Beyond it all of the file is read, and marking the others would take longer than it saves.
_FULL_SHARE: Final = 0.6
_LOOKS: Final = 8  # at how many pages are marked, in the positions that could mark all of them


class PickedPasses:
    """`EdgePasses` for a `UniformPickRule`. Thread-safe; one pass at a time. Owns its buffers until `close`.

    Parameters
    ----------
    dataset : of one type, or a relation, whose edges they are
    rule : of the sampler
    folder : takes the passes' results, within its budget
    memory_bytes : of all buffers; `pass_memory_bytes` says how many make for full speed
    rates : of the disks
    io : how requests are made
    way : how every pass reads; None means as ``rates`` predict
    buffers : of `shared_buffers` with as many bytes, which passes over other files share and their owner closes; None:
        of its own

    Raises
    ------
    BudgetError
        ``memory_bytes`` is too little for any pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        As `open_topology`.
    """

    def __init__(
        self,
        dataset: AnyEdges,
        rule: UniformPickRule,
        folder: SpillFolder,
        *,
        memory_bytes: int,
        rates: IoRates,
        io: IoMode = "auto",
        way: PassWay | None = None,
        buffers: SharedBuffers | None = None,
    ) -> None:
        self._rule = rule
        self._rates = rates
        self._way: PassWay | None = way
        record = dataset.arrays["indices"]
        self._num_pages = record.num_pages
        self._portion_bytes = plan_pass_buffers(memory_bytes).portion_bytes
        with dataset.as_opened():
            self._stored = stored_array(
                dataset.root, record, settings=ReadSettings(io=io), os_io=dataset.os_io
            )
            self._store = RegionStore(
                self._stored,
                folder,
                buffers=shared_buffers(memory_bytes) if buffers is None else buffers,
                owns_buffers=buffers is None,
            )
        self._gap_bytes = default_sweep_gap_bytes(self._stored.path.parent)

    @property
    def resident_bytes(self) -> int:
        """Bytes of buffers and page checksums that are held, and of the page marks of a pass."""
        marks = self._num_pages // 8
        return self._store.resident_bytes + self._portion_bytes + int(self._stored.checksums.nbytes) + marks

    def sweep(
        self, frontiers: Sequence[Frontier], *, label: str, is_cancelled: Callable[[], bool]
    ) -> PickedHops:
        """Bring the sources at the positions of ``frontiers`` to the spill folder, or leave nothing there.

        Parameters
        ----------
        frontiers : of any batches and hops below L; neighbours of one hop share files
        label : whose pass it is, for messages
        is_cancelled : looked at every few milliseconds

        Raises
        ------
        StoreReadError, TruncatedStoreError, ChecksumError
            The edges cannot be read, or are damaged; names file and page.
        BudgetError, SpillError
            There are too many frontiers for the buffers; the spill folder has no room, its disk is full or fails.
        ChannelClosedError
            ``is_cancelled`` returned true.
        ConfigError, GraphError
            As the rule.
        StoreError
            The passes are closed.
        """
        stored = self._stored
        with self._store.turn:
            self._store.require_open()
            # Planned for its error alone: too many frontiers are to fail before a page is marked.
            plan_buffers(len(frontiers), self._store.sweep_bytes)
            call = PassCall(label=label, is_cancelled=is_cancelled)
            counts = self._counts(frontiers, call)
            pages, is_exact = self._mark(frontiers, counts, call)
            plan = plan_pass(
                pages,
                self._num_pages,
                self._rates,
                gap_bytes=self._gap_bytes,
                written_bytes=int(counts.sum()) * stored.row_bytes,
                forced=self._way if is_exact else "full",
            )

            def mark_all() -> NDArray[np.uint64]:
                exact = empty_bits(self._num_pages)
                for frontier in frontiers:
                    self._mark_pages(frontier, exact, call)
                return exact

            wanted = WantedPositions(
                portions=self._rule.portions(frontiers),
                counts=counts,
                pages=pages,
                num_pages=self._num_pages,
                gap_bytes=plan.gap_bytes,
                portion_bytes=self._portion_bytes,
                exact_pages=None if is_exact else mark_all,
            )
            regions = self._store.write(
                wanted,
                plan_regions(counts, stored.row_bytes, [frontier.hop for frontier in frontiers]),
                label=label,
                member="frontier",
                is_cancelled=is_cancelled,
            )
        report = PassReport(
            way=plan.way, predicted_s=plan.seconds, pages_wanted=plan.pages_wanted, cost=regions.cost
        )
        return PickedHops(regions, counts, stored.form.dtype, report)

    def close(self) -> None:
        """Release everything, also the passes' files. Idempotent."""
        self._store.close()

    def _counts(self, frontiers: Sequence[Frontier], call: PassCall) -> IdArray:
        counts = np.zeros(len(frontiers), np.int64)
        for owner, frontier in enumerate(frontiers):
            call.require_going("counting the edges of")
            counts[owner] = self._rule.counts([frontier])[0]
        return counts

    def _mark(
        self, frontiers: Sequence[Frontier], counts: IdArray, call: PassCall
    ) -> tuple[NDArray[np.uint64], bool]:
        """Return the pages that ``frontiers`` want, and whether they are only those: if they are most, all are set."""
        pages = empty_bits(self._num_pages)
        most = _FULL_SHARE * self._num_pages
        may_stop = self._way in (None, "full")
        marked, next_look = 0, most
        for frontier, count in zip(frontiers, counts.tolist(), strict=True):
            self._mark_pages(frontier, pages, call)
            marked += count
            # No more pages are marked than positions were: mostly there is no need to count them.
            if may_stop and marked > next_look:
                if count_bits(pages) > most:
                    pages[:] = ~np.uint64(0)
                    return pages, False
                next_look = marked + self._num_pages // _LOOKS
        return pages, True

    def _mark_pages(self, frontier: Frontier, pages: NDArray[np.uint64], call: PassCall) -> None:
        call.require_going("marking the pages of")
        self._rule.mark(frontier, pages, per_page=PAGE_BYTES // self._stored.row_bytes)


def shared_buffers(memory_bytes: int) -> SharedBuffers:
    """Return the buffers with which passes read and write, of ``memory_bytes`` in all; raises as `PickedPasses`."""
    plan = plan_pass_buffers(memory_bytes)
    return SharedBuffers(
        sweep_bytes=plan.sweep_bytes, lane_bytes=plan.lane_bytes, name="the reader of the edges"
    )


class PickedHops:
    """The hops of one pass, as `SweptHops`. Thread-safe; made by `PickedPasses.sweep`.

    Parameters
    ----------
    regions : of the spill folder, one for each frontier
    counts : (O,) sources in each
    dtype : of a source
    report : the pass's cost
    """

    def __init__(self, regions: Regions, counts: IdArray, dtype: np.dtype[Any], report: PassReport) -> None:
        self._regions = regions
        self._counts = counts
        self._dtype = dtype
        self._report = report

    @property
    def report(self) -> PassReport:
        """The cost of the pass."""
        return self._report

    def read(self, owner: int) -> NDArray[Any]:
        """Return the sources at the positions of ``frontiers[owner]``, ascending by position; verified.

        Raises
        ------
        ChecksumError, SpillError, StoreError
            They were damaged or cut since, or the device fails; or they were released; or the passes are closed.
        """
        return self._regions.read_array(owner, int(self._counts[owner]), self._dtype)

    def release(self, owner: int) -> None:
        """Say that ``frontiers[owner]`` is done: its file goes back with the last owner in it. Idempotent."""
        self._regions.release(owner)

    def close(self) -> None:
        """Remove the files that were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed.
        """
        self._regions.close()
