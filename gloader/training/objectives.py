"""The objectives: the losses that training minimises, for labels of nodes and of links.

An objective is a loss with its count of predicted items, such as seeds or edges. `NodeTask` chooses one for labels of
nodes, and `LINK_OBJECTIVES` has those for links. A link is an edge that the model predicts; a link table lists
links, perhaps with a class or a value per link. Shapes: B seeds, k labels per seed, P pairs of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import torch
from torch.nn import functional


def _weighted(losses: torch.Tensor, batch: Any, mean_weight: float) -> torch.Tensor:
    """Return the losses (B,) or (B, k), each times its row's weight, with a mean of 1 over the training rows.

    So the loss of an epoch is the weighted mean of its rows. A mean over each batch's own weights would depend on the
    division of the rows into batches, and on the number of ranks.
    """
    weights = batch.weights / mean_weight
    return losses * (weights if losses.dim() == 1 else weights.unsqueeze(1))


class Objective(Protocol):
    """The float32 loss of a step, as a mean over predicted items."""

    @property
    def has_accuracy(self) -> bool:
        """True if an item is right or wrong, so that `right` counts items."""
        ...

    @property
    def is_uneven(self) -> bool:
        """True if equally large batches may have different counts."""
        ...

    def blank(self, count: int) -> torch.Tensor:
        """Return zeros in the form of the labels of ``count`` seeds or pairs."""
        ...

    def count(self, batch: Any, /) -> int:
        """Return the number of predicted items of which `loss` is the mean."""
        ...

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean loss of the network's ``outputs`` for ``batch``."""
        ...

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of correctly predicted items, a scalar on the device."""
        ...


@dataclass(frozen=True, slots=True)
class NodeClasses:
    """Cross-entropy of the seeds' classes. ``outputs`` are (B, classes).

    With weights, each seed's loss is multiplied by the weight of its class before the mean over the seeds. torch's
    weighted mean divides by the sum of the batch's weights instead. Then ranks with other classes in their batches
    would weigh a seed differently than one rank with the whole batch.
    """

    weights: tuple[float, ...] | None = None  # of each class; None weighs all classes equally
    mean_weight: float | None = None  # the mean weight of the training rows; None if rows have no weights

    has_accuracy: ClassVar[bool] = True
    is_uneven: ClassVar[bool] = False

    def blank(self, count: int) -> torch.Tensor:
        """Return (count,) int64."""
        return torch.zeros(count, dtype=torch.int64)

    def count(self, batch: Any, /) -> int:
        """Return B."""
        return len(batch.y)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the seeds."""
        if self.weights is None and self.mean_weight is None:
            return functional.cross_entropy(outputs, batch.y)
        weights = None if self.weights is None else outputs.new_tensor(self.weights)
        if self.mean_weight is None:
            return functional.cross_entropy(outputs, batch.y, weight=weights, reduction="sum") / len(batch.y)
        losses = functional.cross_entropy(outputs, batch.y, weight=weights, reduction="none")
        return _weighted(losses, batch, self.mean_weight).mean()

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of correctly classified seeds."""
        return (outputs.argmax(dim=1) == batch.y).sum()


@dataclass(frozen=True, slots=True)
class BinaryClasses:
    """Cross-entropy of two classes, 0 and 1. ``outputs`` are (B, 1): the logit of class 1.

    Labels are (B,) int64 or (B, 1) float32. Weights are as in `NodeClasses`.
    """

    weights: tuple[float, ...] | None = None  # of the classes 0 and 1
    mean_weight: float | None = None  # see `NodeClasses`

    has_accuracy: ClassVar[bool] = True
    is_uneven: ClassVar[bool] = False

    def blank(self, count: int) -> torch.Tensor:
        """Return (count,) int64."""
        return torch.zeros(count, dtype=torch.int64)

    def count(self, batch: Any, /) -> int:
        """Return B."""
        return len(batch.y)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the seeds."""
        labels = batch.y.reshape(-1).to(outputs.dtype)
        weights = None
        if self.weights is not None:
            weights = outputs.new_tensor(self.weights)[labels.long()]
        if self.mean_weight is None:
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels, weight=weights)
        losses = functional.binary_cross_entropy_with_logits(
            outputs[:, 0], labels, weight=weights, reduction="none"
        )
        return _weighted(losses, batch, self.mean_weight).mean()

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of correctly classified seeds. Class 1 is predicted for a logit above 0."""
        return ((outputs[:, 0] > 0) == (batch.y.reshape(-1) > 0)).sum()


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """The loss of k labels per seed, as a mean over known labels. ``outputs`` are (B, k).

    Labels of 0 and 1 have logits as outputs and a binary cross-entropy; other values have a squared error. A NaN is an
    unknown label. It has no part in the loss, nor in its gradient.
    """

    num_labels: int  # k
    has_accuracy: bool  # whether the labels are 0 and 1
    is_uneven: bool  # whether training labels are NaN: batches then have different numbers of known labels
    mean_weight: float | None = None  # see `NodeClasses`

    def blank(self, count: int) -> torch.Tensor:
        """Return (count, k) float32."""
        return torch.zeros(count, self.num_labels)

    def count(self, batch: Any, /) -> int:
        """Return the number of known labels. Waits for the device only if there may be unknown ones."""
        return int((~batch.y.isnan()).sum()) if self.is_uneven else batch.y.numel()

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the known labels; 0 without any."""
        of_labels = functional.binary_cross_entropy_with_logits if self.has_accuracy else functional.mse_loss
        if not self.is_uneven and self.mean_weight is None:
            return of_labels(outputs, batch.y)
        known = ~batch.y.isnan()
        # An unknown label is replaced before the loss: the gradient of a NaN would be NaN, even times 0.
        losses = of_labels(outputs, torch.where(known, batch.y, 0), reduction="none")
        if self.mean_weight is not None:
            losses = _weighted(losses, batch, self.mean_weight)
        return torch.where(known, losses, 0).sum() / known.sum().clamp(min=1)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of known labels that are predicted correctly: 1 for a logit above 0. 0 for other values."""
        if not self.has_accuracy:
            return outputs.new_zeros(())
        return (((outputs > 0) == (batch.y > 0)) & ~batch.y.isnan()).sum()


class TruePairs:
    """The separation of edges (positives) from drawn pairs without an edge (negatives). ``outputs`` are (P,) scores.

    The positives are the first pairs of a batch. The loss is the mean of ``-log(sigmoid(score))`` over the positives
    plus the mean of ``-log(1 - sigmoid(score))`` over the negatives, as in OGB's examples. Both means weigh equally,
    even if a positive has many negatives.
    """

    has_accuracy: ClassVar[bool] = True
    is_uneven: ClassVar[bool] = False

    def blank(self, count: int) -> torch.Tensor:
        """Return (count,) float32."""
        return torch.zeros(count)

    def count(self, batch: Any, /) -> int:
        """Return the number of positives."""
        return int(batch.num_positives)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the positives plus the mean over the negatives."""
        positives, negatives = outputs[: batch.num_positives], outputs[batch.num_positives :]
        # softplus(-score) is -log(sigmoid(score)), computed without overflow; likewise for the negatives.
        loss = functional.softplus(-positives).mean()
        # Negatives may be taken from the batch's other edges. With a single edge there are none.
        return loss + functional.softplus(negatives).mean() if len(negatives) else loss

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the share of correctly scored pairs, times the number of positives, so that it fits `count`.

        A positive is correct with a score above 0, and a negative otherwise.
        """
        return ((outputs > 0) == (batch.labels > 0.5)).float().mean() * batch.num_positives


class LinkClasses:
    """Cross-entropy of a link table's classes. ``outputs`` are (P, classes)."""

    has_accuracy: ClassVar[bool] = True
    is_uneven: ClassVar[bool] = False

    def blank(self, count: int) -> torch.Tensor:
        """Return (count,) int64."""
        return torch.zeros(count, dtype=torch.int64)

    def count(self, batch: Any, /) -> int:
        """Return P."""
        return len(batch.labels)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the edges."""
        return functional.cross_entropy(outputs, batch.labels)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of correctly classified edges."""
        return (outputs.argmax(dim=1) == batch.labels).sum()


