"""The file of a replay beside its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replayed_runs import predicted, recording_of

from gloader.errors import StoreExistsError
from gloader.lab.analyze.lanes import MEASURED, REPLAYED, replay_events, write_replay

BASE = predicted()
RECORDING = recording_of(BASE, slower=1.25)


def _written(path: Path):
    return json.loads(path.read_text())["traceEvents"]


def test_two_processes_have_lanes_of_one_name_in_one_order(tmp_path: Path) -> None:
    write_replay(tmp_path / "r.json", RECORDING, BASE)
    events = _written(tmp_path / "r.json")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {MEASURED: "measured", REPLAYED: "replayed"}
    lanes = {
        pid: {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
        for pid in names
    }
    both = lanes[MEASURED].keys() & lanes[REPLAYED].keys()
    assert both == {"sample 1", "sample 2", "inspect", "read", "gather", "compute"}
    assert all(lanes[MEASURED][name] == lanes[REPLAYED][name] for name in both)
    places = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    order = sorted(lanes[REPLAYED], key=lambda name: places[lanes[REPLAYED][name]])
    assert order == ["sample 1", "sample 2", "inspect", "read", "gather", "compute"]


def test_slices_say_what_they_are_and_begin_at_nought() -> None:
    events = list(replay_events(RECORDING, BASE))
    for pid in (MEASURED, REPLAYED):
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        assert min(e["ts"] for e in slices) == 0.0
        read = next(
            e for e in slices if (e["name"], e["args"]["epoch"], e["args"]["batch"]) == ("read", 1, 3)
        )
        assert read["dur"] == pytest.approx(37_500 if pid == MEASURED else 30_000)
        inspect = next(e for e in slices if e["name"] == "inspect")
        assert inspect["args"]["batches"] == 4
    measured, replayed = (
        next(e["args"] for e in events if e["ph"] == "X" and e["name"] == "read" and e["pid"] == pid)
        for pid in (MEASURED, REPLAYED)
    )
    assert (measured["requests"], measured["bytes_read"], measured["superbatch"]) == (10, 4096, 0)
    assert (replayed["last"], replayed["alone_ms"]) == ("disk", pytest.approx(30.0))


def test_a_change_is_named() -> None:
    events = replay_events(RECORDING, predicted("disk=2x"))
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "measured",
        "replayed: disk=2x",
    ]


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(StoreExistsError, match="is a folder"):
        write_replay(tmp_path, RECORDING, BASE)
