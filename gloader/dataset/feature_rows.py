"""A matrix of features of a dataset: of the nodes of a type, or of the edges of a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.format import DATA_OFFSET, PAGE_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
    from gloader.core.row_ranges import HeldRows
    from gloader.dataset.table_arrays import TableArrays

_CHUNK_ROWS: Final = 1 << 16


class FeatureRows:
    """What a loader needs of a matrix of features. Thread-safe; reads only; holds no file open. Made by its table.

    Parameters
    ----------
    name : of the node type, or of the relation, as "a:writes:b"; "edges" of the relation of a homogeneous dataset
    number : of the type; of relation k, behind T types: T + k
    arrays : of the table
    column : plain name of the matrix, which is there
    """

    def __init__(self, name: str, number: int, arrays: TableArrays, column: str) -> None:
        self.name = name
        self.number = number
        self._arrays = arrays
        self._record = arrays.records[column]

    @property
    def num_rows(self) -> int:
        """Nodes of the type, or edges of the relation: row i is that of the edge at position i of its indices."""
        return self._record.shape[0]

    @property
    def feature_dim(self) -> int:
        """F."""
        return self._record.shape[1]

    @property
    def feature_dtype(self) -> str:
        """The dtype as stored: float32, float16, bfloat16 or int8."""
        return self._record.dtype

    @property
    def feature_bytes(self) -> int:
        """Bytes of all rows as stored."""
        return self._record.num_bytes

    @property
    def features_path(self) -> Path:
        """The file of the rows."""
        return self._arrays.root / self._record.file

    @property
    def held(self) -> HeldRows | None:
        """The rows that are here; None: all of them."""
        return self._arrays.manifest.held_rows(self._record.name)

    @property
    def held_span(self) -> tuple[int, int]:
        """The first byte of the file that rows here take, and the byte behind the last, in whole pages."""
        pages = (0, self._record.num_pages)
        if self.held is not None:
            pages = self.held.span(self._record.row_bytes, PAGE_BYTES)
        return DATA_OFFSET + pages[0] * PAGE_BYTES, DATA_OFFSET + pages[1] * PAGE_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows that are here."""
        held = self.held
        return self.feature_bytes if held is None else (held.past - held.first) * self._record.row_bytes

    def open_features(self, *, io: IoMode = "auto", verify: Verify = "read", **settings: Any) -> FeatureStore:
        """Open the rows for reading in any order; see `FeatureStore.open` for the settings.

        Raises
        ------
        StoreOpenError
            Another dataset took the place of this one, or the file cannot be opened.
        ConfigError, ChecksumError, FormatError, StoreReadError
            As `FeatureStore.open`.
        """
        return FeatureStore.open(
            self._arrays.root,
            column=self._record.name,
            manifest=self._arrays.manifest,
            io=io,
            verify=verify,
            os_io=self._arrays.os_io,
            **settings,
        )

    def all_rows(self) -> NDArray[np.float32]:
        """Return all rows (N, F) as float32, in memory.

        Raises
        ------
        RowNotHereError
            Other machines have some of them.
        StoreOpenError, ConfigError, ChecksumError, FormatError, StoreReadError
            As `open_features`.
        """
        with self.open_features() as store:
            store.require_here(0, self.num_rows)
            rows = np.empty((self.num_rows, self.feature_dim), dtype=np.float32)
            # In pieces, so that the ids of a request stay small beside the rows.
            for start in range(0, len(rows), _CHUNK_ROWS):
                part = rows[start : start + _CHUNK_ROWS]
                store.read_into(np.arange(start, start + len(part)), part)
        return rows
