"""A dry step computes gradients and leaves no trace."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gloader.device import dry_step
from gloader.training.step_memory import LiveBytes


def test_a_dry_step_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_before = torch.random.get_rng_state()
    seen: list[bool] = []

    def loss_of(batch: Any) -> torch.Tensor:
        seen.append(model.training)
        return model(batch.x).sum()

    dry_step(model, loss_of)(SimpleNamespace(x=torch.randn(8, 4), y=torch.zeros(8)))  # type: ignore[arg-type]
    torch.random.set_rng_state(random_before)
    dry_step(model, loss_of)(SimpleNamespace(x=torch.ones(8, 4), y=torch.zeros(8)))  # type: ignore[arg-type]
    assert seen == [True, True]
    assert not model.training
    assert torch.equal(torch.random.get_rng_state(), random_before)
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(("ranks", "copies"), [(1, 2), (4, 3)])
def test_what_training_holds_beside_a_step_is_held_during_it(
    ranks: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of the parameters, for Adam; with other ranks one more, in which DDP sends the gradients."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: ranks)
    model = torch.nn.Linear(40, 30, bias=False)
    held: list[int] = []
    with LiveBytes() as live:

        def loss_of(batch: Any) -> torch.Tensor:
            held.append(live._live_bytes)
            return model(batch.x).sum()

        dry_step(model, loss_of)(SimpleNamespace(x=torch.ones(1, 40), y=torch.zeros(1)))  # type: ignore[arg-type]
    assert copies * 4 * 40 * 30 <= held[0] < (copies + 1) * 4 * 40 * 30


def test_a_step_that_fails_leaves_no_trace_either() -> None:
    model = torch.nn.BatchNorm1d(4)

    def loss_of(batch: Any) -> torch.Tensor:
        model(batch.x)
        raise MemoryError("out of device memory")

    with pytest.raises(MemoryError, match="out of device memory"):
        dry_step(model, loss_of)(SimpleNamespace(x=torch.randn(8, 4), y=torch.zeros(8)))  # type: ignore[arg-type]
    assert model.num_batches_tracked == 0
    assert torch.equal(model.running_mean, torch.zeros(4))  # type: ignore[arg-type]
