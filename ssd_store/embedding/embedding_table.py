"""An embedding table: a folder with the trainable rows of one node type, for one writing process.

A row is the weights, then the optimizer's state: ``width`` float32. The newest version of a row is in the append buffer
in memory, else in the newest run that has it, else it is made by the formula `InitialRows`. A run is an immutable file
of rows sorted by id. A full buffer becomes a run, and a thread merges runs.

A commit writes a record, which names the runs. After a crash, a table has exactly the rows of its records: runs that
no record names are removed when a writer opens the table, and runs that a record names are never changed.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.aligned_memory import plain_array
from gloader.errors import (
    ConfigError,
    ShapeError,
    StoreError,
    StoreExistsError,
    StoreLockedError,
    StoreOpenError,
)
from gloader.ssd_store.embedding.embedding_record import (
    EmbeddingRecord,
    is_draft,
    missing_record,
    record_names,
    record_path,
    run_number,
)
from gloader.ssd_store.embedding.row_buffer import RowBuffer, buffered_row_bytes
from gloader.ssd_store.embedding.run_merge import MAX_RUNS, MAX_TABLES, MERGE_BYTES
from gloader.ssd_store.embedding.run_set import LANE_BYTES, RunSet
from gloader.ssd_store.embedding.sorted_run import IDS_PER_PAGE, NO_COST, FormulaRun
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.os_io import REAL_OS, OsIO, make_folders, write_errors
from gloader.ssd_store.read.columns import check_request
from gloader.ssd_store.write.array_writer import BUFFER_BYTES as WRITE_BYTES
from gloader.ssd_store.write.atomic_file import LockedFolder, holder_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.ssd_store.embedding.initial_rows import InitialRows
    from gloader.types import IdArray, ReadStats

_LOG = logging.getLogger(__name__)

# Least memory of the append buffer, unless the table is smaller: a checkpoint forces few files to the device.
_LEAST_BUFFER_BYTES: Final = 8 * 2**20
# With a buffer of 1/40 of the table's rows, 1.8 bytes are written for each byte of dirty rows with uniform ids and 1.3
# with skewed ones; with 1/80 they are 2.0 and 1.6, with 1/160 2.6 and 1.8
# (experiments/results/2026-11-29-embedding_writes.md).
_BUFFER_SHARE: Final = 40
# The buffer has at most a quarter of the rows in slots, so the memory budget bounds it. It has 1/40 of the table if a
# tenth of the rows is in slots, and 1/80 if a twentieth is.
_SLOTS_SHARE: Final = 4
_STEP_BYTES: Final = 4 * 2**20  # bytes of rows that are gathered together while a run is written
_OWNER_ONLY: Final = 0o700
_ATTEMPTS: Final = 5  # attempts of a reader to open a record that a writer keeps replacing


class EmbeddingTable:
    """An embedding table, open for reading and, unless it is read-only, for appending. Made by `create` or `open`.

    Thread-safe: reads, appends, commits and the merge of runs may run at the same time. Owns the folder's lock, the
    buffer and the runs until `close`; also a context manager.

    Parameters
    ----------
    folder : Path
        The table's folder.
    record : EmbeddingRecord
        The record with the rows to begin with.
    records : mapping
        The records in the folder, by name; for a reader perhaps only this one.
    next_run : int
        Number of the next new run.
    lock : LockedFolder, optional
        The folder's lock; None if the table is read-only.
    os_io : OsIO
        The system calls.
    """

    def __init__(
        self,
        folder: Path,
        record: EmbeddingRecord,
        records: Mapping[str, EmbeddingRecord],
        *,
        next_run: int,
        lock: LockedFolder | None,
        os_io: OsIO,
    ) -> None:
        self.folder = folder
        self.num_rows = record.num_rows
        self.width = record.initial.width
        self.initial = record.initial
        self._record = record
        self._newest = max((each.number for each in records.values()), default=0)
        self._runs = RunSet(
            folder,
            num_rows=record.num_rows,
            initial=record.initial,
            named={name: each.runs for name, each in records.items()},
            next_run=next_run,
            os_io=os_io,
        )
        self._lock = lock
        self._os_io = os_io
        self._formula = FormulaRun(record.initial, record.num_rows)
        self._writing = threading.Lock()  # one append, commit, forget or close at a time
        try:
            self.buffer_rows = append_buffer_rows(
                self.num_rows, self.width
            )  # appended rows that become a run
            self._buffer = None if lock is None else RowBuffer(self.buffer_rows, self.width)
            self._runs.open(record.runs, record.arrays)
        except BaseException:
            self._runs.close(remove=False)
            raise

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        num_rows: int,
        initial: InitialRows,
        facts: Mapping[str, Any],
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
        os_io : OsIO
            The system calls.

        Raises
        ------
        ConfigError
            ``num_rows`` is out of range.
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
                _remove_rest(folder, os_io)
                os_io.chmod(folder, _OWNER_ONLY)  # it may have been there, open to others
                os_io.fsync_dir(folder.parent)
            return cls(folder, record, {}, next_run=1, lock=lock, os_io=os_io)
        except BaseException:
            with suppress(OSError):  # refused if the folder has files
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
            ``record`` is no valid name.
        """
        folder = Path(folder).absolute()
        if record is not None:
            record_path(folder, record)  # checks the name
        if is_read_only:
            return cls._open_reader(folder, record, os_io)
        _listed(folder, os_io)  # a folder that is missing must not be created
        with write_errors(folder, "opening the embedding table", os_io=os_io):
            lock = _locked(folder, os_io)
        try:
            names = _listed(folder, os_io)
            records = _read_records(folder, names, os_io)
            chosen = _chosen(folder, record, records)
            kept = {run for each in records.values() for run in each.runs}
            _remove_unnamed(folder, names, kept, os_io)
            next_run = 1 + max((run_number(name) or 0 for name in names), default=0)
            return cls(folder, chosen, records, next_run=next_run, lock=lock, os_io=os_io)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _open_reader(cls, folder: Path, record: str | None, os_io: OsIO) -> Self:
        """Open the rows of a record for reading only, while a writer may replace it."""
        attempts = range(_ATTEMPTS)
        for attempt in attempts:
            try:
                names = _listed(folder, os_io)
                wanted = names if record is None else [name for name in names if name == f"{record}.json"]
                records = _read_records(folder, wanted, os_io)
                return cls(
                    folder, _chosen(folder, record, records), records, next_run=0, lock=None, os_io=os_io
                )
            except StoreOpenError:
                # A commit may have replaced a record, and removed its files, since the folder was listed.
                if attempt == attempts[-1]:
                    raise
        raise AssertionError

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
        """Names of the records, which a writer knows; sorted."""
        return self._runs.records

    @property
    def bytes_read(self) -> int:
        """Bytes read from the device so far, with those of merges."""
        return self._runs.bytes_read

    @property
    def bytes_written(self) -> int:
        """Bytes of the runs that were written so far, with merged ones."""
        return self._runs.bytes_written

    @property
    def bytes_merged(self) -> tuple[int, int]:
        """Bytes that merges read and wrote so far, in a thread of their own."""
        return self._runs.bytes_merged

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
        self._formula.read_into(self._runs.lane, ids[left], out, at[left])
        return replace(cost, rows=ids.shape[0])

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
        cost = NO_COST
        with self._runs.lock:
            runs = self._runs.pin()
            # The buffer is copied from in the same moment, because its rows are about to be in a run.
            left = np.arange(ids.shape[0]) if self._buffer is None else self._buffer.take(ids, at, out)
        try:
            with self._runs.damage():
                for run in runs:
                    if not left.shape[0]:
                        break
                    found, places, looked_up = run.find(self._runs.lane, ids[left])
                    cost += looked_up
                    if found.shape[0]:
                        cost += run.read_into(self._runs.lane, places, out, at[left[found]])
                        left = np.delete(left, found)
        finally:
            self._runs.unpin(runs, cost)
        return at, left, cost

    def resize_buffer(self, num_rows: int) -> None:
        """Let the append buffer hold ``num_rows`` rows, see `append_buffer_rows`. It is written to the disk first.

        Raises
        ------
        StoreWriteError, StoreError
            As in `append`.
        """
        with self._writing:
            self._write_buffer(self._writable())
            with self._runs.lock:
                self.buffer_rows, self._buffer = num_rows, RowBuffer(num_rows, self.width)

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
        rows = plain_array(rows)  # a kernel would be compiled again for a read-only array
        with self._writing:
            buffer = self._writable()
            if ids.shape[0] >= self.buffer_rows:
                self._write_buffer(buffer)
                order = np.argsort(ids)
                if np.any(ids[order[1:]] == ids[order[:-1]]):
                    raise ShapeError("ids must be distinct, and an id repeats")
                self._write_run(len(order), ((ids[part], rows[part]) for part in self._parts(order)), buffer)
                return
            while True:
                with self._runs.lock:
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
            runs = self._runs.begin_commit(record)
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
            # If this fails, the last version or the new one is on the disk, so the files of both stay.
            written.write(path, os_io=self._os_io)
            self._os_io.kill_point("embedding.after_commit")
            self._record, self._newest = written, written.number
            self._runs.end_commit(record, runs)

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
            if record not in self.records:
                raise ConfigError(
                    f"{self.folder} has no record {record!r}; it has {', '.join(self.records) or 'none'}"
                )
            with write_errors(path, "removing the record", os_io=self._os_io):
                with suppress(FileNotFoundError):
                    self._os_io.unlink(path)
                # The record is gone for certain before a file that it names.
                self._os_io.fsync_dir(self.folder)
            self._os_io.kill_point("embedding.after_forget")
            self._runs.forget(record)

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
        """End the merge and release everything. Rows since the last commit are lost. Idempotent.

        Raises
        ------
        StoreError
            The merge of runs failed, and no call has raised its error yet.
        """
        with self._writing:
            try:
                self._runs.close(remove=self._lock is not None)
            finally:
                self._buffer = None
                if self._lock is not None:
                    self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreError as failure:
            if error is None:
                raise
            error.add_note(f"and the embedding table {self.folder} failed: {failure}")

    # --- writing; the caller holds `_writing` ---

    def _writable(self) -> RowBuffer:
        """Return the buffer; raise the merging thread's error, or `StoreError` if nothing can be written."""
        self._runs.require_open()
        if self._buffer is None:
            raise StoreError(
                f"{self.folder}: the embedding table is open for reading only; open it with is_read_only=False"
            )
        self._runs.raise_error()
        return self._buffer

    def _write_buffer(self, buffer: RowBuffer) -> None:
        """Write the buffered rows to a run, and empty the buffer."""
        if len(buffer):
            order = buffer.order()
            self._write_run(len(order), (buffer.numbered(part) for part in self._parts(order)), buffer)

    def _write_run(
        self, count: int, chunks: Iterable[tuple[IdArray, NDArray[np.float32]]], buffer: RowBuffer
    ) -> None:
        """Write ``count`` rows, ascending by id, to a run. They are all rows of the buffer, or it is empty."""
        run = self._runs.written(count, chunks)
        with self._runs.lock:
            self._runs.add(run)
            buffer.clear()
        self._runs.merge_if_due()

    def _parts(self, order: IdArray) -> Iterator[IdArray]:
        """Yield the numbers of rows in parts, which are gathered one after another."""
        step = max(1, _STEP_BYTES // (4 * self.width))
        return (order[start : start + step] for start in range(0, len(order), step))


def append_buffer_rows(num_rows: int, width: int, num_slots: int = 0) -> int:
    """Return the rows of the append buffer of a table of which ``num_slots`` rows are in memory besides. Pure."""
    least = min(_LEAST_BUFFER_BYTES // buffered_row_bytes(width), num_rows)
    return max(min(num_rows // _BUFFER_SHARE, num_slots // _SLOTS_SHARE), least, 1)


def table_bytes(num_rows: int, width: int, buffer_rows: int) -> int:
    """Return the memory of an open table, at most, in bytes. Pure.

    A read takes about 64 bytes more for each of its ids, and an append of more than ``buffer_rows`` 16 for each.

    Parameters
    ----------
    num_rows : N
    width : number of float32 in a row
    buffer_rows : rows of the append buffer
    """
    # While runs are merged, new ones come until there are `MAX_TABLES` + 1 tables, and the merge makes one more.
    rows = (MAX_TABLES + 2) * num_rows + buffer_rows
    row_pages = rows * 4 * width // PAGE_BYTES + 4 * MAX_RUNS
    id_pages = rows // IDS_PER_PAGE + 4 * MAX_RUNS
    index = 8 * row_pages + (8 + 8) * id_pages  # checksums, and the first id of each page of ids
    # A new run of the buffer and a merged one may be written at the same time, each with two files of two buffers. A
    # small table cannot fill them.
    writing = 2 * (2 * 2 * WRITE_BYTES) + 2 * _STEP_BYTES + 2 * MERGE_BYTES
    buffer_bytes = buffer_rows * buffered_row_bytes(width)
    return buffer_bytes + 2 * LANE_BYTES + min(writing, 8 * 4 * width * num_rows) + index


def _locked(folder: Path, os_io: OsIO) -> LockedFolder:
    """Create the folder if it is missing, and lock it."""
    lock = LockedFolder(folder, mode=_OWNER_ONLY, os_io=os_io)
    try:
        lock.acquire(is_kept=True)
    except StoreLockedError:
        pid = holder_of(folder, os_io=os_io)
        writer = "another process" if pid is None else f"process {pid}"
        # A wait for the own process would have no end.
        remedy = (
            "this is the same process: close the embedding first" if pid == os.getpid() else "wait for it"
        )
        raise StoreLockedError(f"{folder}: {writer} writes to this embedding table; {remedy}") from None
    return lock


def _listed(folder: Path, os_io: OsIO) -> list[str]:
    """Return the names in the table's folder; raises `StoreOpenError`."""
    try:
        return os_io.listdir(folder)
    except OSError as error:
        raise open_error(folder, error) from error


def _read_records(folder: Path, names: list[str], os_io: OsIO) -> dict[str, EmbeddingRecord]:
    """Return the records among the files ``names``, by record name."""
    return {
        name: EmbeddingRecord.read(record_path(folder, name), os_io=os_io) for name in record_names(names)
    }


def _chosen(folder: Path, record: str | None, records: Mapping[str, EmbeddingRecord]) -> EmbeddingRecord:
    """Return the record ``record``, or by default the one that was committed last."""
    if not records or record not in {None, *records}:
        raise missing_record(folder, record, sorted(records))
    return records[record] if record else max(records.values(), key=lambda each: each.number)


def _remove_rest(folder: Path, os_io: OsIO) -> None:
    """Empty the folder of a table that never committed; raises `StoreExistsError` for any other file."""
    names = os_io.listdir(folder)
    for name in names:
        if run_number(name) is None and not is_draft(name):
            raise StoreExistsError(
                errno.EEXIST,
                f"the folder holds {name!r}; open the table that is there, or choose another folder",
                str(folder),
            )
    for name in names:
        os_io.unlink(folder / name)


def _remove_unnamed(folder: Path, names: list[str], kept: set[str], os_io: OsIO) -> None:
    """Remove the files of other runs than ``kept``, and drafts of records. A failure is only logged."""
    for name in names:
        if is_draft(name) or (run_number(name) is not None and name.partition(".")[0] not in kept):
            try:
                os_io.unlink(folder / name)
            except OSError as error:
                _LOG.warning("%s could not be removed: %s", folder / name, error)
