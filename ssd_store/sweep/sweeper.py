"""A sweep reads a store's needed pages once, in file order, and copies each row to every batch that needs it.

- An extent is one read: needed pages and the small holes between them. Many extents are in flight.
- The ring is the read buffer: extents follow one another in it, and the oldest is dealt out first.
- A piece is one write, the next rows of one batch. A batch's rows go to its region, a range of a file, or to memory.
- A source brings the pages instead of the file, if they are on other machines or in an object store.

`Sweeper` prepares a sweep and runs it. The kernels (`sweep_kernels`) choose extents and deal out, a driver (`drivers`)
reads and writes, and `supply` has the rows that are needed.
"""

from __future__ import annotations

import errno
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.errors import BudgetError, ConfigError, SpillError, StoreError, StoreReadError
from gloader.ssd_store.cost.profile import default_sweep_gap_bytes
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import spill_errors
from gloader.ssd_store.read.backend import ExecutorKind, choose_executor
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.sweep import sweep_kernels as kernels
from gloader.ssd_store.sweep.drivers import (
    DAMAGED,
    FINISHED,
    READ_CARE,
    READ_DEPTH,
    RUNNING,
    WRITE_CARE,
    CallDriver,
    SweepDriver,
    SweepFiles,
    UringDriver,
    give_back,
    piece_of,
)
from gloader.ssd_store.sweep.supply import (
    ArrivingRows,
    Repairs,
    SweepContent,
    WantedPositions,
    bring,
    is_wanted_for_certain,
    raise_astray,
    raise_mismatch,
    stored_arrivals,
    supply_of,
)
from gloader.ssd_store.sweep.sweep_kernels import Sweep
from gloader.types import ReadStats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.core.signals import Cancellation
    from gloader.ssd_store.os_io import OsIO, SweepSource
    from gloader.ssd_store.read.columns import RowFile
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.spill.folder import SpillFile
    from gloader.ssd_store.sweep.supply import Supply
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray


EXTENT_BYTES: Final = 128 * 1024  # longest extent from a file; fits in a core's cache for checksum and copies
_BROUGHT_BYTES: Final = 2**20  # longest extent from a source; longer, because each extent costs a Python call
MAX_RING_BYTES: Final = 4 * 2**20  # bytes of the ring of extents, with much memory
MIN_RING_BYTES: Final = 2**20  # with little memory
MAX_PIECE_BYTES: Final = 64 * 1024  # larger pieces gain nothing
_STEP_BYTES: Final = 4 * 2**20  # bytes dealt out between two checks for a cancellation: a few milliseconds
_SPARE_SHARE: Final = 4  # one spare piece for 4 batches; spare pieces are for writes in flight
_MIN_SPARE: Final = 8  # minimum number of spare pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBuffers:
    """The division of a sweep's memory."""

    ring_bytes: int  # for extents that are in flight, or read but not dealt out yet
    piece_bytes: int  # bytes of one piece, whole pages
    num_pieces: int


