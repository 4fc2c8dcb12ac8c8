"""Runs: immutable files with rows of an embedding table, sorted by id.

A sparse run has two arrays: ``NAME.ids``, the ascending ids, and ``NAME.rows``. A dense run has all rows of the table,
so the position of a row is its id, and it has no ids. `RunWriter` writes a run, `SortedRun` reads one. Both go through
the array format: pages of 4 KiB with checksums, verified at each read. `FormulaRun` stands below all runs: it has every
row, made by the formula.

For each page of ids, a sparse run keeps the first id in memory (its *fence*). So a lookup reads only the pages of ids
that can have a wanted id.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from gloader.errors import FormatError
from gloader.ssd_store.cost.profile import default_row_gap_bytes
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.format import check_record
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, write_errors
from gloader.ssd_store.read.columns import ArrayFile, RowRequest
from gloader.ssd_store.write.array_writer import ArrayWriter
from gloader.types import ReadStats

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.embedding.initial_rows import InitialRows
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.types import IdArray


IDS_PER_PAGE: Final = PAGE_BYTES // 8
_BLOCK_PAGES: Final = 256  # pages of ids that are read together: 1 MiB
NO_COST: Final = ReadStats(rows=0, requests=0, bytes_read=0)


def run_files(name: str) -> tuple[str, ...]:
    """Return the names of all files that a run ``name`` may have. Pure."""
    return tuple(f"{name}.{part}.{kind}" for part in ("ids", "rows") for kind in ("npy", "pages"))


class FormulaRun:
    """All rows of a table as they were before the first training, with the methods of `SortedRun` that a merge calls.

    Parameters
    ----------
    initial : the formula
    num_rows : N
    """

    def __init__(self, initial: InitialRows, num_rows: int) -> None:
        self._initial = initial
        self._num_rows = num_rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._num_rows

    def ids_at(self, _lane: ReadLane, first: int, past: int) -> tuple[IdArray, ReadStats]:
        """See `SortedRun.ids_at`."""
        return np.arange(first, past), NO_COST

    def read_into(self, _lane: ReadLane, places: IdArray, out: NDArray[np.float32], at: IdArray) -> ReadStats:
        """See `SortedRun.read_into`."""
        self._initial.fill(places, out, at=at)
        return NO_COST


class SortedRun:
    """A stored run, open for reading: rows sorted by id, at places 0..len-1.

    Thread-safe. Owns two descriptors until `close`; no read may be in progress then.

    Parameters
    ----------
    folder : the table's folder
    name : the run's name
    arrays : the records of its arrays, see `RunWriter.finish`
    num_rows : N, of the table
    lane : the lane through which the ids are read once
    is_on_device : False if the run was just written, and not yet forced to the device
    os_io : the system calls

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        A file is missing, unreadable or damaged, or its ids are not ascending ids of the table.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        arrays: tuple[ArrayRecord, ...],
        *,
        num_rows: int,
        lane: ReadLane,
        is_on_device: bool,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self.name = name
        self.arrays = arrays
        self.pins = 0  # reads in progress, counted by the table
        self._folder = folder
        self._os_io = os_io
        self._is_on_device = is_on_device
        self._gap_bytes = default_row_gap_bytes(folder, PAGE_BYTES)
        self._files = contextlib.ExitStack()
        self._ids: ArrayFile | None = None  # None in a dense run
        self._fences = np.empty(0, np.int64)
        try:
            rows, *ids = (self._open(folder, record, os_io) for record in arrays)
            self._rows = rows
            if ids:
                self._ids = ids[0]
                self._fences = self._checked_fences(lane, ids[0], num_rows)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._rows.record.shape[0]

    @property
    def is_dense(self) -> bool:
        """True if the run has all rows of the table."""
        return self._ids is None

    @property
    def num_bytes(self) -> int:
        """Bytes of memory: fences and page checksums."""
        ids_bytes = 0 if self._ids is None else self._ids.num_bytes
        return self._rows.num_bytes + ids_bytes + self._fences.nbytes

    @property
    def file_bytes(self) -> int:
        """Bytes of the run's arrays on disk, without their checksums."""
        return sum(record.file_bytes for record in self.arrays)

    def find(self, lane: ReadLane, ids: IdArray) -> tuple[IdArray, IdArray, ReadStats]:
        """Look up ``ids`` (M,), ascending: the positions (n,) in ``ids`` of those that are here, and their places."""
        if self._ids is None:
            return np.arange(ids.shape[0]), ids, NO_COST
        page = np.searchsorted(self._fences, ids, side="right") - 1  # -1 before the first id
        # A block has the ids of at most this many different pages.
        firsts = np.flatnonzero(np.diff(page, prepend=-1))
        bounds = [*firsts[::_BLOCK_PAGES].tolist(), ids.shape[0]]
        found, places, cost = [], [], NO_COST
        for begin, end in itertools.pairwise(bounds):
            wanted = page[begin:end]
            pages = wanted[np.diff(wanted, prepend=-1) > 0]
            content, read = self._read_ids(lane, self._ids, pages)
            # The pages ascend, and so do the ids in them.
            place = np.searchsorted(content, ids[begin:end])
            place[place == content.shape[0]] = 0
            here = np.flatnonzero(content[place] == ids[begin:end])
            place = place[here]
            found.append(begin + here)
            places.append(pages[place // IDS_PER_PAGE] * IDS_PER_PAGE + place % IDS_PER_PAGE)
            cost += read
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64), cost
        return np.concatenate(found), np.concatenate(places), cost

    def ids_at(self, lane: ReadLane, first: int, past: int) -> tuple[IdArray, ReadStats]:
        """Return the ids at the places ``first`` to ``past - 1``."""
        if self._ids is None:
            return np.arange(first, past), NO_COST
        pages = np.arange(first // IDS_PER_PAGE, -(-past // IDS_PER_PAGE))
        content, cost = self._read_ids(lane, self._ids, pages)
        skipped = int(pages[0]) * IDS_PER_PAGE
        return content[first - skipped : past - skipped], cost

    def read_into(self, lane: ReadLane, places: IdArray, out: NDArray[np.float32], at: IdArray) -> ReadStats:
        """Read the rows at ``places`` (n,), ascending, into the rows ``at`` (n,) of ``out``."""
        return self._rows.read_rows_into(lane, RowRequest(rows=places, position=at, is_sorted=True), out)

    def sync(self) -> None:
        """Force the run to the device, if this was not done yet.

        Raises
        ------
        StoreWriteError
            The device refuses.
        """
        if self._is_on_device:
            return
        # A run that is merged before the next commit is never forced to the device.
        for record in self.arrays:
            for file in (record.file, str(record.pages_file)):
                path = self._folder / file
                with write_errors(path, "forcing a run to the device", os_io=self._os_io):
                    fd = self._os_io.open(path, os.O_RDWR)
                    try:
                        self._os_io.fsync(fd)
                    finally:
                        close_quietly(fd, os_io=self._os_io)
        self._is_on_device = True

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._files.close()

    def _open(self, folder: Path, record: ArrayRecord, os_io: OsIO) -> ArrayFile:
        """Open an array's file; `close` closes it."""
        check_record(folder, record, os_io=os_io)
        file = ArrayFile(folder, record, os_io=os_io)
        self._files.callback(file.close)
        return file

    def _read_ids(self, lane: ReadLane, file: ArrayFile, pages: IdArray) -> tuple[IdArray, ReadStats]:
        """Return the ids in the ``pages`` (P,) of ``file``, ascending."""
        content = np.empty((pages.shape[0], PAGE_BYTES), np.uint8)
        cost = file.read_pages(lane, pages, content, gap_bytes=self._gap_bytes)
        ids = content.view(np.int64).reshape(-1)
        # The last page is padded.
        padding = (int(pages[-1]) + 1) * IDS_PER_PAGE - len(self)
        return (ids[:-padding] if padding > 0 else ids), cost

    def _checked_fences(self, lane: ReadLane, file: ArrayFile, num_rows: int) -> IdArray:
        """Read all ids in ``file`` once; return the first of each page."""
        fences, last, step = [], -1, _BLOCK_PAGES * IDS_PER_PAGE
        for first in range(0, len(self), step):
            ids, _ = self.ids_at(lane, first, min(first + step, len(self)))
            if not (last < ids[0] and ids[-1] < num_rows and np.all(ids[1:] > ids[:-1])):
                raise FormatError(
                    f"{file.path}: the ids at places {first} to {first + len(ids) - 1} are not ascending ids in "
                    f"0..{num_rows - 1}; the file is damaged or belongs to another table"
                )
            last = int(ids[-1])
            fences.append(ids[::IDS_PER_PAGE].copy())
        return np.concatenate(fences)


class RunWriter:
    """Writes a run; an exception in its ``with`` block removes the files.

    Parameters
    ----------
    folder : the table's folder
    name : the run's name, which is new
    num_rows : rows of the run
    width : number of float32 in a row
    is_dense : True if the run has all rows of the table
    os_io : the system calls
    """

    def __init__(
        self, folder: Path, name: str, *, num_rows: int, width: int, is_dense: bool, os_io: OsIO = REAL_OS
    ) -> None:
        self._folder = folder
        self._name = name
        self._shapes = {"rows": ("float32", (num_rows, width))} | (
            {} if is_dense else {"ids": ("int64", (num_rows,))}
        )
        self._os_io = os_io
        self._writers: dict[str, ArrayWriter] = {}
        self._records: list[ArrayRecord] = []

    def __enter__(self) -> Self:
        """Create the files.

        Raises
        ------
        StoreWriteError
            The file system refuses.
        """
        try:
            for part, (dtype, shape) in self._shapes.items():
                self._writers[part] = ArrayWriter(
                    self._folder,
                    name=f"{self._name}.{part}",
                    dtype=dtype,
                    shape=shape,
                    on_close=self._records.append,
                    is_synced=False,
                    os_io=self._os_io,
                )
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._discard()

    def append(self, ids: IdArray, rows: NDArray[np.float32]) -> None:
        """Append ``rows`` (n, width) with ``ids`` (n,), which ascend from call to call.

        Raises
        ------
        StoreWriteError
            The device refuses.
        """
        self._writers["rows"].append(rows)
        if "ids" in self._writers:
            self._writers["ids"].append(ids)

    def finish(self) -> tuple[ArrayRecord, ...]:
        """Complete the files; return the records of the arrays: the rows, then the ids if the run has them.

        The files may not be on the device yet, see `SortedRun.sync`.

        Raises
        ------
        StoreWriteError
            The device refuses.
        """
        for writer in self._writers.values():
            writer.close()
        return tuple(self._records)

    def _discard(self) -> None:
        """Close and remove the files."""
        for writer in self._writers.values():
            writer.abort()
        remove_run(self._folder, self._name, os_io=self._os_io)


def remove_run(folder: Path, name: str, *, os_io: OsIO = REAL_OS) -> None:
    """Remove the files of a run. What cannot be removed only costs space, until a writer opens the table."""
    for file in run_files(name):
        with contextlib.suppress(OSError):
            os_io.unlink(folder / file)
