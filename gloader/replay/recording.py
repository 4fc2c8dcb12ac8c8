"""A recorded run: its threads' work with the resources used, and a header with the machine and the settings.

A recording is stored as a trace file for Perfetto, a viewer of timelines. `TimelineRecorder.write` writes it, and
`read_recording` reads and checks it, for predictions from the run. Each piece of work, such as one stage's work on one
batch, is a slice in the file. A slice's notes are further counts and properties of the work, such as hits and misses.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gloader.core.malformed import MALFORMED, shown
from gloader.core.records import Records
from gloader.errors import ReplayError
from gloader.replay.work import PipelineShape
from gloader.ssd_store.cost.io_rates import IoRates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from _typeshed import DataclassInstance

HEADER_VERSION: Final = 1
_STARTED: Final = attrgetter("started_s")
_RECORDS: Final = Records(IoRates=IoRates, PipelineShape=PipelineShape)  # reads a header's nested dataclasses
HEADER_KEY: Final = "gloader"  # key of the header in a trace's ``otherData``
# Note of the reads that load an embedding's rows: earlier steps that may be incomplete then.
OPEN_STEPS: Final = "open_steps"


class RecordedEvent(NamedTuple):
    """A thread's piece of work."""

    stage: str  # the kind of work: a key of `gloader.observe.epoch_stats.WORK_NAMES`
    thread: int  # number of the thread's track in Perfetto
    epoch: int
    batch: int  # index in the epoch; the first index for several batches
    batches: int  # number of batches that the work serves
    started_s: float  # seconds after the recording's first event
    ended_s: float
    # Processor seconds of the thread and its helpers. For "compute", the process's seconds during the computation.
    cpu_s: float
    requests: int  # disk reads
    bytes_read: int  # from the disk
    bytes_written: int  # to the disk
    notes: Mapping[str, Any]  # further counts and properties of the work, such as "misses" and "strategy"

    @property
    def seconds(self) -> float:
        """Wall seconds."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTable:
    """A table's rows: a node type's features, or a relation's edge features."""

    name: str  # the node type or relation
    num_rows: int  # N
    row_bytes: int  # R, as stored
    cache_rows: int  # C, rows in the host cache
    device_rows: int = 0  # rows in the device's memory
    # Longest gaps between two rows that one read may bridge: in a batch's own reads, and in sweeps, the reads for a
    # whole superbatch. None if no rows were read.
    gap_bytes: int | None = None
    sweep_gap_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEmbedding:
    """The trained rows of a node type."""

    name: str  # the node type
    num_rows: int  # N
    row_bytes: int  # weights and optimizer state of a row
    slots: int  # C, rows in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """A recorded run's machine, settings and shape. They suffice to replay the run and sample its batches again."""

    cores: int  # cores available to the process
    torch_threads: int  # torch's threads per operation
    device: str
    shape: PipelineShape
    superbatch: int  # largest S, the number of batches planned together; 1 for features in memory
    superbatch_unit: int  # divides every superbatch size
    sweep_batches: int  # S_t, batches per pass over the edges; 0 without passes
    num_hops: int  # L
    policy: str  # the host cache's policy
    budget_bytes: int  # the memory budget
    spill_bytes: int  # disk space for packs, files with a superbatch's missing rows
    staging_bytes: int  # memory for a superbatch's missing rows
    tables: tuple[RecordedTable, ...]
    rates: IoRates  # the disk's rates
    state: dict[str, Any]  # the `LoaderState` before the first recorded batch, as JSON
    num_batches: int  # batches per epoch and rank
    dataset: str  # path or URL
    fingerprint: str  # the dataset's fingerprint
    settings: dict[str, Any] = field(default_factory=dict)  # loader settings, as in config.yaml
    # Processor seconds to sample one batch, from the memory plan; 0 if unknown.
    sample_s: float = 0.0
    embeddings: tuple[RecordedEmbedding, ...] = ()
    version: int = HEADER_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the header as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RunHeader:
        """Parse a result of `to_json`. Raises ReplayError for another version or a malformed value."""
        version = body.get("version") if isinstance(body, dict) else None
        if version != HEADER_VERSION:
            raise ReplayError(
                f"the recording has version {shown(version)}, this build reads version {HEADER_VERSION}; record "
                "the run again"
            )
        try:
            header = _RECORDS.read(cls, body)
            _require_counts(header.shape, least=1)
            counted: list[DataclassInstance] = [*header.tables, *header.embeddings]
            for record in counted:
                _require_counts(record)
            _require_rates(header.rates)
            state = header.state  # see `LoaderState`
            _, _ = map(index, state["next"])  # start of the stream
            if not isinstance(state["stream"], dict) or index(state["global_batch_size"]) < 1:
                raise ValueError(f"the loader had the state {shown(state)}")
            _require_counts(header)
        except MALFORMED as error:
            raise ReplayError(
                f"the header of the recording is malformed: {shown(error)}; record the run again"
            ) from error
        return header


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A run's events by start time, with the header."""

    header: RunHeader
    events: tuple[RecordedEvent, ...]


def read_recording(path: Path) -> Recording:
    """Read a file that `TimelineRecorder.write` has written.

    Raises
    ------
    ReplayError
        The file is missing or not a recording, it has no header, or events are missing.
    """
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ReplayError(f"{path} is not there; record a run with: gloader train ... --trace") from None
    except (OSError, *MALFORMED) as error:
        raise ReplayError(f"{path} cannot be read as a recording: {shown(error)}") from error
    try:
        return parse_recording(body)
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from None


