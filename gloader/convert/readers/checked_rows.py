"""The conversion of feature values and edge weights to floats, with a check of each value.

`CheckedRows` wraps a source's feature stream, and checks the rows while the conversion reads them. `to_weights`
converts edge weights. NaN, infinity and integers that float32 would round are refused, unless the user accepts them.
The check also records the values' range (`ValueRange`) for the receipt, the record of the data that a conversion found
and used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.malformed import shown
from gloader.core.rounding import FLOAT32_BITS, as_float32, is_rounded, of_rounding
from gloader.errors import FeatureValueError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.source import FeatureStream

# Bytes per block of a check. A block that is read twice is still in the processor's cache.
_BLOCK_BYTES: Final = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRange:
    """The range of a matrix's values, and its numbers of NaN and infinite values."""

    low: float = np.inf  # smallest finite value, or infinity without any
    high: float = -np.inf  # largest finite value, or minus infinity without any
    num_nan: int = 0
    num_infinite: int = 0

    @classmethod
    def of(cls, values: NDArray[Any]) -> ValueRange:
        """Return the range of values (n, F), with n and F at least 1. Pure."""
        low, high = _extremes(values)
        if np.isfinite(low) and np.isfinite(high):
            return cls(low=low, high=high)
        is_finite, num_nan = np.isfinite(values), int(np.count_nonzero(np.isnan(values)))
        return cls(
            low=float(values.min(where=is_finite, initial=np.inf)),
            high=float(values.max(where=is_finite, initial=-np.inf)),
            num_nan=num_nan,
            num_infinite=values.size - num_nan - int(np.count_nonzero(is_finite)),
        )

    def with_range(self, other: ValueRange) -> ValueRange:
        """Return the range of both matrices together. Pure."""
        return ValueRange(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            num_nan=self.num_nan + other.num_nan,
            num_infinite=self.num_infinite + other.num_infinite,
        )


