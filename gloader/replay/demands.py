"""A recorded run's demands: the resources that each piece of work used, without its waits. Pure.

A piece of work is one stage's work on one batch, one superbatch or one pass; `gloader.replay.work` explains the stages.
A piece's demands are the seconds for which it uses each resource. `measure` takes times from a recording, and `work_of`
makes the recording's `RunWork`. `gloader.replay.calibrate` then fits the work's demands to the times.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.errors import ReplayError
from gloader.replay.recording import OPEN_STEPS
from gloader.replay.work import NOTHING, BatchWork, Demands, PassWork, RunWork, SuperbatchWork

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.replay.recording import RecordedEvent, Recording
    from gloader.ssd_store.cost.io_rates import IoRates

# The stages of the training loop's thread. Other threads do everything else at the same time.
_LOOP_STAGES: Final = ("compute", "wait")
_BATCH_STAGES: Final = ("trace", "sample", "read", "gather", "transfer")  # the other stages of one batch
_SWEEP_READ_BYTES: Final = 256 * 1024  # assumed bytes per read, if a pass's reads were not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A recording's measurements for the whole run."""

    # By epoch: seconds from the loop's request for the first batch to the last step's end.
    epoch_s: dict[int, float]
    # By stage: mean seconds for a piece of work. The stage "trace" is sampling ahead.
    stage_s: dict[str, float]
    # By epoch and index in the epoch: stream positions of this rank's batches. The stream has all ranks' batches of all
    # epochs in order, with the ranks interleaved.
    position_of: dict[tuple[int, int], int]

    @property
    def counted(self) -> tuple[int, ...]:
        """The epochs that predictions cover: all epochs but the first, or the first if it is the only one."""
        return counted_of(self.epoch_s)

    @property
    def seconds(self) -> float:
        """Mean seconds over the counted epochs."""
        return sum(self.epoch_s[epoch] for epoch in self.counted) / len(self.counted)


def counted_of(epochs: Collection[int]) -> tuple[int, ...]:
    """Return the epochs that predictions cover, ascending. Pure.

    The first epoch is left out if there are others, because it begins with nothing prepared.
    """
    found = sorted(epochs)
    return tuple(found[1:] or found)


def stage_of(event: RecordedEvent) -> str:
    """Return an event's stage, or "trace" for a batch that is sampled ahead. Pure."""
    return "trace" if event.stage == "sample" and event.notes.get("ahead") else event.stage


def measure(recording: Recording) -> Measured:
    """Return a recording's measurements. Pure.

    Raises
    ------
    ReplayError
        No batch was computed, or batches are missing because the loop left an epoch before its end.
    """
    computed = sorted(
        (e for e in recording.events if e.stage == "compute"), key=lambda event: event.started_s
    )
    if not computed:
        raise ReplayError("no batch was computed while the run was recorded")
    header, ranks = recording.header, recording.header.shape.num_ranks
    # The loop must have computed every batch in order, from the loader's position at the start of the recording.
    epoch, index = header.state["next"]
    for event in computed:
        if (event.epoch, event.batch) != (epoch, index):
            raise ReplayError(
                f"the recording goes on with epoch {event.epoch}, batch {event.batch}, where epoch {epoch}, batch "
                f"{index} would follow; record a run whose loop takes every batch"
            )
        epoch, index = (epoch, index + 1) if index + 1 < header.num_batches else (epoch + 1, 0)
    requested_s = {(e.epoch, e.batch): e.started_s for e in recording.events if e.stage == "wait"}
    began_s: dict[int, float] = {}
    ended_s: dict[int, float] = {}
    for event in computed:
        began_s.setdefault(event.epoch, requested_s.get((event.epoch, event.batch), event.started_s))
        ended_s[event.epoch] = event.ended_s
    return Measured(
        epoch_s={number: ended_s[number] - began_s[number] for number in began_s},
        stage_s=_stage_seconds(recording.events, counted_of(began_s)),
        position_of={(e.epoch, e.batch): number * ranks for number, e in enumerate(computed)},
    )


