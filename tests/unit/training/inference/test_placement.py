"""The places of an inference: rows and edges come from the nearest copy, tables are as wide as the device allows."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gloader.cache import DeviceCachePlan
from gloader.config import ModelConfig
from gloader.device import CpuDevice, Device, DeviceTier, RowFormat, StaticCache, reach_features
from gloader.device.tier import upload_topology
from gloader.models import build_model
from gloader.models.sage import SageConv
from gloader.samplers import CscGraph
from gloader.samplers.graph import HeldScan, HeteroGraph
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training.inference import placement
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.training.inference.scanned_edges import DeviceEdges
from gloader.types import EDGE, NODE

N, F, H, C = 300, 7, 8, 3
PLENTY = 1 << 24
CPU = torch.device("cpu")
NODES = np.random.default_rng(5).permutation(N)[:120]


class Gpu(RehearsedDevice):
    """A rehearsed GPU with so much memory."""

    def __init__(self, *, free: int = PLENTY, reads_in_place: bool = False) -> None:
        super().__init__(reads_in_place=reads_in_place)
        self.free = free

    def free_bytes(self) -> int:
        return self.free


class NoFeatures(RamFeatures):
    """Stands for features on the SSD that nobody may sweep."""

    def read_into(self, rows, out, /, *, at=None):
        pytest.fail("rows were read that are nearer elsewhere")


@pytest.fixture(scope="module")
def graph() -> CscGraph:
    rng = np.random.default_rng(0)
    destinations = np.sort(np.where(rng.random(800) < 0.3, 7, rng.integers(0, N - 3, 800)))
    indptr = np.zeros(N + 1, dtype=np.int64)
    np.cumsum(np.bincount(destinations, minlength=N), out=indptr[1:])
    return CscGraph(indptr=indptr, indices=rng.integers(0, N, 800).astype(np.int32))


@pytest.fixture(params=["float32", "float16", "int8"], scope="module")
def features(request) -> RamFeatures:
    rng = np.random.default_rng(1)
    if request.param == "int8":
        scale = rng.random(N).astype(np.float32)
        return RamFeatures(rng.integers(-128, 128, (N, F)).astype(np.int8), scale=scale)
    return RamFeatures(rng.normal(size=(N, F)).astype(request.param))


def _model(name="graphsage"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(name=name, hidden=H, heads=2, batch_norm=True)
        return build_model(config, in_dim=F, out_dim=C, num_layers=3)


def _logits(graph, features, *, name="graphsage", nodes=NODES, budget=PLENTY, **where) -> torch.Tensor:
    job = HeteroInference.of_one_type(graph=graph, features=features, memory_budget_bytes=budget, **where)
    return torch.cat([logits for _, logits in job.logits(_model(name), nodes)])


def _tier(features: RamFeatures, device: Device, **parts) -> DeviceTier:
    """A device that holds all rows."""
    form = RowFormat(dtype=features.dtype, dim=F, scale=features._form.scale)
    plan = DeviceCachePlan(num_nodes=N, rows=np.arange(N))
    tier = DeviceTier(device=device, cache=StaticCache(plan, form=form, place=CPU), **parts)
    tier.fill(_Stored(features))
    return tier


class _Stored:
    """Rows as they are stored, as a store reads them for a table of their dtype."""

    def __init__(self, features: RamFeatures) -> None:
        self._array = features.array

    def read_into(self, rows, out) -> None:
        out[:] = self._array[rows]


@pytest.mark.parametrize("device", [CpuDevice(), Gpu()], ids=["cpu", "gpu"])
def test_nothing_is_read_where_the_device_holds_all_rows(graph, features, device) -> None:
    nowhere = NoFeatures(features.array, scale=features._form.scale)
    found = _logits(graph, nowhere, device=device, tier=_tier(features, device))
    assert torch.equal(found, _logits(graph, features))


def test_features_in_pinned_memory_are_copied_from_there(graph, features) -> None:
    device = Gpu(reads_in_place=True)
    form = RowFormat(dtype=features.dtype, dim=F, scale=features._form.scale)
    pinned = device.pin(features.array)
    tier = DeviceTier(device=device, features=reach_features(device, pinned, form), pinned=pinned)
    nowhere = NoFeatures(features.array, scale=features._form.scale)
    found = _logits(graph, nowhere, device=device, tier=tier)
    assert torch.equal(found, _logits(graph, features))


def test_what_another_device_holds_is_left_alone(graph, features) -> None:
    nothing = CscGraph(indptr=np.zeros(N + 1, np.int64), indices=np.empty(0, np.int32))
    elsewhere = DeviceTier(device=_Elsewhere(), topology=upload_topology(nothing, CPU))
    assert torch.equal(_logits(graph, features, device=Gpu(), tier=elsewhere), _logits(graph, features))


class _Elsewhere:
    place = torch.device("meta")


class Cuts:
    """Counts the pieces that are cut on the host, and the threads that do it."""

    def __init__(self, monkeypatch) -> None:
        self.threads: list[str] = []
        true = HeldScan.lists

        def counted(scan, starts, counts):
            self.threads.append(threading.current_thread().name)
            return true(scan, starts, counts)

        monkeypatch.setattr(HeldScan, "lists", counted)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("device", [CpuDevice(), Gpu()], ids=["cpu", "gpu"])
def test_edges_are_views_of_a_topology_that_the_device_holds(graph, monkeypatch, name, device) -> None:
    features = RamFeatures(np.random.default_rng(2).normal(size=(N, F)).astype(np.float32))
    expected = _logits(graph, features, name=name)
    monkeypatch.setattr(placement, "upload_topology", lambda *_: pytest.fail("it is there already"))
    cuts = Cuts(monkeypatch)
    tier = DeviceTier(device=device, topology=upload_topology(graph, CPU))
    assert torch.equal(_logits(graph, features, name=name, device=device, tier=tier), expected)
    assert cuts.threads == []


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_topology_that_fits_a_third_goes_to_the_device_for_the_evaluation(graph, lacking) -> None:
    given = placement.Given(
        graph=HeteroGraph(num_nodes={NODE: N}, relations={EDGE: graph}),
        features={NODE: RamFeatures(np.zeros((N, F), np.float32))},
        budget_bytes=PLENTY,
        # Half of it is for the evaluation.
        device=Gpu(free=2 * (3 * (graph.indptr.nbytes + graph.indices.nbytes) - lacking)),
    )
    placed = placement.place_inference(_model(), given, given.extent({NODE: N}), num_layers=3)
    edges = placed.edges(EDGE)
    assert isinstance(edges, DeviceEdges)
    assert (edges._indices is None) == bool(lacking)


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "mlp"])
@pytest.mark.parametrize("fits", [True, False])
def test_edges_that_do_not_fit_are_cut_and_sent_by_a_thread_and_nobody_waits(
    graph, monkeypatch, name, fits
) -> None:
    features = RamFeatures(np.random.default_rng(2).normal(size=(N, F)).astype(np.float32))
    expected = _logits(graph, features, name=name)
    monkeypatch.setattr(placement, "_TOPOLOGY_SHARE", 1 if fits else PLENTY)
    cuts = Cuts(monkeypatch)
    with NoWaits():
        found = _logits(graph, features, name=name, device=Gpu(), budget=60_000)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert set(cuts.threads) == ({"gloader-infer-edges"} if not fits and name != "mlp" else set())
    assert fits or name == "mlp" or len(cuts.threads) > 20


class NoWaits(TorchDispatchMode):
    """Refuses operations for whose result, or its size, a host waits for its device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "unique_dim", "_unique2"}
        assert name != "repeat_interleave" or (kwargs or {}).get("output_size") is not None
        return func(*args, **(kwargs or {}))


