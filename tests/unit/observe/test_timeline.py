"""A trace: valid JSON, a slice for each piece of work, arrows that join."""

import errno
import json
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_recordings import RATES

from gloader.errors import ConfigError
from gloader.observe.timeline import TimelineRecorder, Used
from gloader.replay.recording import RecordedTable, RunHeader, read_recording
from gloader.replay.work import PipelineShape
from gloader.testing.faults import FaultyOS
from gloader.types import BatchId

MS = 1_000_000


def on_thread(name: str, *works: Any) -> None:
    """Run ``works`` one after the other on a thread of this name."""

    def run() -> None:
        for work in works:
            work()

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()


def record(
    timeline: TimelineRecorder,
    stage: Any,
    batch: tuple[int, int],
    begin: int,
    *,
    batches: int = 1,
    **more: Any,
) -> Any:
    """Return what records a millisecond of work of ``stage`` that starts at ``begin`` ms."""
    batch_id = BatchId(epoch=batch[0], index=batch[1])
    return lambda: timeline.record(stage, batch_id, batches, begin * MS, (begin + 1) * MS, **more)


def written(timeline: TimelineRecorder, path: Path) -> dict[str, Any]:
    timeline.write(path)
    return json.loads(path.read_text())


def flows(events: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    """Return the (phase, stage) of each arrow's stops, checking that each is inside of a slice of its track."""
    slices = [e for e in events if e["ph"] == "X"]
    found: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] not in "stf":
            continue
        (inside,) = (
            s["name"]
            for s in slices
            if s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
        )
        assert (event["name"], event["cat"], event["pid"]) == ("batch", "batch", 1)
        assert event.get("bp") == ("e" if event["ph"] == "f" else None)
        found[event["id"]].append((event["ts"], event["ph"], inside))
    for stops in found.values():
        assert stops == sorted(stops)
    return [[stop[1:] for stop in stops] for stops in found.values()]