def parse_recording(body: Mapping[str, Any]) -> Recording:
    """Return the recording in a trace. Pure; raises ReplayError like `read_recording`."""
    try:
        other, slices = body["otherData"], body["traceEvents"]
        header, num_dropped = other.get(HEADER_KEY), index(other.get("dropped_events", 0))
    except MALFORMED as error:
        raise ReplayError(f"this is no recording of gloader: {shown(error)}") from error
    # The header is checked before the events, because an earlier version also recorded incomplete events.
    if header is None:
        raise ReplayError(
            "the recording has no header: an earlier version wrote it, or a rank whose batches another one loads and "
            "records; record the run again"
        )
    if num_dropped:
        raise ReplayError(
            f"{num_dropped:,} events of the run were not recorded, as there were too many; record fewer epochs"
        )
    parsed = RunHeader.from_json(header)
    try:
        events = [_event(one) for one in slices if one["ph"] == "X" and one["cat"] == "stage"]
    except MALFORMED as error:
        raise ReplayError(
            f"an event of the recording is malformed: {shown(error)}; record the run again"
        ) from error
    events = _with_loads(sorted(events, key=_STARTED))
    return Recording(header=parsed, events=tuple(sorted(events, key=_STARTED)))


def _with_loads(events: Iterable[RecordedEvent]) -> list[RecordedEvent]:
    """Return ``events``, with the loads of a batch's trained rows as a part of the batch's read before them.

    One thread reads and loads. Its waits for steps, between the parts, are left out of the sum.
    """
    found: list[RecordedEvent] = []
    read = -1  # index of the last read
    for event in events:
        if OPEN_STEPS not in event.notes or read < 0:
            read = len(found) if event.stage == "read" else read
            found.append(event)
            continue
        first = found[read]
        open_steps = min(event.notes[OPEN_STEPS], first.notes.get(OPEN_STEPS, event.notes[OPEN_STEPS]))
        found[read] = first._replace(
            started_s=event.started_s - first.seconds,
            ended_s=event.ended_s,
            cpu_s=first.cpu_s + event.cpu_s,
            requests=first.requests + event.requests,
            bytes_read=first.bytes_read + event.bytes_read,
            bytes_written=first.bytes_written + event.bytes_written,
            notes={**first.notes, OPEN_STEPS: open_steps},
        )
    return found


# A slice's arguments that are fields of `RecordedEvent`. All others are notes.
_COLUMNS: Final = ("epoch", "batch", "batches", "cpu_us", "requests", "bytes_read", "bytes_written")


# Each stage's required notes. All are counts or numbers of superbatches. `_event` adds further required notes.
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "inspect": ("superbatch", "hits", "misses"),
    "stage": ("superbatch",),
    "read": ("misses",),
    "sweep": ("completed",),
}
# Notes that must be integers of 0 or more if they exist.
_COUNTS: Final = ("superbatch", "hits", "misses", "admitted", "rows", "completed", OPEN_STEPS)


def _event(event: Mapping[str, Any]) -> RecordedEvent:
    """Return the event in a slice. Raises an error in `MALFORMED` if the slice is malformed."""
    args = event["args"]
    # A trace has microseconds.
    started, took, cpu = event["ts"] / 1e6, event["dur"] / 1e6, args["cpu_us"] / 1e6
    if not (math.isfinite(started) and 0 <= took < math.inf and 0 <= cpu < math.inf):
        raise ValueError(f"a slice begins at {started} s, takes {took} s and {cpu} s of a processor")
    notes = {name: value for name, value in args.items() if name not in _COLUMNS}
    stage = _text(event["name"])
    needed = _NEEDED.get(stage, ())
    if stage == "gather":
        needed = ("hits", "admitted") if "hits" in notes else ("rows",)
    elif OPEN_STEPS in notes:
        needed = ()
    elif "strategy" in notes:
        _text(notes["strategy"])  # raises for another type
        needed = (*needed, "misses")
    if missing := [name for name in needed if name not in notes]:
        raise ValueError(f"{stage} has no note {missing[0]}")
    for name in _COUNTS:
        if index(notes.get(name, 0)) < 0:
            raise ValueError(f"{stage} has the note {name} {notes[name]}")
    return RecordedEvent(
        stage=stage,
        thread=index(event["tid"]),
        epoch=index(args["epoch"]),
        batch=index(args["batch"]),
        batches=index(args.get("batches", 1)),
        started_s=started,
        ended_s=started + took,
        cpu_s=cpu,
        requests=index(args.get("requests", 0)),
        bytes_read=index(args.get("bytes_read", 0)),
        bytes_written=index(args.get("bytes_written", 0)),
        notes=notes,
    )


def _require_rates(rates: IoRates) -> None:
    """Raise ValueError if a rate is negative, infinite, or 0 although times are divided by it."""
    _require_counts(rates)
    for name, rate in asdict(rates).items():
        if not 0 <= rate < math.inf or (rate == 0 and name in _POSITIVE):
            raise ValueError(f"{name} is {shown(rate)}")


# Rates by which times are divided. The other rates may be 0.
_POSITIVE: Final = (
    "random_reads_per_s",
    "read_bytes_per_s",
    "write_bytes_per_s",
    "pack_read_bytes_per_s",
    "mixed_writes",
    "mixed_reads",
)


def _text(value: object) -> str:
    """Return ``value``. Raises TypeError if it is no text."""
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is not text")
    return value


def _require_counts(record: DataclassInstance, *, least: int = 0) -> None:
    """Raise ValueError unless all integer fields in ``record`` are at least ``least``."""
    for record_field in fields(record):
        value = getattr(record, record_field.name)
        if type(value) is int and value < least:
            raise ValueError(f"{record_field.name} is {shown(value)}")
