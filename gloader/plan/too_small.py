"""Errors for a memory budget that is too small, with the needed bytes and a sufficient budget. Pure.

An attempt is a function that makes a plan with a given budget in bytes, or raises `BudgetError`. The error's
``short_bytes`` has the missing bytes. `least_enough` repeats attempts to find a sufficient budget, and `naming_enough`
writes this budget into the error. `least_planned` and `planned_within` do the same for plans without such an estimate,
by bisection. At the end, `gloader.plan.memory_plan` calls the ``require_`` functions, which check one part of a plan
each. A demand has the measured sizes of a run (`gloader.plan.demand`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeVar

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.demand import topology_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.config import Features
    from gloader.plan.demand import Demand


# `least_enough` tries at most this many budgets. Each is larger than the one before by the missing bytes, and by at
# least 1 / _LEAST_STEP of itself.
_MOST_TRIES: Final = 24
_LEAST_STEP: Final = 64
# `least_planned` searches between these budgets, in bytes, up to this relative error.
_LEAST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 1 << 44
_TOLERANCE: Final = 0.005
# Endings of error messages, which `_naming` replaces by a sufficient budget.
_RAISE_ADVICE: Final = ". Raise --memory-budget", ". Raise the budget"

Planned = TypeVar("Planned")


def advice(num_bytes: int, *, keyword: str = "memory_budget") -> str:
    """Return advice to give a budget of ``num_bytes``. Pure.

    The command line replaces ``keyword`` by its flag. A keyword that ends with ``_bytes`` takes a plain number.
    """
    value = num_bytes if keyword.endswith("_bytes") else f'"{format_bytes(num_bytes).replace(" ", "")}"'
    return f"Give {keyword}={value} or more"


def rounded_up(num_bytes: int) -> int:
    """Return ``num_bytes`` rounded up to three digits, so that the budget is easy to type. Pure."""
    unit = 10 ** max(len(str(num_bytes)) - 3, 0)
    return -(-num_bytes // unit) * unit


def naming_enough(
    error: BudgetError,
    attempt: Callable[[int], object],
    budget_bytes: int,
    *,
    first: int,
    keyword: str = "memory_budget",
) -> BudgetError:
    """Return ``error`` with advice to give a sufficient budget. If none is found, return ``error`` unchanged.

    Parameters
    ----------
    error : the error that ``attempt`` raises with ``budget_bytes``
    attempt, first : see `least_enough`
    budget_bytes : the budget that was too small
    keyword : the setting's name
    """
    enough = least_enough(attempt, first=first) if error.short_bytes else 0
    return error if enough <= budget_bytes else _naming(error, enough, budget_bytes, keyword)


def least_enough(attempt: Callable[[int], object], *, first: int) -> int:
    """Return a budget slightly above the least at which ``attempt`` raises no BudgetError, or 0 if none is found.

    The search begins at ``first`` and rises by the missing bytes until an attempt succeeds. Then a bisection lowers the
    result. The result does not depend on the budget that was too small for the user.

    Parameters
    ----------
    attempt : makes a plan with a budget in bytes
    first : start of the search in bytes, too small for any plan
    """
    low, high = first, first
    for _ in range(_MOST_TRIES):
        lacking = _lacking(attempt, high)
        if lacking is None:
            break
        if not lacking:  # the attempt lacks something other than memory
            return 0
        low, high = high, rounded_up(high + max(lacking, high // _LEAST_STEP))
    else:
        return 0
    # The last step may have been too long, because its missing bytes were computed for a smaller budget.
    while high - low > high // _LEAST_STEP and (middle := rounded_up((low + high) // 2)) < high:
        low, high = (low, middle) if _lacking(attempt, middle) is None else (middle, high)
    return high


def least_planned(plan: Callable[[int], object], *, low: int = _LEAST_BYTES) -> int:
    """Return the least budget in bytes with which ``plan`` succeeds, up to half a percent more.

    Parameters
    ----------
    plan : an attempt
    low : start of the bisection in bytes

    Raises
    ------
    BudgetError
        No budget suffices.
    """
    high = _MOST_BYTES
    plan(high)
    while high > (1 + _TOLERANCE) * low:
        middle = math.isqrt(low * high)  # halves the ratio, because the bounds differ by orders of magnitude
        low, high = (low, middle) if _lacking(plan, middle) is None else (middle, high)
    return high


def planned_within(plan: Callable[[int], Planned], budget_bytes: int) -> Planned:
    """Return ``plan``'s result for a budget. If the budget is too small, the BudgetError names a sufficient one."""
    try:
        return plan(budget_bytes)
    except BudgetError as error:
        raise _naming(error, rounded_up(least_planned(plan)), budget_bytes) from error


def _naming(
    error: BudgetError, enough: int, budget_bytes: int, keyword: str = "memory_budget"
) -> BudgetError:
    """Return a copy of ``error`` that names the sufficient budget ``enough`` instead of advice to raise the budget."""
    cause = error.cause
    for words in _RAISE_ADVICE:
        cause = cause.removesuffix(words)
    return BudgetError(cause, short_bytes=enough - budget_bytes, advice=advice(enough, keyword=keyword))


def _lacking(attempt: Callable[[int], object], budget_bytes: int) -> int | None:
    """Return the bytes that ``attempt`` lacks. None means success, and 0 means an unknown amount."""
    try:
        attempt(budget_bytes)
    except BudgetError as error:
        return error.short_bytes
    return None


