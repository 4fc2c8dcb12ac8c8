"""Size of a superbatch: as many batches as pay and as the budgets allow. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST, LARGEST = 2, 512
_PACKS_ALIVE: Final = 2  # one is read back while the next is written
_BELADY_SUFFICES: Final = 64  # with carry-over and look-ahead, longer plans miss no fewer rows
_PACKS_PAY: Final = 16  # below, a sweep over most of the file serves too few batches


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchSize:
    """S, and why it is what it is."""

    num_batches: int
    reason: str


def size_superbatch(
    *,
    rows_per_batch: float,
    misses_per_batch_estimate: float,
    row_bytes: int,
    trace_bytes_per_access: float,
    memory_share_bytes: int,
    spill_bytes: int,
    gap_bytes: int,
    num_batches_total: int | None = None,
) -> SuperbatchSize:
    """Choose S, a power of two from 2 to 512. Pure.

    Larger superbatches make packs cheaper, because one sweep over the file serves more batches; the cache gains
    nothing beyond 64. So where packs cannot win, because a row costs more to read than a request or because the
    spill budget is too small, S is at most 64; elsewhere it is the largest whose traces fit the memory share and
    of whose packs two fit the spill budget.

    Parameters
    ----------
    rows_per_batch : float
        Unique rows of a batch, each of them an access of the trace.
    misses_per_batch_estimate : float
        How many of them the cache will miss.
    row_bytes : int
        R, as stored.
    trace_bytes_per_access : float
        Memory of traces and plans for each access of a superbatch: of all the superbatches that are alive at
        the same time, together.
    memory_share_bytes, spill_bytes : int
        Memory for traces and plans, disk for packs.
    gap_bytes : int
        What the device reads in the time of one request.
    num_batches_total : int, optional
        Batches of the whole run.

    Raises
    ------
    ConfigError
        A value is negative, or a row has no bytes.
    """
    _require_values(
        rows_per_batch,
        misses_per_batch_estimate,
        row_bytes,
        trace_bytes_per_access,
        memory_share_bytes,
        spill_bytes,
    )
    by_memory = _largest_power(memory_share_bytes, rows_per_batch * trace_bytes_per_access)
    by_spill = _largest_power(spill_bytes, _PACKS_ALIVE * misses_per_batch_estimate * row_bytes)
    limits = [
        (LARGEST, "the largest there is"),
        (by_memory, f"traces in {format_bytes(memory_share_bytes)} of memory"),
    ]
    if row_bytes > gap_bytes:
        why = f"more do not help the cache, and rows of {format_bytes(row_bytes)} are not packed"
        limits.append((_BELADY_SUFFICES, why))
    elif by_spill < _PACKS_PAY:
        why = f"more do not help the cache, and {format_bytes(spill_bytes)} of disk are too little for packs"
        limits.append((_BELADY_SUFFICES, why))
    else:
        limits.append((by_spill, f"two packs in {format_bytes(spill_bytes)} of disk"))
    if num_batches_total is not None:
        limits.append((_smallest_power_above(num_batches_total), f"the run has {num_batches_total} batches"))
    # The smallest limit decides; of equal ones the first, which says more about the machine, gives the reason.
    size, reason = min(limits, key=lambda limit: limit[0])
    return SuperbatchSize(num_batches=size, reason=reason)


def ramp(size: int) -> Iterator[int]:
    """Yield the sizes of successive superbatches without end: 1, 2, 4, ..., S, S, S, ...

    Small ones come first, so that the first batch need not wait for a whole superbatch to be sampled and planned.

    Raises
    ------
    ConfigError
        ``size`` is not positive.
    """
    if size < 1:
        raise ConfigError(f"a superbatch of {size} batches cannot be; use at least 1")
    return _ramp(size)


def _ramp(size: int) -> Iterator[int]:
    current = 1
    while True:
        yield current
        current = min(2 * current, size)


def _require_values(*values: float) -> None:
    if any(value < 0 for value in values):
        raise ConfigError(f"sizes and estimates must not be negative, got {values}")


def _largest_power(budget: float, each: float) -> int:
    """Return the largest power of two, within the limits, of things of ``each`` that fit into ``budget``."""
    size = LARGEST
    while size > SMALLEST and size * each > budget:
        size //= 2
    return size


def _smallest_power_above(count: int) -> int:
    size = SMALLEST
    while size < count and size < LARGEST:
        size *= 2
    return size
