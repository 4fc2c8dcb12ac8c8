"""Kernels of embedding tables: the first rows by formula, and the hash index of the append buffer.

The index is an open hash table of P places, a power of two. A place holds the number of a buffered row, or -1. A row is
looked up from the place of its id's hash on, until its id or an empty place is found.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.hashing import GOLDEN, mix64
from gloader.core.kernels import njit
from gloader.core.numba_ops import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

UNIFORM: Final = 0
NORMAL: Final = 1
ZEROS: Final = 2

_S11: Final = np.uint64(11)
_UNIT: Final = 2.0**-53  # a word's upper 53 bits times this are a float64 in [0, 1)
_SQRT_HALF: Final = 0.7071067811865476
_LN_2: Final = 0.6931471805599453


@njit(cache=True, nogil=True)
def fill_rows(
    ids: IdArray,
    at: IdArray,
    seed: int,
    kind: int,
    scale: float,
    state: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write the first rows of ``ids`` (M,) to the rows ``at`` of ``out`` (K, dim + S).

    Parameters
    ----------
    ids, at : (M,) row ids, and rows of ``out``, in range
    seed : key of the hash
    kind : `UNIFORM`, `NORMAL` or `ZEROS`
    scale : half width of the uniform distribution, or standard deviation of the normal one
    state : (S,) first value of each state column
    out : (K, dim + S), written
    """
    dim = out.shape[1] - state.shape[0]
    key = mix64(np.uint64(seed) + GOLDEN)
    for i in range(ids.shape[0]):
        row = out[at[i]]
        address = mix64(key ^ mix64(np.uint64(ids[i]) + GOLDEN))
        if kind == ZEROS:
            row[:dim] = np.float32(0.0)
        elif kind == UNIFORM:
            for column in range(dim):
                row[column] = np.float32((2.0 * _unit(address, column) - 1.0) * scale)
        else:
            # Half a step is added, so that the argument is neither 0 nor 1.
            for column in range(dim):
                row[column] = np.float32(normal_quantile(_unit(address, column) + 0.5 * _UNIT) * scale)
        row[dim:] = state


@njit(cache=True, nogil=True, inline="always")
def _unit(address: np.uint64, column: int) -> float:
    """Return column ``column``'s random number in [0, 1), a multiple of 2**-53. ``address`` belongs to the row."""
    word = mix64(address + GOLDEN * np.uint64(column))
    return np.float64(np.int64(word >> _S11)) * _UNIT


@njit(cache=True, nogil=True)
def normal_quantile(p: float) -> float:
    """Return the standard normal distribution's quantile at ``p`` in (0, 1), to about 1e-15. Pure.

    Wichura, "Algorithm AS 241", Applied Statistics 37 (1988). It uses only operations that IEEE 754 rounds correctly,
    so that all machines compute the same bits; libraries differ in the last bits of logarithms and cosines.
    """
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = 2509.0809287301226727 * r + 33430.575583588128105
        top = ((top * r + 67265.770927008700853) * r + 45921.953931549871457) * r + 13731.693765509461125
        top = ((top * r + 1971.5909503065514427) * r + 133.14166789178437745) * r + 3.387132872796366608
        low = 5226.495278852545925 * r + 28729.085735721942674
        low = ((low * r + 39307.89580009271061) * r + 21213.794301586595867) * r + 5394.1960214247511077
        low = ((low * r + 687.1870074920579083) * r + 42.313330701600911252) * r + 1.0
        return q * top / low
    r = math.sqrt(-_ln(min(p, 1.0 - p)))
    if r <= 5.0:
        r -= 1.6
        top = 7.7454501427834140764e-4 * r + 0.0227238449892691845833
        top = ((top * r + 0.24178072517745061177) * r + 1.27045825245236838258) * r + 3.64784832476320460504
        top = ((top * r + 5.7694972214606914055) * r + 4.6303378461565452959) * r + 1.42343711074968357734
        low = 1.05075007164441684324e-9 * r + 5.475938084995344946e-4
        low = ((low * r + 0.0151986665636164571966) * r + 0.14810397642748007459) * r + 0.68976733498510000455
        low = ((low * r + 1.6763848301838038494) * r + 2.05319162663775882187) * r + 1.0
    else:
        r -= 5.0
        top = 2.01033439929228813265e-7 * r + 2.71155556874348757815e-5
        top = (
            (top * r + 0.0012426609473880784386) * r + 0.026532189526576123093
        ) * r + 0.29656057182850489123
        top = ((top * r + 1.7848265399172913358) * r + 5.4637849111641143699) * r + 6.6579046435011037772
        low = 2.04426310338993978564e-15 * r + 1.4215117583164458887e-7
        low = (
            (low * r + 1.8463183175100546818e-5) * r + 7.868691311456132591e-4
        ) * r + 0.0148753612908506148525
        low = ((low * r + 0.13692988092273580531) * r + 0.59983220655588793769) * r + 1.0
    return top / low if q > 0.0 else -top / low


