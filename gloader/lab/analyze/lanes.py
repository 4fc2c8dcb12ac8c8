"""Lanes with work, one for each thread, measured and replayed under the same names.

A lane shows a thread's work over time. A slice is a piece of work in a lane, such as the sampling of one batch. The
course of a few batches is the work in all lanes from the first batch's sampling to the last batch's computation.

`measured_slices` takes the slices from a recorded run, and `replayed_slices` from its replay, which simulates the
recorded work. `course_of` selects the course for the report page. `write_replay` writes the measured and the replayed
lanes into a file for https://ui.perfetto.dev, as two processes. The format:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gloader.observe.epoch_stats import WORK_NAMES
from gloader.observe.timeline import trace_chunks
from gloader.replay.demands import measure, stage_of
from gloader.replay.work import RESOURCES
from gloader.ssd_store.os_io import REAL_OS, OsIO, write_errors
from gloader.ssd_store.write.atomic_file import write_chunks_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from gloader.lab.analyze.predict import Prediction
    from gloader.replay.recording import Recording


_COURSE_BATCHES: Final = 3  # batches in the shown course
# The stages that work on a single batch. Work on a superbatch covers many batches, and is done earlier.
_BATCH_STAGES: Final = ("sample", "read", "gather", "transfer", "compute")
# The replay's name for sampling ahead: a superbatch's batches are sampled once before, only to know their row ids.
_AHEAD: Final = "trace"
_SHOWN: Final = {_AHEAD: "sample"}  # the user sees one name for both, because the same threads do them


class Slice(NamedTuple):
    """A piece of work in a thread's lane."""

    lane: str  # the stage, numbered if several threads work on it
    stage: str
    epoch: int
    batch: int  # index in the epoch; the first index for several batches
    batches: int  # number of batches that the work covers
    is_ahead: bool  # True if a batch is sampled only for its trace, the ids of its rows
    started_s: float  # seconds of the recording's, the replay's or the course's clock
    ended_s: float
    notes: Mapping[str, Any] = MappingProxyType({})  # further facts, as JSON values

    def to_json(self) -> dict[str, Any]:
        """Return the slice without its notes, which are in the Perfetto file."""
        return {name: value for name, value in self._asdict().items() if name != "notes"}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Slice:
        """Return the slice from a result of `to_json`. Raises TypeError for anything else."""
        return cls(**body)


def measured_slices(recording: Recording) -> list[Slice]:
    """Return the work in a recorded run's threads, with the recording's times. Pure."""
    events = recording.events
    names = _lane_names((event.stage, event.thread) for event in events)
    return [
        Slice(
            lane=names[event.stage, event.thread],
            stage=event.stage,
            epoch=event.epoch,
            batch=event.batch,
            batches=event.batches,
            is_ahead=stage_of(event) == _AHEAD,
            started_s=event.started_s,
            ended_s=event.ended_s,
            notes={
                "cpu_ms": 1e3 * event.cpu_s,
                "requests": event.requests,
                "bytes_read": event.bytes_read,
                "bytes_written": event.bytes_written,
                **event.notes,
            },
        )
        for event in events
    ]


def replayed_slices(prediction: Prediction) -> list[Slice]:
    """Return the work in a replay's threads, by start time, from the replay's first moment on. Pure.

    Work without duration, such as a sweep that a superbatch does not need, is left out.
    """
    batches = prediction.work.batches
    sizes = _superbatch_sizes(prediction)
    found = (event for event in prediction.replayed.events if event.demands.alone_s > 0)
    events = sorted(found, key=lambda event: event.started_s)
    names = _lane_names((_SHOWN.get(event.stage, event.stage), event.thread) for event in events)
    return [
        Slice(
            lane=names[_SHOWN.get(event.stage, event.stage), event.thread],
            stage=_SHOWN.get(event.stage, event.stage),
            epoch=batches[event.batch].epoch,
            batch=batches[event.batch].index,
            batches=sizes.get(event.batch, 1) if event.stage in ("inspect", "stage") else 1,
            is_ahead=event.stage == _AHEAD,
            started_s=event.started_s,
            ended_s=event.ended_s,
            notes={
                "alone_ms": 1e3 * event.demands.alone_s,
                "cpu_ms": 1e3 * event.demands.cpu_s,
                # The resource whose need was met last; "lag" for work that needed no resource, only time.
                "last": RESOURCES[event.limit] if event.limit < len(RESOURCES) else "lag",
            },
        )
        for event in events
    ]


def lane_order(lane: str) -> tuple[int, str]:
    """Return a lane's sort key. Lanes are in the order in which a batch passes the stages. Pure."""
    stage = lane.partition(" ")[0]
    names: Sequence[str] = WORK_NAMES
    return names.index(stage) if stage in names else len(names), lane


