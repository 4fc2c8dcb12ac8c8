"""Encoders: the fixed rules that turn a table's columns into feature rows, and their JSON form in a dataset.

`gloader prepare` fits an encoder for each column to the training rows, and stores the encoders in the commit record.
`Encoders.encode` then gives new rows of the same table the features that the preparation would have given them, bit for
bit. An encoder is a frozen value: it holds the mean, the quantiles or the categories that it was fitted to.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from gloader.core.malformed import shown
from gloader.core.near_names import nearest
from gloader.core.records import Records
from gloader.core.rounding import is_rounded, of_rounding
from gloader.dataset.column_values import DAY, Place, numbers, plain_column, texts, times, truths
from gloader.errors import FeatureValueError, FormatError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

# The features that a column becomes. number: its values. standard: (x - mean) / standard deviation. quantile: the share
# of training rows below x, or the normal score of that share. bool: 0 and 1. vector: the numbers of a list. time: age
# in days. category: one column of 0 and 1 for each value. index: the number of the value.
EncoderKind: TypeAlias = Literal[
    "number", "standard", "quantile", "bool", "vector", "time", "category", "index"
]
# The rule for a missing value. error: it is refused. zero: the feature is 0. mean: the feature is the mean of the
# training rows. flag: the mean, and one more feature that is 1. keep: NaN and infinity stay (--allow-nan).
Missing: TypeAlias = Literal["error", "zero", "mean", "flag", "keep"]
Score: TypeAlias = Literal["normal", "uniform"]

KINDS: Final[tuple[str, ...]] = get_args(EncoderKind)
CATEGORIES: Final = frozenset({"category", "index"})
METADATA_KEY: Final = "encoders"  # the entry in a dataset's commit record
_OTHER: Final = "other"  # the column of the values that are not among the most frequent ones
_FLAG: Final = "missing"
_UNSEEN: Final = -1  # the code of a value that no training row has
# Normal scores end where the share is 1e-7 away from 0 and 1, as in scikit-learn's QuantileTransformer.
_LEAST_SHARE: Final = 1e-7
# The advice on a missing value that no setting fills.
MISSING_CURE: Final = (
    "write a value there, or say what stands for it with missing: zero, mean or flag (--missing)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEncoder:
    """The rule that turns one column into features.

    The fields from ``mean`` on belong to some kinds only, and have their default for the others.
    """

    column: str
    kind: EncoderKind
    missing: Missing = "error"
    has_flag: bool = False  # True if the last feature is 1 for rows with a missing value
    width: int = 1  # numbers in a row of the column; above 1 for lists
    # (width,) mean over training rows, in the unit of the column; of times in days
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()  # (width,) standard deviation over training rows, 1 where it is 0
    quantiles: tuple[float, ...] = ()  # (q,) quantiles of training rows at 0, 1/(q-1), ..., 1
    score: Score = "normal"  # what quantiles become
    at: int = 0  # for times: the microseconds since 1970 to which the age is counted
    values: tuple[str, ...] = ()  # (c,) the categories, in the order of their columns
    has_other: bool = False  # True if a column is 1 for all values that are not categories

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features, such as ``city=Paris``."""
        return (*self._value_names(), *([f"{self.column}={_FLAG}"] if self.has_flag else []))

    def _value_names(self) -> list[str]:
        """Return the names of the features without the flag of missing values."""
        if self.kind == "category":
            others = [f"{self.column}={_OTHER}"] if self.has_other else []
            return [f"{self.column}={value}" for value in self.values] + others
        if self.kind == "index":
            return [f"{self.column}[index]"]
        return (
            [self.column] if self.width == 1 else [f"{self.column}[{entry}]" for entry in range(self.width)]
        )

    @property
    def dim(self) -> int:
        """Number of features."""
        num_values = len(self.values) + self.has_other if self.kind == "category" else self.width
        return num_values + self.has_flag

    @property
    def digest(self) -> str:
        """The digest of the values in their order, for a network that learns a row for each."""
        return hashlib.blake2b(json.dumps(self.values).encode(), digest_size=8).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Bytes of the numbers and texts that the encoder holds, roughly."""
        return 8 * (2 * self.width + len(self.quantiles)) + sum(64 + len(value) for value in self.values)

    def encode(self, column: Any, *, where: str, first: int, may_round: bool) -> NDArray[np.float32]:
        """Return the features (n, dim) of consecutive values. Pure.

        Parameters
        ----------
        column : pyarrow's array or chunked array
        where, first : the table, and the number of the first row, for messages
        may_round : round whole numbers that float32 does not hold instead of an error

        Raises
        ------
        FeatureValueError
            A value is missing and must not be, is no number or time, or does not fit float32.
        ShapeError
            A list has another length.
        """
        place = Place(where=where, column=self.column, first=first)
        plain = plain_column(column)
        if self.kind in CATEGORIES:
            rows, is_missing = self._category_rows(plain, place)
        else:
            rows, is_missing = self._number_rows(plain, place, may_round=may_round)
        if not self.has_flag:
            # Rows with a missing value would look like others.
            if self.missing == "flag" and is_missing.any():
                raise place.refused(
                    int(is_missing.argmax()),
                    "missing",
                    "no row had a missing value when the dataset was prepared, so there is no flag for it",
                )
            return rows
        return np.column_stack([rows, is_missing.astype(np.float32)])

    def codes(self, column: Any, *, place: Place) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return each value's number among the categories (n,), or -1, and a mask of missing values. Pure."""
        import pyarrow as pa
        import pyarrow.compute as pc

        read = texts(plain_column(column), place=place)
        is_missing: NDArray[np.bool_] = read.is_null().to_numpy(zero_copy_only=False)
        found = pc.index_in(read, value_set=pa.array(self.values, pa.string()))
        codes: NDArray[np.int64] = found.fill_null(_UNSEEN).to_numpy(zero_copy_only=False).astype(np.int64)
        codes[is_missing] = _UNSEEN
        return codes, is_missing

    def _category_rows(self, column: Any, place: Place) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the features (n, c) or (n, 1) of categories, and a mask of missing values."""
        codes, is_missing = self.codes(column, place=place)
        if self.missing in {"error", "keep"} and is_missing.any():
            raise place.refused(int(is_missing.argmax()), "missing", MISSING_CURE)
        if self.kind == "index":
            return codes.astype(np.float32)[:, None], is_missing
        rows = np.zeros((len(codes), len(self.values) + self.has_other), np.float32)
        known = np.flatnonzero(codes >= 0)
        rows[known, codes[known]] = 1
        if self.has_other:
            rows[(codes < 0) & ~is_missing, -1] = 1
        return rows, is_missing

    def numbers(self, column: Any, *, place: Place, may_round: bool = True) -> NDArray[np.float64]:
        """Return a column's numbers (n, width), NaN where missing, in the unit of ``mean``. Pure.

        Raises
        ------
        FeatureValueError
            A value is no number, bool or time. Or, unless ``may_round``, it is a whole number that float32 would round.
        """
        if self.kind == "time":
            read = times(column, place=place)
            return np.where(read.is_missing, np.nan, (self.at - read.values) / DAY)[:, None]
        if self.kind == "bool":
            return truths(column, place=place)[:, None]
        found = numbers(column, width=self.width, place=place)
        # Scaled numbers are floats in any case. Numbers that stay as they are may be ids, which must not be rounded.
        if not may_round and self.kind in {"number", "vector"}:
            is_bad = found.is_inexact | (np.isfinite(found.values) & is_rounded(found.values))
            if is_bad.any():
                row, entry = np.unravel_index(int(is_bad.argmax()), is_bad.shape)
                value = found.values[row, entry]
                seen = int(value) if abs(value) >= 1 else value
                option = "--dtype float32 (of edges --edge-dtype), in Python dtype='float32'"
                raise FeatureValueError(
                    f"{place.where}: row {place.first + int(row)}, column {shown(place.column)} is {seen}"
                    + of_rounding(value, option)
                )
        return found.values

    def _number_rows(
        self, column: Any, place: Place, *, may_round: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return the features (n, width) of numbers, and a mask (n,) of rows with a missing value."""
        values = self.numbers(column, place=place, may_round=may_round)
        is_bad: NDArray[np.bool_] = np.zeros(values.shape, np.bool_)
        if self.missing != "keep":
            is_bad = ~np.isfinite(values)
        if is_bad.any():
            if self.missing == "error":
                self.require_all(values, place=place)
            values = np.where(is_bad, np.array(self.mean or [0.0]), values)
        rows = self._scaled(values)
        if self.missing == "zero":
            rows[is_bad] = 0
        with np.errstate(over="ignore", under="ignore"):
            narrow = rows.astype(np.float32)
        is_beyond = np.isinf(narrow) & np.isfinite(rows)
        if is_beyond.any():
            row, entry = np.unravel_index(int(is_beyond.argmax()), is_beyond.shape)
            raise place.refused(
                int(row), f"{values[row, entry]:.9g}", "it is beyond float32: scale the column, as: standard"
            )
        return narrow, np.any(is_bad, axis=1)

    def require_all(self, values: NDArray[np.float64], *, place: Place) -> None:
        """Raise FeatureValueError for the first missing or infinite number in ``values`` (n, width), if any. Pure."""
        is_bad = ~np.isfinite(values)
        if not is_bad.any():
            return
        row, entry = np.unravel_index(int(is_bad.argmax()), is_bad.shape)
        value = values[row, entry]
        seen = "missing" if np.isnan(value) else f"{value}"
        entry_text = f" (entry {entry} of its list)" if self.width > 1 else ""
        raise place.refused(int(row), seen + entry_text, MISSING_CURE)

    def _scaled(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features (n, width) of numbers without missing ones, before they are rounded to float32."""
        if self.kind == "standard":
            scaled: NDArray[np.float64] = (values - np.array(self.mean)) / np.array(self.deviation)
            return scaled
        if self.kind != "quantile":
            return values.copy()
        shares = shares_below(values[:, 0], np.array(self.quantiles))
        return (shares if self.score == "uniform" else normal_scores(shares))[:, None]

    def to_json(self) -> dict[str, Any]:
        """Return the encoder as JSON values, without the fields that have their default. Pure."""
        defaults = {each.name: each.default for each in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != defaults[name]
        }


def shares_below(values: NDArray[np.float64], quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of training rows below each value (n,), from quantiles (q,) in rising order. Pure.

    Values that equal several quantiles get the middle of their shares. Values up to the smallest quantile get 0, others
    from the largest one on get 1. This is the uniform score of scikit-learn's QuantileTransformer.
    """
    references = np.linspace(0, 1, len(quantiles))
    rising = np.interp(values, quantiles, references)
    falling = np.interp(-values, -quantiles[::-1], -references[::-1])
    shares: NDArray[np.float64] = 0.5 * (rising - falling)
    shares[values >= quantiles[-1]] = 1
    shares[values <= quantiles[0]] = 0
    return shares


# The coefficients of algorithm AS241, from the highest power: Wichura, "The percentage points of the normal
# distribution", Applied Statistics 37 (1988), for a share p near the middle, in the tails and far out.
_CENTRE: Final = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
        1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
        5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL: Final = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
        1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
        4.63033784615654529590e0, 1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
        1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
        2.05319162663775882187e0, 1.0,
    ),
)  # fmt: skip
# The share at which the centre ends, as a distance from 1/2, and the constants that shift the two arguments.
_CENTRE_ENDS: Final = 0.425
_CENTRE_SHIFT: Final = 0.180625
_TAIL_SHIFT: Final = 1.6


