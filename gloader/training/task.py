"""What a run learns: which network, from which batches, and how well it does; the rest of a run is the same for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from gloader.loader import HeteroLoader, LinkLoader, Loader
from gloader.pipeline.typed_seeds import plan_training_seeds
from gloader.training.dataset_checks import require_training_nodes
from gloader.training.evaluate import accuracy
from gloader.training.model_spec import HeteroModelSpec, spec_of
from gloader.training.objective import NODE_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.config import LoaderSettings, SamplingSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.training.evaluate import Inference
    from gloader.training.model_spec import AnyModelSpec
    from gloader.training.objective import Objective

    AnyLoader: TypeAlias = Loader | HeteroLoader | LinkLoader

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
