"""A device that holds rows of several types: no batch changes, one upload brings the small arrays, sampling stays."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import faked_cuda

from gloader import collective
from gloader.device import Device
from gloader.errors import ConfigError
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.types import HeteroReadyBatch

from .typed import EDGES, FANOUTS, NUM_NODES, WIDTHS, TypedGraph, contents, expected, open_loader, write_typed

ROW = 4 * WIDTHS["paper"]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> TypedGraph:
    return write_typed(tmp_path_factory.mktemp("typed") / "graph")


class Counting(RehearsedDevice):
    """Notes how many small arrays each upload brings."""

    def __init__(self) -> None:
        super().__init__()
        self.uploads: list[int] = []

    def upload(self, arrays: Sequence[Any]) -> Any:
        self.uploads.append(len(arrays))
        return super().upload(arrays)


def _late(loader: Any, device: RehearsedDevice) -> list[dict[str, Any]]:
    """Return the batches of a loop that only launches, and keeps nothing."""
    found: list[dict[str, Any]] = []

    def note(batch: HeteroReadyBatch) -> None:
        found.append(contents(batch))

    with device.computing():
        for batch in loader:
            device.launch(note, batch)
            del batch
    device.finish()
    assert device.faults == []
    return found


@pytest.mark.parametrize("reads_in_place", [False, True])
@pytest.mark.parametrize("hotness", ["presampled", "vip", "degree"])
@pytest.mark.parametrize(
    "settings",
    [
        {"features": "ram", "device_cache": 120 * ROW},
        {"features": "ssd", "cache": 40 * ROW, "device_cache": 120 * ROW, "superbatch": 2},
        {"features": "ram", "device_cache": 0},
        {"features": "ssd", "device_cache": 1 << 20},
    ],
)
def test_one_stream_whatever_the_device_holds_of_each_type(
    typed: TypedGraph,
    on_device: Callable[[Device], None],
    settings: dict[str, Any],
    hotness: Any,
    reads_in_place: bool,
) -> None:
    device = RehearsedDevice(reads_in_place=reads_in_place)
    on_device(device)
    with open_loader(typed, device_hotness=hotness, **settings) as loader:
        assert _late(loader, device) == list(expected(typed))
        caches = {name: tier.cache for name, tier in loader.device_tiers.items()}
        text = loader.explain()
    assert list(caches) == list(WIDTHS)
    held = {name: [] if cache is None else cache.plan.rows.tolist() for name, cache in caches.items()}
    if settings["device_cache"] > 1000 * ROW:
        assert held == {name: list(range(NUM_NODES[name])) for name in WIDTHS}
    elif settings["device_cache"]:
        assert 0 < len(held["paper"]) < NUM_NODES["paper"]
        assert sum(cache.num_bytes for cache in caches.values() if cache is not None) <= 120 * ROW
    assert "batches of several node types and relations are sampled on the CPU alone" not in text


@pytest.mark.parametrize("fanouts", [FANOUTS, collective([4, 3])])
def test_the_hottest_rows_of_each_type_are_those_that_the_first_epoch_takes(
    typed: TypedGraph, on_device: Callable[[Device], None], fanouts: Any
) -> None:
    on_device(RehearsedDevice())
    counts = {name: np.zeros(NUM_NODES[name], dtype=np.int64) for name in WIDTHS}
    # As many batches as tell hot from cold, whole epochs of them.
    batches = list(expected(typed, fanouts=fanouts, epochs=10))[:64]
    for batch in batches:
        for name, mine in counts.items():
            mine[batch[f"nodes {name}"]] += 1
    held = 0
    with open_loader(typed, fanouts=fanouts, device_cache=150 * ROW, features="ssd") as loader:
        for name, tier in loader.device_tiers.items():
            assert tier.cache is not None
            rows = tier.cache.plan.rows
            left = np.delete(counts[name], rows)
            assert counts[name][rows].min(initial=2**60) >= left.max(initial=0)
            hits = tier.cache.plan.expected_hit_rate
            assert hits == pytest.approx(counts[name][rows].sum() / counts[name].sum())
            held += tier.cache.num_bytes
    assert 149 * ROW < held <= 150 * ROW


def test_one_upload_brings_all_small_arrays_of_a_batch(
    typed: TypedGraph, on_device: Callable[[Device], None]
) -> None:
    device = Counting()
    on_device(device)
    with open_loader(typed, features="ram", device_cache=60 * ROW, epochs=1) as loader:
        batches = len(_late(loader, device))
    # Labels, degrees, the ids of two tables, and two arrays of each block: of six relations in two hops.
    assert device.uploads == [2 + len(WIDTHS) + 2 * 2 * len(EDGES)] * batches


def test_a_dry_run_sees_every_type_and_leaves_room_for_its_step(
    typed: TypedGraph, on_device: Callable[[Device], None]
) -> None:
    seen: list[HeteroReadyBatch] = []
    device = RehearsedDevice(num_bytes=(512 << 20) + 300_000)
    on_device(device)
    with open_loader(typed, device_dry_run=seen.append, features="ssd") as loader:
        held = sum(0 if tier.cache is None else tier.cache.num_bytes for tier in loader.device_tiers.values())
    (batch,) = seen
    assert {name: x.shape[1] for name, x in batch.x.items()} == {"author": 0, "nobody": 0} | WIDTHS
    assert list(batch.blocks[0]) == list(EDGES)
    assert 0 < held < 300_000


def test_batches_of_several_types_are_sampled_on_the_cpu(tmp_path: Path, typed: TypedGraph) -> None:
    refusal = (
        "sampling_device='cuda': batches of several node types and relations are sampled on the CPU alone; or"
    )
    with pytest.raises(ConfigError, match=refusal):
        open_loader(typed, sampling_device="cuda")
    with faked_cuda(), open_loader(typed, device="cuda", device_cache=0) as loader:
        assert (
            "sampling: on the CPU: batches of several node types and relations are sampled on the CPU alone"
            in loader.explain()
        )


def test_a_device_without_any_rows_gets_batches_all_the_same(
    tmp_path: Path, on_device: Callable[[Device], None]
) -> None:
    graph = write_typed(tmp_path / "bare", has_features=False)
    device = RehearsedDevice()
    on_device(device)
    with open_loader(graph) as loader:
        assert _late(loader, device) == list(expected(graph))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_rows_are_held_as_stored_and_widened_there(
    tmp_path: Path, on_device: Callable[[Device], None], dtype: str
) -> None:
    graph = write_typed(tmp_path / dtype, dtype=dtype)
    for reads_in_place in (False, True):
        device = RehearsedDevice(reads_in_place=reads_in_place)
        on_device(device)
        with open_loader(graph, features="ram", device_cache=60 * ROW) as loader:
            assert _late(loader, device) == list(expected(graph))
