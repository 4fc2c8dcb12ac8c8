"""The check that ids are ids: one-dimensional integers within a range. The caller names them and words its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.malformed import shown

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from gloader.errors import GloaderError
    from gloader.types import IdArray

_LARGEST = np.iinfo(np.int64).max
_MOST_SHORT_IDS = 2**31


def as_ids(values: ArrayLike, *, noun: str, error: type[GloaderError], masked: int | None = None) -> IdArray:
    """Return ``values`` as contiguous int64 ids; nothing is rounded and nothing wraps. Pure.

    Parameters
    ----------
    values : (n,) integers of any width and byte order; without elements, of any dtype
    noun : what the message calls them, in the plural: "seeds"
    error : class of the error
    masked : how many there are in all: a mask (masked,) of booleans stands for the ids at which it is True. None: no
        mask is taken

    Returns
    -------
    (n,) int64, C-contiguous; not a copy if ``values`` are that already

    Raises
    ------
    error
        They have another number of dimensions, are no integers, or do not fit int64; or a mask is of other length.
    """
    try:
        ids = np.asarray(values)
    except ValueError:  # lists within a list
        raise error(f"{noun} are {shown(values)}; they must be one list, or array, of ids") from None
    if ids.dtype == np.bool_ and masked is not None:
        if ids.shape != (masked,):
            raise error(f"{noun} are a mask of shape {ids.shape}; it must be ({masked},), or give their ids")
        return np.flatnonzero(ids)
    if ids.ndim != 1:
        raise error(f"{noun} have shape {ids.shape}; they must have one dimension")
    if ids.size and ids.dtype.kind not in "iu":
        raise error(f"{noun} have dtype {ids.dtype}; they must be integers")
    if ids.size and ids.dtype.kind == "u" and ids.dtype.itemsize == 8 and ids.max() > _LARGEST:
        raise error(f"{noun} must be below 2**63; these are not: {ids[ids > _LARGEST][:5].tolist()}")
    return np.ascontiguousarray(ids, dtype=np.int64)


def id_dtype(count: int) -> np.dtype[Any]:
    """Return the smallest dtype for the ids of ``count`` nodes or rows. Pure."""
    return np.dtype(np.int32 if count <= _MOST_SHORT_IDS else np.int64)


def outside(ids: NDArray[Any], limit: int) -> NDArray[Any]:
    """Return those of ``ids`` (n,) that are not in 0..limit-1, in their order; in the usual case none. Pure."""
    # Two passes without a temporary array: this runs for every batch.
    if ids.size == 0 or (ids.min() >= 0 and ids.max() < limit):
        return ids[:0]
    return ids[(ids < 0) | (ids >= limit)]