def work_of(recording: Recording, measured: Measured, *, rates: IoRates | None = None) -> RunWork:
    """Return a recorded run's work. Pure.

    Parameters
    ----------
    recording : the run's recording
    measured : the recording's measurements
    rates : another disk's rates; None means the recorded disk

    Raises
    ------
    ReplayError
        Pieces of work are missing.
    """
    shape, ranks = recording.header.shape, recording.header.shape.num_ranks
    num_batches = len(measured.position_of) * ranks
    # Stage -> (epoch, index) -> events.
    by_stage: dict[str, dict[tuple[int, int], list[RecordedEvent]]] = defaultdict(lambda: defaultdict(list))
    for event in recording.events:
        by_stage[stage_of(event)][event.epoch, event.batch].append(event)
    compute_cpu = _compute_cpu(recording.events)
    strategies = strategies_of(recording)
    pauses = _pauses(recording.events)
    rates = rates or recording.header.rates
    batches = []
    for epoch, index in measured.position_of:
        for rank in range(ranks):
            # Ranks have batches with the same epoch and index. A stage's events for these are in the ranks' order.
            events = {
                stage: of_batch[rank]
                for stage in by_stage
                if len(of_batch := by_stage[stage][epoch, index]) > rank
            }
            batches.append(
                BatchWork(
                    epoch=epoch,
                    index=index,
                    **{name: demands_of(events.get(name), rates, strategies) for name in _BATCH_STAGES},
                    # No recording has other ranks' computation. It is assumed to equal this rank's.
                    compute=Demands(cpu_s=compute_cpu[epoch, index]),
                    open_steps=events["read"].notes.get(OPEN_STEPS) if "read" in events else None,
                    pause_s=pauses.get((epoch, index), 0.0),
                )
            )
    return RunWork(
        batches=tuple(batches),
        superbatches=_superbatches(recording, measured, num_batches, rates) if shape.is_planned else (),
        passes=_passes(recording, num_batches, rates),
        num_known=_num_known(recording),
    )


def demands_of(
    event: RecordedEvent | None, rates: IoRates, strategies: Mapping[int, str] | None = None
) -> Demands:
    """Return an event's demands: its processor time, and its reads' disk time from the rates. Pure.

    Parameters
    ----------
    event : a piece of work, or None
    rates : the disk's rates
    strategies : each superbatch's read strategy by its number, for events that read a batch; see `strategies_of`
    """
    if event is None:
        return NOTHING
    strategy = (strategies or {}).get(event.notes.get("superbatch", -1), "direct")
    return disk_demands(
        rates,
        cpu_s=event.cpu_s,
        requests=event.requests,
        bytes_read=event.bytes_read,
        bytes_written=event.bytes_written,
        is_pack=event.stage == "read" and strategy == "packed",
    )


def disk_demands(
    rates: IoRates,
    *,
    cpu_s: float,
    requests: float = 0.0,
    bytes_read: float = 0.0,
    bytes_written: float = 0.0,
    is_pack: bool = False,
) -> Demands:
    """Return the demands for work that reads and writes. Pure.

    Parameters
    ----------
    rates : the disk's rates
    cpu_s : the work's processor seconds
    requests : number of reads; 0 if unknown
    bytes_read, bytes_written : the moved bytes
    is_pack : True if the work reads a region of a pack, a file with a superbatch's missing rows batch by batch
    """
    spilled = bytes_written / rates.write_bytes_per_s
    read = 0.0
    if is_pack:
        spilled += bytes_read / rates.pack_read_bytes_per_s
    elif bytes_read:
        read = rates.read_seconds(requests or max(bytes_read / _SWEEP_READ_BYTES, 1.0), bytes_read)
    if rates.is_one_device:
        return Demands(cpu_s=cpu_s, disk_s=rates.packing_seconds(read, spilled))
    return Demands(cpu_s=cpu_s, disk_s=read, spill_s=spilled)


def _stage_seconds(events: Sequence[RecordedEvent], counted: Collection[int]) -> dict[str, float]:
    """Return each stage's mean seconds over the ``counted`` epochs, or over all if it has no work in these. Pure."""
    of_counted: dict[str, list[float]] = defaultdict(list)
    of_all: dict[str, list[float]] = defaultdict(list)
    for event in events:
        of_all[stage_of(event)].append(event.seconds)
        if event.epoch in counted:
            of_counted[stage_of(event)].append(event.seconds)
    return {name: fmean(of_counted.get(name) or found) for name, found in of_all.items()}


