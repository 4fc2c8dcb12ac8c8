"""Files of which this disk has nothing but the size: their bytes come as they are asked for, like those of a mirror."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from arrived_rows import PlayedPages

from gloader.ssd_store.os_io import OsIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray


class FarIO(OsIO):
    """The real system calls on files whose bytes are far away. Zeros are all that a descriptor gives by itself.

    Parameters
    ----------
    paths : of the files, which are emptied
    at_once : extents that are here at a time
    """

    def __init__(self, *paths: Path, at_once: int = 3) -> None:
        self._content = {os.fspath(path): np.fromfile(path, np.uint8) for path in paths}
        self._at_once = at_once
        self.damaged: tuple[str, list[int]] | None = None  # path, and bytes of it that come changed
        self.answers = 0  # how often damaged bytes are brought anew, all of a file at a time
        self.refetched: list[int] = []  # pages' bytes that this was asked for
        self.num_portions = 0
        self.num_strays = 0  # reads without a descriptor
        self._here: list[tuple[str, int, int]] = []  # extents that are on this disk
        self.sources: list[PlayedPages] = []
        self.how: dict[str, Any] = {}  # of the sources that are made
        for path, content in self._content.items():
            self._put(path, 0, np.zeros_like(content))

    @property
    def num_here(self) -> int:
        """Extents that are on this disk."""
        return len(self._here)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """As `OsIO.pread_into`, of the bytes that are far away."""
        self.num_strays += fd < 0
        content = self._of(fd)
        if content is None:
            return super().pread_into(fd, buffer, offset)
        part = content[offset : offset + len(buffer)]
        buffer[: len(part)] = part.data
        return len(part)

    def portions(self, fd: int, offsets: IdArray, lengths: IdArray, /) -> Iterator[tuple[int, int]]:
        """Yield a few extents at a time; those before them are gone."""
        if self._of(fd) is None:
            yield from super().portions(fd, offsets, lengths)
            return
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - a link to an open file
        for first in range(0, len(offsets), self._at_once):
            past = min(first + self._at_once, len(offsets))
            content = self._of(fd)  # as it comes now
            assert content is not None
            spans = [
                (start, start + length)
                for start, length in zip(
                    offsets[first:past].tolist(), lengths[first:past].tolist(), strict=True
                )
            ]
            for start, end in spans:
                self._put(path, start, content[start:end])
            self._here = [(path, *span) for span in spans]
            try:
                yield first, past
            finally:
                for start, end in spans:
                    self._put(path, start, np.zeros(len(content[start:end]), np.uint8))
                self._here = []
            self.num_portions += 1

    def source(self, fd: int, pages: NDArray[np.uint64], data_offset: int, /) -> PlayedPages | None:
        """Return what plays the file from memory."""
        content = self._of(fd)
        if content is None:
            return super().source(fd, pages, data_offset)
        self.sources.append(PlayedPages(content[data_offset:], **self.how))
        return self.sources[-1]

    def _of(self, fd: int) -> NDArray[np.uint8] | None:
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - a link to an open file
        content = self._content.get(path)
        if content is not None and self.damaged is not None and self.damaged[0] == path:
            content = content.copy()
            content[self.damaged[1]] ^= 8
        return content

    def refetch(self, fd: int, offset: int, /) -> bool:
        """Bring what is damaged anew, as often as is allowed."""
        if self._of(fd) is None:
            return False
        self.refetched.append(offset)
        if self.answers == 0:
            return False
        self.answers -= 1
        self.damaged = None
        for path, start, end in self._here:
            self._put(path, start, self._content[path][start:end])
        return True

    @staticmethod
    def _put(path: str, offset: int, data: NDArray[np.uint8]) -> None:
        fd = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(fd, data.data, offset)
            os.fsync(fd)
        finally:
            os.close(fd)
