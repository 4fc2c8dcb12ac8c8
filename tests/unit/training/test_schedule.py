from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gloader.config import OptimConfig
from gloader.errors import ConfigError
from gloader.training.schedule import build_optimizer, check_optim, learning_rate

CONFIG = OptimConfig(epochs=8, lr=1.0)


def _rates(schedule) -> list[float]:
    config = replace(CONFIG, lr_schedule=schedule)
    return [learning_rate(config, epoch) for epoch in range(config.epochs)]


def test_constant_never_changes() -> None:
    assert _rates("constant") == [1.0] * 8


def test_step_divides_by_ten_twice() -> None:
    assert _rates("step") == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_cosine_falls_from_the_full_rate_through_half_of_it() -> None:
    rates = _rates("cosine")
    assert rates[0] == 1.0
    assert rates[4] == pytest.approx(0.5)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_optimizer_is_the_one_named_with_its_settings(name, kind) -> None:
    ours, theirs = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = build_optimizer(replace(CONFIG, optimizer=name, weight_decay=0.25), [ours])
    reference = kind([theirs], lr=1.0, weight_decay=0.25)
    ours.grad, theirs.grad = torch.arange(3.0), torch.arange(3.0)
    optimizer.step()
    reference.step()
    assert torch.equal(ours, theirs)


@pytest.mark.reliability("C15")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer 'sgd' is not known; allowed: adam, adamw"),
        ({"lr_schedule": "linear"}, "lr_schedule 'linear' is not known; allowed: constant, cosine, step"),
        ({"epochs": 0}, "epochs is 0; allowed: 1 or more"),
        ({"eval_every": 0}, "eval_every is 0; allowed: 1 or more"),
        ({"patience": -1}, "patience is -1; allowed: 0 or more"),
        ({"lr": 0.0}, "lr is 0.0; allowed: a positive number"),
        ({"lr": float("nan")}, "lr is nan; allowed: a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; allowed: 0 or a positive number"),
    ],
)
def test_settings_that_are_not_allowed_are_named(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_optim(replace(CONFIG, **settings))