def _plans_of(monkeypatch) -> list[placement.Placement]:
    made: list[placement.Placement] = []
    true = placement.place_inference

    def noted(*args, **keywords):
        made.append(true(*args, **keywords))
        return made[-1]

    monkeypatch.setattr("gloader.training.inference.layerwise_inference.place_inference", noted)
    return made


@pytest.fixture(scope="module")
def sparse() -> CscGraph:
    """Few edges: a device with little memory gets a few of them at a time."""
    indptr = np.minimum(np.arange(N + 1), 100)
    return CscGraph(indptr=indptr, indices=np.random.default_rng(3).integers(0, N, 100).astype(np.int32))


@pytest.mark.reliability("J11")
def test_less_memory_makes_more_slabs_and_the_cpu_is_the_last_resort(sparse, monkeypatch, caplog) -> None:
    features = RamFeatures(np.random.default_rng(2).normal(size=(N, F)).astype(np.float32))
    made = _plans_of(monkeypatch)
    expected = _logits(sparse, features)
    with caplog.at_level(logging.WARNING, logger="gloader"):
        for free, num_slabs in ((PLENTY, 3), (20_000, 10)):
            found = _logits(sparse, features, device=Gpu(free=free))
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
            assert made[-1].device.is_asynchronous
            assert sum(len(plan.slabs) for types in made[-1].plans for plan in types.values()) == num_slabs
        assert caplog.messages == []
        assert torch.equal(_logits(sparse, features, device=Gpu(free=9_000)), expected)
    assert not made[-1].device.is_asynchronous
    (message,) = caplog.messages
    assert message == (
        "evaluation computes on the CPU: it may take 4.5 KB of cpu, which is not enough for one step of columns of 300 "
        "nodes; a smaller --device-cache leaves more"
    )


