"""The losses of triples, against plain formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from gloader.training.objectives import TrueTriples

OUTPUTS = torch.tensor([[1.0, 0.5, -2.0, 3.0, 0.25], [-0.5, 0.0, -1e9, -1.0, -1e9]])
BATCH = SimpleNamespace(num_positives=2)


def test_the_cross_entropy_compares_a_triple_with_the_wrong_ends_of_each_side():
    wanted = 0.0
    for right, *wrong in OUTPUTS.tolist():
        for side in (wrong[:2], wrong[2:]):
            total = sum(math.exp(score) for score in (right, *side))
            wanted += -math.log(math.exp(right) / total) / 4
    assert TrueTriples().loss(OUTPUTS, BATCH).item() == pytest.approx(wanted, rel=1e-6)


def test_the_self_adversarial_loss_weighs_negatives_by_their_scores():
    margin, wanted = 2.0, 0.0

    def log_sigmoid(value):
        return -math.log1p(math.exp(-value)) if value > -500 else value

    for right, *wrong in OUTPUTS.tolist():
        wanted -= log_sigmoid(margin + right) / 2
        for side in (wrong[:2], wrong[2:]):
            total = sum(math.exp(score) for score in side)
            wanted -= sum(math.exp(s) / total * log_sigmoid(-margin - s) for s in side) / 4
    found = TrueTriples(margin).loss(OUTPUTS, BATCH)
    assert found.item() == pytest.approx(wanted, rel=1e-6)


def test_the_weights_of_negatives_have_no_gradient():
    outputs = OUTPUTS.clone().requires_grad_()
    TrueTriples(2.0).loss(outputs, BATCH).backward()
    weights = torch.softmax(OUTPUTS[:, 1:3], dim=1)
    wanted = weights * torch.sigmoid(OUTPUTS[:, 1:3] + 2.0) / 2 / 2
    torch.testing.assert_close(outputs.grad[:, 1:3], wanted)


@pytest.mark.parametrize("margin", [None, 3.0])
def test_negatives_that_are_all_the_own_end_leave_a_finite_loss(margin):
    outputs = torch.tensor([[0.5, -1e9, -1e9]], requires_grad=True)
    loss = TrueTriples(margin).loss(outputs, BATCH)
    loss.backward()
    assert loss.isfinite()
    assert outputs.grad.isfinite().all()


def test_a_triple_is_right_above_all_its_negatives():
    objective = TrueTriples()
    assert objective.right(OUTPUTS, BATCH).item() == 0
    assert objective.right(torch.tensor([[2.0, 1.0, 1.0], [2.0, 2.0, 1.0]]), BATCH).item() == 1
    assert objective.count(BATCH) == 2
    assert objective.blank(3).dtype == torch.int64
