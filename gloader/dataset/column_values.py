"""Values of a table's columns in pyarrow's types: numbers, times, truth values and texts of categories.

The encoders of features (`gloader.dataset.encoders`) and the readers of labels and splits read columns through these
functions. A column of texts comes from a text file or from a typed file, and both give the same values. A missing value
is null or NaN. A value that cannot be read is refused with its file, row and column (`Place`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.malformed import shown
from gloader.errors import FeatureValueError, GloaderError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

# Text for a missing number in files from pandas, R and databases. For texts that are categories, only an empty field of
# a text file is missing.
MISSING_TEXTS: Final = frozenset(
    {"", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "?", "\\n", "."}
)
MICROSECONDS: Final = 1_000_000  # per second
DAY: Final = 86_400 * MICROSECONDS  # microseconds per day
# Whole numbers beyond it are no seconds: it is in the year 5138. Milliseconds since 1973 lie beyond it.
_MOST_SECONDS: Final = 10**11
_TRUE, _FALSE = ("true", "1"), ("false", "0")
# float() would also read 1_000, which no file means as a number.
_NUMBER: Final = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|infinity)", re.IGNORECASE)
_EXACT_FLOAT64: Final = 2**53  # whole numbers up to it are exact in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Consecutive rows of a column, for messages."""

    where: str  # the file or table
    column: str
    first: int = 0  # number of the first row
    error: type[GloaderError] = FeatureValueError  # the class of errors about a value

    def refused(self, row: int, seen: str, advice: str) -> GloaderError:
        """Return the error for the value ``seen`` at ``row`` of these rows. Pure."""
        return self.error(
            f"{self.where}: row {self.first + row}, column {shown(self.column)} is {seen}; {advice}"
        )

    def of_type(self, kind: pa.DataType, advice: str) -> GloaderError:
        """Return the error for a column of a type that is not accepted. Pure."""
        return self.error(f"{self.where}: column {shown(self.column)} has type {kind}; {advice}")


def plain_column(column: Any) -> Any:
    """Return a column as one array, with dictionaries decoded. Pure.

    Parameters
    ----------
    column : pyarrow's array or chunked array
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """True for pyarrow's types of texts. Pure."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """True for pyarrow's types of lists. Pure."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_real(kind: pa.DataType) -> bool:
    """True for pyarrow's types of real numbers, without bools. Pure."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers of consecutive rows."""

    values: NDArray[np.float64]  # (n, w), NaN where missing
    # (n, w): whole numbers beyond 2**53 that float32 does not hold. `values` may have a rounded number there
    is_inexact: NDArray[np.bool_]


def numbers(column: Any, *, width: int, place: Place) -> Numbers:
    """Return a column's numbers (n, ``width``): of numbers, bools and texts of numbers (width 1), or of lists. Pure.

    Raises
    ------
    ``place.error``
        The type is no number, or a text is no number.
    ShapeError
        A list has another length than ``width``.
    """
    import pyarrow as pa

    kind = column.type
    if is_list(kind):
        return _list_numbers(column, width, place)
    if width != 1:
        raise place.of_type(kind, f"lists of {width} numbers are expected")
    if is_text(kind):
        values = _text_numbers(column, place)
        return Numbers(values=values[:, None], is_inexact=_beyond_float64(column, values)[:, None])
    if pa.types.is_null(kind):
        values = np.full(len(column), np.nan)
    elif pa.types.is_boolean(kind) or is_real(kind):
        return _real_numbers(column)
    else:
        raise place.of_type(kind, "a column of numbers is expected")
    return Numbers(values=values[:, None], is_inexact=np.zeros((len(values), 1), np.bool_))


