"""Optimizers of trainable rows: bits of torch's own, whatever the width, the rows and their slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from embedding_runs import mean_of_squares

from gloader.errors import ConfigError, StateError
from gloader.pipeline.embedding_optimizers import (
    Adagrad,
    RowwiseAdagrad,
    SparseAdam,
    check_same_optimizer,
    optimizer_from,
)

if TYPE_CHECKING:
    from typing import Any

# torch warns of the sparse gradients that its own optimizers make.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")

ROWS = 40
QUICK = [*range(1, 36), 47, 48, 63, 64, 65, 96, 100, 127, 128, 129, 130]
TORCH = {"adagrad": torch.optim.Adagrad, "sparse-adam": torch.optim.SparseAdam}
OPTIMIZERS = [
    RowwiseAdagrad(lr=0.1),
    Adagrad(lr=0.1, lr_decay=0.03, initial_accumulator_value=0.1),
    Adagrad(),
    SparseAdam(lr=0.02, betas=(0.8, 0.99)),
]


def assert_bits_of_torch(
    optimizer: Adagrad | SparseAdam, dim: int, *, rows: int = ROWS, steps: int = 50
) -> None:
    """Train the same rows by torch and in shuffled slots, and compare all bits."""
    random = torch.Generator().manual_seed(dim)
    first = torch.randn(rows, dim, generator=random)
    embedding = torch.nn.Embedding.from_pretrained(first.clone(), freeze=False, sparse=True)
    settings: dict[str, Any] = {key: value for key, value in optimizer.facts().items() if key != "name"}
    reference = TORCH[optimizer.name]([embedding.weight], **settings)
    slot = torch.randperm(rows, generator=random)  # of each row
    table = torch.empty(rows, dim + optimizer.state_width(dim))
    table[slot, :dim] = first
    table[:, dim:] = torch.tensor(optimizer.initial_state(dim))
    for step in range(1, steps + 1):
        count = int(torch.randint(0, rows + 1, (1,), generator=random))
        ids = torch.randperm(rows, generator=random)[:count]
        grad = torch.randn(count, dim, generator=random)
        reference.zero_grad()
        embedding(ids).backward(grad)
        reference.step()
        optimizer.apply(table[:, :dim], table[:, dim:], slot[ids], grad, step)
    assert torch.equal(table[slot, :dim], embedding.weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:], ids=lambda each: f"{each.name}-{each.lr}")
@pytest.mark.parametrize("dim", QUICK)
def test_the_bits_are_those_of_torch(optimizer: Adagrad | SparseAdam, dim: int) -> None:
    assert_bits_of_torch(optimizer, dim, steps=20)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:], ids=lambda each: f"{each.name}-{each.lr}")
@pytest.mark.parametrize("dim", range(1, 131))
def test_the_bits_are_those_of_torch_at_every_width(optimizer: Adagrad | SparseAdam, dim: int) -> None:
    assert_bits_of_torch(optimizer, dim)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:], ids=lambda each: f"{each.name}-{each.lr}")
def test_the_bits_are_those_of_torch_for_rows_shared_by_threads(optimizer: Adagrad | SparseAdam) -> None:
    assert_bits_of_torch(optimizer, 33, rows=5000, steps=4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: f"{each.name}-{each.lr}")
@pytest.mark.parametrize("dim", [1, 7, 16, 33])
def test_a_row_has_the_same_bits_beside_any_other_rows(optimizer: RowwiseAdagrad, dim: int) -> None:
    random = torch.Generator().manual_seed(0)
    first = torch.rand(ROWS, dim + optimizer.state_width(dim), generator=random)
    slots = torch.randperm(ROWS, generator=random)[:30]
    grad = torch.randn(30, dim, generator=random)
    together, alone = first.clone(), first.clone()
    optimizer.apply(together[:, :dim], together[:, dim:], slots, grad, 5)
    for i in reversed(range(30)):
        optimizer.apply(alone[:, :dim], alone[:, dim:], slots[i : i + 1], grad[i : i + 1], 5)
    assert torch.equal(together, alone)
    left = torch.ones(ROWS, dtype=torch.bool)
    left[slots] = False
    assert torch.equal(together[left], first[left])
    assert not torch.equal(together, first)


@pytest.mark.parametrize("dim", [1, 5, 8, 19, 64])
def test_rowwise_adagrad_adds_the_mean_of_squares_to_one_value(dim: int) -> None:
    rng = np.random.default_rng(dim)
    weights = rng.standard_normal((6, dim)).astype(np.float32)
    state = np.full((6, 1), 0.5, np.float32)
    slots = np.array([4, 0, 3])
    optimizer = RowwiseAdagrad(lr=0.2, eps=1e-3)
    expected, sums = weights.copy(), state.copy()
    for step in (1, 2):
        grad = rng.standard_normal((3, dim)).astype(np.float32)
        for slot, values in zip(slots, grad, strict=True):
            sums[slot, 0] += mean_of_squares(values)
            expected[slot] -= np.float32(0.2) / (np.sqrt(sums[slot, 0]) + np.float32(1e-3)) * values
        kept = grad.copy()
        optimizer.apply(*map(torch.from_numpy, (weights, state, slots, grad)), step)
        np.testing.assert_array_equal(grad, kept)
    np.testing.assert_array_equal(state, sums)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: f"{each.name}-{each.lr}")
def test_the_facts_make_the_same_optimizer_again(optimizer: RowwiseAdagrad) -> None:
    assert optimizer_from(optimizer.facts()) == optimizer
    check_same_optimizer(optimizer, {**optimizer.facts(), "lr": 0.5})


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (RowwiseAdagrad, {"lr": 0.0}, "lr=0.0 of rowwise-adagrad must be a finite number above 0"),
        (RowwiseAdagrad, {"eps": float("nan")}, "eps=nan of rowwise-adagrad must be a finite number above 0"),
        (Adagrad, {"lr_decay": -1}, "lr_decay=-1 of adagrad must be a finite number from 0"),
        (Adagrad, {"lr": "0.1"}, "lr='0.1' of adagrad must be a finite number above 0"),
        (SparseAdam, {"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\) of sparse-adam must be two numbers"),
        (SparseAdam, {"betas": (0.9,)}, r"betas=\(0.9,\) of sparse-adam must be two numbers"),
    ],
)
def test_a_setting_out_of_range_is_refused(kind: Any, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        kind(**settings)


def test_an_unknown_optimizer_in_a_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="optimizer 'adagrat' is unknown; did you mean 'adagrad'"):
        optimizer_from({"name": "adagrat"})
    with pytest.raises(ConfigError, match=r"optimizer 'adagrad' with \{'momentum': 1\}.*unexpected keyword"):
        optimizer_from({"name": "adagrad", "momentum": 1})


def test_another_optimizer_is_refused_with_each_difference() -> None:
    facts = Adagrad(lr=0.1).facts()
    with pytest.raises(StateError, match=r"has eps=1e-08 instead of 1e-10; pass the same"):
        check_same_optimizer(Adagrad(lr=0.2, eps=1e-8), facts)
    with pytest.raises(
        StateError, match="trained by adagrad, and now its optimizer has name=rowwise-adagrad instead"
    ):
        check_same_optimizer(RowwiseAdagrad(lr=0.1), facts)
