"""Exact metrics of predictions: accuracy, AUROC, average precision, F1, and errors of values.

`METRICS` names the metrics, with the kinds of labels that each is defined for. Every metric is a function of the
outputs of a network and of the labels, and equals scikit-learn's, ties included. A metric that is not defined for the
labels, such as the AUROC of a single class, raises ScoreError; no metric returns NaN.

A label is *unknown* if it is NaN, or a negative whole number; unknown labels are left out. A *decision* is the
prediction of label 1, made for a score above a threshold. Shapes: n scored nodes, k labels of each, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np

from gloader.core.near_names import near_advice
from gloader.errors import ConfigError, ScoreError, ShapeError
from gloader.training.score_columns import columns_of
from gloader.training.score_kernels import count_classes, precision_sum, twice_right_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.training.score_columns import ScoreColumn

    Numbers: TypeAlias = NDArray[Any]

LabelKind: TypeAlias = Literal["classes", "binary", "multilabel", "values"]
MetricName: TypeAlias = Literal["acc", "auroc", "ap", "f1", "f1-macro", "mae", "rmse", "r2"]
THRESHOLD: Final = 0.5  # probabilities above it decide for label 1; for logits the same threshold is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric's value."""

    value: float
    num_left_out: int = (
        0  # labels among k for which the metric is not defined; the value is the mean of the others
    )


class Compute(Protocol):
    """Computes a metric."""

    def __call__(
        self,
        outputs: Numbers,
        labels: Numbers,
        /,
        *,
        names: Sequence[str] | None = None,
        threshold: float = THRESHOLD,
    ) -> Score:
        """Return the score of ``outputs`` for ``labels``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by its name."""

    name: MetricName
    title: str  # for the screen and the report
    needs: Literal["classes", "scores", "values"]  # what counts: right decisions, the order, or distances
    kinds: tuple[LabelKind, ...]  # the kinds of labels that it is defined for
    compute: Compute
    # Memory of ``compute`` in bytes, times n, besides its arguments. These are C-contiguous, of float32 or int64.
    bytes_per_score: int

    @property
    def is_error(self) -> bool:
        """Return True if a smaller score is better."""
        return self.name in ("mae", "rmse")

    def require_defined(
        self, kind: LabelKind, labels: Numbers, *, names: Sequence[str] | None = None
    ) -> None:
        """Raise ScoreError if the metric is not defined for a split's labels, whatever the outputs are.

        Parameters
        ----------
        kind, labels : the labels and their kind
        names : names of the k labels, for errors
        """
        if kind == "classes":
            self.compute(np.maximum(labels, 0), labels)
        else:
            self.compute(np.zeros(labels.shape, np.float32), labels, names=names)


def accuracy(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
) -> Score:
    """Return the share of right classes, or of right decisions as a mean over labels.

    Parameters
    ----------
    outputs : (n,) int64 classes, or (n,) or (n, k) float scores
    labels : (n,) int64 classes with whole outputs; otherwise 0 and 1 in the shape of the scores
    names : names of the k labels, for errors
    threshold : scores above it decide for label 1

    Raises
    ------
    ScoreError
        No label is known, or one is no label of this kind.
    DivergedError
        A score is NaN.
    ShapeError
        The shapes or dtypes do not fit.
    """
    if outputs.dtype.kind in "iu":
        _require_classes(outputs, labels)
        is_known = labels >= 0
        num_known = int(np.count_nonzero(is_known))
        if num_known == 0:
            raise ScoreError(_NO_LABELS.format(metric="acc", labels="labels"))
        return Score(value=int(np.count_nonzero(is_known & (outputs == labels))) / num_known)

    def of_label(column: ScoreColumn, /) -> float:
        counts = column.decisions(threshold)
        if not counts.any():
            raise _UndefinedError(_NO_LABELS.format(metric="acc", labels=column.words))
        return float((counts[0, 0] + counts[1, 1]) / counts.sum())

    return _mean_over_labels(outputs, labels, names, of_label)


