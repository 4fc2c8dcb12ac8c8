"""The seconds of a superbatch on 1 to 64 machines, each reading alone or all sharing a sweep: a model on paper.

It is the cost model by which loaders choose (`gloader.ssd_store.cost.exchange_cost`), with given rates in place of
measured ones. `scaling_model.py --machines` prints it; given a result of `machines.py`, it is compared with that.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_bytes, format_seconds
from gloader.ssd_store.cost.exchange_cost import (
    NetworkRates,
    OwnPart,
    choose_exchange,
    expected_union,
    place_received,
    predict_exchange,
)
from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.cost.strategy import MissCounts, choose_strategy

if TYPE_CHECKING:
    from pathlib import Path

MACHINES: Final = (1, 2, 4, 8, 16, 32, 64)
ASSUMPTIONS: Final = (
    "every machine has the same disk and network, and misses as many rows; a step takes a batch of each of them",
    "what one machine misses says nothing of what another does: unions are those of independent draws",
    "owners take nothing from their host caches; each owns 1/W of the rows, and all parts of the file are wanted alike",
    "the network is full duplex and not oversubscribed: all machines send at its rate at once",
    "disk and network work at the same time, round by round; a device that reads and writes does so in turns",
    "copies, checksums and the planning of rounds cost nothing; the CPU is not what limits",
    "a superbatch is read while the one before is computed: its seconds are the longer of both",
    "a step computes for a given time, and ends with a ring all-reduce over the same network",
    "an epoch has 1/W of the steps of one machine",
)

LEGEND: Final = (
    "Seconds and bytes are those of one machine for a superbatch: of its own sweep, and of a common one. The speedup "
    "is that of an epoch over one machine. It is larger than the number of machines where sweeps limit: machines "
    "divide the steps, and the file that each would read alone."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the model is asked about."""

    counts: MissCounts  # of a superbatch of one machine
    num_rows: int
    gap_bytes: int
    rates: IoRates
    network: NetworkRates
    memory_bytes: int  # for missing rows
    spill_bytes: int
    round_bytes: int
    compute_s: float  # of a step
    model_bytes: float  # of the gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A superbatch on so many machines."""

    machines: int
    own_s: float  # of retrieval
    shared_s: float
    is_shared: bool  # as loaders choose
    compute_s: float  # of the superbatch, the all-reduce included
    own_bytes: float  # that the SSD of a machine reads
    shared_bytes: float
    network_bytes: float  # that a machine receives
    speedup: float  # of an epoch, over one machine
    own_speedup: float  # where nobody shares


def predict(case: Case, machines: int) -> Point:
    """Return a superbatch on ``machines`` machines. Pure; the speedups are those over one machine."""
    own = choose_strategy(
        case.counts, case.rates, memory_bytes=case.memory_bytes, spill_bytes=case.spill_bytes
    )
    received_as = place_received(case.counts, memory_bytes=case.memory_bytes, spill_bytes=case.spill_bytes)
    part = OwnPart.of(
        case.counts,
        case.rates,
        case.network,
        own_s=own.predicted_s,
        received_as=received_as,
        gap_bytes=case.gap_bytes,
    )
    parts, shares = [part] * machines, [1 / machines] * machines
    table = {"num_rows": case.num_rows, "row_bytes": case.counts.row_bytes}
    costs = predict_exchange(parts, shares=shares, round_bytes=case.round_bytes, **table)
    choice = choose_exchange(parts, shares=shares, round_bytes=case.round_bytes, **table)
    union = expected_union(parts, **table)
    packs = case.counts.pack_bytes if received_as == "packed" else 0
    compute = case.counts.num_batches * (case.compute_s + _reduce_s(case, machines))
    is_shared = machines > 1 and choice.is_shared
    retrieval = choice.shared_s if is_shared else own.predicted_s
    alone = max(own.predicted_s, case.counts.num_batches * case.compute_s)
    return Point(
        machines=machines,
        own_s=own.predicted_s,
        shared_s=max(cost.total_s for cost in costs),
        is_shared=is_shared,
        compute_s=compute,
        own_bytes=own.read_bytes,
        shared_bytes=union.sweep_bytes / machines + packs,
        network_bytes=(1 - 1 / machines) * case.counts.unique_rows * case.counts.row_bytes,
        speedup=machines * alone / max(retrieval, compute),
        own_speedup=machines * alone / max(own.predicted_s, compute),
    )


def _reduce_s(case: Case, machines: int) -> float:
    """Return the seconds of a ring all-reduce. Pure."""
    part = case.model_bytes / machines / case.network.bytes_per_s + case.network.latency_s
    return 2 * (machines - 1) * part


