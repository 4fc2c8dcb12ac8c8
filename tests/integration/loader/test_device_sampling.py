"""Batches that a device sampled are those of the CPU, wherever the features live; kernels run by the interpreter."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest

from gloader.device import has_triton
from gloader.errors import ConfigError
from gloader.testing.rehearsed_device import RehearsedDevice

from .conftest import NUM_NODES, Written
from .test_device_tier import MAP, ROW
from .test_loader import _digest, _loader, _stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.pipeline.open.tiers import FeatureTier


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> RehearsedDevice:
    if not has_triton():
        pytest.skip("nothing samples on a device: Triton is missing (pip install -e '.[gpu]')")
    device = RehearsedDevice()
    monkeypatch.setattr("gloader.pipeline.open.device_tier.open_device", lambda place: device)
    return device


def _tier(loader: Any) -> FeatureTier:
    tier: FeatureTier = loader._held.tier
    return tier


@pytest.mark.reliability("D13")
@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("layered", {"features": "ram", "device_cache": NUM_NODES * ROW}),
        ("merged", {"features": "ssd", "cache": 60 * ROW, "device_cache": MAP + 100 * ROW}),
        pytest.param("layered", {"features": "ram"}, marks=pytest.mark.long),
        pytest.param("layered", {"features": "ssd", "cache": 0, "io_strategy": "staged"}, marks=pytest.mark.long),
        pytest.param("merged", {"features": "ssd", "cache": 60 * ROW, "policy": "sieve"}, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_one_stream_wherever_it_is_sampled(
    write_dataset: Callable[..., Written], gpu: RehearsedDevice, layout: Any, place: dict[str, Any]
) -> None:
    tiny = write_dataset(num_train=24)
    with _loader(tiny, features="ram", layout=layout, sampling_device="cpu") as loader:
        expected = _stream(loader, 1)
    found: list[str] = []
    with _loader(tiny, layout=layout, sampling_device="cuda", epochs=1, **place) as loader:
        with gpu.computing():  # a loop that only launches: what it drops is overwritten as soon as CUDA may
            for batch in loader:
                gpu.launch(lambda ready: found.append(_digest(ready)), batch)
                del batch
        tier = _tier(loader)
        assert tier.sampler is tier.device_tiers[0].sampler
        assert tier.device_tiers[0].topology is not None
        assert "sampling: on cpu, with " in loader.explain()
    gpu.finish()
    assert found == expected
    gc.collect()  # Triton's interpreter holds what its last kernel was given
    assert (gpu.num_blocks, gpu.faults) == (0, [])
    assert [t.name for t in threading.enumerate() if t.name.startswith("gloader")] == []


def test_few_sampled_batches_wait_on_the_device(tiny: Written, gpu: RehearsedDevice) -> None:
    for where, threads in (("cpu", 8), ("cuda", 2)):
        with _loader(tiny, features="ram", sampling_device=where, threads=8) as loader:
            tier = _tier(loader)
            assert (tier.sampler_threads, tier.batches_in_flight) == (threads, threads + 2)


def test_a_loader_for_the_cpu_says_what_to_do(tiny: Written) -> None:
    with pytest.raises(
        ConfigError, match="sampling_device='cuda': batches are computed on the CPU: compute on a GPU"
    ):
        _loader(tiny, sampling_device="cuda")
    with pytest.raises(ConfigError, match="sampling_device='gpu' is not one of"):
        _loader(tiny, sampling_device="gpu")
    with _loader(tiny) as loader:
        assert "sampling:" not in loader.explain()
