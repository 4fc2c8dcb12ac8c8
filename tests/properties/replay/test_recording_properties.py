"""Recordings that are almost right: an error of ours, or a recording."""

from __future__ import annotations

import copy
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from recorded_traces import SHORT, SLICE, trace
from replay_recordings import recorded

from gloader.errors import ReplayError
from gloader.replay.demands import measure, work_of
from gloader.replay.planned_work import SampleCosts, learn_costs
from gloader.replay.recording import HEADER_KEY, Recording, RunHeader, parse_recording
from gloader.replay.replay import replay
from gloader.replay.work import BatchWork, Demands, Machine, PipelineShape, RunWork, SuperbatchWork

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _whole() -> Any:
    """Return the trace of a run of two epochs, with all that stages say of their work."""
    batches = tuple(
        BatchWork(
            epoch=epoch,
            index=index,
            **{
                name: Demands(cpu_s=0.01, disk_s=0.01)
                for name in ("trace", "sample", "read", "gather", "compute")
            },
        )
        for epoch in range(2)
        for index in range(4)
    )
    superbatch = SuperbatchWork(num_batches=4, inspect=Demands(cpu_s=0.01), stage=Demands(disk_s=0.01))
    work = RunWork(batches=batches, superbatches=(superbatch,) * 2)
    machine, shape = Machine(cores=2), PipelineShape(features="ssd")
    recording = recorded(replay(work, machine, shape), work, machine, shape, strategy="staged")
    slices = [
        {
            "ph": "X",
            "cat": "stage",
            "name": event.stage,
            "tid": event.thread,
            "ts": event.started_s * 1e6,
            "dur": event.seconds * 1e6,
            "args": {
                "epoch": event.epoch,
                "batch": event.batch,
                "batches": event.batches,
                "cpu_us": event.cpu_s * 1e6,
                "requests": event.requests,
                "bytes_read": event.bytes_read,
                "bytes_written": 0,
                **_COUNTS.get(event.stage, {}),
                **event.notes,
            },
        }
        for event in recording.events
    ]
    header = recording.header.to_json()
    header["state"] |= {"stream": {}, "global_batch_size": 1}
    return trace(*slices, **{HEADER_KEY: header})


_COUNTS: Any = {
    "inspect": {"hits": 5, "misses": 5},
    "stage": {"misses": 5},
    "read": {"misses": 5},
    "gather": {"hits": 5, "admitted": 2},
}
WHOLE = _whole()


@st.composite
def damaged(draw: st.DrawFn, whole: Any) -> Any:
    """Draw a trace with other values, or none, at some places."""
    body = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        at: Any = body
        while isinstance(at, dict | list) and at:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = draw(st.sampled_from(keys))
            if draw(st.integers(0, 2)) == 0 or not isinstance(at[key], dict | list):
                if draw(st.booleans()):
                    at[key] = draw(JSON)
                else:
                    del at[key]
                break
            at = at[key]
    return body


@given(damaged(trace(SLICE, SHORT)))
def test_damaged_traces_are_refused_or_read(body: Any) -> None:
    _parse(lambda: parse_recording(body))


def test_a_whole_trace_is_read() -> None:
    _told(parse_recording(WHOLE))


@given(damaged(WHOLE))
def test_what_a_damaged_trace_tells_of_a_run_is_refused_or_told(body: Any) -> None:
    with suppress(ReplayError):
        _told(parse_recording(body))


@given(JSON)
def test_any_json_is_refused_or_read(body: Any) -> None:
    _parse(lambda: parse_recording(body))
    _parse(lambda: parse_recording({"otherData": body, "traceEvents": body}))
    _parse(lambda: parse_recording(trace(body, **{HEADER_KEY: body})))


def _told(recording: Recording) -> None:
    """Tell all of a recording that a replay is made of."""
    work_of(recording, measure(recording))
    learn_costs(recording)
    SampleCosts.of(recording)


def _parse(parse: Callable[[], Recording]) -> None:
    """Parse; whatever is read is a recording through and through, and nothing else is raised."""
    try:
        found = parse()
    except ReplayError:
        return
    assert RunHeader.from_json(found.header.to_json()) == found.header
    assert isinstance(found.header.cores, int)
    for event in found.events:
        assert math.isfinite(event.started_s)
        assert event.seconds >= 0
        assert all(isinstance(one, int) for one in (event.epoch, event.batch, event.batches, event.requests))
