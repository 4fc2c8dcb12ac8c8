"""The place of sampling: the weighing of "auto", the refusals of "cuda", and the reaction to a device error."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from fake_cuda import faked_cuda

from gloader.core.dtypes import RowFormat
from gloader.core.units import format_bytes
from gloader.device import CpuDevice, has_triton, open_device
from gloader.device.cuda import CudaMark
from gloader.errors import ConfigError
from gloader.pipeline.open import device_tier as module
from gloader.pipeline.open.device_rows import DeviceTable, Workload
from gloader.pipeline.open.device_tier import open_device_sampler, sampling_obstacle
from gloader.samplers import CscGraph, make_sampler, make_temporal_sampler
from gloader.types import BatchId, Links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.device import Device
    from gloader.types import SampledBatch, Sampler

GRAPH = CscGraph(
    indptr=np.arange(0, 401, 4), indices=(np.arange(400) * 7 % 100).astype(np.int32), edge_weight=np.ones(400)
)
# indptr, indices and a label for each node; the blocks of eight batches come on top.
TABLES = 8 * 101 + 4 * 400 + 4 * 100

LINKS = Links(
    pairs=np.zeros((1, 2), np.int32),
    labels=np.ones(1, np.float32),
    edge_ids=np.zeros(1, np.int64),
    num_positives=1,
)
OF_EDGES = DeviceTable(
    type_number=1, num_nodes=400, form=RowFormat(dtype=np.dtype(np.float32), dim=2), is_of_edges=True
)

needs_triton = pytest.mark.skipif(not has_triton(), reason="Triton is missing: pip install -e '.[gpu]'")


def _make(spec: str = "neighbor", **options: Any) -> tuple[Sampler, SampledBatch]:
    sampler = make_sampler(spec, GRAPH, [2, 2], 5, **options)
    return sampler, sampler.sample(BatchId(epoch=0, index=1), np.arange(8))


RANKS = sampling_obstacle(None, [], serves_ranks=True)
LINKED = sampling_obstacle(replace(_make()[1], links=LINKS), [], serves_ranks=False)
EDGES = sampling_obstacle(None, [OF_EDGES], serves_ranks=False)


def _open(wanted: Any, device: Any, spec: str = "neighbor", **changed: Any) -> Any:
    sampler, probe = _make(spec)
    probe = changed.pop("probe", probe)
    workload = _workload(sampler, probe, changed.pop("topology", GRAPH))
    options: dict[str, Any] = {"room_bytes": 10**6, "all_rows_bytes": None}
    return open_device_sampler(wanted, device, workload, **(options | changed))


def _workload(sampler: Any, probe: SampledBatch | None, topology: Any, *, threads: int = 1) -> Workload:
    return Workload(
        topology=topology,
        sampler=sampler,
        order=cast("Any", None),
        fanouts=(2, 2),
        probe=[] if probe is None else [probe],
        probe_s=0.0,
        threads=threads,
    )


@pytest.fixture
def gpu() -> Iterator[Device]:
    """A device over a faked torch.cuda; kernels are run by the interpreter, in no time by the clock of the device."""
    with faked_cuda(), mock.patch.object(CudaMark, "seconds_since", return_value=0.0):
        yield open_device(torch.device("cuda", 1))


@needs_triton
def test_auto_takes_a_quarter_of_the_room_or_what_leaves_all_rows(gpu: Device) -> None:
    found, text = _open("auto", gpu)
    assert found is not None
    size = found.num_bytes
    assert size > TABLES
    assert found.sampler.graph.num_bytes == 8 * 101 + 4 * 400
    assert text == f"sampling: on cuda:1, with {format_bytes(size)} of edges and batches there"
    assert _open("auto", gpu, room_bytes=4 * size)[0] is not None
    found, text = _open("auto", gpu, room_bytes=4 * size - 4)
    assert found is None
    assert text.startswith("sampling: on the CPU: edges and batches would take ")
    assert text.endswith(f"more than 25% of the {format_bytes(4 * size - 4)} for rows")
    assert _open("auto", gpu, room_bytes=2 * size, all_rows_bytes=size)[0] is not None
    assert _open("auto", gpu, room_bytes=2 * size - 1, all_rows_bytes=size)[0] is None
    # Who asks for it gets it.
    assert _open("cuda", gpu, room_bytes=0)[0] is not None


@needs_triton
@pytest.mark.parametrize(
    ("there_ms", "threads", "is_there"), [(0.0, 4, True), (9.0, 4, False), (9.0, 1, True)]
)
def test_auto_takes_who_samples_faster(gpu: Device, there_ms: float, threads: int, is_there: bool) -> None:
    """Twenty milliseconds here, of one thread."""
    sampler, probe = _make()
    clock = itertools.cycle([0.0, 20e-3])
    options: dict[str, Any] = {"room_bytes": 10**6, "all_rows_bytes": None}
    workload = _workload(sampler, probe, GRAPH, threads=threads)
    with (
        mock.patch.object(CudaMark, "seconds_since", return_value=there_ms / 1e3),
        mock.patch.object(module, "time", SimpleNamespace(perf_counter=lambda: next(clock))),
    ):
        found, text = open_device_sampler("auto", gpu, workload, **options)
        asked, _ = open_device_sampler("cuda", gpu, workload, **options)
    assert (found is not None) == is_there
    assert asked is not None  # who asks for it gets it
    if not is_there:
        assert (
            text
            == "sampling: on the CPU: a batch takes 9.0 ms on the GPU, and 5.0 ms on the CPU with 4 threads"
        )


@needs_triton
def test_what_sampling_holds_grows_with_the_room_of_a_hop(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room = _open("cuda", gpu)[0].num_bytes
    monkeypatch.setattr("gloader.device.tier.MOST_UNCOUNTED_EDGES", 0)
    assert (
        _open("cuda", gpu)[0].num_bytes < with_room
    )  # of 16 edges from 8 seeds, and 48 from what they found
    monkeypatch.setattr("gloader.device.tier.MOST_UNCOUNTED_EDGES", 16)
    assert _open("cuda", gpu)[0].num_bytes < with_room


def test_nobody_samples_there_unasked(gpu: Device) -> None:
    assert _open("cpu", gpu) == (None, "sampling: on the CPU, as sampling_device='cpu' says")
    assert _open("auto", CpuDevice()) == (None, "")
    assert _open("cpu", CpuDevice()) == (None, "")


class _Paged:
    """A topology that is not in memory."""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"device": CpuDevice()}, "batches are computed on the CPU: compute on a GPU \\(device='cuda'\\)"),
        ({"obstacle": RANKS}, "one rank loads for all ranks of this machine.*: give each rank its own loader with sh"),
        ({"spec": "weighted"}, "only sampler='neighbor' runs on a GPU"),
        ({"spec": "labor"}, "only sampler='neighbor' runs on a GPU"),
        ({"obstacle": LINKED}, "batches of links are sampled on the CPU a"),
        ({"obstacle": EDGES}, "the rows of edges are looked up by the "),
        ({"topology": _Paged()}, "the edges are on the SSD: use topology='ram', or a memory_budget of more than"),
    ],
)  # fmt: skip
def test_what_cannot_be_sampled_there_is_refused_or_sampled_here(
    gpu: Device, changed: dict[str, Any], reason: str
) -> None:
    changed = {"device": gpu} | changed
    with pytest.raises(
        ConfigError, match=f"sampling_device='cuda': {reason}.*; or use sampling_device='cpu'$"
    ):
        _open("cuda", **changed)
    found, text = _open("auto", **changed)
    assert found is None
    assert text == "" or text.startswith("sampling: on the CPU: ")


def test_seeds_that_ask_at_a_time_are_sampled_here(gpu: Device) -> None:
    graph = CscGraph(indptr=GRAPH.indptr, indices=GRAPH.indices, edge_time=np.zeros(400, np.int64))
    options: dict[str, Any] = {"room_bytes": 10**6, "all_rows_bytes": None}
    workload = _workload(make_temporal_sampler(graph, [2, 2]), _make()[1], graph)
    with pytest.raises(
        ConfigError, match="sampling_device='cuda': seeds with query times are sampled on the CPU only;"
    ):
        open_device_sampler("cuda", gpu, workload, **options)
    found, text = open_device_sampler("auto", gpu, workload, **options)
    assert found is None
    assert text == "sampling: on the CPU: seeds with query times are sampled on the CPU only"


def test_without_triton_nothing_is_sampled_there(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_triton", lambda: False)
    with pytest.raises(ConfigError, match="Triton is missing: pip install"):
        _open("cuda", gpu)


@needs_triton
def test_a_device_that_fails_with_a_first_batch_is_not_asked_for_others(
    gpu: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from gloader.device import sampling_kernels

    def fail(*args: Any, **named: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(sampling_kernels, "launch_pick", fail)
    with caplog.at_level(logging.WARNING, "gloader"):
        found, text = _open("auto", gpu)
    assert found is None
    assert text == "sampling: on the CPU: the GPU failed on a first batch: RuntimeError: no compiler"
    assert "sampled on the CPU: the GPU failed" in caplog.text
    with pytest.raises(ConfigError, match="no compiler"):
        _open("cuda", gpu)


@needs_triton
def test_a_device_that_fails_with_a_later_batch_is_not_asked_for_others(
    gpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gloader.device import sampling_kernels

    pick, calls = sampling_kernels.launch_pick, itertools.count()

    def fail_later(*args: Any, **named: Any) -> Any:
        if next(calls) == 2:  # the first hop of the second batch
            raise RuntimeError("out of memory")
        return pick(*args, **named)

    monkeypatch.setattr(sampling_kernels, "launch_pick", fail_later)
    found, text = _open("auto", gpu)
    assert found is None
    assert text == "sampling: on the CPU: the GPU failed on a batch: RuntimeError: out of memory"


@needs_triton
def test_a_device_that_draws_otherwise_is_found_out(gpu: Device, caplog: pytest.LogCaptureFixture) -> None:
    other, _ = _make("neighbor:replace=true")
    probe = other.sample(BatchId(epoch=0, index=1), np.arange(8))
    with caplog.at_level(logging.WARNING, "gloader"):
        assert _open("auto", gpu, probe=probe)[0] is None
    assert "the GPU sampled another first batch than the CPU" in caplog.text


@needs_triton
def test_without_batches_there_is_nothing_to_try(gpu: Device) -> None:
    assert _open("cuda", gpu, probe=None)[0] is not None
