"""A loader records pieces of work that add up to its statistics, and a header for its replay."""

import dataclasses
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gloader
from gloader import HeteroLoader, LinkLoader, Loader, Uniform
from gloader.core.loader_state import LoaderState
from gloader.observe.epoch_stats import EpochStats
from gloader.replay.recording import RecordedEvent, Recording, read_recording
from gloader.types import BatchId

from .conftest import DIM, NUM_NODES, Written
from .failing import replace_parts
from .linked import write_linked
from .swept_edges import PACKED, sweeping, write_graph
from .typed import FANOUTS, write_typed

AnyLoader = Loader | HeteroLoader | LinkLoader
ROW = 4 * DIM
RECORDED: dict[str, Any] = {"trace": True, "memory_budget": "200MB", "epochs": 2, "threads": 2}
SSD: dict[str, Any] = {"features": "ssd", "cache": 60 * ROW}


def _homogeneous(folder: Path, tiny: Written, **settings: Any) -> Loader:
    return Loader(tiny.dataset, fanouts=[4, 3], batch_size=16, spill_dir=folder, **(RECORDED | settings))


def _typed(folder: Path, _: Written, **settings: Any) -> HeteroLoader:
    dataset = write_typed(folder / "typed").dataset
    return HeteroLoader(dataset, fanouts=FANOUTS, batch_size=16, spill_dir=folder, **(RECORDED | settings))


def _links(folder: Path, _: Written, **settings: Any) -> LinkLoader:
    dataset = write_linked(folder / "linked").dataset
    return LinkLoader(
        dataset,
        fanouts=[4, 3],
        batch_size=64,
        negatives=Uniform(1),
        spill_dir=folder,
        **(RECORDED | settings),
    )


OPENED: dict[str, tuple[Callable[..., AnyLoader], dict[str, Any]]] = {
    "in memory": (_homogeneous, {"features": "ram"}),
    "direct": (_homogeneous, {**SSD, "superbatch": 3, "io_strategy": "direct"}),
    "staged": (_homogeneous, {**SSD, "superbatch": 2, "io_strategy": "staged", "io": "threads"}),
    "packed": (_homogeneous, {**SSD, "superbatch": 4, "io_strategy": "packed"}),
    "lru": (_homogeneous, {**SSD, "superbatch": 4, "policy": "lru"}),
    "typed, in memory": (_typed, {"features": "ram"}),
    "typed, packed": (_typed, {**SSD, "superbatch": 3, "io_strategy": "packed"}),
    "links, in memory": (_links, {"features": "ram"}),
    "links, staged": (_links, {"features": "ssd", "cache": 900, "superbatch": 3, "io_strategy": "staged"}),
}


@pytest.fixture(params=OPENED)
def opened(request: pytest.FixtureRequest, tiny: Written, tmp_path: Path) -> Iterator[AnyLoader]:
    open_loader, settings = OPENED[request.param]
    with open_loader(tmp_path, tiny, **settings) as loader:
        yield loader


def _run(loader: AnyLoader, path: Path) -> tuple[Recording, list[EpochStats]]:
    """Return what two epochs recorded, and their statistics."""
    stats = []
    for _ in range(2):
        for _ in loader:
            pass
        stats.append(loader.stats)
    loader.write_trace(path)
    return read_recording(path), stats


def _by_stage(recording: Recording) -> dict[str, list[RecordedEvent]]:
    found: dict[str, list[RecordedEvent]] = defaultdict(list)
    for event in recording.events:
        found["trace" if event.notes.get("ahead") else event.stage].append(event)
    return found


