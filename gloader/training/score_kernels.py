"""Loops over scores and labels, for the metrics of `gloader.training.scores`.

Scores and labels are (n, k) arrays, n rows with k labels each, and a kernel reads one column of both. A label is known
or unknown: NaN is unknown, and so is a negative whole number if ``is_signed`` is set. A *known* row has a known label.
Sums are compensated (A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen", ZAMM 54,
1974, section 1), so that their error does not grow with n.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from gloader.core.kernels import njit

# Rows whose plain sums are added as one term. The error of a plain sum of so many numbers is below 3e-14 of their sum.
_BLOCK: Final = 256


@njit(cache=True, nogil=True)
def _is_unknown(label: Any, is_signed: bool) -> Any:
    """Return True if a label is unknown."""
    return np.isnan(label) or (is_signed and label < 0)


@njit(cache=True, nogil=True)
def split_by_label(scores: Any, labels: Any, column: int, is_signed: bool, out: Any) -> Any:
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
def twice_right_pairs(ones: Any, zeros: Any) -> Any:
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
def precision_sum(ones: Any, zeros: Any) -> Any:
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
) -> Any:
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
def count_classes(predicted: Any, labels: Any, counts: Any) -> Any:
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
def _add(sums: Any, place: int, term: float) -> None:
    """Add a term to a compensated sum, ``sums[place]``."""
    total = sums[place, 0]
    grown = total + term
    # The smaller number of the two loses digits in the sum.
    sums[place, 1] += (total - grown) + term if abs(total) >= abs(term) else (term - grown) + total
    sums[place, 0] = grown


@njit(cache=True, nogil=True)
def _block_sums(
    values: Any,
    labels: Any,
    column: int,
    center: float,
    start: int,
    stop: int,
    is_checked: bool,
    has_center: bool,
) -> Any:
    """Return plain sums over the rows from ``start`` up to ``stop``, and the first row that is refused, -1 without one.

    The five sums are those of `error_sums`. Unknown labels are left out, and rows refused, only with ``is_checked``:
    the loop without these branches is about twice as fast.
    """
    num, absolute, squared, shift, spread = 0.0, 0.0, 0.0, 0.0, 0.0
    for row in range(start, stop):
        label = np.float64(labels[row, column])
        error = np.float64(values[row, column]) - label
        if is_checked:
            if np.isnan(label):
                continue
            if not np.isfinite(error):
                return num, absolute, squared, shift, spread, row
        num += 1.0
        absolute += abs(error)
        squared += error * error
        if has_center:
            deviation = label - center
            shift += deviation
            spread += deviation * deviation
    return num, absolute, squared, shift, spread, np.int64(-1)


@njit(cache=True, nogil=True)
def error_sums(values: Any, labels: Any, column: int, center: float, has_center: bool, sums: Any) -> Any:
    """Sum the errors of the predicted values, and the labels about ``center``.

    Parameters
    ----------
    values, labels : (n, k) floats; a label that is NaN is unknown
    column : the column to read
    center : a number near the labels' mean
    has_center : whether the labels are summed, too; without these sums the loop is about 1.5 times as fast
    sums : (5, 2) float64: over known rows the number, the absolute errors, the squared errors, the labels' deviations
        from ``center`` and their squares, each as a sum and its compensation; zeros before the call

    Returns
    -------
    the first known row with an infinite label or a value that is not finite, -1 without one
    """
    for start in range(0, values.shape[0], _BLOCK):
        stop = min(start + _BLOCK, values.shape[0])
        terms = _block_sums(values, labels, column, center, start, stop, False, has_center)
        if not np.isfinite(terms[1]):
            terms = _block_sums(values, labels, column, center, start, stop, True, has_center)
            if terms[5] >= 0:
                return terms[5]
        _add(sums, 0, terms[0])
        _add(sums, 1, terms[1])
        _add(sums, 2, terms[2])
        if has_center:
            _add(sums, 3, terms[3])
            _add(sums, 4, terms[4])
    return np.int64(-1)


@njit(cache=True, nogil=True)
def _next_threshold(ones: Any, zeros: Any, right: int, wrong: int) -> Any:
    """Return the numbers of ``ones`` and ``zeros`` at and above the next lower score, after ``right`` and ``wrong``."""
    one, zero = np.int64(len(ones) - 1), np.int64(len(zeros) - 1)
    if wrong > zero or (right <= one and ones[one - right] >= zeros[zero - wrong]):
        score = ones[one - right]
    else:
        score = zeros[zero - wrong]
    while right <= one and ones[one - right] == score:
        right += 1
    while wrong <= zero and zeros[zero - wrong] == score:
        wrong += 1
    return right, wrong


@njit(cache=True, nogil=True)
def roc_points(ones: Any, zeros: Any, num_cells: int, points: Any) -> Any:
    """Write points of the ROC curve that are at most 2 / ``num_cells`` apart, except for straight parts.

    The curve's length, as the sum of both rates, is cut into cells of equal length. The first point in each cell is
    kept. So is the point before a step over a whole cell, which equal scores make: the step is a straight line.

    Parameters
    ----------
    ones, zeros : scores with label 1 and with label 0, both ascending and not empty
    num_cells : number of cells
    points : (2 * ``num_cells``, 2) float64, gets the false and the true positive rate of each point

    Returns
    -------
    the number of points; the first is (0, 0) and the last (1, 1)
    """
    num_ones, num_zeros = np.float64(len(ones)), np.float64(len(zeros))
    right, wrong, cell, count = np.int64(0), np.int64(0), np.int64(0), np.int64(1)
    points[0, 0] = 0.0
    points[0, 1] = 0.0
    is_kept: Any = True
    while right < len(ones) or wrong < len(zeros):
        before_right, before_wrong = right, wrong
        right, wrong = _next_threshold(ones, zeros, right, wrong)
        false_rate, true_rate = np.float64(wrong) / num_zeros, np.float64(right) / num_ones
        new_cell = min(np.int64(0.5 * (false_rate + true_rate) * num_cells), np.int64(num_cells - 1))
        if new_cell > cell + 1 and not is_kept:
            points[count, 0] = np.float64(before_wrong) / num_zeros
            points[count, 1] = np.float64(before_right) / num_ones
            count += 1
        is_kept = new_cell > cell or (right == len(ones) and wrong == len(zeros))
        if is_kept:
            points[count, 0] = false_rate
            points[count, 1] = true_rate
            count += 1
        cell = new_cell
    return count


@njit(cache=True, nogil=True)
def precision_ranges(ones: Any, zeros: Any, ranges: Any) -> None:
    """Write the points of the precision-recall curve with the least and the largest precision in cells of recall.

    Parameters
    ----------
    ones, zeros : scores with label 1 and with label 0, both ascending; ``ones`` is not empty
    ranges : (cells, 2, 2) float64, NaN before the call; gets recall and precision of the least and of the largest
    """
    num_cells = np.int64(ranges.shape[0])
    right, wrong = np.int64(0), np.int64(0)
    while right < len(ones):
        right, wrong = _next_threshold(ones, zeros, right, wrong)
        recall = np.float64(right) / np.float64(len(ones))
        precision = np.float64(right) / np.float64(right + wrong)
        cell = min(np.int64(recall * num_cells), num_cells - 1)
        if np.isnan(ranges[cell, 0, 1]) or precision < ranges[cell, 0, 1]:
            ranges[cell, 0, 0] = recall
            ranges[cell, 0, 1] = precision
        if np.isnan(ranges[cell, 1, 1]) or precision > ranges[cell, 1, 1]:
            ranges[cell, 1, 0] = recall
            ranges[cell, 1, 1] = precision
