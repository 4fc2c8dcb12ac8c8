"""The cost model for an exchange: each machine reads its missing rows separately, or one sweep serves all. Pure.

A superbatch is a number of batches that are planned together; its missing rows are in no cache. The machines of a run
train on different batches, so each machine misses other rows of a feature table. A sweep reads a file once, in order.
There are two ways to read the rows:

- Own: each machine sweeps over its file for its rows only.
- Shared, an exchange: each machine sweeps over a range of the table for the rows of all machines. The machines then
  send each other the rows in rounds, each a collective call over the network.

Each machine describes its missing rows, its disk and its network by the numbers in an `OwnPart`. All machines receive
all parts, and so make the same choice. A machine may store only a range of the rows; it then needs the exchange.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Final, Literal, Self

from gloader.core.units import format_bytes, format_seconds
from gloader.errors import BudgetError, ConfigError
from gloader.ssd_store.cost.io_rates import ReadTimes
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.cost.strategy import MissCounts


ReceivedAs = Literal["staged", "packed"]  # received rows stay in memory, or are written into packs

# Factor by which an exchange must be faster, because a machine that reads separately waits for no other machine.
SHARED_GAIN: Final = 1.05
# Collectives that plan an exchange: agreement to start, each machine's number of requested rows, the number of rounds,
# and their bounds.
_PLAN_COLLECTIVES: Final = 4
_STEPS_AHEAD: Final = 2  # collectives by which the ids of a round precede its rows
_ID_BYTES: Final = 8  # bytes of a row id on the network


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRates:
    """The network's rates between the machines while all of them send and receive."""

    bytes_per_s: float  # per machine, in each direction
    latency_s: float  # seconds for one collective without data


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart:
    """A machine's report to the others about its missing rows of a table, its disk and its network.

    Every field is a number that float64 can hold.
    """

    unique_rows: float  # number of distinct missing rows
    sweep_requests: float  # reads in a sweep for these rows, over the entire file
    sweep_bytes: float  # bytes in these reads
    gap_bytes: float  # longest hole that its sweeps bridge
    own_s: float  # best time to read the rows on this machine; inf if it lacks some rows
    # Seconds to write received rows into packs; 0 if they stay in memory, inf if there is no room.
    write_s: float
    read_back_s: float  # seconds to read these packs back and distribute the rows
    is_one_device: float  # 1 if packs share the features' device, else 0
    small_per_s: float  # the rates of `ReadTimes`
    medium_per_s: float
    wide_per_s: float
    bytes_per_s: float
    network_bytes_per_s: float
    latency_s: float

    @classmethod
    def of(
        cls,
        counts: MissCounts,
        rates: IoRates,
        network: NetworkRates,
        *,
        own_s: float,
        received_as: ReceivedAs | None,
        gap_bytes: int,
    ) -> Self:
        """Return this machine's part. Pure.

        The part contains the device's rates without corrections from earlier exchanges, which are the factor in
        `choose_exchange`.

        Parameters
        ----------
        counts : counts of the missing rows
        rates : the machine's device rates
        network : the machine's measured network rates
        own_s : predicted best seconds for reading the rows on this machine; inf if it lacks some rows
        received_as : home for received rows, from `place_received`; None means that there is no room
        gap_bytes : longest hole that a sweep bridges, as in the counts
        """
        times = rates.times
        write = counts.pack_bytes / rates.write_bytes_per_s
        # Received rows are copied ("dealt") to the batches like the rows of an own sweep.
        after = rates.dealing_seconds(counts.unique_rows * counts.row_bytes)
        if received_as == "packed":
            after = rates.dealing_seconds(counts.pack_bytes) + counts.pack_bytes / rates.pack_read_bytes_per_s
        return cls(
            unique_rows=float(counts.unique_rows),
            sweep_requests=float(counts.sweep_requests),
            sweep_bytes=float(counts.sweep_bytes),
            gap_bytes=float(gap_bytes),
            own_s=own_s,
            write_s={"staged": 0.0, "packed": write, None: math.inf}[received_as],
            read_back_s=after,
            is_one_device=float(rates.is_one_device),
            small_per_s=times.small_per_s,
            medium_per_s=times.medium_per_s,
            wide_per_s=times.wide_per_s,
            bytes_per_s=times.bytes_per_s,
            network_bytes_per_s=network.bytes_per_s,
            latency_s=network.latency_s,
        )

    def to_numbers(self) -> tuple[float, ...]:
        """Return the fields in order, for gathering them from all machines. Pure."""
        return astuple(self)

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        """Return the part from the values of `to_numbers`; raises ConfigError for another count of numbers. Pure."""
        names = [field.name for field in fields(cls)]
        if len(numbers) != len(names):
            raise ConfigError(
                f"a machine sent {len(numbers)} numbers of its missing rows, and {len(names)} are expected; use one "
                "version of gloader on all machines"
            )
        return cls(**{name: float(number) for name, number in zip(names, numbers, strict=True)})

    def read_seconds(self, requests: float, num_bytes: float) -> float:
        """Return this machine's seconds for ``num_bytes`` in ``requests`` reads of equal size. Pure."""
        times = ReadTimes(
            small_per_s=self.small_per_s,
            medium_per_s=self.medium_per_s,
            wide_per_s=self.wide_per_s,
            bytes_per_s=self.bytes_per_s,
        )
        return requests * times.seconds(num_bytes / requests) if requests > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """One sweep for all machines' missing rows, under the assumption that machines miss rows independently."""

    rows: float  # number of distinct rows
    sweep_requests: float  # reads in the sweep
    sweep_bytes: float  # bytes in these reads


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCost:
    """One machine's seconds for an exchange."""

    sweep_s: float  # to read the machine's range for all machines
    network_s: float  # to send and receive rows and ids
    write_s: float  # to write received rows into packs
    read_back_s: float  # to read these packs back, and deal rows out
    total_s: float  # less than the sum, because network and disk work at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeChoice:
    """The choice between an exchange and separate reads, with its reason."""

    is_shared: bool  # True for an exchange
    own_s: float  # the slowest machine's seconds with separate reads
    shared_s: float  # the slowest machine's seconds with an exchange
    reason: str


