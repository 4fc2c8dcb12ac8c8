"""A pack of a superbatch's missing rows: read back batch by batch, every byte checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.misses.direct import check_misses, other_rows
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.regions.store import region_extents
from gloader.ssd_store.sweep.arrivals import arrival_order
from gloader.ssd_store.sweep.wanted_rows import rows_digest
from gloader.types import ReadStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.regions.store import Regions
    from gloader.ssd_store.sweep.arrivals import ArrivalOrder
    from gloader.ssd_store.sweep.sweep import SweepCost
    from gloader.ssd_store.sweep.wanted_rows import WantedRows
    from gloader.types import IdArray


class PackedMisses:
    """The missing rows of a superbatch in a pack: a `MissSource`. Thread-safe; made by `Packer.pack`.

    Owns its files until their batches are released, or until `close`.

    Parameters
    ----------
    stored : the rows that were packed
    regions : where they are
    wanted : which rows they are; only their counts and digests are kept
    superbatch : its number, for messages
    order : in which the rows of each batch lie in its region; None: they ascend
    """

    strategy = "packed"

    def __init__(
        self,
        stored: StoredRows,
        regions: Regions,
        wanted: WantedRows,
        *,
        superbatch: int,
        order: ArrivalOrder | None = None,
    ) -> None:
        self.superbatch = superbatch
        self._stored = stored
        self._regions = regions
        self._counts = wanted.counts
        self._digests = wanted.digests
        self._order = order

    @property
    def cost(self) -> SweepCost:
        """Of the sweep that made the pack."""
        return self._regions.cost

    @property
    def num_batches(self) -> int:
        """S."""
        return int(self._counts.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes on disk when it was made."""
        return self._regions.num_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the pack holds: checksums and layout, counts and digests."""
        return self._regions.resident_bytes + self._counts.nbytes + self._digests.nbytes

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
        stored, layout = self._stored, self._regions.layout
        request = check_misses(
            batch, rows, out, at, num_batches=self.num_batches, num_rows=stored.num_rows, dim=stored.dim
        )
        num = request.rows.shape[0]
        # A row's place in the region is given by its rank alone: only the very rows that were packed are right.
        if num != self._counts[batch] or rows_digest(request.rows) != self._digests[batch]:
            raise other_rows("packed", f"superbatch {self.superbatch}, ", batch)
        if num == 0:
            return ReadStats(rows=0, requests=0, bytes_read=0)
        ids, position = request.rows, request.position
        if self._order is not None:
            in_region = arrival_order(self._order, ids)
            ids, position = ids[in_region], position[in_region]
        # Within the region a row's place is its rank; its id says only which scale it has.
        target = make_target(
            np.arange(num),
            position,
            out,
            dtype=stored.dtype,
            is_bfloat16=stored.is_bfloat16,
            scale=None if stored.scale is None else stored.scale[ids],
        )
        first, last = layout.first_page[batch : batch + 2].tolist()
        extents = region_extents(int(layout.start[batch]), (last - first) * PAGE_BYTES, num, stored.row_bytes)
        requests = self._regions.read(batch, extents, target)
        return ReadStats(rows=num, requests=requests, bytes_read=extents.num_bytes)

    def release(self, batch: int) -> None:
        """Say that ``batch`` is done; its file goes back to the folder with the last batch in it. Idempotent."""
        self._regions.release(batch)

    def close(self) -> None:
        """Remove the files of batches that were not released. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; its bytes stay in use until the folder is closed.
        """
        self._regions.close()
