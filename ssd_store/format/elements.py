"""Readers of single elements of a stored one-dimensional array: verified, without the array in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.ids import as_ids, outside
from gloader.errors import ShapeError
from gloader.ssd_store.format.array_reader import load_page_checksums, open_array, read_pages, read_run
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.format import ArrayRecord, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_RUN_PAGES: Final = 1024  # one read of 4 MiB at most, which is all the memory that is taken
# Reading on through this many unwanted pages takes about as long as the next request's latency.
_GAP_PAGES: Final = 64


def load_elements(
    root: Path | str, record: ArrayRecord, positions: IdArray, *, os_io: OsIO = REAL_OS
) -> NDArray[Any]:
    """Return the elements of ``record`` at ``positions``, with memory for them and one buffer.

    Page checksums, if the array has them, verify the pages that hold these elements, and little else is read. Without
    them all of the file is read once, as its one digest says nothing about a part.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array
    positions : (n,) integers in 0..len-1, in any order, repeats allowed

    Returns
    -------
    (n,) of the stored dtype

    Raises
    ------
    ShapeError
        A position is out of range, or the array has more than one dimension; nothing was read.
    ChecksumError
        The bytes are not those that were written.
    StoreOpenError, StoreReadError, TruncatedStoreError
        The file cannot be read.
    """
    wanted = _checked(positions, record)
    if wanted.size == 0:
        return np.empty(0, dtype=stored_dtype(record.dtype))
    # Both readers go through the file once and take positions in file order; the result is put in the given order.
    read = _scan if record.pages_file is None else _pick
    if bool(np.all(wanted[1:] >= wanted[:-1])):
        return read(root, record, wanted, os_io)
    order = np.argsort(wanted)
    found = read(root, record, wanted[order], os_io)
    result = np.empty_like(found)
    result[order] = found
    return result


def _checked(positions: IdArray, record: ArrayRecord) -> IdArray:
    noun = f"positions in {record.name!r}"
    if len(record.shape) != 1:
        raise ShapeError(
            f"{noun} cannot be taken: its shape is {record.shape}, and it must have one dimension"
        )
    ids = as_ids(positions, noun=noun, error=ShapeError)
    if len(wrong := outside(ids, record.shape[0])):
        raise ShapeError(f"{noun} must be in 0..{record.shape[0] - 1}; these are not: {wrong[:5].tolist()}")
    return ids


def _scan(root: Path | str, record: ArrayRecord, wanted: IdArray, os_io: OsIO) -> NDArray[Any]:
    """Return the elements at ``wanted`` (sorted), reading the file from end to end."""
    path, dtype = Path(root) / record.file, stored_dtype(record.dtype)
    found = np.empty(wanted.shape[0], dtype=dtype)
    with open_array(path, os_io=os_io) as fd:
        first = done = 0
        for piece in read_pages(fd, path, record, checksums=None, os_io=os_io):
            elements = piece.view(dtype)
            stop = int(np.searchsorted(wanted, first + elements.shape[0]))
            found[done:stop] = elements[wanted[done:stop] - first]
            first, done = first + elements.shape[0], stop
    return found


def _pick(root: Path | str, record: ArrayRecord, wanted: IdArray, os_io: OsIO) -> NDArray[Any]:
    """Return the elements at ``wanted`` (sorted), reading runs of pages around them."""
    path, dtype = Path(root) / record.file, stored_dtype(record.dtype)
    per_page = PAGE_BYTES // dtype.itemsize
    checksums = load_page_checksums(root, record, os_io=os_io)
    found = np.empty(wanted.shape[0], dtype=dtype)
    buffer = aligned_bytes(_RUN_PAGES * PAGE_BYTES)
    with open_array(path, os_io=os_io) as fd:
        for first, last in _runs(wanted // per_page):
            data = buffer[: (last - first) * PAGE_BYTES]
            begin, end = np.searchsorted(wanted, [first * per_page, last * per_page])
            here = wanted[begin:end]
            read_run(
                fd,
                data,
                first,
                path=path,
                record=record,
                checksums=checksums,
                wanted=here // per_page,
                os_io=os_io,
            )
            found[begin:end] = data.view(dtype)[here - first * per_page]
    return found


def _runs(pages: IdArray) -> list[tuple[int, int]]:
    """Return ranges [first, last) of at most `_RUN_PAGES` pages that cover the sorted ``pages``. Pure."""
    unique = pages[np.concatenate([[True], pages[1:] != pages[:-1]])]
    cuts = np.flatnonzero(np.diff(unique) > _GAP_PAGES) + 1
    runs = []
    for part in np.split(unique, cuts):
        start, stop = int(part[0]), int(part[-1]) + 1
        runs += [(first, min(first + _RUN_PAGES, stop)) for first in range(start, stop, _RUN_PAGES)]
    return runs