def test_every_batch_is_there_and_the_sums_are_those_of_the_statistics(
    opened: AnyLoader, tmp_path: Path
) -> None:
    recording, stats = _run(opened, tmp_path / "trace.json")
    stages = _by_stage(recording)
    batches = [(epoch, index) for epoch in range(2) for index in range(len(opened))]
    is_on_ssd = recording.header.shape.features == "ssd"
    for stage in (
        "sample",
        "gather",
        "transfer",
        "compute",
        "wait",
        *(("trace", "read") if is_on_ssd else ()),
    ):
        assert sorted((e.epoch, e.batch) for e in stages[stage]) == batches, stage
    assert all(event.cpu_s > 0 for event in recording.events)
    if not is_on_ssd:
        assert set(stages) == {"sample", "gather", "transfer", "compute", "wait"}
        assert sum(e.notes["rows"] for e in stages["gather"]) == sum(one.rows_gathered for one in stats)
        return
    for number, one in enumerate(stats):
        moved = [e for stage in ("stage", "read") for e in stages[stage] if e.epoch == number]
        assert sum(e.requests for e in moved) == one.requests > 0
        assert sum(e.bytes_read for e in moved) == one.bytes_read > 0
        assert sum(e.bytes_written for e in moved) == one.bytes_written
        assert sum(e.notes["misses"] for e in stages["read"] if e.epoch == number) == one.rows_read
        assert sum(e.notes["hits"] for e in stages["gather"] if e.epoch == number) == one.cache_hits
    _check_superbatches(stages)
    assert sum(e.batches for e in stages["inspect"]) == len(batches)


def _check_superbatches(stages: dict[str, list[RecordedEvent]]) -> None:
    """Check that what was planned for each superbatch is what its batches did."""
    read, gathered = Counter[int](), Counter[int]()
    admitted = Counter[int]()
    for event in stages["read"]:
        read[event.notes["superbatch"]] += event.notes["misses"]
    for event in stages["gather"]:
        gathered[event.notes["superbatch"]] += event.notes["hits"]
        admitted[event.notes["superbatch"]] += event.notes["admitted"]
    assert sum(admitted.values()) > 0
    staged = {event.notes["superbatch"]: event for event in stages["stage"]}
    for planned in stages["inspect"]:
        number = planned.notes["superbatch"]
        assert (planned.notes["hits"], planned.notes["misses"]) == (gathered[number], read[number])
        assert planned.notes["admitted"] == admitted[number]
        event = staged.pop(number)
        assert (event.epoch, event.batch, event.batches) == (planned.epoch, planned.batch, planned.batches)
        assert event.notes["misses"] == read[number]
        assert event.notes["accesses"] == read[number] + gathered[number]
        assert 0 < event.notes["unique_rows"] <= read[number] or not read[number]
        assert event.notes["strategy"] in ("direct", "staged", "packed")
        assert (event.bytes_written > 0) == (event.notes["strategy"] == "packed" and read[number] > 0)
    assert not staged


def test_the_header_says_what_the_run_was_recorded_on(opened: AnyLoader, tmp_path: Path) -> None:
    header = _run(opened, tmp_path / "trace.json")[0].header
    plan, tier, settings = opened.memory_plan, opened._held.tier, opened._settings
    assert gloader.Dataset.open(header.dataset).fingerprint == header.fingerprint
    assert header.num_batches == len(opened)
    assert header.num_hops == len(settings.sampling.fanouts) == 2
    assert (header.superbatch, header.budget_bytes) == (plan.superbatch.num_batches, 200_000_000)
    assert tuple(table.cache_rows for table in header.tables) == plan.cache_rows
    assert tuple(table.name for table in header.tables) == tier.table_names
    assert header.shape.features == plan.features
    assert (header.shape.sampler_threads, header.shape.num_ranks, header.shape.is_sending) == (2, 1, False)
    assert (header.staging_bytes > 0) == (plan.features == "ssd")
    assert header.settings["batch_size"] == settings.sampling.batch_size
    assert header.policy == settings.memory.policy
    # The five numbers are those of this stream, and it can be taken up again by them.
    state = LoaderState.from_json(header.state)
    assert state.next == BatchId(epoch=0, index=0)
    opened.load_state_dict(header.state)


