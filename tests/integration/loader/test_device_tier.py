"""A device cache never changes a batch: every way a row can reach the device gives the same bits."""

import dataclasses
import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import faked_cuda

import gloader
from gloader import Dataset
from gloader.device import CpuDevice, Device
from gloader.errors import ConfigError
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.types import ReadyBatch

from .conftest import DIM, NUM_NODES, Written
from .test_loader import _digest, _loader, _stream

ROW = DIM * 4
MAP = 4 * NUM_NODES

DEVICES: dict[str, Callable[[], Device]] = {
    "cpu": CpuDevice,
    "like a GPU": RehearsedDevice,
    "like a GPU that reads the host's features": partial(RehearsedDevice, reads_in_place=True),
}
PLACES: list[dict[str, Any]] = [
    {"features": "ram"},
    {"features": "ssd", "cache": 60 * ROW},
    {"features": "ssd", "cache": 0, "io_strategy": "staged", "superbatch": 2},
    {"features": "ssd", "cache": 60 * ROW, "policy": "static"},
    {"features": "ssd", "cache": 60 * ROW, "policy": "sieve", "superbatch": 3},
]


ITEM = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
# Rows on the device, and where the others come from.
WAYS: list[tuple[int, dict[str, Any]]] = [
    (40, {"features": "ram"}),
    (40, {"features": "ssd", "cache": 60 * DIM}),
    (0, {"features": "ram"}),
    (0, {"features": "ssd", "cache": 60 * DIM, "superbatch": 2}),
    (0, {"features": "ssd", "cache": 0, "io_strategy": "packed", "superbatch": 3}),
    (NUM_NODES, {"features": "ssd"}),
]


def _stream_late(loader: gloader.Loader, device: Device, epochs: int = 1) -> list[str]:
    """Return the digests of a loop that only launches, and keeps nothing; on the CPU of one that computes."""
    if not isinstance(device, RehearsedDevice):
        return _stream(loader, epochs)
    found: list[str] = []

    def note(batch: ReadyBatch) -> None:
        found.append(_digest(batch))

    with device.computing():
        for _ in range(epochs):
            for batch in loader:
                device.launch(note, batch)
                del batch
    device.finish()
    return found


@pytest.mark.reliability("F3")
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("rows", [0, 150, NUM_NODES])
@pytest.mark.parametrize("place", PLACES)
def test_one_stream_whatever_the_device_holds(
    tiny: Written, on_device: Callable[[Device], None], name: str, rows: int, place: dict[str, Any]
) -> None:
    with _loader(tiny, features="ram") as loader:
        expected = _stream(loader)
    device = DEVICES[name]()
    on_device(device)
    size = rows * ROW + (MAP if rows not in (0, NUM_NODES) else 0)
    with _loader(tiny, device_cache=size, **place) as loader:
        cache = loader._held.tier.device_tiers[0].cache
        assert (0 if cache is None else len(cache.plan.rows)) == rows
        assert _stream(loader, 1) + _stream_late(loader, device) == expected
        stats = loader.stats
        assert stats.rows_gathered == stats.device_hits + stats.cache_hits + stats.rows_read
        assert (stats.device_hits == stats.rows_gathered) == (rows == NUM_NODES)
        assert (stats.device_hits > 0) == (rows > 0)
        assert (f"device: {rows:,} rows" in loader.explain()) == (0 < rows < NUM_NODES)
        assert ("device: all 600 rows" in loader.explain()) == (rows == NUM_NODES)
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []
    if isinstance(device, RehearsedDevice):
        assert (device.faults, device.num_blocks) == ([], 0)


@pytest.mark.reliability("F3")
@pytest.mark.parametrize(
    "place",
    [
        {"features": "ram", "device_cache": MAP + 150 * ROW},
        {"features": "ssd", "cache": 60 * ROW, "device_cache": MAP + 150 * ROW},
        {"features": "ssd", "cache": 60 * ROW},
    ],
)
def test_the_loader_goes_the_way_of_cuda(tiny: Written, place: dict[str, Any]) -> None:
    with _loader(tiny, features="ram") as loader:
        expected = _stream(loader)
    with faked_cuda() as fake:
        with _loader(tiny, device="cuda:1", sampling_device="cpu", **place) as loader:
            assert _stream(loader) == expected
            tier = loader._held.tier.device_tiers[0]
            assert (tier.features is not None) == (place["features"] == "ram")
            assert fake.registered
        assert fake.contexts == {1}
        fake.check()
        del loader, tier
        gc.collect()
        assert fake.registered == {}


@pytest.mark.reliability("F3")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        # float32 and float16 go the ways of bfloat16.
        pytest.param(
            name,
            dtype,
            marks=[] if name == "like a GPU" or dtype in ("bfloat16", "int8") else pytest.mark.long,
        )
        for name in DEVICES
        for dtype in ITEM
    ],
)
def test_rows_stay_as_they_are_stored_up_to_the_device_and_are_widened_alike(
    tiny: Written, on_device: Callable[[Device], None], dtype: str, name: str
) -> None:
    written = _stored(tiny, dtype)
    with _loader(written, features="ram") as loader:
        expected = _stream(loader)
    goes_as_stored = name != "cpu"
    for rows, place in WAYS if name == "like a GPU" else WAYS[:2]:
        device = DEVICES[name]()
        on_device(device)
        scales = MAP if goes_as_stored and dtype == "int8" else 0
        size = MAP + scales + rows * (DIM * ITEM[dtype] + (4 if dtype == "int8" else 0)) if rows else 0
        with _loader(written, device_cache=size, **place) as loader:
            tier = loader._held.tier
            cache = tier.device_tiers[0].cache
            assert (0 if cache is None else len(cache.plan.rows)) == rows
            assert cache is None or cache.table.rows.element_size() == ITEM[dtype]
            assert tier.ring.forms[0].dtype.itemsize == (ITEM[dtype] if goes_as_stored else 4)
            brings_some = goes_as_stored and not tier.device_tiers[0].holds_all
            assert (tier.device_tiers[0].scale is not None) == (brings_some and dtype == "int8")
            assert _stream(loader, 1) + _stream_late(loader, device) == expected, (rows, place)
            stats = loader.stats
            assert stats.rows_gathered == stats.device_hits + stats.cache_hits + stats.rows_read
        if isinstance(device, RehearsedDevice):
            assert (device.faults, device.num_blocks) == ([], 0)