@njit(cache=True, nogil=True)
def _ln(x: float) -> float:
    """Return the natural logarithm of ``x`` > 0, by the series of the inverse hyperbolic tangent. Pure."""
    m, exponent = math.frexp(x)
    if m < _SQRT_HALF:
        m *= 2.0
        exponent -= 1
    z = (m - 1.0) / (m + 1.0)
    square = z * z
    total = 0.0
    for power in range(21, -1, -2):  # |z| < 0.172, so the next term is below 1e-18
        total = total * square + 1.0 / power
    return 2.0 * z * total + exponent * _LN_2


@njit(cache=True, nogil=True)
def put_rows(
    ids: IdArray,
    rows: NDArray[np.float32],
    index: LocalArray,
    stored_ids: IdArray,
    stored: NDArray[np.float32],
    count: int,
) -> tuple[int, int]:
    """Copy ``rows`` (M, width) into the buffer, until a new row finds it full.

    Parameters
    ----------
    ids : (M,) the rows' ids; a buffered row with the same id is overwritten
    rows : (M, width)
    index : (P,) the index, updated; P >= 2 K
    stored_ids, stored : (K,) and (K, width) the buffered rows, updated
    count : number of buffered rows

    Returns
    -------
    int, int
        The number of copied rows, and the new number of buffered rows.
    """
    for i in range(ids.shape[0]):
        place = _find(ids[i], index, stored_ids)
        number = np.int64(index[place])
        if number < 0:
            if count == stored_ids.shape[0]:
                return i, count
            number = np.int64(count)
            index[place] = np.int32(number)
            stored_ids[number] = ids[i]
            count += 1
        stored[number] = rows[i]
    return ids.shape[0], count


@njit(cache=True, nogil=True)
def take_rows(
    ids: IdArray,
    at: IdArray,
    index: LocalArray,
    stored_ids: IdArray,
    stored: NDArray[np.float32],
    out: NDArray[np.float32],
    missing: IdArray,
) -> int:
    """Copy the buffered rows among ``ids`` (M,) to the rows ``at`` of ``out``.

    ``missing`` (M,) receives the positions of the other ids, ascending; their number is returned. The other arguments
    are as in `put_rows`.
    """
    num_missing = 0
    for i in range(ids.shape[0]):
        number = np.int64(index[_find(ids[i], index, stored_ids)])
        if number < 0:
            missing[num_missing] = i
            num_missing += 1
        else:
            out[at[i]] = stored[number]
    return num_missing


@njit(cache=True, nogil=True)
def _find(row: int, index: LocalArray, stored_ids: IdArray) -> int:
    """Return the place of the id ``row`` in the index, or the empty place where it belongs."""
    mask = np.uint64(index.shape[0] - 1)
    place = to_int(mix64(np.uint64(row)) & mask)
    while index[place] >= 0 and stored_ids[index[place]] != row:
        place = to_int(np.uint64(place + 1) & mask)
    return place