def test_the_header_has_the_rows_as_they_are_stored(tiny: Written, tmp_path: Path) -> None:
    with _homogeneous(tmp_path, tiny, **SSD) as loader:
        loader.write_trace(tmp_path / "trace.json")  # before anything was done
        (table,) = read_recording(tmp_path / "trace.json").header.tables
    assert (table.num_rows, table.row_bytes, table.cache_rows) == (NUM_NODES, ROW, 60)


def test_a_recording_begins_where_its_first_run_began(tiny: Written, tmp_path: Path) -> None:
    with _homogeneous(tmp_path, tiny, features="ram", epochs=4) as loader:
        loader.load_state_dict(loader.state_dict() | {"next": [1, 3]})
        for _ in loader:
            break
        for _ in loader:  # another run
            pass
        loader.write_trace(tmp_path / "trace.json")
    recording = read_recording(tmp_path / "trace.json")
    assert recording.header.state["next"] == [1, 3]
    first = min((e for e in recording.events if e.stage == "compute"), key=lambda e: e.started_s)
    assert (first.epoch, first.batch) == (1, 3)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_batch_says_whether_it_was_kept_from_its_trace(
    tiny: Written, tmp_path: Path, is_kept: bool
) -> None:
    with _homogeneous(tmp_path, tiny, **SSD, superbatch=3) as loader:
        if not is_kept:
            replace_parts(loader, plan=dataclasses.replace(loader.memory_plan, keep_bytes=0))
        stages = _by_stage(_run(loader, tmp_path / "trace.json")[0])
    assert {e.notes.get("kept", False) for e in stages["sample"]} == {is_kept}
    assert all("kept" not in e.notes for e in stages["trace"])


def test_passes_over_the_edges_say_which_batches_can_be_made(tmp_path: Path) -> None:
    path = write_graph(tmp_path / "graph")
    with sweeping(path, tmp_path, 4, **PACKED, epochs=1, trace=True) as loader:
        for _ in loader:
            pass
        loader.write_trace(tmp_path / "trace.json")
        stats = loader.stats
    recording = read_recording(tmp_path / "trace.json")
    stages, num_batches = _by_stage(recording), len(loader)
    assert recording.header.sweep_batches == 4
    assert recording.header.spill_bytes == 64_000_000
    swept = sorted(stages["sweep"], key=lambda event: event.started_s)
    known = sum(1 for event in stages["trace"] if event.notes.get("known"))
    assert known == sum(1 for event in stages["sample"] if event.notes.get("known")) > 0
    completed = [known]
    for event in swept:
        assert event.notes["completed"] == completed[-1] + event.notes["num_batches"]
        completed.append(event.notes["completed"])
    assert completed[-1] == num_batches
    assert sum(event.bytes_read for event in swept) == stats.edge_bytes_read
    assert all(event.requests > 0 for event in swept)
    for stage in ("trace", "sample"):
        assert sorted(event.batch for event in stages[stage]) == [*range(num_batches)]


def test_the_stages_of_a_run_are_those_that_a_replay_runs(opened: AnyLoader, tmp_path: Path) -> None:
    known = {thread.ident for thread in threading.enumerate()}
    batches = iter(opened)
    next(batches)
    names = [thread.name for thread in threading.enumerate() if thread.ident not in known]
    for _ in batches:
        pass
    opened.write_trace(tmp_path / "trace.json")
    links = read_recording(tmp_path / "trace.json").header.shape.links
    # The samplers, the watchdog and the helpers of a verb ("sweep_0") are no stage between two channels.
    others = ("sample", "watchdog", "sweep")
    stages = [name.removeprefix("gloader-") for name in names]
    stages = [name for name in stages if not name.startswith(others)]
    assert sorted(stages) == sorted(link.stage for link in links)
    puts = [link.puts for link in links]
    assert [name for link in links[1:] for name in link.takes if name != "sampled"] == puts[:-1]
