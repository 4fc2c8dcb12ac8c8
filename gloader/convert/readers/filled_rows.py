"""Feature rows with a value in place of each missing one.

`FilledRows` wraps a source's feature stream. NaN and infinity count as missing. They become 0, or the mean of the
column over the training rows, or this mean beside a column that is 1 in such rows. The means are measured in a pass of
their own when the first missing value is met. For flags it is made at once, because their number must be known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.moments import Moments
from gloader.core.malformed import shown
from gloader.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.options import Fill
    from gloader.convert.source import FeatureStream

# Bytes of a chunk in the pass for means. Its float64 copies take a few times as much.
_PASS_BYTES: Final = 1 << 20
_MOST_SHOWN: Final = 6  # columns that the receipt names


class FilledRows:
    """Fills the missing values of feature rows while they are read.

    Parameters
    ----------
    features : the source's features (N, F)
    missing : what stands for a missing value
    is_train : (N,) mask of the rows that the means are taken from, or None for all rows
    where : the file or source, for messages
    """

    def __init__(
        self, features: FeatureStream, *, missing: Fill, is_train: NDArray[np.bool_] | None, where: str
    ) -> None:
        self._features = features
        self._missing = missing
        self._is_train = is_train
        self._where = where
        # Missing values (F,) of all rows, and the moments of the training rows; None before the pass for them.
        self._gaps: tuple[NDArray[np.int64], Moments] | None = None
        self._counted: tuple[NDArray[np.int64], int] | None = None  # missing by column, and infinite ones

    def stream(self) -> FeatureStream:
        """Return the rows without missing values. With flags, the columns that have missing values get one each.

        Raises SourceError if a mean is needed and no training row has a value, and whatever reading the rows raises.
        """
        given = self._features
        if given.dtype.kind != "f":
            return given
        flags = self._flags()
        names = given.names or (tuple(map(str, range(given.dim))) if flags.size else ())
        filled = replace(
            given,
            chunks=lambda max_rows: self._filled(given, max_rows, flags),
            dim=given.dim + len(flags),
            names=(*names, *(f"{names[column]}=missing" for column in flags.tolist())),
        )
        rounded = given.rounded
        if rounded is None:
            return filled
        return replace(
            filled,
            rounded=replace(
                filled, chunks=lambda max_rows: self._filled(rounded, max_rows, flags), rounded=None
            ),
        )

    def text(self) -> str:
        """Return the receipt's text on the missing values after a full pass, empty if there are none."""
        if self._counted is None:
            return ""
        by_column, num_infinite = self._counted
        columns = np.flatnonzero(by_column)
        if not columns.size:
            return ""
        names = self._features.names
        some = [names[each] if names else str(each) for each in columns[:_MOST_SHOWN].tolist()]
        more = f" and {len(columns) - _MOST_SHOWN:,} more" if len(columns) > _MOST_SHOWN else ""
        infinite = f", {num_infinite:,} of them infinite" if num_infinite else ""
        becomes = {"flag": "the mean and a flag"}.get(self._missing, self._missing)
        noun = f"column{'s' * (len(columns) != 1)}"
        return f"{by_column.sum():,} -> {becomes}, in {noun} {', '.join(some)}{more}{infinite}"

    def _flags(self) -> NDArray[np.int64]:
        """Return the columns that get a flag."""
        if self._missing != "flag":
            return np.empty(0, np.int64)
        return np.flatnonzero(self._measured()[0])

    def _filled(
        self, features: FeatureStream, max_rows: int, flags: NDArray[np.int64]
    ) -> Iterator[NDArray[Any]]:
        """Yield the rows of ``features`` in chunks of at most ``max_rows`` rows, filled."""
        by_column, num_infinite = np.zeros(features.dim, np.int64), 0
        # A filled chunk is a copy, and a chunk with flags is one more.
        for chunk in features.chunks(max(1, max_rows // (3 if flags.size else 2))):
            is_missing = ~np.isfinite(chunk)
            filled = chunk
            if is_missing.any():
                by_column += np.count_nonzero(is_missing, axis=0)
                num_infinite += int(np.count_nonzero(np.isinf(chunk)))
                filled = np.where(is_missing, self._values(chunk.dtype, is_missing), chunk)
            yield (
                np.column_stack([filled, is_missing[:, flags].astype(chunk.dtype)]) if flags.size else filled
            )
        self._counted = by_column, num_infinite

    def _values(self, dtype: np.dtype[Any], is_missing: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the value (F,) for each column's missing ones."""
        if self._missing == "zero":
            return np.zeros(is_missing.shape[1], dtype)
        _, moments = self._measured()
        lacking = np.flatnonzero(is_missing.any(axis=0) & (moments.count == 0))
        if lacking.size:
            names = self._features.names
            column = shown(names[lacking[0]]) if names else lacking[0]
            raise SourceError(
                f"{self._where}: column {column} has no value in any training row, so that it has no mean: leave the "
                "column out, or fill it with --missing zero, in Python missing='zero'"
            )
        return moments.mean.astype(dtype)

    def _measured(self) -> tuple[NDArray[np.int64], Moments]:
        """Return the numbers of missing values (F,), and the training rows' moments. The first call reads all rows."""
        if self._gaps is not None:
            return self._gaps
        # Rows that float32 would round are refused elsewhere, if at all.
        features = self._features.rounded or self._features
        moments, num_missing = Moments.of_width(features.dim), np.zeros(features.dim, np.int64)
        first = 0
        for chunk in features.chunks(max(1, _PASS_BYTES // max(1, features.dim * features.dtype.itemsize))):
            num_missing += np.count_nonzero(~np.isfinite(chunk), axis=0)
            is_train = None if self._is_train is None else self._is_train[first : first + len(chunk)]
            moments.add((chunk if is_train is None else chunk[is_train]).astype(np.float64))
            first += len(chunk)
        self._gaps = num_missing, moments
        return self._gaps
