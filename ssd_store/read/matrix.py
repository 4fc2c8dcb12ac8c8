"""What a lane of its own needs to know to read an open store beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.device_file import Direct
    from gloader.ssd_store.read.engine import IoMode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredMatrix:
    """The matrix behind a `FeatureStore`: its file, its shape and how it is to be read. Shares its arrays."""

    path: Path
    identity: tuple[int, int]  # device and inode of the file that the store has open
    num_rows: int  # N
    dim: int  # F
    row_bytes: int  # R
    dtype: np.dtype[Any]  # uint16 for bfloat16
    is_bfloat16: bool
    scale: NDArray[np.float32] | None  # (N,) of int8 rows
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify
    gap_bytes: int
    io: IoMode
    direct: Direct
    os_io: OsIO

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows together."""
        return self.num_rows * self.row_bytes
