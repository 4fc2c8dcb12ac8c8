"""An embedding table: a folder with the trainable rows of one node type, read and appended to by one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from gloader.ssd_store.embedding.initial_rows import InitialRows
    from gloader.types import IdArray, ReadStats

BUFFER_BYTES = 64 * 2**20


class EmbeddingTable:
    """An embedding table. Thread-safe: reads beside appends beside a merge."""

    num_rows: int
    width: int
    initial: InitialRows
    facts: Mapping[str, Any]
    num_steps: int
    bytes_read: int
    bytes_written: int

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        num_rows: int,
        initial: InitialRows,
        facts: Mapping[str, Any],
        buffer_bytes: int = BUFFER_BYTES,
        os_io: OsIO = REAL_OS,
    ) -> Self:
        """Create a table in the folder ``folder``, which does not exist or is empty."""
        raise NotImplementedError

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        record: str | None = None,
        is_read_only: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
        os_io: OsIO = REAL_OS,
    ) -> Self:
        """Open the rows of the record ``record``, or of the newest record."""
        raise NotImplementedError

    def read_into(self, ids: IdArray, out: NDArray[np.float32], *, at: IdArray | None = None) -> ReadStats:
        """Read the newest version of each row: ``ids`` (M,) ascending, distinct, into ``out`` (M, width)."""
        raise NotImplementedError

    def append(self, ids: IdArray, rows: NDArray[np.float32]) -> None:
        """Append ``rows`` (M, width), the newest versions of ``ids`` (M,), distinct, in any order."""
        raise NotImplementedError

    def commit(self, record: str, *, num_steps: int, facts: Mapping[str, Any]) -> None:
        """Make all appended rows durable under the name ``record``."""
        raise NotImplementedError

    def forget(self, record: str) -> None:
        """Remove the record ``record`` and the files that only it names."""
        raise NotImplementedError

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first id and the rows (n, width) of all rows, in id order."""
        raise NotImplementedError

    def close(self) -> None:
        """Join the merging thread and release everything; rows since the last commit are lost. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