def test_the_arrows_follow_each_batch_through_its_stages(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    on_thread(
        "gloader-sample-0", record(timeline, "sample", (0, 8), 0), record(timeline, "sample", (1, 0), 2)
    )
    on_thread("gloader-sample-1", record(timeline, "sample", (0, 9), 1))
    # A superbatch over the border of two epochs, whose length nobody told the timeline.
    on_thread("gloader-inspect", record(timeline, "inspect", (0, 8), 4, batches=3, notes={"superbatch": 2}))
    on_thread(
        "gloader-read",
        *(record(timeline, "read", b, 6 + 2 * i) for i, b in enumerate([(0, 8), (0, 9), (1, 0)])),
    )
    on_thread(
        "MainThread",
        *(record(timeline, "compute", b, 13 + 3 * i) for i, b in enumerate([(0, 8), (0, 9), (1, 0)])),
    )
    events = written(timeline, tmp_path / "trace.json")["traceEvents"]
    stages = [("s", "sample"), ("t", "inspect"), ("t", "read"), ("f", "compute")]
    assert flows(events) == [stages] * 3


def test_the_same_batch_of_a_second_run_begins_a_new_arrow(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    on_thread("sampler", record(timeline, "sample", (0, 0), 0), record(timeline, "sample", (0, 0), 10))
    on_thread("loop", record(timeline, "compute", (0, 0), 2), record(timeline, "compute", (0, 0), 12))
    events = written(timeline, tmp_path / "trace.json")["traceEvents"]
    assert flows(events) == [[("s", "sample"), ("f", "compute")]] * 2


def test_a_slice_holds_stage_time_batch_bytes_and_notes(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    notes = {"superbatch": 3, "ratio": float("nan")}
    used = Used(cpu_ns=1500, requests=3, bytes_read=7, bytes_written=9)
    work = record(timeline, "stage", (0, 4), 5, batches=2, used=used, notes=notes)
    on_thread("gloader-stage", work)
    trace = written(timeline, tmp_path / "trace.json")
    assert [e for e in trace["traceEvents"] if e["ph"] == "X"] == [
        {
            "ph": "X",
            "pid": 1,
            "tid": 1,
            "ts": 0.0,
            "dur": 1000.0,
            "name": "stage",
            "cat": "stage",
            "args": {
                "epoch": 0,
                "batch": 4,
                "batches": 2,
                "superbatch": 3,
                "ratio": "nan",
                "cpu_us": 1.5,
                "requests": 3,
                "bytes_read": 7,
                "bytes_written": 9,
            },
        }
    ]
    assert trace["otherData"] == {"dropped_events": 0}


def test_what_was_not_used_is_left_out_but_for_processor_time(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    record(timeline, "wait", (1, 2), 0)()
    (found,) = (e for e in written(timeline, tmp_path / "trace.json")["traceEvents"] if e["ph"] == "X")
    assert found["args"] == {"epoch": 1, "batch": 2, "cpu_us": 0.0}


def test_a_header_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    on_thread("gloader-gather", record(timeline, "sample", (0, 3), 0, used=Used(cpu_ns=2500, requests=4)))
    header = RunHeader(
        cores=2,
        torch_threads=2,
        device="cpu",
        shape=PipelineShape(features="ssd", num_buffers=4),
        superbatch=8,
        superbatch_unit=1,
        sweep_batches=0,
        num_hops=2,
        policy="belady",
        budget_bytes=10**9,
        spill_bytes=0,
        staging_bytes=5,
        tables=(RecordedTable(name="node", num_rows=9, row_bytes=4, cache_rows=3),),
        rates=RATES,
        state={"next": [0, 3], "global_batch_size": 16, "stream": {}},
        num_batches=7,
        dataset="/data",
        fingerprint="f",
        settings={"batch_size": np.int64(16)},  # as a caller may have given it
    )
    timeline.write(tmp_path / "trace.json", header=header)
    found = read_recording(tmp_path / "trace.json")
    assert found.header == header
    (event,) = found.events
    assert (event.stage, event.epoch, event.batch, event.cpu_s, event.requests) == ("sample", 0, 3, 2.5e-6, 4)


def test_tracks_are_named_in_the_order_of_the_stages(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    on_thread("gloader-gather", record(timeline, "gather", (0, 0), 0))
    on_thread("gloader-sample-0", record(timeline, "sample", (0, 1), 4))
    events = written(timeline, tmp_path / "trace.json")["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(order, key=order.__getitem__)] == [
        "gloader-sample-0",
        "gloader-gather",
    ]


def test_threads_of_one_name_share_a_track_unless_they_ran_together(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    for begin in (0, 5):  # an epoch's sampler, then the next run's
        on_thread("gloader-sample-0", record(timeline, "sample", (0, begin), begin))
    on_thread("gloader-sample-0", record(timeline, "sample", (0, 9), 5))
    slices = [e for e in written(timeline, tmp_path / "trace.json")["traceEvents"] if e["ph"] == "X"]
    assert sorted((s["ts"], s["tid"]) for s in slices) == [(0.0, 1), (5000.0, 1), (5000.0, 2)]


def test_beyond_the_bound_events_are_only_counted(tmp_path: Path) -> None:
    timeline = TimelineRecorder(max_events=2)
    for index in range(5):
        record(timeline, "sample", (0, index), index)()
    assert (timeline.num_events, timeline.num_dropped) == (2, 3)
    trace = written(timeline, tmp_path / "trace.json")
    assert trace["otherData"] == {"dropped_events": 3}
    assert len([e for e in trace["traceEvents"] if e["ph"] == "X"]) == 2


def test_a_trace_without_events_is_valid(tmp_path: Path) -> None:
    assert len(written(TimelineRecorder(), tmp_path / "trace.json")["traceEvents"]) == 1


def test_recording_goes_on_while_the_trace_is_written(tmp_path: Path) -> None:
    timeline = TimelineRecorder(max_events=4000)  # so that a slow machine does not check for minutes
    is_done = threading.Event()

    def work() -> None:
        index = 0
        while not is_done.is_set():
            record(timeline, "sample", (0, index), index, notes={"rows": index})()
            index += 1
            if index % 50 == 0:
                is_done.wait(0.001)  # a trace that outgrows its writing would take minutes to check

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            events = written(timeline, tmp_path / "trace.json")["traceEvents"]
            slices = [e for e in events if e["ph"] == "X"]
            assert [e["args"]["batch"] for e in slices] == list(range(len(slices)))
            assert all(e["args"]["rows"] == e["args"]["batch"] for e in slices)
    finally:
        is_done.set()
        thread.join()


def test_a_trace_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    timeline = TimelineRecorder()
    for index in range(10):
        record(timeline, "sample", (0, index), index)()
    path = tmp_path / "trace.json"
    path.write_text("the one before")
    for fail_at in range(1, 100):
        os_io = FaultyOS(fail_at=fail_at, error=errno.ENOSPC, short=100)
        with suppress(OSError):
            timeline.write(path, os_io=os_io)
        if not os_io.was_hit:
            break
        assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]
        content = path.read_text()
        assert content == "the one before" or json.loads(content)
    else:
        pytest.fail("no call without a fault")
    assert fail_at > 10
    assert json.loads(path.read_text())["traceEvents"]


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_events = 0 .* at least 1"):
        TimelineRecorder(max_events=0)