def test_a_device_that_is_out_of_memory_gets_another_chance(sparse, monkeypatch, caplog, tmp_path) -> None:
    features = RamFeatures(np.random.default_rng(2).normal(size=(N, F)).astype(np.float32))
    expected = _logits(sparse, features)
    made = _plans_of(monkeypatch)
    true, calls = SageConv.propagate, []

    def propagate(self, table, *rest):
        calls.append(table)
        if len(calls) == 3:  # while activations are on the disk
            raise torch.OutOfMemoryError("CUDA out of memory")
        return true(self, table, *rest)

    monkeypatch.setattr(SageConv, "propagate", propagate)
    with caplog.at_level(logging.WARNING, logger="gloader"):
        found = _logits(sparse, features, device=Gpu(free=40_000), budget=30_000, scratch=tmp_path)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    first, second = (placed.plans[0][NODE] for placed in made)
    assert first.is_on_disk
    assert len(second.slabs) > len(first.slabs)
    assert caplog.messages == ["evaluation ran out of memory on cpu: again, in half of it"]
    assert list(tmp_path.iterdir()) == []


def test_activations_stay_on_the_device_where_they_fit_else_in_memory_else_on_the_disk(
    sparse, monkeypatch, tmp_path
) -> None:
    features = RamFeatures(np.random.default_rng(2).normal(size=(N, F)).astype(np.float32))
    made = _plans_of(monkeypatch)
    expected = _logits(sparse, features)
    where = []
    for free, budget in ((PLENTY, PLENTY), (40_000, PLENTY), (40_000, 30_000)):
        found = _logits(sparse, features, device=Gpu(free=free), budget=budget, scratch=tmp_path)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
        plan = made[-1].plans[0][NODE]
        where.append((plan.is_on_device, plan.is_on_disk))
    assert where == [(True, False), (False, False), (False, True)]
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_thread_that_reads_is_the_callers(graph) -> None:
    class Broken(RamFeatures):
        def read_into(self, rows, out, /, *, at=None):
            raise OSError("the disk is gone")

    features = Broken(np.zeros((N, F), np.float32))
    with pytest.raises(OSError, match="the disk is gone"):
        _logits(graph, features, device=Gpu())
