"""A matrix of features of a dataset: of the nodes of a type, or of the edges of a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.ssd_store import FeatureStore

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
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
        """Return all rows (N, F) as float32, in memory; raises as `open_features`."""
        rows = np.empty((self.num_rows, self.feature_dim), dtype=np.float32)
        with self.open_features() as store:
            # In pieces, so that the ids of a request stay small beside the rows.
            for start in range(0, len(rows), _CHUNK_ROWS):
                part = rows[start : start + _CHUNK_ROWS]
                store.read_into(np.arange(start, start + len(part)), part)
        return rows
