"""Exact metrics of predictions: accuracy, AUROC, average precision, F1, and errors of values.

`METRICS` names the metrics, with the kinds of labels that each is defined for. A metric is computed from the outputs of
a network and from the labels, and equals scikit-learn's, ties included. A metric that is not defined for the labels,
such as the AUROC of a single class, raises ScoreError; no metric returns NaN.

A label is *unknown* if it is NaN, or a negative whole number; unknown labels are left out. A *decision* is the
prediction of label 1, made for a score above a threshold. Shapes: n scored nodes, k labels of each, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from gloader.core.near_names import near_advice
from gloader.errors import ConfigError, ScoreError, ShapeError
from gloader.training.score_columns import columns_of
from gloader.training.score_kernels import count_classes, precision_sum, twice_right_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.dataset.values import LabelKind
    from gloader.training.score_columns import Numbers, ScoreColumn

MetricName: TypeAlias = Literal["acc", "auroc", "ap", "f1", "f1-macro", "mae", "rmse", "r2"]
THRESHOLD: Final = 0.5  # probabilities above it decide for label 1; for logits the same threshold is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric's value."""

    value: float
    # Number of the k labels for which the metric is not defined; the value is the mean of the others.
    num_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric by its name."""

    name: MetricName
    title: str  # for the screen and the report
    kinds: tuple[LabelKind, ...]  # the kinds of labels that it is defined for
    of_column: Callable[[ScoreColumn, float], float]  # the metric of one of the k labels, with a threshold
    # The metric of predicted classes and labels, (n,) int64 each; None if it is not defined for classes.
    of_classes: Callable[[Numbers, Numbers], float] | None = None
    # Memory of `compute` in bytes, times n, besides its arguments. These are C-contiguous, of float32 or int64.
    bytes_per_score: int = 0

    @property
    def is_error(self) -> bool:
        """Return True if a smaller score is better."""
        return self.name in ("mae", "rmse")

    def compute(
        self,
        outputs: Numbers,
        labels: Numbers,
        /,
        *,
        names: Sequence[str] | None = None,
        threshold: float = THRESHOLD,
    ) -> Score:
        """Return the score of ``outputs`` for ``labels``; for k labels, the mean over those with a defined score.

        Parameters
        ----------
        outputs : (n,) int64 classes, or (n,) or (n, k) float scores or values
        labels : (n,) int64 classes with whole outputs; otherwise 0 and 1, or values, in the shape of ``outputs``
        names : names of the k labels, for errors
        threshold : scores above it decide for label 1; the order of scores and errors of values do not depend on it

        Raises
        ------
        ScoreError
            The metric is defined for none of the k labels; or, for values, not for one of them. Or a label cannot be.
        DivergedError
            A known label's score is NaN, or its value NaN or infinite.
        ShapeError
            The shapes or dtypes do not fit.
        """
        if self.of_classes is not None and outputs.dtype.kind in "iu":
            return Score(value=self.of_classes(outputs, labels))
        values: list[float] = []
        undefined: list[_UndefinedError] = []
        for column in columns_of(outputs, labels, names):
            try:
                values.append(self.of_column(column, threshold))
            except _UndefinedError as error:
                undefined.append(error)
        if not values:
            some = f" (and {len(undefined) - 1} labels more)" if len(undefined) > 1 else ""
            raise ScoreError(f"{undefined[0]}{some}" if undefined else "there are no labels to score")
        return Score(value=float(np.mean(values)), num_left_out=len(undefined))


class _UndefinedError(ScoreError):
    """A metric is not defined for one label; with several labels, this one is left out."""


_NO_LABELS: Final = "{metric} needs a known label, and all {labels} of the split are unknown"


def _accuracy(column: ScoreColumn, threshold: float) -> float:
    """Return the share of right decisions."""
    counts = column.decisions(threshold)
    if not counts.any():
        raise _UndefinedError(_NO_LABELS.format(metric="acc", labels=column.words))
    return float(counts.trace() / counts.sum())


def _accuracy_of_classes(predicted: Numbers, labels: Numbers) -> float:
    """Return the share of right classes."""
    _require_classes(predicted, labels)
    is_known = labels >= 0
    num_known = int(np.count_nonzero(is_known))
    if num_known == 0:
        raise ScoreError(_NO_LABELS.format(metric="acc", labels="labels"))
    return int(np.count_nonzero(is_known & (predicted == labels))) / num_known


def _auroc(column: ScoreColumn, _: float) -> float:
    """Return the area under the ROC curve.

    It is the share of pairs in the right order. A pair has a node with label 1 and a node with label 0; equal scores
    count half.
    """
    return area_under_roc(*_both("auroc", column))


def area_under_roc(ones: Numbers, zeros: Numbers) -> float:
    """Return the AUROC of one label. Pure.

    Parameters
    ----------
    ones, zeros : scores with label 1 and with label 0, both ascending and not empty
    """
    return int(twice_right_pairs(ones, zeros)) / (2 * len(ones) * len(zeros))


def _average_precision(column: ScoreColumn, _: float) -> float:
    """Return the mean precision over nodes with label 1.

    The precision at a node is the share of label 1 among the scores that are not below its score. Equal scores are one
    threshold, and nothing is interpolated.
    """
    return mean_precision(*_both("ap", column))


def mean_precision(ones: Numbers, zeros: Numbers) -> float:
    """Return the average precision of one label. Pure.

    Parameters
    ----------
    ones, zeros : see `area_under_roc`
    """
    return float(precision_sum(ones, zeros)) / len(ones)


def _both(metric: str, column: ScoreColumn) -> tuple[Numbers, Numbers]:
    """Return the sorted scores with label 1 and with label 0; raise _UndefinedError if either are missing."""
    ones, zeros = column.sorted_scores()
    if len(ones) and len(zeros):
        return ones, zeros
    if not len(ones) and not len(zeros):
        raise _UndefinedError(_NO_LABELS.format(metric=metric, labels=column.words))
    raise _UndefinedError(
        f"{metric} needs labels of both classes, and all {len(ones) + len(zeros):,} known {column.words} of the split "
        f"are {1 if len(ones) else 0}; choose --metric acc, or a split with both classes"
    )


def _f1(column: ScoreColumn, threshold: float) -> float:
    """Return the harmonic mean of precision and recall of label 1."""
    (_, wrong), (missed, right) = column.decisions(threshold)
    if missed + right == 0:
        raise _UndefinedError(
            f"f1 is not defined without a label 1, and none of the known {column.words} of the split is 1; "
            "choose --metric acc, or a split with both classes"
        )
    return float(2 * right / (2 * right + wrong + missed))


def _f1_macro(column: ScoreColumn, threshold: float) -> float:
    """Return the mean of the F1 scores of both classes; of one label among several, its F1 score."""
    if column.scores.shape[1] > 1:
        return _f1(column, threshold)
    counts = column.decisions(threshold)
    if not counts.any():
        raise _UndefinedError(_NO_LABELS.format(metric="f1-macro", labels=column.words))
    return _mean_f1(counts.sum(axis=1), counts.sum(axis=0), counts.diagonal())


def _f1_macro_of_classes(predicted: Numbers, labels: Numbers) -> float:
    """Return the mean of the F1 scores of all classes that occur."""
    return _mean_f1(*class_counts(predicted, labels).T)


def _mean_absolute_error(column: ScoreColumn, _: float) -> float:
    """Return the mean absolute error."""
    num, absolute, _squared, _variation = column.error_sums(with_variation=False)
    return absolute / _some_known("mae", column, num)


def _root_mean_squared_error(column: ScoreColumn, _: float) -> float:
    """Return the root of the mean squared error."""
    num, _absolute, squared, _variation = column.error_sums(with_variation=False)
    return float((squared / _some_known("rmse", column, num)) ** 0.5)


def _r2(column: ScoreColumn, _: float) -> float:
    """Return the coefficient of determination: 1 without errors, 0 for the labels' mean as the prediction."""
    num, _absolute, squared, variation = column.error_sums(with_variation=True)
    _some_known("r2", column, num)
    if variation == 0.0:
        raise ScoreError(
            f"r2 is not defined for {column.words}: all known ones are equal; choose --metric mae or rmse"
        )
    return 1.0 - squared / variation