class CheckedRows:
    """Checks feature rows and converts them to floats. NaN, infinity and integers that would be rounded are refused.

    Parameters
    ----------
    features : the source's features (N, F) with any real dtype
    where : the file or source, for messages
    stored_as : the requested dtype, which may round. None refuses integers that float32 would round
    flag : the dtype option, "--dtype" or "--edge-dtype", for messages
    allow_nan : count NaN and infinity instead of refusing them
    """

    def __init__(
        self, features: FeatureStream, *, where: str, stored_as: str | None, flag: str, allow_nan: bool
    ) -> None:
        # Readers of tables refuse rounding themselves. If the user accepts it, ``rounded`` has the same rows without
        # this refusal.
        may_round = stored_as is not None and features.rounded is not None
        self.features = features.rounded if may_round and features.rounded else features
        self.seen: ValueRange | None = None  # the range of all values; None before all rows were read once
        self._where = where
        self._stored_as = stored_as
        self._flag = flag
        self._allow_nan = allow_nan

    def stream(self) -> FeatureStream:
        """Return the rows, which are checked while they are read.

        The stream keeps the source's ``dtype``, for the memory plan. The chunks are floats.
        """
        return replace(self.features, chunks=self.chunks)

    def chunks(self, max_rows: int) -> Iterator[NDArray[Any]]:
        """Yield (n, F) floats of consecutive rows, n <= ``max_rows``.

        Raises
        ------
        FeatureValueError
            A value is NaN or infinite, or an integer that float32 would round. The message names row and column.
        """
        seen, first = ValueRange(), 0
        for chunk in self.features.chunks(max_rows):
            # Only the first pass checks the rows.
            if self.seen is None and chunk.size:
                seen = self._checked(seen, chunk, first)
            first += len(chunk)
            yield chunk if chunk.dtype.kind == "f" else chunk.astype(np.float32)
        self.seen = self.seen or seen

    def _checked(self, seen: ValueRange, chunk: NDArray[Any], first: int) -> ValueRange:
        """Check a chunk block by block, and return the range ``seen`` extended by the chunk's range.

        ``first`` is the number of the chunk's first row.
        """
        step = max(1, _BLOCK_BYTES // max(1, chunk[0].nbytes))
        for start in range(0, len(chunk), step):
            block = chunk[start : start + step]
            block_range = ValueRange.of(block)
            seen = seen.with_range(block_range)
            if not self._allow_nan and block_range.num_nan + block_range.num_infinite:
                self._refuse(
                    block,
                    ~np.isfinite(block),
                    first + start,
                    "clean them, or let such values in: --allow-nan, in Python allow_nan=True, or replace them: "
                    "--missing mean, in Python missing='mean'",
                )
            if self._stored_as is None and chunk.dtype != np.float32 and _may_be_rounded(block, block_range):
                option = f"{self._flag} float32, in Python {self._flag[2:].replace('-', '_')}='float32'"
                self._refuse(block, is_rounded(block), first + start, option=option)
        return seen

    def _refuse(
        self, rows: NDArray[Any], is_bad: NDArray[np.bool_], first: int, cure: str = "", *, option: str = ""
    ) -> None:
        """Raise FeatureValueError for the first bad value, if any.

        Parameters
        ----------
        rows, is_bad : (n, F) values, and a mask of the bad ones
        first : number of the first row
        cure, option : the remedy for the message: a text, or the dtype option that accepts the rounding
        """
        if is_bad.any():
            row, column = np.unravel_index(int(is_bad.argmax()), is_bad.shape)
            name = shown(self.features.names[column]) if self.features.names else column
            place = f"{self._where}: row {first + row}, column {name} is {rows[row, column]}"
            raise FeatureValueError(
                f"{place}; {cure}" if cure else place + of_rounding(rows[row, column], option)
            )


def to_weights(values: NDArray[Any], *, first: int, where: str) -> NDArray[np.float32]:
    """Return edge weights (n,) as float32. Pure.

    Raises SourceError for an integer that would be rounded, and for a float that would become 0 or infinite.

    Parameters
    ----------
    values : (n,) real numbers
    first : the first edge's number, for messages
    where : the file or array, for messages
    """
    weights = as_float32(values)
    # float32 holds every value of these dtypes.
    if values.dtype.itemsize < 4 or values.dtype == np.float32:
        return weights
    if values.dtype.kind in "iu":
        is_bad, cure = (
            is_rounded(values),
            "divide all weights by one number, or save them as floats if they need ",
        )
        cure += "not be exact"
    else:
        is_bad = ((weights == 0) & (values != 0)) | (np.isinf(weights) & np.isfinite(values))
        cure = "multiply all weights by one number"
    if is_bad.any():
        edge = int(is_bad.argmax())
        raise SourceError(
            f"{where}: edge {first + edge} has weight {values[edge]}, which float32 would round to "
            f"{weights[edge]:.9g}; {cure}"
        )
    return weights


def _may_be_rounded(values: NDArray[Any], seen: ValueRange) -> bool:
    """True if any of the numbers may be rounded. This is cheaper than `is_rounded`. Pure."""
    if max(-seen.low, seen.high) > 1 << FLOAT32_BITS:
        return True
    # The range does not show float64 numbers that would become 0.
    return values.dtype == np.float64 and bool(
        np.count_nonzero(as_float32(values)) < np.count_nonzero(values)
    )


def _extremes(values: NDArray[Any]) -> tuple[float, float]:
    """Return the smallest and the largest value in (n, F). They may be NaN or infinite. Pure."""
    if values.dtype != np.float16:
        return float(values.min()), float(values.max())
    # numpy is slow with float16, so its bits are compared as integers. For positive numbers, larger bits mean a larger
    # number. For negative numbers, the bits are negative as int16, and larger bits mean a smaller number.
    signed, bits = values.view(np.int16), values.view(np.uint16)
    high, low = signed.max(), bits.max()
    has_positive, has_negative = high >= 0, low >= 1 << 15
    # The smallest positive number without negative ones, or the largest negative number without positive ones.
    least = signed.min()
    ends = np.array([low if has_negative else least, high if has_positive else least]).astype(np.uint16)
    return tuple(ends.view(np.float16).astype(np.float64).tolist())
