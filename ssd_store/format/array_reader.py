"""Readers for stored arrays: an entire array into memory, an array piece by piece, or single elements.

A page is 4 KiB of an array's data, with a checksum in the array's ``.pages`` file. The digest in the commit record is a
hash over all page checksums. Each page is verified when it is read; `read_run` reads and compares. An array in format
version 1 may have no ``.pages`` file: only a read of the entire file, compared with the digest, can verify it. Reading
single elements takes memory for the elements and one buffer.

A dataset's tables and edges are read by these functions, feature rows by `gloader.ssd_store.read`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.ids import as_ids, outside
from gloader.errors import ChecksumError, ShapeError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages, digest_of, num_pages_of
from gloader.ssd_store.format.format import DATA_OFFSET, ArrayRecord, open_error, read_exactly, stored_dtype
from gloader.ssd_store.format.manifest import RESTORE, VERIFY
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.types import IdArray


_STEP_BYTES: Final = 4 * 2**20  # bytes per read: enough for a disk's full speed, and small in any budget


def load_array(root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS) -> NDArray[np.generic]:
    """Read an entire array into memory, verified during the read.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record

    Returns
    -------
    Read-only array with ``record.shape`` and the stored dtype (bfloat16 as uint16)

    Raises
    ------
    ChecksumError
        The bytes differ from the written bytes; the message names the first pages.
    StoreOpenError, StoreReadError, TruncatedStoreError
        The file cannot be read in full.
    """
    path = Path(root) / record.file
    checksums = known_page_checksums(root, record, os_io=os_io)
    data = aligned_bytes(record.num_pages * PAGE_BYTES)
    with open_array(path, os_io=os_io) as fd:
        for _ in read_pages(fd, path, record, checksums=checksums, out=data, os_io=os_io):
            pass  # the bytes arrive in ``data``
    return as_stored(data, record)


def array_pieces(root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS) -> Iterator[NDArray[Any]]:
    """Yield an array's rows in order, some MB per piece, each piece verified.

    The next piece may overwrite the previous piece's memory.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record

    Raises
    ------
    ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
        As in `load_array`.
    """
    path, dtype = Path(root) / record.file, stored_dtype(record.dtype)
    checksums = load_page_checksums(root, record, os_io=os_io)
    remaining = record.num_bytes
    begun = np.empty(0, np.uint8)  # the first bytes of a row that the next step completes
    with open_array(path, os_io=os_io) as fd:
        for step in read_pages(fd, path, record, checksums=checksums, os_io=os_io):
            data = step[:remaining]
            remaining -= data.size
            if begun.size:
                data = np.concatenate([begun, data])
            whole = data.size // record.row_bytes * record.row_bytes
            begun = data[whole:].copy()
            yield data[:whole].view(dtype).reshape(-1, *record.shape[1:])


def as_stored(data: NDArray[np.uint8], record: ArrayRecord) -> NDArray[np.generic]:
    """Return the bytes ``data``, padding included, as the read-only array that ``record`` describes. Pure."""
    array = data[: record.num_bytes].view(stored_dtype(record.dtype)).reshape(record.shape)
    # All callers share the array, and a write to it would not reach the disk.
    array.flags.writeable = False
    return array


def load_page_checksums(
    root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS
) -> NDArray[np.uint64]:
    """Return ``record``'s page checksums, verified against its digest.

    An array with format version 1 may have no checksums on disk. One pass over the data then computes them; all pages
    are intact if the checksums give the digest.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record

    Returns
    -------
    (record.num_pages,) uint64, read-only

    Raises
    ------
    ChecksumError
        The checksums do not match the digest.
    StoreOpenError, StoreReadError, TruncatedStoreError
        A file cannot be read in full.
    """
    known = known_page_checksums(root, record, os_io=os_io)
    if known is not None:
        return known
    path = Path(root) / record.file
    computed = np.empty(record.num_pages, dtype=np.uint64)
    with open_array(path, os_io=os_io) as fd:
        for _ in read_pages(fd, path, record, checksums=None, learnt=computed, os_io=os_io):
            pass
    computed.flags.writeable = False
    return computed


def known_page_checksums(
    root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS
) -> NDArray[np.uint64] | None:
    """Return ``record``'s page checksums as `load_page_checksums` does, or None if the disk has none.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record

    Raises
    ------
    ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError
        As in `load_page_checksums`.
    """
    if record.pages_file is None:
        return None
    path = Path(root) / record.pages_file
    data = aligned_bytes(num_pages_of(record.num_pages * 8) * PAGE_BYTES)
    checksums = data.view(np.uint64)[: record.num_pages]
    with open_array(path, os_io=os_io) as fd:
        while True:
            read_exactly(fd, data.data, DATA_OFFSET, path=path, os_io=os_io)
            # The digest covers the checksums, so it verifies this file too. It does not cover the padding, which
            # must be zero.
            if digest_of(checksums, record.version) == record.digest and not data[checksums.nbytes :].any():
                break
            # A mirror of an object store fetches damaged bytes again; on a plain disk this returns False.
            if not os_io.refetch(fd, DATA_OFFSET):
                raise ChecksumError(
                    f"{path}: the page checksums of {record.name!r} do not match the digest {record.digest} of the "
                    f"commit record; the file is damaged: {RESTORE}"
                )
    checksums.flags.writeable = False
    return checksums


def damaged_pages(path: Path, record: ArrayRecord, pages: NDArray[np.integer[Any]]) -> ChecksumError:
    """Return the error for damaged pages. Pure.

    Parameters
    ----------
    path : the file
    record : the array's entry in the commit record
    pages : (n,) page numbers, ascending, at least one
    """
    first, row_bytes = int(pages[0]) * PAGE_BYTES, max(record.row_bytes, 1)
    last_row = min((first + PAGE_BYTES - 1) // row_bytes, max(record.shape[0] - 1, 0))
    others = ", ".join(str(int(page)) for page in pages[1:6]) + (" and others" if len(pages) > 6 else "")
    also = f" (also {'pages' if len(pages) > 2 else 'page'} {others})" if others else ""
    return ChecksumError(
        f"{path}: page {int(pages[0])} at byte {DATA_OFFSET + first}, with rows {first // row_bytes} to {last_row}, "
        f"does not match its checksum{also}: the file was damaged after it was written; " + VERIFY
    )


def open_array(path: Path, *, os_io: OsIO = REAL_OS) -> Descriptor:
    """Open the file ``path`` for reading.

    Raises
    ------
    StoreOpenError
        The file cannot be opened.
    """
    try:
        return Descriptor(path, os_io=os_io)
    except OSError as error:
        raise open_error(path, error) from error


def read_pages(
    fd: int,
    path: Path,
    record: ArrayRecord,
    *,
    checksums: NDArray[np.uint64] | None,
    out: NDArray[np.uint8] | None = None,
    learnt: NDArray[np.uint64] | None = None,
    os_io: OsIO = REAL_OS,
) -> Iterator[NDArray[np.uint8]]:
    """Read the record's pages from ``fd`` in file order, a few MB per read, verified.

    Parameters
    ----------
    fd, path, record : the open file, its path for messages, and the array's entry in the commit record
    checksums : (P,) page checksums, which verify each piece before it is yielded. None compares the digest over the
        entire file after the last page: no piece is verified before the iterator ends.
    out : (P * 4096,) aligned uint8 to read into; None means one reused buffer
    learnt : (P,) receives the computed page checksums

    Yields
    ------
    The bytes just read, as a view on ``out`` or on the buffer

    Raises
    ------
    ChecksumError, StoreReadError, TruncatedStoreError
        As in `load_array`.
    """
    size = record.num_pages * PAGE_BYTES
    buffer = aligned_bytes(min(_STEP_BYTES, size)) if out is None else out
    running = Digest(record.version)  # over the pages so far
    for start in range(0, size, _STEP_BYTES):
        step = buffer[: size - start] if out is None else out[start : start + _STEP_BYTES]
        first = start // PAGE_BYTES
        # The piece is checked before it is yielded, while it is in the processor's cache.
        actual = read_run(fd, step, first, path=path, record=record, checksums=checksums, os_io=os_io)
        running.update(actual)
        if learnt is not None:
            learnt[first : first + actual.size] = actual
        yield step
    if running.hexdigest() != record.digest:
        raise ChecksumError(
            f"{path}: the bytes do not match the digest {record.digest} of the commit record; the file is damaged: "
            f"{RESTORE} (which pages are damaged is unknown: it has no page checksums)"
        )


def read_run(
    fd: int,
    data: NDArray[np.uint8],
    first: int,
    *,
    path: Path,
    record: ArrayRecord,
    checksums: NDArray[np.uint64] | None,
    wanted: NDArray[np.integer[Any]] | None = None,
    os_io: OsIO = REAL_OS,
) -> NDArray[np.uint64]:
    """Read consecutive pages of ``record``. A damaged page is read again if a mirror, a local copy, fetches it again.

    Parameters
    ----------
    fd, path, record : as in `read_pages`
    data : (n * 4096,) aligned uint8 to read into
    first : the first page's number
    checksums : (P,) all page checksums; None means no comparison
    wanted : (m,) page numbers to compare; None means all pages in the run

    Returns
    -------
    (n,) uint64, the pages' checksums

    Raises
    ------
    ChecksumError, StoreReadError, TruncatedStoreError
        As in `load_array`.
    """
    actual = np.empty(data.size // PAGE_BYTES, dtype=np.uint64)
    while True:
        read_exactly(fd, data.data, DATA_OFFSET + first * PAGE_BYTES, path=path, os_io=os_io)
        checksum_pages(data, first, actual, record.version)
        if checksums is None:
            return actual
        wrong = first + np.flatnonzero(actual != checksums[first : first + actual.size])
        if wanted is not None:
            wrong = np.intersect1d(wrong, wanted)
        if not wrong.size:
            return actual
        if not os_io.refetch(fd, DATA_OFFSET + int(wrong[0]) * PAGE_BYTES):
            raise damaged_pages(path, record, wrong)


_RUN_PAGES: Final = 1024  # maximum pages in one read of `load_elements`: 4 MiB, the size of its buffer
# Maximum number of unneeded pages between two needed pages in one read. They take about as long as another request.
_GAP_PAGES: Final = 64
_STEP_ELEMENTS: Final = 1 << 20  # elements of rows per step of `load_elements`, each with an int64 position


def load_elements(
    root: Path | str, record: ArrayRecord, positions: IdArray, *, os_io: OsIO = REAL_OS
) -> NDArray[Any]:
    """Return ``record``'s elements or rows at ``positions``, with memory for these and one buffer.

    If the array has page checksums, they verify the pages with these elements, and little else is read. Without page
    checksums the entire file is read once, because its single digest does not verify a part.

    Parameters
    ----------
    root : the directory
    record : the array's entry in the commit record
    positions : (n,) integers in 0..len-1, in any order, repeats allowed

    Returns
    -------
    (n,) with the stored dtype, or (n, k) for an array with rows of k elements

    Raises
    ------
    ShapeError
        A position is out of range, or the array has more than two dimensions; nothing was read.
    ChecksumError
        The bytes differ from the written bytes.
    StoreOpenError, StoreReadError, TruncatedStoreError
        The file cannot be read.
    """
    wanted = _checked(positions, record)
    if wanted.size == 0:
        return np.empty((0, *record.shape[1:]), dtype=stored_dtype(record.dtype))
    # The readers need sorted positions. The result is then put into the requested order.
    read = _rows if len(record.shape) == 2 else _elements
    if bool(np.all(wanted[1:] >= wanted[:-1])):  # already sorted
        return read(root, record, wanted, os_io)
    order = np.argsort(wanted)
    in_file_order = read(root, record, wanted[order], os_io)
    result = np.empty_like(in_file_order)
    result[order] = in_file_order
    return result


def _checked(positions: IdArray, record: ArrayRecord) -> IdArray:
    """Return ``positions`` as int64 ids, or raise `ShapeError`."""
    noun = f"positions in {record.name!r}"
    if len(record.shape) not in (1, 2):
        raise ShapeError(
            f"{noun} cannot be read: the array's shape is {record.shape}, and it must have one or two dimensions"
        )
    ids = as_ids(positions, noun=noun, error=ShapeError)
    if len(wrong := outside(ids, record.shape[0])):
        raise ShapeError(f"{noun} must be in 0..{record.shape[0] - 1}; these are not: {wrong[:5].tolist()}")
    return ids


def _elements(root: Path | str, record: ArrayRecord, wanted: IdArray, os_io: OsIO) -> NDArray[Any]:
    """Return the elements (n,) at ``wanted`` (sorted), in an array that counts as one row of elements."""
    return (_scan if record.pages_file is None else _pick)(root, record, wanted, os_io)


def _rows(root: Path | str, record: ArrayRecord, wanted: IdArray, os_io: OsIO) -> NDArray[Any]:
    """Return the rows (n, k) at ``wanted`` (sorted). A row may lie on two pages."""
    width = record.shape[1]
    rows = np.empty((wanted.shape[0], width), dtype=stored_dtype(record.dtype))
    columns = np.arange(width, dtype=np.int64)
    # Without page checksums each step would read the entire file, so all rows are then read in one step.
    step = wanted.shape[0] if record.pages_file is None else max(1, _STEP_ELEMENTS // max(1, width))
    for start in range(0, wanted.shape[0], step):
        part = wanted[start : start + step]
        elements = (part[:, None] * width + columns).reshape(-1)
        rows[start : start + step] = _elements(root, record, elements, os_io).reshape(-1, width)
    return rows


def _scan(root: Path | str, record: ArrayRecord, wanted: IdArray, os_io: OsIO) -> NDArray[Any]:
    """Return the elements at ``wanted`` (sorted) by reading the entire file."""
    path, dtype = Path(root) / record.file, stored_dtype(record.dtype)
    values = np.empty(wanted.shape[0], dtype=dtype)
    with open_array(path, os_io=os_io) as fd:
        first = done = 0  # the piece's first element, and the number of copied elements
        for piece in read_pages(fd, path, record, checksums=None, os_io=os_io):
            elements = piece.view(dtype)
            # The wanted positions from ``done`` to ``stop`` - 1 lie in this piece.
            stop = int(np.searchsorted(wanted, first + elements.shape[0]))
            values[done:stop] = elements[wanted[done:stop] - first]
            first, done = first + elements.shape[0], stop
    return values


def _pick(root: Path | str, record: ArrayRecord, wanted: IdArray, os_io: OsIO) -> NDArray[Any]:
    """Return the elements at ``wanted`` (sorted) by reading runs of pages around the positions."""
    path, dtype = Path(root) / record.file, stored_dtype(record.dtype)
    per_page = PAGE_BYTES // dtype.itemsize
    checksums = load_page_checksums(root, record, os_io=os_io)
    values = np.empty(wanted.shape[0], dtype=dtype)
    buffer = aligned_bytes(_RUN_PAGES * PAGE_BYTES)
    with open_array(path, os_io=os_io) as fd:
        for first, last in _runs(wanted // per_page):
            data = buffer[: (last - first) * PAGE_BYTES]
            # wanted[begin:end] lie on these pages. Only pages with a wanted element are compared: gaps may be damaged.
            begin, end = np.searchsorted(wanted, [first * per_page, last * per_page])
            positions = wanted[begin:end]
            read_run(
                fd,
                data,
                first,
                path=path,
                record=record,
                checksums=checksums,
                wanted=positions // per_page,
                os_io=os_io,
            )
            values[begin:end] = data.view(dtype)[positions - first * per_page]
    return values


def _runs(pages: IdArray) -> list[tuple[int, int]]:
    """Return page ranges (first, last + 1) of at most `_RUN_PAGES` pages that cover the sorted ``pages``. Pure."""
    unique = pages[np.concatenate([[True], pages[1:] != pages[:-1]])]
    cuts = np.flatnonzero(np.diff(unique) > _GAP_PAGES) + 1
    runs = []
    for part in np.split(unique, cuts):
        start, stop = int(part[0]), int(part[-1]) + 1
        runs += [(first, min(first + _RUN_PAGES, stop)) for first in range(start, stop, _RUN_PAGES)]
    return runs