def auroc(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,  # noqa: ARG001  the order of the scores counts, not their values
) -> Score:
    """Return the area under the ROC curve: the share of pairs in the right order, as a mean over labels.

    A pair has a node with label 1 and a node with label 0. Equal scores count half.

    Parameters
    ----------
    outputs : (n,) or (n, k) float scores, of any scale
    labels : 0 and 1 in the shape of ``outputs``
    names : names of the k labels, for errors
    threshold : not used

    Raises
    ------
    ScoreError
        All known labels are of one class (with k > 1: in every column), or one is neither 0 nor 1.
    DivergedError
        A score is NaN.
    ShapeError
        The shapes or dtypes do not fit.
    """

    def of_label(column: ScoreColumn, /) -> float:
        ones, zeros = column.sorted_scores()
        _require_both("auroc", column, len(ones), len(zeros))
        return area_under_roc(ones, zeros)

    return _mean_over_labels(outputs, labels, names, of_label)


def area_under_roc(ones: Numbers, zeros: Numbers) -> float:
    """Return the AUROC of one label. Pure.

    Parameters
    ----------
    ones, zeros : scores with label 1 and with label 0, both ascending and not empty
    """
    return int(twice_right_pairs(ones, zeros)) / (2 * len(ones) * len(zeros))


def mean_precision(ones: Numbers, zeros: Numbers) -> float:
    """Return the average precision of one label. Pure.

    Parameters
    ----------
    ones, zeros : see `area_under_roc`
    """
    return float(precision_sum(ones, zeros)) / len(ones)


def average_precision(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,  # noqa: ARG001  the order of the scores counts, not their values
) -> Score:
    """Return the average precision: the mean precision over nodes with label 1, as a mean over labels.

    The precision at a node is the share of label 1 among the scores that are not below its score. Equal scores are one
    threshold, and nothing is interpolated.

    Parameters, Raises : see `auroc`
    """

    def of_label(column: ScoreColumn, /) -> float:
        ones, zeros = column.sorted_scores()
        _require_both("ap", column, len(ones), len(zeros))
        return mean_precision(ones, zeros)

    return _mean_over_labels(outputs, labels, names, of_label)


def f1(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
) -> Score:
    """Return the F1 score of label 1: the harmonic mean of precision and recall, as a mean over labels.

    Parameters
    ----------
    outputs : (n,) or (n, k) float scores
    labels : 0 and 1 in the shape of ``outputs``
    names : names of the k labels, for errors
    threshold : scores above it decide for label 1

    Raises
    ------
    ScoreError
        No known label is 1 (with k > 1: in every column), or one is neither 0 nor 1.
    DivergedError
        A score is NaN.
    ShapeError
        The shapes or dtypes do not fit.
    """

    def of_label(column: ScoreColumn, /) -> float:
        (_, wrong), (missed, right) = column.decisions(threshold)
        if missed + right == 0:
            raise _UndefinedError(
                f"f1 is not defined without a label 1, and none of the known {column.words} of the split is 1; "
                "choose --metric acc, or a split with both classes"
            )
        return float(2 * right / (2 * right + wrong + missed))

    return _mean_over_labels(outputs, labels, names, of_label)


def f1_macro(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,
) -> Score:
    """Return the mean of the F1 scores of all classes, or of all labels if there are several.

    A class that no node has and none is predicted to have has no F1 score and does not count, as in scikit-learn.

    Parameters
    ----------
    outputs : (n,) int64 classes, or (n,) or (n, k) float scores
    labels : (n,) int64 classes with whole outputs; otherwise 0 and 1 in the shape of the scores
    names, threshold : see `accuracy`

    Raises
    ------
    ScoreError
        No label is known, or one is no label of this kind; with k > 1, no column has a known label 1.
    DivergedError
        A score is NaN.
    ShapeError
        The shapes or dtypes do not fit.
    """
    if outputs.dtype.kind in "iu":
        counts = class_counts(outputs, labels)
        return Score(value=_mean_f1(counts[:, 0], counts[:, 1], counts[:, 2]))
    columns = list(columns_of(outputs, labels, names))
    if len(columns) > 1:
        return f1(outputs, labels, names=names, threshold=threshold)
    decisions = columns[0].decisions(threshold)
    if not decisions.any():
        raise ScoreError(_NO_LABELS.format(metric="f1-macro", labels=columns[0].words))
    return Score(value=_mean_f1(decisions.sum(axis=1), decisions.sum(axis=0), decisions.diagonal()))


