"""A recorded run that is planned again does what it did, and with changes what a run with those changes does."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from integration.loader.linked import write_linked
from integration.loader.typed import FANOUTS, WIDTHS, write_typed

import gloader
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.lab.analyze import recorded_load
from gloader.lab.analyze.replan import Replanned, Replanner
from gloader.replay.changes import NO_CHANGES, parse_changes
from gloader.replay.recording import Recording, RunHeader
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.cost.device_profile import MIN_GAP_BYTES
from gloader.ssd_store.cost.io_rates import Calibration
from gloader.ssd_store.cost.profile import default_sweep_gap_bytes
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.rehearsed_device import RehearsedDevice

from .recorded import (
    DIM,
    EPOCHS,
    NUM_NODES,
    ROW,
    RUN,
    SSD,
    batches,
    batches_of,
    open_loader,
    record,
    staged,
    superbatches_of,
    write_dataset,
)

Opened = Callable[[gloader.Dataset, Path], Any]
NUM_BATCHES = 16 * EPOCHS


def _plain(**settings: Any) -> Opened:
    return lambda dataset, spill: open_loader(dataset, spill, **(SSD | settings))


def _typed(**settings: Any) -> Opened:
    def opened(_: gloader.Dataset, spill: Path) -> gloader.HeteroLoader:
        written = write_typed(spill.parent / "typed")
        row = 4 * WIDTHS["paper"]
        given = RUN | SSD | {"fanouts": FANOUTS, "batch_size": 16, "cache": 60 * row} | settings
        return gloader.HeteroLoader(written.dataset, spill_dir=spill, **given)

    return opened


def _links(**settings: Any) -> Opened:
    def opened(_: gloader.Dataset, spill: Path) -> gloader.LinkLoader:
        written = write_linked(spill.parent / "linked")
        given = RUN | SSD | {"cache": 900, "negatives": "uniform:2,strict", "exclude": "reverse"} | settings
        return gloader.LinkLoader(written.dataset, spill_dir=spill, **given)

    return opened


def _typed_of_one(**settings: Any) -> Opened:
    def opened(dataset: gloader.Dataset, spill: Path) -> gloader.HeteroLoader:
        given = RUN | SSD | {"fanouts": gloader.collective([5, 3])} | settings
        return gloader.HeteroLoader(dataset, spill_dir=spill, **given)

    return opened


RUNS: dict[str, Opened] = {
    "belady direct": _plain(io_strategy="direct"),
    "belady staged": _plain(io_strategy="staged"),
    "belady packed": _plain(io_strategy="packed"),
    "no holes are read": _plain(io_strategy="direct", max_gap=0),
    "superbatches of one": _plain(io_strategy="direct", superbatch=1),
    "superbatches that begin anew": _plain(io_strategy="direct", superbatch_reset=True),
    "rows on the device": _plain(io_strategy="staged", device_cache=1000 * ROW),
    "static": _plain(io_strategy="staged", policy="static", device_cache=1000 * ROW),
    "lru": _plain(io_strategy="direct", policy="lru"),
    "s3fifo": _plain(io_strategy="packed", policy="s3fifo"),
    "no cache": _plain(io_strategy="staged", policy="none"),
    "other batches": _plain(io_strategy="direct", layout="merged", shuffle=False, drop_last=True, seed=5),
    "swept edges": _plain(io_strategy="packed", topology="sweep", superbatch=2),
    "typed direct": _typed(io_strategy="direct"),
    "typed packed": _typed(io_strategy="packed"),
    "types of a graph of one": _typed_of_one(io_strategy="staged"),
    "links": _links(io_strategy="staged"),
}


def _replanned(recording: Recording, changes: str = "", *, num_batches: int = 10**6) -> Replanned:
    asked = parse_changes(changes) if changes else NO_CHANGES
    with Replanner.open(recording.header) as replanner:
        return replanner.counts(asked, num_batches=num_batches)


def _recorded(dataset: gloader.Dataset, spill: Path, **settings: Any) -> Recording:
    with open_loader(dataset, spill, **settings) as loader:
        return record(loader, spill.parent / "trace.json")


def _done(recording: Recording) -> tuple[Any, Any]:
    return batches_of(recording), superbatches_of(recording)


@pytest.fixture
def plain(dataset: gloader.Dataset, spill: Path) -> Recording:
    """A run with a cache whose rows are read batch by batch."""
    return _recorded(dataset, spill, **SSD, io_strategy="direct")


@pytest.mark.parametrize("run", RUNS)
def test_a_run_planned_again_is_the_run(dataset: gloader.Dataset, spill: Path, run: str) -> None:
    with RUNS[run](dataset, spill) as loader:
        recording = record(loader, spill.parent / "trace.json")
        count = len(loader) * EPOCHS
    found = _replanned(recording)
    assert batches(found.superbatches) == batches_of(recording)
    assert staged(found.superbatches) == superbatches_of(recording)
    assert len(found.batches) == len(found.rows) == count
    assert found.rows.tolist() == [batch.rows for batch in batches_of(recording)]
    assert found.tables == recording.header.tables
    assert found.shape == recording.header.shape
    assert found.settings == {}
    assert found.sample_s > 0
    assert found.edges.min() > 0
    # What is compared has something in it.
    assert sum(batch.misses for batch in batches_of(recording)) > 0


def test_a_run_that_began_in_the_middle_of_an_epoch(dataset: gloader.Dataset, spill: Path) -> None:
    with open_loader(dataset, spill, **SSD, io_strategy="direct") as loader:
        loader.load_state_dict(loader.state_dict() | {"next": [0, 11]})
        recording = record(loader, spill.parent / "trace.json")
    found = _replanned(recording)
    assert len(found.batches) == NUM_BATCHES - 11
    assert (found.batches[0].index, found.batches[5].epoch) == (11, 1)
    assert batches(found.superbatches) == batches_of(recording)


WHAT_IFS: dict[str, dict[str, Any]] = {
    "cache=100KB": {"cache": 100_000},
    "cache=0.5x": {"cache": 300 * ROW},
    "cache=20%": {"cache": 0.2},
    "cache=300KB,superbatch=8": {"cache": 300_000, "superbatch": 8},
    "superbatch=2x": {"superbatch": 8},
    "policy=sieve": {"policy": "sieve"},
    "strategy=staged": {"io_strategy": "staged"},
    "strategy=packed,superbatch=3": {"io_strategy": "packed", "superbatch": 3},
    "fanout=3/2": {"fanouts": [3, 2]},
    "batch-size=50": {"batch_size": 50},
    "memory=0.25x,cache=2x": {"memory_budget": 50_000_000, "cache": 1200 * ROW},
}


@pytest.mark.parametrize("changes", WHAT_IFS)
def test_a_change_does_what_a_run_with_it_does(
    dataset: gloader.Dataset, spill: Path, plain: Recording, changes: str
) -> None:
    with Replanner.open(plain.header) as replanner:
        found = replanner.counts(parse_changes(changes), num_batches=10**6)
        count = replanner.epoch_batches(parse_changes(changes))
    assert len(found.batches) == EPOCHS * count
    with open_loader(dataset, spill, **(SSD | {"io_strategy": "direct"} | WHAT_IFS[changes])) as loader:
        recording = record(loader, spill.parent / "changed.json")
        assert count == len(loader)
    assert batches(found.superbatches) == batches_of(recording)
    assert staged(found.superbatches) == superbatches_of(recording)
    assert (batches(found.superbatches), staged(found.superbatches)) != _done(plain)
    # What a person types to get that: the loader's own names for it, of which another loader makes the same.
    with open_loader(dataset, spill, **(SSD | {"io_strategy": "direct"} | found.settings)) as loader:
        assert loader._settings == loader._settings.changed(**WHAT_IFS[changes])


def test_a_cache_where_there_was_none(dataset: gloader.Dataset, spill: Path) -> None:
    bare = _recorded(dataset, spill, **(SSD | {"cache": 0}), io_strategy="staged")
    found = _replanned(bare, "cache=153600")
    recording = _recorded(dataset, spill, **(SSD | {"cache": 600 * ROW}), io_strategy="staged")
    assert batches(found.superbatches) == batches_of(recording) != batches_of(bare)
    assert staged(found.superbatches) == superbatches_of(recording)
    assert found.settings == {"cache": 153600}
    assert found.tables[0].cache_rows == 600
    with pytest.raises(
        ConfigError, match="no host cache to be compared with: give a size, such as cache=2GB"
    ):
        _replanned(bare, "cache=2x")


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("strategy", ["direct", "packed"])
def test_rows_of_another_dtype_are_read_as_a_dataset_of_it_would_be(
    spill: Path, plain: Recording, dtype: str, strategy: str
) -> None:
    found = _replanned(plain, f"dtype={dtype},strategy={strategy}")
    other = write_dataset(spill.parent / dtype, dtype=dtype)
    with open_loader(other, spill, **SSD, io_strategy=strategy) as loader:
        recording = record(loader, spill.parent / "other.json")
        (demand,) = loader._held.tier.facts.tables
    assert batches(found.superbatches) == batches_of(recording)
    assert staged(found.superbatches) == superbatches_of(recording)
    assert found.tables == recording.header.tables
    assert found.tables[0].row_bytes == demand.row_bytes
    assert found.note == f"the dataset prepared again: gloader prepare --dtype {dtype}"
    assert found.settings == {"io_strategy": strategy}


@pytest.mark.parametrize("order", ["degree", "community"])
def test_rows_in_another_order_have_the_places_that_prepare_gives_them(
    spill: Path, plain: Recording, order: str
) -> None:
    prepared = write_dataset(spill.parent / order, order=order).original_ids
    with Replanner.open(plain.header) as replanner:
        new_ids = replanner._numbers(order)
        found = replanner.counts(parse_changes(f"order={order},cache=0"), num_batches=NUM_BATCHES)
        traces = replanner.traces(num_batches=NUM_BATCHES)[0]
        direct = [replanner.plan(parse_changes(f"order={name},cache=0")) for name in ("none", order)]
    assert direct[1].predicted_step_s < direct[0].predicted_step_s  # as hot rows share pages
    assert new_ids is not None
    assert prepared is not None
    assert prepared[new_ids].tolist() == list(range(NUM_NODES))
    # Hot rows lie together: a batch's reads are those of rows that FeatureStore would be asked for.
    with write_dataset(spill.parent / "read").open_features() as store:
        rows = np.sort(new_ids[traces[0]])
        read = store.read_into(rows, np.empty((len(rows), DIM), np.float32))
    first = batches(found.superbatches)[0]
    assert (first.misses, first.read_requests, first.read_bytes) == (
        len(rows),
        read.requests,
        read.bytes_read,
    )
    assert first.read_bytes < batches(_replanned(plain, "cache=0").superbatches)[0].read_bytes


def test_an_order_that_the_dataset_has_changes_nothing_and_none_gives_the_first_one_back(
    tmp_path: Path, spill: Path
) -> None:
    ordered = write_dataset(tmp_path / "ordered", order="degree")
    recording = _recorded(ordered, spill, **SSD, io_strategy="direct")
    with Replanner.open(recording.header) as replanner:
        assert replanner._numbers("degree") is None
        numbers = replanner._numbers("none")
        assert numbers is not None
        assert numbers.tolist() == np.asarray(ordered.original_ids).tolist()


def test_an_order_of_several_types_cannot_be_told(dataset: gloader.Dataset, spill: Path) -> None:
    with RUNS["typed direct"](dataset, spill) as loader:
        recording = record(loader, spill.parent / "trace.json")
    with pytest.raises(ConfigError, match="only with one node type and without edge features"):
        _replanned(recording, "order=degree")


@pytest.mark.parametrize("budget", ["60MB", "90MB", "200MB"])
@pytest.mark.parametrize("features", ["auto", "ssd"])
def test_the_memory_plan_is_that_of_the_run(
    wide: gloader.Dataset, spill: Path, monkeypatch: pytest.MonkeyPatch, budget: str, features: Any
) -> None:
    # What sampling took is the one thing in a plan that is never the same twice.
    monkeypatch.setattr("gloader.pipeline.open.first_batches.time.thread_time", lambda: 0.0)
    with open_loader(wide, spill, features=features, memory_budget=budget) as loader:
        loader.write_trace(spill.parent / "trace.json")
        header = _header(spill.parent / "trace.json")
        plan = loader.memory_plan
    with Replanner.open(header) as replanner:
        assert replanner.plan() == plan
        changed = [replanner.plan(parse_changes(f"memory=70MB,buffers={count}")) for count in (2, 3, 4)]
    assert [one.num_buffers for one in changed] == [2, 3, 4]
    assert all(one.budget_bytes == 70_000_000 >= one.total_bytes for one in changed)
    assert not list(spill.iterdir())


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_the_memory_plan_of_rows_of_another_dtype_is_that_of_a_dataset_of_it(
    dataset: gloader.Dataset, spill: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr("gloader.pipeline.open.first_batches.time.thread_time", lambda: 0.0)
    other = write_dataset(spill.parent / dtype, dtype=dtype)
    with open_loader(dataset, spill, features="ssd", memory_budget="60MB") as loader:
        loader.write_trace(spill.parent / "trace.json")
    with open_loader(other, spill, features="ssd", memory_budget="60MB") as loader:
        plan = loader.memory_plan
    with Replanner.open(_header(spill.parent / "trace.json")) as replanner:
        assert replanner.plan(parse_changes(f"dtype={dtype}")) == plan != replanner.plan()


def test_packs_have_the_disk_that_passes_over_the_edges_leave(dataset: gloader.Dataset, spill: Path) -> None:
    with RUNS["swept edges"](dataset, spill) as loader:
        loader.write_trace(spill.parent / "trace.json")
        folder = loader._held.tier.require_ssd()[0].retrieval._spill
    with Replanner.open(_header(spill.parent / "trace.json")) as replanner:
        plan = replanner.plan()
        assert plan.sweeps is not None
        assert replanner._pack_bytes(plan) == folder.budget_bytes < 64_000_000


def _header(path: Path) -> RunHeader:
    from gloader.replay.recording import read_recording

    return read_recording(path).header


def test_the_seconds_of_sampling_may_be_those_of_the_run(plain: Recording) -> None:
    steps = []
    for seconds in (0.001, 1.0):
        with Replanner.open(plain.header, sample_s=seconds) as replanner:
            steps.append(replanner.plan().predicted_step_s)
    # Sampling is most of it on two cores, and more than nothing on many.
    assert steps[1] > 100 * steps[0] / plain.header.cores


def test_features_that_fit_are_gathered_from_memory(dataset: gloader.Dataset, spill: Path) -> None:
    recording = _recorded(dataset, spill, features="auto", device_cache=1000 * ROW)
    assert recording.header.shape.features == "ram"
    assert recording.header.tables[0].device_rows > 500
    found = _replanned(recording)
    gathered = [event for event in recording.events if event.stage == "gather"]
    assert found.superbatches == ()
    assert found.rows.tolist() == [event.notes["rows"] for event in gathered]
    assert found.shape.features == "ram"
    with pytest.raises(ConfigError, match="features in memory and no superbatches: give a number"):
        _replanned(recording, "superbatch=2x")


def test_features_that_fit_with_a_change_are_in_memory_then(wide: gloader.Dataset, spill: Path) -> None:
    recording = _recorded(wide, spill, memory_budget="60MB")
    assert recording.header.shape.features == "ssd"
    before, after = _replanned(recording), _replanned(recording, "memory=2x")
    assert (after.shape.features, after.superbatches, after.settings) == (
        "ram",
        (),
        {"memory_budget": 120_000_000},
    )
    assert before.rows.tolist() == after.rows.tolist()
    assert _replanned(recording, "dtype=int8").shape.features == "ram"


def test_reads_go_over_the_holes_that_a_disk_of_other_rates_makes_worth_it(
    dataset: gloader.Dataset, spill: Path, plain: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = plain.header.rates
    fast = replace(recorded, random_reads_per_s=1e6, medium_reads_per_s=2.5e5, wide_reads_per_s=6e4)
    with Replanner.open(plain.header) as replanner:
        found = replanner.counts(num_batches=NUM_BATCHES, rates=fast)
        swept = replanner.counts(parse_changes("strategy=staged"), num_batches=NUM_BATCHES, rates=fast)
    assert plain.header.tables[0].sweep_gap_bytes == default_sweep_gap_bytes(dataset.root) > MIN_GAP_BYTES
    assert swept.tables[0].sweep_gap_bytes == MIN_GAP_BYTES
    monkeypatch.setattr("gloader.pipeline.open.disk._measured_rates", lambda *_: (fast, None))
    recording = _recorded(dataset, spill, **SSD, io_strategy="direct")
    assert batches(found.superbatches) == batches_of(recording)
    assert sum(batch.read_bytes for batch in batches_of(recording)) < sum(
        batch.read_bytes for batch in batches_of(plain)
    )


def test_a_strategy_is_chosen_by_what_predictions_are_corrected_by(
    dataset: gloader.Dataset, spill: Path
) -> None:
    header = _recorded(dataset, spill, **SSD).header

    def strategies(calibration: Calibration) -> set[str]:
        found = replanner.counts(num_batches=NUM_BATCHES, calibration=calibration).superbatches
        return {one.strategy for one in found if one.num_batches > 1}  # for a single batch all ways are alike

    with Replanner.open(header) as replanner:
        assert strategies(Calibration(staged=100.0, packed=100.0)) == {"direct"}
        assert strategies(Calibration(direct=100.0)) == {"staged"}


def test_packs_take_no_more_than_the_disk_that_the_run_had(dataset: gloader.Dataset, spill: Path) -> None:
    header = _recorded(dataset, spill, **SSD, io_strategy="packed").header
    assert header.spill_bytes == 64_000_000
    # The pack before is on the disk while the next one is written: both have to fit.
    packs = [one.written_bytes for one in _counts(header).superbatches]
    room = max(before + after for before, after in pairwise(packs))
    assert [one.written_bytes for one in _counts(replace(header, spill_bytes=room)).superbatches] == packs
    with pytest.raises(BudgetError, match=r"io_strategy='packed' needs .* bytes .* of disk"):
        _counts(replace(header, spill_bytes=room - 4096))
    with pytest.raises(BudgetError, match="there is no folder for them"):
        _counts(replace(header, spill_bytes=0))


def _counts(header: RunHeader) -> Replanned:
    with Replanner.open(header) as replanner:
        return replanner.counts(num_batches=NUM_BATCHES)


@pytest.mark.parametrize("features", ["ram", "ssd"])
def test_rows_that_the_memory_of_a_device_allowed_are_held_again(
    dataset: gloader.Dataset, spill: Path, monkeypatch: pytest.MonkeyPatch, features: str
) -> None:
    devices = [RehearsedDevice(num_bytes=size) for size in (8_000_000, 1 << 30)]
    monkeypatch.setattr("gloader.pipeline.open.device_tier.open_device", lambda _: devices[0])
    recording = _recorded(dataset, spill, **(SSD | {"features": features}), io_strategy="direct")
    held = recording.header.tables[0].device_rows
    assert 0 < held < NUM_NODES
    devices.reverse()  # with more memory that is free
    found = _replanned(recording)
    assert found.tables == recording.header.tables
    assert found.shape == recording.header.shape
    if features == "ssd":
        assert batches(found.superbatches) == batches_of(recording)
    else:
        gathered = [event for event in recording.events if event.stage == "gather"]
        assert found.rows.tolist() == [event.notes["rows"] for event in gathered]


def test_a_run_whose_device_is_not_here(plain: Recording) -> None:
    with pytest.raises(ReplayError, match=r"cannot be planned here, as it was recorded: .*cuda:7"):
        Replanner.open(replace(plain.header, device="cuda:7"))


def test_ranks_that_share_a_loader_take_turns(dataset: gloader.Dataset, spill: Path) -> None:
    alone = []
    for rank in range(2):
        settings = SSD | {"rank": rank, "world_size": 2, "sharing": "private", "cache": 0}
        recording = _recorded(dataset, spill, **settings, io_strategy="direct")
        alone.append(batches_of(recording))
    # That of the first rank; with its part of the steps alone it is the run.
    header = replace(recording.header, settings=recording.header.settings | {"rank": 0})
    assert [batch.rows for batch in batches(_counts(header).superbatches)] == [b.rows for b in alone[0]]
    shared = _counts(replace(header, shape=replace(header.shape, num_ranks=2)))
    assert shared.rows.tolist() == [batch.rows for pair in zip(*alone, strict=True) for batch in pair]
    assert [batch.index for batch in shared.batches[:4]] == [0, 0, 1, 1]


def test_of_very_many_batches_the_first_are_sampled(
    plain: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_load, "MOST_BATCHES", 7)
    monkeypatch.setattr(recorded_load, "_PER_THREAD", 1)
    found = _replanned(plain)
    assert len(found.batches) == len(found.rows) == 7
    assert [one.num_batches for one in found.superbatches] == [1, 2, 4]


def test_nothing_is_read_of_the_features_and_no_folder_is_made(
    dataset: gloader.Dataset, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SSD | {"io_strategy": "packed", "topology": "sweep", "policy": "static"}
    recording = _recorded(dataset, spill, **settings)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a plan reads and writes nothing")

    monkeypatch.setattr(FeatureStore, "read_into", refuse)
    monkeypatch.setattr(SpillFolder, "__init__", refuse)
    monkeypatch.setattr("gloader.pipeline.open.disk._measured_rates", refuse)
    assert batches(_replanned(recording).superbatches) == batches_of(recording)
    assert _replanned(recording, "dtype=int8,memory=2x,policy=belady").superbatches


def test_a_recording_of_another_dataset_is_refused(tmp_path: Path, plain: Recording) -> None:
    other = write_dataset(tmp_path / "other", dtype="int8")
    header = replace(plain.header, dataset=str(other.root))
    with pytest.raises(ReplayError, match="is not the dataset that the run was recorded on"):
        Replanner.open(header)
    with pytest.raises(ReplayError, match=r"the dataset of the run cannot be opened: .*nowhere"):
        Replanner.open(replace(header, dataset=str(tmp_path / "nowhere")))


def test_seeds_that_a_program_gave_are_not_in_a_recording(dataset: gloader.Dataset, spill: Path) -> None:
    recording = _recorded(dataset, spill, **SSD, seeds=np.arange(200))
    with pytest.raises(ReplayError, match=r"saved with num_seeds 200, this loader has 500.*Seeds, or times"):
        Replanner.open(recording.header)


def test_a_run_of_several_machines_is_refused(plain: Recording) -> None:
    state = plain.header.state | {"global_batch_size": 64}
    with pytest.raises(ReplayError, match="several machines, which may have exchanged rows"):
        Replanner.open(replace(plain.header, state=state))


def test_settings_of_another_version_are_refused(plain: Recording) -> None:
    settings = plain.header.settings | {"warp_drive": 9}
    with pytest.raises(ReplayError, match="the settings warp_drive, which this version does not know"):
        Replanner.open(replace(plain.header, settings=settings))
    settings = plain.header.settings | {"cache_bytes": "a lot"}
    with pytest.raises(ReplayError, match="the settings of the recording cannot be read: cache: 'a lot'"):
        Replanner.open(replace(plain.header, settings=settings))
    with pytest.raises(ReplayError, match="the state in the recording cannot be read"):
        Replanner.open(replace(plain.header, state={}))
