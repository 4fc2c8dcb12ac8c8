from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from gloader.training.objectives import LINK_OBJECTIVES, NODE_CLASSES


def _pairs(num_positives: int, num_negatives: int) -> SimpleNamespace:
    labels = torch.tensor([1.0] * num_positives + [0.0] * num_negatives)
    return SimpleNamespace(labels=labels, num_positives=num_positives)


@pytest.mark.parametrize("num_negatives", [3, 12])
def test_edges_weigh_as_much_as_all_that_was_drawn_beside_them(num_negatives) -> None:
    batch, scores = _pairs(3, num_negatives), torch.randn(3 + num_negatives)
    each = functional.binary_cross_entropy_with_logits(scores, batch.labels, reduction="none")
    found = LINK_OBJECTIVES["pairs"].loss(scores, batch)
    assert found == pytest.approx(float(each[:3].mean() + each[3:].mean()))
    assert LINK_OBJECTIVES["pairs"].count(batch) == 3


def test_an_edge_without_negatives_has_a_loss() -> None:
    """As the last edge of an epoch, whose negatives were to be those of others."""
    loss = LINK_OBJECTIVES["pairs"].loss(torch.zeros(1), _pairs(1, 0))
    assert loss == pytest.approx(float(torch.tensor(2.0).log()))


def test_pairs_are_right_on_their_side_of_zero() -> None:
    batch = _pairs(2, 2)
    assert LINK_OBJECTIVES["pairs"].right(torch.tensor([1.0, -1.0, -2.0, -3.0]), batch) == 1.5  # of 2 edges


def test_large_scores_keep_a_finite_loss() -> None:
    batch = _pairs(1, 1)
    scores = torch.tensor([-1e4, 1e4], requires_grad=True)
    loss = LINK_OBJECTIVES["pairs"].loss(scores, batch)
    loss.backward()
    assert loss == 2e4
    assert scores.grad.tolist() == [-1.0, 1.0]


def test_classes_of_edges_are_as_those_of_nodes() -> None:
    labels, outputs = torch.tensor([0, 2, 1]), torch.randn(3, 4)
    of_links, of_nodes = SimpleNamespace(labels=labels), SimpleNamespace(y=labels)
    objective = LINK_OBJECTIVES["classes"]
    assert objective.loss(outputs, of_links) == NODE_CLASSES.loss(outputs, of_nodes)
    assert objective.right(outputs, of_links) == NODE_CLASSES.right(outputs, of_nodes)
    assert objective.count(of_links) == NODE_CLASSES.count(of_nodes) == 3


def test_values_are_compared_by_squares() -> None:
    batch = SimpleNamespace(labels=torch.tensor([1.0, 2.0]))
    objective = LINK_OBJECTIVES["values"]
    assert objective.loss(torch.tensor([1.0, 4.0]), batch) == 2.0
    assert objective.right(torch.tensor([1.4, 4.0]), batch) == 1
