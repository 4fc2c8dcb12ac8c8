"""The sampler of a device, its kernels run by Triton's interpreter, against the CPU's: the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from gloader.core.hashing import GOLDEN, unmix64
from gloader.device import has_triton, upload_topology
from gloader.errors import ConfigError, SeedError
from gloader.samplers import CscGraph, MergedBlockSampler, NeighborSampler
from gloader.samplers.rng import bounded, node_key
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.testing.sampler_suite import SamplerSuite, batch_bytes, require_same
from gloader.types import BatchId, BatchSeeds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.device.device_sampler import DeviceSampler
    from gloader.samplers import Topology
    from gloader.types import IdArray, SampledBatch, Sampler

pytestmark = pytest.mark.skipif(
    not has_triton(),
    reason="nothing samples on a device: Triton is missing (pip install -e '.[gpu]' -c constraints.txt)",
)
COMPILES = Path(__file__).with_name("compile_sampling.py")
CPU = RehearsedDevice()
DEGREES = (0, 1, 2, 5, 63, 64, 65, 200)  # around the switches between the CPU's kernels
NUM_NODES = 120
SEEDS = np.array([7, 3, 0, 4, 63, 14, 119, 6])
FIRST = BatchId(epoch=0, index=0)


def make_graph(dtype: type = np.int32, seed: int = 0) -> CscGraph:
    """Return a graph with parallel edges and self loops."""
    indptr = np.cumsum([0, *(DEGREES[node % len(DEGREES)] for node in range(NUM_NODES))])
    random = np.random.default_rng(seed)
    # Few sources for most edges, so that a node is found many times at once.
    indices = NUM_NODES * random.random(indptr[-1]) ** 2
    return CscGraph(indptr=indptr, indices=indices.astype(dtype))


def make_samplers(
    graph: CscGraph, fanouts: Any, *, layout: str = "layered", **options: Any
) -> tuple[Sampler, DeviceSampler]:
    from gloader.device.device_sampler import DeviceSampler

    layered = NeighborSampler(graph, fanouts, **options)
    sampler = MergedBlockSampler(layered) if layout == "merged" else layered
    return sampler, DeviceSampler(sampler, graph=upload_topology(graph, CPU.place), device=CPU)


def on_host(batch: SampledBatch) -> SampledBatch:
    from gloader.device.device_sampler import blocks_on_host

    return blocks_on_host(batch)


def require_cpu_batch(samplers: tuple[Sampler, DeviceSampler], batch_id: BatchId, seeds: IdArray) -> None:
    expected = samplers[0].sample(batch_id, seeds)
    found = samplers[1].sample(batch_id, seeds)
    require_same(batch_bytes(on_host(found)), batch_bytes(expected), batch_id, "the device draws otherwise")
    assert found.on_device is not None
    assert found.on_device.nodes.tolist() == expected.nodes.tolist()


@pytest.mark.parametrize(
    ("fanouts", "is_replaced", "layout"),
    [
        ([2, 3, 2], False, "layered"),
        ([2, 3, 2], False, "merged"),
        ([2, 3], True, "layered"),
        ([2, 3], True, "merged"),
        ([1, -1, 0], False, "layered"),
        ([0, 17], False, "layered"),
        ([64], False, "merged"),
        ([64], True, "layered"),
        ([100], False, "layered"),
    ],
)
def test_a_batch_is_the_one_of_the_cpu(fanouts: list[int], is_replaced: bool, layout: str) -> None:
    # Ids of either size, in turn.
    graph = make_graph(np.int64 if is_replaced == (layout == "merged") else np.int32)
    samplers = make_samplers(graph, fanouts, layout=layout, replace=is_replaced, seed=2**64 - 1)
    require_cpu_batch(samplers, FIRST, SEEDS)


def test_batches_follow_each_other_on_one_map_of_nodes() -> None:
    samplers = make_samplers(make_graph(), [3, 2], seed=3)
    for index in range(4):
        seeds = np.random.default_rng(index).permutation(NUM_NODES)[: 3 * index]
        require_cpu_batch(samplers, BatchId(epoch=2**40 + 1, index=index), seeds)


@pytest.mark.long
@settings(max_examples=60)
@given(
    fanouts=st.lists(st.sampled_from([0, 1, 5, 17, 64, 100, -1]), min_size=1, max_size=3),
    seed=st.integers(0, 2**64 - 1),
    is_replaced=st.booleans(),
    layout=st.sampled_from(["layered", "merged"]),
    dtype=st.sampled_from([np.int32, np.int64]),
    batches=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=2),
    count=st.integers(0, 12),
)
def test_every_batch_is_the_one_of_the_cpu(
    fanouts: list[int],
    seed: int,
    is_replaced: bool,
    layout: str,
    dtype: type,
    batches: list[tuple[int, int]],
    count: int,
) -> None:
    samplers = make_samplers(
        make_graph(dtype, seed % 2**32), fanouts, layout=layout, replace=is_replaced, seed=seed
    )
    for epoch, index in batches:
        seeds = np.random.default_rng(index).permutation(NUM_NODES)[:count]
        require_cpu_batch(samplers, BatchId(epoch=epoch, index=index), seeds)


@pytest.mark.long
def test_a_hop_of_many_programs_is_the_one_of_the_cpu() -> None:
    random = np.random.default_rng(4)
    indptr = np.cumsum([0, *random.integers(0, 60, 3000), 100_000])
    graph = CscGraph(indptr=indptr, indices=random.integers(0, 3001, indptr[-1]).astype(np.int32))
    for layout in ("layered", "merged"):
        samplers = make_samplers(graph, [5, 300], layout=layout)
        require_cpu_batch(samplers, FIRST, np.append(3000, random.permutation(3000)[:50]))


def test_draws_below_any_bound_are_those_of_the_cpu() -> None:
    from unit.device.draw_kernel import draw

    random = np.random.default_rng(0)
    nodes = np.concatenate([random.integers(0, 2**31, 250), [0, 1, 2**31 - 1, 2**31, 2**33, 2**40]])
    draws = random.integers(0, 200, 256)
    # Just above a half of 2**32 a draw is rejected every other time; from 2**32 on it takes other words.
    bounds = np.resize([1, 2, 3, 1000, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**40], 256)
    key = np.uint64(2**64 - 3)
    with np.errstate(over="ignore"):
        expected = [
            int(bounded(np.uint64(node_key(key, node)), int(number), int(bound)))
            for node, number, bound in zip(nodes, draws, bounds, strict=True)
        ]
    assert draw(int(key), nodes, draws, bounds).tolist() == expected


@pytest.mark.parametrize("is_rejected", [False, True])
def test_the_first_of_the_bits_that_decide_is_one_of_them(is_rejected: bool) -> None:
    from unit.device.draw_kernel import draw

    node, bound = 11, 2**31 + 1
    # The key of a layer in which draw 0 of the node has a product that just reaches the threshold, or just does not.
    low = (2**32 - bound) % bound - is_rejected
    half = low * pow(bound, -1, 2**32) % 2**32
    golden = int(GOLDEN)
    of_node = (int(unmix64(np.uint64(half))) - golden) % 2**64
    key = int(unmix64(np.uint64(of_node))) ^ ((node * golden + 1) % 2**64)
    (found, *_) = draw(key, np.full(256, node), np.zeros(256, dtype=np.int64), np.full(256, bound))
    assert found == bounded(np.uint64(node_key(np.uint64(key), node)), 0, bound)
    assert (found == half * bound >> 32) == (not is_rejected)


def test_a_call_that_fails_leaves_nothing_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from gloader.device import sampling_kernels

    samplers = make_samplers(make_graph(), [3, 2])

    def fail(*args: Any, **named: Any) -> None:
        raise RuntimeError("the device is gone")

    samplers[1].sample(FIRST, SEEDS)
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="the device is gone"):
        patched.setattr(sampling_kernels, "launch_relabel", fail)
        samplers[1].sample(FIRST, SEEDS)
    require_cpu_batch(samplers, FIRST, SEEDS[::-1].copy())


class _Mark:
    """A mark of a device that knows how often the host waited."""

    def __init__(self, device: _Watched) -> None:
        self._device = device

    def wait(self) -> None:
        self._device.waits += 1


class _Watched:
    """A device that knows how many sample on it at a time, and how often they wait for it."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.waits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(CPU, name)

    def mark_computing(self) -> _Mark:
        return _Mark(self)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)  # long enough for another thread to come in, were it let in
        yield
        self.inside -= 1


