"""The cost model of the I/O strategies: which way of reading a superbatch's missing rows is fastest. Pure.

A superbatch's missing rows can be read batch by batch ("direct"), once in file order into memory ("staged"),
or once in file order into a region on disk for each batch, which the batch reads back ("packed").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.core.units import format_bytes, format_seconds
from gloader.errors import BudgetError, ConfigError
from gloader.ssd_store.cost.calibration import STRATEGIES, Calibration, Strategy, learn_factor
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.cost.miss_counts import MissCounts, count_misses

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "STRATEGIES",
    "Calibration",
    "Choice",
    "IoRates",
    "MissCounts",
    "Strategy",
    "choose_strategy",
    "count_misses",
    "learn_factor",
    "predict_seconds",
]

# A pack writes to the disk and wears it, so it must be this much faster than what does not.
PACK_GAIN: Final = 1.15
# Of the computation, that reads may take to count as hidden. What a prediction is off by is corrected behind the first
# superbatch that was read so; with half of the computation, half of the ways that cost the loop nothing were left out.
HIDDEN_SHARE: Final = 0.9
MOVED_GAIN: Final = 1.25  # another way than the fastest has to move so much less


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How the missing rows of a superbatch will be read, and why."""

    strategy: Strategy
    predicted: Mapping[Strategy, float]  # seconds of retrieval of the whole superbatch, by strategy
    reason: str
    factor: float = 1.0  # of the calibration, in the prediction for ``strategy``
    read_bytes: int = (
        0  # that the disk is to read for the whole superbatch, packs that are read back included
    )
    is_exchanged: bool = False  # each machine reads a range of the rows for all of them
    counts: MissCounts | None = None  # of what is read; None: of rows that come from other machines

    @property
    def text(self) -> str:
        """The strategy, for people."""
        return f"{self.strategy}, exchanged" if self.is_exchanged else self.strategy

    @property
    def predicted_s(self) -> float:
        """Seconds predicted for the chosen strategy."""
        return self.predicted[self.strategy]


def predict_seconds(
    counts: MissCounts, rates: IoRates, calibration: Calibration | None = None
) -> dict[Strategy, float]:
    """Return the seconds that each strategy needs for all rows of the superbatch. Pure.

    Parameters
    ----------
    counts : of the superbatch's missing rows
    rates : of the devices
    calibration : from the superbatches before; defaults to none
    """
    known = calibration or Calibration()
    sweep = rates.read_seconds(counts.sweep_requests, counts.sweep_bytes)
    packing = rates.packing_seconds(sweep, counts.pack_bytes / rates.write_bytes_per_s)
    seconds: dict[Strategy, float] = {
        "direct": rates.read_seconds(counts.direct_requests, counts.direct_bytes, calls=counts.num_batches),
        "staged": sweep + rates.dealing_seconds(counts.unique_rows * counts.row_bytes),
        "packed": packing
        + rates.dealing_seconds(counts.pack_bytes)
        + counts.pack_bytes / rates.pack_read_bytes_per_s,
    }
    return {strategy: seconds[strategy] * known.factor(strategy) for strategy in STRATEGIES}


def choose_strategy(
    counts: MissCounts,
    rates: IoRates,
    *,
    memory_bytes: int,
    spill_bytes: int,
    forced: str | None = None,
    calibration: Calibration | None = None,
    is_whole: bool = True,
) -> Choice:
    """Choose how to read a superbatch's missing rows: the fastest way that its budgets allow. Pure.

    Packs write to the disk, and are only chosen if they gain 15% over the better of the others. Where the loop computes
    for longer than two ways take, they cost it the same, and the one that reads and writes the fewest bytes is chosen.

    Parameters
    ----------
    counts : MissCounts
        From `count_misses`, exact.
    rates : IoRates
        Of the devices.
    memory_bytes, spill_bytes : int
        Memory and disk that this superbatch's rows may take.
    forced : str, optional
        A strategy to take whatever it costs; None or "auto" choose.
    calibration : Calibration, optional
        From the superbatches before.
    is_whole : bool
        Whether the file is on the disk. What is missing comes in blocks of megabytes: each batch would bring nearly all
        of them for its own rows, a sweep brings them once.

    Raises
    ------
    ConfigError
        ``forced`` is not a strategy.
    BudgetError
        The forced strategy needs more memory or disk than it may take; says needed and allowed bytes.
    """
    known = calibration or Calibration()
    predicted = predict_seconds(counts, rates, known)
    # A strategy that was asked for by name is taken or fails: another one would spoil what is being compared.
    if forced is not None and forced != "auto":
        strategy = _parse_strategy(forced)
        _require_room(strategy, counts, memory_bytes, spill_bytes)
        return _chosen(strategy, counts, predicted, known, "asked for by io_strategy")
    if counts.rows == 0:
        return _chosen("direct", counts, predicted, known, "no row is missing")
    # In this order: a pack writes, so it must beat the best that does not.
    strategy = "direct"
    compared = predicted if is_whole else predicted | {"direct": math.inf}
    if counts.in_ram_bytes <= memory_bytes and compared["staged"] < compared["direct"]:
        strategy = "staged"
    if counts.pack_bytes <= spill_bytes and compared["packed"] * PACK_GAIN <= compared[strategy]:
        strategy = "packed"
    allowed = _allowed(counts, memory_bytes, spill_bytes)
    fastest, strategy = strategy, _least_moved(strategy, allowed, counts, compared, known)
    reason = _reason(strategy, counts, compared, memory_bytes, spill_bytes, is_fastest=strategy == fastest)
    return _chosen(strategy, counts, predicted, known, reason)


