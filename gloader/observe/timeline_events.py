"""Recorded work as events of the Chrome trace format: a track per thread, arrows that follow each batch.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, read by Perfetto.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from gloader.observe.epoch_stats import WORK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

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
_STAGE, _EPOCH, _INDEX, _BATCHES, _STARTED, _ENDED, _CPU, _REQUESTS, _READ, _WRITTEN = range(len(FIELDS))
_PROCESS: Final = 1
_WAIT, _LAST = WORK_NAMES.index("wait"), WORK_NAMES.index("compute")
_INDEX_BITS: Final = 32
_ROWS_AT_ONCE: Final = 4096


class Used(NamedTuple):
    """What a piece of work used: the last of `FIELDS`."""

    cpu_ns: int = (
        0  # processor time of its thread and of those that worked for it; of "compute" of the process
    )
    requests: int = 0  # reads that the SSD saw
    bytes_read: int = 0  # from it
    bytes_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """What one thread recorded."""

    thread_name: str
    events: bytes  # int64 (n, 10) of FIELDS
    notes: Mapping[int, Mapping[str, Any]]  # byte offset of a record -> what else is known of it

    @property
    def table(self) -> IdArray:
        """(n, 10) int64, columns as FIELDS."""
        return np.frombuffer(self.events, dtype=np.int64).reshape(-1, len(FIELDS))


def timeline_events(records: Sequence[TrackRecord]) -> Iterator[dict[str, Any]]:
    """Yield the events of ``records``: names, slices, then arrows. Times in microseconds. Pure."""
    tables = [record.table for record in records]
    starts = [int(table[:, _STARTED].min()) for table in tables if len(table)]
    origin = min(starts, default=0)
    threads = _assign_threads(records, tables)
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": "gloader"}}
    yield from _names(records, tables, threads)
    for record, table, thread in zip(records, tables, threads, strict=True):
        for number, row in enumerate(_rows(table)):
            notes = record.notes.get(number * 8 * len(FIELDS), {})
            yield _slice(row, notes, thread, origin)
    yield from _arrows(tables, threads, origin)


def _rows(table: IdArray) -> Iterator[list[int]]:
    """Yield the rows of ``table`` as Python has them, without making all of them at once. Pure."""
    for first in range(0, len(table), _ROWS_AT_ONCE):
        yield from table[first : first + _ROWS_AT_ONCE].tolist()


def _assign_threads(records: Sequence[TrackRecord], tables: Sequence[IdArray]) -> list[int]:
    """Give each record a track: threads of one name that ran after each other share theirs. Pure."""
    # Sampler threads end with each run, and the next run starts others of the same names.
    order = sorted(
        range(len(records)), key=lambda i: int(tables[i][:, _STARTED].min(initial=np.iinfo(np.int64).max))
    )
    assigned = [0] * len(records)
    ends: dict[int, int] = {}
    names: dict[int, str] = {}
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
    """Yield the name of each track, and its place: in the order in which a batch passes the stages."""
    seen: set[int] = set()
    for record, table, thread in zip(records, tables, threads, strict=True):
        if thread in seen:
            continue
        seen.add(thread)
        place = int(table[:, _STAGE].min(initial=len(WORK_NAMES)))
        base = {"ph": "M", "pid": _PROCESS, "tid": thread}
        yield {**base, "name": "thread_name", "args": {"name": record.thread_name}}
        yield {**base, "name": "thread_sort_index", "args": {"sort_index": place * 1000 + thread}}


def _slice(row: Sequence[int], notes: Mapping[str, Any], thread: int, origin: int) -> dict[str, Any]:
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
    args |= {FIELDS[at]: row[at] for at in (_REQUESTS, _READ, _WRITTEN) if row[at]}
    return {**event, "name": name, "cat": "stage", "args": args}


def _arrows(tables: Sequence[IdArray], threads: Sequence[int], origin: int) -> Iterator[dict[str, Any]]:
    """Yield the flow of each batch through the slices that worked on it.

    A flow ends at the batch's computation: the same batch of another run begins a new one.
    """
    stops = _stops(tables, threads)
    if not len(stops):
        return
    # By batch, then by time: each flow is then one stretch of the table.
    stops = stops[np.lexsort((stops[:, 1], stops[:, 0]))]
    is_last = np.append(stops[1:, 0] != stops[:-1, 0], True)
    ends = is_last | (stops[:, 3] == _LAST)
    begins = np.append(True, ends[:-1])
    flows = np.cumsum(begins)
    columns = (stops[:, 1], stops[:, 2], begins, ends, flows)
    for at, thread, begin, end, flow in _rows(np.stack(columns, axis=1)):
        if begin and end:
            continue  # one slice, nothing to join
        event = {"ph": "s" if begin else "f" if end else "t", "name": "batch", "cat": "batch", "id": flow}
        if end:
            event["bp"] = "e"  # the arrow ends at the slice around it, not at the next one
        yield {**event, "pid": _PROCESS, "tid": thread, "ts": (at - origin) / 1e3}


def _stops(tables: Sequence[IdArray], threads: Sequence[int]) -> IdArray:
    """Return (n, 4) int64 [batch key, middle of the slice in ns, track, stage] of every batch in every slice. Pure.

    A slice over several batches names the first; the others are those that follow it among all that are known.
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
    # Work on a superbatch is one slice; each batch's flow has to pass through it all the same.
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
    """Return ``value`` as JSON has it; what JSON has not becomes text. Pure."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic):
        return plain(value.item())
    return str(value)
