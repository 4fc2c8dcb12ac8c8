"""What a sweep reads: the pages of the file that it has open, or those that a source brings in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.read.lane import mismatch
from gloader.ssd_store.sweep import kernels
from gloader.ssd_store.sweep.wanted_rows import WantedRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.read.stored_rows import StoredRows
    from gloader.ssd_store.sweep.kernels import Sweep
    from gloader.ssd_store.sweep.portions import WantedPositions
    from gloader.ssd_store.sweep.sources import SweepSource
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepContent:
    """Rows in a file, or in what takes its place, what brings them, and which are wanted."""

    wanted: WantedRows | WantedPositions
    stored: StoredRows  # how they lie there, and the checksums
    source: SweepSource | None = None  # None: the file


def bring(source: SweepSource, sweep: Sweep, is_cancelled: Callable[[], bool]) -> None:
    """Have the extent at the head of ``sweep`` filled; raises as `SweepSource.read`.

    Parameters
    ----------
    source : brings the pages
    sweep : under way
    is_cancelled : asked while it waits
    """
    slot = int(sweep.state[kernels.HEAD]) % sweep.extents.shape[1]
    start, length, at, _, _ = sweep.extents[:, slot].tolist()
    source.read(sweep.ring[at : at + length].data, start, is_cancelled=is_cancelled)
    sweep.extents[kernels.FLAG, slot] = kernels.DONE


class Repairs:
    """Extents with a damaged page that are read once more, if what brings the bytes of the file brought them anew.

    Parameters
    ----------
    file : that is swept
    """

    def __init__(self, file: DeviceFile) -> None:
        self._file = file
        self._has_brought = False
        self._last = -1  # number of the extent that was read once more

    def repair(self, sweep: Sweep) -> bool:
        """Read the extent at the head again; return whether that is worth another look. Nothing may be in flight."""
        head, page = int(sweep.state[kernels.HEAD]), int(sweep.state[kernels.BAD_PAGE])
        # A block that was brought anew may have been damaged in several extents, which were all read before.
        is_new = self._file.refetch(DATA_OFFSET + page * ALIGNMENT)
        if not is_new and (self._last == head or not self._has_brought):
            return False
        self._has_brought, self._last = True, head
        start, length, at, _, _ = sweep.extents[:, head % sweep.extents.shape[1]].tolist()
        self._file.read_fully(sweep.ring[at : at + length].data, DATA_OFFSET + start)
        return True


def raise_mismatch(content: SweepContent, sweep: Sweep) -> NoReturn:
    """Raise `ChecksumError` for the page at which ``sweep`` stopped: it is not what was written."""
    stored, wanted, page = content.stored, content.wanted, int(sweep.state[kernels.BAD_PAGE])
    rows: IdArray | None = None
    if isinstance(wanted, WantedRows):
        first = page * ALIGNMENT // stored.row_bytes
        last = ((page + 1) * ALIGNMENT - 1) // stored.row_bytes
        # Batches lie one after the other, so a page's rows are anywhere in the list: an error may take its time.
        is_asked = (wanted.ids >= first) & (wanted.ids <= last)
        rows = np.unique(wanted.ids[is_asked]).astype(np.int64)
    raise mismatch(stored.path, page, rows, row_bytes=stored.row_bytes, data_offset=DATA_OFFSET)