def place_received(
    counts: MissCounts, *, memory_bytes: int, spill_bytes: int, forced: str | None = None
) -> ReceivedAs | None:
    """Return the home for rows received from other machines: memory, else packs, or None without room. Pure.

    Parameters
    ----------
    counts : the missing rows' counts
    memory_bytes, spill_bytes : memory and disk for the rows
    forced : "staged" or "packed" allows only that home, "direct" none; None or "auto" allows both
    """
    allowed = ("staged", "packed") if forced is None or forced == "auto" else (forced,)
    if "staged" in allowed and counts.in_ram_bytes <= memory_bytes:
        return "staged"
    return "packed" if "packed" in allowed and counts.pack_bytes <= spill_bytes else None


def expected_union(parts: Sequence[OwnPart], *, num_rows: int, row_bytes: int) -> Union:
    """Return the reads of one sweep for all machines over the entire file. Pure.

    Machines draw their batches independently, so the probability that all machines skip a row, or a byte in the file,
    is a product. A read of the union begins where one machine's read begins, unless another machine's read covers this
    byte, or ends so close before it that the sweep bridges the hole.

    Parameters
    ----------
    parts : all machines' parts
    num_rows, row_bytes : the table's N and R
    """
    file_bytes = max(num_rows * row_bytes, 1)
    skipped_rows = math.prod(1 - min(part.unique_rows / max(num_rows, 1), 1.0) for part in parts)
    # Each read counts with the longest hole after it: if the next read begins there, the sweep bridges the hole.
    gap = max((part.gap_bytes for part in parts), default=0.0)
    uncovered = [_uncovered_share(part, file_bytes, gap) for part in parts]
    # Two reads that begin on the same page count once, so each read covers half a page more.
    free = [_uncovered_share(part, file_bytes, gap + ALIGNMENT / 2) for part in parts]
    requests = sum(
        part.sweep_requests * math.prod(free[:number] + free[number + 1 :])
        for number, part in enumerate(parts)
    )
    # The hole after each read of the union was counted above, but is not read.
    swept = file_bytes * (1 - math.prod(uncovered)) - gap * requests
    longest = max((part.sweep_bytes for part in parts), default=0.0)
    return Union(
        rows=num_rows * (1 - skipped_rows),
        sweep_requests=max(requests, 1.0) if longest else 0.0,
        sweep_bytes=max(swept, longest),
    )


def _uncovered_share(part: OwnPart, file_bytes: int, hole_bytes: float) -> float:
    """Return the file's share that a machine's reads, each with ``hole_bytes`` after it, do not cover. Pure."""
    return max(1 - (part.sweep_bytes + hole_bytes * part.sweep_requests) / file_bytes, 0.0)


