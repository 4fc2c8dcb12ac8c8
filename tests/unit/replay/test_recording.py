"""Recordings: read as they were written; what is missing, damaged or of another version is refused by name."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from recorded_traces import HEADER, SHORT, SLICE, trace

from gloader.errors import ReplayError
from gloader.replay.recording import (
    HEADER_KEY,
    HEADER_VERSION,
    RecordedEmbedding,
    RecordedEvent,
    RunHeader,
    parse_recording,
    read_recording,
)

if TYPE_CHECKING:
    from pathlib import Path


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the JSON of the header with another value at a path such as "shape.ahead"."""
    body: dict[str, Any] = json.loads(json.dumps(HEADER.to_json()))
    at: Any = body
    *outer, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    for name in outer:
        at = at[name]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return body


def test_a_header_is_the_same_again() -> None:
    assert RunHeader.from_json(json.loads(json.dumps(HEADER.to_json()))) == HEADER
    assert HEADER.to_json()["version"] == HEADER_VERSION
    # What was added later and has a default may be missing.
    assert RunHeader.from_json(changed("shape.unit", ...)).shape.unit == 1
    assert RunHeader.from_json(changed("settings", ...)).settings == {}
    assert RunHeader.from_json(changed("embeddings", ...)).embeddings == ()
    assert not RunHeader.from_json(changed("shape.has_embeddings", ...)).shape.has_embeddings
    trained = {"name": "author", "num_rows": 9, "row_bytes": 68, "slots": 4}
    assert RunHeader.from_json(changed("embeddings", [trained])).embeddings == (RecordedEmbedding(**trained),)


def test_events_come_in_the_order_in_which_they_began() -> None:
    found = parse_recording(trace(SLICE, SHORT))
    assert found.header == HEADER
    assert found.events == (
        RecordedEvent("read", 4, 0, 0, 8, 7e-6, 7e-6 + 250.5e-6, 0.0, 0, 0, 0, {"misses": 0}),
        RecordedEvent(
            "read",
            4,
            1,
            2,
            1,
            1500e-6,
            1500e-6 + 250.5e-6,
            12.5e-6,
            9,
            4096,
            1,
            {"superbatch": 3, "misses": 4},
        ),
    )
    assert found.events[0].seconds == pytest.approx(250.5e-6)
    # Slices of others in the same timeline are left alone.
    assert parse_recording(trace({**SLICE, "cat": "gpu", "args": {}})).events == ()


def test_the_loads_of_a_batch_are_a_part_of_its_read() -> None:
    def load(started_us: float, open_steps: int, **args: Any) -> dict[str, Any]:
        added = {"epoch": 1, "batch": 2, "superbatch": 3, "cpu_us": 10.0, "open_steps": open_steps}
        return {**SLICE, "ts": started_us, "dur": 100.0, "args": added | args}

    events = parse_recording(
        trace(SHORT, load(9000.0, 7, bytes_written=5), SLICE, load(5000.0, 1, bytes_read=10))
    ).events
    # It ends with the last load, and takes as long as the parts do, without the waits between them.
    assert [event.batch for event in events] == [0, 2]
    notes = {"superbatch": 3, "misses": 4, "open_steps": 1}
    read = events[1]
    assert read == RecordedEvent(
        "read", 4, 1, 2, 1, read.started_s, pytest.approx(9100e-6), pytest.approx(32.5e-6), 9, 4106, 6, notes
    )
    assert read.seconds == pytest.approx(450.5e-6)


def test_a_malformed_load_is_refused() -> None:
    bad = {**SLICE, "args": {"epoch": 1, "batch": 2, "cpu_us": 1.0, "open_steps": -1}}
    with pytest.raises(ReplayError, match="read has the note open_steps -1"):
        parse_recording(trace(bad))


@pytest.mark.parametrize("version", [HEADER_VERSION + 1, 0, None, "1", [1]])
def test_a_header_of_another_version_is_refused(version: Any) -> None:
    with pytest.raises(ReplayError) as caught:
        RunHeader.from_json(changed("version", version))
    assert str(caught.value) == (
        f"the recording has version {version!r}, this build reads version {HEADER_VERSION}; record the run again"
    )


def test_a_version_of_any_length_makes_a_short_message() -> None:
    with pytest.raises(ReplayError) as caught:
        RunHeader.from_json(changed("version", 10**5000))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("body", [None, [], "header", 7, {}])
