"""Statistics of columns over the training rows, gathered block by block, and the encoders that they give.

`fit_of` returns the *fit* of a column. Its `add` takes the column's values, block after block, with a mask of the
training rows. Then its `encoder` returns the column's encoder, and its `note` the receipt's line. Means, quantiles and
categories come from the training rows alone. The other rows are only counted: a missing value in any row decides
whether the column gets a flag. Sums depend on the blocks in their last bits. So a caller cuts the rows into blocks of
one size, whatever batches the file has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.columns.moments import Moments, Sample
from gloader.convert.columns.specs import (
    MAX_CATEGORIES,
    MAX_INDEX,
    MOST_CATEGORIES,
    MOST_INDEX,
    microseconds_text,
)
from gloader.core.malformed import shown
from gloader.core.units import format_bytes
from gloader.dataset.column_values import DAY, Place, in_order, plain_column, texts
from gloader.dataset.column_values import times as times_of
from gloader.dataset.encoders import CATEGORIES, MISSING_CURE, ColumnEncoder
from gloader.errors import BudgetError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.convert.columns.specs import ColumnSpec
    from gloader.dataset.encoders import EncoderKind, Missing

# Most values that are counted for one column, if the memory allows.
MOST_COUNTED: Final = 500_000
# Most bytes of the texts of an encoder's categories, which are stored in the commit record of at most 16 MiB.
_MOST_STORED_BYTES: Final = 4 << 20
# Bytes that a counted value takes besides its text: the text's header, its counts and its place in the dictionary.
COUNTED_BYTES: Final = 300
# Most training rows whose values are held for quantiles; a sample of so many has quantiles within 0.05 % of a share.
_MOST_SAMPLED: Final = 1 << 22
_SAMPLE_BYTES: Final = 32  # per held value: itself, in one array, and two copies while it is sorted
_LONG_VALUE: Final = 40  # characters of a category in a note
_EARLIEST, _LATEST = -(2**63), 2**63 - 1  # the range of times, in microseconds since 1970


@dataclass(slots=True, kw_only=True)
class NumberFit:
    """The fit of a column of numbers: number, standard, quantile, bool or vector."""

    spec: ColumnSpec
    kind: EncoderKind
    missing: Missing
    width: int
    sample: Sample
    moments: Moments
    num_train: int = 0
    low: float = np.inf
    high: float = -np.inf
    num_missing: int = 0  # rows with a missing value
    num_infinite: int = 0

    def add(self, column: Any, is_train: NDArray[np.bool_], *, place: Place) -> None:
        """Add a block: pyarrow's array (n,), and a mask (n,) of the training rows.

        Raises FeatureValueError or ShapeError for a value that the encoder would refuse.
        """
        reader = ColumnEncoder(column=self.spec.name, kind=self.kind, width=self.width)
        values = reader.numbers(plain_column(column), place=place)
        if self.missing == "error":
            reader.require_all(values, place=place)
        is_finite = np.isfinite(values)
        self.num_missing += int(np.count_nonzero(~is_finite.all(axis=1)))
        self.num_infinite += int(np.count_nonzero(np.isinf(values)))
        self.low = min(self.low, float(values.min(initial=np.inf, where=is_finite)))
        self.high = max(self.high, float(values.max(initial=-np.inf, where=is_finite)))
        self.moments.add(values[is_train])
        self.num_train += int(np.count_nonzero(is_train))
        if self.kind == "quantile":
            rows = place.first + np.flatnonzero(is_train)
            self.sample.add(values[is_train, 0], rows)

    def encoder(self, where: str) -> ColumnEncoder:
        """Return the fitted encoder. Raises SourceError if it needs values, and no training row has one.

        ``where`` is the table, for messages.
        """
        fills = self.missing in {"mean", "flag"}
        if self.kind in {"standard", "quantile"} or (fills and self.num_missing):
            _require_values(where, self.spec, int(self.moments.count.min()))
        return ColumnEncoder(
            column=self.spec.name,
            kind=self.kind,
            missing=self.missing,
            has_flag=self.missing == "flag" and self.num_missing > 0,
            width=self.width,
            mean=_floats(self.moments.mean) if fills or self.kind == "standard" else (),
            deviation=_floats(self.moments.deviation()) if self.kind == "standard" else (),
            quantiles=_floats(self.sample.quantiles()) if self.kind == "quantile" else (),
            score=self.spec.score,
        )

    def note(self, encoder: ColumnEncoder) -> str:
        """Return the text on the column for the receipt."""
        span = f"{self.low:g} to {self.high:g}" if self.low <= self.high else "no values"
        kind = f"{self.width} numbers" if self.kind == "vector" else self.kind
        texts = [f"{kind}, {span}"]
        if self.kind == "quantile":
            origin = "all" if self.sample.is_whole else f"a sample of {len(self.sample.held[0]):,}"
            texts.append(
                f"{self.spec.score} scores by {len(encoder.quantiles)} quantiles of {origin} training rows"
            )
        texts += _missing_texts(self.missing, self.num_missing, self.num_infinite)
        return ", ".join(texts)


@dataclass(slots=True, kw_only=True)
class TimeFit:
    """The fit of a column of times."""

    spec: ColumnSpec
    missing: Missing
    # In microseconds since 1970: the latest time of a training row, and the earliest and the latest of all rows.
    latest: int = _EARLIEST
    low: int = _LATEST
    high: int = _EARLIEST
    num_missing: int = 0
    moments: Moments = field(default_factory=lambda: Moments.of_width(1))

    def add(self, column: Any, is_train: NDArray[np.bool_], *, place: Place) -> None:
        """Add a block; see `NumberFit.add`."""
        read = times_of(plain_column(column), place=place)
        if self.missing == "error" and read.is_missing.any():
            raise place.refused(int(read.is_missing.argmax()), "missing", MISSING_CURE)
        self.num_missing += int(np.count_nonzero(read.is_missing))
        known, train = read.values[~read.is_missing], read.values[~read.is_missing & is_train]
        self.low = int(known.min(initial=self.low))
        self.high = int(known.max(initial=self.high))
        self.latest = int(train.max(initial=self.latest))
        self.moments.add(train[:, None].astype(np.float64))

    def encoder(self, where: str) -> ColumnEncoder:
        """Return the fitted encoder. Raises as `NumberFit.encoder`."""
        fills = self.missing in {"mean", "flag"}
        if self.spec.at is None or (fills and self.num_missing):
            _require_values(where, self.spec, int(self.moments.count[0]))
        at = self.latest if self.spec.at is None else self.spec.at
        return ColumnEncoder(
            column=self.spec.name,
            kind="time",
            missing=self.missing,
            has_flag=self.missing == "flag" and self.num_missing > 0,
            mean=((at - float(self.moments.mean[0])) / DAY,) if fills else (),
            at=at,
        )

    def note(self, encoder: ColumnEncoder) -> str:
        """Return the text on the column for the receipt."""
        span = "no values"
        if self.low <= self.high:
            span = f"{microseconds_text(self.low)} to {microseconds_text(self.high)}"
        texts = [f"time, {span}, in days before {microseconds_text(encoder.at)}"]
        if self.spec.at is None:
            texts[0] += " (the latest training row)"
        return ", ".join(texts + _missing_texts(self.missing, self.num_missing, 0))


@dataclass(slots=True, kw_only=True)
class CategoryFit:
    """The fit of a column of categories: one-hot columns or an index."""

    spec: ColumnSpec
    kind: EncoderKind
    missing: Missing
    budget_bytes: int  # memory for the counts
    counts: dict[str, int] = field(default_factory=dict)  # training rows by value
    others: dict[str, int] = field(default_factory=dict)  # other rows by value, as far as they are counted
    held_bytes: int = 0  # memory that the counts take
    counts_others: bool = True  # False once the values of other rows are too many to count
    num_missing: int = 0

    def add(self, column: Any, is_train: NDArray[np.bool_], *, place: Place) -> None:
        """Add a block; see `NumberFit.add`.

        Raises SourceError for too many values, and BudgetError if their counts take too much memory.
        """
        import pyarrow as pa

        read = texts(plain_column(column), place=place)
        is_missing = read.is_null().to_numpy(zero_copy_only=False)
        if is_missing.any() and self.missing in {"error", "keep"}:
            raise place.refused(int(is_missing.argmax()), "missing", MISSING_CURE)
        self.num_missing += int(np.count_nonzero(is_missing))
        self._count(self.counts, read.filter(pa.array(is_train & ~is_missing)))
        if self._is_full(len(self.counts)):
            if len(self.counts) > self._limit:
                raise self._too_many(place.where, is_exact=False)
            raise BudgetError(
                f"{place.where}: counting the values of column {shown(self.spec.name)} takes more than "
                f"{format_bytes(self.budget_bytes)} of the memory budget: {len(self.counts):,} values so far. Raise "
                "--memory-budget, or leave the column out",
                short_bytes=1,
            )
        if self.counts_others:
            self._count(self.others, read.filter(pa.array(~is_train & ~is_missing)))
            if self._is_full(len(self.others)):
                self.counts_others = False
                self.held_bytes -= sum(COUNTED_BYTES + len(value) for value in self.others)
                self.others.clear()

    def _is_full(self, count: int) -> bool:
        """True if no more values can be counted."""
        return count > MOST_COUNTED or self.held_bytes > self.budget_bytes

    def _count(self, counts: dict[str, int], values: Any) -> None:
        """Add the number of each of the ``values`` to ``counts``."""
        found = values.value_counts()
        for value, count in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
            if value not in counts:
                self.held_bytes += COUNTED_BYTES + len(value)
            counts[value] = counts.get(value, 0) + count

    @property
    def _limit(self) -> int:
        """The largest number of values of the training rows."""
        if self.spec.top is not None:
            return MOST_COUNTED
        return self.spec.max_values or (MAX_INDEX if self.kind == "index" else MAX_CATEGORIES)

    def _too_many(self, where: str, *, is_exact: bool) -> SourceError:
        """Return the error for more values than allowed."""
        name, count = self.spec.name, len(self.counts)
        seen = f"{count:,}" if is_exact else f"more than {count - 1:,}"
        texts = []
        if self.kind == "category" and self.spec.top is None:
            if is_exact and count <= MOST_CATEGORIES:
                texts.append(f"as: category, max: {count} takes them all")
            texts.append(
                f"top: {MAX_CATEGORIES - 1} takes the most frequent ones and one column for the others"
            )
        if is_exact and count <= MAX_INDEX and self.kind == "category":
            texts.append("as: index takes their numbers, for an embedding")
        elif is_exact and count <= MOST_INDEX:
            texts.append(f"as: index, max: {count} takes their numbers, for an embedding")
        texts.append("a column with a value for almost every row belongs to no features: leave it out")
        return SourceError(
            f"{where}: column {shown(name)} has {seen} different values in the training rows; as: {self.kind} allows "
            f"{self._limit:,}. In {{name: {name}, ...}}: {'; '.join(texts)}"
        )

    def _values(self) -> list[str]:
        """Return the categories in order."""
        if self.spec.top is None or self.spec.top >= len(self.counts):
            return in_order(self.counts)
        # Of equally frequent values, the first in order is taken.
        ranked = sorted(in_order(self.counts), key=lambda value: -self.counts[value])
        return in_order(ranked[: self.spec.top])

    def encoder(self, where: str) -> ColumnEncoder:
        """Return the fitted encoder.

        Raises SourceError for too many values, for texts too long for the commit record, or if no training row has a
        value. ``where`` is the table, for messages.
        """
        if len(self.counts) > self._limit:
            raise self._too_many(where, is_exact=True)
        values = self._values()
        size = sum(len(value.encode()) for value in values)
        if size > _MOST_STORED_BYTES:
            raise SourceError(
                f"{where}: the values of column {shown(self.spec.name)} have {format_bytes(size)} of text, and "
                f"{format_bytes(_MOST_STORED_BYTES)} fit into a dataset's record: shorten them, or leave the column out"
            )
        _require_values(where, self.spec, len(values))
        return ColumnEncoder(
            column=self.spec.name,
            kind=self.kind,
            missing=self.missing,
            has_flag=self.missing == "flag" and self.num_missing > 0,
            values=tuple(values),
            has_other=self.spec.top is not None,
        )

    def note(self, encoder: ColumnEncoder) -> str:
        """Return the text on the column for the receipt."""
        count, values = len(self.counts), set(encoder.values)
        taken = f"the {len(values):,} most frequent of {count:,}" if encoder.has_other else f"{count:,}"
        texts = [
            f"{self.kind} of {taken} value{'s' * (count != 1)} -> {encoder.dim:,} column{'s' * (encoder.dim != 1)}"
        ]
        unseen = sum(number for value, number in self.others.items() if value not in self.counts)
        if not self.counts_others:
            texts.append("values that no training row has are not counted")
        elif unseen:
            first = next(value for value in self.others if value not in self.counts)
            cut = first if len(first) <= _LONG_VALUE else f"{first[:_LONG_VALUE]}..."
            texts.append(
                f"{unseen:,} row{'s' * (unseen != 1)} with a value that no training row has, such as {cut!r}"
            )
        return ", ".join(texts + _missing_texts(self.missing, self.num_missing, 0))


def fit_of(
    spec: ColumnSpec, *, missing: Missing, width: int, num_train: int, budget_bytes: int
) -> NumberFit | TimeFit | CategoryFit:
    """Return an empty fit for a column with a kind. Pure.

    Parameters
    ----------
    spec : the column
    missing : the rule for missing values, if the column has none of its own
    width : numbers in a row of the column
    num_train : number of training rows
    budget_bytes : memory for the column's counts or its sample
    """
    kind = spec.kind or "number"
    chosen: Missing = spec.missing or missing
    if kind == "time":
        return TimeFit(spec=spec, missing=chosen)
    if kind in CATEGORIES:
        # Categories have no mean: "mean" for all columns means no category for them.
        chosen = "zero" if chosen == "mean" else chosen
        return CategoryFit(spec=spec, kind=kind, missing=chosen, budget_bytes=budget_bytes)
    return NumberFit(
        spec=spec,
        kind=kind,
        missing=chosen,
        width=width,
        sample=Sample(limit=max(1, min(_MOST_SAMPLED, budget_bytes // _SAMPLE_BYTES)), num_rows=num_train),
        moments=Moments.of_width(width),
    )


def _require_values(where: str, spec: ColumnSpec, count: int) -> None:
    """Raise SourceError if no training row has a value."""
    if not count:
        raise SourceError(
            f"{where}: column {shown(spec.name)} has no value in any training row, so there is no mean, scale or "
            "category to take from them: leave the column out"
        )


def _missing_texts(missing: Missing, num_missing: int, num_infinite: int) -> list[str]:
    """Return the texts on missing values for a note."""
    if not num_missing:
        return []
    noun = f"value{'s' * (num_infinite != 1)}"
    infinite = f", {num_infinite:,} infinite {noun} among them" if num_infinite else ""
    becomes = {"keep": "are kept", "flag": "-> the mean and a flag"}.get(missing, f"-> {missing}")
    return [f"{num_missing:,} row{'s' * (num_missing != 1)} missing {becomes}{infinite}"]


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    """Return numbers as Python floats, which JSON keeps exactly."""
    return tuple(map(float, values))
