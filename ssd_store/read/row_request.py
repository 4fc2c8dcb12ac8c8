"""Requests for rows, checked and sorted: the part of ``read_into`` that every feature source shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.core.ids import outside
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

NO_POSITIONS: IdArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """Rows in range and where each of them goes."""

    rows: IdArray  # (M,)
    position: IdArray  # (M,) rows of the output, or empty when row i goes to row i
    is_sorted: bool  # whether the rows ascend

    def in_file_order(self) -> RowRequest:
        """Return the same request with ascending rows. Pure."""
        if self.is_sorted:
            return self
        order = np.argsort(self.rows)
        position = self.position[order] if self.position.shape[0] else order
        return RowRequest(rows=self.rows[order], position=position, is_sorted=True)


def check_request(
    rows: IdArray, out: NDArray[Any], *, num_rows: int, dim: int, at: IdArray | None = None
) -> RowRequest:
    """Check what a caller asks for. Pure.

    Parameters
    ----------
    rows : (M,) integers
        In any order, repeats allowed.
    out : (M, F), or (K, F) with ``at``
        The output; only its shape is looked at.
    num_rows, dim : int
        N and F of the source.
    at : (M,) int64, optional
        Row of ``out`` for each of ``rows``; row i goes to row i without it.

    Raises
    ------
    ShapeError
        ``rows`` or ``at`` are not integers in range, or a shape does not fit.
    """
    rows = _as_ids("rows", rows)
    # One pass finds all that numpy would need three for; the ids are listed only if one is wrong.
    smallest, largest, is_sorted = _inspect(rows)
    if rows.shape[0] and (smallest < 0 or largest >= num_rows):
        raise _out_of_range("rows", rows, num_rows)
    if at is None:
        position, expected = NO_POSITIONS, (rows.shape[0], dim)
    else:
        position, expected = _as_ids("at", at), (out.shape[0] if out.ndim else 0, dim)
        if position.shape != rows.shape:
            raise ShapeError(f"at must give one position for each of {rows.shape[0]} rows, not {at.shape[0]}")
        smallest, largest, _ = _inspect(position)
        if position.shape[0] and (smallest < 0 or largest >= expected[0]):
            raise _out_of_range("at", position, expected[0])
    if out.shape != expected:
        raise ShapeError(
            f"out has shape {out.shape}, but {rows.shape[0]} rows of {dim} features need {expected}"
        )
    return RowRequest(rows=rows, position=position, is_sorted=bool(is_sorted))


def _as_ids(name: str, ids: IdArray) -> IdArray:
    # Stricter than `as_ids`, as the suite of feature sources demands: empty floats are refused too, and uint64,
    # whose large values would become negative ids without a word.
    ids = np.asarray(ids)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.dtype == np.uint64:
        raise ShapeError(
            f"{name} must be a one-dimensional array of int64, got {ids.dtype} of shape {ids.shape}"
        )
    return np.ascontiguousarray(ids, np.int64)


def _out_of_range(name: str, ids: IdArray, limit: int) -> ShapeError:
    wrong = outside(ids, limit)
    listed = ", ".join(str(i) for i in wrong[:5])
    return ShapeError(f"{name}: {wrong.shape[0]} ids are out of range 0..{limit - 1}: {listed}")


@njit(cache=True, nogil=True)
def _inspect(ids: IdArray) -> tuple[np.int64, np.int64, bool]:
    """Return the smallest and the largest id, and whether they ascend."""
    smallest = np.int64(0)
    largest = np.int64(0)
    is_sorted = True
    for i in range(ids.shape[0]):
        if i == 0:
            smallest = largest = ids[0]
        else:
            is_sorted &= ids[i] >= ids[i - 1]
            smallest = min(smallest, ids[i])
            largest = max(largest, ids[i])
    return smallest, largest, is_sorted