def mean_absolute_error(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,  # noqa: ARG001  values have no threshold
) -> Score:
    """Return the mean absolute error, as a mean over columns.

    Parameters
    ----------
    outputs : (n,) or (n, k) float values
    labels : (n,) or (n, k) floats
    names : names of the k columns, for errors
    threshold : not used

    Raises
    ------
    ScoreError
        A column has no known label, or an infinite one.
    DivergedError
        A value is NaN or infinite.
    ShapeError
        The shapes or dtypes do not fit.
    """
    return _mean_over_columns(outputs, labels, names, "mae", lambda sums: sums[1] / sums[0])


def root_mean_squared_error(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,  # noqa: ARG001  values have no threshold
) -> Score:
    """Return the root of the mean squared error, as a mean over columns.

    Parameters, Raises : see `mean_absolute_error`
    """
    return _mean_over_columns(outputs, labels, names, "rmse", lambda sums: (sums[2] / sums[0]) ** 0.5)


def r2(
    outputs: Numbers,
    labels: Numbers,
    /,
    *,
    names: Sequence[str] | None = None,
    threshold: float = THRESHOLD,  # noqa: ARG001  values have no threshold
) -> Score:
    """Return the coefficient of determination, as a mean over columns: 1 without errors, 0 for the mean as prediction.

    Parameters, Raises : see `mean_absolute_error`; ScoreError also if the known labels of a column are all equal
    """
    return _mean_over_columns(outputs, labels, names, "r2", lambda sums: 1.0 - sums[2] / sums[4])


_SCORES: Final[tuple[LabelKind, ...]] = ("binary", "multilabel")
_VALUES: Final[tuple[LabelKind, ...]] = ("values",)
# The memory of a float32 score: AUROC and AP sort a copy; accuracy compares whole classes into three arrays of bits.
METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(
            name="acc",
            title="accuracy",
            needs="classes",
            kinds=("classes", *_SCORES),
            compute=accuracy,
            bytes_per_score=3,
        ),
        Metric(
            name="auroc",
            title="area under the ROC curve",
            needs="scores",
            kinds=_SCORES,
            compute=auroc,
            bytes_per_score=4,
        ),
        Metric(
            name="ap",
            title="average precision",
            needs="scores",
            kinds=_SCORES,
            compute=average_precision,
            bytes_per_score=4,
        ),
        Metric(name="f1", title="F1 score", needs="classes", kinds=_SCORES, compute=f1, bytes_per_score=0),
        Metric(
            name="f1-macro",
            title="mean F1 score",
            needs="classes",
            kinds=("classes", *_SCORES),
            compute=f1_macro,
            bytes_per_score=0,
        ),
        Metric(
            name="mae",
            title="mean absolute error",
            needs="values",
            kinds=_VALUES,
            compute=mean_absolute_error,
            bytes_per_score=0,
        ),
        Metric(
            name="rmse",
            title="root mean squared error",
            needs="values",
            kinds=_VALUES,
            compute=root_mean_squared_error,
            bytes_per_score=0,
        ),
        Metric(
            name="r2",
            title="coefficient of determination",
            needs="values",
            kinds=_VALUES,
            compute=r2,
            bytes_per_score=0,
        ),
    )
}
DEFAULT_METRICS: Final[dict[LabelKind, MetricName]] = {
    "classes": "acc",
    "binary": "auroc",
    "multilabel": "auroc",
    "values": "rmse",
}


def metric_of(name: str, kind: LabelKind) -> Metric:
    """Return the metric ``name`` for labels of ``kind``.

    Raises
    ------
    ConfigError
        There is no such metric, or it is not defined for this kind.
    """
    if name not in METRICS:
        raise ConfigError(f"metric {name!r} is not known; {near_advice(name, METRICS)}")
    metric = METRICS[name]
    if kind not in metric.kinds:
        allowed = ", ".join(each.name for each in METRICS.values() if kind in each.kinds)
        raise ConfigError(
            f"metric {name} ({metric.title}) is not defined for labels of the kind {kind}; choose --metric {allowed}"
        )
    return metric


