"""A summary of a split's scores that a report can draw: curves, calibration, confusion and errors, as JSON.

`score_summary` reads the outputs for all nodes of a split and returns values whose size does not depend on the number
of nodes. A run's folder keeps them as ``scores.json``, and `gloader.lab.report.score_pictures` draws them. Shapes: n
nodes, k labels or columns, C classes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.errors import ScoreError
from gloader.training.score_columns import columns_of
from gloader.training.score_kernels import precision_ranges, roc_points
from gloader.training.scores import METRICS, THRESHOLD, area_under_roc, class_counts, mean_precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.dataset.values import LabelKind
    from gloader.training.score_columns import Numbers, ScoreColumn

_VERSION: Final = 1  # of the content
# Classes of a matrix, and rows of a table of labels or columns; more would not be read.
_MOST_LISTED: Final = 40
_MOST_DRAWN: Final = 3  # labels or columns with pictures: the best, the median and the worst
_MOST_PAIRS: Final = 20  # confused pairs of classes
_MOST_COUNTED: Final = 1000  # classes with counted confusion: a matrix of 8 MB
_MOST_CHARACTERS: Final = 60  # of a name
_CELLS: Final = 100  # along a curve, which has up to two points in each; a chart is about 440 pixels wide
_BINS: Final = 10  # of predicted probabilities
_GRID: Final = 32  # cells along each axis of predicted against true values
_PIECE: Final = 1 << 16  # rows that are read at once, so that temporary arrays take about 1 MB
_DIGITS: Final = 5  # significant digits of drawn values, finer than a pixel


def score_summary(
    kind: LabelKind,
    outputs: Numbers,
    labels: Numbers,
    names: Sequence[str] | None,
    *,
    are_logits: bool = False,
) -> dict[str, Any]:
    """Return the summary as JSON values, less than 100 KB. Pure.

    Besides its arguments it needs as much memory as the largest of its metrics, see `METRICS`, and 10 MB.

    Parameters
    ----------
    kind : the kind of the labels
    outputs : (n,) int64 predicted classes; (n,) or (n, k) float probabilities of label 1; or (n,) or (n, k) values
    labels : (n,) int64 classes, negative if unknown; or 0 and 1, or values, in the shape of ``outputs``, NaN if unknown
    names : names of the C classes or the k columns; None for their numbers
    are_logits : whether the scores of labels are logits in place of probabilities. Large logits differ where their
        probabilities in float32 are equal, so that metrics of logits are exact

    Raises
    ------
    ScoreError, DivergedError, ShapeError
        A label, an output or a shape cannot be, see `gloader.training.scores`. A metric that is not defined for the
        labels is no error here: it is left out.
    """
    if kind == "classes":
        content = _of_classes(outputs, labels, names)
    elif kind == "values":
        content = _of_values(list(columns_of(outputs, labels, names)), names)
    else:
        content = _of_labels(list(columns_of(outputs, labels, names)), names, are_logits=are_logits)
    metrics = {}
    for name, metric in METRICS.items():
        if kind in metric.kinds:
            # What cannot be a label was refused above.
            with contextlib.suppress(ScoreError):
                metrics[name] = metric.compute(
                    outputs, labels, threshold=0.0 if are_logits else THRESHOLD
                ).value
    return {"version": _VERSION, "kind": kind, "metrics": metrics, **content}


def _of_classes(predicted: Numbers, labels: Numbers, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the number of nodes, F1 of the classes, and their confusion."""
    num = int(np.count_nonzero(labels >= 0))
    if num == 0:
        return {"num": 0}
    real, guessed, right = class_counts(predicted, labels).T
    size = np.maximum(real, guessed)
    content = {
        "num": num,
        "num_classes": len(real),
        "classes": [
            [_name(names, place), int(real[place]), int(guessed[place]), int(right[place])]
            for place in _most(size, _MOST_LISTED)
        ],
    }
    counted = np.sort(_most(size, _MOST_COUNTED))
    matrix = _confusion(predicted, labels, counted)
    if len(real) <= _MOST_LISTED:
        return {**content, "matrix": matrix.tolist(), "names": [_name(names, place) for place in counted]}
    np.fill_diagonal(matrix, 0)
    pairs = [divmod(int(place), len(counted)) for place in _most(matrix.ravel(), _MOST_PAIRS)]
    return {
        **content,
        "num_counted": len(counted),
        "confused": [
            [_name(names, int(counted[one])), _name(names, int(counted[other])), int(matrix[one, other])]
            for one, other in pairs
            if matrix[one, other]
        ],
    }


