from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gloader.config import OptimConfig
from gloader.errors import ConfigError
from gloader.training.train_step import Adam, build_optimizer, check_optim, learning_rate

SHAPES = [(4, 3), (3,), (1, 2, 5)]


def _parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def _set_grads(parameters, step) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    if step % 3 == 0:
        parameters[1].grad = None


@pytest.mark.parametrize(("decoupled", "kind"), [(False, torch.optim.Adam), (True, torch.optim.AdamW)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_step_is_that_of_torch_bit_for_bit(decoupled, kind, weight_decay) -> None:
    ours, theirs = _parameters(), _parameters()
    optimizer = Adam(ours, lr=0.1, weight_decay=weight_decay, decoupled=decoupled)
    reference = kind(theirs, lr=0.1, weight_decay=weight_decay)
    for step in range(7):
        optimizer.lr = reference.param_groups[0]["lr"] = 0.1 / (step + 1)
        _set_grads(ours, step)
        _set_grads(theirs, step)
        optimizer.step()
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("decoupled", "kind"), [(False, torch.optim.Adam), (True, torch.optim.AdamW)])
def test_a_gpu_updates_all_parameters_by_the_one_launch_of_torch(
    decoupled, kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU has that kernel too. A parameter may have a sparse gradient in one step, and a dense one in the next."""
    fused = []
    launch = torch._fused_adam_ if not decoupled else torch._fused_adamw_
    monkeypatch.setattr("gloader.training.train_step._is_fused", lambda _: True)
    monkeypatch.setattr(torch, launch.__name__, lambda *a, **b: fused.append(len(a[0])) or launch(*a, **b))
    ours, theirs = _parameters(), _parameters()
    optimizer = Adam(ours, lr=0.1, weight_decay=0.1, decoupled=decoupled)
    reference = kind(theirs, lr=0.1, weight_decay=0.1, fused=True)
    for step in range(4):
        _set_grads(ours, step)
        _set_grads(theirs, step)
        optimizer.step()
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert fused == [2, 2, 3, 3, 3, 3, 2, 2]  # ours and theirs, in turn
    for parameter in ours:
        parameter.grad = parameter.detach().to_sparse(1)
    optimizer.step()
    assert [float(steps) for steps in optimizer.state_dict()["steps"]] == [5, 3, 5]


@pytest.mark.parametrize("piece_bytes", [1, 25, 1 << 20])
def test_learned_rows_are_updated_as_by_the_sparse_adam_of_torch(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a dense parameter, with a weight decay that is not theirs; rows that no step names stay as they are."""
    monkeypatch.setattr("gloader.training.train_step._PIECE_BYTES", piece_bytes)
    tables = [torch.nn.Parameter(torch.ones(6, 3)) for _ in range(2)]
    dense = _parameters()[0]
    ours = Adam([tables[0], dense], lr=0.1, weight_decay=0.1, decoupled=False)
    theirs = torch.optim.SparseAdam([tables[1]], lr=0.1)
    for ids in ([0, 4], [4], [], [2, 0], [4, 2, 4]):
        rows = torch.randn(len(ids), 3, generator=torch.Generator().manual_seed(len(ids)))
        for table in tables:
            table.grad = torch.sparse_coo_tensor(
                torch.tensor([ids], dtype=torch.int64), rows, (6, 3), check_invariants=True
            )
        dense.grad = torch.ones_like(dense)
        ours.step()
        theirs.step()
        assert torch.equal(tables[0], tables[1])
    assert torch.equal(tables[0][[1, 3, 5]], torch.ones(3, 3))
    assert not torch.equal(dense, _parameters()[0])


def test_a_loaded_state_goes_on_where_it_was_saved() -> None:
    ours, theirs = _parameters(), _parameters()
    first = Adam(ours, lr=0.1, weight_decay=0.0, decoupled=False)
    _set_grads(ours, 1)
    first.step()
    second = Adam(theirs, lr=0.1, weight_decay=0.0, decoupled=False)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        for a, b in zip(ours, theirs, strict=True):
            b.copy_(a)
    for parameters, optimizer in ((ours, first), (theirs, second)):
        _set_grads(parameters, 2)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_state_of_other_parameters_is_refused() -> None:
    state = Adam(_parameters()[:2], lr=0.1, weight_decay=0.0, decoupled=False).state_dict()
    optimizer = Adam(_parameters(), lr=0.1, weight_decay=0.0, decoupled=False)
    for wrong in (state, {}, state | {"more": []}):
        with pytest.raises(ValueError, match="other parameters than the model"):
            optimizer.load_state_dict(wrong)


def test_dropped_gradients_hold_no_memory() -> None:
    parameters = _parameters()
    _set_grads(parameters, 1)
    Adam(parameters, lr=0.1, weight_decay=0.0, decoupled=False).zero_grad()
    assert all(parameter.grad is None for parameter in parameters)


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
        ({"balance": "class"}, "balance='class' is not one of 'none', 'classes'"),
        ({"lr": 0.0}, "lr is 0.0; allowed: a positive number"),
        ({"lr": float("nan")}, "lr is nan; allowed: a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; allowed: 0 or a positive number"),
    ],
)
def test_settings_that_are_not_allowed_are_named(settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        check_optim(replace(CONFIG, **settings))
