"""The seam for the missing rows of a superbatch, and the source that reads them from the store batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from gloader.errors import PlanError, ShapeError
from gloader.ssd_store.read.row_request import RowRequest, check_request
from gloader.ssd_store.sweep.sweep import SweepCost
from gloader.types import ReadStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.ssd_store.read.reader import FeatureStore
    from gloader.types import IdArray

_NO_SWEEP: Final = SweepCost(read=ReadStats(rows=0, requests=0, bytes_read=0), writes=0, bytes_written=0)


class MissSource(Protocol):
    """Brings the rows that miss every cache to their batch, one superbatch long."""

    @property
    def strategy(self) -> str:
        """Which one: a member of `STRATEGIES`."""
        ...

    @property
    def cost(self) -> SweepCost:
        """What making the source moved, as counted while it was made; the batches' own reads are not in it.

        What came from other machines or an object store is `bytes_brought`, apart from reads of the own disk.
        """
        ...

    def read_into(self, batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read the missing rows of a batch, all of them or raise.

        Parameters
        ----------
        batch : its number within the superbatch, from 0
        rows : (M,) int64, ascending
        out : (K, F), of the stored dtype or float32
        at : (M,) int64, row of ``out`` for each of ``rows``
        """
        ...

    def release(self, batch: int) -> None:
        """Give back the disk or memory of a batch that is done. Idempotent."""
        ...

    def close(self) -> None:
        """Give everything back. Idempotent."""
        ...


class DirectMisses:
    """Reads each batch's missing rows from the store when it asks for them. Thread-safe; owns nothing.

    Parameters
    ----------
    store : the store, which stays its owner's
    gap_bytes : longest hole that is read through; defaults to that of the store
    """

    strategy = "direct"
    cost = _NO_SWEEP

    def __init__(self, store: FeatureStore, *, gap_bytes: int | None = None) -> None:
        self._store = store
        self._gap_bytes = gap_bytes

    def read_into(self, _batch: int, rows: IdArray, out: NDArray[Any], /, *, at: IdArray) -> ReadStats:
        """Read ``rows`` into ``out``; raises as `FeatureStore.read_into`.

        Parameters
        ----------
        rows : (M,) int64, ascending
        out : (K, F), of the stored dtype or float32
        at : (M,) int64, row of ``out`` for each of ``rows``
        """
        if self._gap_bytes is None:
            return self._store.read_into(rows, out, at=at)
        return self._store.read_into(rows, out, at=at, gap_bytes=self._gap_bytes)

    def release(self, batch: int) -> None:
        """Do nothing: nothing is held for a batch."""

    def close(self) -> None:
        """Do nothing: the store belongs to whoever opened it."""


def check_misses(
    batch: int,
    rows: IdArray,
    out: NDArray[Any],
    at: IdArray,
    *,
    num_batches: int,
    num_rows: int,
    dim: int,
) -> RowRequest:
    """Check what is asked of a `MissSource`. Pure.

    Parameters
    ----------
    batch : its number within the superbatch
    rows : (M,) int64, ascending
    out : (K, F)
    at : (M,) int64, row of ``out`` for each of ``rows``
    num_batches : S
    num_rows, dim : N and F of the store

    Raises
    ------
    ShapeError
        The batch or a row is out of range, rows do not ascend, or a shape does not fit.
    """
    if not 0 <= batch < num_batches:
        raise ShapeError(f"batch {batch} is not one of the superbatch's {num_batches}")
    # The rows come from a plan; `out` and `at` are the caller's, and kernels write where `at` says, unchecked.
    request = check_request(rows, out, num_rows=num_rows, dim=dim, at=at)
    if not request.is_sorted:
        raise ShapeError(f"batch {batch}: missing rows must ascend; sort them and `at` with them")
    return request


def other_rows(strategy: str, superbatch: str, batch: int) -> PlanError:
    """Return the error for rows that are not those the batch was prepared for. Pure.

    Parameters
    ----------
    strategy : how they were prepared, a member of `STRATEGIES`
    superbatch : how the message begins, such as "superbatch 3, "; may be empty
    batch : its number within the superbatch
    """
    return PlanError(
        f"{superbatch}batch {batch} asks for other rows than those that were {strategy} for it; pass the missing "
        "rows of the plan that it was made from, unchanged"
    )
