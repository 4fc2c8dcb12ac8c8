"""A pack of a superbatch's missing rows: read back batch by batch, every byte checked."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.errors import ChecksumError, SpillError, StoreReadError, TruncatedStoreError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.misses.direct import check_misses, other_rows
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.extents import Extents
from gloader.ssd_store.sweep.wanted_rows import rows_digest
from gloader.types import ReadStats

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store.misses.pack_files import PackFiles
    from gloader.ssd_store.misses.pack_layout import PackLayout
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.sweep.sweep import SweepCost
    from gloader.types import IdArray

CHUNK_BYTES: Final = 128 * 1024  # of a read-back request


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackIndex:
    """Where the rows of each batch lie in a pack, and what they are checked against."""

    layout: PackLayout
    counts: IdArray  # (S,) rows of each batch
    digests: NDArray[np.uint64]  # (S,) of their ids, see `rows_digest`
    checksums: NDArray[np.uint64]  # of the pack's pages, region after region


class PackedMisses:
    """The missing rows of a superbatch in a pack: a `MissSource`. Thread-safe; made by `Packer.pack`.

    Owns its files until they are released, batch by batch, or until `close`.

    Parameters
    ----------
    stored : the rows that were packed
    files : of the pack
    index : where the rows are, and what they are checked against
    superbatch : its number, for messages
    lane : to read with; it stays the packer's
    cost : of the sweep that made the pack
    """

    strategy = "packed"

    def __init__(
        self,
        stored: StoredRows,
        files: PackFiles,
        index: PackIndex,
        *,
        superbatch: int,
        lane: ReadLane,
        cost: SweepCost,
    ) -> None:
        self.superbatch = superbatch
        self.cost = cost
        self._stored = stored
        self._files = files
        self._index = index
        self._lane = lane

    @property
    def num_batches(self) -> int:
        """S."""
        return int(self._index.counts.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes on disk when it was made."""
        return self._index.layout.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the pack holds: checksums, and seven words a batch of layout, counts and digests."""
        return int(self._index.checksums.nbytes + 7 * 8 * self.num_batches)

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read the missing rows of ``batch`` back, every byte checked.

        Parameters
        ----------
        batch : 0..S-1
        rows : (M,) int64, exactly the rows that were packed for it
        out : (K, F), of the stored dtype or float32
        at : (M,) int64, row of ``out`` for each of ``rows``

        Raises
        ------
        ShapeError
            A shape or dtype does not fit, or a row is out of range.
        PlanError
            The rows are not those that were packed.
        ChecksumError
            The pack was damaged or cut since; the message names superbatch, batch and byte.
        SpillError
            The device fails, or the batch was released.
        StoreError
            The packer is closed.
        """
        stored, index = self._stored, self._index
        request = check_misses(
            batch, rows, out, at, num_batches=self.num_batches, num_rows=stored.num_rows, dim=stored.dim
        )
        num = request.rows.shape[0]
        # Row i of the region is row i of the request: only the very rows that were packed, in their order, are right.
        if num != index.counts[batch] or rows_digest(request.rows) != index.digests[batch]:
            raise other_rows("packed", f"superbatch {self.superbatch}, ", batch)
        if num == 0:
            return ReadStats(rows=0, requests=0, bytes_read=0)
        # Within the region a row's place is its rank; its id says only which scale it has.
        target = make_target(
            np.arange(num),
            request.position,
            out,
            dtype=stored.dtype,
            is_bfloat16=stored.is_bfloat16,
            scale=None if stored.scale is None else stored.scale[request.rows],
        )
        first, last = index.layout.first_page[batch : batch + 2].tolist()
        start = int(index.layout.start[batch])
        extents = region_extents(start, (last - first) * PAGE_BYTES, num, stored.row_bytes)
        label = f"superbatch {self.superbatch}, batch {batch}"
        with self._files.reading(batch, label) as file:
            try:
                requests, page = self._lane.read(
                    file, extents, target, data_offset=start, checksums=index.checksums[first:last]
                )
            except TruncatedStoreError as error:
                text = f"it has {file.num_bytes} bytes, {start + (last - first) * PAGE_BYTES} are needed"
                raise _damage(label, file.path, start, text) from error
            except StoreReadError as error:
                text = f"reading the pack of {label} failed: {error.strerror}"
                raise SpillError(error.errno or errno.EIO, text, str(file.path)) from error
        if page >= 0:
            offset = start + page * PAGE_BYTES
            raise _damage(label, file.path, offset, f"the page at byte {offset} does not match its checksum")
        return ReadStats(rows=num, requests=requests, bytes_read=extents.num_bytes)

    def release(self, batch: int) -> None:
        """Say that ``batch`` is done; its file goes with the last batch in it. Idempotent.

        Raises
        ------
        SpillError
            The file cannot be removed; its bytes stay in use.
        """
        self._files.release(batch)

    def close(self) -> None:
        """Remove all files. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; its bytes stay in use until the folder is closed.
        """
        # The files first, which waits for a reader: with no checksums it would verify nothing.
        self._files.close()
        self._index = replace(self._index, checksums=np.empty(0, np.uint64))


def region_extents(start: int, num_bytes: int, num_rows: int, row_bytes: int) -> Extents:
    """Return the reads of a region of a pack, in chunks of 128 KiB. Pure.

    Parameters
    ----------
    start : byte of the file at which the region starts
    num_bytes : of the region, whole pages
    num_rows : rows in it, one after the other
    row_bytes : R
    """
    offset = np.arange(0, num_bytes, CHUNK_BYTES)
    end = np.minimum(offset + CHUNK_BYTES, num_bytes)
    return Extents(
        offset=start + offset,
        length=end - offset,
        row_begin=offset // row_bytes,
        row_end=np.minimum(-(-end // row_bytes), num_rows),
    )


def _damage(label: str, path: Path, offset: int, what: str) -> ChecksumError:
    return ChecksumError(
        f"the pack of {label} ({path}) is damaged at byte {offset}: {what}; it was changed after it was written: "
        "check the disk and resume from the last checkpoint"
    )
