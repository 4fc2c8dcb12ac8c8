from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gloader.training.adam import Adam

SHAPES = [(4, 3), (3,), (1, 2, 5)]
NO_COMPILER = """
import sys, torch
from gloader.training.adam import Adam
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = Adam([parameter], lr=0.1, weight_decay=0.0, decoupled=False)
parameter.sum().backward()
optimizer.step()
sys.exit("torch._dynamo" in sys.modules)
"""


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


def test_a_step_does_not_import_the_compiler_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", NO_COMPILER], timeout=60, check=False)
    assert done.returncode == 0