def test_what_is_no_header_is_of_no_version(body: Any) -> None:
    with pytest.raises(ReplayError, match=r"^the recording has version None, this build reads version 1; "):
        RunHeader.from_json(body)


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("cores", ..., "field 'cores' is missing"),
        ("cores", "2", "field 'cores' is '2', not an integer"),
        ("cores", 2.0, "field 'cores' is 2.0, not an integer"),
        ("cores", True, "field 'cores' is True, not an integer"),
        ("cores", None, "field 'cores' is None, not an integer"),
        ("num_batches", -1, "ValueError('num_batches is -1')"),
        ("version", True, "field 'version' is True, not an integer"),
        ("device", 0, "field 'device' is 0, not a text"),
        ("rates", [], "field 'rates' is [], not an object"),
        ("rates.read_bytes_per_s", ..., "field 'rates' field 'read_bytes_per_s' is missing"),
        ("rates.read_bytes_per_s", "1", "field 'read_bytes_per_s' is '1', not a number"),
        ("rates.random_reads_per_s", 0, "ValueError('random_reads_per_s is 0.0')"),
        ("rates.write_bytes_per_s", -1.0, "ValueError('write_bytes_per_s is -1.0')"),
        ("rates.latency_s", math.nan, "ValueError('latency_s is nan')"),
        ("rates.mixed_reads", math.inf, "ValueError('mixed_reads is inf')"),
        ("rates.is_one_device", 1, "field 'is_one_device' is 1, not true or false"),
        ("rates.surplus", 1, "field 'rates' field 'surplus' is unknown"),
        ("sample_s", "1", "field 'sample_s' is '1', not a number"),
        ("settings", None, "field 'settings' is None, not an object"),
        ("surplus", 1, "field 'surplus' is unknown"),
        ("shape", None, "field 'shape' is None, not an object"),
        ("shape.features", 3, "field 'shape' field 'features' is 3, not a text"),
        ("shape.num_buffers", 0, "ValueError('num_buffers is 0')"),
        ("shape.ahead", 1.5, "field 'ahead' is 1.5, not an integer"),
        ("shape.is_sending", 1, "field 'is_sending' is 1, not true or false"),
        ("shape.surplus", 1, "field 'shape' field 'surplus' is unknown"),
        ("tables", None, "field 'tables' is None, not a list"),
        ("tables", {"a": 1}, "field 'tables' is {'a': 1}, not a list"),
        ("tables.1", 5, "field 'tables' is 5, not an object"),
        ("tables.0.name", None, "field 'tables' field 'name' is None, not a text"),
        ("tables.0.cache_rows", -4, "ValueError('cache_rows is -4')"),
        ("state", [], "field 'state' is [], not an object"),
        ("state.next", ..., "KeyError('next')"),
        ("state.next", [0], "ValueError"),
        ("state.next", [0, "1"], "TypeError"),
        ("state.next", [0, 0.5], "TypeError"),
        ("state.stream", ..., "KeyError('stream')"),
        ("state.stream", [], "ValueError"),
        ("state.global_batch_size", 0, "ValueError"),
    ],
)
def test_a_malformed_header_is_refused(path: str, value: Any, what: str) -> None:
    with pytest.raises(ReplayError) as caught:
        parse_recording(trace(**{HEADER_KEY: changed(path, value)}))
    text = str(caught.value)
    assert text.startswith("the header of the recording is malformed: ")
    assert text.endswith("; record the run again")
    assert what in text


def test_what_an_earlier_version_wrote_is_said_to_be_so() -> None:
    """Its slices have no processor time either: that is not what is told."""
    body = trace({**SLICE, "args": {"epoch": 0, "batch": 0}})
    del body["otherData"][HEADER_KEY]
    with pytest.raises(ReplayError) as caught:
        parse_recording(body)
    assert str(caught.value) == (
        "the recording has no header: an earlier version wrote it, or a rank whose batches another one loads and "
        "records; record the run again"
    )


def test_events_that_were_dropped_are_missing() -> None:
    with pytest.raises(ReplayError) as caught:
        parse_recording(trace(SLICE, dropped_events=1234))
    assert str(caught.value) == (
        "1,234 events of the run were not recorded, as there were too many; record fewer epochs"
    )


