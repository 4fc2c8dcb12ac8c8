"""An embedding table: a folder with the trainable rows of one node type, for one writing process.

A row is the weights, then the optimizer's state: ``width`` float32. The newest version of a row is in the append buffer
in memory, else in the newest run that has it, else it is made by the formula `InitialRows`. A run is an immutable file
of rows sorted by id. A full buffer becomes a run; a thread merges runs.

A commit writes a record, which names the runs. After a crash, a table has exactly the rows of its records: runs that
no record names are removed when a writer opens the table, and runs that a record names are never changed.
"""

from __future__ import annotations

import errno
import logging
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.signals import Cancellation, thread_errors
from gloader.errors import (
    ChannelClosedError,
    ConfigError,
    ShapeError,
    StoreError,
    StoreExistsError,
    StoreLockedError,
    StoreWriteError,
)
from gloader.ssd_store.embedding.embedding_record import (
    EmbeddingRecord,
    is_draft,
    missing_record,
    record_names,
    record_path,
    run_number,
)
from gloader.ssd_store.embedding.row_buffer import RowBuffer
from gloader.ssd_store.embedding.run_merge import MAX_RUNS, MERGE_BYTES, RunMerge, plan_merge
from gloader.ssd_store.embedding.sorted_run import (
    NO_COST,
    FormulaRun,
    Run,
    RunWriter,
    SortedRun,
    remove_run,
)
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.os_io import REAL_OS, OsIO, make_folders, require_free_space, write_errors
from gloader.ssd_store.read.columns import check_request
from gloader.ssd_store.read.lane import DEFAULT_RING_BYTES, ReadLane
from gloader.ssd_store.write.atomic_file import LockedFolder, holder_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.embedding.initial_rows import InitialRows
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.types import IdArray, ReadStats

_LOG = logging.getLogger(__name__)

BUFFER_BYTES: Final = 64 * 2**20  # default memory of the append buffer
_STEP_BYTES: Final = 4 * 2**20  # bytes of rows that are gathered together while a run is written
_OWNER_ONLY: Final = 0o700


