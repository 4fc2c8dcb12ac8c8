"""Pieces of data that several owners collect at the same time in the spill folder, and read back owner by owner.

An owner is a frontier of sampled nodes, whose drawn neighbours are the data. A piece is a part of the data that is
written together. An owner's size is not known before its last piece, so owners have no fixed regions: each full piece
is appended to a file, in whole pages of 4 KiB with checksums in memory. Owners that finish at about the same time form
a group and share files. When the last owner of a file is released, the folder gets the file back for new pieces.
"""

from __future__ import annotations

import errno
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.errors import ChecksumError, SpillError, TruncatedStoreError
from gloader.ssd_store.format.checksum import PAGE_BYTES, checksum_pages, num_pages_of
from gloader.ssd_store.os_io import spill_errors
from gloader.ssd_store.read.extents import plan_extents
from gloader.ssd_store.read.row_kernels import make_target
from gloader.ssd_store.spill.folder import SpillFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store.read.lane import ReadLane
    from gloader.ssd_store.spill.folder import SpillFile, SpillFolder
    from gloader.types import IdArray

_EXTENT_BYTES: Final = 128 * 1024  # longest read
_IN_ORDER: IdArray = np.empty(0, dtype=np.int64)  # output positions; empty means that page i goes to row i


@dataclass(slots=True, kw_only=True)
class _File:
    """A file with several owners' pieces."""

    path: Path
    checksums: NDArray[np.uint64]  # the page checksums
    num_pages: int = 0  # number of written pages
    owners: set[int] = field(default_factory=set)  # owners that still need the file


@dataclass(slots=True, kw_only=True)
class _Owner:
    """One owner's collected pieces."""

    num_bytes: int = 0  # without the padding of the last page
    pieces: list[tuple[_File, int, int]] = field(default_factory=list)  # file, first page, pages


