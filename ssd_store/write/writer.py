"""The writer of a stand-alone feature store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store.format.manifest import STORE_MANIFEST
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath
from gloader.ssd_store.write.cast import FEATURE_DTYPES
from gloader.ssd_store.write.new_directory import NewDirectory

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import DTypeLike, NDArray

    from gloader.ssd_store.write.feature_column import FeatureColumnWriter

FEATURES: Final = "features"
FEATURE_STORE: Final = "feature_store"


class FeatureWriter:
    """Creates a stand-alone feature store at ``path``; commits at the clean end of its ``with`` block.

    An exception in the block, of any kind, leaves nothing behind and propagates unchanged.

    Parameters
    ----------
    path : the directory to create
    num_rows : N
    dim : F
    dtype : as stored: float32, float16, bfloat16 or int8, as text or as numpy's
    overwrite : replace a store or dataset at ``path``, atomically, at the commit
    check_finite : refuse NaN and infinity (int8 always does)

    Raises
    ------
    ConfigError
        Features cannot be stored in this dtype.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        num_rows: int,
        dim: int,
        dtype: DTypeLike | str,
        overwrite: bool = False,
        check_finite: bool = False,
        os_io: OsIO = REAL_OS,
    ) -> None:
        self._shape = (int(num_rows), int(dim))
        self._dtype = feature_dtype_name(dtype)
        self._check_finite = check_finite
        self._directory = NewDirectory(path, manifest_name=STORE_MANIFEST, overwrite=overwrite, os_io=os_io)
        self._column: FeatureColumnWriter | None = None

    def __enter__(self) -> Self:
        """Take the path and check the space.

        Raises
        ------
        StoreExistsError, StoreLockedError, StoreWriteError
            As `NewDirectory`.
        ShapeError
            The dimension is not positive.
        """
        self._directory.__enter__()
        try:
            num_rows, dim = self._shape
            self._column = self._directory.features(
                FEATURES, num_rows=num_rows, dim=dim, dtype=self._dtype, check_finite=self._check_finite
            )
        except BaseException as error:
            self._directory.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A failed block commits nothing: half the rows would look like all of them.
        if error is not None:
            self._directory.__exit__(kind, error, trace)
            return
        try:
            self._directory.commit(FEATURE_STORE, {})
        except BaseException as failure:
            self._directory.__exit__(type(failure), failure, failure.__traceback__)
            raise

    def append(self, chunk: NDArray[Any]) -> None:
        """Append the rows ``chunk`` (n, F); see `FeatureColumnWriter.append`."""
        if self._column is None:
            raise ShapeError("the writer is not open; use `with FeatureStore.writer(...) as writer:`")
        self._column.append(chunk)


def feature_dtype_name(dtype: DTypeLike | str) -> str:
    """Return the format's name of a feature dtype, given as text or as a numpy dtype. Pure.

    Raises
    ------
    ConfigError
        Features cannot be stored in it.
    """
    try:
        name = dtype if isinstance(dtype, str) and dtype in FEATURE_DTYPES else np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in FEATURE_DTYPES:
        raise ConfigError(f"features cannot be stored as {name!r}; allowed: {', '.join(FEATURE_DTYPES)}")
    return name