class EmbeddingTable:
    """An embedding table, open for reading and, unless it is read-only, for appending. Made by `create` or `open`.

    Thread-safe: reads, appends, commits and the merge of runs may run at the same time. Owns the folder's lock, the
    buffer, its files, two lanes and the merging thread until `close`; also a context manager.

    Parameters
    ----------
    folder : Path
        The table's folder.
    record : EmbeddingRecord
        The record with the rows to begin with.
    named : mapping
        The runs of each record in the folder, by record name.
    lock : LockedFolder, optional
        The folder's lock; None if the table is read-only.
    next_run : int
        The number of the next new run.
    buffer_bytes : int
        Memory of the append buffer.
    os_io : OsIO
        The system calls.
    """

    def __init__(
        self,
        folder: Path,
        record: EmbeddingRecord,
        *,
        named: Mapping[str, tuple[str, ...]],
        lock: LockedFolder | None,
        next_run: int,
        buffer_bytes: int,
        os_io: OsIO,
    ) -> None:
        self.folder = folder
        self.num_rows = record.num_rows
        self.width = record.initial.width
        self.initial = record.initial
        self.bytes_read = 0  # from the device, also by merges
        self.bytes_written = 0  # runs, also merged ones
        self._record = record
        self._named = {name: frozenset(runs) for name, runs in named.items()}
        self._lock_file = lock
        self._next_run = next_run
        self._os_io = os_io
        self._formula = FormulaRun(record.initial, record.num_rows)
        self._writing = threading.Lock()  # one append, commit or forget at a time
        self._state = (
            threading.Lock()
        )  # guards the fields below, the counters and the buffer; never held during I/O
        self._runs: tuple[SortedRun, ...] = ()  # the newest first
        self._is_closed = False
        self._error: BaseException | None = None  # of the merging thread, until it is raised
        self._merging: threading.Thread | None = None
        self._cancellation = Cancellation()
        self._is_short_of_space = False
        self._buffer = None if lock is None else RowBuffer(buffer_bytes, self.width)
        self._lane = self._new_lane(DEFAULT_RING_BYTES)
        self._merge_lane: ReadLane | None = None
        try:
            for name, arrays in zip(record.runs, record.arrays, strict=True):
                self._runs += (self._open_run(name, arrays),)
        except BaseException:
            self._release()
            raise

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        num_rows: int,
        initial: InitialRows,
        facts: Mapping[str, Any],
        buffer_bytes: int = BUFFER_BYTES,
        os_io: OsIO = REAL_OS,
    ) -> Self:
        """Create a table and open it. It takes no disk space until rows are appended, and has no record yet.

        Parameters
        ----------
        folder : Path
            A folder that does not exist, is empty, or has a table that never committed, which is removed.
        num_rows : int
            N, at least 1.
        initial : InitialRows
            The formula for the rows.
        facts : mapping
            JSON values that every record of the table keeps.
        buffer_bytes : int
            Memory of the append buffer.
        os_io : OsIO
            The system calls.

        Raises
        ------
        ConfigError
            ``num_rows`` or ``buffer_bytes`` is too small.
        StoreExistsError, StoreLockedError, StoreWriteError
            The folder holds a table or other files, another process writes to it, or the file system refuses.
        """
        if not 1 <= num_rows < 2**62:
            raise ConfigError(f"num_rows={num_rows} must lie in 1..2**62-1")
        record = EmbeddingRecord(
            number=0,
            num_rows=num_rows,
            num_steps=0,
            initial=initial,
            runs=(),
            arrays=(),
            facts=dict(facts),
            record_facts={},
        )
        folder = Path(folder).absolute()
        with write_errors(folder, "creating the embedding table", os_io=os_io):
            make_folders(folder.parent, os_io=os_io)
            lock = _locked(folder, os_io)
        try:
            with write_errors(folder, "creating the embedding table", os_io=os_io):
                names = os_io.listdir(folder)
                foreign = [name for name in names if run_number(name) is None and not is_draft(name)]
                if foreign:
                    raise StoreExistsError(
                        errno.EEXIST,
                        f"the folder holds {foreign[0]!r}: open the table that is there, or choose another folder",
                        str(folder),
                    )
                for name in names:
                    os_io.unlink(folder / name)
                os_io.fsync_dir(folder.parent)
            return cls(
                folder, record, named={}, lock=lock, next_run=1, buffer_bytes=buffer_bytes, os_io=os_io
            )
        except BaseException:
            with suppress(OSError):  # refused if it has files
                os_io.rmdir(folder)
            lock.release()
            raise

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        record: str | None = None,
        is_read_only: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
        os_io: OsIO = REAL_OS,
    ) -> Self:
        """Open the rows of a record.

        A writer removes the files that no record names. A reader changes nothing, and takes no lock: a writer may have
        the table open at the same time.

        Parameters
        ----------
        folder : Path
            The table's folder.
        record : str, optional
            The record's name; by default the record that was committed last.
        is_read_only : bool
            Open for reading only.
        buffer_bytes : int
            Memory of the append buffer; unused if the table is read-only.
        os_io : OsIO
            The system calls.

        Raises
        ------
        StoreOpenError, StoreReadError, IncompleteStoreError, TruncatedStoreError
            There is no such record, or a file is missing, cut or unreadable.
        FormatError, VersionError, ChecksumError
            A record or a run is damaged, or has another version.
        StoreLockedError, StoreWriteError
            Another process writes to the table, or the folder cannot be written.
        ConfigError
            ``record`` is no valid name, or ``buffer_bytes`` is too small.
        """
        folder = Path(folder).absolute()
        if record is not None:
            record_path(folder, record)  # checks the name
        lock = None
        try:
            names = os_io.listdir(folder)
        except OSError as error:
            raise open_error(folder, error) from error
        if not is_read_only:
            with write_errors(folder, "opening the embedding table", os_io=os_io):
                lock = _locked(folder, os_io)
        try:
            names = os_io.listdir(folder) if lock else names
            found = record_names(names)
            if not found or record not in {None, *found}:
                raise missing_record(folder, record, found)
            wanted = [record] if is_read_only and record is not None else found
            records = {name: EmbeddingRecord.read(record_path(folder, name), os_io=os_io) for name in wanted}
            newest = max(records.values(), key=lambda each: each.number)
            chosen = newest if record is None else records[record]
            named = {name: each.runs for name, each in records.items()}
            next_run = 1 + max((run_number(name) or 0 for name in names), default=0)
            if lock is not None:
                kept = {run for runs in named.values() for run in runs}
                _remove_unnamed(folder, names, kept, os_io)
            table = cls(
                folder,
                chosen,
                named=named,
                lock=lock,
                next_run=next_run,
                buffer_bytes=buffer_bytes,
                os_io=os_io,
            )
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        table._newest = newest.number
        return table

    _newest = 0  # number of the record that was committed last

    @property
    def facts(self) -> Mapping[str, Any]:
        """The facts from the table's creation, and those of the record, which come last."""
        return {**self._record.facts, **self._record.record_facts}

    @property
    def num_steps(self) -> int:
        """Optimizer steps that made the rows of the record."""
        return self._record.num_steps

    @property
    def records(self) -> tuple[str, ...]:
        """Names of the records."""
        return tuple(sorted(self._named))

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the open runs hold: fences and page checksums."""
        return sum(run.num_bytes for run in self._runs)

    def read_into(self, ids: IdArray, out: NDArray[np.float32], *, at: IdArray | None = None) -> ReadStats:
        """Read the newest version of each row. Thread-safe.

        Parameters
        ----------
        ids : (M,) int64
            Row ids, ascending and distinct.
        out : (M, width), or (K, width) with ``at``
            C-contiguous float32. Undefined after an error.
        at : (M,) int64, optional
            Row in ``out`` for each id; the other rows of ``out`` are left unchanged.

        Raises
        ------
        ShapeError
            An id is out of range, the ids do not ascend, or a shape or dtype does not fit; nothing was read.
        ChecksumError, StoreReadError, TruncatedStoreError
            A run is damaged or unreadable; the message names the file.
        StoreError
            The table is closed.
        """
        at, left, cost = self._read_stored(ids, out, at)
        self._formula.read_into(self._lane, ids[left], out, at[left])
        return type(cost)(rows=ids.shape[0], requests=cost.requests, bytes_read=cost.bytes_read)

    def read_stored(
        self, ids: IdArray, out: NDArray[np.float32], *, at: IdArray | None = None
    ) -> NDArray[np.int64]:
        """Read like `read_into`, but only rows that were appended.

        Returns
        -------
        (n,) the positions in ``ids`` of the other rows, ascending. The formula makes them; ``out`` has no values of
        them.
        """
        return self._read_stored(ids, out, at)[1]

    def _read_stored(
        self, ids: IdArray, out: NDArray[np.float32], at: IdArray | None
    ) -> tuple[IdArray, IdArray, ReadStats]:
        """Read appended rows. Return the row in ``out`` for each id, the positions of the others, and the cost."""
        request = check_request(ids, out, num_rows=self.num_rows, dim=self.width, at=at)
        ids, at = request.rows, request.position
        if out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
            raise ShapeError(f"out must be writable C-contiguous float32, not {out.dtype}")
        if np.any(ids[1:] <= ids[:-1]):
            raise ShapeError("ids must ascend and be distinct; sort them with numpy.unique")
        if not at.shape[0]:
            at = np.arange(ids.shape[0])
        with self._state:
            runs = self._pinned()
            # The rows of the buffer are copied in the same moment, because a row may be in the buffer or in a new run.
            left = np.arange(ids.shape[0]) if self._buffer is None else self._buffer.take(ids, at, out)
        try:
            cost = NO_COST
            for run in runs:
                if not left.shape[0]:
                    break
                found, places, looked_up = run.find(self._lane, ids[left])
                cost += looked_up
                if found.shape[0]:
                    cost += run.read_into(self._lane, places, out, at[left[found]])
                    left = np.delete(left, found)
        finally:
            self._unpin(runs)
        self._count(cost)
        return at, left, cost

    def append(self, ids: IdArray, rows: NDArray[np.float32]) -> None:
        """Append new versions of rows. They are read from now on, and survive a crash after the next commit.

        The rows are copied into the buffer, and a full buffer is written to the disk. Rows for which an empty buffer is
        too small are written to a run at once, without a copy.

        Parameters
        ----------
        ids : (M,) int64
            Row ids, distinct, in any order.
        rows : (M, width) float32
            The rows.

        Raises
        ------
        ShapeError
            An id is out of range or repeats, or a shape or dtype does not fit.
        StoreWriteError
            The disk is full or fails. All rows so far can still be read, and perhaps some of ``rows``: append them
            again after the cause is gone.
        StoreError
            The table is closed or read-only, or a run that was merged is damaged.
        """
        ids = check_request(ids, rows, num_rows=self.num_rows, dim=self.width).rows
        if rows.dtype != np.float32:
            raise ShapeError(f"rows must be float32, not {rows.dtype}")
        rows = np.ascontiguousarray(rows)
        with self._writing:
            buffer = self._writable()
            if ids.shape[0] >= buffer.capacity:
                self._write_buffer(buffer)
                self._append_run(ids, rows)
                return
            while True:
                with self._state:
                    taken = buffer.put(ids, rows)
                if taken == ids.shape[0]:
                    return
                self._write_buffer(buffer)
                ids, rows = ids[taken:], rows[taken:]

    def commit(self, record: str, *, num_steps: int, facts: Mapping[str, Any]) -> None:
        """Make all appended rows durable under the name ``record``. A record of this name is replaced.

        Parameters
        ----------
        record : str
            The record's name: letters, digits, ``_ . -``.
        num_steps : int
            Optimizer steps so far.
        facts : mapping
            JSON values of this record.

        Raises
        ------
        ConfigError, FormatError
            The name is not valid, or the facts are not JSON.
        StoreWriteError
            The disk is full or fails. The former record stays, or the new one is already there.
        StoreError
            The table is closed or read-only, or a run that was merged is damaged.
        """
        path = record_path(self.folder, record)
        with self._writing:
            self._write_buffer(self._writable())
            former = self._named.get(record, frozenset())
            with self._state:
                runs = self._runs
                # Until the commit is complete, both versions of the record may be the one on the disk.
                self._named[record] = former | {run.name for run in runs}
            written = EmbeddingRecord(
                number=self._newest + 1,
                num_rows=self.num_rows,
                num_steps=num_steps,
                initial=self.initial,
                runs=tuple(run.name for run in runs),
                arrays=tuple(run.arrays for run in runs),
                facts=self._record.facts,
                record_facts=dict(facts),
            )
            written.write(path, os_io=self._os_io)
            self._os_io.kill_point("embedding.after_commit")
            self._record, self._newest = written, written.number
            with self._state:
                self._named[record] = frozenset(written.runs)
            self._remove(former)

    def forget(self, record: str) -> None:
        """Remove a record and the files that only it names.

        Raises
        ------
        ConfigError
            There is no such record.
        StoreWriteError
            The file system refuses.
        StoreError
            The table is closed or read-only.
        """
        path = record_path(self.folder, record)
        with self._writing:
            self._writable()
            if record not in self._named:
                raise ConfigError(
                    f"{self.folder} has no record {record!r}; it has {', '.join(self.records) or 'none'}"
                )
            with write_errors(path, "removing the record", os_io=self._os_io):
                with suppress(FileNotFoundError):
                    self._os_io.unlink(path)
                self._os_io.fsync_dir(self.folder)
            self._os_io.kill_point("embedding.after_forget")
            with self._state:
                runs = self._named.pop(record)
            self._remove(runs)

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield all rows in id order, read sequentially: the first id and the rows (n, width) of each piece.

        A piece has the newest versions at the moment when it is read.

        Parameters
        ----------
        max_rows : int
            Largest number of rows in a piece.

        Raises
        ------
        ConfigError
            ``max_rows`` is less than 1.
        ChecksumError, StoreReadError, TruncatedStoreError, StoreError
            As in `read_into`.
        """
        if max_rows < 1:
            raise ConfigError(f"max_rows={max_rows} must be at least 1")
        for first in range(0, self.num_rows, max_rows):
            ids = np.arange(first, min(first + max_rows, self.num_rows))
            rows = np.empty((ids.shape[0], self.width), np.float32)
            self.read_into(ids, rows)
            yield first, rows

    def close(self) -> None:
        """End the merge and release everything. Rows since the last commit are lost. Idempotent."""
        with self._writing:
            self._cancellation.set()
            if self._merging is not None:
                self._merging.join()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- runs ---

    def _new_lane(self, num_bytes: int) -> ReadLane:
        """Return a lane for the runs' files."""
        return ReadLane(
            num_bytes,
            io="auto",
            is_direct=True,  # where the file system refuses O_DIRECT, io_uring is slower, and correct
            os_io=self._os_io,
            when_closed="the embedding table is closed; open it again",
        )

    def _open_run(self, name: str, arrays: tuple[ArrayRecord, ...]) -> SortedRun:
        """Open a run that is on the disk."""
        return SortedRun(
            self.folder, name, arrays, num_rows=self.num_rows, lane=self._lane, os_io=self._os_io
        )

    def _new_name(self) -> str:
        """Return the name of a new run; names are never used again."""
        with self._state:
            number, self._next_run = self._next_run, self._next_run + 1
        return f"run-{number}"

    def _opened(self, name: str, arrays: tuple[ArrayRecord, ...]) -> SortedRun:
        """Open a run that was just written; remove it if this fails."""
        try:
            run = self._open_run(name, arrays)
        except BaseException:
            remove_run(self.folder, name, os_io=self._os_io)
            raise
        with self._state:
            self.bytes_written += run.file_bytes
        return run

    def _pinned(self) -> tuple[SortedRun, ...]:
        """Return the runs, which stay open until `_unpin`. The caller holds the state."""
        if self._is_closed:
            raise StoreError(f"{self.folder}: the embedding table is closed; open it again")
        for run in self._runs:
            run.pins += 1
        return self._runs

    def _unpin(self, runs: tuple[SortedRun, ...]) -> None:
        """End a read, and close runs that were replaced meanwhile."""
        with self._state:
            for run in runs:
                run.pins -= 1
                if not run.pins and run not in self._runs:
                    run.close()

    def _replace(self, old: tuple[SortedRun, ...], new: SortedRun) -> None:
        """Put ``new`` in the place of the adjacent runs ``old``, or before all runs if ``old`` is empty."""
        with self._state:
            first = self._runs.index(old[0]) if old else 0
            self._runs = (*self._runs[:first], new, *self._runs[first + len(old) :])
            for run in old:
                if not run.pins:
                    run.close()
        self._remove(frozenset(run.name for run in old))

    def _remove(self, names: frozenset[str]) -> None:
        """Remove the files of those runs ``names`` that are not in use and that no record names."""
        with self._state:
            kept = frozenset(run.name for run in self._runs).union(*self._named.values())
        for name in sorted(names - kept):
            remove_run(self.folder, name, os_io=self._os_io)

    def _count(self, cost: ReadStats) -> None:
        """Add the bytes of a read."""
        with self._state:
            self.bytes_read += cost.bytes_read

    # --- writing; the caller holds `_writing` ---

    def _writable(self) -> RowBuffer:
        """Return the buffer; raise the merging thread's error, or `StoreError` if nothing can be written."""
        if self._is_closed:
            raise StoreError(f"{self.folder}: the embedding table is closed; open it again")
        if self._buffer is None:
            raise StoreError(
                f"{self.folder}: the embedding table is open for reading only; open it without it"
            )
        if self._error is not None:
            raise self._error
        return self._buffer

    def _write_buffer(self, buffer: RowBuffer) -> None:
        """Write the buffered rows to a run, and empty the buffer."""
        if not len(buffer):
            return
        order = buffer.order()
        step = max(1, _STEP_BYTES // (4 * self.width))
        chunks = (buffer.numbered(order[start : start + step]) for start in range(0, len(order), step))
        self._add_run(len(order), chunks, buffer)

    def _append_run(self, ids: IdArray, rows: NDArray[np.float32]) -> None:
        """Write rows (M, width) to a run."""
        order = np.argsort(ids)
        if np.any(ids[order[1:]] == ids[order[:-1]]):
            raise ShapeError("ids must be distinct; an id repeats")
        step = max(1, _STEP_BYTES // (4 * self.width))
        parts = (order[start : start + step] for start in range(0, len(order), step))
        self._add_run(len(order), ((ids[part], rows[part]) for part in parts), None)

    def _add_run(
        self, count: int, chunks: Iterator[tuple[IdArray, NDArray[np.float32]]], buffer: RowBuffer | None
    ) -> None:
        """Write ``count`` rows to a new run; then forget those of ``buffer``, and merge if it is time."""
        name = self._new_name()
        with RunWriter(
            self.folder,
            name,
            num_rows=count,
            width=self.width,
            is_dense=count == self.num_rows,
            os_io=self._os_io,
        ) as writer:
            for ids, rows in chunks:
                writer.append(ids, rows)
            arrays = writer.finish()
        self._os_io.kill_point("embedding.after_run")
        run = self._opened(name, arrays)
        with self._state:
            self._runs = (run, *self._runs)
            if buffer is not None:
                buffer.clear()
        self._merge_if_due()

    # --- merging ---

    def _merge_if_due(self) -> None:
        """Start the merging thread if runs are to be merged; wait for it if there are far too many."""
        if self._merging is not None and self._merging.is_alive():
            # Without this wait, a disk that is slower than the training would be filled with runs.
            if len(self._runs) < 2 * MAX_RUNS:
                return
            self._merging.join()
        if self._error is None and self._planned() is not None:
            with thread_errors():
                self._merging = threading.Thread(target=self._merge, name="gloader-merge", daemon=True)
                self._merging.start()

    def _planned(self) -> tuple[SortedRun, ...] | None:
        """Return the adjacent runs to merge, or None."""
        with self._state:
            runs = self._runs
        part = plan_merge([len(run) for run in runs], self.num_rows)
        return None if part is None else runs[part[0] : part[1]]

    def _merge(self) -> None:
        """Merge runs until nothing is to be merged; in a thread."""
        try:
            while (runs := self._planned()) is not None:
                self._merge_runs(runs)
        except ChannelClosedError:
            pass  # the table is closed
        except StoreWriteError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                self._error = error
            elif not self._is_short_of_space:
                self._is_short_of_space = True
                _LOG.warning(
                    "%s: runs are not merged, because the disk is full (%s); training goes on, and reads get slower; "
                    "free some space",
                    self.folder,
                    error,
                )
        except BaseException as error:
            self._error = error

    def _merge_runs(self, runs: tuple[SortedRun, ...]) -> None:
        """Replace adjacent ``runs`` by one; raises `ChannelClosedError` at the end of the table."""
        needed = min(sum(run.file_bytes for run in runs), self.num_rows * self.width * 4)
        with write_errors(self.folder, "merging runs", needed_bytes=needed, os_io=self._os_io):
            require_free_space(self.folder, needed, os_io=self._os_io)
        if self._merge_lane is None:
            self._merge_lane = self._new_lane(DEFAULT_RING_BYTES)
        with self._state:
            has_oldest = runs[-1] is self._runs[-1]
        name = self._new_name()
        merge = RunMerge(
            runs,
            has_oldest=has_oldest,
            num_rows=self.num_rows,
            initial=self.initial,
            lane=self._merge_lane,
            check=lambda: self._cancellation.raise_if_set("the merge"),
        )
        arrays = merge.write(self.folder, name, os_io=self._os_io)
        self._os_io.kill_point("embedding.after_merge")
        self._count(sum(merge.costs, NO_COST))
        self._replace(runs, self._opened(name, arrays))

    def _release(self) -> None:
        """Close the files and lanes, remove what no record names, and release the lock. Idempotent."""
        with self._state:
            self._is_closed = True
            runs, self._runs = self._runs, ()
        # The lanes wait for reads in progress, and refuse later ones.
        for lane in (self._lane, self._merge_lane):
            if lane is not None:
                lane.close()
        for run in runs:
            run.close()
        self._buffer = None
        if self._lock_file is not None:
            self._remove(frozenset(run.name for run in runs))
            self._lock_file.release()


def table_bytes(num_rows: int, width: int, buffer_bytes: int = BUFFER_BYTES) -> int:
    """Return the memory of an open table in bytes, at most. Pure.

    Parameters
    ----------
    num_rows : N
    width : number of float32 in a row
    buffer_bytes : memory of the append buffer
    """
    return 0


def _locked(folder: Path, os_io: OsIO) -> LockedFolder:
    """Create the folder if it is missing, and lock it."""
    lock = LockedFolder(folder, mode=_OWNER_ONLY, os_io=os_io)
    try:
        lock.acquire(is_kept=True)
    except StoreLockedError:
        pid = holder_of(folder, os_io=os_io)
        raise StoreLockedError(
            f"{folder}: {'another process' if pid is None else f'process {pid}'} writes to this embedding table; wait "
            "for it, or open the table for reading only"
        ) from None
    return lock


def _remove_unnamed(folder: Path, names: list[str], kept: set[str], os_io: OsIO) -> None:
    """Remove the runs' files and drafts of records that a dead process left. A failure is only logged."""
    dead = [name for name in names if is_draft(name)]
    dead += [name for name in names if run_number(name) is not None and name.partition(".")[0] not in kept]
    for name in dead:
        try:
            os_io.unlink(folder / name)
        except OSError as error:
            _LOG.warning("%s could not be removed: %s", folder / name, error)
