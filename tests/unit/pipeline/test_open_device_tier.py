"""The default size of the device cache."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import faked_cuda

from gloader.cache import DeviceCachePlan, automatic_bytes
from gloader.config import DeviceSettings
from gloader.core.order import EpochOrder
from gloader.device import CpuDevice, DeviceTier, RowFormat, open_device
from gloader.distributed.device_agreement import PeerDevices
from gloader.errors import ConfigError
from gloader.pipeline.open.device_rows import DeviceTable, Workload
from gloader.pipeline.open.device_tier import (
    hold_rows,
    load_features,
    open_device_tiers,
    with_features,
)
from gloader.pipeline.other_ranks import NoOtherDevices
from gloader.samplers import CscGraph, make_sampler
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.types import BatchId, ReadyBatch

NUM_NODES, DIM = 500, 8
FEATURES = np.random.default_rng(0).standard_normal((NUM_NODES, DIM)).astype(np.float32)
FORM = RowFormat(dtype=FEATURES.dtype, dim=DIM)
TABLE = DeviceTable(type_number=0, num_nodes=NUM_NODES, form=FORM)


@dataclass
class SmallDevice:
    """A device with little memory, on which a step takes a known part."""

    free: int
    step_bytes: int = 0
    steps: int = 0
    inner: RehearsedDevice = field(default_factory=lambda: RehearsedDevice(reads_in_place=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def free_bytes(self) -> int:
        return self.free

    def most_bytes_of(self, step: Callable[[], object]) -> int:
        step()
        self.steps += 1
        return self.step_bytes


@pytest.fixture
def workload() -> Workload:
    rng = np.random.default_rng(1)
    indices = (NUM_NODES * rng.random(4000) ** 2).astype(np.int32)
    indptr = np.linspace(0, 4000, NUM_NODES + 1).astype(np.int64)
    graph = CscGraph(indptr=indptr, indices=indices)
    order = EpochOrder(seeds=np.arange(64), num_nodes=NUM_NODES, batch_size=16, seed=0)
    sampler = make_sampler("neighbor", graph, (3, 2), seed=0)
    probe = [sampler.sample(BatchId(epoch=0, index=0), np.arange(16))]
    return Workload(
        topology=graph,
        sampler=sampler,
        order=order,
        fanouts=(3, 2),
        probe_s=0.01,
        probe=probe,
        threads=2,
    )


def _open(
    monkeypatch: pytest.MonkeyPatch, device: Any, workload: Workload, *, dry_run: Any = None, **settings: Any
) -> Any:
    workload = dataclasses.replace(workload, dry_run=dry_run)
    monkeypatch.setattr("gloader.pipeline.open.device_tier.open_device", lambda place: device)
    others = settings.pop("others", None)
    (tier,) = open_device_tiers(DeviceSettings(**settings), workload, tables=[TABLE], others=others)
    tier.fill(RamFeatures(FEATURES))
    return tier


def test_a_dry_run_sees_a_batch_of_the_right_form_and_leaves_room_for_its_step(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    seen: list[ReadyBatch] = []
    device = SmallDevice(free=(512 << 20) + 40_000, step_bytes=10_000)
    tier = _open(monkeypatch, device, workload, dry_run=seen.append)
    (batch,) = seen
    assert batch.x.shape == (len(workload.probe[0].nodes), DIM)
    assert batch.y.shape == (16,)
    assert len(batch.blocks) == 2
    assert tier.cache is not None
    held = 0 < len(tier.cache.plan.rows) < NUM_NODES
    assert held
    assert tier.cache.num_bytes <= 40_000 - 12_000


def test_without_a_dry_run_the_model_keeps_half(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    device = SmallDevice(free=80_000)
    tier = _open(monkeypatch, device, workload)
    assert device.steps == 0
    assert tier.cache is not None
    assert tier.cache.num_bytes <= 40_000


def test_all_rows_go_there_where_they_fit(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    tier = _open(monkeypatch, SmallDevice(free=10**6), workload)
    assert tier.cache.plan.holds_all
    assert tier.cache.slot_of is None
    assert with_features(tier, FEATURES, FORM) is tier  # nothing is pinned for a device that has all
    np.testing.assert_array_equal(tier.cache.table.rows.numpy(), FEATURES)


def test_features_are_unpinned_where_the_device_has_no_room_for_their_factors() -> None:
    with faked_cuda() as fake:
        device = open_device(torch.device("cuda", 1))
        form = RowFormat(dtype=np.dtype(np.int8), dim=DIM, scale=np.ones(NUM_NODES, np.float32))
        features = np.zeros((NUM_NODES, DIM), np.int8)
        assert device.can_launch
        fake.allocations_left = 0
        with pytest.raises(torch.OutOfMemoryError):
            with_features(DeviceTier(device=device), features, form)
        assert "cudaHostRegister" in fake.calls
        assert fake.registered == {}


def test_no_room_means_no_cache(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    tier = _open(monkeypatch, SmallDevice(free=1000), workload)
    assert tier.cache is None
    assert tier.explain() == ""
    assert not tier.holds_all


def test_the_cpu_has_a_budget_for_its_memory(monkeypatch: pytest.MonkeyPatch, workload: Workload) -> None:
    assert _open(monkeypatch, CpuDevice(), workload).cache is None
    assert _open(monkeypatch, CpuDevice(), workload, device_cache=4000).cache is not None


def test_a_topology_there_counts_beside_rows_that_take_what_is_free(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    before = _open(monkeypatch, SmallDevice(free=60_000), workload)
    asked: list[dict[str, Any]] = []
    found: Any = SimpleNamespace(sampler=SimpleNamespace(graph=object()), num_bytes=1280)

    def find(*args: Any, **named: Any) -> Any:
        asked.append(named)
        return found, "sampling: there"

    monkeypatch.setattr("gloader.pipeline.open.device_tier.open_device_sampler", find)
    tier = _open(monkeypatch, SmallDevice(free=60_000), workload)
    assert len(before.cache.plan.rows) - len(tier.cache.plan.rows) == 1280 // (4 * DIM)
    assert (tier.sampler, tier.topology) == (found.sampler, found.sampler.graph)
    assert tier.explain().endswith("\nsampling: there")
    kept = with_features(tier, FEATURES, FORM)
    assert (kept.topology, kept.sampler) == (found.sampler.graph, found.sampler)
    # Rows of a given size stay, and what is left beside them counts.
    sized = _open(monkeypatch, SmallDevice(free=60_000), workload, device_cache=10_000)
    assert 9_900 < sized.cache.num_bytes <= 10_000
    assert [(named["room_bytes"], named["all_rows_bytes"]) for named in asked[1:]] == [(50_000, None)]
    assert before.cache.num_bytes <= asked[0]["room_bytes"] < 30_000
    assert asked[0]["all_rows_bytes"] == FEATURES.nbytes


class _OtherRanks(NoOtherDevices):
    """Devices of other ranks, which have as much room as this one's."""