def _superbatches(
    recording: Recording, measured: Measured, num_batches: int, rates: IoRates
) -> tuple[SuperbatchWork, ...]:
    """Return the superbatches for the first ``num_batches``.

    Batches whose superbatch was planned before the recording began form one superbatch without demands.
    """
    staged = {event.notes["superbatch"]: event for event in recording.events if event.stage == "stage"}
    inspected = [
        event
        for event in recording.events
        if event.stage == "inspect" and (event.epoch, event.batch) in measured.position_of
    ]
    first = measured.position_of[inspected[0].epoch, inspected[0].batch] if inspected else num_batches
    found = [SuperbatchWork(num_batches=first)] if first else []
    num_left = num_batches - first
    for event in inspected:
        size = min(event.batches, num_left)
        found.append(
            SuperbatchWork(
                num_batches=size,
                inspect=demands_of(event, rates),
                stage=demands_of(staged.get(event.notes["superbatch"]), rates),
            )
        )
        num_left -= size
    if num_left:
        raise ReplayError(f"the superbatches of {num_left} batches were not recorded; record the run again")
    return tuple(found)


def _passes(recording: Recording, num_batches: int, rates: IoRates) -> tuple[PassWork, ...]:
    """Return the recorded passes over the edges, which must serve the first ``num_batches``."""
    header = recording.header
    # The limit that `gloader.pipeline.edge_sweeps` applies.
    most = 2 * (header.sweep_batches + header.superbatch)
    found = [
        PassWork(
            sweep=demands_of(event, rates),
            completed=min(event.notes["completed"], num_batches),
            most_waiting=most,
        )
        for event in recording.events
        if event.stage == "sweep"
    ]
    if found and found[-1].completed < num_batches:
        raise ReplayError("passes over the edges are missing from the recording; record the run again")
    return tuple(found)


def _num_known(recording: Recording) -> int:
    """Return the number of positions that needed no pass, because their batches were sampled to plan the memory."""
    known = {(event.epoch, event.batch) for event in recording.events if event.notes.get("known")}
    return len(known) * recording.header.shape.num_ranks


def strategies_of(recording: Recording) -> dict[int, str]:
    """Return each superbatch's read strategy, by its number. Pure."""
    return {
        # Several tables may have several strategies; the first counts.
        event.notes["superbatch"]: event.notes["strategy"].split(",")[0]
        for event in recording.events
        if event.stage == "stage" and "strategy" in event.notes
    }


def _pauses(events: Sequence[RecordedEvent]) -> dict[tuple[int, int], float]:
    """Return the seconds of the loop's pauses between two epochs, by (epoch, 0): the next requested batch. Pure."""
    found, before = {}, None
    # The events are sorted by ends, because a wait without duration begins together with the computation after it.
    for event in sorted((e for e in events if e.stage in _LOOP_STAGES), key=lambda event: event.ended_s):
        if event.stage == "wait" and event.batch == 0 and before is not None:
            found[event.epoch, event.batch] = max(event.started_s - before.ended_s, 0.0)
        if event.stage == "compute":
            before = event
    return found


def _compute_cpu(events: Sequence[RecordedEvent]) -> dict[tuple[int, int], float]:
    """Return each computation's processor seconds: the process's seconds minus other threads' seconds. Pure.

    Other threads are assumed to use the processor evenly while they work.
    """
    others = [
        event for event in events if event.stage not in _LOOP_STAGES and event.ended_s > event.started_s
    ]
    computed = [event for event in events if event.stage == "compute"]
    times, used = _use_over_time(others)
    found = {}
    for event in computed:
        meanwhile = float(np.interp(event.ended_s, times, used) - np.interp(event.started_s, times, used))
        found[event.epoch, event.batch] = max(event.cpu_s - meanwhile, 0.0)
    return found


def _use_over_time(events: Sequence[RecordedEvent]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return moments (K,) and the processor seconds (K,) that ``events`` used before each moment. Pure."""
    if not events:
        return np.zeros(1), np.zeros(1)
    # Each event raises the total use per second at its start, and lowers it at its end.
    rates = np.array([event.cpu_s / event.seconds for event in events])
    moments = np.concatenate([[event.started_s for event in events], [event.ended_s for event in events]])
    changes = np.concatenate([rates, -rates])
    order = np.argsort(moments, kind="stable")
    moments, changes = moments[order], changes[order]
    rate = np.cumsum(changes)
    used = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(moments))])
    return moments, used