def normal_scores(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the number below which a normal variable lies with each probability in ``shares`` (n,). Pure.

    Shares below 1e-7 and above 1 - 1e-7 count as these, so that scores lie within 5.2. They are accurate to 1e-15.
    """
    p = np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE)
    q = p - 0.5
    r = _CENTRE_SHIFT - q * q
    centre = q * np.polyval(_CENTRE[0], r) / np.polyval(_CENTRE[1], r)
    # A third range of AS241 begins below 1.4e-11, which the limit above does not reach.
    r = np.sqrt(-np.log(np.minimum(p, 1 - p))) - _TAIL_SHIFT
    tail = np.copysign(np.polyval(_TAIL[0], r) / np.polyval(_TAIL[1], r), q)
    return np.where(np.abs(q) <= _CENTRE_ENDS, centre, tail)


_RECORDS: Final = Records()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """The encoders of a table's columns, in the order of their features."""

    columns: tuple[ColumnEncoder, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """(F,) the names of the features."""
        return tuple(name for each in self.columns for name in each.names)

    @property
    def dim(self) -> int:
        """F, the number of features."""
        return sum(each.dim for each in self.columns)

    @property
    def indexes(self) -> dict[int, ColumnEncoder]:
        """The encoders of the features with codes (``as: index``), by the number of the feature, in ascending order."""
        found, done = {}, 0
        for each in self.columns:
            if each.kind == "index":
                found[done] = each
            done += each.dim
        return found

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the columns that are read, each once."""
        return tuple(dict.fromkeys(each.column for each in self.columns))

    def encode(
        self, batch: Any, *, where: str = "the rows", first: int = 0, may_round: bool = False
    ) -> NDArray[np.float32]:
        """Return the features (n, F) of a table's rows, with the bits that the preparation gives them. Pure.

        Parameters
        ----------
        batch : pyarrow's record batch or table, with at least the columns of ``inputs``
        where, first : the table, and the number of the first row, for messages
        may_round : round whole numbers that float32 does not hold instead of an error, as --dtype float32 does

        Raises
        ------
        ShapeError
            A column is not there, or a list has another length.
        FeatureValueError
            A value is missing and must not be, is no number or time, or does not fit float32.
        """
        there = self._require_columns(batch, where)
        rows = np.empty((batch.num_rows, self.dim), np.float32)
        done = 0
        for each in self.columns:
            column = batch.column(there.index(each.column))
            rows[:, done : done + each.dim] = each.encode(
                column, where=where, first=first, may_round=may_round
            )
            done += each.dim
        return rows

    def num_unseen(self, batch: Any, *, where: str = "the rows", first: int = 0) -> dict[str, int]:
        """Return the number of rows with a value that no training row has, by column of categories. Pure.

        Such values have the feature 0 in all columns of their categories, or in ``other``; as an index they are -1.
        Parameters and errors are those of `encode`.
        """
        there = self._require_columns(batch, where)
        counts = {}
        for each in self.columns:
            if each.kind in CATEGORIES:
                place = Place(where=where, column=each.column, first=first)
                codes, is_missing = each.codes(batch.column(there.index(each.column)), place=place)
                counts[each.column] = int(np.count_nonzero((codes < 0) & ~is_missing))
        return counts

    def _require_columns(self, batch: Any, where: str) -> list[str]:
        """Return the columns of ``batch``. Raises ShapeError if one of ``inputs`` is not there."""
        there = list(batch.schema.names)
        for name in self.inputs:
            if name not in there:
                near = nearest(name, there)
                raise ShapeError(
                    f"{where} lack the column {shown(name)}; "
                    + (f"did you mean {near!r}?" if near else f"they have {', '.join(there) or 'none'}")
                )
        return there

    def to_json(self) -> list[dict[str, Any]]:
        """Return the encoders as JSON values. Pure."""
        return [each.to_json() for each in self.columns]

    @classmethod
    def from_json(cls, document: object) -> Encoders:
        """Return the encoders with the JSON form ``document``. Pure.

        Raises
        ------
        ValueError
            The form is malformed. The message is the end of a sentence, such as "field 'kind' is missing".
        """
        if type(document) is not list:
            raise ValueError(f"is {shown(document)}, not a list")
        encoders = tuple(_RECORDS.read(ColumnEncoder, each) for each in document)
        for each in encoders:
            _check(each)
        return cls(columns=encoders)

    @property
    def num_json_bytes(self) -> int:
        """Bytes of the JSON form."""
        return len(json.dumps(self.to_json(), ensure_ascii=True))


def _check(encoder: ColumnEncoder) -> None:
    """Raise ValueError if an encoder's fields do not fit each other."""
    needs_mean = encoder.kind == "standard" or encoder.missing in {"mean", "flag"}
    wanted = {
        "mean": encoder.width if needs_mean and encoder.kind not in CATEGORIES else len(encoder.mean),
        "deviation": encoder.width if encoder.kind == "standard" else len(encoder.deviation),
    }
    for name, length in wanted.items():
        if len(getattr(encoder, name)) != length:
            raise ValueError(f"field {name!r} of {shown(encoder.column)} does not have {length} numbers")
    if encoder.width < 1 or (encoder.kind == "quantile" and (not encoder.quantiles or encoder.width != 1)):
        raise ValueError(f"field 'quantiles' or 'width' of {shown(encoder.column)} does not fit its kind")


def recorded_encoders(metadata: Mapping[str, Any], name: str, *, where: str) -> Encoders | None:
    """Return the encoders of a node type or relation in a commit record, or None if its features come from no columns.

    Parameters
    ----------
    metadata : the commit record's metadata
    name : the type, or the relation as "source:name:destination"
    where : the dataset, for messages

    Raises
    ------
    FormatError
        The entry is malformed.
    """
    entry = metadata.get(METADATA_KEY)
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise FormatError(f"{where}: {METADATA_KEY!r} is {shown(entry)}, not encoders by type")
    try:
        return Encoders.from_json(entry[name]) if name in entry else None
    except ValueError as error:
        raise FormatError(f"{where}: {METADATA_KEY!r} of {name!r} {error}") from error
