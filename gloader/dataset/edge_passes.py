"""Passes over the edges on the SSD. One pass serves the hops of many batches.

If the edges do not fit in memory, hops are sampled by passes. A frontier is one hop of one batch: the nodes whose
in-edges the hop samples, with the random key of the draws. A pass takes the frontiers of many batches and reads the
file ``indices`` once, in file order. It writes each frontier's draws, such as the source nodes of the drawn edges, to
files in the spill folder, a folder for temporary files. Later each batch reads its draws back. An owner is the index of
a frontier in the pass. A sampler's `HopRule` makes the frontiers, and defines the form of the draws. A page is a fixed
number of bytes of the file, with a checksum. A hole is the unwanted pages between two wanted pages.

`EdgePasses` is the protocol between sampling and reading. `PickedPasses` serves samplers that draw edges by position,
an edge's index in the file: the positions are known from the nodes' degrees, before any edge is read. The pass then
works in three steps. It marks the pages that hold wanted positions. It plans its way through the file. It reads, and
distributes the sources.
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
from gloader.ssd_store.sweep.wanted_rows import count_bits, empty_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.core.signals import Cancellation
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

    way: PassWay  # "direct": only wanted pages; "merged": also short holes between them; "full": the whole file
    predicted_s: float  # predicted duration in seconds
    pages_wanted: int  # pages with wanted edges
    cost: SweepCost  # measured requests and bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSettings:
    """The memory and the disks of passes over edges."""

    # Memory for all buffers. `pass_memory_bytes` returns the bytes with which passes are fastest.
    memory_bytes: int
    rates: IoRates  # the measured speed of the disks, from which a pass's duration is predicted
    io: IoMode = "auto"  # the system calls that read the file, such as "uring"
    # The way of every pass, as in `PassReport.way`. By default, the way that is predicted to be fastest.
    way: PassWay | None = None


class SweptHops(Protocol):
    """The results of one pass, in the spill folder: the draws of each frontier. Thread-safe."""

    @property
    def report(self) -> PassReport:
        """The cost of the pass."""
        ...

    def read(self, owner: int) -> Any:
        """Return the verified draws of ``frontiers[owner]``, in the form that its `HopRule` defines.

        Raises
        ------
        ChecksumError, SpillError
            The draws are damaged, truncated or already released, or the disk fails.
        """
        ...

    def release(self, owner: int) -> None:
        """Give up the draws of ``frontiers[owner]``. A file is removed with its last frontier's draws. Idempotent."""
        ...

    def close(self) -> None:
        """Remove the files that were not released. Idempotent."""
        ...


