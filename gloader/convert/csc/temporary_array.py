"""Arrays without a header in temporary files: appended to in pieces, read back in pieces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryArray:
    """An array in a file that exists from the first ``append`` to ``remove()``."""

    path: Path
    dtype: np.dtype[Any]

    def append(self, chunk: NDArray[Any], /) -> None:
        """Write the next elements; raises as `append_bytes`."""
        append_bytes(self.path, np.ascontiguousarray(chunk, self.dtype))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements ``start`` ... ``stop - 1``; raises as `read_bytes`."""
        array = np.empty(stop - start, self.dtype)
        # The file of an empty array was never made.
        if stop > start:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start * self.dtype.itemsize)
                read_bytes(file.fileno(), array.view(np.uint8).data, self.path)
        return array

    def pieces(self, num_elements: int, max_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the first ``num_elements`` in order, at most ``max_elements`` at a time."""
        for start in range(0, num_elements, max_elements):
            yield self.read(start, min(num_elements, start + max_elements))

    def remove(self) -> None:
        """Remove the file. Idempotent."""
        self.path.unlink(missing_ok=True)


def append_bytes(path: Path, array: NDArray[Any]) -> None:
    """Append the bytes of a contiguous ``array`` to the file at ``path``.

    Raises
    ------
    StoreWriteError
        The disk refuses.
    """
    try:
        with path.open("ab", buffering=0) as file:
            left = array.view(np.uint8).data
            # A write may take less than it was given, on a full disk above all.
            while left:
                left = left[file.write(left) or 0 :]
    except OSError as error:
        raise StoreWriteError(
            error.errno, f"writing {array.nbytes} bytes of temporary data to {path} failed: {error.strerror}"
        ) from error


def read_bytes(descriptor: int, buffer: memoryview, path: Path) -> None:
    """Fill ``buffer`` from an open temporary file.

    Parameters
    ----------
    descriptor : of the file, at the position to read from
    buffer : writable bytes; all of them are filled
    path : the file, for the message

    Raises
    ------
    StoreWriteError
        The file ends early.
    """
    done = 0
    # A read may return less than was asked for, and 0 means the end of the file.
    while done < len(buffer):
        count = os.readv(descriptor, [buffer[done:]])
        if count == 0:
            raise StoreWriteError(f"temporary file {path} became shorter while it was read")
        done += count