class LinkValues:
    """Squared errors of a link table's values. ``outputs`` are (P,)."""

    has_accuracy: ClassVar[bool] = True
    is_uneven: ClassVar[bool] = False

    def blank(self, count: int) -> torch.Tensor:
        """Return (count,) float32."""
        return torch.zeros(count)

    def count(self, batch: Any, /) -> int:
        """Return P."""
        return len(batch.labels)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the edges."""
        return functional.mse_loss(outputs, batch.labels)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of values with an error below a half."""
        return ((outputs - batch.labels).abs() < 0.5).sum()


@dataclass(frozen=True, slots=True)
class TrueTriples:
    """The loss of triples beside shared negatives. ``outputs`` are (P, 1 + 2k), see `KnowledgeNetwork.forward`.

    Without a margin, it is the cross-entropy of the right tail among itself and the wrong tails, and likewise of the
    head (Joulin et al., "Fast linear model for knowledge graph embeddings", 2017, section 2, with drawn candidates;
    Lerer et al., "PyTorch-BigGraph", MLSys 2019, section 3.2). With a margin, it is the self-adversarial loss (Sun et
    al., "RotatE", ICLR 2019, section 3.2): negatives with larger scores weigh more. Both are means over the two sides.
    """

    margin: float | None = None  # gamma; None for the cross-entropy

    has_accuracy: ClassVar[bool] = True
    is_uneven: ClassVar[bool] = False

    def blank(self, count: int) -> torch.Tensor:
        """Return (count,) int64."""
        return torch.zeros(count, dtype=torch.int64)

    def count(self, batch: Any, /) -> int:
        """Return P."""
        return int(batch.num_positives)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:  # noqa: ARG002 - all is in the scores
        """Return the mean over the triples."""
        right, wrong = outputs[:, :1], outputs[:, 1:].chunk(2, dim=1)
        if self.margin is None:
            sides = [torch.logsumexp(torch.cat([right, side], dim=1), dim=1) for side in wrong]
            return (torch.stack(sides).mean(dim=0) - right[:, 0]).mean()
        losses = functional.softplus(-right[:, 0] - self.margin)
        for side in wrong:
            # The weights are no part of the gradient.
            weights = functional.softmax(side.detach(), dim=1)
            losses = losses + (weights * functional.softplus(side + self.margin)).sum(dim=1) / len(wrong)
        return losses.mean()

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:  # noqa: ARG002
        """Return the number of triples with a larger score than each of their negatives."""
        return (outputs[:, :1] > outputs[:, 1:]).all(dim=1).sum()


NODE_CLASSES: Final[Objective] = NodeClasses()
LINK_OBJECTIVES: Final[dict[str, Objective]] = {
    "pairs": TruePairs(),
    "classes": LinkClasses(),
    "values": LinkValues(),
}
