"""The runs of an open embedding table: which are in use, which are on the disk, and the thread that merges them."""

from __future__ import annotations

import errno
import logging
import re
import threading
from typing import TYPE_CHECKING, Final

from gloader.core.signals import Cancellation, thread_errors
from gloader.errors import ChannelClosedError, StoreError, StoreWriteError
from gloader.ssd_store.embedding.damage import damage
from gloader.ssd_store.embedding.run_merge import MAX_RUNS, MAX_TABLES, RunMerge, plan_merge
from gloader.ssd_store.embedding.sorted_run import NO_COST, RunWriter, SortedRun, remove_run
from gloader.ssd_store.os_io import REAL_OS, OsIO, require_free_space, write_errors
from gloader.ssd_store.read.lane import ReadLane

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.ssd_store.embedding.initial_rows import InitialRows
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.types import IdArray, ReadStats

_LOG = logging.getLogger(__name__)

LANE_BYTES: Final = 8 * 2**20  # bounce memory of the lane for reads, and of the lane for merges
_RUN_FILE: Final = re.compile(r"(run-[1-9][0-9]*)\.(?:rows|ids)\.")
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class RunSet:
    """The runs of a table. Thread-safe. Owns them, two lanes and the merging thread until `close`.

    A run leaves the set when it was merged. Its files stay open until the reads in progress have ended, and on the disk
    while a record names them.

    Parameters
    ----------
    folder : the table's folder
    num_rows : N, of the table
    initial : the formula
    named : the runs that each record in the folder names, by record name
    next_run : number of the next new run
    os_io : the system calls
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_rows: int,
        initial: InitialRows,
        named: Mapping[str, Iterable[str]],
        next_run: int,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._folder = folder
        self._num_rows = num_rows
        self._initial = initial
        self._os_io = os_io
        # Guards all fields below, and the table's buffer. Never held during I/O.
        self.lock = threading.Lock()
        self.bytes_read = 0
        self.bytes_written = 0
        self.bytes_merged = (0, 0)  # bytes that merges read and wrote, which count above too
        self._named = {name: frozenset(runs) for name, runs in named.items()}
        self._next_run = next_run
        self._runs: tuple[SortedRun, ...] = ()  # the newest first
        self._is_closed = False
        self._error: BaseException | None = None  # of the merging thread
        self._is_error_known = False  # True after the error was raised
        self._is_short_of_space = False
        self._merging: threading.Thread | None = None
        self._cancellation = Cancellation()
        self.lane = self._new_lane()
        self._merge_lane: ReadLane | None = None

    @property
    def runs(self) -> tuple[SortedRun, ...]:
        """The runs in use, the newest first."""
        return self._runs

    @property
    def records(self) -> tuple[str, ...]:
        """Names of the records."""
        return tuple(sorted(self._named))

    # --- runs in use ---

    def open(self, names: Iterable[str], arrays: Iterable[tuple[ArrayRecord, ...]]) -> None:
        """Open the runs of a record, the newest first; raises as `SortedRun`."""
        for name, records in zip(names, arrays, strict=True):
            self._runs += (self._opened(name, records, is_on_device=True),)

    def pin(self) -> tuple[SortedRun, ...]:
        """Return the runs, the newest first, which stay open until `unpin`. The caller holds the lock.

        Raises
        ------
        StoreError
            The table is closed.
        """
        self.require_open()
        for run in self._runs:
            run.pins += 1
        return self._runs

    def unpin(self, runs: tuple[SortedRun, ...], cost: ReadStats) -> None:
        """End a read with its ``cost``, and close runs that left the set meanwhile."""
        with self.lock:
            self.bytes_read += cost.bytes_read
            for run in runs:
                run.pins -= 1
                if not run.pins and run not in self._runs:
                    run.close()

    def require_open(self) -> None:
        """Raise `StoreError` if the table is closed."""
        if self._is_closed:
            raise StoreError(f"{self._folder}: the embedding table is closed; open it again")

    def raise_error(self) -> None:
        """Raise the error of the merging thread, if it had one."""
        if self._error is not None:
            self._is_error_known = True
            raise self._error

    # --- new runs ---

    def written(self, count: int, chunks: Iterable[tuple[IdArray, NDArray[np.float32]]]) -> SortedRun:
        """Write ``count`` rows, in ascending order of their ids, to a new run, which `add` puts into use.

        Raises
        ------
        StoreWriteError
            The disk is full or fails; no file is left.
        """
        name = self._new_name()
        with RunWriter(
            self._folder,
            name,
            num_rows=count,
            width=self._initial.width,
            is_dense=count == self._num_rows,
            os_io=self._os_io,
        ) as writer:
            for ids, rows in chunks:
                writer.append(ids, rows)
            arrays = writer.finish()
        self._os_io.kill_point("embedding.after_run")
        return self._new(name, arrays)

    def add(self, run: SortedRun) -> None:
        """Put a run into use, as the newest. The caller holds the lock."""
        self._runs = (run, *self._runs)

    def _new(
        self, name: str, arrays: tuple[ArrayRecord, ...], merged: Sequence[ReadStats] | None = None
    ) -> SortedRun:
        """Open a run that was just written, from the reads ``merged`` by a merge; remove it if this fails."""
        try:
            run = self._opened(name, arrays, is_on_device=False)
        except BaseException:
            remove_run(self._folder, name, os_io=self._os_io)
            raise
        with self.lock:
            self.bytes_written += run.file_bytes
            if merged is not None:
                read, written = self.bytes_merged
                more = sum(merged, NO_COST).bytes_read
                self.bytes_read += more
                self.bytes_merged = (read + more, written + run.file_bytes)
        return run

    def _opened(self, name: str, arrays: tuple[ArrayRecord, ...], *, is_on_device: bool) -> SortedRun:
        with self.damage():
            return SortedRun(
                self._folder,
                name,
                arrays,
                num_rows=self._num_rows,
                lane=self.lane,
                is_on_device=is_on_device,
                os_io=self._os_io,
            )

    def damage(self) -> AbstractContextManager[None]:
        """Let errors of damaged runs name the records that need them."""
        return damage(self._advice)

    def _advice(self, text: str) -> str:
        """Return the advice for the damaged file that ``text`` names."""
        run = next((match[1] for match in _RUN_FILE.finditer(text)), None)
        with self.lock:
            records = [f"{name!r}" for name, runs in sorted(self._named.items()) if run in runs]
        if not records:
            return "no record needs it: open the table again, and train on from its last record"
        return (
            f"the table's {'record' if len(records) == 1 else 'records'} {' and '.join(records)} "
            f"{'needs' if len(records) == 1 else 'need'} it: open an earlier record with record=..., or train again "
            "from a checkpoint"
        )

    def _new_name(self) -> str:
        """Return the name of a new run; a name is never used again."""
        with self.lock:
            number, self._next_run = self._next_run, self._next_run + 1
        return f"run-{number}"

    def _new_lane(self) -> ReadLane:
        return ReadLane(
            LANE_BYTES,
            io="auto",
            is_direct=True,  # if the file system refuses O_DIRECT, reads by io_uring are slower, and as correct
            os_io=self._os_io,
            when_closed="the embedding table is closed; open it again",
        )

    # --- files that records name ---

    def begin_commit(self, record: str) -> tuple[SortedRun, ...]:
        """Return the runs for the record ``record``, on the device. Their files, and those of its last version, stay.

        Raises
        ------
        StoreWriteError
            The device refuses.
        """
        with self.lock:
            former, runs = self._named.get(record, frozenset()), self._runs
            self._named[record] = former.union(run.name for run in runs)
        for run in runs:
            run.sync()
        return runs

    def end_commit(self, record: str, runs: Iterable[SortedRun]) -> None:
        """Note that the record ``record`` on the disk names ``runs``, or remove it if it has none any more."""
        with self.lock:
            former = self._named[record]
            self._named[record] = frozenset(run.name for run in runs)
        self._remove(former)

    def forget(self, record: str) -> None:
        """Note that the record ``record`` is gone, and remove files that no other names."""
        with self.lock:
            former = self._named.pop(record)
        self._remove(former)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove the files of those runs ``names`` that are not in use, and that no record names."""
        with self.lock:
            kept = frozenset(run.name for run in self._runs).union(*self._named.values())
        for name in sorted(set(names) - kept):
            remove_run(self._folder, name, os_io=self._os_io)

    # --- merging ---

    def merge_if_due(self) -> None:
        """Start the merging thread if runs are to be merged, and wait for it if there are far too many."""
        if self._merging is not None and self._merging.is_alive():
            # If the disk is slower than the training, runs would fill it without this wait.
            sizes = [len(run) for run in self._runs]
            if len(sizes) < 2 * MAX_RUNS and sum(sizes) < (MAX_TABLES + 1) * self._num_rows:
                return
            self._merging.join()
        if self._error is None and self._planned() is not None:
            with thread_errors():
                self._merging = threading.Thread(target=self._merge, name="gloader-merge", daemon=True)
                self._merging.start()

    def join(self) -> None:
        """Wait until no merge is in progress."""
        if self._merging is not None:
            self._merging.join()

    def _planned(self) -> tuple[SortedRun, ...] | None:
        """Return the adjacent runs to merge, the newest first, or None."""
        with self.lock:
            runs = self._runs
        part = plan_merge([len(run) for run in runs], self._num_rows)
        return None if part is None else runs[part[0] : part[1]]

    def _merge(self) -> None:
        """Merge runs until none is to be merged; the merging thread."""
        try:
            while (runs := self._planned()) is not None:
                self._merge_runs(runs)
        except ChannelClosedError:
            return  # the table is being closed
        except StoreWriteError as error:
            # Without the merge all rows are still there. It is tried again after the next run.
            if error.errno not in _NO_SPACE:
                self._error = error
            elif not self._is_short_of_space:
                self._is_short_of_space = True
                _LOG.warning(
                    "%s: its runs are not merged, for lack of disk space; training goes on, with slower reads: %s",
                    self._folder,
                    error,
                )
        except BaseException as error:  # noqa: BLE001 - raised at the next call, on its thread
            self._error = error

    def _merge_runs(self, runs: tuple[SortedRun, ...]) -> None:
        """Replace adjacent ``runs`` by one; raises `ChannelClosedError` if the table is being closed."""
        if runs[0].is_dense:  # it hides the others
            self._replace(runs[1:], ())
            return
        needed = min(sum(run.file_bytes for run in runs), self._num_rows * self._initial.width * 4)
        with write_errors(self._folder, "merging runs", os_io=self._os_io):
            require_free_space(self._folder, needed, os_io=self._os_io)
        if self._merge_lane is None:
            self._merge_lane = self._new_lane()
        merge = RunMerge(
            runs,
            has_oldest=runs[-1] is self._runs[-1],
            num_rows=self._num_rows,
            initial=self._initial,
            lane=self._merge_lane,
            check=lambda: self._cancellation.raise_if_set("the merge"),
        )
        name = self._new_name()
        with self.damage():
            arrays = merge.write(self._folder, name, os_io=self._os_io)
        self._os_io.kill_point("embedding.after_merge")
        self._replace(runs, (self._new(name, arrays, merge.costs),))

    def _replace(self, old: tuple[SortedRun, ...], new: tuple[SortedRun, ...]) -> None:
        """Put ``new`` in the place of the adjacent runs ``old``."""
        with self.lock:
            # Only this thread removes runs, and `add` puts new ones before them.
            first = self._runs.index(old[0])
            self._runs = (*self._runs[:first], *new, *self._runs[first + len(old) :])
            for run in old:
                if not run.pins:
                    run.close()
        self._remove(run.name for run in old)

    def close(self, *, remove: bool) -> None:
        """End the merge, and release everything; with ``remove``, remove files that no record names. Idempotent.

        Raises
        ------
        StoreError
            The merging thread failed, and its error was not raised yet.
        """
        self._cancellation.set()
        self.join()
        with self.lock:
            self._is_closed = True
            runs, self._runs = self._runs, ()
        # The lanes wait for reads in progress, and refuse later ones.
        for lane in (self.lane, self._merge_lane):
            if lane is not None:
                lane.close()
        for run in runs:
            run.close()
        if remove:
            self._remove(run.name for run in runs)
        if self._error is not None and not self._is_error_known:
            self.raise_error()
