from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from gloader.training.objectives import (
    LINK_OBJECTIVES,
    NODE_CLASSES,
    BinaryClasses,
    LabelColumns,
    NodeClasses,
)


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


def _labels(rows: list[list[float]]) -> SimpleNamespace:
    return SimpleNamespace(y=torch.tensor(rows))


NAN = float("nan")


@pytest.mark.parametrize("labels", [torch.tensor([0, 1, 1, 0]), torch.tensor([[0.0], [1.0], [1.0], [0.0]])])
def test_two_classes_are_learned_from_one_logit(labels) -> None:
    logits, batch = torch.tensor([[0.3], [-1.0], [2.0], [-4.0]]), SimpleNamespace(y=labels)
    expected = -torch.log(torch.sigmoid(torch.tensor([-0.3, -1.0, 2.0, 4.0]))).mean()
    torch.testing.assert_close(BinaryClasses().loss(logits, batch), expected)
    assert (BinaryClasses().count(batch), BinaryClasses().right(logits, batch)) == (4, 2)
    weighted = functional.binary_cross_entropy_with_logits(
        logits[:, 0], labels.reshape(-1).float(), pos_weight=torch.tensor(5.0)
    )
    torch.testing.assert_close(BinaryClasses((1.0, 5.0)).loss(logits, batch), weighted)


def test_weights_of_classes_multiply_the_loss_of_each_seed() -> None:
    logits, batch = torch.randn(5, 3), SimpleNamespace(y=torch.tensor([0, 2, 1, 1, 0]))
    each = functional.cross_entropy(logits, batch.y, reduction="none")
    expected = (each * torch.tensor([1.0, 5.0, 0.5])[batch.y]).mean()
    torch.testing.assert_close(NodeClasses((1.0, 5.0, 0.5)).loss(logits, batch), expected)
    assert NodeClasses((1.0, 1.0, 1.0)).loss(logits, batch) == pytest.approx(
        float(NODE_CLASSES.loss(logits, batch))
    )


@pytest.mark.parametrize("objective", [LabelColumns(3, True, True), LabelColumns(3, False, True)])
def test_unknown_labels_have_neither_loss_nor_gradient(objective) -> None:
    """As a mean over the known ones alone, whose gradient at the others is 0 and not NaN."""
    batch = _labels([[1.0, NAN, 0.0], [NAN, NAN, 1.0]])
    outputs = torch.randn(2, 3, requires_grad=True)
    known = ~batch.y.isnan()
    of_known = functional.binary_cross_entropy_with_logits if objective.has_accuracy else functional.mse_loss
    loss = objective.loss(outputs, batch)
    torch.testing.assert_close(loss, of_known(outputs[known], batch.y[known]))
    assert objective.count(batch) == 3
    loss.backward()
    assert bool(((outputs.grad == 0) == ~known).all())


@pytest.mark.parametrize("are_bits", [True, False])
def test_known_labels_give_the_same_loss_with_and_without_a_mask(are_bits) -> None:
    batch, outputs = _labels([[1.0, 0.0], [0.0, 0.0]]), torch.randn(2, 2)
    masked, plain = LabelColumns(2, are_bits, True), LabelColumns(2, are_bits, False)
    torch.testing.assert_close(masked.loss(outputs, batch), plain.loss(outputs, batch))
    assert (masked.count(batch), plain.count(batch)) == (4, 4)
    assert (masked.is_uneven, plain.is_uneven) == (True, False)


@pytest.mark.parametrize("are_bits", [True, False])
def test_a_batch_without_a_known_label_has_no_loss(are_bits) -> None:
    """As a rank may meet one, which must still take part in the step."""
    outputs = torch.randn(1, 2, requires_grad=True)
    objective, batch = LabelColumns(2, are_bits, True), _labels([[NAN, NAN]])
    loss = objective.loss(outputs, batch)
    loss.backward()
    assert (float(loss.detach()), objective.count(batch), outputs.grad.tolist()) == (0.0, 0, [[0.0, 0.0]])


def test_labels_count_as_right_where_they_are_known() -> None:
    batch = _labels([[1.0, NAN, 0.0], [0.0, 1.0, 1.0]])
    outputs = torch.tensor([[2.0, 5.0, 3.0], [-1.0, 1.0, -1.0]])
    assert LabelColumns(3, has_accuracy=True, is_uneven=True).right(outputs, batch) == 3
    assert LabelColumns(3, has_accuracy=False, is_uneven=True).right(outputs, batch) == 0


@pytest.mark.parametrize(
    ("objective", "shape"),
    [
        (NODE_CLASSES, (4,)),
        (BinaryClasses(), (4,)),
        (LabelColumns(2, True, False), (4, 2)),
        (LabelColumns(1, False, False), (4, 1)),
    ],
)
def test_a_blank_batch_has_a_loss(objective, shape) -> None:
    """The memory of a step is measured with it."""
    batch = SimpleNamespace(y=objective.blank(4))
    assert batch.y.shape == shape
    outputs = torch.zeros(4, 3 if objective is NODE_CLASSES else (*shape, 1)[1])
    assert objective.loss(outputs, batch).isfinite()


@pytest.mark.parametrize(
    ("objective", "outputs", "labels", "each"),
    [
        (
            NodeClasses((1.0, 3.0), mean_weight=2.0),
            torch.tensor([[0.5, -1.0], [2.0, 0.1], [0.0, 0.3]]),
            torch.tensor([0, 1, 1]),
            lambda outputs, labels: (
                functional.cross_entropy(outputs, labels, reduction="none") * torch.tensor([1.0, 3.0])[labels]
            ),
        ),
        (
            BinaryClasses(mean_weight=2.0),
            torch.tensor([[0.5], [-1.0], [2.0]]),
            torch.tensor([[1.0], [0.0], [0.0]]),
            lambda outputs, labels: functional.binary_cross_entropy_with_logits(
                outputs[:, 0], labels[:, 0], reduction="none"
            ),
        ),
        (
            LabelColumns(1, has_accuracy=False, is_uneven=False, mean_weight=2.0),
            torch.tensor([[0.5], [-1.0], [2.0]]),
            torch.tensor([[1.0], [0.0], [0.0]]),
            lambda outputs, labels: (outputs - labels)[:, 0] ** 2,
        ),
    ],
)
def test_weights_of_rows_multiply_their_losses_by_the_weight_over_its_mean(
    objective, outputs, labels, each
) -> None:
    weights = torch.tensor([0.0, 2.0, 4.0])
    found = objective.loss(outputs, SimpleNamespace(y=labels, weights=weights))
    assert found == pytest.approx(float((each(outputs, labels) * weights / 2).mean()))


def test_an_unknown_label_of_a_row_with_a_weight_has_no_part_in_the_loss() -> None:
    objective = LabelColumns(2, has_accuracy=True, is_uneven=True, mean_weight=1.0)
    outputs = torch.tensor([[1.0, 2.0], [0.5, -3.0]], requires_grad=True)
    labels = torch.tensor([[1.0, float("nan")], [0.0, 1.0]])
    loss = objective.loss(outputs, SimpleNamespace(y=labels, weights=torch.tensor([3.0, 1.0])))
    each = functional.binary_cross_entropy_with_logits(
        outputs, torch.nan_to_num(labels), reduction="none"
    ) * torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    assert loss.detach() == pytest.approx(float(each.detach().sum() / 3))
    loss.backward()
    assert outputs.grad[0, 1] == 0