def _real_numbers(column: Any) -> Numbers:
    """Return the values (n, 1) of a column of integers, floats, decimals or bools."""
    import pyarrow as pa

    kind = column.type
    is_inexact = np.zeros(len(column), np.bool_)
    if pa.types.is_integer(kind):
        integers = column.fill_null(0).to_numpy(zero_copy_only=False)
        values = integers.astype(np.float64)
        if kind.bit_width == 64:
            magnitude = integers if integers.dtype.kind == "u" else np.abs(values)
            is_far = magnitude > _EXACT_FLOAT64
            is_inexact[is_far] = [not _is_exact(value) for value in integers[is_far].tolist()]
    else:
        plain = column.fill_null(pa.scalar(value=False)) if pa.types.is_boolean(kind) else column
        if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
            plain = column.cast(pa.float64())
        values = plain.to_numpy(zero_copy_only=False).astype(np.float64)
    if column.null_count:
        values = values.copy() if not values.flags.writeable else values
        values[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return Numbers(values=values[:, None], is_inexact=is_inexact[:, None])


def _list_numbers(column: Any, width: int, place: Place) -> Numbers:
    """Return the entries (n, ``width``) of a column of lists. All entries of a null list are missing."""
    if not is_real(column.type.value_type):
        raise place.of_type(column.type, "lists of numbers are expected")
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    lists = column.drop_null()
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(lengths != width)
    if wrong.size:
        row = int(np.flatnonzero(~is_null)[wrong[0]])
        raise ShapeError(
            f"{place.where}: row {place.first + row} has a list of {lengths[wrong[0]]} in column "
            f"{shown(place.column)}; every list must have {width} numbers, as the first one has. Pad the lists, or "
            "leave the column out"
        )
    flat = _real_numbers(lists.flatten())
    values, is_inexact = np.full((len(column), width), np.nan), np.zeros((len(column), width), np.bool_)
    values[~is_null] = flat.values.reshape(-1, width)
    is_inexact[~is_null] = flat.is_inexact.reshape(-1, width)
    return Numbers(values=values, is_inexact=is_inexact)


def _text_numbers(column: Any, place: Place) -> NDArray[np.float64]:
    """Return the numbers (n,) in texts, NaN for null and for `MISSING_TEXTS`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(column)
    try:
        # Only plain numbers are read at full speed; pyarrow refuses the texts of missing numbers.
        read = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        read = pa.array(
            [
                None if text is None or text.lower() in MISSING_TEXTS else _number(text, row, place)
                for row, text in enumerate(texts.to_pylist())
            ],
            pa.float64(),
        )
    values: NDArray[np.float64] = read.fill_null(np.nan).to_numpy(zero_copy_only=False)
    return values


def _number(text: str, row: int, place: Place) -> float:
    """Return the number in ``text``. Raises ``place.error`` for another text."""
    if _NUMBER.fullmatch(text) is None:
        raise place.refused(
            row,
            shown(text),
            "it is no number. Write a number there, leave it empty if it is missing, or take the column as texts: "
            "as: category (of labels as: classes)",
        )
    return float(text)


def _beyond_float64(column: Any, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask (n,) of texts with whole numbers beyond 2**53 that float32 does not hold."""
    is_inexact = np.zeros(len(values), np.bool_)
    for row in np.flatnonzero(np.isfinite(values) & (np.abs(values) > _EXACT_FLOAT64)):
        text = column[int(row)].as_py().strip()
        is_inexact[row] = text.lstrip("+-").isdecimal() and not _is_exact(int(text))
    return is_inexact


def _is_exact(value: int) -> bool:
    """True if float32 holds a whole number."""
    narrow = float(np.float32(value)) if abs(value) < 2**100 else np.inf
    return bool(np.isfinite(narrow)) and int(narrow) == value


def truths(column: Any, *, place: Place) -> NDArray[np.float64]:
    """Return 1, 0 or NaN (missing) (n,) for a column of bools, of the numbers 0 and 1, or of such texts. Pure.

    Raises ``place.error`` for another value.
    """
    import pyarrow.compute as pc

    if is_text(column.type):
        lowered: Any = pc.utf8_lower(pc.utf8_trim_whitespace(column))
        read = lowered.dictionary_encode()
        known = dict.fromkeys(_TRUE, 1.0) | dict.fromkeys(_FALSE, 0.0) | dict.fromkeys(MISSING_TEXTS, np.nan)
        # The last entry is for null, whose index becomes -1.
        of_text = np.array([*(known.get(text, -1.0) for text in read.dictionary.to_pylist()), np.nan])
        values = of_text[read.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    else:
        values = numbers(column, width=1, place=place).values[:, 0]
    wrong = np.flatnonzero(~(np.isnan(values) | (values == 0) | (values == 1)))
    if wrong.size:
        value = column[int(wrong[0])].as_py()
        raise place.refused(int(wrong[0]), shown(value), "it must be true or false, or 1 or 0")
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Times of consecutive rows."""

    values: NDArray[np.int64]  # (n,) microseconds since 1970 in UTC, 0 where missing
    is_missing: NDArray[np.bool_]  # (n,)


def times(column: Any, *, place: Place) -> Times:
    """Return a column's times: timestamps, dates, texts in ISO 8601, or numbers of seconds since 1970. Pure.

    A time without a zone is in UTC. Digits below a microsecond are cut off.

    Raises ``place.error`` for another type or text, or a number that is not a number of seconds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if is_text(kind):
        return _text_times(column, place)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        try:
            read = column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None)), safe=False)
            # The cast may cut digits below a microsecond. The way back shows a coarser time that does not fit.
            if getattr(kind, "unit", "d") not in {"us", "ns"} and not read.cast(kind).equals(column):
                raise place.of_type(kind, "a time is out of the range of microseconds")
        except pa.ArrowInvalid as failure:
            raise place.of_type(kind, f"a time cannot be read: {failure}") from failure
        values = pc.fill_null(read.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        return Times(values=values, is_missing=column.is_null().to_numpy(zero_copy_only=False))
    if not is_real(kind):
        raise place.of_type(
            kind, "times are timestamps, dates, texts such as 2024-01-31 12:30:00, or seconds"
        )
    return _seconds(numbers(column, width=1, place=place).values[:, 0], place)


def _seconds(seconds: NDArray[np.float64], place: Place) -> Times:
    """Return times from numbers of seconds (n,), NaN where missing."""
    is_missing = np.isnan(seconds)
    wrong = np.flatnonzero(~is_missing & ~(np.abs(seconds) <= _MOST_SECONDS))
    if wrong.size:
        raise place.refused(
            int(wrong[0]),
            f"{seconds[wrong[0]]:.17g}",
            f"numbers of times are seconds since 1970, at most {_MOST_SECONDS:.0e}: divide milliseconds by 1000",
        )
    values = np.floor(np.where(is_missing, 0, seconds) * MICROSECONDS + 0.5).astype(np.int64)
    return Times(values=values, is_missing=is_missing)


def _text_times(column: Any, place: Place) -> Times:
    """Return the times in texts: ISO 8601, with or without a zone, or numbers of seconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts: Any = pc.utf8_trim_whitespace(column)
    missing: Any = (
        texts.is_null()
        if not len(texts)
        else pc.is_in(pc.utf8_lower(pc.fill_null(texts, "")), value_set=pa.array(sorted(MISSING_TEXTS)))
    )
    is_missing = missing.to_numpy(zero_copy_only=False)
    values = np.zeros(len(texts), np.int64)
    is_number: Any = pc.match_substring_regex(pc.fill_null(texts, ""), r"^[+-]?\d+(\.\d*)?$")
    is_number = is_number.to_numpy(zero_copy_only=False) & ~is_missing
    if is_number.any():
        seconds = numbers(texts.filter(pa.array(is_number)), width=1, place=place).values[:, 0]
        padded = np.full(len(texts), np.nan)
        padded[is_number] = seconds
        values[is_number] = _seconds(padded, place).values[is_number]
    # Digits below a microsecond are cut off, since the cast refuses them.
    dates: Any = pc.replace_substring_regex(pc.fill_null(texts, ""), r"(\.\d{6})\d+", r"\1")
    has_zone: Any = pc.match_substring_regex(dates, r"\d(Z|[+-]\d\d(:?\d\d)?)$").to_numpy(
        zero_copy_only=False
    )
    # The day of a date such as 2024-01-31 looks like a zone.
    has_zone &= pc.match_substring_regex(dates, r"\d:\d").to_numpy(zero_copy_only=False)
    is_date = ~is_number & ~is_missing
    for zone, chosen in ((None, is_date & ~has_zone), ("UTC", is_date & has_zone)):
        if chosen.any():
            kind = pa.timestamp("us", tz=zone)
            values[chosen] = _cast_dates(dates, np.flatnonzero(chosen), kind, column, place)
    return Times(values=values, is_missing=is_missing)


def _cast_dates(
    dates: Any, rows: NDArray[np.int64], kind: pa.DataType, column: Any, place: Place
) -> NDArray[np.int64]:
    """Return the dates in ``rows`` as microseconds; texts of ``column`` stand in the message about a wrong one."""
    import pyarrow as pa

    chosen: Any = dates.take(pa.array(rows))
    try:
        values: NDArray[np.int64] = chosen.cast(kind).cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        for row, text in zip(rows.tolist(), chosen, strict=True):
            try:
                text.cast(kind)
            except pa.ArrowInvalid:
                raise place.refused(
                    row,
                    shown(column[row].as_py()),
                    "times are texts such as 2024-01-31 or 2024-01-31T12:30:00Z, or whole seconds",
                ) from None
        raise
    return values


def texts(column: Any, *, place: Place) -> Any:
    """Return a column's values as texts, null where missing: the values of categories. Pure.

    Texts stay as they are. Integers and whole floats become their digits, and dates texts such as "2024-01-31", so that
    a text file and a typed file of one table have equal texts.

    Raises ``place.error`` for another type, and for a float with a fraction.
    """
    import pyarrow as pa

    kind = column.type
    if is_text(kind):
        return column.cast(pa.string())
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        values = numbers(column, width=1, place=place).values[:, 0]
        wrong = np.flatnonzero(
            ~np.isnan(values) & (np.floor(values) != values) | (np.abs(values) > _EXACT_FLOAT64)
        )
        if wrong.size:
            raise place.refused(
                int(wrong[0]),
                f"{values[wrong[0]]:.17g}",
                "categories are texts or whole numbers: take numbers with as: number, standard or quantile",
            )
        is_missing = np.isnan(values)
        whole = np.where(is_missing, 0, values).astype(np.int64)
        return pa.array(whole, mask=is_missing).cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    raise place.of_type(kind, "categories are texts, whole numbers or dates")


def in_order(values: Iterable[str]) -> list[str]:
    """Return category values in order: by number if all are numbers, else by code points. Pure."""
    given = list(values)
    if all(_NUMBER.fullmatch(value) is not None for value in given):
        return sorted(given, key=lambda value: (float(value), value))
    return sorted(given)
