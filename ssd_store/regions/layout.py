"""The layout of regions: whole pages for each batch's rows, several regions to a file. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.ssd_store.format.checksum import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.types import IdArray

MAX_FILES: Final = 16  # of a group of batches; each is given back when its last batch is done


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegionLayout:
    """The regions of S batches. Row i of a batch starts ``i * row_bytes`` after the start of its region."""

    file: IdArray  # (S,) number of the file that holds each region
    start: IdArray  # (S,) byte of the file, a multiple of 4096
    first_page: IdArray  # (S + 1,) where each region's pages start in the pack's checksums
    file_bytes: IdArray  # (G,) bytes of each file

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return int(self.file_bytes.sum())

    @property
    def num_pages(self) -> int:
        """Pages of all regions."""
        return int(self.first_page[-1])


def pack_bytes(misses_per_batch: Sequence[int] | IdArray, row_bytes: int) -> int:
    """Return the bytes on disk of a pack of so many rows for each batch. Pure."""
    return plan_regions(np.asarray(misses_per_batch, np.int64), row_bytes).num_bytes


def plan_regions(counts: IdArray, row_bytes: int, groups: Sequence[int] = ()) -> RegionLayout:
    """Lay out a region for ``counts[b]`` rows of each batch, contiguous batches in a file. Pure.

    Parameters
    ----------
    counts : (S,)
    row_bytes : R
    groups : (S,) neighbours of different groups share no file, as they are not done at the same time; none: one group
    """
    pages = -(-counts * row_bytes // PAGE_BYTES)
    first_page = np.concatenate([[0], np.cumsum(pages)]).astype(np.int64)
    file = _files(counts.shape[0], groups)
    num_files = int(file[-1]) + 1 if file.shape[0] else 0
    begins = np.searchsorted(file, np.arange(num_files))
    file_pages = np.bincount(file, pages, num_files).astype(np.int64)
    return RegionLayout(
        file=file,
        start=(first_page[:-1] - first_page[begins][file]) * PAGE_BYTES,
        first_page=first_page,
        file_bytes=file_pages * PAGE_BYTES,
    )


def _files(num_batches: int, groups: Sequence[int]) -> IdArray:
    """Return the number of each batch's file."""
    # Neighbours share a file: batches end in order, so files become free in order, and the disk with them.
    ends = np.flatnonzero(np.diff(np.asarray(groups, np.int64))) + 1
    sizes = np.diff(np.concatenate([[0], ends, [num_batches]]))
    file, first = [np.empty(0, np.int64)], 0
    for size in sizes.tolist():
        file.append(first + np.arange(size) // max(1, -(-size // MAX_FILES)))
        first = int(file[-1][-1]) + 1 if size else first
    return np.concatenate(file)
