"""The CUDA device over a stand-in for CUDA: what it asks for, in which order."""

from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gloader.device import open_device
from gloader.device.cuda import CudaDevice
from gloader.device.seam import Device
from gloader.errors import ConfigError
from gloader.testing.device_suite import DeviceSuite


class Cuda:
    """Stands for ``torch.cuda`` with one GPU; writes down what it is asked for."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.reserved = [100, 900]  # now, and at most
        self.register_status = 0
        self.is_done = False

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def Stream(self, place: torch.device, *, priority: int) -> str:  # noqa: N802 - torch's name
        assert priority < 0
        return "sending stream"

    def Event(self) -> Any:  # noqa: N802 - torch's name
        return SimpleNamespace(
            record=lambda stream: self.log.append(f"record on {stream}"),
            query=lambda: self.is_done,
            synchronize=self.wait_for_event,
        )

    def wait_for_event(self) -> None:
        self.log.append("wait for the event")
        self.is_done = True

    def current_stream(self, place: torch.device) -> Any:
        return SimpleNamespace(wait_event=lambda event: self.log.append("computing waits"))

    @contextmanager
    def device(self, place: torch.device) -> Any:
        self.log.append(f"on {place}")
        yield

    @contextmanager
    def stream(self, stream: str) -> Any:
        self.log.append(f"in {stream}")
        yield

    def mem_get_info(self) -> tuple[int, int]:
        return 700, 1000

    def memory_reserved(self) -> int:
        return self.reserved[0]

    def max_memory_reserved(self) -> int:
        return self.reserved[1]

    def cudart(self) -> Any:
        return SimpleNamespace(
            cudaHostRegister=lambda *_: self.register_status, cudaHostUnregister=lambda _: 0
        )

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda: self.log.append(name)


class Torch:
    """Torch, but for CUDA: nothing is pinned, and the GPU's memory is the CPU's."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.zeros_fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *shape: int, pin_memory: bool = False, **settings: Any) -> torch.Tensor:
        self.cuda.log.append("pinned memory" if pin_memory else "memory")
        return torch.empty(*shape, **settings)

    def zeros(self, *shape: int, **_: Any) -> torch.Tensor:
        self.cuda.log.append("zeros")
        if self.zeros_fails:
            raise RuntimeError("CUDA error: out of memory")
        return torch.zeros(*shape)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Torch:
    shim = Torch(Cuda())
    monkeypatch.setattr("gloader.device.cuda.torch", shim)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda self, stream: shim.cuda.log.append("used by it")
    )
    return shim


@pytest.fixture
def device(fake: Torch) -> CudaDevice:
    opened = open_device(torch.device("cuda"))
    assert isinstance(opened, CudaDevice)
    assert opened.place == torch.device("cuda", 0)
    opened._place = torch.device("cpu")
    return opened


class TestOverTheStandIn(DeviceSuite):
    """The suite with the module's `device`; on a real GPU it takes `make_device` alone."""

    @pytest.fixture
    def device(self, device: CudaDevice) -> Device:
        return device


def test_a_gpu_that_is_not_there_is_refused(fake: Torch) -> None:
    with pytest.raises(ConfigError, match="device='cuda:3': there are 1 GPUs"):
        open_device(torch.device("cuda", 3))
    with pytest.raises(ConfigError, match="device='meta' is neither 'cpu' nor 'cuda'"):
        open_device(torch.device("meta"))


def test_small_arrays_go_by_one_copy_out_of_pinned_memory(device: CudaDevice, fake: Torch) -> None:
    arrays = [np.arange(4), np.ones(3, dtype=np.float32)]
    with device.sending():
        found = device.upload(arrays)
    assert [tensor.tolist() for tensor in found] == [[0, 1, 2, 3], [1, 1, 1]]
    assert fake.cuda.log == ["on cpu", "in sending stream", "pinned memory"]
    assert device.host_buffer(5).shape == (5,)
    assert fake.cuda.log[3:] == ["pinned memory"]


def test_computing_waits_for_the_sending_stream_and_keeps_the_memory(device: CudaDevice, fake: Torch) -> None:
    mark = device.mark()
    assert not mark.is_reached()
    mark.precede([torch.ones(1), torch.ones(1)])
    assert fake.cuda.log == ["record on sending stream", "computing waits", "used by it", "used by it"]
    fake.cuda.is_done = True
    assert mark.is_reached()
    mark.wait()
    assert fake.cuda.log[-1] == "wait for the event"


def test_a_step_is_measured_from_what_was_taken_before(device: CudaDevice, fake: Torch) -> None:
    steps: list[int] = []
    assert device.most_bytes_of(lambda: steps.append(1)) == 800
    assert steps == [1]
    assert fake.cuda.log.index("reset_peak_memory_stats") > fake.cuda.log.index("empty_cache")
    assert device.free_bytes() == 700


def test_features_are_pinned_where_there_is_a_kernel_to_read_them(
    device: CudaDevice, fake: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = np.zeros((3, 2), dtype=np.float32)
    monkeypatch.setattr("gloader.device.cuda.has_triton", lambda: False)
    assert device.pin(features) is None
    monkeypatch.setattr("gloader.device.cuda.has_triton", lambda: True)
    pinned = device.pin(features)
    assert pinned is not None
    assert pinned.array is features
    pinned.close()


@pytest.mark.parametrize("fails", [False, True])
def test_an_error_of_pinning_is_not_left_for_the_next_kernel(
    device: CudaDevice, fake: Torch, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr("gloader.device.cuda.has_triton", lambda: True)
    fake.cuda.register_status, fake.zeros_fails = 2, fails
    assert device.pin(np.zeros((3, 2), dtype=np.float32)) is None
    assert fake.cuda.log[-1] == "zeros"
