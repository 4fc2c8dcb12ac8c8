"""A topology can be sampled at once, ends up verified and where it belongs, and damage is an error."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.dataset.topology import Topology, open_topology
from gloader.errors import ChecksumError, GraphError, TruncatedStoreError
from gloader.samplers import NeighborSampler
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import OsIO
from gloader.testing.faults import Corruption, FaultyOS
from gloader.types import BatchId, SampledBatch

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.ssd_store.os_io import StrPath

NUM_NODES, NUM_EDGES = 3000, 40_000
LAZY: dict[str, Any] = {"eager_bytes": 0}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset with weights."""
    random = np.random.default_rng(3)
    degrees = random.multinomial(NUM_EDGES, np.full(NUM_NODES, 1 / NUM_NODES))
    target = tmp_path / "data"
    with Dataset.create(target, name="d", num_nodes=NUM_NODES, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
        with writer.indices(NUM_EDGES, "int32") as column:
            column.append(random.integers(0, NUM_NODES, NUM_EDGES).astype(np.int32))
        with writer.edge_weight(NUM_EDGES) as column:
            column.append(random.random(NUM_EDGES).astype(np.float32))
        with writer.features(2, "float32") as column:
            column.append(random.random((NUM_NODES, 2)).astype(np.float32))
        writer.labels(random.integers(0, 2, NUM_NODES))
        ids = np.arange(NUM_NODES)
        writer.splits(train=ids[:100], valid=ids[100:200], test=ids[200:])
    return target


class GatedOS(OsIO):
    """Reads of the data of one file wait for `gate`."""

    is_real: ClassVar[bool] = False

    def __init__(self, file: str) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()
        self._file = file
        self._gated: set[int] = set()

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        fd = super().open(path, flags, mode)
        (self._gated.add if str(path).endswith(self._file) else self._gated.discard)(fd)
        return fd

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        if fd in self._gated and offset >= DATA_OFFSET:
            self.reached.set()
            assert self.gate.wait(20)
        return super().pread_into(fd, buffer, offset)


def content(batch: SampledBatch) -> list[bytes]:
    arrays = [batch.nodes]
    for block in batch.blocks:
        arrays += [block.indptr, block.indices, block.edge_ids]
    return [array.tobytes() for array in arrays]


def batches(sampler: NeighborSampler) -> list[list[bytes]]:
    return [
        content(sampler.sample(BatchId(epoch=0, index=i), np.arange(i * 50, i * 50 + 50))) for i in range(4)
    ]


def is_mapped(topology: Topology) -> bool:
    base: Any = topology.graph.indices
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return not isinstance(base, np.ndarray)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(DATA_OFFSET + offset)
        file.write(data)


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_small_topology_is_loaded_at_once_without_a_thread(path: Path, in_memory: bool) -> None:
    before = threading.active_count()
    with open_topology(Dataset.open(path), in_memory=in_memory) as topology:
        assert threading.active_count() == before
        assert topology.is_verified
        assert is_mapped(topology) is not in_memory
        topology.check()
        topology.wait()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_memory", [True, False])
def test_batches_are_the_same_before_and_after_the_move(path: Path, in_memory: bool, weighted: bool) -> None:
    expected = batches(NeighborSampler(Dataset.open(path).load_graph(), [5, 5], weighted=weighted))
    os_io = GatedOS("indices.npy")
    with open_topology(Dataset.open(path, os_io=os_io), in_memory=in_memory, **LAZY) as topology:
        sampler = NeighborSampler(topology, [5, 5], weighted=weighted)
        assert os_io.reached.wait(20)
        assert is_mapped(topology)
        assert not topology.is_verified
        assert batches(sampler) == expected
        os_io.gate.set()
        topology.wait()
        assert topology.is_verified
        assert is_mapped(topology) is not in_memory
        assert batches(sampler) == expected


def test_the_mapping_is_given_up_when_the_graph_is_in_memory(path: Path) -> None:
    os_io = GatedOS("indices.npy")
    with open_topology(Dataset.open(path, os_io=os_io), in_memory=True, **LAZY) as topology:
        assert os_io.reached.wait(20)
        mapped = weakref.ref(topology.graph.indices)
        os_io.gate.set()
        topology.wait()
        assert mapped() is None


def test_a_batch_keeps_the_graph_that_it_began_with(path: Path) -> None:
    os_io = GatedOS("indices.npy")
    with open_topology(Dataset.open(path, os_io=os_io), in_memory=True, **LAZY) as topology:
        before = topology.graph
        copy = before.indices.copy()
        os_io.gate.set()
        topology.wait()
        assert topology.graph is not before
        np.testing.assert_array_equal(before.indices, copy)  # still mapped, as long as somebody holds it
        np.testing.assert_array_equal(topology.graph.indices, copy)


@pytest.mark.parametrize("upfront_bytes", [0, 2**30])
def test_indptr_is_verified_before_or_by_the_thread(path: Path, upfront_bytes: int) -> None:
    os_io = GatedOS("indptr.npy")
    os_io.gate.set()
    with open_topology(
        Dataset.open(path, os_io=os_io), in_memory=True, upfront_bytes=upfront_bytes, **LAZY
    ) as topology:
        topology.wait()
        graph = Dataset.open(path).load_graph()
        np.testing.assert_array_equal(topology.graph.indptr, graph.indptr)
    overwrite(path / "indptr.npy", 8 * 5, b"\x01")
    if upfront_bytes:
        with pytest.raises(ChecksumError, match=r"indptr\.npy: page 0 at byte 4096"):
            open_topology(Dataset.open(path), in_memory=True, upfront_bytes=upfront_bytes, **LAZY)
        return
    topology = open_topology(Dataset.open(path), in_memory=True, upfront_bytes=upfront_bytes, **LAZY)
    with topology, pytest.raises(ChecksumError, match=r"indptr\.npy: page 0 at byte 4096"):
        topology.wait()


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("file", ["indices.npy", "edge_weight.npy"])
def test_damage_is_raised_by_check(path: Path, file: str, in_memory: bool) -> None:
    corrupt = Corruption(offset=DATA_OFFSET + 70_001, mask=4, file=file)
    with open_topology(
        Dataset.open(path, os_io=FaultyOS(corrupt=corrupt)), in_memory=in_memory, **LAZY
    ) as topology:
        with pytest.raises(ChecksumError, match=rf"{file}: page 17 at byte 73728"):
            topology.wait()
        for _ in range(2):
            with pytest.raises(ChecksumError, match="prepare it again"):
                topology.check()
        assert not topology.is_verified
        assert is_mapped(topology)


def test_a_device_that_fails_is_raised_by_check(path: Path) -> None:
    os_io = FaultyOS(fail_at=1, repeat=10**6, calls={"pread_into"})
    dataset = Dataset.open(path)
    dataset._os_io = GatedOS("indices.npy")
    with open_topology(dataset, in_memory=True, **LAZY) as topology:
        gated: Any = dataset.os_io
        gated.pread_into = os_io.pread_into
        gated.gate.set()
        with pytest.raises(OSError, match="injected"):
            topology.wait()


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("bad", [-1, NUM_NODES, 2**31 - 1, -(2**31)])
def test_a_neighbour_that_is_no_node_is_refused_before_the_verification_ends(
    path: Path, in_memory: bool, bad: int
) -> None:
    graph = Dataset.open(path).load_graph()
    node = int(np.flatnonzero(np.diff(graph.indptr[:50]))[-1])
    position = int(graph.indptr[node])
    overwrite(path / "indices.npy", 4 * position, np.int32(bad).tobytes())
    os_io = GatedOS("indices.npy")
    with open_topology(Dataset.open(path, os_io=os_io), in_memory=in_memory, **LAZY) as topology:
        sampler = NeighborSampler(topology, [-1])
        message = (
            rf"indices\[{position}\] = {bad}, an in-neighbour of node {node}, is not in 0\.\.2999.*verify"
        )
        with pytest.raises(GraphError, match=message):
            sampler.sample(BatchId(epoch=0, index=0), np.arange(50))
        after = sampler.sample(BatchId(epoch=0, index=1), np.arange(node))  # the sampler is not broken by it
        assert after.num_seeds == node
        os_io.gate.set()
        with pytest.raises(ChecksumError):
            topology.wait()


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("file", ["indptr.npy", "indices.npy", "edge_weight.npy"])
def test_a_file_that_was_cut_is_refused_at_open(path: Path, file: str, in_memory: bool) -> None:
    dataset = Dataset.open(path)  # before the cut: the length is checked again
    with (path / file).open("r+b") as opened:
        opened.truncate(DATA_OFFSET + 100)
    with pytest.raises(TruncatedStoreError, match=file):
        open_topology(dataset, in_memory=in_memory, **LAZY)


def test_a_file_that_is_cut_while_it_is_read_is_raised_by_check(path: Path) -> None:
    os_io = GatedOS("indices.npy")
    with open_topology(Dataset.open(path, os_io=os_io), in_memory=True, **LAZY) as topology:
        assert os_io.reached.wait(20)
        with (path / "indices.npy").open("r+b") as opened:
            opened.truncate(DATA_OFFSET + 100)
        os_io.gate.set()
        with pytest.raises(TruncatedStoreError, match=r"indices\.npy"):
            topology.wait()


def test_close_ends_the_verification_early_and_twice(path: Path) -> None:
    os_io = GatedOS("indices.npy")
    topology = open_topology(Dataset.open(path, os_io=os_io), in_memory=True, **LAZY)
    assert os_io.reached.wait(20)
    threading.Timer(0.05, os_io.gate.set).start()
    topology.close()
    topology.close()
    assert not topology.is_verified
    topology.check()
    assert topology.graph.num_edges == NUM_EDGES
    assert not [thread for thread in threading.enumerate() if thread.name == "gloader-topology"]


def test_a_forgotten_topology_ends_its_thread(path: Path) -> None:
    os_io = GatedOS("indices.npy")
    topology = open_topology(Dataset.open(path, os_io=os_io), in_memory=True, **LAZY)
    thread = topology._thread
    assert thread is not None
    assert os_io.reached.wait(20)
    move = topology._move
    assert move is not None
    del topology
    gc.collect()
    assert move.cancelled.is_set()
    os_io.gate.set()
    thread.join(20)
    assert not thread.is_alive()
    assert not move.is_complete


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_failure_at_open_leaves_no_descriptor(path: Path, fail_at: int) -> None:
    dataset = Dataset.open(path)
    dataset._os_io = FaultyOS(fail_at=fail_at, calls={"open", "fstat"})
    try:
        topology = open_topology(dataset, in_memory=False, **LAZY)
    except OSError:
        return  # the leak guard looks for descriptors
    topology.close()
