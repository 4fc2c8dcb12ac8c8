"""Verification of an entire store: every byte is read, and every difference from the written bytes is reported.

`gloader verify` runs it. Each page of 4 KiB is compared with its checksum in the array's ``.pages`` file, and the
checksums with the digest in the commit record (``dataset.json`` or ``store.json``). An array without a ``.pages`` file
is compared with its digest only. The caller may add checks on the elements' meaning, such as ids in range. The
verification takes memory for a few buffers of at most 4 MiB, whatever the store's size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.errors import ChecksumError, StoreError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages, num_pages_of
from gloader.ssd_store.format.format import (
    DATA_OFFSET,
    ArrayRecord,
    check_array_file,
    file_bytes,
    read_exactly,
    read_manifest,
    stored_dtype,
)
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.core.ids import RowRanges
    from gloader.ssd_store.format.format import Manifest


_STEP_BYTES: Final = 4 * 2**20  # bytes per read
_STEP_PAGES: Final = _STEP_BYTES // PAGE_BYTES
_MAX_PROBLEMS: Final = 1000  # problems in a report; a damaged disk can have millions

Progress: TypeAlias = "Callable[[int, int], None]"  # bytes done, bytes in total


class ElementCheck(Protocol):
    """A check on the meaning of an array's elements, which arrive in order, in pieces."""

    def wrong(self, values: NDArray[Any], /) -> str | None:
        """Take the next elements. Return the text of a problem, or None."""
        ...

    def wrong_end(self) -> str | None:
        """Return the text about a problem at the array's end, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One place where a store differs from its written bytes."""

    file: str  # name within the directory
    message: str
    # Number of the 4 KiB page within the data region; None if no single page is damaged.
    page: int | None = None
    offset: int | None = None  # the page's byte offset in the file
    rows: tuple[int, int] | None = None  # first and last row on the page


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of `verify_directory`."""

    path: str
    num_arrays: int
    num_bytes: int  # bytes read and checked
    problems: tuple[Problem, ...]  # at most the first thousand
    ranges: RowRanges | None = None  # the stored and checked rows; None for all rows

    @property
    def is_ok(self) -> bool:
        """True if no problem was found: every byte equals the written byte, and all checks passed."""
        return not self.problems


def verify_directory(
    path: Path | str,
    manifest_name: str,
    *,
    checks: Callable[[Manifest], Mapping[str, ElementCheck]] | None = None,
    progress: Progress | None = None,
    os_io: OsIO = REAL_OS,
) -> VerifyReport:
    """Check every byte of the directory ``path``: manifest, headers, data, padding and page checksums.

    Damage is reported, not raised.

    Parameters
    ----------
    path : the directory
    manifest_name : ``dataset.json`` or ``store.json``
    checks : receives the record, and returns the checks on elements, by array name; it may raise FormatError
    progress : called with the bytes done and the total bytes, every few MB

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError
        There is no store or dataset at ``path``.
    FormatError, VersionError
        The record is not gloader's, or has a version that this version of gloader cannot check.
    StoreReadError
        The record cannot be read.
    """
    root = Path(path)
    try:
        manifest = read_manifest(root, manifest_name, os_io=os_io)
    except ChecksumError as error:
        # The damage is reported like other damage. Without a record there is no reference for other comparisons.
        problem = Problem(file=manifest_name, message=str(error))
        return VerifyReport(path=str(root), num_arrays=0, num_bytes=0, problems=(problem,))
    pages = {name: _pages_here(record, manifest) for name, record in manifest.arrays.items()}
    total_bytes = sum(_total_bytes(record, pages[name]) for name, record in manifest.arrays.items())
    check = _Check(root, os_io, progress, total_bytes)
    elements = checks(manifest) if checks is not None else {}
    for name, record in manifest.arrays.items():
        check.array(record, elements.get(name), pages[name])
    return VerifyReport(
        path=str(root),
        num_arrays=len(manifest.arrays),
        num_bytes=check.done_bytes,
        problems=tuple(check.problems[:_MAX_PROBLEMS]),
        ranges=manifest.ranges,
    )


class _Check:
    """One verification of a directory's arrays.

    Parameters
    ----------
    root : the directory
    os_io : the system calls
    progress : as in `verify_directory`
    total_bytes : bytes to read
    """

    def __init__(self, root: Path, os_io: OsIO, progress: Progress | None, total_bytes: int) -> None:
        self.problems: list[Problem] = []
        self.done_bytes = 0
        self._root = root
        self._os_io = os_io
        self._progress = progress
        self._total_bytes = total_bytes

    def array(self, record: ArrayRecord, elements: ElementCheck | None, here: tuple[int, int] | None) -> None:
        """Verify one array's files.

        Parameters
        ----------
        record : the array's entry in the commit record
        elements : the check on the elements' meaning
        here : first page that this machine stores, and the last plus one; None if it stores all

        The data is skipped if its file has the wrong size or header, which are reported.
        """
        is_checkable = self._is_there(record.file, record.dtype, record.shape)
        pages = record.pages_file
        if pages is not None and not (
            self._is_there(pages, "uint64", (record.num_pages,)) and self._is_pages_file_sound(record, pages)
        ):
            pages = None  # the data is still checked, against its digest
        if not is_checkable:
            return
        try:
            # If this machine stores only a part of the pages, they can be checked only against page checksums, because
            # the digest is over all pages. Damaged page checksums are reported already.
            if here is None or pages is not None:
                self._data(record, pages, elements, here)
        except (StoreError, OSError) as error:
            self._report(record.file, str(error))

    def _is_there(self, file: str, dtype: str, shape: tuple[int, ...]) -> bool:
        """Return True if the file exists with the right size and header; otherwise report the problem."""
        try:
            check_array_file(self._root / file, dtype, shape, os_io=self._os_io)
        except StoreError as error:
            self._report(file, str(error))
            return False
        return True

    def _is_pages_file_sound(self, record: ArrayRecord, pages_file: str) -> bool:
        """Verify the file of page checksums, with which the data is then compared. Return True if they are intact.

        A problem with the padding behind the checksums is reported, but the checksums themselves are then intact.
        """
        # A word (8 bytes) is one page's checksum. ``padding`` is True if a byte after the last checksum is not zero.
        digest, num_words, padding = Digest(record.version), record.num_pages, False
        try:
            for words in self._read(pages_file, num_pages_of(num_words * 8)):
                checksums = words.view(np.uint64)
                # The words that are checksums; the rest of the last page is padding.
                wanted = min(num_words - digest.num_pages, checksums.size)
                digest.update(checksums[:wanted])
                padding |= bool(checksums[wanted:].any())
        except (StoreError, OSError) as error:
            self._report(pages_file, str(error))
            return False
        if digest.hexdigest() != record.digest:
            self._report(pages_file, f"the page checksums of {record.name!r} do not match the commit record")
            return False
        if padding:
            self._report(pages_file, "the padding after the page checksums is not zero")
        return True

    def _data(
        self,
        record: ArrayRecord,
        pages_file: str | None,
        elements: ElementCheck | None,
        here: tuple[int, int] | None,
    ) -> None:
        """Verify the array's data.

        Parameters
        ----------
        record, elements, here : as in `array`
        pages_file : intact page checksums to compare page by page; None compares the single digest of the data
        """
        page, past = (0, record.num_pages) if here is None else here
        digest, num_reported = Digest(record.version), len(self.problems)
        # Elements left to check, and the first problem with their meaning.
        count, meaning = math.prod(record.shape), None
        actual = np.empty(_STEP_PAGES, dtype=np.uint64)
        expected = None
        if pages_file is not None:
            expected = _Expected(self._root / pages_file, past - page, self._os_io, first=page)
        # Both files are read at the same pace, so that memory does not grow with the number of pages.
        try:
            for data in self._read(record.file, past - page, first=page):
                checksums = actual[: data.size // PAGE_BYTES]
                checksum_pages(data, page, checksums, record.version)
                digest.update(checksums)
                if expected is not None:
                    for wrong in np.flatnonzero(checksums != expected.next(checksums.size)):
                        self._report_page(record, page + int(wrong))
                page += checksums.size
                # The elements' meaning is checked if all elements are stored, and until the first problem.
                if (
                    elements is not None
                    and here is None
                    and meaning is None
                    and len(self.problems) == num_reported
                ):
                    values = data.view(stored_dtype(record.dtype))[:count]
                    count -= values.size
                    meaning = elements.wrong(values)
        finally:
            if expected is not None:
                expected.close()
        if here is not None:  # the digest covers pages on other machines
            return
        # If no page differs, or there were no page checksums, the digest decides.
        if digest.hexdigest() != record.digest and len(self.problems) == num_reported:
            self._report(
                record.file, f"the data does not match the digest {record.digest} of the commit record"
            )
        if elements is not None and len(self.problems) == num_reported:
            meaning = meaning or elements.wrong_end()
            if meaning is not None:
                # The bytes are as written, so the writer stored the wrong value: the disk did not damage it.
                self._report(record.file, f"{meaning}; it was written so")

    def _read(self, file: str, num_pages: int, *, first: int = 0) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of ``num_pages`` pages from page ``first`` on, some MB at a time in one reused buffer."""
        path = self._root / file
        buffer = aligned_bytes(min(_STEP_BYTES, max(num_pages, 1) * PAGE_BYTES))
        begin = DATA_OFFSET + first * PAGE_BYTES
        with Descriptor(path, os_io=self._os_io) as fd:
            for start in range(0, num_pages * PAGE_BYTES, _STEP_BYTES):
                part = buffer[: num_pages * PAGE_BYTES - start]
                read_exactly(fd, part.data, begin + start, path=path, os_io=self._os_io)
                yield part
                self.done_bytes += part.size
                if self._progress is not None:
                    self._progress(self.done_bytes, self._total_bytes)

    def _report_page(self, record: ArrayRecord, page: int) -> None:
        """Report a page that does not match its checksum, with the rows on it."""
        start = page * PAGE_BYTES
        row_bytes = max(record.row_bytes, 1)
        last_row = max(record.shape[0] - 1, 0)
        rows = (min(start // row_bytes, last_row), min((start + PAGE_BYTES - 1) // row_bytes, last_row))
        offset = DATA_OFFSET + start
        message = f"page {page} at byte {offset} (rows {rows[0]}..{rows[1]}) does not match its checksum"
        self._report(record.file, message, page=page, offset=offset, rows=rows)

    def _report(
        self,
        file: str,
        message: str,
        *,
        page: int | None = None,
        offset: int | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        """Add a `Problem` with these fields, up to `_MAX_PROBLEMS`."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(file=file, message=message, page=page, offset=offset, rows=rows))


class _Expected:
    """An array's page checksums from page ``first`` on, read on demand. Owns a descriptor until `close`."""

    def __init__(self, path: Path, num_pages: int, os_io: OsIO, *, first: int = 0) -> None:
        self._path = path
        self._os_io = os_io
        self._words = np.empty(min(_STEP_PAGES, num_pages), dtype=np.uint64)
        self._offset = DATA_OFFSET + 8 * first
        self._file = Descriptor(path, os_io=os_io)

    def next(self, count: int) -> NDArray[np.uint64]:
        """Return the next (count,) checksums, at most `_STEP_PAGES`. The next call overwrites them."""
        words = self._words[:count]
        read_exactly(
            self._file.number, words.view(np.uint8).data, self._offset, path=self._path, os_io=self._os_io
        )
        self._offset += count * 8
        return words

    def close(self) -> None:
        self._file.close()


def _pages_here(record: ArrayRecord, manifest: Manifest) -> tuple[int, int] | None:
    """Return an array's first stored page, and the last plus one, or None if all pages are stored. Pure."""
    held = manifest.held_rows(record.name)
    return None if held is None else held.span(record.row_bytes, PAGE_BYTES)


def _total_bytes(record: ArrayRecord, here: tuple[int, int] | None) -> int:
    """Return the bytes to read for an array: its stored pages, and their checksums. Pure."""
    pages = file_bytes(record.num_pages * 8) - DATA_OFFSET if record.pages_file else 0
    data = record.file_bytes - DATA_OFFSET if here is None else (here[1] - here[0]) * PAGE_BYTES
    return data + pages
