"""The recording that a run would have left which does what a replay does: work that is known, to be found again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.replay.recording import OPEN_STEPS, RecordedEvent, RecordedTable, Recording, RunHeader
from gloader.ssd_store.cost.io_rates import IoRates

if TYPE_CHECKING:
    from gloader.replay.engine import Event
    from gloader.replay.replay import Replayed
    from gloader.replay.work import Machine, PipelineShape, RunWork

RATES = IoRates(
    random_reads_per_s=50_000.0,
    read_bytes_per_s=1e9,
    write_bytes_per_s=1e9,
    pack_read_bytes_per_s=1e9,
    medium_reads_per_s=40_000.0,
    wide_reads_per_s=12_000.0,
)
READ_BYTES = 4096  # of a request, at random


def recorded(
    replayed: Replayed,
    work: RunWork,
    machine: Machine,
    shape: PipelineShape,
    *,
    disk: float = 1.0,
    strategy: str = "direct",
    **values: Any,
) -> Recording:
    """Return the recording of ``replayed``; each read of the disk is said to be of so many requests as take its time.

    Parameters
    ----------
    replayed, work, machine, shape : the run
    disk : how much longer the disk took than its rates say
    strategy : how superbatches are read
    values : of the header
    """
    starts, first = [], 0
    for one in work.superbatches:
        starts.append(first)
        first += one.num_batches
    events = [
        _event(event, replayed, work, starts, disk=disk, strategy=strategy)
        for event in replayed.events
        if event.stage != "pause"
    ]
    events += _waits(replayed, work)
    facts: dict[str, Any] = {
        "cores": int(machine.cores),
        "torch_threads": 2,
        "device": "cpu",
        "shape": shape,
        "superbatch": max((one.num_batches for one in work.superbatches), default=1),
        "superbatch_unit": 1,
        "sweep_batches": 0,
        "num_hops": 2,
        "policy": "belady",
        "budget_bytes": 10**9,
        "spill_bytes": 10**9,
        "staging_bytes": 0,
        "tables": (RecordedTable(name="features", num_rows=10_000, row_bytes=512, cache_rows=1000),),
        "rates": RATES,
        "state": {"next": [work.batches[0].epoch, work.batches[0].index]},
        "num_batches": 1 + max(batch.index for batch in work.batches),
        "dataset": "nowhere",
        "fingerprint": "none",
    }
    return Recording(
        header=RunHeader(**(facts | values)),
        events=tuple(sorted(events, key=lambda event: event.started_s)),
    )


def _event(
    event: Event, replayed: Replayed, work: RunWork, starts: list[int], *, disk: float, strategy: str
) -> RecordedEvent:
    batch = work.batches[event.batch]
    notes: dict[str, Any] = {"ahead": True} if event.stage == "trace" else {}
    batches, superbatch = 1, sum(start <= event.batch for start in starts) - 1
    if event.stage in ("inspect", "stage", "read", "gather"):
        notes["superbatch"] = superbatch
    if event.stage in ("inspect", "stage") and starts:
        batches = work.superbatches[superbatch].num_batches
    if event.stage == "stage":
        notes["strategy"] = strategy
    if event.stage == "read" and batch.open_steps is not None:
        notes[OPEN_STEPS] = batch.open_steps
    cpu_s = event.demands.cpu_s
    if event.stage == "compute":
        cpu_s += _meanwhile(event, replayed)
    requests = round(event.demands.disk_s / disk * RATES.random_reads_per_s)
    return RecordedEvent(
        stage="sample" if event.stage == "trace" else event.stage,
        thread=event.thread,
        epoch=batch.epoch,
        batch=batch.index,
        batches=batches,
        started_s=event.started_s,
        ended_s=event.ended_s,
        cpu_s=cpu_s,
        requests=requests,
        bytes_read=requests * READ_BYTES,
        bytes_written=0,
        notes=notes,
    )


def _meanwhile(event: Event, replayed: Replayed) -> float:
    """Return the processor seconds that other threads use while ``event`` is under way, evenly over their work."""
    used = 0.0
    for other in replayed.events:
        seconds = other.ended_s - other.started_s
        if other.stage not in ("compute", "pause") and seconds > 0:
            both = min(event.ended_s, other.ended_s) - max(event.started_s, other.started_s)
            used += other.demands.cpu_s * max(both, 0.0) / seconds
    return used


def _waits(replayed: Replayed, work: RunWork) -> list[RecordedEvent]:
    """Return the waits of the loop: each ends where a computation begins, or a transfer."""
    found, ended = [], 0.0
    own = [event for event in replayed.events if event.stage in ("compute", "pause")]
    for event in own:
        batch = work.batches[event.batch]
        if event.stage == "compute":
            found.append(
                RecordedEvent(
                    "wait",
                    event.thread,
                    batch.epoch,
                    batch.index,
                    1,
                    ended,
                    event.started_s,
                    0.0,
                    0,
                    0,
                    0,
                    {},
                )
            )
        ended = event.ended_s
    return found
