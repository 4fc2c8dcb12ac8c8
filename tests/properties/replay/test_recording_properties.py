"""Recordings that are almost right: an error of ours, or a recording."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from recorded_traces import SHORT, SLICE, trace

from gloader.errors import ReplayError
from gloader.replay.recording import HEADER_KEY, Recording, RunHeader, parse_recording

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """Draw a trace with other values, or none, at some places."""
    body = copy.deepcopy(trace(SLICE, SHORT))
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


@given(damaged())
def test_damaged_traces_are_refused_or_read(body: Any) -> None:
    _parse(lambda: parse_recording(body))


@given(JSON)
def test_any_json_is_refused_or_read(body: Any) -> None:
    _parse(lambda: parse_recording(body))
    _parse(lambda: parse_recording({"otherData": body, "traceEvents": body}))
    _parse(lambda: parse_recording(trace(body, **{HEADER_KEY: body})))


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
