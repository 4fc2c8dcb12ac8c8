from __future__ import annotations

import numpy as np
import pytest
import torch

from gloader.config import ModelConfig, StepConfig
from gloader.errors import ConfigError
from gloader.models import build_model
from gloader.training.group import RankGroup
from gloader.training.replica import Replica, check_step
from gloader.types import BatchId, DeviceBlock, ReadyBatch


def _batch() -> ReadyBatch:
    """Two seeds, of which the first has two neighbours and the second none."""
    block = DeviceBlock(
        indptr=torch.tensor([0, 2, 2], dtype=torch.int32),
        indices=torch.tensor([2, 1], dtype=torch.int32),
        edge_ids=torch.tensor([0, 1]),
        src_degree=torch.tensor([2.0, 0.0, 1.0]),
        num_src=3,
        num_dst=2,
        edge_weight=None,
    )
    return ReadyBatch(
        id=BatchId(epoch=0, index=0),
        x=torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        y=torch.tensor([0, 1]),
        blocks=(block,),
        nodes=np.arange(3),
        num_seeds=2,
    )


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return build_model(ModelConfig(), in_dim=4, out_dim=2, num_layers=1)


def _forward(config: StepConfig) -> tuple[torch.Tensor, torch.Tensor]:
    return Replica(_model(), config, RankGroup.alone(), num_steps=1).forward(_batch())


def test_a_plain_step_is_the_network() -> None:
    logits, loss = _forward(StepConfig())
    batch = _batch()
    assert torch.equal(logits, _model()(batch.x, batch.blocks))
    assert torch.equal(loss, torch.nn.functional.cross_entropy(logits, batch.y))


def test_bf16_rounds_and_returns_float32() -> None:
    exact, _ = _forward(StepConfig())
    logits, loss = _forward(StepConfig(autocast="bf16"))
    assert logits.dtype == loss.dtype == torch.float32
    assert not torch.equal(logits, exact)
    assert torch.allclose(logits, exact, atol=0.05)


def test_the_network_is_compiled_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("gloader.training.replica._require_compiler", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda network, **options: asked.append(options) or network)
    logits, _ = _forward(StepConfig(compile=True))
    assert torch.equal(logits, _forward(StepConfig())[0])
    assert asked == [{"dynamic": True}]


def test_gradients_of_one_rank_are_those_of_the_loss() -> None:
    model = _model()
    replica = Replica(model, StepConfig(), RankGroup.alone(), num_steps=1)
    _, loss = replica.forward(_batch())
    replica.backward(loss, num_seeds=2, is_last=True)
    twin = _model()
    batch = _batch()
    torch.nn.functional.cross_entropy(twin(batch.x, batch.blocks), batch.y).backward()
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("config", "world_size", "message"),
    [
        ({"autocast": "fp8"}, 2, "autocast is 'fp8'; allowed: none, bf16"),
        ({"grad_compress": "zip"}, 2, "grad_compress is 'zip'; allowed: none, bf16, powersgd"),
        ({"grad_compress": "bf16"}, 1, "one rank sends no gradients; start several"),
    ],
)
def test_settings_that_are_not_allowed_are_named(config, world_size, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_step(StepConfig(**config), world_size=world_size)


def test_everything_else_is_allowed() -> None:
    check_step(StepConfig(), world_size=1)
    check_step(StepConfig(autocast="bf16", compile=True, grad_compress="powersgd"), world_size=2)
