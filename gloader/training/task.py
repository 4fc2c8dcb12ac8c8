"""The task of a run: its network, its batches, the loss of a step and the accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from torch.nn import functional

from gloader.loader import HeteroLoader, LinkLoader, Loader
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.dataset_checks import require_training_nodes
from gloader.training.evaluate import accuracy
from gloader.training.model_spec import HeteroModelSpec, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gloader.config import LoaderSettings, SamplingSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.evaluate import Inference
    from gloader.training.model_spec import AnyModelSpec

    AnyLoader: TypeAlias = Loader | HeteroLoader | LinkLoader


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


Split = Literal["valid", "test"]
ACCURACY: Final = "acc"


class Task(Protocol):
    """What a run learns. Every rank has one; the first alone is asked for scores."""

    @property
    def name(self) -> str:
        """Of the task, as ``--task`` takes it."""
        ...

    @property
    def spec(self) -> AnyModelSpec:
        """The network."""
        ...

    @property
    def objective(self) -> Objective:
        """The loss."""
        ...

    @property
    def metric(self) -> str:
        """What `score` returns, as files and screens name it."""
        ...

    @property
    def is_error(self) -> bool:
        """Whether less of the metric is better."""
        ...

    def warn(self) -> None:
        """Log what makes figures of a run misleading; called once in a run."""
        ...

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None
    ) -> AnyLoader:
        """Return a loader over what is trained on."""
        ...

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the seeds of such a loader, of all ranks together, for planning."""
        ...

    def require_memory(self, model: Any, inference: Inference) -> None:
        """Raise BudgetError where `score` would not fit the budget of ``inference``; nothing is read."""
        ...

    def score(
        self, split: Split, model: Any, inference: Inference, on_progress: Callable[[float], None]
    ) -> float | None:
        """Return how well ``model`` does on a split, from all neighbours; None where there is nothing to tell it by."""
        ...


@dataclass(frozen=True, slots=True)
class NodeTask:
    """The classes of nodes.

    Parameters
    ----------
    dataset : whose training nodes are learned from
    spec : of a network that makes their classes
    """

    dataset: Dataset
    spec: AnyModelSpec

    @classmethod
    def of(cls, settings: TrainSettings, dataset: Dataset) -> NodeTask:
        """Return the task of such a run.

        Raises
        ------
        ConfigError
            No node is trained on, or the model does not take the dataset.
        """
        require_training_nodes(dataset)
        return cls(dataset, spec_of(settings, dataset))

    @property
    def name(self) -> str:
        """Of the task."""
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
        """Return a loader whose batches the model takes."""
        kind = HeteroLoader if isinstance(self.spec, HeteroModelSpec) else Loader
        return kind.from_settings(dataset, settings, device_dry_run=device_dry_run)

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the training nodes."""
        return plan_training_seeds(self.dataset, sampling, is_typed=isinstance(self.spec, HeteroModelSpec))

    def require_memory(self, model: Any, inference: Inference) -> None:
        """Raise BudgetError where the logits of a split would not fit."""
        inference.require_memory(model, num_outputs=max(len(self.dataset.valid), len(self.dataset.test)))

    def score(
        self, split: Split, model: Any, inference: Inference, on_progress: Callable[[float], None]
    ) -> float | None:
        """Return the accuracy on the nodes of the split."""
        nodes = self.dataset.valid if split == "valid" else self.dataset.test
        return accuracy(model, inference, nodes, self.dataset.labels_of(nodes), on_progress=on_progress)
