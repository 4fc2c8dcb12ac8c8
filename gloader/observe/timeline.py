"""The timeline: a record of each stage's work, for the viewer Perfetto. Recording one event takes a microsecond.

An event is one piece of work by one thread, such as the sampling of a batch: ten integers (`FIELDS`) and optional
notes. Each thread collects its events in memory. At the end they become a file in the Chrome trace format
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). A track is a thread's line on the
screen, a slice is an event on a track, and a flow is a chain of arrows through all slices of a batch.

`gloader.observe.instruments` records an event at the end of each piece of work. `TimelineRecorder` keeps all events of
a run, for a loader with ``trace=True``. `RecentTimeline` keeps those of the latest epochs in little memory, enough to
replay one of them: `gloader.replay` predicts an epoch's time under other settings from its recorded work.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from gloader.errors import ConfigError
from gloader.observe.epoch_stats import WORK_NAMES
from gloader.replay.recording import HEADER_KEY, parse_recording
from gloader.ssd_store.os_io import REAL_OS, OsIO, write_errors
from gloader.ssd_store.write.atomic_file import write_chunks_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.observe.epoch_stats import WorkName
    from gloader.replay.recording import Recording, RunHeader
    from gloader.types import BatchId, IdArray


# The integers of an event, in order. ``stage`` is a position in `WORK_NAMES`; ``index`` is the batch in its epoch;
# ``batches`` is the number of batches from this one on, more than 1 for work on a superbatch.
FIELDS: Final = (
    "stage",
    "epoch",
    "index",
    "batches",
    "started_ns",
    "ended_ns",
    "cpu_ns",
    "requests",
    "bytes_read",
    "bytes_written",
)
# The columns of an array of events, by name.
_STAGE, _EPOCH, _INDEX, _BATCHES, _STARTED, _ENDED, _CPU, _REQUESTS, _READ, _WRITTEN = range(len(FIELDS))
_PROCESS: Final = 1  # the process number in the file
# Stages: a waiting consumer, which belongs to no batch's flow, and the last work on a batch.
_WAIT, _LAST = WORK_NAMES.index("wait"), WORK_NAMES.index("compute")
_INDEX_BITS: Final = 32  # low bits of a batch key, for the index; the epoch is above them
_ROWS_AT_ONCE: Final = 4096  # events turned into Python numbers together


class Used(NamedTuple):
    """Resources that an event's work used: the last four of `FIELDS`."""

    cpu_ns: int = 0  # processor time of the thread and its helpers; of the whole process for "compute"
    requests: int = 0  # reads issued to the SSD
    bytes_read: int = 0  # from the SSD
    bytes_written: int = 0  # to the SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """The events of one thread."""

    thread_name: str  # label of the track
    events: bytes  # n events of ten int64 each
    notes: Mapping[int, Mapping[str, Any]]  # byte offset of an event in ``events`` -> its notes

    @property
    def table(self) -> IdArray:
        """The events as an array, (n, 10) int64, with `FIELDS` as columns."""
        return np.frombuffer(self.events, dtype=np.int64).reshape(-1, len(FIELDS))


def timeline_events(records: Sequence[TrackRecord]) -> Iterator[dict[str, Any]]:
    """Yield the file's entries for ``records``: names, slices, then arrows. Times in microseconds. Pure.

    An entry is a JSON object in the Chrome trace format. Its "ph" is the kind: "M" a name or position, "X" a slice,
    and "s", "t", "f" the start, a middle and the end of a flow. "pid" and "tid" are the process and the track.
    """
    tables = [record.table for record in records]
    starts = [int(table[:, _STARTED].min()) for table in tables if len(table)]
    origin = min(starts, default=0)
    threads = _assign_threads(records, tables)
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": "gloader"}}
    yield from _names(records, tables, threads)
    for record, table, thread in zip(records, tables, threads, strict=True):
        for number, row in enumerate(_rows(table)):
            notes = record.notes.get(number * 8 * len(FIELDS), {})  # 8 bytes per integer
            yield _slice(row, notes, thread, origin)
    yield from _arrows(tables, threads, origin)


def _rows(table: IdArray) -> Iterator[list[int]]:
    """Yield ``table``'s rows as lists of Python numbers. Pure."""
    for first in range(0, len(table), _ROWS_AT_ONCE):
        yield from table[first : first + _ROWS_AT_ONCE].tolist()