@pytest.mark.parametrize(
    "body",
    [
        None,
        7,
        "text",
        [],
        {},
        {"otherData": {}},
        {"traceEvents": []},
        {"otherData": None, "traceEvents": []},
        {"otherData": [HEADER_KEY], "traceEvents": []},
        {"otherData": HEADER_KEY, "traceEvents": []},
        {"otherData": 3, "traceEvents": []},
        trace(dropped_events="5"),
        trace(dropped_events=None),
        trace(dropped_events=[1]),
        trace(dropped_events=0.5),
    ],
)
def test_what_is_no_recording_is_refused(body: Any) -> None:
    with pytest.raises(ReplayError, match=r"^this is no recording of gloader: "):
        parse_recording(body)


@pytest.mark.parametrize(
    "event",
    [
        None,
        [],
        {"ph": "X"},
        {**SLICE, "args": None},
        {**SLICE, "name": 5},
        {**SLICE, "tid": "4"},
        {**SLICE, "ts": "1"},
        {**SLICE, "ts": math.nan},
        {**SLICE, "ts": math.inf},
        {**SLICE, "ts": 10**400},
        {**SLICE, "dur": -1},
        {**SLICE, "dur": math.nan},
        {**SLICE, "dur": math.inf},
        {**SLICE, "dur": None},
        {**SLICE, "args": {"epoch": 1, "batch": 2}},
        *(
            {**SLICE, "args": {**SLICE["args"], name: value}}
            for name in ("epoch", "batch", "batches", "requests", "bytes_read", "bytes_written")
            for value in (1.5, "1", None)
        ),
        *(
            {**SLICE, "args": {**SLICE["args"], "cpu_us": value}}
            for value in (-1, "1", None, math.nan, math.inf)
        ),
    ],
)
def test_a_malformed_event_is_refused(event: Any) -> None:
    with pytest.raises(ReplayError) as caught:
        parse_recording(trace(SLICE, event))
    assert str(caught.value).startswith("an event of the recording is malformed: ")
    assert str(caught.value).endswith("; record the run again")


def noted(stage: str, **notes: Any) -> dict[str, Any]:
    """Return a slice of ``stage`` with these notes alone."""
    args = {name: value for name, value in SLICE["args"].items() if name not in ("superbatch", "misses")}
    return {**SLICE, "name": stage, "args": args | notes}


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (noted("inspect", hits=1, misses=2), "inspect has no note superbatch"),
        (noted("inspect", superbatch=1, misses=2), "inspect has no note hits"),
        (noted("stage"), "stage has no note superbatch"),
        (noted("stage", superbatch=1, strategy="staged"), "stage has no note misses"),
        (noted("stage", superbatch=1, strategy=3, misses=1), "3 is not text"),
        (noted("read", superbatch=1), "read has no note misses"),
        (noted("read", superbatch=1, misses="4"), "TypeError"),
        (noted("gather"), "gather has no note rows"),
        (noted("gather", hits=1), "gather has no note admitted"),
        (noted("gather", rows=-1), "gather has the note rows -1"),
        (noted("sweep"), "sweep has no note completed"),
    ],
)
def test_work_that_does_not_say_what_it_was_is_refused(event: dict[str, Any], what: str) -> None:
    with pytest.raises(ReplayError) as caught:
        parse_recording(trace(event))
    assert str(caught.value).startswith("an event of the recording is malformed: ")
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "event", [noted("stage", superbatch=1), noted("gather", rows=3), noted("gather", hits=1, admitted=0)]
)
def test_work_of_little_says_little(event: dict[str, Any]) -> None:
    assert len(parse_recording(trace(event)).events) == 1


def test_a_file_is_named_in_every_message(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with pytest.raises(ReplayError) as caught:
        read_recording(path)
    assert str(caught.value) == f"{path} is not there; record a run with: gloader train ... --trace"
    path.write_text(json.dumps(trace(dropped_events=1)))
    with pytest.raises(ReplayError) as caught:
        read_recording(path)
    assert str(caught.value).startswith(f"{path}: 1 events of the run were not recorded")
    for damaged in (b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"1" * 5000, b'{"otherData": {}'):
        path.write_bytes(damaged)
        with pytest.raises(ReplayError) as caught:
            read_recording(path)
        assert str(caught.value).startswith(f"{path} cannot be read as a recording: ")
        assert len(str(caught.value)) < 300 + len(str(path))
    with pytest.raises(ReplayError, match=r"cannot be read as a recording: IsADirectoryError"):
        read_recording(tmp_path)
    path.write_text(json.dumps(trace(SLICE)))
    assert read_recording(path) == parse_recording(trace(SLICE))