def _most(counts: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the places of the ``most`` largest counts, the largest first."""
    return np.argsort(-counts, kind="stable")[:most]


def _confusion(predicted: Numbers, labels: Numbers, classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of nodes by label and prediction, (c, c), for the c ``classes``, ascending."""
    counts = np.zeros(len(classes) ** 2, np.int64)
    for start in range(0, len(labels), _PIECE):
        both = np.stack([labels[start : start + _PIECE], predicted[start : start + _PIECE]])
        places = np.searchsorted(classes, both)
        is_counted = (classes[np.minimum(places, len(classes) - 1)] == both).all(axis=0)
        real, guessed = places[:, is_counted]
        counts += np.bincount(real * len(classes) + guessed, minlength=len(counts))
    return counts.reshape(len(classes), len(classes))


def _of_labels(
    columns: Sequence[ScoreColumn], names: Sequence[str] | None, *, are_logits: bool
) -> dict[str, Any]:
    """Return figures of each label, and curves of some."""
    rows: list[dict[str, Any]] = []
    for place, column in enumerate(columns):
        ones, zeros = column.sorted_scores()
        is_defined = len(ones) > 0 and len(zeros) > 0
        rows.append(
            {
                "name": _name(names, place),
                "num": len(ones) + len(zeros),
                "num_ones": len(ones),
                "auroc": area_under_roc(ones, zeros) if is_defined else None,
                "ap": mean_precision(ones, zeros) if is_defined else None,
                "place": place,
            }
        )
        del ones, zeros
    ranked = sorted((row for row in rows if row["auroc"] is not None), key=lambda row: -row["auroc"])
    return {
        "num": max((row["num"] for row in rows), default=0),
        "num_labels": len(columns),
        "labels": _ends([*ranked, *(row for row in rows if row["auroc"] is None)]),
        "curves": [
            {"name": row["name"], **_curves(columns[row["place"]], are_logits=are_logits)}
            for row in _drawn(ranked)
        ],
    }


def _curves(column: ScoreColumn, *, are_logits: bool) -> dict[str, Any]:
    """Return the points of a label's ROC curve, of its precision-recall curve, and its calibration."""
    ones, zeros = column.sorted_scores()
    roc = np.empty((2 * _CELLS, 2))
    roc = roc[: roc_points(ones, zeros, _CELLS, roc)]
    ranges = np.full((_CELLS, 2, 2), np.nan)
    precision_ranges(ones, zeros, ranges)
    points = ranges[~np.isnan(ranges[:, 0, 1])]
    # The two points of a cell, in the order of their recall; one point may be both.
    ordered = np.take_along_axis(points, points[:, :, :1].argsort(axis=1, kind="stable"), axis=1)
    flat = ordered.reshape(-1, 2)
    is_new = np.r_[True, (flat[1:] != flat[:-1]).any(axis=1)]
    return {
        "roc": _rounded(roc),
        "precision_recall": _rounded(flat[is_new]),
        "share": len(ones) / (len(ones) + len(zeros)),
        "calibration": _calibration(ones, zeros, are_logits=are_logits),
    }


def _calibration(ones: Numbers, zeros: Numbers, *, are_logits: bool) -> list[list[float]]:
    """Return for each bin of probability that is not empty: the mean prediction, the share of label 1, the number."""
    sums = np.zeros((2, _BINS, 2))  # of ones and of zeros, by bin: the number, and the sum of predictions
    for place, scores in enumerate((ones, zeros)):
        for start in range(0, len(scores), _PIECE):
            piece = scores[start : start + _PIECE].astype(np.float64)
            # The sigmoid as a tangent does not overflow.
            piece = 0.5 * (1.0 + np.tanh(0.5 * piece)) if are_logits else np.clip(piece, 0, 1)
            bins = np.minimum((piece * _BINS).astype(np.int64), _BINS - 1)
            sums[place, :, 0] += np.bincount(bins, minlength=_BINS)
            sums[place, :, 1] += np.bincount(bins, piece, minlength=_BINS)
    num, predicted = sums.sum(axis=0).T
    return [
        [*_rounded([predicted[bin_] / num[bin_], sums[0, bin_, 0] / num[bin_]]), int(num[bin_])]
        for bin_ in np.flatnonzero(num)
    ]


def _of_values(columns: Sequence[ScoreColumn], names: Sequence[str] | None) -> dict[str, Any]:
    """Return errors of each column, and the counts of predicted against true values of some."""
    rows = []
    for place, column in enumerate(columns):
        row: dict[str, Any] = {"name": _name(names, place), "num": 0, "mae": None, "rmse": None, "r2": None}
        num, absolute, squared, variation = column.error_sums(with_variation=True)
        if num:
            row |= {"num": int(num), "mae": absolute / num, "rmse": (squared / num) ** 0.5}
            row["r2"] = 1 - squared / variation if variation > 0 else None
        rows.append({**row, "place": place})
    ranked = sorted(
        (row for row in rows if row["num"]), key=lambda row: (row["r2"] is None, -(row["r2"] or 0))
    )
    return {
        "num": max((row["num"] for row in rows), default=0),
        "num_columns": len(columns),
        "columns": _ends([*ranked, *(row for row in rows if not row["num"])]),
        "grids": [{"name": row["name"], **_grid(columns[row["place"]])} for row in _drawn(ranked)],
    }


def _grid(column: ScoreColumn) -> dict[str, Any]:
    """Return the number of nodes by true value (first axis) and prediction, over the range of the true values.

    Predictions beyond the range count in its outermost cells.
    """
    ranges = [(real.min(), real.max()) for real, _ in _known_pieces(column)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if high - low <= abs(low) * 1e-9:  # equal, but for rounding
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    counts, num_beyond = np.zeros((_GRID, _GRID), np.int64), 0
    for real, predicted in _known_pieces(column):
        num_beyond += int(np.count_nonzero((predicted < low) | (predicted > high)))
        across, up = (
            np.clip((values - low) / (high - low) * _GRID, 0, _GRID - 1).astype(np.int64)
            for values in (real, predicted)
        )
        counts += np.bincount(across * _GRID + up, minlength=_GRID**2).reshape(_GRID, _GRID)
    return {"low": float(low), "high": float(high), "num_beyond": num_beyond, "counts": counts.tolist()}


def _known_pieces(column: ScoreColumn) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the known labels and their predictions."""
    for start in range(0, len(column.labels), _PIECE):
        rows = slice(start, start + _PIECE)
        real = column.labels[rows, column.column].astype(np.float64)
        is_known = ~np.isnan(real)
        if is_known.any():
            yield real[is_known], column.scores[rows, column.column].astype(np.float64)[is_known]


def _drawn(ranked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best, the median and the worst row of ``ranked``."""
    places = {0, len(ranked) // 2, len(ranked) - 1} if len(ranked) > _MOST_DRAWN else range(len(ranked))
    return [ranked[place] for place in sorted(places)]


def _ends(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table: the first and the last ones, if they are too many."""
    half = _MOST_LISTED // 2
    kept = rows if len(rows) <= _MOST_LISTED else [*rows[:half], *rows[-half:]]
    return [{name: value for name, value in row.items() if name != "place"} for row in kept]


def _name(names: Sequence[str] | None, place: int) -> str:
    """Return the name of a class or a column, or its number."""
    if names is None or place >= len(names):
        return str(place)
    name = str(names[place])
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"


def _rounded(values: Any) -> Any:
    """Return the values as lists, with the digits that can be seen."""
    return (
        np.array([float(f"{value:.{_DIGITS}g}") for value in np.ravel(values)])
        .reshape(np.shape(values))
        .tolist()
    )