def class_counts(predicted: Numbers, labels: Numbers) -> NDArray[np.int64]:
    """Return for each class the nodes of it, the nodes predicted to be of it, and both, (C, 3) int64.

    Parameters
    ----------
    predicted : (n,) int64 classes
    labels : (n,) int64 classes; negative ones are unknown

    Raises
    ------
    ScoreError
        No label is known, or a predicted class is negative.
    ShapeError
        The shapes or dtypes do not fit.
    """
    _require_classes(predicted, labels)
    most = int(labels.max()) if len(labels) else -1
    if most < 0:
        raise ScoreError(_NO_LABELS.format(metric="f1-macro", labels="labels"))
    counts = np.zeros((1 + max(most, int(predicted.max())), 3), np.int64)
    bad = count_classes(
        np.ascontiguousarray(predicted, np.int64), np.ascontiguousarray(labels, np.int64), counts
    )
    if bad >= 0:
        raise ScoreError(f"row {bad} is predicted to be of class {predicted[bad]}; a class is 0 or more")
    return counts


_NO_LABELS: Final = "{metric} needs a known label, and all {labels} of the split are unknown"


class _UndefinedError(ScoreError):
    """A metric is not defined for one label; with several labels, this one is left out."""


def _require_both(metric: str, column: ScoreColumn, num_ones: int, num_zeros: int) -> None:
    """Raise _UndefinedError if the known labels are of one class."""
    if num_ones and num_zeros:
        return
    if not num_ones and not num_zeros:
        raise _UndefinedError(_NO_LABELS.format(metric=metric, labels=column.words))
    raise _UndefinedError(
        f"{metric} needs labels of both classes, and all {num_ones + num_zeros:,} known {column.words} of the split "
        f"are {1 if num_ones else 0}; choose --metric acc, or a split with both classes"
    )


def _mean_over_labels(
    outputs: Numbers, labels: Numbers, names: Sequence[str] | None, of_label: Callable[[ScoreColumn], float]
) -> Score:
    """Return the mean of ``of_label`` over the labels for which it is defined.

    Raises ScoreError if it is defined for none; the message is the first label's.
    """
    values: list[float] = []
    undefined: list[_UndefinedError] = []
    for column in columns_of(outputs, labels, names):
        try:
            values.append(of_label(column))
        except _UndefinedError as error:
            undefined.append(error)
    if not values:
        some = f" (and {len(undefined) - 1} labels more)" if len(undefined) > 1 else ""
        raise ScoreError(f"{undefined[0]}{some}") if undefined else ScoreError("there are no labels to score")
    return Score(value=float(np.mean(values)), num_left_out=len(undefined))


def _mean_over_columns(
    outputs: Numbers,
    labels: Numbers,
    names: Sequence[str] | None,
    metric: str,
    of_sums: Callable[[NDArray[np.float64]], float],
) -> Score:
    """Return the mean over columns of a metric of values.

    ``of_sums`` gets (5,) float64 over known rows: their number, the sums of the absolute and the squared errors, the
    sum of the labels' deviations from their mean (about 0), and of its squares.
    """
    values = []
    for column in columns_of(outputs, labels, names):
        first = column.first_known()
        if first is None:
            raise ScoreError(_NO_LABELS.format(metric=metric, labels=column.words))
        # The deviations from one of the labels are exactly 0 if all are equal.
        about_first = column.error_sums(first)
        if metric == "r2" and about_first[4] == 0.0:
            raise ScoreError(
                f"r2 is not defined for {column.words}: all known ones are equal; choose --metric mae or rmse"
            )
        mean = first + about_first[3] / about_first[0]
        values.append(float(of_sums(column.error_sums(mean) if metric == "r2" else about_first)))
    if not values:
        raise ScoreError("there are no labels to score")
    return Score(value=float(np.mean(values)))


def _mean_f1(real: Numbers, predicted: Numbers, right: Numbers) -> float:
    """Return the mean F1 score of the classes that occur. The arguments are counts, (C,) each."""
    occurs = real + predicted > 0
    return float(np.mean(2 * right[occurs] / (real + predicted)[occurs]))


def _require_classes(predicted: Numbers, labels: Numbers) -> None:
    """Raise ShapeError unless both are (n,) whole numbers."""
    if predicted.dtype.kind not in "iu" or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ShapeError(
            f"the predicted classes are {predicted.dtype} {predicted.shape} and the labels {labels.dtype} "
            f"{labels.shape}; both are (n,) whole numbers"
        )
    if predicted.shape != labels.shape:
        raise ShapeError(f"there are {predicted.shape} predicted classes for {labels.shape} labels")