def _allowed(counts: MissCounts, memory_bytes: int, spill_bytes: int) -> list[Strategy]:
    """Return the ways that memory and disk suffice for."""
    ways: list[Strategy] = ["direct"]
    if counts.in_ram_bytes <= memory_bytes:
        ways.append("staged")
    if counts.pack_bytes <= spill_bytes:
        ways.append("packed")
    return ways


def _moved_bytes(counts: MissCounts) -> dict[Strategy, int]:
    """Return what the disk reads and writes, by strategy."""
    return {
        "direct": counts.direct_bytes,
        "staged": counts.sweep_bytes,
        "packed": counts.sweep_bytes + 2 * counts.pack_bytes,
    }


def _least_moved(
    fastest: Strategy,
    allowed: list[Strategy],
    counts: MissCounts,
    seconds: Mapping[Strategy, float],
    known: Calibration,
) -> Strategy:
    """Return ``fastest``, or the way that moves clearly less and is as well hidden behind the computation."""
    hidden_s = HIDDEN_SHARE * known.hidden_s * counts.num_batches
    if seconds[fastest] > hidden_s:
        return fastest
    moved = _moved_bytes(counts)
    least = min((way for way in allowed if seconds[way] <= hidden_s), key=lambda way: moved[way])
    return least if MOVED_GAIN * moved[least] <= moved[fastest] else fastest


def _chosen(
    strategy: Strategy,
    counts: MissCounts,
    predicted: Mapping[Strategy, float],
    known: Calibration,
    reason: str,
) -> Choice:
    read_bytes = {
        "direct": counts.direct_bytes,
        "staged": counts.sweep_bytes,
        "packed": counts.sweep_bytes + counts.pack_bytes,
    }
    return Choice(
        strategy=strategy,
        predicted=predicted,
        reason=reason,
        factor=known.factor(strategy),
        read_bytes=read_bytes[strategy],
        counts=counts,
    )


def _parse_strategy(name: str) -> Strategy:
    for strategy in STRATEGIES:
        if name == strategy:
            return strategy
    raise ConfigError(f"io_strategy={name!r} is unknown; choose one of auto, {', '.join(STRATEGIES)}")


def _require_room(strategy: Strategy, counts: MissCounts, memory_bytes: int, spill_bytes: int) -> None:
    if strategy == "staged" and counts.in_ram_bytes > memory_bytes:
        raise BudgetError(
            f"io_strategy='staged' needs {counts.in_ram_bytes} bytes ({format_bytes(counts.in_ram_bytes)}) of memory "
            f"for the {counts.unique_rows:,} missing rows of {counts.num_batches} batches, and {memory_bytes} "
            f"({format_bytes(memory_bytes)}) are allowed; raise memory_budget, use smaller superbatches, or "
            "io_strategy='auto'"
        )
    if strategy == "packed" and counts.pack_bytes > spill_bytes:
        raise BudgetError(
            f"io_strategy='packed' needs {counts.pack_bytes} bytes ({format_bytes(counts.pack_bytes)}) of disk for "
            f"the {counts.rows:,} missing rows of {counts.num_batches} batches, and {spill_bytes} "
            f"({format_bytes(spill_bytes)}) are allowed; raise spill_budget, use smaller superbatches, or "
            "io_strategy='auto'"
        )


def _reason(
    strategy: Strategy,
    counts: MissCounts,
    predicted: Mapping[Strategy, float],
    memory_bytes: int,
    spill_bytes: int,
    *,
    is_fastest: bool,
) -> str:
    """Say in words why ``strategy`` was chosen over each of the others. Pure."""
    parts = [f"{strategy} takes {_seconds_text(predicted[strategy])}"]
    for other in STRATEGIES:
        if other == strategy:
            continue
        takes = f"{other} {_seconds_text(predicted[other])}"
        needed, allowed, what = {
            "direct": (0, 0, ""),
            "staged": (counts.in_ram_bytes, memory_bytes, "memory"),
            "packed": (counts.pack_bytes, spill_bytes, "disk"),
        }[other]
        if needed > allowed:
            takes += f" (needs {format_bytes(needed)} of {what}, {format_bytes(allowed)} allowed)"
        elif predicted[other] < predicted[strategy]:
            moved = _moved_bytes(counts)
            takes += (
                f" (gains less than {PACK_GAIN - 1:.0%})"
                if is_fastest
                else f" (moves {format_bytes(moved[other])} instead of {format_bytes(moved[strategy])}, and the loop "
                "computes longer than either takes)"
            )
        parts.append(takes)
    return ", ".join(parts)


def _seconds_text(seconds: float) -> str:
    return "brings nearly all blocks for each batch" if math.isinf(seconds) else format_seconds(seconds)
