"""Plan of the sweeps: the batches that a pass over the edges serves, with their memory and disk, and the spill folder.

`plan_sweeps` is pure. `open_spill` opens the spill folder of a loader, within a budget or a share of the free disk.
"""

from __future__ import annotations

import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.core.paths import require_parent
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, SpillError
from gloader.ssd_store.cost.strategy import LARGEST, SMALLEST
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.os_io import spill_errors
from gloader.ssd_store.spill.claim import spill_parent
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.ssd_store.sweep.passes import MIN_PASS_BYTES, pass_memory_bytes
from gloader.ssd_store.write.atomic_file import make_output_folder

if TYPE_CHECKING:
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.os_io import StrPath


# Of the memory budget, for what waits between passes: a byte more of it saves less of the disk's time than one of the
# host cache does, once a pass serves hundreds of batches.
_FRONTIER_SHARE: Final = 1 / 10
_SPILL_SHARE: Final = 1 / 2  # of the disk for packs; features want the rest

_BUFFER_SHARE: Final = 1 / 10  # for the buffers of a pass, where it runs with less than it would like
# Of each frontier in a pass: a piece that is written, and a quarter of another one.
_PIECE_BYTES: Final = 16 * 2**10 * 5 // 4
# Of the buffers: what else there is, twice, and the least of each frontier, likewise.
_LEAST_BYTES, _LEAST_PIECE_BYTES = 2 * 2**20, 2 * 8 * 2**10
# Of each page of the file: its checksum, and a bit.
_PAGE_HELD_BYTES: Final = 8 + 1 / 8

_READ_BACK: Final = 2  # for the trace or the nodes of the next hop, and to make the batch

# Superbatches that are drawn to their end and not executed yet, the one of the pass under way included: S_t + S batches
# twice, where S is half of S_t at most.
_SUPERBATCHES_ALIVE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDemand:
    """What edges in sweeps are chosen for, measured on the first batches of a run."""

    file_bytes: int  # of all that a pass may read: edges, and weights where the sampler looks at them
    node_bytes: int  # of a node id in a frontier
    hop_nodes: tuple[int, ...]  # (L,) ids that a large batch holds while it waits for hop 0, 1, ...
    hop_bytes: tuple[int, ...]  # (L,) that the passes bring for a large batch, for hop 0, 1, ...
    touched_pages: int  # of the file, that hold what is brought for a batch, at most
    num_batches: int | None = None  # of the whole run, where that is known
    kept_bytes: int = 0  # of the buffers of a pass, for each frontier, beside its pieces
    num_files: int = 1  # of relations, that a pass reads one after another, each with buffers of its own

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a batch's frontiers, one of each hop: that many superbatches are on their way."""
        return self.node_bytes * sum(self.hop_nodes)

    @property
    def num_hops(self) -> int:
        """L."""
        return len(self.hop_nodes)

    @property
    def alive_bytes(self) -> int:
        """Bytes on the disk for each batch of a superbatch: what passes brought that was not given back yet."""
        # Behind the superbatches that are drawn to their end, L - 1 more have their first hops.
        begun = sum(num_bytes * later for later, num_bytes in enumerate(reversed(self.hop_bytes)))
        return _SUPERBATCHES_ALIVE * sum(self.hop_bytes) + begun


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """S_t, the batches of a topology superbatch, what they take, and why they are so many."""

    num_batches: int  # S_t, a power of two of at least 2
    reason: str
    buffer_bytes: int  # of memory, for a pass
    checksum_bytes: int  # of memory, for the checksums of the file and marks of its pages
    frontier_bytes: int  # of memory, between passes
    spill_bytes: int  # of the disk, which packs of features must leave alone
    file_bytes: int
    touched_bytes: int  # of the file, by a batch alone
    drawn_bytes: int  # of a batch, about

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory for all of it."""
        return self.buffer_bytes + self.checksum_bytes + self.frontier_bytes

    @property
    def largest_superbatch(self) -> int:
        """The most batches whose features may be planned together: S of at most half of S_t; see `alive_bytes`."""
        return self.num_batches // 2

    @property
    def part_bytes(self) -> float:
        """Bytes of the file that are read for a batch: its part of a pass over all of it, or its own pages."""
        return min(self.file_bytes / self.num_batches, self.touched_bytes)

    @property
    def read_bytes(self) -> float:
        """Bytes that are read for a batch: `part_bytes`, and what was written for it, twice."""
        return self.part_bytes + _READ_BACK * self.drawn_bytes

    def pass_seconds(self, rates: IoRates) -> float:
        """Return the seconds that the disk is busy with a batch's part of the passes, and with what they brought."""
        file_s = min(
            self.file_bytes / self.num_batches / rates.read_bytes_per_s,
            self.touched_bytes / PAGE_BYTES / rates.random_reads_per_s,
        )
        return file_s + self.drawn_bytes * (
            1 / rates.write_bytes_per_s + _READ_BACK / rates.pack_read_bytes_per_s
        )