def predict_exchange(
    parts: Sequence[OwnPart], *, num_rows: int, row_bytes: int, shares: Sequence[float], round_bytes: int
) -> tuple[ExchangeCost, ...]:
    """Return an exchange's cost on each machine. Pure.

    Rows in the machines' host caches need no read, and make the sweep cheaper than predicted.

    Parameters
    ----------
    parts : the W machines' parts
    num_rows, row_bytes : the table's N and R
    shares : (W,) each machine's share of the table's rows; the sum is 1
    round_bytes : bytes that a machine sends or receives in a round
    """
    union = expected_union(parts, num_rows=num_rows, row_bytes=row_bytes)
    wanted = sum(part.unique_rows for part in parts)
    width = row_bytes + _ID_BYTES  # an id requests each row
    # A machine receives its rows from the other ranges, and sends the rows of its range that others miss. The larger
    # amount determines the time.
    moved = [
        width * max((1 - share) * part.unique_rows, share * (wanted - part.unique_rows))
        for part, share in zip(parts, shares, strict=True)
    ]
    # All machines take part in every round.
    rounds = math.ceil(max(moved) / max(round_bytes, 1))
    collectives = count_collectives(rounds)
    return tuple(
        _cost_of(part, union, share=share, moved_bytes=num_bytes, rounds=rounds, collectives=collectives)
        for part, share, num_bytes in zip(parts, shares, moved, strict=True)
    )


def count_collectives(num_rounds: int) -> int:
    """Return the number of collectives in an exchange. Without a round there are only those for planning. Pure."""
    return _PLAN_COLLECTIVES + (num_rounds + _STEPS_AHEAD if num_rounds else 0)


def _cost_of(
    part: OwnPart, union: Union, *, share: float, moved_bytes: float, rounds: int, collectives: int
) -> ExchangeCost:
    """Return one machine's cost, for its ``share`` of the common sweep. Pure."""
    sweep = part.read_seconds(share * union.sweep_requests, share * union.sweep_bytes)
    network = moved_bytes / part.network_bytes_per_s + collectives * part.latency_s
    # One device reads and writes in turns; two devices work at the same time.
    disk = sweep + part.write_s if part.is_one_device else max(sweep, part.write_s)
    # A transfer overlaps the next round's read. Only the first read and the last transfer do not overlap.
    total = max(disk, network) + min(disk, network) / max(rounds, 1) + part.read_back_s
    return ExchangeCost(
        sweep_s=sweep,
        network_s=network,
        write_s=part.write_s,
        read_back_s=part.read_back_s,
        total_s=total,
    )


def choose_exchange(
    parts: Sequence[OwnPart],
    *,
    num_rows: int,
    row_bytes: int,
    shares: Sequence[float],
    round_bytes: int,
    factor: float = 1.0,
) -> ExchangeChoice:
    """Choose an exchange or separate reads, for all machines together. The slowest machine counts. Pure.

    The same parts give the same choice on every machine. An exchange must be 5% faster, because a machine that reads
    separately waits for no other machine.

    Parameters
    ----------
    parts, num_rows, row_bytes, shares, round_bytes : as in `predict_exchange`
    factor : the slowest machine's measured over predicted time, from the exchanges so far

    Raises
    ------
    BudgetError
        A machine lacks some rows, and another machine has no room for received rows.
    """
    costs = predict_exchange(
        parts, num_rows=num_rows, row_bytes=row_bytes, shares=shares, round_bytes=round_bytes
    )
    own_s = max(part.own_s for part in parts)
    shared_s = factor * max(cost.total_s for cost in costs)
    if math.isinf(own_s) and math.isinf(shared_s):
        _refuse(parts, row_bytes)
    is_shared = shared_s * SHARED_GAIN <= own_s
    return ExchangeChoice(
        is_shared=is_shared,
        own_s=own_s,
        shared_s=shared_s,
        reason=_reason(costs, own_s, shared_s, is_shared=is_shared),
    )


def _refuse(parts: Sequence[OwnPart], row_bytes: int) -> None:
    """Raise `BudgetError` about the first machine that has no room for received rows."""
    number = next(number for number, part in enumerate(parts) if math.isinf(part.write_s))
    num_bytes = int(parts[number].unique_rows * row_bytes)
    raise BudgetError(
        f"machine {number} of {len(parts)} has no room for the {int(parts[number].unique_rows):,} rows "
        f"({format_bytes(num_bytes)}) of a superbatch that come from other machines; "
        "raise its memory_budget or spill_budget, or use smaller superbatches"
    )


def _reason(costs: Sequence[ExchangeCost], own_s: float, shared_s: float, *, is_shared: bool) -> str:
    """Return the reason as text. Pure."""
    if math.isinf(own_s):
        return "shared: no machine has all rows"
    if math.isinf(shared_s):
        return "own: a machine has no room for rows from others"
    slowest = max(costs, key=lambda cost: cost.total_s)
    parts = [("sweep", slowest.sweep_s), ("network", slowest.network_s)]
    parts += [("packs", slowest.write_s + slowest.read_back_s)] if slowest.write_s else []
    shared = f"a common sweep takes {format_seconds(shared_s)} ("
    shared += ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts) + ")"
    own = f"own sweeps {format_seconds(own_s)}"
    if not is_shared and shared_s < own_s:
        own += f" (gains less than {SHARED_GAIN - 1:.0%})"
    return f"{shared}, {own}" if is_shared else f"{own}, {shared}"