def table(points: list[Point]) -> str:
    """Return the predictions as a table. Pure."""
    lines = [
        "| machines | own sweep | shared | chosen | compute | SSD | shared | ratio | received | speedup | if alone |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.machines} | {format_seconds(one.own_s)} | {format_seconds(one.shared_s)} "
        f"| {'shared' if one.is_shared else 'own'} | {format_seconds(one.compute_s)} "
        f"| {format_bytes(int(one.own_bytes))} | {format_bytes(int(one.shared_bytes))} "
        f"| {one.shared_bytes / one.own_bytes:.2f} | {format_bytes(int(one.network_bytes))} "
        f"| {one.speedup:.1f}x | {one.own_speedup:.1f}x |"
        for one in points
    ]
    return "\n".join(lines)


def compare(path: Path) -> list[dict[str, Any]]:
    """Return the predictions for each run of a result of `machines.py` beside what was measured.

    Parameters
    ----------
    path : of the result
    """
    result = json.loads(path.read_text())
    settings = result["settings"]
    found = []
    for measured in result["medians"]:
        run = next(
            run
            for run in result["runs"]
            if (run["machines"], run["mode"]) == (measured["machines"], measured["mode"])
        )
        case = _measured_case(run["ranks"][0], settings)
        point = predict(case, measured["machines"])
        is_shared = {"never": False, "always": True, "auto": point.is_shared}[measured["mode"]]
        superbatches = settings["batches"] / case.counts.num_batches
        retrieval = point.shared_s if is_shared and measured["machines"] > 1 else point.own_s
        seconds = superbatches * max(retrieval, case.counts.num_batches * settings["compute"])
        read = superbatches * (point.shared_bytes if is_shared else point.own_bytes)
        found.append(
            {
                "machines": measured["machines"],
                "mode": measured["mode"],
                "measured_s": measured["seconds"],
                "predicted_s": seconds,
                "measured_bytes": measured["bytes_read"],
                "predicted_bytes": read,
            }
        )
    return found


def _measured_case(rank: dict[str, Any], settings: dict[str, Any]) -> Case:
    """Return what the model is asked about a run that was measured. Pure."""
    return Case(
        counts=MissCounts(**rank["counts"]),
        num_rows=rank["num_rows"],
        gap_bytes=rank["gap_bytes"],
        rates=IoRates(**rank["rates"]),
        network=NetworkRates(bytes_per_s=settings["network"], latency_s=settings["latency"]),
        memory_bytes=rank["counts"]["unique_rows"] * (rank["counts"]["row_bytes"] + 4),
        spill_bytes=2**62,
        round_bytes=12 * 2**20,
        compute_s=settings["compute"],
        model_bytes=0.0,
    )


def comparison(found: list[dict[str, Any]]) -> str:
    """Return the comparison as a table. Pure."""
    lines = [
        "| machines | exchange | epoch measured | predicted | error | SSD measured | predicted | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['machines']} | {one['mode']} | {format_seconds(one['measured_s'])} "
        f"| {format_seconds(one['predicted_s'])} | {one['predicted_s'] / one['measured_s'] - 1:+.0%} "
        f"| {format_bytes(int(one['measured_bytes']))} | {format_bytes(int(one['predicted_bytes']))} "
        f"| {one['predicted_bytes'] / one['measured_bytes'] - 1:+.0%} |"
        for one in found
    ]
    return "\n".join(lines)


# papers100M: 64 batches miss 25 M rows of 512 B, 15 M different ones; a sweep for them reads the whole file.
PAPERS: Final = Case(
    counts=MissCounts(
        num_batches=64,
        rows=25_000_000,
        unique_rows=15_000_000,
        row_bytes=512,
        direct_requests=24_000_000,
        direct_bytes=98_304_000_000,
        sweep_requests=57_000,
        sweep_bytes=56_862_000_000,
        pack_bytes=12_800_000_000,
    ),
    num_rows=111_059_956,
    gap_bytes=8192,
    rates=IoRates(
        random_reads_per_s=86_000.0,
        read_bytes_per_s=1.05e9,
        write_bytes_per_s=1.8e9,
        pack_read_bytes_per_s=1.05e9,
        medium_reads_per_s=64_000.0,
    ),
    network=NetworkRates(bytes_per_s=1.25e9, latency_s=1e-4),
    memory_bytes=0,
    spill_bytes=2**62,
    round_bytes=192 * 2**20,
    compute_s=0.1,
    model_bytes=4e6,
)


def to_json(case: Case, points: list[Point]) -> dict[str, Any]:
    """Return the question, the assumptions and the answers as JSON. Pure."""
    return {
        "case": asdict(case),
        "assumptions": list(ASSUMPTIONS),
        "machines": [asdict(point) for point in points],
    }
