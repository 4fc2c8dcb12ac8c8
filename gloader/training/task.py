"""The task of a run: its network, its batches, a step's loss and the score of an evaluation.

A task is node classification (`NodeTask`) or link prediction (`gloader.training.link_prediction.LinkPrediction`). The
training loop reaches everything that differs between the two through the protocol `Task`.

An objective is a loss with its count of predicted items, such as seeds or edges. A link is an edge that the model
predicts; a link table lists links, perhaps with a class or a value per link. Shapes: B seeds, P pairs of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from torch.nn import functional

from gloader.loader import HeteroLoader, LinkLoader, Loader
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.dataset_checks import require_training_nodes
from gloader.training.evaluate import accuracy
from gloader.training.model_spec import spec_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gloader.config import LoaderSettings, SamplingSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.model_spec import AnyModelSpec

    AnyLoader: TypeAlias = Loader | HeteroLoader | LinkLoader


class Objective(Protocol):
    """The float32 loss of a step, as a mean over predicted items."""

    def count(self, batch: Any, /) -> int:
        """Return the number of predicted items of which `loss` is the mean."""
        ...

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean loss of the network's ``outputs`` for ``batch``."""
        ...

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of correctly predicted items, a scalar on the device."""
        ...


class NodeClasses:
    """Cross-entropy of the seeds' classes. ``outputs`` are (B, classes)."""

    def count(self, batch: Any, /) -> int:
        """Return B."""
        return len(batch.y)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the seeds."""
        return functional.cross_entropy(outputs, batch.y)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of correctly classified seeds."""
        return (outputs.argmax(dim=1) == batch.y).sum()


class TruePairs:
    """The separation of edges (positives) from drawn pairs without an edge (negatives). ``outputs`` are (P,) scores.

    The positives are the first pairs of a batch. The loss is the mean of ``-log(sigmoid(score))`` over the positives
    plus the mean of ``-log(1 - sigmoid(score))`` over the negatives, as in OGB's examples. Both means weigh equally,
    even if a positive has many negatives.
    """

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

    def count(self, batch: Any, /) -> int:
        """Return P."""
        return len(batch.labels)

    def loss(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the mean over the edges."""
        return functional.mse_loss(outputs, batch.labels)

    def right(self, outputs: torch.Tensor, batch: Any, /) -> torch.Tensor:
        """Return the number of values with an error below a half."""
        return ((outputs - batch.labels).abs() < 0.5).sum()


NODE_CLASSES: Final[Objective] = NodeClasses()
LINK_OBJECTIVES: Final[dict[str, Objective]] = {
    "pairs": TruePairs(),
    "classes": LinkClasses(),
    "values": LinkValues(),
}


Split = Literal["valid", "test"]  # the parts of the data that evaluations use
ACCURACY: Final = "acc"  # the metric's name in files and on the screen


class Task(Protocol):
    """The learning task of a run. Every rank (training process) has the task, but only the first computes scores."""

    @property
    def name(self) -> str:
        """The task's name, as a value for ``--task``."""
        ...

    @property
    def spec(self) -> AnyModelSpec:
        """The network's specification."""
        ...

    @property
    def objective(self) -> Objective:
        """The loss."""
        ...

    @property
    def metric(self) -> str:
        """Name of the `score` in files and on the screen."""
        ...

    @property
    def is_error(self) -> bool:
        """True if a smaller score is better."""
        ...

    def warn(self) -> None:
        """Log reasons why a run's figures may mislead. Called once per run."""
        ...

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None
    ) -> AnyLoader:
        """Return a loader over the training data.

        ``device_dry_run`` is a step that the loader runs to measure its device memory; None for no measurement.
        """
        ...

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the training seeds of all ranks together, for planning without a loader."""
        ...

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if `score` does not fit the budget of ``inference``; reads nothing."""
        ...

    def score(
        self, split: Split, model: Any, inference: HeteroInference, on_progress: Callable[[float], None]
    ) -> float | None:
        """Return ``model``'s score on a split; None without labels or edges to compare.

        ``inference`` computes the outputs over all neighbours. ``on_progress`` receives the finished share, 0 to 1.
        """
        ...


@dataclass(frozen=True, slots=True)
class NodeTask:
    """Node classification.

    Parameters
    ----------
    dataset : the dataset with the training nodes
    spec : specification of a network with class outputs
    """

    dataset: Dataset
    spec: AnyModelSpec

    @classmethod
    def of(cls, settings: TrainSettings, dataset: Dataset) -> NodeTask:
        """Return the task for a run with ``settings``.

        Raises
        ------
        ConfigError
            There are no training nodes, or the model does not fit the dataset.
        """
        require_training_nodes(dataset)
        return cls(dataset, spec_of(settings, dataset))

    @property
    def name(self) -> str:
        """The task's name."""
        return "node"

    @property
    def objective(self) -> Objective:
        """Cross-entropy."""
        return NODE_CLASSES

    @property
    def metric(self) -> str:
        """Accuracy."""
        return ACCURACY

    @property
    def is_error(self) -> bool:
        """Return False."""
        return False

    def warn(self) -> None:
        """Log nothing."""

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None
    ) -> AnyLoader:
        """Return a loader with batches for the model."""
        kind = HeteroLoader if self.spec.has_types else Loader
        return kind.from_settings(dataset, settings, device_dry_run=device_dry_run)

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the training nodes."""
        return plan_training_seeds(self.dataset, sampling, are_named=self.spec.has_types)

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if a split's logits do not fit."""
        inference.require_memory(model, num_outputs=max(len(self.dataset.valid), len(self.dataset.test)))

    def score(
        self, split: Split, model: Any, inference: HeteroInference, on_progress: Callable[[float], None]
    ) -> float | None:
        """Return the accuracy on the split's nodes."""
        nodes = self.dataset.valid if split == "valid" else self.dataset.test
        return accuracy(model, inference, nodes, self.dataset.labels_of(nodes), on_progress=on_progress)