class EdgePasses(Protocol):
    """Passes over a dataset's edges, one after another. Owns files, read queues and buffers until `close`."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of the passes' buffers."""
        ...

    def sweep(self, frontiers: Sequence[Any], *, label: str, cancellation: Cancellation) -> SweptHops:
        """Write the draws for ``frontiers`` to the spill folder in one pass. A failed pass leaves no files.

        Parameters
        ----------
        frontiers : frontiers in the form of the sampler's `HopRule`, for any batches and any of their hops. If draws of
            one hop are needed before those of the next, the frontiers are in the order of their hops
        label : the name of the pass, for messages

        Raises
        ------
        StoreReadError, TruncatedStoreError, ChecksumError
            The edges cannot be read, or are damaged. The message names file and page.
        BudgetError, SpillError
            The spill folder has no room, its disk is full or fails.
        ChannelClosedError
            The work was cancelled.
        """
        ...

    def close(self) -> None:
        """Release everything, and remove the passes' files. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCall:
    """The name of one pass, for messages, and its cancellation."""

    label: str  # the pass's name
    cancellation: Cancellation  # set to end the pass early

    def raise_if_cancelled(self, doing: str) -> None:
        """Raise ChannelClosedError if the pass is cancelled. ``doing`` is the step, such as "marking the pages of"."""
        self.cancellation.raise_if_set(f"{doing} {self.label}")


# If more than this share of the pages is wanted, the pass reads the full file. Marking the remaining pages would take
# more time than it saves.
_FULL_SHARE: Final = 0.6
# `_mark` counts the marked pages again after each further num_pages / _LOOKS positions. A count looks at all marks, so
# it would be too slow after each frontier.
_LOOKS: Final = 8


class PickedPasses:
    """`EdgePasses` for a `UniformPickRule`. Thread-safe: one pass runs at a time. Owns its buffers until `close`.

    Parameters
    ----------
    dataset : a dataset of one type, or a relation
    rule : the sampler's rule
    folder : the spill folder for the results
    settings : memory and disks
    buffers : buffers from `shared_buffers` with ``settings.memory_bytes``, which other passes share, and which the
        caller closes. By default, the passes own their buffers

    Raises
    ------
    BudgetError
        The memory is too little for any pass.
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        As `open_topology`.
    """

    def __init__(
        self,
        dataset: AnyEdges,
        rule: UniformPickRule,
        folder: SpillFolder,
        settings: PassSettings,
        *,
        buffers: SharedBuffers | None = None,
    ) -> None:
        self._rule = rule
        self._settings = settings
        record = dataset.arrays["indices"]
        self._num_pages = record.num_pages
        # A portion is the part of the wanted positions that is listed at a time, in the order of the file.
        # The rest of the memory is the buffers' (`shared_buffers`).
        self._portion_bytes = plan_pass_buffers(settings.memory_bytes).portion_bytes
        with dataset.as_opened():
            self._stored = stored_array(
                dataset.root, record, settings=ReadSettings(io=settings.io), os_io=dataset.os_io
            )
            self._store = RegionStore(
                self._stored,
                folder,
                buffers=shared_buffers(settings.memory_bytes) if buffers is None else buffers,
                owns_buffers=buffers is None,
            )
        self._gap_bytes = default_sweep_gap_bytes(self._stored.path.parent)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers, the page checksums and one pass's page marks."""
        marks = self._num_pages // 8
        return self._store.resident_bytes + self._portion_bytes + int(self._stored.checksums.nbytes) + marks

    def sweep(self, frontiers: Sequence[Frontier], *, label: str, cancellation: Cancellation) -> PickedHops:
        """Write the sources at the positions of ``frontiers`` to the spill folder. A failed pass leaves no files.

        Parameters
        ----------
        frontiers : frontiers of any batches and hops; consecutive frontiers of the same hop share spill files
        label : the pass's name, for messages

        Raises
        ------
        StoreReadError, TruncatedStoreError, ChecksumError
            The edges cannot be read, or are damaged. The message names file and page.
        BudgetError, SpillError
            There are too many frontiers for the buffers; the spill folder has no room, its disk is full or fails.
        ChannelClosedError
            The work was cancelled.
        ConfigError, GraphError
            As the methods of the rule.
        StoreError
            The passes are closed.
        """
        stored = self._stored
        with self._store.turn:  # a lock, held during a pass, because passes share the buffers
            self._store.require_open()
            # This call only raises its error: too many frontiers must fail before any page is marked.
            plan_buffers(len(frontiers), self._store.sweep_bytes)
            call = PassCall(label=label, cancellation=cancellation)
            counts = self._counts(frontiers, call)
            pages, is_exact = self._mark(frontiers, counts, call)
            plan = plan_pass(
                pages,
                self._num_pages,
                self._settings.rates,
                gap_bytes=self._gap_bytes,
                written_bytes=int(counts.sum()) * stored.row_bytes,
                forced=self._settings.way if is_exact else "full",
            )

            # If the marks are not exact, the pass also reads unwanted pages, and a damaged one among them is no error.
            # This function returns the exact marks. It is called only after a damaged page was read.
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
                cancellation=cancellation,
            )
        report = PassReport(
            way=plan.way, predicted_s=plan.seconds, pages_wanted=plan.pages_wanted, cost=regions.cost
        )
        return PickedHops(regions, counts, stored.form.dtype, report)

    def close(self) -> None:
        """Release everything, also the passes' files. Idempotent."""
        self._store.close()

    def _counts(self, frontiers: Sequence[Frontier], call: PassCall) -> IdArray:
        """Return the number of wanted positions (O,) of each of the O frontiers."""
        counts = np.zeros(len(frontiers), np.int64)
        for owner, frontier in enumerate(frontiers):
            call.raise_if_cancelled("counting the edges of")
            counts[owner] = self._rule.counts([frontier])[0]
        return counts

    def _mark(
        self, frontiers: Sequence[Frontier], counts: IdArray, call: PassCall
    ) -> tuple[NDArray[np.uint64], bool]:
        """Return the wanted pages, one bit per page, and whether the marks are exact.

        If the pass may read the full file, marking stops once more than `_FULL_SHARE` of the pages are marked. Every
        page then counts as wanted, and the marks are not exact. If the settings force the way "direct" or "merged", the
        marks are always exact.
        """
        pages = empty_bits(self._num_pages)
        most = _FULL_SHARE * self._num_pages
        may_stop = self._settings.way in (None, "full")
        num_positions, next_count = 0, most
        for frontier, count in zip(frontiers, counts.tolist(), strict=True):
            self._mark_pages(frontier, pages, call)
            num_positions += count
            # A position marks at most one page, so up to ``most`` positions cannot mark more than ``most`` pages. Only
            # after that many positions are the marked pages counted, from time to time.
            if may_stop and num_positions > next_count:
                if count_bits(pages) > most:
                    pages[:] = ~np.uint64(0)
                    return pages, False
                next_count = num_positions + self._num_pages // _LOOKS
        return pages, True

    def _mark_pages(self, frontier: Frontier, pages: NDArray[np.uint64], call: PassCall) -> None:
        """Set the bits in ``pages`` of the pages with a position that ``frontier`` wants."""
        call.raise_if_cancelled("marking the pages of")
        self._rule.mark(frontier, pages, per_page=PAGE_BYTES // self._stored.row_bytes)


def shared_buffers(memory_bytes: int) -> SharedBuffers:
    """Return buffers for passes from a division of ``memory_bytes``: for the pass, and for a reader of the draws.

    The reader is a lane, a queue of read requests with its own memory. The portions' memory is not part of the buffers.
    Raises as `PickedPasses`.
    """
    plan = plan_pass_buffers(memory_bytes)
    return SharedBuffers(
        sweep_bytes=plan.sweep_bytes, lane_bytes=plan.lane_bytes, name="the reader of the edges"
    )


class PickedHops:
    """The results of one pass, as `SweptHops`. Thread-safe; made by `PickedPasses.sweep`.

    Parameters
    ----------
    regions : the parts of the spill files, one per frontier
    counts : (O,) number of sources per frontier, for O frontiers
    dtype : dtype of the source ids
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
        """Return the verified sources of ``frontiers[owner]``, by ascending position.

        Raises
        ------
        ChecksumError, SpillError, StoreError
            The sources are damaged, truncated or already released, the disk fails, or the passes are closed.
        """
        return self._regions.read_array(owner, int(self._counts[owner]), self._dtype)

    def release(self, owner: int) -> None:
        """Release ``frontiers[owner]``. A file is removed once all its frontiers are released. Idempotent."""
        self._regions.release(owner)

    def close(self) -> None:
        """Remove the files that were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed.
        """
        self._regions.close()
