"""Loops over scores and labels, for the metrics of `gloader.training.scores`.

Scores and labels are (n, k) arrays, n rows with k labels each, and a kernel reads one column of both. A label is known
or unknown: NaN is unknown, and so is a negative whole number if ``is_signed`` is set. A *known* row has a known label.
Sums are compensated (A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54,
1974, section 1), so that their error does not grow with n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gloader.core.kernels import njit


@njit(cache=True, nogil=True)
def _is_unknown(label: Any, is_signed: bool) -> Any:
    """Return True if a label is unknown."""
    return np.isnan(label) or (is_signed and label < 0)


@njit(cache=True, nogil=True)
def split_by_label(scores: Any, labels: Any, column: int, is_signed: bool, out: Any) -> tuple[int, int, int]:
    """Write the scores of known rows to ``out``: those with label 1 from its start, those with label 0 from its end.

    Parameters
    ----------
    scores : (n, k) floats
    labels : (n, k) 0, 1, or unknown
    column : the column to read
    is_signed : whether negative labels are unknown
    out : (n,) in the scores' dtype

    Returns
    -------
    the number of scores with label 1, the number with label 0, and the first known row with another label or with the
    score NaN, -1 without one
    """
    front, back = np.int64(0), np.int64(len(out))
    for row in range(scores.shape[0]):
        label, score = labels[row, column], scores[row, column]
        if _is_unknown(label, is_signed):
            continue
        truth = np.int64(label == 1)
        if np.isnan(score) or label != truth:
            return front, np.int64(len(out)) - back, row
        if truth:
            out[front] = score
            front += 1
        else:
            back -= 1
            out[back] = score
    return front, np.int64(len(out)) - back, np.int64(-1)


@njit(cache=True, nogil=True)
def twice_right_pairs(ones: Any, zeros: Any) -> int:
    """Return twice the number of pairs in the right order; a pair of equal scores counts once.

    Parameters
    ----------
    ones, zeros : scores with label 1 and with label 0, both ascending
    """
    right, below, upto = np.int64(0), np.int64(0), np.int64(0)
    for place in range(len(ones)):
        score = ones[place]
        while below < len(zeros) and zeros[below] < score:
            below += 1
        upto = max(upto, below)
        while upto < len(zeros) and zeros[upto] <= score:
            upto += 1
        right += below + upto
    return right


@njit(cache=True, nogil=True)
def precision_sum(ones: Any, zeros: Any) -> float:
    """Return the sum of the precision over the scores with label 1, each at its own score as the threshold.

    Parameters
    ----------
    ones, zeros : as in `twice_right_pairs`
    """
    total, lost = 0.0, 0.0
    last_one, last_zero = np.int64(len(ones) - 1), np.int64(len(zeros) - 1)
    while last_one >= 0:
        score, first = ones[last_one], last_one
        while last_one >= 0 and ones[last_one] == score:
            last_one -= 1
        while last_zero >= 0 and zeros[last_zero] >= score:
            last_zero -= 1
        right = np.int64(len(ones) - 1) - last_one
        wrong = np.int64(len(zeros) - 1) - last_zero
        term = np.float64(first - last_one) * (np.float64(right) / np.float64(right + wrong))
        grown = total + term
        lost += (total - grown) + term if total >= term else (term - grown) + total
        total = grown
    return total + lost


@njit(cache=True, nogil=True)
def count_decisions(
    scores: Any, labels: Any, column: int, is_signed: bool, threshold: float, counts: Any
) -> int:
    """Count decisions; a score above the threshold decides for label 1.

    Parameters
    ----------
    scores, labels, column, is_signed : as in `split_by_label`
    threshold : the threshold
    counts : (2, 2) int64, [label, decision]; the counts are added

    Returns
    -------
    the first known row with another label or with the score NaN, -1 without one
    """
    for row in range(scores.shape[0]):
        label, score = labels[row, column], scores[row, column]
        if _is_unknown(label, is_signed):
            continue
        truth = np.int64(label == 1)
        if np.isnan(score) or label != truth:
            return row
        counts[truth, np.int64(score > threshold)] += 1
    return np.int64(-1)


@njit(cache=True, nogil=True)
def count_classes(predicted: Any, labels: Any, counts: Any) -> int:
    """Count each class.

    Parameters
    ----------
    predicted : (n,) int64 classes
    labels : (n,) int64 classes; negative ones are unknown
    counts : (C, 3) int64: nodes of the class, nodes predicted to be of it, and both; the counts are added

    Returns
    -------
    the first known row with a class outside 0 to C - 1, -1 without one
    """
    num_classes = counts.shape[0]
    for row in range(len(labels)):
        label, guess = labels[row], predicted[row]
        if label < 0:
            continue
        if label >= num_classes or guess < 0 or guess >= num_classes:
            return row
        counts[label, 0] += 1
        counts[guess, 1] += 1
        if label == guess:
            counts[label, 2] += 1
    return np.int64(-1)


@njit(cache=True, nogil=True)
def error_sums(values: Any, labels: Any, column: int, center: float, sums: Any) -> int:
    """Sum the errors of the predicted values, and the labels about ``center``.

    Parameters
    ----------
    values, labels : (n, k) floats; a label that is NaN is unknown
    column : the column to read
    center : a number near the labels' mean; 0 if it is not known
    sums : (5, 2) float64: over known rows the number, the absolute errors, the squared errors, the labels' deviations
        from ``center`` and their squares, each as a sum and its compensation; zeros before the call

    Returns
    -------
    the first known row with an infinite label or a value that is not finite, -1 without one
    """
    for row in range(values.shape[0]):
        label = np.float64(labels[row, column])
        if np.isnan(label):
            continue
        error, deviation = np.float64(values[row, column]) - label, label - center
        if not np.isfinite(error):
            return row
        sums[0, 0] += 1.0
        for place in range(1, 5):
            if place == 1:
                term = abs(error)
            elif place == 2:
                term = error * error
            elif place == 3:
                term = deviation
            else:
                term = deviation * deviation
            total = sums[place, 0]
            grown = total + term
            # The smaller number of the two loses digits in the sum.
            sums[place, 1] += (total - grown) + term if abs(total) >= abs(term) else (term - grown) + total
            sums[place, 0] = grown
    return np.int64(-1)