def does_not_fit(
    demand: Demand,
    left: int,
    spill_bytes: int,
    cache_bytes: int | None,
    num_batches: int,
    *,
    must_pack: bool,
) -> BudgetError:
    """Return the error for a requested host cache, or for the smallest superbatches, that do not fit. Pure.

    Parameters
    ----------
    demand : the run's measured sizes
    left : bytes of the budget without the fixed parts
    spill_bytes : disk for packs, files with a superbatch's missing rows
    cache_bytes : requested host cache, or None
    num_batches : the smallest superbatch S, in batches that are planned together
    must_pack : whether packs were requested
    """
    # Bytes without the feature buffers and the SSD stores' checksums and read buffers.
    room = max(left - demand.fewest_buffers * demand.buffer_bytes - demand.store_bytes, 0)
    planned = demand.planning_bytes(num_batches)
    packing = demand.packing_bytes(num_batches, room=room) if must_pack and spill_bytes else 0
    if planned + packing <= room and cache_bytes is not None:
        # A requested size counts only rows. The policy's bytes for each row, its slot, are additional. ``share`` is the
        # rows' share in both.
        share = min(
            table.stored_row_bytes / (table.stored_row_bytes + table.slot_bytes) for table in demand.tables
        )
        return BudgetError(
            f"a host cache of {format_bytes(cache_bytes)} does not fit: the other parts leave "
            f"{format_bytes(int(share * (room - planned - packing)))} of the memory budget. Use a smaller cache or "
            "raise the budget",
            short_bytes=max(int(cache_bytes / share) - (room - planned - packing), 1),
        )
    return BudgetError(
        f"superbatches of {num_batches} batches need {format_bytes(planned)} for traces and plans and "
        f"{format_bytes(packing)} for packing; the other parts leave {format_bytes(room)} of the memory budget. Use "
        "smaller superbatches, a smaller batch size, fan-out or cache, or raise the budget",
        short_bytes=max(planned + packing - room, 0),
    )


def require_batch(parts: Sequence[tuple[str, int]], allowed: int, demand: Demand) -> None:
    """Raise BudgetError if ``parts`` and the fewest feature buffers exceed ``allowed`` bytes. Pure.

    ``parts`` has the name and the bytes of each fixed part of the memory plan.
    """
    count = demand.fewest_buffers * demand.num_ranks
    buffers = f"the features of {'a batch' if count == 1 else f'{count} batches'} ({_rows_text(demand)})"
    named = [*parts, (buffers, demand.fewest_buffers * demand.buffer_bytes)]
    needed = sum(num_bytes for _, num_bytes in named)
    if needed > allowed:
        listed = ", ".join(f"{format_bytes(num_bytes)} for {name}" for name, num_bytes in named if num_bytes)
        raise BudgetError(
            f"loading needs {format_bytes(needed)}: {listed}. The loader's share of the memory budget is "
            f"{format_bytes(allowed)}. Use a smaller batch size or fan-out, {_or_other_edges(demand, allowed)}or raise "
            "the budget",
            short_bytes=needed - allowed,
        )


def _rows_text(demand: Demand) -> str:
    """Return a batch's row sizes as text. Pure."""
    if not demand.tables:
        return "none"
    several = len(demand.tables) > 1
    return "about " + " and ".join(
        f"{table.buffer_rows:,} rows of {table.row_bytes:,} B{f' of {table.name}' if several else ''}"
        for table in demand.tables
    )


def _or_other_edges(demand: Demand, allowed: int) -> str:
    """Return advice to move the edges to the SSD, or "" if they take at most their default share of the memory."""
    return "topology='auto', " if demand.topology_bytes > topology_share(allowed) else ""


def require_features(demand: Demand, left: int, features: Features, budget_bytes: int) -> None:
    """Raise BudgetError if ``left`` bytes do not suffice for the requested ``features``. Pure.

    Features in memory ("ram") need all their bytes. Features on the SSD need checksums and read buffers.
    """
    fits = demand.feature_bytes <= left
    if features == "ram" and not fits:
        raise BudgetError(
            f"features in memory need {format_bytes(demand.feature_bytes)}; the memory budget of "
            f"{format_bytes(budget_bytes)} leaves {format_bytes(max(left, 0))}. Use features='ssd' or 'auto', or raise "
            "the budget",
            short_bytes=demand.feature_bytes - left,
        )
    if demand.store_bytes > left and (features == "ssd" or not fits):
        raise BudgetError(
            f"reading features from the SSD needs {format_bytes(demand.store_bytes)} for checksums and "
            f"reads in flight; the memory budget of {format_bytes(budget_bytes)} leaves "
            f"{format_bytes(max(left, 0))}. Raise the budget",
            short_bytes=demand.store_bytes - left,
        )


def require_staging(demand: Demand, left: int, staged_bytes: int, num_batches: int) -> None:
    """Raise BudgetError if a requested io_strategy='staged' has less than ``staged_bytes`` left. Pure."""
    room = left - demand.fewest_buffers * demand.buffer_bytes - demand.store_bytes
    room -= demand.planning_bytes(num_batches)
    if staged_bytes > max(room, 0):
        raise BudgetError(
            f"io_strategy='staged' needs {format_bytes(staged_bytes)} of memory for the missing rows of superbatches "
            f"(superbatch={num_batches}), and {format_bytes(max(room, 0))} of the memory budget are left; raise "
            f"memory_budget by {format_bytes(staged_bytes - room)}, use a smaller superbatch, or io_strategy='auto'",
            short_bytes=staged_bytes - room,
        )
