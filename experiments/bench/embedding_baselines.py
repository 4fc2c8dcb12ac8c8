"""Trained rows without a plan: a file with a cache of least recently used rows.

The file has a row every ``stride`` bytes, a multiple of the sector: one direct request reads or writes a row, and
nothing is read in order to write. One io_uring has up to 128 requests in flight. A missing row's read begins as soon as
the row before it in its slot is written. Rows are read when a batch is asked for; nothing looks ahead.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.kernels import njit
from gloader.ssd_store.machine_ops import load32, load64, load_acquire32, store_release32
from gloader.ssd_store.read.uring import (
    CQ_HEAD,
    CQ_MASK,
    CQ_TAIL,
    CQE_BYTES,
    CQES,
    MASK32,
    OP_READ,
    OP_WRITE,
    SQ_TAIL,
    Uring,
    enter,
    submit,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

SECTOR: Final = 512
DEPTH: Final = 128  # requests in flight
_PIECE_BYTES: Final = 32 << 20


def stride_of(width: int) -> int:
    """Return the bytes from one row of ``width`` floats to the next."""
    return -(-4 * width // SECTOR) * SECTOR


def make_flat_file(path: Path, num_rows: int, width: int) -> None:
    """Write a file with rows that are drawn anew from a few."""
    stride = stride_of(width)
    many = _PIECE_BYTES // stride
    piece = np.zeros((many, stride // 4), np.float32)
    piece[:, :128] = np.random.default_rng(0).uniform(-0.1, 0.1, (many, 128))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for first in range(0, num_rows, many):
            os.write(handle, piece[: num_rows - first].data)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


class OnDemandRows:
    """The slots of a file's rows. Owns the file's descriptor and the ring until `close`.

    Parameters
    ----------
    path : made by `make_flat_file`
    num_rows, width : of the file, width in floats
    cache_bytes : of the slots, whose rows have the width of the file's, without what rounds them to sectors
    """

    def __init__(self, path: Path, num_rows: int, width: int, cache_bytes: int) -> None:
        self.capacity = min(num_rows, cache_bytes // (4 * width))
        self.num_loads = self.num_written = 0
        self._stride = stride_of(width)
        self._memory = aligned_bytes(self.capacity * self._stride)
        self._memory[:] = 0
        self.slots = self._memory.view(np.float32).reshape(self.capacity, -1)  # (C, stride / 4)
        self._slot_of = np.full(num_rows, -1, np.int32)
        self._row_in = np.full(self.capacity, -1, np.int64)
        # A ring of slots from the least to the most recently used; entry C is its head.
        order = np.arange(self.capacity + 1, dtype=np.int32)
        self._next, self._before = np.roll(order, -1).copy(), np.roll(order, 1).copy()
        self._fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        self._ring = Uring(DEPTH)

    def take(self, ids: Ids) -> Ids:
        """Return the slots (U,) of distinct rows, which are there when this returns; no other slot is changed after."""
        slots = np.empty(len(ids), np.int64)
        missing, victims = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        count = _place(ids, self._slot_of, self._row_in, self._next, self._before, slots, missing, victims)
        if count < 0:
            raise SystemExit(f"a batch has {len(ids)} rows, and the cache {self.capacity} slots")
        places = slots[missing[:count]]
        base = self._memory.ctypes.data
        error = _exchange(
            self._ring.table,
            self._fd,
            base,
            self._stride,
            places,
            victims[:count],
            ids[missing[:count]],
            DEPTH,
        )
        if error:
            raise OSError(error, os.strerror(error))
        self.num_loads += count
        self.num_written += int((victims[:count] >= 0).sum())
        return slots

    def counts(self) -> dict[str, int]:
        """Return rows loaded and written so far."""
        return {"loads": self.num_loads, "dirty_evictions": self.num_written}

    def close(self) -> None:
        """Close ring and file."""
        self._ring.close()
        os.close(self._fd)


@njit(cache=True, nogil=True)
def _place(
    ids: Ids,
    slot_of: NDArray[np.int32],
    row_in: Ids,
    after: NDArray[np.int32],
    before: NDArray[np.int32],
    slots: Ids,
    missing: Ids,
    victims: Ids,
) -> int:
    """Give each row a slot, that of the least recently used row if it is missing; return the number of missing rows."""
    head = len(row_in)
    if len(ids) > head:
        return -1
    count = 0
    for position in range(len(ids)):
        slot = slot_of[ids[position]]
        slots[position] = slot
        if slot < 0:
            missing[count] = position
            count += 1
        else:
            _use(slot, head, after, before)
    for number in range(count):
        slot = after[head]
        victims[number] = row_in[slot]
        if row_in[slot] >= 0:
            slot_of[row_in[slot]] = -1
        row = ids[missing[number]]
        row_in[slot] = row
        slot_of[row] = slot
        slots[missing[number]] = slot
        _use(slot, head, after, before)
    return count


@njit(cache=True, nogil=True)
def _use(slot: int, head: int, after: NDArray[np.int32], before: NDArray[np.int32]) -> None:
    """Move a slot to the end of the ring."""
    after[before[slot]] = after[slot]
    before[after[slot]] = before[slot]
    last = before[head]
    after[last] = slot
    before[slot] = last
    after[slot] = head
    before[head] = slot


@njit(cache=True, nogil=True)
def _exchange(
    ring: Ids, fd: int, base: int, stride: int, slots: Ids, victims: Ids, rows: Ids, depth: int
) -> int:
    """Write each slot's row to the file, if it has one, then read the slot's new row. Return 0 or the errno."""
    tail = load_acquire32(ring[SQ_TAIL])
    upcoming, in_flight = 0, 0
    while True:
        while in_flight < depth and upcoming < len(slots):
            address = base + slots[upcoming] * stride
            if victims[upcoming] >= 0:
                tag = 2 * upcoming
                tail = submit(ring, tail, OP_WRITE, fd, victims[upcoming] * stride, address, stride, tag)
            else:
                tail = submit(
                    ring, tail, OP_READ, fd, rows[upcoming] * stride, address, stride, 2 * upcoming + 1
                )
            in_flight += 1
            upcoming += 1
        store_release32(ring[SQ_TAIL], tail)
        if in_flight == 0:
            return 0
        code = enter(ring, tail, min(in_flight, 16))
        if code not in (0, 4, 11):  # EINTR, EAGAIN
            return int(code)
        first = load_acquire32(ring[CQ_HEAD])
        last = load_acquire32(ring[CQ_TAIL])
        while first != last:
            entry = ring[CQES] + (first & ring[CQ_MASK]) * CQE_BYTES
            tag = load64(entry)
            if load32(entry + 8) != stride:
                return 5  # EIO
            number = tag // 2
            if tag % 2 == 0:
                address = base + slots[number] * stride
                tail = submit(ring, tail, OP_READ, fd, rows[number] * stride, address, stride, tag + 1)
            else:
                in_flight -= 1
            first = (first + 1) & MASK32
        store_release32(ring[CQ_HEAD], first)


def drop(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)
