"""The seam between a sweep and the device, and the driver that makes calls: in threads, or one by one.

Where a `SweepSource` brings the bytes, a driver reads nothing: it ends its step at each extent, for the caller to fill,
and writes as ever.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from gloader.core.processor_time import helping
from gloader.core.thread_start import thread_errors
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.sweep import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.spill.file import SpillFile
    from gloader.ssd_store.sweep.kernels import Sweep
    from gloader.types import IdArray

# What a step ends with: it used up its budget; all is read and written; the extent at the head failed, or there is no
# file to read it from, and is the caller's to fill; a written piece failed and is the caller's to repeat with care; a
# page differs from its checksum; a signal came; the ring cannot be used any more. Or with ``STARVED`` or ``ASTRAY`` of
# the kernels.
RUNNING, FINISHED, READ_CARE, WRITE_CARE, DAMAGED, INTERRUPTED, BROKEN = range(7)
_THREADS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFiles:
    """The files of a sweep: one to read from, if any, and for each batch the place to write its region to."""

    label: str  # for messages, before a number: "superbatch 3, batch"
    file: DeviceFile | None  # None: what is read comes from elsewhere
    # (S,) of each batch, several batches to a file; empty if nothing is written.
    targets: Sequence[SpillFile | None]
    fds: IdArray  # (S,) their descriptors
    starts: IdArray  # (S,) byte of the file at which the batch's region starts

    @property
    def fd(self) -> int:
        """The descriptor to read from; -1: extents are the caller's to fill."""
        return -1 if self.file is None else self.file.fd


class SweepDriver(Protocol):
    """Carries a sweep out, step by step. Between steps requests may be in flight; `settle` ends that."""

    name: str

    def step(self, sweep: Sweep, files: SweepFiles, budget_bytes: int, /) -> int:
        """Work on the sweep until ``budget_bytes`` are dealt out or something needs care; return which.

        Parameters
        ----------
        sweep : its state
        files : to read from and write to
        budget_bytes : how much to deal out before Python gets to look at signals and cancellation
        """
        ...

    def settle(self, sweep: Sweep, /) -> None:
        """Wait until nothing is in flight."""
        ...

    def close(self) -> None:
        """Release threads and rings. Idempotent."""
        ...


