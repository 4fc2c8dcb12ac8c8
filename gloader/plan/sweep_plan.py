"""Plan for edge sweeps: the batches per pass, their memory and disk, and the spill folder.

If edges are on the SSD, a sweep samples many batches together. It makes one pass over the edges for each hop. A pass
reads the edge file once and writes the drawn edges to the spill folder, a folder for temporary files. A topology
superbatch is the S_t batches of one sweep. A frontier is one hop of one batch: the nodes whose in-edges the next pass
samples. Between passes, frontiers are in memory. Several superbatches are in progress: one pass serves hop 2 of one
superbatch, hop 1 of the next one, and so on.

Two parts follow, for the opening of a loader. `plan_sweeps` chooses S_t, and is pure. `open_spill` opens a loader's
spill folder, within a budget or a share of the free disk.
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


# Share of the memory budget for frontiers between passes. If a pass already serves hundreds of batches, one more byte
# for frontiers saves less disk time than one more byte for the host cache.
_FRONTIER_SHARE: Final = 1 / 10
_SPILL_SHARE: Final = 1 / 2  # share of the spill disk for edges; packs of features use the rest

# Largest share of the memory budget for a pass's buffers, unless it is too little.
_BUFFER_SHARE: Final = 1 / 10
# Bytes per frontier in a pass. A piece of 16 KiB collects a frontier's drawn edges for one write. A quarter of a piece
# more per frontier is spare, for writes in flight.
_PIECE_BYTES: Final = 16 * 2**10 * 5 // 4
# Least bytes of a pass's buffers: a fixed part, and a part per frontier. Both are twice the least that works.
_LEAST_BYTES, _LEAST_PIECE_BYTES = 2 * 2**20, 2 * 8 * 2**10
# Bytes in memory per page of the file: a checksum, and one bit that marks wanted pages.
_PAGE_HELD_BYTES: Final = 8 + 1 / 8

_READ_BACK: Final = 2  # each written edge is read twice: to find the next hop's nodes, and to build the batch

# Number of completely sampled topology superbatches whose edges are still on the spill disk, including the superbatch
# that the current pass completes. They have at most 2 (S_t + S) = 3 S_t batches, because S, the batches of a feature
# superbatch, is at most S_t / 2.
_SUPERBATCHES_ALIVE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDemand:
    """Sizes measured on the first batches, from which edge sweeps are planned. A large batch is one of the largest."""

    file_bytes: int  # bytes that a pass may read: edges, and weights if the sampler uses them
    node_bytes: int  # bytes of one node id in a frontier
    hop_nodes: tuple[int, ...]  # (L,) nodes in the frontier of a large batch for hop 0, 1, ...
    # (L,) bytes of drawn edges that a pass writes for hop 0, 1, ... of a large batch
    hop_bytes: tuple[int, ...]
    touched_pages: int  # largest number of pages of the file that contain edges of one batch
    num_batches: int | None = None  # batches in the run, if known
    kept_bytes: int = 0  # further buffer bytes per frontier in a pass, for samplers that choose from lists
    # Number of relations. A pass reads their files one after another, each with its own buffers.
    num_files: int = 1

    @property
    def waiting_bytes(self) -> int:
        """Frontier bytes per batch of S_t: one frontier for each hop, because L superbatches are in progress."""
        return self.node_bytes * sum(self.hop_nodes)

    @property
    def num_hops(self) -> int:
        """L, the number of hops."""
        return len(self.hop_nodes)

    @property
    def alive_bytes(self) -> int:
        """Spill disk bytes per batch of S_t: the drawn edges of all batches that are not built yet."""
        # L - 1 further superbatches have only their first hops so far.
        begun = sum(num_bytes * later for later, num_bytes in enumerate(reversed(self.hop_bytes)))
        return _SUPERBATCHES_ALIVE * sum(self.hop_bytes) + begun


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """The topology superbatch S_t with its memory, disk and reason."""

    num_batches: int  # S_t, a power of two, at least 2
    reason: str  # reason for this S_t, for the report
    buffer_bytes: int  # memory for the buffers of one pass
    checksum_bytes: int  # memory for the file's checksums and page marks
    frontier_bytes: int  # memory for the frontiers between passes
    spill_bytes: int  # spill disk for edges; packs, the spilled feature rows, must not use it
    file_bytes: int  # bytes of the edges, and of weights if the sampler uses them
    touched_bytes: int  # bytes of the file that one batch touches
    drawn_bytes: int  # approximate edge bytes per batch

    @property
    def memory_bytes(self) -> int:
        """Memory bytes in total."""
        return self.buffer_bytes + self.checksum_bytes + self.frontier_bytes

    @property
    def largest_superbatch(self) -> int:
        """The largest feature superbatch S: half of S_t, as `_SUPERBATCHES_ALIVE` assumes."""
        return self.num_batches // 2

    @property
    def part_bytes(self) -> float:
        """File bytes read per batch: 1 / S_t of the file, or the bytes of the batch's own pages if these are fewer."""
        return min(self.file_bytes / self.num_batches, self.touched_bytes)

    @property
    def read_bytes(self) -> float:
        """Bytes read per batch: `part_bytes`, and the batch's drawn edges twice."""
        return self.part_bytes + _READ_BACK * self.drawn_bytes

    def pass_seconds(self, rates: IoRates) -> float:
        """Return the disk seconds per batch: its share of the passes, and writing and reading back its edges."""
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
    """Return the largest S_t whose frontiers and edges fit their shares of memory and disk. Pure.

    The largest S_t is best, because a pass costs about the same for any number of batches.

    Parameters
    ----------
    demand : measured sizes of large batches
    budget_bytes : memory for everything
    spill_bytes : spill disk for edges and packs
    room_bytes : memory from which the shares are computed. None means the whole budget.

    Raises
    ------
    BudgetError
        The disk or the memory has no room for the smallest S_t. The message gives needed and allowed bytes.
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
    # The keys are reasons for the report. The smallest limit decides.
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
    """Return the buffer bytes of a pass over one file. Pure.

    The buffers have their full size if this is at most a tenth of the budget. Otherwise they have this tenth, but at
    least their least size.

    Parameters
    ----------
    num_owners : number of frontiers in the pass
    kept_bytes : see `SweepDemand`
    budget_bytes : memory from which the share is computed
    """
    least = max(MIN_PASS_BYTES, _LEAST_BYTES + num_owners * _LEAST_PIECE_BYTES * 5 // 4)
    buffers = min(pass_memory_bytes(num_owners), max(int(_BUFFER_SHARE * budget_bytes), least))
    # A quarter of all buffers is for reading, so only three quarters of the added bytes serve the frontiers.
    return buffers + num_owners * kept_bytes * 4 // 3


def _above(count: int) -> int:
    """Return the least power of two that is ``count`` or more, at least 2. Pure."""
    return max(1 << max(count - 1, 0).bit_length(), SMALLEST)


def _below(room: int, each: int) -> int:
    """Return the largest power of two n up to `LARGEST` with n * ``each`` <= ``room``, or 2 if none fits. Pure."""
    return max(1 << max(min(room // max(each, 1), LARGEST).bit_length() - 1, 0), SMALLEST)


logger = logging.getLogger("gloader")

# The default spill budget is the free disk divided by this, because other programs use the disk too.
_FREE_SHARE = 4

# The default spill budget is at most this multiple of the data bytes: the features and the swept edges. More would
# allow larger superbatches, which gain little.
_MULTIPLE = 4

_IN_MEMORY = ("tmpfs", "ramfs")  # types of file systems in memory

_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # escaped characters in folder names, such as blanks


def open_spill(
    parent: StrPath | None, budget_bytes: int | None, *, data_bytes: int, num_loaders: int = 1
) -> SpillFolder | None:
    """Open a spill folder, for packs and drawn edges. The caller owns it.

    Returns None if the budget is 0, or if no budget was given and the folder is in memory or cannot be used.

    Parameters
    ----------
    parent : folder for the spill folder. None means the default in `SpillFolder`.
    budget_bytes : limit for the bytes on the disk. 0 means no spill folder, None means a share of the free disk.
    data_bytes : bytes of features and swept edges, which bound the default budget
    num_loaders : loaders on this host, which share the free disk. An explicit ``budget_bytes`` is for each loader.

    Raises
    ------
    ConfigError
        The folder above ``parent`` does not exist.
    SpillError
        A budget was given and the folder cannot be created.
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
    """Return the default spill budget in bytes. 0 if the spill folder would be in memory."""
    if _file_system(folder) in _IN_MEMORY:
        return 0
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return 0
    return int(min(free // (_FREE_SHARE * num_loaders), _MULTIPLE * data_bytes))


def _file_system(folder: Path) -> str:
    """Return the type of ``folder``'s file system, or "" if it is unknown."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    # The columns of a line are device, folder, type, and more. A later mount covers an earlier one on the same folder.
    mounts = {
        Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[1])): words[2]
        for words in map(str.split, lines)
    }
    for parent in (folder.resolve(), *folder.resolve().parents):
        if parent in mounts:
            return mounts[parent]
    return ""