def test_a_ring_of_stored_rows_takes_what_is_planned_for_it(
    tiny: Written, on_device: Callable[[Device], None]
) -> None:
    ring_bytes = {}
    for name in ("cpu", "like a GPU"):
        on_device(DEVICES[name]())
        with _loader(_stored(tiny, "int8", name), features="ram", device_cache=0) as loader:
            plan = loader._held.tier.plan
            ring_bytes[name] = plan.ring_bytes // plan.num_buffers
            (rows,) = loader._held.tier.ring.rows
            assert ring_bytes[name] == rows * DIM * (4 if name == "cpu" else 1)
    assert ring_bytes["cpu"] == 4 * ring_bytes["like a GPU"]


@pytest.mark.reliability("D13")
def test_a_sent_batch_that_is_held_keeps_its_rows(tiny: Written, on_device: Callable[[Device], None]) -> None:
    on_device(RehearsedDevice())
    held: list[ReadyBatch] = []
    with _loader(tiny, features="ssd", cache=60 * ROW, device_cache=MAP + 100 * ROW) as loader:
        for batch in loader:
            held.append(batch)
            for kept in held:
                np.testing.assert_array_equal(kept.x.numpy(), tiny.features[kept.nodes])


@pytest.mark.reliability("D2")
def test_a_failure_of_sending_is_named_and_ends_everything(
    tiny: Written, on_device: Callable[[Device], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = RehearsedDevice()
    on_device(device)
    gather, calls = device.gather, iter(range(100))

    def fail(*arguments: Any) -> None:
        if next(calls) == 2:
            raise RuntimeError("the device is gone")
        gather(*arguments)

    monkeypatch.setattr(device, "gather", fail)
    loader = _loader(tiny, features="ssd", cache=60 * ROW, device_cache=MAP + 100 * ROW)
    delivered = 0
    with pytest.raises(RuntimeError, match="the device is gone") as caught:
        for _ in loader:
            delivered += 1
    assert delivered == 2
    assert caught.value.__notes__ == ["in stage transfer, epoch 0, batch 2"]
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []
    loader.close()


def test_the_hottest_rows_are_on_the_device(tiny: Written) -> None:
    rates = {}
    for hotness in ("presampled", "vip", "degree"):
        with _loader(tiny, device_cache=MAP + 60 * ROW, device_hotness=hotness, features="ram") as loader:
            for _ in loader:
                pass
            rates[hotness] = loader.stats.device_hits / loader.stats.rows_gathered
    assert min(rates.values()) > 60 / NUM_NODES
    assert rates["presampled"] >= max(rates.values()) - 0.02


def test_a_static_host_cache_holds_what_the_device_does_not(tiny: Written) -> None:
    with _loader(
        tiny, features="ssd", policy="static", cache=60 * ROW, device_cache=MAP + 100 * ROW
    ) as loader:
        tier = loader._held.tier
        assert tier.device_tiers[0].cache is not None
        in_slots = tier.require_ssd()[0].slots.resident
        assert len(in_slots) == 60
        assert not np.intersect1d(in_slots, tier.device_tiers[0].cache.plan.rows).size


def test_the_cpu_keeps_no_rows_by_itself(tiny: Written) -> None:
    with _loader(tiny, device_cache="auto") as loader:
        assert loader._held.tier.device_tiers[0].cache is None


def test_a_gpu_that_is_not_there_is_named(tiny: Written) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="this torch finds no GPU"):
        gloader.Loader(tiny.dataset, fanouts=[2], batch_size=8, device="cuda")


def _stored(written: Written, dtype: str, name: str = "stored") -> Written:
    """Return the dataset of ``written`` with its features stored as ``dtype``, some of them hard to widen."""
    path = written.path.with_name(name)
    source = written.dataset
    features = written.features
    if dtype != "int8":
        # -0.0, subnormal, infinite, and NaNs, quiet and signalling, with a payload.
        special = {
            "float32": np.array([1 << 31, 5, 0x7F800000, 0x7FC00123, 0xFF800123], dtype=np.uint32),
            "float16": np.array([1 << 15, 5, 0x7C00, 0x7E12, 0xFC12], dtype=np.uint16),
            "bfloat16": np.array([1 << 15, 5, 0x7F80, 0x7FC5, 0xFF85], dtype=np.uint16),
        }[dtype]
        narrow = (features.view(np.uint32) >> 16) if dtype == "bfloat16" else features.astype(dtype)
        bits = narrow.astype(np.uint16) if dtype == "bfloat16" else narrow.view(special.dtype)
        bits[:, : len(special)] = special
        features = bits if dtype == "bfloat16" else bits.view(dtype)
    with Dataset.create(path, name=name, num_nodes=NUM_NODES, num_classes=5) as writer:
        with writer.indptr() as column:
            column.append(written.indptr)
        with writer.indices(len(written.indices), "int32") as column:
            column.append(written.indices)
        with writer.features(DIM, dtype) as column:
            column.append(features)
        writer.labels(written.labels)
        writer.splits(train=source.train, valid=source.valid, test=source.test)
    return dataclasses.replace(written, path=path, dataset=Dataset.open(path))
