"""A topology that a conversion has just written, read back in stretches before it is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.npy_file import NpyFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCsc:
    """The in-neighbours of every destination, in two files that are whole.

    Raises
    ------
    SourceError
        From every method: a file is shorter than it was written, or the system refuses.
    """

    indptr: NpyFile  # (N + 1,)
    indices: NpyFile  # (E,)

    @classmethod
    def open(cls, indptr: Path, indices: Path) -> StoredCsc:
        """Open the files of an array of offsets, and of one of sources."""
        return cls(indptr=NpyFile.open(indptr), indices=NpyFile.open(indices))

    @property
    def num_nodes(self) -> int:
        """N, the destinations."""
        return self.indptr.size - 1

    def offsets(self, start: int, stop: int) -> IdArray:
        """Return the (stop - start + 1,) offsets that bound the lists of nodes ``start`` ... ``stop - 1``."""
        with self.indptr.reader(start=start) as reader:
            return np.ascontiguousarray(reader.take(stop - start + 1), np.int64)

    def sources(self, start: int, stop: int, max_edges: int) -> Iterator[NDArray[Any]]:
        """Yield the in-neighbours at positions ``start`` ... ``stop - 1``, at most ``max_edges`` at a time."""
        return self.indices.flat(max_edges, start=start, stop=stop)
