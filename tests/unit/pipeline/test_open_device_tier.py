"""How large the device cache gets by itself."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import faked_cuda

from gloader.cache import automatic_bytes
from gloader.config import DeviceSettings
from gloader.core.order import EpochOrder
from gloader.device import CpuDevice, DeviceTier, RowFormat, open_device
from gloader.errors import ConfigError
from gloader.pipeline.open_device_tier import NoOtherDevices, Workload, open_device_tier, with_features
from gloader.samplers import CscGraph, make_sampler
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.types import BatchId, ReadyBatch

NUM_NODES, DIM = 500, 8
FEATURES = np.random.default_rng(0).standard_normal((NUM_NODES, DIM)).astype(np.float32)
FORM = RowFormat(dtype=FEATURES.dtype, dim=DIM)


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
    monkeypatch.setattr("gloader.pipeline.open_device_tier.open_device", lambda place: device)
    return open_device_tier(DeviceSettings(**settings), workload, source=RamFeatures(FEATURES), form=FORM)


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
    found: Any = SimpleNamespace(sampler=object(), topology=object(), num_bytes=1280)

    def find(*args: Any, **named: Any) -> Any:
        asked.append(named)
        return found, "sampling: there"

    monkeypatch.setattr("gloader.pipeline.open_device_tier.open_device_sampler", find)
    tier = _open(monkeypatch, SmallDevice(free=60_000), workload)
    assert len(before.cache.plan.rows) - len(tier.cache.plan.rows) == 1280 // (4 * DIM)
    assert (tier.sampler, tier.topology) == (found.sampler, found.topology)
    assert tier.explain().endswith("\nsampling: there")
    kept = with_features(tier, FEATURES, FORM)
    assert (kept.topology, kept.sampler) == (found.topology, found.sampler)
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
        "gloader.pipeline.open_device_tier.open_device", lambda place: SmallDevice(free=60_000)
    )
    with pytest.raises(ConfigError, match=r"one rank loads for all of this machine.*sharing='private'"):
        open_device_tier(
            DeviceSettings(sampling_device="cuda"),
            workload,
            source=RamFeatures(FEATURES),
            form=FORM,
            others=_OtherRanks(),
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
