"""The GPUs of ranks that talk: names of backends, one GPU for each rank, and a first word before memory is measured."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from gloader.distributed import agree
from gloader.distributed.agree import backend_of, collective_device, connect, gpu_of, require_own_gpus
from gloader.errors import RankSettingsError


def _started_with(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that the process group was started with the backend ``name``, as torch reads it."""
    config = str(distributed.distributed_c10d.BackendConfig(distributed.Backend(name)))
    monkeypatch.setattr(distributed, "get_backend_config", lambda: config)
    monkeypatch.setattr(distributed, "get_backend", lambda: name)


@pytest.mark.parametrize(
    ("name", "cpu", "cuda"),
    [
        ("gloo", "gloo", "gloo"),
        ("nccl", None, "nccl"),
        ("cuda:nccl", None, "nccl"),
        ("cpu:gloo,cuda:nccl", "gloo", "nccl"),
    ],
)
def test_a_backend_is_known_by_every_name_that_torch_has_for_it(
    name: str, cpu: str | None, cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _started_with(name, monkeypatch)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert (backend_of("cpu"), backend_of("cuda")) == (cpu, cuda)
    assert collective_device() == torch.device("cuda:3" if cpu is None else "cpu")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"uuid-{index}")
    )


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("place", "gpu"), [("cpu", None), ("cuda", "uuid-1"), ("cuda:0", "uuid-0"), ("cuda:2", None)]
)
def test_a_gpu_is_known_by_its_uuid(place: str, gpu: str | None) -> None:
    assert gpu_of(torch.device(place)) == gpu


@pytest.mark.parametrize(("backend", "may_share"), [("gloo", False), ("nccl", True)])
def test_two_ranks_on_one_gpu_are_named(
    backend: str, may_share: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _started_with(f"cpu:gloo,cuda:{backend}", monkeypatch)
    require_own_gpus({0: "a", 1: "b", 2: None, 3: None}, may_share=may_share)
    with pytest.raises(
        RankSettingsError,
        match=r"ranks 1 and 3 are on one GPU \(b\); give each rank its own GPU: "
        r".*CUDA_VISIBLE_DEVICES.*device_cache as a size",
    ):
        require_own_gpus({0: "a", 1: "b", 2: None, 3: "b"}, may_share=may_share)


def test_ranks_that_ask_for_one_gpu_share_it_where_their_backend_can(monkeypatch: pytest.MonkeyPatch) -> None:
    _started_with("gloo", monkeypatch)
    require_own_gpus({0: "a", 1: "a"}, may_share=True)


def test_devices_talk_where_a_backend_carries_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _started_with("cpu:gloo", monkeypatch)
    sent: list[Any] = []
    monkeypatch.setattr(agree.distributed, "all_reduce", sent.append)
    connect(torch.device("cuda"))
    assert sent == []
    connect(torch.device("cpu"))
    assert sent[0].nbytes == 1 << 20
