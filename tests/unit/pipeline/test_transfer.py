"""Sending: nothing of the host's memory is used again before the device has read it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gloader.cache import DeviceCachePlan, no_device_cache
from gloader.device import CpuDevice, DeviceTier, RowFormat, StaticCache
from gloader.pipeline.buffers import BufferRing
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.open_device_tier import hold_rows
from gloader.pipeline.transfer import Transfer, transfer
from gloader.ssd_store import RamFeatures
from gloader.types import BatchId, Block, SampledBatch

DIM = 3
FEATURES = np.arange(60, dtype=np.float32).reshape(20, DIM)
LABELS = np.array([4, 2])


class SlowMark:
    """Reached when a test says so."""

    def __init__(self) -> None:
        self.reached = False
        self.guarded: list[torch.Tensor] = []

    def is_reached(self) -> bool:
        return self.reached

    def wait(self) -> None:
        self.reached = True

    def precede(self, tensors: Iterable[torch.Tensor]) -> None:
        self.guarded += tensors


@dataclass(frozen=True)
class SlowDevice:
    """A device that has not read anything until its marks say so."""

    marks: list[SlowMark] = field(default_factory=list)
    uploaded: list[NDArray[Any]] = field(default_factory=list)
    inner: CpuDevice = field(default_factory=lambda: CpuDevice(rehearses=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def mark(self) -> SlowMark:
        self.marks.append(SlowMark())
        return self.marks[-1]

    def upload(self, arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        self.uploaded.extend(arrays)
        return self.inner.upload(arrays)


def _batch(x: NDArray[np.float32], nodes: Sequence[int], *, weights: bool = False) -> HostBatch:
    x[:] = FEATURES[list(nodes)]
    block = Block(
        indptr=np.array([0, 1, 2], dtype=np.int32),
        indices=np.array([2, 0], dtype=np.int32),
        edge_ids=np.array([7, 9]),
        num_src=len(nodes),
        num_dst=2,
        edge_weight=np.array([0.5, 1.5], dtype=np.float32) if weights else None,
    )
    sampled = SampledBatch(
        id=BatchId(epoch=0, index=0), nodes=np.array(nodes), num_seeds=2, blocks=(block, block)
    )
    degree = np.arange(len(nodes), dtype=np.float32)
    return HostBatch(sampled=sampled, x=x, src_degree=degree, superbatch=5, ends_superbatch=True)


def _ring(max_bytes: int = 3 * 5 * DIM * 4) -> BufferRing:
    return BufferRing(dim=DIM, rows=5, max_bytes=max_bytes, patience_s=0.1)


@pytest.mark.reliability("D13")
def test_a_buffer_comes_back_when_the_device_has_read_it_and_not_before() -> None:
    device, ring = SlowDevice(), _ring()
    sender = Transfer(DeviceTier(device=device))  # type: ignore[arg-type]
    first = ring.acquire(5)
    address = first.ctypes.data
    sent = sender.send(_batch(first, [1, 2, 3, 4, 5]), LABELS)
    del first
    second = ring.acquire(5)
    assert second.ctypes.data != address
    sent.receive()  # the consumer has it, and the copy still runs
    sender.release()
    third = ring.acquire(5)
    assert third.ctypes.data != address
    device.marks[0].reached = True
    sender.release()
    assert ring.acquire(5).ctypes.data == address
    np.testing.assert_array_equal(sent.ready.x.numpy(), FEATURES[1:6])


@pytest.mark.reliability("D13")
def test_what_the_consumer_computes_comes_behind_the_mark() -> None:
    device = SlowDevice()
    sender = Transfer(DeviceTier(device=device))  # type: ignore[arg-type]
    sent = sender.send(_batch(_ring().acquire(5), [1, 2, 3, 4, 5], weights=True), LABELS)
    assert device.marks[0].guarded == []
    ready = sent.receive()
    guarded = {tensor.untyped_storage().data_ptr() for tensor in device.marks[0].guarded}
    block = ready.blocks[0]
    assert block.edge_weight is not None
    tensors = (
        ready.x,
        ready.y,
        block.indptr,
        block.indices,
        block.src_degree,
        block.edge_weight,
    )
    assert {tensor.untyped_storage().data_ptr() for tensor in tensors} == guarded


@pytest.mark.parametrize("rows", [(), (2, 4)])
def test_no_more_is_sent_than_the_device_needs(rows: tuple[int, ...]) -> None:
    device = SlowDevice()
    source, form = RamFeatures(FEATURES), RowFormat(dtype=FEATURES.dtype, dim=DIM)
    plan = DeviceCachePlan(num_nodes=20, rows=np.array(rows, dtype=np.int64))
    tier = hold_rows(device, plan, source=source, form=form)  # type: ignore[arg-type]
    host = _batch(np.empty((5, DIM), dtype=np.float32), [4, 2, 9, 19, 0])
    ready = Transfer(tier).send(host, LABELS).receive()
    ids = [np.int32] if rows else []  # nothing is looked up by them without a cache
    block = [np.int32, np.int32]
    assert [array.dtype for array in device.uploaded] == [np.int64, np.float32, *ids, *block, *block]
    np.testing.assert_array_equal(ready.x.numpy(), FEATURES[ready.nodes])
    assert ready.nodes.dtype == np.int64
    assert [hop.edge_ids.tolist() for hop in ready.blocks] == [[7, 9]] * 2


def test_ids_that_need_64_bits_have_them() -> None:
    form = RowFormat(dtype=FEATURES.dtype, dim=DIM)
    for num_nodes, is_short in ((2**31, True), (2**31 + 1, False)):
        plan = no_device_cache(num_nodes)
        device = CpuDevice(rehearses=True)
        tier = hold_rows(device, plan, source=RamFeatures(FEATURES), form=form)
        assert tier.has_short_ids == is_short
    assert not hold_rows(
        CpuDevice(), no_device_cache(9), source=RamFeatures(FEATURES), form=form
    ).has_short_ids


def test_waiting_lets_go_of_everything() -> None:
    device, ring = SlowDevice(), _ring(max_bytes=5 * DIM * 4)
    sender = Transfer(DeviceTier(device=device))  # type: ignore[arg-type]
    sender.send(_batch(ring.acquire(5), [1, 2, 3, 4, 5]), LABELS)
    sender.wait()
    ring.acquire(5)


@pytest.mark.parametrize("rehearses", [False, True])
@pytest.mark.parametrize("rows", [(), (2, 4, 19), tuple(range(20))])
def test_a_sent_batch_is_the_gathered_one(rehearses: bool, rows: tuple[int, ...]) -> None:
    tier = DeviceTier(device=CpuDevice(rehearses=rehearses))
    if rows:
        plan = DeviceCachePlan(num_nodes=20, rows=np.array(rows))
        form = RowFormat(dtype=FEATURES.dtype, dim=DIM)
        cache = StaticCache(plan, source=RamFeatures(FEATURES), form=form, place=torch.device("cpu"))
        tier = DeviceTier(device=tier.device, cache=cache)
    nodes = [4, 2, 9, 19, 0]
    host = _batch(np.empty((5, DIM), dtype=np.float32), nodes, weights=True)
    for position, node in enumerate(nodes):
        if node in rows:
            host.x[position] = np.nan  # what the host does not bring
    sent = Transfer(tier).send(host, LABELS)
    assert (sent.superbatch, sent.ends_superbatch) == (5, True)
    ready = sent.receive()
    np.testing.assert_array_equal(ready.x.numpy(), FEATURES[nodes])
    np.testing.assert_array_equal(ready.y.numpy(), LABELS)
    for block, given in zip(ready.blocks, host.sampled.blocks, strict=True):
        np.testing.assert_array_equal(block.indptr.numpy(), given.indptr)
        np.testing.assert_array_equal(block.indices.numpy(), given.indices)
        np.testing.assert_array_equal(block.edge_ids.numpy(), given.edge_ids)
        np.testing.assert_array_equal(block.src_degree.numpy(), host.src_degree)
        assert block.edge_weight is not None
        np.testing.assert_array_equal(block.edge_weight.numpy(), [0.5, 1.5])


def test_on_the_cpu_the_features_are_not_copied() -> None:
    x = np.empty((5, DIM), dtype=np.float32)
    ready = transfer(_batch(x, [1, 2, 3, 4, 5]), LABELS, torch.device("cpu"))
    assert ready.x.data_ptr() == x.ctypes.data
