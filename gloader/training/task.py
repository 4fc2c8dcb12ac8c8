"""The task of a run: its network, its batches, a step's loss and the score of an evaluation.

A task predicts labels of nodes (`gloader.training.node_task.NodeTask`) or links
(`gloader.training.link_prediction.LinkPrediction`). The training loop reaches everything that differs between the two
through the protocol `Task`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from gloader.config import LoaderSettings, SamplingSettings
    from gloader.dataset import Dataset
    from gloader.loader import HeteroLoader, LinkLoader, Loader
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.model_spec import AnyModelSpec
    from gloader.training.objectives import Objective

    AnyLoader: TypeAlias = Loader | HeteroLoader | LinkLoader


Split = Literal["valid", "test"]  # the parts of the data that evaluations use
ACCURACY: Final = "acc"  # the metric's name in files and on the screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The task's metric on both splits."""

    valid: float | None
    test: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of one evaluation."""

    score: float | None  # the task's metric; None without labels or edges to compare
    # Makes the content of ``scores.json`` from the scores, which it holds in memory. None without such a content.
    summary: Callable[[], Mapping[str, Any]] | None = None
    # The scores behind a step that follows the network, such as correct and smooth; ``score`` is then that of the
    # network alone. Only with the split "test", and None without such a step.
    behind: Scores | None = None


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
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None, **given: Any
    ) -> AnyLoader:
        """Return a loader over the training data.

        ``device_dry_run`` is a step that the loader runs to measure its device memory; None for no measurement.
        ``given`` may have ``embeddings``, trained rows by type.
        """
        ...

    def drawn(self, batch: Any, loader: AnyLoader) -> tuple[Any, torch.Tensor | None]:
        """Return ``batch`` with a label for each draw, and the network's row for each label.

        A loader gives a seed once, even if it was drawn several times for the batch, or if several rows of a task table
        are of one node. Without such seeds, the result is ``batch`` and None.
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
    ) -> Evaluation:
        """Return ``model``'s score on a split.

        ``inference`` computes the outputs over all neighbours. ``on_progress`` receives the finished share, 0 to 1.
        """
        ...