def test_a_rank_that_loads_for_others_samples_in_its_own_memory(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    monkeypatch.setattr(
        "gloader.pipeline.open.device_tier.open_device", lambda place: SmallDevice(free=60_000)
    )
    with pytest.raises(ConfigError, match=r"one rank loads for all ranks of this machine.*sharing='private'"):
        open_device_tiers(
            DeviceSettings(sampling_device="cuda"), workload, tables=[TABLE], others=_OtherRanks()
        )


@pytest.mark.parametrize("hotness", ["presampled", "vip", "degree"])
def test_every_ranking_holds_rows_that_batches_want(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, hotness: Any
) -> None:
    tier = _open(
        monkeypatch, CpuDevice(), workload, device_cache=4 * NUM_NODES + 100 * 4 * DIM, device_hotness=hotness
    )
    plan = tier.cache.plan
    assert len(plan.rows) == 100
    order = workload.order
    batches = [
        workload.sampler.sample(
            BatchId(epoch=epoch, index=i), order.batch_seeds(order.epoch_seeds(epoch), i)
        ).nodes
        for epoch in range(100, 150)
        for i in range(order.num_batches)
    ]
    wanted = np.concatenate(batches)
    rate = np.isin(wanted, plan.rows).mean()
    best = np.sort(np.bincount(wanted, minlength=NUM_NODES))[-100:].sum() / len(wanted)
    assert best - rate < {"presampled": 0.02, "vip": 0.04, "degree": 0.2}[hotness]


def test_presampling_does_not_depend_on_its_threads(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    plans = [
        _open(
            monkeypatch, CpuDevice(), dataclasses.replace(workload, threads=threads), device_cache=6000
        ).cache.plan
        for threads in (1, 4)
    ]
    np.testing.assert_array_equal(plans[0].rows, plans[1].rows)
    assert plans[0].expected_hit_rate == plans[1].expected_hit_rate


def test_automatic_sizes_never_go_below_zero() -> None:
    assert automatic_bytes(0, step_bytes=0, batch_bytes=0, batches_ahead=2) == 0
    assert DeviceSettings().device == "cpu"


def _fits(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """Let a device say that it has no memory for a table of more than ``most_bytes``."""
    empty = torch.empty

    def allocate(shape: Any, **named: Any) -> torch.Tensor:
        found = empty(shape, **named)
        if found.nbytes > most_bytes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return found

    monkeypatch.setattr("gloader.device.tier.torch.empty", allocate)


def test_an_automatic_size_that_does_not_fit_after_all_is_halved_once_and_said(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    full = _open(monkeypatch, SmallDevice(free=60_000), workload).cache.num_bytes
    caplog.clear()
    _fits(monkeypatch, 6 * full // 10)
    tier = _open(monkeypatch, SmallDevice(free=60_000), workload)
    assert 4 * full < 10 * tier.cache.num_bytes < 6 * full
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.endswith("do not fit the device, though that much was free: half of it is tried")
    np.testing.assert_array_equal(tier.cache.table.rows.numpy(), FEATURES[tier.cache.plan.rows])
    _fits(monkeypatch, full // 8)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        _open(monkeypatch, SmallDevice(free=60_000), workload)
    assert any(note.startswith("lower device_cache (now ") for note in caught.value.__notes__)


@pytest.mark.parametrize("settings", [{"device_cache": 10_000}, {"others": PeerDevices({})}])
def test_a_size_that_was_asked_for_or_agreed_on_is_never_made_smaller(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, settings: dict[str, Any]
) -> None:
    _fits(monkeypatch, 2_000)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        _open(monkeypatch, SmallDevice(free=60_000), workload, **settings)
    (note,) = caught.value.__notes__
    assert note.startswith("lower device_cache (now ")


def test_a_trial_step_that_does_not_fit_says_what_to_lower(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    def fail(batch: ReadyBatch) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError) as caught:
        _open(monkeypatch, SmallDevice(free=60_000), workload, dry_run=fail)
    (note,) = caught.value.__notes__
    assert note.startswith(
        "in a trial step of the model: the device holds no cached rows: lower batch_size, "
    )


def test_half_of_a_device_is_taken_with_a_word_and_so_is_a_long_filling(
    monkeypatch: pytest.MonkeyPatch, workload: Workload, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gloader")
    monkeypatch.setattr("gloader.device.tier._SILENT_S", 0.0)
    _open(monkeypatch, SmallDevice(free=60_000), workload)
    half, filling = [record.getMessage() for record in caplog.records]
    assert half.startswith("device_cache='auto' without device_dry_run: rows may take ")
    assert half.endswith(" of cpu, half of its free memory")
    assert re.fullmatch(r"putting .* of rows onto cpu; about 0 s to go", filling)


def test_a_piece_of_the_table_is_read_while_the_one_before_it_is_copied(
    monkeypatch: pytest.MonkeyPatch, workload: Workload
) -> None:
    """On a device that copies late: a piece that is read over before its copy is over gives other rows."""
    monkeypatch.setattr("gloader.device.tier._CHUNK_BYTES", 40 * 4 * DIM)
    plan = DeviceCachePlan(num_nodes=NUM_NODES, rows=np.arange(0, NUM_NODES, 2))
    device = RehearsedDevice()
    tier = hold_rows(device, plan, form=FORM, as_stored=True)
    tier.fill(RamFeatures(FEATURES))
    assert tier.cache is not None
    np.testing.assert_array_equal(tier.cache.table.rows.numpy(), FEATURES[::2])
    assert device.faults == []


def test_rows_come_from_the_features_that_are_loaded() -> None:
    """The store here can load, and read nothing besides."""
    closed: list[bool] = []
    store: Any = SimpleNamespace(
        dtype=FORM.dtype,
        dim=DIM,
        num_rows=NUM_NODES,
        stored_rows=SimpleNamespace(form=FORM),
        load=lambda into: RamFeatures(FEATURES),
        close=lambda: closed.append(True),
    )
    plan = DeviceCachePlan(num_nodes=NUM_NODES, rows=np.array([3, 4, 499]))
    loaded = load_features(store, hold_rows(CpuDevice(), plan, form=FORM, as_stored=False))
    assert loaded.tier.cache is not None
    np.testing.assert_array_equal(loaded.tier.cache.table.rows.numpy(), FEATURES[plan.rows])
    assert closed == [True]