def middle_batches(recording: Recording) -> tuple[int, tuple[int, ...]]:
    """Return an epoch that counts for the run's mean, and the indices of up to three batches in its middle. Pure.

    Raises
    ------
    ReplayError
        See `gloader.replay.demands.measure`.
    """
    measured = measure(recording)
    epoch = measured.counted[len(measured.counted) // 2]
    indices = sorted(index for of, index in measured.position_of if of == epoch)
    first = max(0, (len(indices) - _COURSE_BATCHES) // 2)
    return epoch, tuple(indices[first : first + _COURSE_BATCHES])


def course_of(slices: Sequence[Slice], epoch: int, indices: Sequence[int]) -> list[Slice]:
    """Return the work from the first batch's sampling to the last batch's computation. Pure.

    Times count from the start. Work across an end is cut, and waits are left out.

    Parameters
    ----------
    slices : a run's slices
    epoch, indices : the batches, in order. The result is empty if ``slices`` lacks them.
    """
    batch_slices = [
        one
        for one in slices
        if one.epoch == epoch and one.batch in indices and one.stage in _BATCH_STAGES and not one.is_ahead
    ]
    computed = [one.ended_s for one in batch_slices if one.stage == "compute"]
    if not computed:
        return []
    begin_s = min(one.started_s for one in batch_slices if one.batch == indices[0])
    end_s = max(computed)
    return [
        one._replace(
            started_s=max(one.started_s - begin_s, 0.0),
            ended_s=min(one.ended_s, end_s) - begin_s,
            notes={},
        )
        for one in slices
        if one.started_s < end_s and one.ended_s > begin_s and one.stage not in ("wait", "pause")
    ]


def _lane_names(rows: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return each stage's and thread's name: the stage, numbered if it has several threads. Pure."""
    threads: dict[str, set[int]] = {}
    for stage, thread in rows:
        threads.setdefault(stage, set()).add(thread)
    return {
        (stage, thread): stage if len(of_stage) == 1 else f"{stage} {number}"
        for stage, of_stage in threads.items()
        for number, thread in enumerate(sorted(of_stage), start=1)
    }


def _superbatch_sizes(prediction: Prediction) -> Mapping[int, int]:
    """Return each superbatch's number of batches, by its first batch's position."""
    sizes, first = {}, 0
    for superbatch in prediction.work.superbatches:
        sizes[first] = superbatch.num_batches
        first += superbatch.num_batches
    return sizes


MEASURED: Final = 1  # process number of the measured lanes in the file
REPLAYED: Final = 2  # process number of the replayed lanes


def write_replay(path: Path, recording: Recording, prediction: Prediction, *, os_io: OsIO = REAL_OS) -> None:
    """Replace ``path`` with the measured and the replayed lanes, or leave it unchanged.

    Parameters
    ----------
    path : the file, in an existing folder
    recording : the run's recording
    prediction : the same run's replay, with or without changes
    os_io : system calls

    Raises
    ------
    StoreExistsError
        ``path`` exists and is not a regular file.
    StoreWriteError
        Writing failed; no temporary file is left.
    """
    with write_errors(path, "writing", os_io=os_io):
        write_chunks_atomically(path, trace_chunks(replay_events(recording, prediction), {}), os_io=os_io)


def replay_events(recording: Recording, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """Yield the events in both processes. Times are in microseconds from each one's first moment. Pure."""
    measured, replayed = measured_slices(recording), replayed_slices(prediction)
    lanes = sorted({one.lane for one in (*measured, *replayed)}, key=lane_order)
    tracks = {lane: number for number, lane in enumerate(lanes, start=1)}
    name = f"replayed: {prediction.change}" if prediction.change else "replayed"
    yield from _process(MEASURED, "measured", measured, tracks)
    yield from _process(REPLAYED, name, replayed, tracks)


def _process(
    number: int, name: str, slices: Sequence[Slice], tracks: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield a process's name and its lanes' names, then the work in the lanes.

    In Perfetto's format, "M" events name processes and threads, and "X" events are work with a duration.
    """
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}}
    for lane in sorted({one.lane for one in slices}, key=lane_order):
        base = {"ph": "M", "pid": number, "tid": tracks[lane]}
        yield {**base, "name": "thread_name", "args": {"name": lane}}
        yield {**base, "name": "thread_sort_index", "args": {"sort_index": tracks[lane]}}
    origin = min((one.started_s for one in slices), default=0.0)
    for one in slices:
        yield {
            "ph": "X",
            "name": one.stage,
            "cat": "stage",
            "pid": number,
            "tid": tracks[one.lane],
            "ts": 1e6 * (one.started_s - origin),
            "dur": 1e6 * (one.ended_s - one.started_s),
            "args": {
                "epoch": one.epoch,
                "batch": one.batch,
                **({} if one.batches == 1 else {"batches": one.batches}),
                **one.notes,
            },
        }
