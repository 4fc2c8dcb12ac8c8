"""The replay of a run beside the run itself, in a file for https://ui.perfetto.dev: a process each, the same lanes.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.lab.analyze.lanes import lane_order, measured_slices, replayed_slices
from gloader.observe.timeline import trace_chunks
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.write.atomic_file import write_chunks_atomically
from gloader.ssd_store.write.disk_errors import write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gloader.lab.analyze.lanes import Slice
    from gloader.lab.analyze.result import Prediction
    from gloader.replay.recording import Recording

MEASURED: Final = 1  # process
REPLAYED: Final = 2


def write_replay(path: Path, recording: Recording, prediction: Prediction, *, os_io: OsIO = REAL_OS) -> None:
    """Replace ``path`` by what was measured and what was replayed, or leave it as it was.

    Parameters
    ----------
    path : the file, in a folder that exists
    recording : of a run
    prediction : the replay of the same, as it was or with changes
    os_io : system calls

    Raises
    ------
    StoreExistsError
        There is something at ``path`` that is no regular file.
    StoreWriteError
        Writing failed; no temporary file is left.
    """
    with write_errors(path, "writing", os_io=os_io):
        write_chunks_atomically(path, trace_chunks(replay_events(recording, prediction), {}), os_io=os_io)


def replay_events(recording: Recording, prediction: Prediction) -> Iterator[dict[str, Any]]:
    """Yield the events of both, each from its first moment; times in microseconds. Pure."""
    measured, replayed = measured_slices(recording), replayed_slices(prediction)
    lanes = sorted({one.lane for one in (*measured, *replayed)}, key=lane_order)
    tracks = {lane: number for number, lane in enumerate(lanes, start=1)}
    name = f"replayed: {prediction.change}" if prediction.change else "replayed"
    yield from _process(MEASURED, "measured", measured, tracks)
    yield from _process(REPLAYED, name, replayed, tracks)


def _process(
    number: int, name: str, slices: Sequence[Slice], tracks: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the names of a process and its lanes, then what was done in them."""
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
