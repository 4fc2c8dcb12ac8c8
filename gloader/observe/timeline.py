"""The recorder of the timeline: what each stage did and when, at the price of a microsecond, written for Perfetto."""

from __future__ import annotations

import itertools
import json
import struct
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gloader.errors import ConfigError
from gloader.observe.epoch_stats import WORK_NAMES
from gloader.observe.timeline_events import FIELDS, TrackRecord, Used, plain, timeline_events
from gloader.replay.recording import HEADER_KEY
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import write_chunks_atomically
from gloader.ssd_store.write.disk_errors import write_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gloader.observe.epoch_stats import WorkName
    from gloader.replay.recording import RunHeader
    from gloader.types import BatchId

NoteValue: TypeAlias = int | float | str | bool

# 40 MB, and up to 180 MB of notes; an epoch of 1,000 batches has some 8,000.
MAX_EVENTS: Final = 500_000
_LINES_PER_CHUNK: Final = 4096
_CODES: Final = {name: code for code, name in enumerate(WORK_NAMES)}
_NOTHING_USED: Final = Used()
_pack = struct.Struct(f"={len(FIELDS)}q").pack


class _Track:
    """The events of one thread, which alone adds to them."""

    __slots__ = ("dropped", "events", "name", "notes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.events = bytearray()  # records of FIELDS; as bytes, the garbage collector does not walk them
        self.notes: dict[int, dict[str, NoteValue]] = {}  # offset in `events` -> the notes of that record
        self.dropped = 0


class TimelineRecorder:
    """Records events of any thread without a lock, and writes them as a timeline for https://ui.perfetto.dev.

    Thread-safe. Beyond ``max_events`` it only counts what it drops.

    Parameters
    ----------
    max_events : the most events to keep, of 80 bytes and their notes each

    Raises
    ------
    ConfigError
        ``max_events`` is below 1.
    """

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        if max_events < 1:
            raise ConfigError(f"max_events = {max_events} is not allowed; give at least 1")
        self._max_events = max_events
        self._tickets = itertools.count()  # `next` on it is atomic: the bound needs no lock
        self._tracks: list[_Track] = []
        self._lock = threading.Lock()
        self._local = threading.local()

    @property
    def num_events(self) -> int:
        """Events that are kept."""
        return sum(len(track.events) for track in list(self._tracks)) // (8 * len(FIELDS))

    @property
    def num_dropped(self) -> int:
        """Events that came after the bound was reached."""
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
        """Record a piece of work of the thread that calls.

        Parameters
        ----------
        stage : whose work it was
        batch, batches : the batch, or the first of several and how many
        started_ns, ended_ns : of `time.perf_counter_ns`
        used : processor time, and what was moved
        notes : what else is to be shown
        """
        track = self._track()
        if next(self._tickets) >= self._max_events:
            track.dropped += 1
            return
        # Notes before their event: whoever writes meanwhile finds those of every event that is there.
        if notes:
            track.notes[len(track.events)] = notes
        track.events += _pack(_CODES[stage], batch.epoch, batch.index, batches, started_ns, ended_ns, *used)

    def write(self, path: Path, *, header: RunHeader | None = None, os_io: OsIO = REAL_OS) -> None:
        """Replace ``path`` by what was recorded so far as Chrome trace JSON, or leave it as it was.

        Parameters
        ----------
        path : of the file
        header : what the run was recorded on, for `gloader.replay`; None: it cannot be replayed
        os_io : the system calls to make

        Raises
        ------
        StoreExistsError
            There is something at ``path`` that is no regular file.
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
        """Return what each thread recorded so far."""
        # Copies: the threads go on recording meanwhile.
        with self._lock:
            tracks = list(self._tracks)
        return [_record_of(track) for track in tracks]

    def _track(self) -> _Track:
        track: _Track | None = getattr(self._local, "track", None)
        if track is None:
            track = self._local.track = _Track(threading.current_thread().name)
            with self._lock:
                self._tracks.append(track)
        return track


def _record_of(track: _Track) -> TrackRecord:
    """Return a copy of what ``track`` holds now; its thread may be adding to it."""
    events = bytes(track.events)
    return TrackRecord(
        thread_name=track.name,
        events=events,
        notes=dict(track.notes),
    )


def trace_chunks(events: Iterable[dict[str, Any]], other: dict[str, Any]) -> Iterator[bytes]:
    """Yield a file of ``events`` and its head piece by piece: a timeline is several times larger as text."""
    head = {"displayTimeUnit": "ms", "otherData": other}
    yield json.dumps(head, allow_nan=False, default=plain)[:-1].encode() + b', "traceEvents": [\n'
    lines = (json.dumps(event, allow_nan=False) for event in events)
    separator = ""
    while chunk := list(itertools.islice(lines, _LINES_PER_CHUNK)):
        yield (separator + ",\n".join(chunk)).encode()
        separator = ",\n"
    yield b"\n]}\n"
