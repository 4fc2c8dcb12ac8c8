"""Sending: nothing of the host's memory is used again before the device has read it."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gloader.cache import DeviceCachePlan, no_device_cache
from gloader.device import CpuDevice, Device, DeviceTier, RowFormat, StaticCache
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.open.device_tier import hold_rows
from gloader.pipeline.row_task import Answers
from gloader.pipeline.send import ROOMIER, Transfer, roomy, transfer
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import OverwritingRing, RehearsedDevice
from gloader.types import BatchId, Block, ReadyBatch, SampledBatch, SampledOnDevice

DIM = 3
FEATURES = np.arange(60, dtype=np.float32).reshape(20, DIM)
LABELS = np.array([4, 2])
ANSWERS = Answers(labels=LABELS)


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
    return HostBatch(sampled=sampled, x=(x,), src_degree=degree, superbatch=5, ends_superbatch=True)


def _ring(max_bytes: int = 3 * 5 * DIM * 4) -> BufferRing:
    return OverwritingRing(
        forms=[RowForm(dim=DIM)],
        rows=[5],
        max_bytes=max_bytes,
        patience_s=0.1,
        allocate=RehearsedDevice().host_buffer,
    )


def _sender(device: RehearsedDevice) -> Transfer:
    return Transfer([DeviceTier(device=device)])


@pytest.mark.reliability("D13")
def test_a_buffer_comes_back_when_the_device_has_read_it_and_not_before() -> None:
    device, ring = RehearsedDevice(), _ring()
    sender = _sender(device)
    first = ring.acquire([5])[0]
    address = first.ctypes.data
    sent = sender.send(_batch(first, [1, 2, 3, 4, 5]), ANSWERS)
    del first
    second = ring.acquire([5])[0]
    assert second.ctypes.data != address
    with device.computing():
        sent.receive()  # the consumer has it, and the copy still runs
    sender.release()
    third = ring.acquire([5])[0]
    assert third.ctypes.data != address
    device.finish()
    sender.release()
    assert ring.acquire([5])[0].ctypes.data == address
    np.testing.assert_array_equal(sent.ready.x.numpy(), FEATURES[1:6])


@pytest.mark.reliability("D13")
@pytest.mark.parametrize("has_table", [False, True])
def test_what_the_consumer_computes_comes_behind_the_batch_and_before_its_memory_is_used_again(
    has_table: bool,
) -> None:
    device = RehearsedDevice()
    sender = Transfer([_tier(device, rows=(2, 4, 19)) if has_table else DeviceTier(device=device)])
    seen: list[ReadyBatch] = []
    host = _batch(_ring().acquire([5])[0], [1, 2, 3, 4, 5], weights=True)
    sent = sender.send(host, ANSWERS)
    assert device.num_blocks == 2
    assert sent.ready.x.isnan().all()  # a stream of its own brings it: nothing is done on that of this thread
    with device.computing():
        ready = sent.receive()
        # A copy, at the time the step runs: of all that a batch has, in the order of the fields.
        device.launch(lambda batch: seen.append(copy.deepcopy(batch)), ready)
        del sent, ready
        assert device.num_blocks == 2  # the loop dropped the batch, and the device still needs it
    device.finish()
    assert (device.num_blocks, device.faults) == (0, [])
    _same(seen[0], host)


@pytest.mark.parametrize("rows", [(), (2, 4)])
def test_no_more_is_sent_than_the_device_needs(
    monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...]
) -> None:
    device, uploaded = RehearsedDevice(), []
    upload = device.upload

    def count(arrays: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        uploaded.extend(arrays)
        return upload(arrays)

    monkeypatch.setattr(device, "upload", count)
    source, form = RamFeatures(FEATURES), RowFormat(dtype=FEATURES.dtype, dim=DIM)
    plan = DeviceCachePlan(num_nodes=20, rows=np.array(rows, dtype=np.int64))
    tier = hold_rows(device, plan, form=form, as_stored=True)
    tier.fill(source)
    host = _batch(np.empty((5, DIM), dtype=np.float32), [4, 2, 9, 19, 0])
    sender = Transfer([tier])
    ready = sender.send(host, ANSWERS).receive()
    ids = [np.int32] if rows else []  # nothing is looked up by them without a cache
    block = [np.int32, np.int32]
    assert [array.dtype for array in uploaded] == [np.int64, np.float32, *ids, *block, *block]
    np.testing.assert_array_equal(ready.x.numpy(), FEATURES[ready.nodes])
    assert ready.nodes.dtype == np.int64
    assert [hop.edge_ids.tolist() for hop in ready.blocks] == [[7, 9]] * 2


def test_ids_that_need_64_bits_have_them() -> None:
    form = RowFormat(dtype=FEATURES.dtype, dim=DIM)
    for num_nodes, is_short in ((2**31, True), (2**31 + 1, False)):
        plan = no_device_cache(num_nodes)
        device = RehearsedDevice()
        tier = hold_rows(device, plan, form=form, as_stored=True)
        assert tier.has_short_ids == is_short
    tier = hold_rows(CpuDevice(), no_device_cache(9), form=form, as_stored=False)
    assert not tier.has_short_ids


def test_waiting_lets_go_of_everything() -> None:
    device, ring = RehearsedDevice(), _ring(max_bytes=5 * DIM * 4)
    sender = _sender(device)
    sender.send(_batch(ring.acquire([5])[0], [1, 2, 3, 4, 5]), ANSWERS)
    sender.wait()
    ring.acquire([5])[0]


def test_a_buffer_is_held_too_whose_batch_fails_behind_what_the_device_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, ring = RehearsedDevice(), _ring()
    sender = Transfer([_tier(device, (2, 4))])
    gather = device.gather

    def fail(*arguments: Any) -> None:
        gather(*arguments)
        raise torch.OutOfMemoryError("for the next one")

    monkeypatch.setattr(device, "gather", fail)
    with pytest.raises(torch.OutOfMemoryError):
        sender.send(_batch(ring.acquire([5])[0], [1, 2, 3, 4, 5]), ANSWERS)
    assert sender.num_sending == 1
    sender.wait()
    assert (sender.num_sending, device.faults) == (0, [])


def _tier(device: Device, rows: Sequence[int]) -> DeviceTier:
    """Return ``device`` with these rows in a table."""
    if not rows:
        return DeviceTier(device=device)
    plan = DeviceCachePlan(num_nodes=20, rows=np.array(rows))
    form = RowFormat(dtype=FEATURES.dtype, dim=DIM)
    tier = DeviceTier(device=device, cache=StaticCache(plan, form=form, place=torch.device("cpu")))
    tier.fill(RamFeatures(FEATURES))
    return tier


def _same(ready: ReadyBatch, host: HostBatch) -> None:
    np.testing.assert_array_equal(ready.x.numpy(), FEATURES[host.sampled.nodes])
    np.testing.assert_array_equal(ready.y.numpy(), LABELS)
    for block, given in zip(ready.blocks, host.sampled.blocks, strict=True):
        np.testing.assert_array_equal(block.indptr.numpy(), given.indptr)
        np.testing.assert_array_equal(block.indices.numpy(), given.indices)
        np.testing.assert_array_equal(block.edge_ids.numpy(), given.edge_ids)
        np.testing.assert_array_equal(block.src_degree.numpy(), host.src_degree)
        assert block.edge_weight is not None
        np.testing.assert_array_equal(block.edge_weight.numpy(), [0.5, 1.5])


def test_the_gather_knows_how_many_rows_of_a_batch_are_expected_on_the_device() -> None:
    """More than the share that it holds, of rows that are hot: by them its programs are counted."""
    plan = DeviceCachePlan(num_nodes=20, rows=np.array([2, 4]), expected_hit_rate=0.75)
    form = RowFormat(dtype=FEATURES.dtype, dim=DIM)
    cache = StaticCache(plan, form=form, place=torch.device("cpu"))
    parts = DeviceTier(device=CpuDevice(), cache=cache).parts(torch.empty(5, DIM))
    assert (parts.expected_hit_rate, parts.share_held) == (0.75, 0.1)
    assert DeviceTier(device=CpuDevice()).parts(torch.empty(5, DIM)).expected_hit_rate is None


@pytest.mark.parametrize("kind", [CpuDevice, RehearsedDevice])
@pytest.mark.parametrize("rows", [(), (2, 4, 19), tuple(range(20))])
def test_a_sent_batch_is_the_gathered_one(kind: type[Device], rows: tuple[int, ...]) -> None:
    nodes = [4, 2, 9, 19, 0]
    host = _batch(np.empty((5, DIM), dtype=np.float32), nodes, weights=True)
    for position, node in enumerate(nodes):
        if node in rows:
            host.x[0][position] = np.nan  # what the host does not bring
    # Holds the table and the host's rows until the device has read them.
    sender = Transfer([_tier(kind(), rows)])
    sent = sender.send(host, ANSWERS)
    assert (sent.superbatch, sent.ends_superbatch) == (5, True)
    _same(sent.receive(), host)


def test_what_is_sent_waits_on_the_device_for_what_was_sampled_there() -> None:
    """Sampled as late as a stream may: when the host has sent the batch, nothing of it is there yet."""
    device, nodes = RehearsedDevice(), np.array([4, 2, 9, 19, 0])
    sender = Transfer([_tier(device, range(20))])
    with device.computing():
        there = device.empty((5,), torch.int64)
        device.launch(lambda out: out.copy_(torch.from_numpy(nodes)), there)
        made = SampledOnDevice(nodes=there, src_degree=there, blocks=(), made=device.mark_computing())
    sampled = SampledBatch(id=BatchId(epoch=0, index=0), nodes=nodes, num_seeds=2, blocks=(), on_device=made)
    host = HostBatch(
        sampled=sampled, x=(FEATURES[:0],), src_degree=FEATURES[0], superbatch=0, ends_superbatch=False
    )
    sent = sender.send(host, ANSWERS)
    del there, made, sampled, host  # their memory is the device's to keep
    np.testing.assert_array_equal(sent.receive().x.numpy(), FEATURES[nodes])
    sender.wait()
    assert device.faults == []


def test_batches_of_changing_size_ask_for_memory_of_few_sizes() -> None:
    sizes = np.array([roomy(rows) for rows in range(1, 5000)])
    asked = np.arange(1, 5000)
    assert (sizes >= asked).all()
    assert (sizes <= ROOMIER * asked).all()
    assert len(np.unique(sizes[999:1999])) == 9
    device = RehearsedDevice()
    sender, most = _sender(device), []
    for rows in (1000, 1010, 1024):
        nodes = np.arange(rows) % 20
        sampled = SampledBatch(id=BatchId(epoch=0, index=0), nodes=nodes, num_seeds=2, blocks=())
        host = HostBatch(
            sampled=sampled,
            x=(FEATURES[nodes],),
            src_degree=np.ones(rows, dtype=np.float32),
            superbatch=0,
            ends_superbatch=False,
        )
        ready = sender.send(host, ANSWERS).receive()
        np.testing.assert_array_equal(ready.x.numpy(), FEATURES[nodes])
        most.append(ready.x.untyped_storage().nbytes())
    assert len(set(most)) == 1


def test_on_the_cpu_the_features_are_not_copied() -> None:
    x = np.empty((5, DIM), dtype=np.float32)
    ready = transfer(_batch(x, [1, 2, 3, 4, 5]), LABELS, torch.device("cpu"))
    assert ready.x.data_ptr() == x.ctypes.data
