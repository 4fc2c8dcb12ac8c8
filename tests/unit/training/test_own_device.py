"""The GPU of a rank: its number where it sees all of them, the one it sees, or what is wrong."""

from contextlib import nullcontext

import pytest
import torch

from gloader.distributed import agree
from gloader.errors import ConfigError, RankSettingsError
from gloader.training.group import RankGroup
from gloader.training.process import require_own_gpu, resolve_device


def _seen(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(("count", "index"), [(1, 0), (3, 2), (8, 2)])
def test_a_rank_has_the_gpu_of_its_number_or_the_only_one_it_sees(
    device: str, count: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _seen(count, monkeypatch)
    assert resolve_device(device, local_rank=2) == torch.device("cuda", index)


def test_a_named_device_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    _seen(2, monkeypatch)
    assert resolve_device("cuda:0", local_rank=1) == torch.device("cuda:0")
    assert resolve_device("cpu", local_rank=1) == torch.device("cpu")


@pytest.mark.parametrize(
    ("device", "count", "what"),
    [
        ("auto", 2, r"device 'cuda' is not there: torch sees 2 GPUs, for rank 2 .*CUDA_VISIBLE_DEVICES"),
        ("cuda:2", 2, "device 'cuda:2' .* torch sees 2 GPUs"),
        ("cuda", 0, "device 'cuda' is not there: torch sees no GPU; use the device 'cpu'"),
        ("gpu", 1, "device 'gpu' is not known; allowed: cpu, cuda, cuda:0, cuda:1, ..., and auto"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    device: str, count: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _seen(count, monkeypatch)
    with pytest.raises(ConfigError, match=what):
        resolve_device(device, local_rank=2)


@pytest.mark.parametrize(("asked", "is_refused"), [("auto", True), ("cuda", True), ("cuda:0", False)])
def test_ranks_share_a_gpu_where_each_names_it(
    asked: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agree, "gpu_of", lambda place: f"uuid of {place}")
    monkeypatch.setattr(agree, "backend_of", lambda kind: "gloo")
    group = RankGroup(rank=0, machines=["a", "a"])
    monkeypatch.setattr(group, "gather", lambda value: [value, value])
    with (
        pytest.raises(RankSettingsError, match="ranks 0 and 1 are on one GPU")
        if is_refused
        else nullcontext()
    ):
        require_own_gpu(group, torch.device("cuda:0"), asked=asked)
    require_own_gpu(RankGroup.alone(), torch.device("cuda:0"), asked=asked)