def _some_known(metric: str, column: ScoreColumn, num: float) -> float:
    """Return the number of known rows; raise ScoreError if it is 0."""
    if num == 0:
        raise ScoreError(_NO_LABELS.format(metric=metric, labels=column.words))
    return num


_ALL: Final[tuple[LabelKind, ...]] = ("classes", "binary", "multilabel")
_SCORES: Final[tuple[LabelKind, ...]] = ("binary", "multilabel")
_VALUES: Final[tuple[LabelKind, ...]] = ("values",)
_METRICS: Final[tuple[Metric, ...]] = (
    Metric(
        name="acc",
        title="accuracy",
        kinds=_ALL,
        of_column=_accuracy,
        of_classes=_accuracy_of_classes,
        bytes_per_score=3,  # whole classes are compared into three arrays of bits
    ),
    Metric(
        name="auroc",
        title="area under the ROC curve",
        kinds=_SCORES,
        of_column=_auroc,
        bytes_per_score=4,  # a sorted copy
    ),
    Metric(
        name="ap", title="average precision", kinds=_SCORES, of_column=_average_precision, bytes_per_score=4
    ),
    Metric(name="f1", title="F1 score", kinds=_SCORES, of_column=_f1),
    Metric(
        name="f1-macro",
        title="mean F1 score",
        kinds=_ALL,
        of_column=_f1_macro,
        of_classes=_f1_macro_of_classes,
    ),
    Metric(name="mae", title="mean absolute error", kinds=_VALUES, of_column=_mean_absolute_error),
    Metric(name="rmse", title="root mean squared error", kinds=_VALUES, of_column=_root_mean_squared_error),
    Metric(name="r2", title="coefficient of determination", kinds=_VALUES, of_column=_r2),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _METRICS}
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
