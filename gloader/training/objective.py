"""What a step makes smaller, and what of it was right: of the classes of nodes, or of links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from torch.nn import functional

if TYPE_CHECKING:
    import torch


class Objective(Protocol):
    """The loss of a step, in float32, and how it is counted."""

    def count(self, batch: Any, /) -> int:
        """Return how many of what is predicted the loss is a mean over."""
        ...

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean loss of what the network made of ``batch``."""
        ...

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return how many of `count` were predicted right, a number on the device."""
        ...


class NodeClasses:
    """Cross-entropy of the classes of the seeds; ``outputs`` are (B, classes)."""

    def count(self, batch: Any, /) -> int:
        """Return B."""
        return len(batch.y)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the seeds."""
        return functional.cross_entropy(outputs, batch.y)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return how many seeds are of the most likely class."""
        return (outputs.argmax(dim=1) == batch.y).sum()


class TruePairs:
    """Edges are told from what was drawn beside them; ``outputs`` are (P,) scores.

    The loss is the mean of ``-log(sigmoid(score))`` over the edges plus that of ``-log(1 - sigmoid(score))`` over the
    others, as in OGB's examples: both weigh alike, however many negatives an edge has.
    """

    def count(self, batch: Any, /) -> int:
        """Return the number of edges."""
        return int(batch.num_positives)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the edges plus the mean over the others."""
        edges, others = outputs[: batch.num_positives], outputs[batch.num_positives :]
        loss = functional.softplus(-edges).mean()
        # An edge that is alone in its batch has no negatives of the others.
        return loss + functional.softplus(others).mean() if len(others) else loss

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the share of pairs whose score is on the right side of 0, times the edges."""
        return ((outputs > 0) == (batch.labels > 0.5)).float().mean() * batch.num_positives


class LinkClasses:
    """Cross-entropy of the classes that a link table has; ``outputs`` are (P, classes)."""

    def count(self, batch: Any, /) -> int:
        """Return P."""
        return len(batch.labels)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the edges."""
        return functional.cross_entropy(outputs, batch.labels)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return how many edges are of the most likely class."""
        return (outputs.argmax(dim=1) == batch.labels).sum()


class LinkValues:
    """Squared errors of the values that a link table has; ``outputs`` are (P,)."""

    def count(self, batch: Any, /) -> int:
        """Return P."""
        return len(batch.labels)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the edges."""
        return functional.mse_loss(outputs, batch.labels)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of values that are less than a half off."""
        return ((outputs - batch.labels).abs() < 0.5).sum()


NODE_CLASSES: Final[Objective] = NodeClasses()
LINK_OBJECTIVES: Final[dict[str, Objective]] = {
    "pairs": TruePairs(),
    "classes": LinkClasses(),
    "values": LinkValues(),
}
