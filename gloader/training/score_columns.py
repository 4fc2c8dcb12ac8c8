"""Columns of scores and labels: the input of the metrics in `gloader.training.scores`.

`columns_of` makes a `ScoreColumn` for each of k labels. A column gives its sorted scores, the counts of its decisions,
and the sums of its errors, and refuses a score that is NaN or a label that cannot be. A label is *unknown* if it is
NaN, or a negative whole number; a *known* row has a known label. A *decision* is the prediction of label 1, made for a
score above a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gloader.errors import DivergedError, ScoreError, ShapeError
from gloader.training.score_kernels import count_decisions, error_sums, split_by_label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[Any]


_PIECE: Final = 1 << 16  # rows that are searched at once; a known label is most often among the first
_DIVERGED: Final = (
    "features are NaN, or the network diverged; clean them (gloader prepare refuses them without --allow-nan), or "
    "train with a lower --lr"
)


@dataclass(frozen=True, slots=True)
class ScoreColumn:
    """Scores and labels of one column."""

    scores: Numbers  # (n, k) float32 or float64, C-contiguous
    labels: Numbers  # (n, k) int64, float32 or float64, C-contiguous
    column: int
    words: str  # the labels of the column, for errors

    @property
    def _is_signed(self) -> bool:
        """Return whether negative labels are unknown."""
        return self.labels.dtype.kind == "i"

    def sorted_scores(self) -> tuple[Numbers, Numbers]:
        """Return the known scores with label 1, and those with label 0, both ascending.

        Raises
        ------
        ScoreError
            A label is neither 0 nor 1 nor unknown.
        DivergedError
            A known row's score is NaN.
        """
        out = np.empty(len(self.scores), self.scores.dtype)
        num_ones, num_zeros, bad = split_by_label(self.scores, self.labels, self.column, self._is_signed, out)
        self._refuse(bad)
        ones, zeros = out[:num_ones], out[len(out) - num_zeros :]
        ones.sort()
        zeros.sort()
        return ones, zeros

    def decisions(self, threshold: float) -> NDArray[np.int64]:
        """Return the number of known rows by label and decision, (2, 2).

        Raises : see `sorted_scores`
        """
        counts = np.zeros((2, 2), np.int64)
        self._refuse(
            count_decisions(self.scores, self.labels, self.column, self._is_signed, threshold, counts)
        )
        return counts

    def error_sums(self, *, with_variation: bool) -> tuple[float, float, float, float]:
        """Return the number of known rows, and over them the sums of the absolute and of the squared errors.

        The fourth number is the sum of the squared deviations of the labels from their mean. It is 0 if all known
        labels are equal, and without ``with_variation``.

        Raises
        ------
        ScoreError
            A label is infinite.
        DivergedError
            A known row's predicted value is NaN or infinite.
        """
        # The deviations from one of the labels are exactly 0 if all are equal. Those from the mean lose no digits.
        center = self._first_known() if with_variation else None
        sums = self._sums(center)
        if center is not None and sums[4] > 0:
            sums = self._sums(center + sums[3] / sums[0])
        return sums[0], sums[1], sums[2], sums[4]

    def _first_known(self) -> float | None:
        """Return the first known label; None without one."""
        for start in range(0, len(self.labels), _PIECE):
            piece = self.labels[start : start + _PIECE, self.column]
            known = piece[~np.isnan(piece)]
            if len(known):
                return float(known[0])
        return None

    def _sums(self, center: float | None) -> list[float]:
        """Return the five sums of the kernel `error_sums`; the last two are 0 without a ``center``.

        Raises : see `error_sums`
        """
        sums = np.zeros((5, 2))
        bad = error_sums(self.scores, self.labels, self.column, center or 0.0, center is not None, sums)
        if bad >= 0:
            label, value = float(self.labels[bad, self.column]), float(self.scores[bad, self.column])
            if np.isinf(label):
                raise ScoreError(
                    f"row {bad} of the {self.words} is {label}; a label is a finite number, or NaN if unknown"
                )
            raise DivergedError(
                f"the value predicted for row {bad} of the {self.words} is {value}: {_DIVERGED}"
            )
        total: list[float] = sums.sum(axis=1).tolist()
        return total

    def _refuse(self, bad: int) -> None:
        """Raise an error for row ``bad``, whose label is neither 0 nor 1 or whose score is NaN; -1 is no row."""
        if bad < 0:
            return
        label, score = self.labels[bad, self.column], self.scores[bad, self.column]
        if np.isnan(score):
            raise DivergedError(f"the score of row {bad} of the {self.words} is NaN: {_DIVERGED}")
        unknown = "-1" if self._is_signed else "NaN"
        raise ScoreError(
            f"row {bad} of the {self.words} is {label:g}; a label is 0, 1, or {unknown} if unknown"
        )


def columns_of(outputs: Numbers, labels: Numbers, names: Sequence[str] | None) -> Iterator[ScoreColumn]:
    """Yield the columns of outputs and labels.

    Parameters
    ----------
    outputs, labels : (n,) or (n, k), floats and any numbers
    names : names of the k columns, for errors

    Raises
    ------
    ShapeError
        The shapes or dtypes do not fit.
    """
    if outputs.dtype.kind != "f" or labels.dtype.kind not in "fiub":
        raise ShapeError(
            f"the outputs are {outputs.dtype} and the labels {labels.dtype}; outputs are float32 or float64, "
            "labels floats or whole numbers"
        )
    width = 1 if labels.ndim == 1 else labels.shape[-1]
    fitting = [labels.shape, (len(labels), width)] + ([(len(labels),)] if width == 1 else [])
    if labels.ndim not in (1, 2) or outputs.shape not in fitting:
        raise ShapeError(
            f"the outputs are {outputs.shape} and the labels {labels.shape}; both are (n,) or (n, k)"
        )
    if names is not None and len(names) != width:
        raise ShapeError(f"there are {len(names)} names for {width} labels")
    scores, known = _matrix(outputs, width), _matrix(labels, width)
    for column in range(width):
        words = "labels" if width == 1 else f"labels in column {column}"
        yield ScoreColumn(scores, known, column, words if names is None else f"{words} ({names[column]!r})")


def _matrix(values: Numbers, width: int) -> Numbers:
    """Return the values as a C-contiguous (n, width) matrix of int64, float32 or float64; without a copy if it is."""
    if values.dtype.kind != "f":
        dtype: Any = np.int64
    else:
        dtype = np.float64 if values.dtype.itemsize >= 8 else np.float32
    return np.ascontiguousarray(values, dtype).reshape(len(values), width)