def plan_buffers(num_batches: int, memory_bytes: int) -> SweepBuffers:
    """Divide memory between the ring of extents and the batches' pieces. Pure.

    There are at least `num_pieces` pieces. A piece has at most 64 KiB. With many batches it is smaller, but has at
    least one page.

    Raises
    ------
    BudgetError
        The memory is too small.
    """
    # Pieces get most of the memory, because each piece is one write and small writes are slow.
    ring = min(MAX_RING_BYTES, max(MIN_RING_BYTES, memory_bytes // 4))
    wanted = num_pieces(num_batches)
    piece = (memory_bytes - ring) // wanted // ALIGNMENT * ALIGNMENT
    if piece < 4 * ALIGNMENT:  # with many batches, the ring becomes smaller before the pieces do
        ring = MIN_RING_BYTES
        piece = (memory_bytes - ring) // wanted // ALIGNMENT * ALIGNMENT
    if piece < ALIGNMENT:
        raise BudgetError(
            f"packing {num_batches} batches at once needs {MIN_RING_BYTES + wanted * ALIGNMENT} bytes of buffers and "
            f"{memory_bytes} are allowed; raise memory_budget or use smaller superbatches"
        )
    piece = min(piece, MAX_PIECE_BYTES)
    # The rest is divided: half for the ring, half for more pieces.
    ring += (memory_bytes - ring - wanted * piece) // 2 // ALIGNMENT * ALIGNMENT
    return SweepBuffers(ring_bytes=ring, piece_bytes=piece, num_pieces=(memory_bytes - ring) // piece)


def num_pieces(num_batches: int) -> int:
    """Return the least number of pieces: one per batch, and spare pieces for writes in flight. Pure."""
    return num_batches + max(_MIN_SPARE, num_batches // _SPARE_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCost:
    """The bytes and requests of a sweep."""

    read: ReadStats  # reads of this machine's file; ``rows`` counts the rows dealt out
    writes: int  # write requests
    bytes_written: int
    bytes_brought: int = 0  # bytes from a source; they do not count as reads


class Sweeper:
    """Runs sweeps over a store's file, one at a time. Owns a separate descriptor, and a ring or threads, until `close`.

    Parameters
    ----------
    stored : the description of the rows to sweep
    memory : page-aligned uint8 memory for the buffers; the sweeper keeps it until `close`
    file : the open file; the sweeper then owns it. If None, the sweeper opens the file of ``stored`` again
    gap_bytes : longest hole between two needed pages that one read may cover; defaults to the device profile's value
    is_real : False if tests have replaced the system calls for the written files

    Raises
    ------
    StoreOpenError
        The file cannot be opened, or differs from the store's open file.
    ConfigError
        The store was opened with ``io="uring"``, and a second ring is not available.
    """

    def __init__(
        self,
        stored: RowFile,
        memory: NDArray[np.uint8],
        *,
        file: DeviceFile | None = None,
        gap_bytes: int | None = None,
        is_real: bool = True,
    ) -> None:
        self._stored = stored
        self._memory = memory
        self._gap_bytes = default_sweep_gap_bytes(stored.path.parent) if gap_bytes is None else gap_bytes
        if self._gap_bytes < 0:
            raise ConfigError(f"max_gap_bytes={self._gap_bytes} must be at least 0")

        def make(kind: ExecutorKind) -> SweepDriver:
            if kind == "uring":
                return UringDriver(memory)
            return CallDriver(stored.os_io, threaded=kind == "threads")

        self._file = stored.open_file() if file is None else file
        self._driver: SweepDriver | None = None
        try:
            self._driver = choose_executor(
                stored.settings.io,
                is_direct=self._file.is_direct,
                is_real=is_real and stored.os_io.is_real,
                make=make,
            )
        except BaseException:
            self._file.close()
            raise

    @property
    def is_direct(self) -> bool:
        """True if reads bypass the page cache."""
        return self._file.is_direct

    @property
    def memory_bytes(self) -> int:
        """Bytes of buffers."""
        return self._memory.nbytes

    @property
    def backend(self) -> str:
        """The executor of reads and writes: "uring", "threads" or "plain"; "closed" after `close`."""
        return self._driver.name if self._driver else "closed"

    def to_memory(
        self,
        wanted: WantedRows,
        out: NDArray[np.uint8],
        *,
        cancellation: Cancellation,
        source: SweepSource | ArrivingRows | None = None,
    ) -> SweepCost:
        """Copy a single batch's rows, in stored form, into memory.

        Parameters
        ----------
        wanted : the rows of one batch
        out : uint8, page-aligned and longer than the rows, because the sweep would try to write a full buffer
        cancellation : the order to end the sweep early
        source : brings the pages instead of the file, and is closed by the caller. For `ArrivingRows`, ``wanted`` has
            the rows' slots (their places in the order of arrival) instead of ids. If None, the sweep reads the file,
            or uses `OsIO.source` if the file lacks pages

        Raises
        ------
        StoreReadError, TruncatedStoreError, ChecksumError
            As in `FeatureStore.read_into`.
        ChannelClosedError
            The work was cancelled.
        GloaderError
            The source failed.
        """
        # ``out`` is the only piece. It never becomes full, so nothing is written to a file.
        buffers = SweepBuffers(ring_bytes=self._memory.nbytes, piece_bytes=out.nbytes, num_pieces=1)
        nowhere = np.zeros(1, np.int64)
        with self._content(wanted, source) as content:
            supply = supply_of(wanted)
            sweep = self._prepare(content, supply, buffers, out, np.empty(0, np.uint64), nowhere)
            files = SweepFiles(
                label="a superbatch, batch",
                file=self._file if content.source is None else None,
                targets=(),
                fds=nowhere,
                starts=nowhere,
            )
            return self._run(content, supply, sweep, files, cancellation)

    def to_files(
        self,
        wanted: WantedRows | WantedPositions,
        targets: Sequence[SpillFile | None],
        starts: IdArray,
        sums: NDArray[np.uint64],
        first_page: IdArray,
        *,
        label: str,
        cancellation: Cancellation,
        source: SweepSource | ArrivingRows | None = None,
    ) -> SweepCost:
        """Write each batch's rows, in stored form, one after another to its region of a file.

        Parameters
        ----------
        wanted : the rows of S batches, or the positions that S owners need; an owner counts as a batch below
        targets : (S,) file of each batch, None for a batch without rows
        starts : (S,) offset of each region in its file, in bytes
        sums : receives the checksums of the written pages
        first_page : (S,) index of each batch's first checksum in ``sums``
        label : a batch's name in messages, without its number, such as "superbatch 3, batch"
        cancellation : the order to end the sweep early
        source : as in `to_memory`

        Raises
        ------
        BudgetError
            There are too many batches for the buffers.
        SpillError
            The device of ``targets`` is full or fails.
        StoreReadError, TruncatedStoreError, ChecksumError, ChannelClosedError, GloaderError
            As in `to_memory`.
        """
        buffers = plan_buffers(wanted.counts.shape[0], self._memory.nbytes)
        pieces = self._memory[buffers.ring_bytes :]
        fds = np.array([-1 if target is None else target.fd for target in targets], np.int64)
        with self._content(wanted, source) as content:
            file = self._file if content.source is None else None
            files = SweepFiles(label=label, file=file, targets=targets, fds=fds, starts=starts)
            supply = supply_of(wanted)
            sweep = self._prepare(content, supply, buffers, pieces, sums, first_page)
            return self._run(content, supply, sweep, files, cancellation)

    def close(self) -> None:
        """Release everything. Idempotent."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None
            self._file.close()
            self._memory = np.empty(0, np.uint8)

    @contextmanager
    def _content(
        self,
        wanted: WantedRows | WantedPositions,
        source: SweepSource | ArrivingRows | None,
    ) -> Iterator[SweepContent]:
        """Yield the sweep's input, which is valid inside the block."""
        stored = self._stored
        if self._driver is None:
            raise StoreError(f"{stored.path}: the lane of this sweep is closed")
        if isinstance(source, ArrivingRows):
            arrived = stored_arrivals(stored, source.layout)
            yield SweepContent(wanted=wanted, stored=arrived, source=source.source)
        elif source is not None:
            yield SweepContent(wanted=wanted, stored=stored, source=source)
        elif (mirror := stored.os_io.source(self._file.fd, wanted.pages, DATA_OFFSET)) is None:
            yield SweepContent(wanted=wanted, stored=stored)
        else:
            with closing(mirror):
                yield SweepContent(wanted=wanted, stored=stored, source=mirror)

    def _prepare(
        self,
        content: SweepContent,
        supply: Supply,
        buffers: SweepBuffers,
        pieces: NDArray[np.uint8],
        sums: NDArray[np.uint64],
        first_page: IdArray,
    ) -> Sweep:
        """Return the state of a new sweep in the form for kernels; `Sweep` describes its tables."""
        ring, wanted = self._memory[: buffers.ring_bytes], content.wanted
        num_batches = supply.ends.shape[0]
        is_long = supply.ids.dtype == np.int64
        stored, longest = content.stored, EXTENT_BYTES if content.source is None else _BROUGHT_BYTES
        # At least four extents fit into the ring, so that reads and copies overlap.
        max_bytes = min(longest, buffers.ring_bytes // 4) // ALIGNMENT * ALIGNMENT
        gap_bytes = wanted.gap_bytes if isinstance(wanted, WantedPositions) else self._gap_bytes
        sweep = Sweep(
            ids=np.empty(0, np.int32) if is_long else supply.ids,
            long_ids=supply.ids if is_long else np.empty(0, np.int64),
            ends=supply.ends,
            has_more=supply.has_more,
            pages=wanted.pages,
            num_pages=wanted.num_pages,
            row_bytes=stored.row_bytes,
            checksums=stored.checksums,
            format_version=stored.format_version,
            max_bytes=max_bytes,
            # A source need not read holes, and copying a hole takes less time than another request.
            gap_bytes=gap_bytes if content.source is None else max_bytes,
            ring=ring,
            ring_words=ring.view(np.uint64),
            extents=np.zeros((5, READ_DEPTH), np.int64),
            batches=np.zeros((6, num_batches), np.int64),
            pieces=pieces,
            piece_words=pieces.view(np.uint64),
            piece_bytes=buffers.piece_bytes,
            owners=np.zeros((3, buffers.num_pieces), np.int64),
            free=np.zeros(buffers.num_pieces, np.int64),
            ready=np.zeros(buffers.num_pieces, np.int64),
            failed=np.zeros(buffers.num_pieces, np.int64),
            sums=sums,
            first_page=first_page,
            state=np.zeros(kernels.NUM_STATES, np.int64),
        )
        kernels.begin(sweep, supply.starts)
        return sweep

    def _run(
        self,
        content: SweepContent,
        supply: Supply,
        sweep: Sweep,
        files: SweepFiles,
        cancellation: Cancellation,
    ) -> SweepCost:
        """Call the driver's step until the sweep is finished, and handle each problem that ends a step early."""
        driver, source, wanted = self._driver, content.source, content.wanted
        if driver is None:
            raise StoreError(f"{self._stored.path}: the lane of this sweep is closed")
        repairs = Repairs(self._file)
        try:
            status = RUNNING
            while status != FINISHED:
                cancellation.raise_if_set(f"a sweep over {content.stored.path}")
                status = driver.step(sweep, files, _STEP_BYTES)
                if status == kernels.STARVED:
                    supply.refill(sweep)
                if status == kernels.ASTRAY:
                    raise_astray(sweep, files.label)
                if status == DAMAGED and is_wanted_for_certain(wanted, sweep):
                    driver.settle(sweep)
                    if not repairs.repair(sweep):
                        raise_mismatch(content, sweep)
                if status == READ_CARE and source is not None:
                    bring(source, sweep, cancellation)
                elif status in (READ_CARE, WRITE_CARE):
                    # A repeated request may replace the descriptor by one without O_DIRECT. No other request may use
                    # the old descriptor then.
                    driver.settle(sweep)
                    care = _read_carefully if status == READ_CARE else _write_carefully
                    care(sweep, files, self._stored.os_io)
            supply.require_end(sweep)
        except BaseException:
            # After an error, the caller releases buffers and files, so no request may be in flight.
            driver.settle(sweep)
            raise
        return _cost(sweep, supply.num_rows, is_brought=source is not None)


def _read_carefully(sweep: Sweep, files: SweepFiles, _os_io: OsIO) -> None:
    """Read the extent at the ring's head again, in as many requests as needed."""
    slot = int(sweep.state[kernels.HEAD]) % sweep.extents.shape[1]
    start, length, ring_offset, _, _ = sweep.extents[:, slot].tolist()
    if files.file is None:
        raise StoreReadError(errno.EBADF, "a sweep without a file has nothing to read again")
    files.file.read_fully(sweep.ring[ring_offset : ring_offset + length].data, DATA_OFFSET + start)
    sweep.extents[kernels.FLAG, slot] = kernels.DONE


def _write_carefully(sweep: Sweep, files: SweepFiles, os_io: OsIO) -> None:
    """Repeat the failed writes, in as many requests as needed."""
    while sweep.state[kernels.NUM_FAILED]:
        sweep.state[kernels.NUM_FAILED] -= 1
        piece = int(sweep.failed[sweep.state[kernels.NUM_FAILED]])
        batch, data, offset = piece_of(piece, sweep, files)
        target = files.targets[batch]
        if target is None:
            raise SpillError(errno.EBADF, f"{files.label} {batch} has rows and no file")
        doing = f"packing {files.label} {batch}"
        with spill_errors(target.path, doing, needed_bytes=len(data), os_io=os_io):
            target.write_fully(data, offset)
        files.fds[[other is target for other in files.targets]] = target.fd  # the descriptor may have changed
        give_back(piece, sweep)


def _cost(sweep: Sweep, num_rows: int, *, is_brought: bool) -> SweepCost:
    """Return the cost of a finished sweep; ``is_brought`` if a source brought the pages."""
    state = sweep.state
    requests, num_bytes = int(state[kernels.NUM_READS]), int(state[kernels.READ_BYTES])
    return SweepCost(
        read=ReadStats(
            rows=num_rows,
            requests=0 if is_brought else requests,
            bytes_read=0 if is_brought else num_bytes,
        ),
        writes=int(state[kernels.NUM_WRITES]),
        bytes_written=int(state[kernels.WRITE_BYTES]),
        bytes_brought=num_bytes if is_brought else 0,
    )