def _assign_threads(records: Sequence[TrackRecord], tables: Sequence[IdArray]) -> list[int]:
    """Return each record's track number, from 1 on. Pure.

    Threads with the same name that ran one after another share a track.
    """
    # Sampler threads end with each run, and the next run starts others with the same names.
    order = sorted(
        range(len(records)), key=lambda i: int(tables[i][:, _STARTED].min(initial=np.iinfo(np.int64).max))
    )
    assigned = [0] * len(records)
    ends: dict[int, int] = {}  # by track: the end of its last event, in ns
    names: dict[int, str] = {}  # by track: its threads' name
    for i in order:
        name, table = records[i].thread_name, tables[i]
        begin = int(table[:, _STARTED].min(initial=np.iinfo(np.int64).max))
        free = [track for track, other in names.items() if other == name and ends[track] <= begin]
        track = free[0] if free else len(names) + 1
        assigned[i], names[track] = track, name
        ends[track] = max(ends.get(track, 0), int(table[:, _ENDED].max(initial=0)))
    return assigned


def _names(
    records: Sequence[TrackRecord], tables: Sequence[IdArray], threads: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield each track's name and position, in the order in which a batch passes the stages."""
    named: set[int] = set()
    for record, table, thread in zip(records, tables, threads, strict=True):
        if thread in named:
            continue
        named.add(thread)
        first_stage = int(table[:, _STAGE].min(initial=len(WORK_NAMES)))
        base = {"ph": "M", "pid": _PROCESS, "tid": thread}
        yield {**base, "name": "thread_name", "args": {"name": record.thread_name}}
        # Tracks are sorted by stage, then by number; no loader has 1,000 threads.
        yield {**base, "name": "thread_sort_index", "args": {"sort_index": first_stage * 1000 + thread}}


def _slice(row: Sequence[int], notes: Mapping[str, Any], thread: int, origin: int) -> dict[str, Any]:
    """Return the slice for one event. ``origin`` is the time that the file counts from, in ns."""
    name = WORK_NAMES[row[_STAGE]]
    event = {
        "ph": "X",
        "pid": _PROCESS,
        "tid": thread,
        "ts": (row[_STARTED] - origin) / 1e3,
        "dur": (row[_ENDED] - row[_STARTED]) / 1e3,
    }
    args: dict[str, Any] = {"epoch": row[_EPOCH], "batch": row[_INDEX]}
    if row[_BATCHES] != 1:
        args["batches"] = row[_BATCHES]
    args |= {key: plain(value) for key, value in notes.items()}
    args["cpu_us"] = row[_CPU] / 1e3
    args |= {FIELDS[column]: row[column] for column in (_REQUESTS, _READ, _WRITTEN) if row[column]}
    return {**event, "name": name, "cat": "stage", "args": args}


def _arrows(tables: Sequence[IdArray], threads: Sequence[int], origin: int) -> Iterator[dict[str, Any]]:
    """Yield each batch's flow through the slices that worked on it.

    A flow ends when the batch is computed. The same batch in another run begins a new flow.
    """
    stops = _stops(tables, threads)
    if not len(stops):
        return
    # Sorted by batch, then by time, so that each flow is a range of consecutive rows. The columns are as in `_stops`.
    stops = stops[np.lexsort((stops[:, 1], stops[:, 0]))]
    is_last = np.append(stops[1:, 0] != stops[:-1, 0], True)
    ends = is_last | (stops[:, 3] == _LAST)
    begins = np.append(True, ends[:-1])
    flows = np.cumsum(begins)
    columns = (stops[:, 1], stops[:, 2], begins, ends, flows)
    for time_ns, thread, begin, end, flow in _rows(np.stack(columns, axis=1)):
        if begin and end:
            continue  # a flow through a single slice has no arrow
        event = {"ph": "s" if begin else "f" if end else "t", "name": "batch", "cat": "batch", "id": flow}
        if end:
            event["bp"] = "e"  # the arrow ends at the enclosing slice, not at the next one
        yield {**event, "pid": _PROCESS, "tid": thread, "ts": (time_ns - origin) / 1e3}


def _stops(tables: Sequence[IdArray], threads: Sequence[int]) -> IdArray:
    """Return the points that flows pass through, one for each batch of each slice, (n, 4) int64. Pure.

    Columns are the batch key (epoch and index), the middle of the slice in ns, the track and the stage. A slice over
    several batches names only the first batch; the others are the next known keys.
    """
    columns: list[NDArray[np.int64]] = []
    for table, thread in zip(tables, threads, strict=True):
        work = table[table[:, _STAGE] != _WAIT]
        keys = (work[:, _EPOCH] << _INDEX_BITS) + work[:, _INDEX]
        middles = (work[:, _STARTED] + work[:, _ENDED]) // 2
        columns.append(
            np.stack([keys, middles, np.full_like(keys, thread), work[:, _STAGE], work[:, _BATCHES]], axis=1)
        )
    if not columns:
        return np.empty((0, 4), dtype=np.int64)
    stops = np.concatenate(columns)
    # Work on a superbatch is one slice, but the flow of each of its batches passes through it.
    is_single = stops[:, 4] == 1
    known = np.unique(stops[is_single, 0])
    spread = [stops[is_single, :4]]
    for key, middle, thread, stage, batches in stops[~is_single].tolist():
        first = int(np.searchsorted(known, key))
        keys = known[first : first + batches]
        rest = np.tile(np.array([middle, thread, stage], dtype=np.int64), (len(keys), 1))
        spread.append(np.column_stack([keys, rest]))
    return np.concatenate(spread)


def plain(value: object) -> object:
    """Return ``value`` as a JSON value. Other values become text. Pure."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    return str(value)


NoteValue: TypeAlias = int | float | str | bool  # a fact of an event's notes

# 40 MB of events, and up to 180 MB of notes. An epoch of 1,000 batches has about 8,000 events.
MAX_EVENTS: Final = 500_000
_LINES_PER_CHUNK: Final = 4096  # entries of the file that are written together
_CODES: Final = {name: code for code, name in enumerate(WORK_NAMES)}  # stage -> its number in an event
_NOTHING_USED: Final = Used()
_pack = struct.Struct(f"={len(FIELDS)}q").pack  # writes an event's ten integers as int64


class _Track:
    """One thread's events. Only this thread adds to them."""

    __slots__ = ("dropped", "events", "name", "notes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.events = bytearray()  # ten int64 per event, as bytes: the garbage collector does not walk bytes
        self.notes: dict[int, dict[str, NoteValue]] = {}  # offset of an event in `events` -> its notes
        self.dropped = 0  # events beyond the recorder's limit


class TimelineRecorder:
    """Records events of any thread without a lock, and writes them as a file for https://ui.perfetto.dev.

    Thread-safe. Events beyond ``max_events`` are only counted.

    Parameters
    ----------
    max_events : largest number of kept events; each takes 80 bytes, and its notes more

    Raises
    ------
    ConfigError
        ``max_events`` is below 1.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise ConfigError(f"max_events = {max_events} is not allowed; give at least 1")
        self._max_events = max_events
        # One ticket per event. `next` is atomic, so the limit needs no lock.
        self._tickets = itertools.count()
        self._tracks: list[_Track] = []  # one per thread
        self._lock = threading.Lock()  # held while `_tracks` changes
        self._local = threading.local()  # holds the calling thread's track

    @property
    def num_events(self) -> int:
        """Number of kept events."""
        return sum(len(track.events) for track in list(self._tracks)) // (8 * len(FIELDS))

    @property
    def num_dropped(self) -> int:
        """Number of events beyond ``max_events``, which were not kept."""
        return sum(track.dropped for track in list(self._tracks))

    def record(
        self,
        stage: WorkName,
        batch: BatchId,
        batches: int,
        started_ns: int,
        ended_ns: int,
        used: Used = _NOTHING_USED,
        notes: dict[str, NoteValue] | None = None,
    ) -> None:
        """Record an event: one piece of the calling thread's work.

        Parameters
        ----------
        stage : kind of work
        batch, batches : the first batch that the work was for, and the number of batches
        started_ns, ended_ns : times from `time.perf_counter_ns`
        used : processor time, requests and bytes
        notes : further facts for the viewer, by name
        """
        track = self._track()
        if next(self._tickets) >= self._max_events:
            track.dropped += 1
            return
        # Notes before their event, so that a concurrent writer finds the notes of every event it sees.
        if notes:
            track.notes[len(track.events)] = notes
        track.events += _pack(_CODES[stage], batch.epoch, batch.index, batches, started_ns, ended_ns, *used)

    def write(self, path: Path, *, header: RunHeader | None = None, os_io: OsIO = REAL_OS) -> None:
        """Replace ``path`` by the events so far as Chrome trace JSON. On an error the old file stays.

        Parameters
        ----------
        path : the file
        header : the run's description, for `gloader.replay`. None means that the file cannot be replayed.
        os_io : the system calls

        Raises
        ------
        StoreExistsError
            ``path`` exists and is no regular file.
        StoreWriteError
            Writing failed; no temporary file is left.
        """
        records = self.records()
        with write_errors(path, "writing", os_io=os_io):
            other: dict[str, Any] = {"dropped_events": self.num_dropped}
            if header is not None:
                other[HEADER_KEY] = header.to_json()
            write_chunks_atomically(path, trace_chunks(timeline_events(records), other), os_io=os_io)

    def records(self) -> list[TrackRecord]:
        """Return each thread's record so far."""
        # Copies, because the threads go on recording.
        with self._lock:
            tracks = list(self._tracks)
        return [_record_of(track) for track in tracks]

    def _track(self) -> _Track:
        """Return the calling thread's track, created by its first call."""
        track: _Track | None = getattr(self._local, "track", None)
        if track is None:
            track = self._local.track = _Track(threading.current_thread().name)
            with self._lock:
                self._tracks.append(track)
        return track


def _record_of(track: _Track) -> TrackRecord:
    """Return a copy of ``track``. Its thread may be adding events."""
    events = bytes(track.events)
    return TrackRecord(
        thread_name=track.name,
        events=events,
        notes=dict(track.notes),
    )


def trace_chunks(events: Iterable[dict[str, Any]], other: dict[str, Any]) -> Iterator[bytes]:
    """Yield the text of a trace file in chunks: its head, then ``events``. The whole text would take much memory."""
    head = {"displayTimeUnit": "ms", "otherData": other}
    yield json.dumps(head, allow_nan=False, default=plain)[:-1].encode() + b', "traceEvents": [\n'
    lines = (json.dumps(event, allow_nan=False) for event in events)
    separator = ""
    while chunk := list(itertools.islice(lines, _LINES_PER_CHUNK)):
        yield (separator + ",\n".join(chunk)).encode()
        separator = ",\n"
    yield b"\n]}\n"


# Recorded batches per epoch: enough to represent the epoch, in about 2 MB.
MOST_BATCHES: Final = 512
_EVENTS: Final = 16 * MOST_BATCHES  # limit per epoch; a batch has about eight events
_EPOCHS: Final = 3  # the current epoch and two before; the replay of an epoch starts in the epoch before


class RecentTimeline:
    """Records the first batches of each epoch, and keeps the last two epochs and the current one. Thread-safe.

    Parameters
    ----------
    whole : recorder for all batches of the run, or None
    """

    def __init__(self, whole: TimelineRecorder | None = None) -> None:
        self.whole = whole
        # One recorder per epoch, the current one last. The tuple is replaced as a whole, because other threads record
        # while the next epoch begins.
        self._recorders: tuple[TimelineRecorder, ...] = (TimelineRecorder(max_events=_EVENTS),)

    def record(
        self,
        stage: WorkName,
        batch: BatchId,
        batches: int,
        started_ns: int,
        ended_ns: int,
        used: Used,
        notes: dict[str, NoteValue] | None = None,
    ) -> None:
        """Record an event; arguments as in `TimelineRecorder.record`."""
        if self.whole is not None:
            self.whole.record(stage, batch, batches, started_ns, ended_ns, used, notes)
        if batch.index < MOST_BATCHES:
            self._recorders[-1].record(stage, batch, batches, started_ns, ended_ns, used, notes)

    def begin_epoch(self) -> None:
        """Begin an epoch, and drop the oldest one."""
        self._recorders = (*self._recorders[1 - _EPOCHS :], TimelineRecorder(max_events=_EVENTS))

    def recording(self, header: RunHeader) -> Recording:
        """Return the recording from the first epoch in ``header`` on.

        Parameters
        ----------
        header : the run's description; ``header.state["next"]`` is the recording's first epoch and batch

        Raises
        ------
        ReplayError
            Some events were dropped, because there were too many.
        """
        records = [record for recorder in self._recorders for record in recorder.records()]
        first_epoch = header.state["next"][0]
        events = [
            event
            for event in timeline_events(records)
            if event["ph"] == "X" and event["args"]["epoch"] >= first_epoch
        ]
        # Only the first part of a longer epoch was recorded. This part represents the whole epoch.
        header = replace(header, num_batches=min(header.num_batches, MOST_BATCHES))
        dropped = sum(recorder.num_dropped for recorder in self._recorders)
        other = {HEADER_KEY: header.to_json(), "dropped_events": dropped}
        return parse_recording({"otherData": other, "traceEvents": events})