class CallDriver:
    """Drives sweeps with calls of `OsIO`, from threads or one at a time. Owns the threads until `close`.

    One at a time, every request is left to the caller's careful reads and writes: the path on which faults are
    injected.

    Parameters
    ----------
    threaded : use threads
    """

    def __init__(self, os_io: OsIO, *, threaded: bool) -> None:
        self.name = "threads" if threaded else "plain"
        self._os_io = os_io
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="gloader-sweep") if threaded else None
        self._reads: dict[int, Future[int]] = {}  # by slot
        self._writes: dict[Future[int], int] = {}  # piece

    def step(self, sweep: Sweep, files: SweepFiles, budget_bytes: int, /) -> int:
        """Work on the sweep until ``budget_bytes`` are dealt out or something needs care; return which.

        Parameters
        ----------
        sweep : its state
        files : to read from and write to
        budget_bytes : how much to deal out before Python gets to look at signals and cancellation
        """
        dealt = 0
        while dealt < budget_bytes:
            self._start_reads(sweep, files)
            self._start_writes(sweep, files)
            self._collect_writes(sweep, wait_s=0.0)
            if sweep.state[kernels.NUM_FAILED]:
                return WRITE_CARE
            if sweep.state[kernels.HEAD] == sweep.state[kernels.PLANNED]:
                if self._has_ended(sweep):
                    return FINISHED
                continue
            # Extents are dealt out in file order, so the oldest read is the one to wait for.
            slot = int(sweep.state[kernels.HEAD]) % sweep.extents.shape[1]
            if not self._has_read(slot, sweep):
                return READ_CARE
            with np.errstate(over="ignore"):  # interpreted checksums wrap around
                if kernels.is_damaged(slot, sweep):
                    return DAMAGED
                missing = kernels.deal_out(slot, sweep)
            if missing == kernels.DEALT:
                dealt += int(sweep.extents[kernels.LENGTH, slot])
            elif missing == kernels.NO_PIECE:  # every piece is taken: one must be written before
                self._start_writes(sweep, files)
                self._collect_writes(sweep)
            else:
                return int(missing)
        return RUNNING

    def settle(self, sweep: Sweep, /) -> None:
        """Wait until nothing is in flight."""
        wait([*self._reads.values(), *self._writes])
        for slot in list(self._reads):
            self._has_read(slot, sweep)
        self._collect_writes(sweep, wait_s=0.0)

    def close(self) -> None:
        """End and join the threads. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()

    def _start_reads(self, sweep: Sweep, files: SweepFiles) -> None:
        state, extents, fd = sweep.state, sweep.extents, files.fd
        kernels.plan_reads(sweep)
        while state[kernels.SUBMITTED] < state[kernels.PLANNED]:
            slot = int(state[kernels.SUBMITTED]) % extents.shape[1]
            state[kernels.SUBMITTED] += 1
            # Without threads a request counts as failed at once: the caller makes it with care. So does one without a
            # file.
            if self._pool is None or fd < 0:
                extents[kernels.FLAG, slot] = kernels.FAILED_READ
                continue
            start, length, at, _, _ = extents[:, slot].tolist()
            with thread_errors():
                self._reads[slot] = self._pool.submit(
                    helping(self._os_io.pread_into),
                    fd,
                    sweep.ring[at : at + length].data,
                    DATA_OFFSET + start,
                )

    def _start_writes(self, sweep: Sweep, files: SweepFiles) -> None:
        state = sweep.state
        while state[kernels.NUM_READY]:
            state[kernels.NUM_READY] -= 1
            piece = int(sweep.ready[state[kernels.NUM_READY]])
            if self._pool is None:
                _fail(piece, sweep)
                continue
            batch, data, offset = piece_of(piece, sweep, files)
            with thread_errors():
                write = self._pool.submit(helping(self._os_io.pwrite), int(files.fds[batch]), data, offset)
            self._writes[write] = piece

    def _has_ended(self, sweep: Sweep) -> bool:
        """Go on when everything is dealt out; return whether everything is written as well."""
        if not sweep.state[kernels.FLUSHED]:
            with np.errstate(over="ignore"):
                kernels.flush(sweep)
        elif not self._writes and not sweep.state[kernels.NUM_READY]:
            return True
        else:
            self._collect_writes(sweep)
        return False

    def _has_read(self, slot: int, sweep: Sweep) -> bool:
        """Wait for the read of ``slot``; return whether its bytes are there."""
        future = self._reads.pop(slot, None)
        if future is not None:
            is_complete = (
                future.exception() is None and future.result() == sweep.extents[kernels.LENGTH, slot]
            )
            sweep.extents[kernels.FLAG, slot] = kernels.DONE if is_complete else kernels.FAILED_READ
        return bool(sweep.extents[kernels.FLAG, slot] == kernels.DONE)

    def _collect_writes(self, sweep: Sweep, *, wait_s: float | None = None) -> None:
        """Take note of the writes that completed; wait for one if ``wait_s`` is None."""
        done, _ = wait(self._writes, timeout=wait_s, return_when=FIRST_COMPLETED)
        for future in done:
            piece = self._writes.pop(future)
            if future.exception() is None and future.result() == sweep.owners[kernels.SIZE, piece]:
                give_back(piece, sweep)
            else:
                _fail(piece, sweep)


def piece_of(piece: int, sweep: Sweep, files: SweepFiles) -> tuple[int, memoryview, int]:
    """Return the batch, the bytes and the offset in the batch's file of a full piece.

    Parameters
    ----------
    piece : its number
    sweep : its state
    files : of the sweep
    """
    batch, size, offset = sweep.owners[:, piece].tolist()
    at = piece * sweep.piece_bytes
    return batch, sweep.pieces[at : at + size].data, int(files.starts[batch]) + offset


def give_back(piece: int, sweep: Sweep) -> None:
    """Free a piece that has been written."""
    sweep.free[sweep.state[kernels.NUM_FREE]] = piece
    sweep.state[kernels.NUM_FREE] += 1


def _fail(piece: int, sweep: Sweep) -> None:
    sweep.failed[sweep.state[kernels.NUM_FAILED]] = piece
    sweep.state[kernels.NUM_FAILED] += 1