def plan_sweeps(
    demand: SweepDemand, *, budget_bytes: int, spill_bytes: int, room_bytes: int | None = None
) -> SweepPlan:
    """Return the largest S_t whose frontiers and files fit their parts of memory and disk. Pure.

    It has nothing to do with S: a pass costs the same for however many batches.

    Parameters
    ----------
    demand : of a batch
    budget_bytes : of memory, for everything
    spill_bytes : of disk, for everything
    room_bytes : of the budget, by which S_t is chosen; None: the budget

    Raises
    ------
    BudgetError
        The disk or the memory has no room for the fewest batches; says needed and allowed.
    """
    least = SMALLEST * demand.alive_bytes
    if least > spill_bytes:
        raise BudgetError(
            f"edges that are read in sweeps need {format_bytes(least)} on the spill disk for {SMALLEST} batches, and "
            f"{format_bytes(spill_bytes)} are allowed; raise spill_budget, use a smaller batch size or fan-out, or "
            "topology='direct'"
        )
    room = budget_bytes if room_bytes is None else room_bytes
    limits = {
        "the most that are tried": LARGEST,
        "as many as the run has": LARGEST if demand.num_batches is None else _above(demand.num_batches),
        "a tenth of the memory budget has room for no more": _below(
            int(_FRONTIER_SHARE * room),
            demand.waiting_bytes + demand.num_files * demand.num_hops * (_PIECE_BYTES + demand.kept_bytes),
        ),
        "half of the spill budget has room for no more": _below(
            int(_SPILL_SHARE * spill_bytes), demand.alive_bytes
        ),
    }
    reason = min(limits, key=lambda name: limits[name])
    num_batches = limits[reason]
    buffer_bytes = demand.num_files * _buffer_bytes(
        num_batches * demand.num_hops, demand.kept_bytes, room // demand.num_files
    )
    if demand.kept_bytes and buffer_bytes > budget_bytes:
        raise BudgetError(
            f"edges that are read in sweeps need {format_bytes(buffer_bytes)} to choose by weight for {num_batches} "
            f"batches, and the memory budget is {format_bytes(budget_bytes)}; raise memory_budget, use smaller "
            "fan-outs, or topology='direct'",
            short_bytes=buffer_bytes - budget_bytes,
        )
    return SweepPlan(
        num_batches=num_batches,
        reason=reason,
        buffer_bytes=buffer_bytes,
        checksum_bytes=int(_PAGE_HELD_BYTES * demand.file_bytes / PAGE_BYTES) + PAGE_BYTES,
        frontier_bytes=num_batches * demand.waiting_bytes,
        spill_bytes=num_batches * demand.alive_bytes,
        file_bytes=demand.file_bytes,
        touched_bytes=demand.touched_pages * PAGE_BYTES,
        drawn_bytes=sum(demand.hop_bytes),
    )


def _buffer_bytes(num_owners: int, kept_bytes: int, budget_bytes: int) -> int:
    """Return the buffers of a pass for so many frontiers: a tenth of a small budget, if that will do. Pure."""
    least = max(MIN_PASS_BYTES, _LEAST_BYTES + num_owners * _LEAST_PIECE_BYTES * 5 // 4)
    buffers = min(pass_memory_bytes(num_owners), max(int(_BUFFER_SHARE * budget_bytes), least))
    # A quarter of all buffers is for reading.
    return buffers + num_owners * kept_bytes * 4 // 3


def _above(count: int) -> int:
    """Return the least power of two that is ``count`` or more, at least 2. Pure."""
    return max(1 << max(count - 1, 0).bit_length(), SMALLEST)


def _below(room: int, each: int) -> int:
    """Return the largest power of two that so many of ``each`` fit into ``room``, at least 2. Pure."""
    return max(1 << max(min(room // max(each, 1), LARGEST).bit_length() - 1, 0), SMALLEST)


logger = logging.getLogger("gloader")

# A quarter of what is free: others use the disk too.
_FREE_SHARE = 4

# Of what is read: of the features, where larger superbatches gain little, and of edges, if they are swept.
_MULTIPLE = 4

_IN_MEMORY = ("tmpfs", "ramfs")

_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in the names of folders


def open_spill(
    parent: StrPath | None, budget_bytes: int | None, *, data_bytes: int, num_loaders: int = 1
) -> SpillFolder | None:
    """Open a spill folder, or return None where there is none to have and none was asked for.

    Parameters
    ----------
    parent : where; None: the default of `SpillFolder`
    budget_bytes : what it may hold, 0 for no spill folder; None: a share of the free disk
    data_bytes : of what is read from the disk, to which the default is in proportion
    num_loaders : loaders on this host, which share that disk; what is asked for is of each

    Raises
    ------
    ConfigError
        The folder above ``parent`` does not exist.
    SpillError
        A budget was asked for and the folder cannot be made.
    """
    if budget_bytes == 0:
        return None
    if parent is not None:
        require_parent(Path(parent), flag="--spill-dir", keyword="spill_dir=")
        with spill_errors(Path(parent), "creating the folder of --spill-dir"):
            make_output_folder(Path(parent))
    try:
        folder = spill_parent(parent)
        budget = _default_bytes(folder, data_bytes, num_loaders) if budget_bytes is None else budget_bytes
        return SpillFolder(folder, budget_bytes=budget) if budget else None
    except SpillError as error:
        if budget_bytes is not None:
            raise
        logger.info("no packs: %s", error)
        return None


def _default_bytes(folder: Path, data_bytes: int, num_loaders: int = 1) -> int:
    """Return the budget of whoever names none: nothing where the temporary folder is itself in memory."""
    if _file_system(folder) in _IN_MEMORY:
        return 0
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return int(min(free // (_FREE_SHARE * num_loaders), _MULTIPLE * data_bytes))


def _file_system(folder: Path) -> str:
    """Return the type of the file system that holds ``folder``, or nothing where that cannot be found out."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    # A later mount covers an earlier one of the same folder.
    mounts = {
        Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), words[1])): words[2]
        for words in map(str.split, lines)
    }
    for parent in (folder.resolve(), *folder.resolve().parents):
        if parent in mounts:
            return mounts[parent]
    return ""