class SpilledPieces:
    """Pieces in files in a spill folder. Owns the files until all owners are released, or until `close`.

    One thread writes; afterwards any thread may read.

    Parameters
    ----------
    folder : folder for the files, within its budget
    groups : (O,) each owner's group; owners in a group share files
    file_bytes : file size for each group, at least 1; when a file is full, another is created
    piece_bytes : the largest piece's size
    label : the pieces' name in messages
    """

    def __init__(
        self,
        folder: SpillFolder,
        groups: Sequence[int],
        file_bytes: dict[int, int],
        *,
        piece_bytes: int,
        label: str,
    ) -> None:
        self._folder = folder
        self._groups = groups
        self._file_pages = {group: num_pages_of(size) for group, size in file_bytes.items()}
        self._label = label
        self._lock = threading.Lock()
        self._owners = [_Owner() for _ in groups]
        self._is_live = [True] * len(groups)  # True for owners that were not released
        self._files = SpillFiles(folder, label)
        self._writing: dict[int, tuple[SpillFile, _File]] = {}  # each group's last file
        # An aligned copy of the written piece.
        self._bounce = aligned_bytes(num_pages_of(piece_bytes) * PAGE_BYTES)
        self.writes = 0  # write requests so far
        self.bytes_written = 0

    @property
    def is_gone(self) -> bool:
        """True if the folder has every file back, for reuse, or the file was removed."""
        return self._files.is_gone

    def append(self, owner: int, data: NDArray[np.uint8]) -> None:
        """Write a piece for ``owner``, in whole pages except for its last piece.

        Raises
        ------
        BudgetError, SpillError
            The spill folder has no room, its disk is full or fails.
        """
        pages = num_pages_of(len(data))
        bounce = self._bounce[: pages * PAGE_BYTES]
        bounce[: len(data)] = data
        bounce[len(data) :] = 0
        gathered = self._owners[owner]
        gathered.num_bytes += len(data)
        # Pages that do not fit into the group's last file go to a new file.
        while len(bounce):
            target, file = self._with_room(self._groups[owner])
            first = file.num_pages
            part = bounce[: (len(file.checksums) - first) * PAGE_BYTES]
            pages = len(part) // PAGE_BYTES
            checksum_pages(part, first, file.checksums[first : first + pages])
            doing = f"writing {self._label}"
            with spill_errors(file.path, doing, needed_bytes=len(part), os_io=self._folder.os_io):
                target.write_fully(part.data, first * PAGE_BYTES)
            file.num_pages += pages
            file.owners.add(owner)
            gathered.pieces.append((file, first, pages))
            self.writes += 1
            self.bytes_written += len(part)
            bounce = bounce[len(part) :]

    def complete(self) -> None:
        """Finish writing.

        Raises
        ------
        SpillError
            The device reports a late failure.
        """
        self._files.complete()
        self._writing.clear()
        self._bounce = aligned_bytes(0)

    def give_up(self, error: BaseException) -> None:
        """Remove all files because of ``error``, which gets a note if the removal fails too."""
        self._files.give_up(error)

    def read(self, owner: int, lane: ReadLane, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an owner's pieces as a flat array with ``dtype``; see `read_each`."""
        return self.read_each([owner], lane, dtype)[0]

    def read_each(self, owners: Sequence[int], lane: ReadLane, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
        """Return the pieces of each owner as a flat array with ``dtype``, every byte checked. Thread-safe.

        Parameters
        ----------
        owners : in 0..O-1; those that wrote one after another are read together
        lane : the threads or ring, with buffers, that read the files
        dtype : the collected words' dtype

        Raises
        ------
        ChecksumError
            The pieces were damaged or truncated; the message names the file and the byte.
        SpillError
            The device fails, or an owner was released.
        """
        # The lock is held during the read, so that `release` returns no file meanwhile. Readers take turns in the lane
        # anyway.
        with self._lock:
            for owner in owners:
                if not self._is_live[owner]:
                    raise SpillError(
                        errno.ENOENT, f"owner {owner} of {self._label} was released", str(self._folder.path)
                    )
            gathered = [self._owners[owner] for owner in owners]
            pieces = [
                (owner, *piece) for owner, each in zip(owners, gathered, strict=True) for piece in each.pieces
            ]
            content = aligned_bytes(sum(count for *_, count in pieces) * PAGE_BYTES)
            rows = content.reshape(-1, PAGE_BYTES)
            begin = number = 0  # the next row to fill, and the next piece
            while number < len(pieces):
                # Consecutive pieces in the same file are read together.
                owner, file, *_ = pieces[number]
                pages: list[IdArray] = []
                while number < len(pieces) and pieces[number][1] is file:
                    _, _, first, count = pieces[number]
                    if pages and first <= pages[-1][-1]:
                        break  # extents ascend
                    pages.append(np.arange(first, first + count))
                    number += 1
                wanted = np.concatenate(pages)
                self._read_pages(owner, file, lane, wanted, rows[begin : begin + len(wanted)])
                begin += len(wanted)
        found: list[NDArray[Any]] = []
        begin = 0
        for each in gathered:
            found.append(content[begin : begin + each.num_bytes].view(dtype))
            begin += sum(count for _, _, count in each.pieces) * PAGE_BYTES
        return found

    def release(self, owner: int) -> None:
        """Mark ``owner`` as done. A file's last owner returns the file. Idempotent. Thread-safe."""
        with self._lock:
            self._is_live[owner] = False
            for file in {id(piece[0]): piece[0] for piece in self._owners[owner].pieces}.values():
                file.owners.discard(owner)
                if not file.owners:
                    self._files.keep(file.path)
            self._owners[owner] = _Owner()

    def close(self) -> None:
        """Remove the unreleased files. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; the other files are removed.
        """
        with self._lock:
            self._is_live = [False] * len(self._is_live)
            self._files.close()

    def _with_room(self, group: int) -> tuple[SpillFile, _File]:
        """Return the group's last file, or a new file if it is full."""
        if group in self._writing and self._writing[group][1].num_pages < self._file_pages[group]:
            return self._writing[group]
        if group in self._writing:
            self._files.complete(self._writing.pop(group)[0])
        size = self._file_pages[group] * PAGE_BYTES
        path, is_new = self._files.reserve(size)
        target = self._files.create(path, size, is_new=is_new, needed_bytes=size)
        file = _File(path=path, checksums=np.empty(self._file_pages[group], np.uint64))
        self._writing[group] = target, file
        return self._writing[group]

    def _read_pages(
        self, owner: int, file: _File, lane: ReadLane, pages: IdArray, rows: NDArray[np.uint8]
    ) -> None:
        """Read ``pages`` (P,), ascending, of one file into ``rows`` (P, 4096), and check every byte."""
        extents = plan_extents(
            pages, row_bytes=PAGE_BYTES, data_offset=0, max_gap_bytes=0, max_extent_bytes=_EXTENT_BYTES
        )
        target = make_target(pages, _IN_ORDER, rows)
        with self._files.reading(file.path, self._label) as source:
            try:
                _, bad = lane.read(source, extents, target, data_offset=0, checksums=file.checksums)
            except TruncatedStoreError as error:
                needed = (int(pages[-1]) + 1) * PAGE_BYTES
                raise self._damage(
                    owner, file, f"it has {source.num_bytes} bytes, {needed} are needed"
                ) from error
        if bad >= 0:
            raise self._damage(
                owner, file, f"the page at byte {bad * PAGE_BYTES} does not match its checksum"
            )

    def _damage(self, owner: int, file: _File, what: str) -> ChecksumError:
        """Return the error for an owner's damaged file; ``what`` is the damage. Pure."""
        return ChecksumError(
            f"{self._label}, owner {owner} ({file.path}), is damaged: {what}; it was changed after it was written: "
            "check the disk and resume from the last checkpoint"
        )