class _NoLook(TorchFunctionMode):
    """Refuses what would wait for a device: the host may not ask what is in a tensor."""

    ASKS = ("cpu", "item", "tolist", "__int__", "__bool__", "__index__", "nonzero", "unique", "numpy", "to")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        assert name not in self.ASKS, f"{name} waits for the device"
        assert name != "repeat_interleave" or "output_size" in (kwargs or {}), (
            "its result has a size to be counted"
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize(
    ("fanouts", "most", "waits"),
    [
        ([3, 4, 2], 10**6, 1),
        ([3, -1, 2], 10**6, 2),  # nothing tells how many all are
        ([3, 0, 2], 10**6, 1),
        ([3, 4, 2], 8 * 3, 3),  # room for the first hop alone is taken before it is counted
    ],
)
def test_the_host_waits_once_for_a_batch(
    fanouts: list[int], most: int, waits: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gloader.device.device_sampler import DeviceSampler

    monkeypatch.setattr("gloader.device.tier.MOST_UNCOUNTED_EDGES", most)
    device, graph = _Watched(), make_graph()
    layered = NeighborSampler(graph, fanouts)
    sampler = MergedBlockSampler(layered) if layout == "merged" else layered
    on_device = DeviceSampler(sampler, graph=upload_topology(graph, CPU.place), device=device)
    with _NoLook():
        found = on_device.sample(FIRST, SEEDS)
    assert device.waits == waits
    assert found.on_device is not None
    expected = sampler.sample(FIRST, SEEDS)
    require_same(batch_bytes(on_host(found)), batch_bytes(expected), FIRST, "the device draws otherwise")


def test_threads_take_turns() -> None:
    from gloader.device.device_sampler import DeviceSampler

    device, graph = _Watched(), make_graph()
    sampler = NeighborSampler(graph, [3])
    device_sampler = DeviceSampler(sampler, graph=upload_topology(graph, CPU.place), device=device)
    ids = [BatchId(epoch=0, index=index) for index in range(4)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda batch_id: device_sampler.sample(batch_id, SEEDS), ids))
    assert device.most == 1
    for batch_id, batch in zip(ids, found, strict=True):
        expected = sampler.sample(batch_id, SEEDS)
        require_same(batch_bytes(on_host(batch)), batch_bytes(expected), batch_id, "threads meet")


def test_arguments_that_no_batch_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sampler = make_samplers(make_graph(), [5])
    with pytest.raises(SeedError, match=r"2 seeds repeat within the batch, among them \[3, 7\]"):
        sampler.sample(FIRST, np.array([7, 3, 3, 7, 5]))
    with pytest.raises(SeedError, match=r"1 seeds are not in 0..119, among them \[120\]"):
        sampler.sample(FIRST, np.array([120]))
    some = BatchSeeds(nodes=SEEDS, excluded=(np.array([1, 2]),))
    with pytest.raises(
        ConfigError, match=r"2 edges are excluded, and the device cannot .* sampling_device='cpu'"
    ):
        sampler.sample(FIRST, some)
    monkeypatch.setattr("gloader.samplers.arguments.MAX_LOCAL", 20)
    with pytest.raises(ConfigError, match=r"hop 0 of BatchId\(epoch=0, index=0\) would have 2\*\*31 edges"):
        sampler.sample(FIRST, SEEDS)


def test_a_batch_holds_no_more_memory_than_its_content() -> None:
    for layout in ("layered", "merged"):
        _, sampler = make_samplers(make_graph(), [4, 4], layout=layout)
        batch = sampler.sample(FIRST, SEEDS).on_device
        assert batch is not None
        tensors = {tensor.untyped_storage().data_ptr(): tensor for tensor in batch.tensors()}
        content = [batch.nodes, batch.src_degree]
        blocks = batch.blocks if layout == "layered" else batch.blocks[:1]
        content += [array for block in blocks for array in (block.indptr, block.indices, block.edge_ids)]
        assert sum(tensor.untyped_storage().nbytes() for tensor in tensors.values()) == sum(
            array.nbytes for array in content
        )
        degrees = np.diff(make_graph().indptr)[batch.nodes.numpy()]
        for block in batch.blocks:
            assert block.src_degree.dtype == torch.float32
            assert block.src_degree.tolist() == degrees[: block.num_src].tolist()


@pytest.mark.long
class TestDeviceSampler(SamplerSuite):
    """The conformance suite, of batches that were brought to the host."""

    def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
        if not isinstance(graph, CscGraph):
            return NeighborSampler(graph, [5, 5], seed=seed)
        return _Fetched(make_samplers(graph, [5, 5], seed=seed)[1])


class _Fetched:
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        return on_host(self._sampler.sample(batch_id, seeds))


@pytest.mark.parametrize(
    ("capability", "indices", "count"),
    [
        ("90", "i32", 1),
        pytest.param("80", "i64", 99, marks=pytest.mark.long),
        pytest.param("90", "i64", 99, marks=pytest.mark.long),
    ],
)
def test_the_kernels_are_legal_and_shift_without_a_sign(
    tmp_path: Path, capability: str, indices: str, count: int
) -> None:
    done = subprocess.run(
        [sys.executable, str(COMPILES), capability, indices, str(count)],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {shift for shifts in found.values() for shift in shifts} == {"shr.u64"}
