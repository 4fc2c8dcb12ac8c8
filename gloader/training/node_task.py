"""The task of node labels: a network predicts the classes, the labels of 0 and 1, or the values of nodes.

`NodeTask` is the task that a training run uses: it chooses the loss and the metric for the kind of the labels, opens
the loader and evaluates. Shapes: n nodes, k labels of each, C classes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.config import CORRECT_AND_SMOOTH
from gloader.core.units import format_bytes
from gloader.dataset.values import has_label
from gloader.errors import BudgetError, ScoreError
from gloader.loader import HeteroLoader, Loader
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.class_weights import balanced_seeds, class_weights_of, plain_classes
from gloader.training.correct_and_smooth import TrainingLabels, require_smoothing, smoothed
from gloader.training.dataset_checks import (
    TASK_OF_KIND,
    kind_of_task,
    metric_of_task,
    num_outputs,
    require_training_nodes,
)
from gloader.training.evaluate import predict_classes, predict_outputs
from gloader.training.model_spec import spec_of
from gloader.training.objectives import NODE_CLASSES, BinaryClasses, LabelColumns, NodeClasses
from gloader.training.scores import METRICS
from gloader.training.task import Evaluation, Scores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.config import LoaderSettings, SamplingSettings, TrainSettings
    from gloader.core.order import DrawnSeeds
    from gloader.dataset import Dataset
    from gloader.dataset.values import LabelKind
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.evaluate import Outputs
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.model_spec import AnyModelSpec
    from gloader.training.objectives import Objective
    from gloader.training.scores import Metric, Score
    from gloader.training.task import AnyLoader, Split
    from gloader.types import IdArray

logger = logging.getLogger("gloader")

_SPLITS: Final[tuple[Split, ...]] = ("valid", "test")
_SUMMARY_BYTES: Final = 10 * 2**20  # memory of `score_summary` besides scores, labels and a metric
_LOGIT: Final = 0.0  # a logit above it predicts label 1
_STEP_LABELS: Final = 1 << 20  # labels that are read at once, so that temporary arrays stay small


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTask:
    """Learns and evaluates the labels of nodes.

    Parameters
    ----------
    dataset : the dataset with the training nodes
    spec : specification of a network with `num_outputs` outputs for each node
    kind : the kind of the learned labels
    measure : the metric of validation and test
    objective : the loss
    balanced : the training nodes, drawn equally often from every class; None takes each once per epoch
    """

    dataset: Dataset
    spec: AnyModelSpec
    kind: LabelKind
    measure: Metric
    objective: Objective
    balanced: DrawnSeeds | None = None

    @classmethod
    def of(cls, settings: TrainSettings, dataset: Dataset) -> NodeTask:
        """Return the task for a run with ``settings``.

        Raises
        ------
        ConfigError
            There are no training nodes, or the labels, the metric or the model do not fit.
        """
        require_training_nodes(dataset)
        kind, measure = kind_of_task(settings, dataset), metric_of_task(settings, dataset)
        return cls(
            dataset=dataset,
            spec=spec_of(settings, dataset, num_outputs=num_outputs(kind, dataset)),
            kind=kind,
            measure=measure,
            objective=_objective(kind, dataset, settings.optim.class_weights),
            balanced=balanced_seeds(dataset) if settings.optim.balance == "classes" else None,
        )

    @property
    def name(self) -> str:
        """The task's name; that of classes is "node"."""
        return TASK_OF_KIND[self.kind]

    @property
    def metric(self) -> str:
        """Name of the metric, such as "acc"."""
        return self.measure.name

    @property
    def is_error(self) -> bool:
        """True if the metric is an error of values."""
        return self.measure.is_error

    def warn(self) -> None:
        """Log how many labels each evaluation leaves out.

        Raises
        ------
        ScoreError
            The metric is not defined for the labels of a split. So a run ends before its first epoch, not after it.
        """
        if self.kind == "classes":
            return
        for split in _SPLITS:
            _, labels = self._known(split)
            if not len(labels):
                continue
            try:
                # Whether a metric is defined depends on the labels alone.
                found = self._measured(np.zeros(labels.shape, np.float32), labels)
            except ScoreError as error:
                raise ScoreError(f"--metric {self.metric} on the {split} nodes: {error}") from error
            if found.num_left_out:
                logger.warning(
                    "%s of the %s nodes is the mean over %s of %s labels: the others have no known node of each class",
                    self.metric,
                    split,
                    f"{labels.shape[1] - found.num_left_out:,}",
                    f"{labels.shape[1]:,}",
                )

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None
    ) -> AnyLoader:
        """Return a loader with batches for the model."""
        kind = HeteroLoader if self.spec.has_types else Loader
        return kind.from_settings(dataset, settings, seeds=self.balanced, device_dry_run=device_dry_run)

    def drawn(self, batch: Any, loader: AnyLoader) -> tuple[Any, torch.Tensor | None]:
        """Return ``batch`` with a label for each draw, and the network's row for each label.

        Without balanced seeds, or if no seed was drawn twice, the result is ``batch`` and None.
        """
        if self.balanced is None:
            return batch, None
        seeds = loader.seeds[loader.seed_positions(batch.id)]  # type: ignore[union-attr]  # a loader of nodes
        _, firsts, rows = np.unique(seeds, return_index=True, return_inverse=True)
        if len(firsts) == len(seeds):
            return batch, None
        # The batch has the seeds in the order of their first draws, and `unique` returns them in ascending order.
        places = np.empty(len(firsts), np.int64)
        places[np.argsort(firsts)] = np.arange(len(firsts))
        taken = torch.from_numpy(places[rows]).to(batch.y.device)
        return replace(batch, y=batch.y[taken]), taken

    def seeds(self, sampling: SamplingSettings) -> SeedPlan:
        """Return the training nodes."""
        return plan_training_seeds(self.dataset, sampling, are_named=self.spec.has_types, drawn=self.balanced)

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if a split's outputs and labels do not fit, next to the inference or to the metric."""
        num_nodes = max(len(self.dataset.valid), len(self.dataset.test))
        held = self._held_bytes(num_nodes)
        if held:
            # The inference has ended when the metric, or the summary of all metrics, is computed.
            scratch = max(metric.bytes_per_score for metric in METRICS.values() if self.kind in metric.kinds)
            needed = held + scratch * num_nodes + _SUMMARY_BYTES
            if needed > inference.memory_budget_bytes:
                raise BudgetError(
                    f"the scores and labels of {num_nodes:,} nodes, with a metric of them, take "
                    f"{format_bytes(needed)} of {format_bytes(inference.memory_budget_bytes)} for an evaluation",
                    short_bytes=needed - inference.memory_budget_bytes,
                )
        left = _beside(inference, held)
        left.require_memory(model, num_outputs=num_nodes)
        if self._is_smoothed:
            require_smoothing(model, left, self.dataset, is_binary=self.kind == "binary")

    def score(
        self, split: Split, model: Any, inference: HeteroInference, on_progress: Callable[[float], None]
    ) -> Evaluation:
        """Return the metric on the split's nodes. Correct and smooth follows the network in the test alone."""
        left = _beside(inference, self._held_bytes(len(self._known(split)[0])))
        found = self._scored(split, model, left, on_progress)
        if split == "valid" or not self._is_smoothed:
            return found
        left = _beside(inference, self._held_bytes(max(len(self.dataset.valid), len(self.dataset.test))))
        labels = TrainingLabels.of(self.dataset, is_binary=self.kind == "binary")
        with smoothed(model, left, labels, on_progress) as outputs:
            valid = self._scored("valid", model, outputs, on_progress).score
            test = self._scored("test", model, outputs, on_progress)
        return replace(found, summary=test.summary, behind=Scores(valid=valid, test=test.score))

    @property
    def _is_smoothed(self) -> bool:
        """True if correct and smooth follows the network."""
        return self.spec.encoder.config.name == CORRECT_AND_SMOOTH

    def _scored(
        self, split: Split, model: Any, source: Outputs, on_progress: Callable[[float], None]
    ) -> Evaluation:
        """Return the metric on the split's nodes of the outputs of ``source``."""
        nodes, labels = self._known(split)
        if not len(nodes):
            return Evaluation(score=None)
        outputs: NDArray[Any]
        if self.kind == "classes":
            outputs = predict_classes(model, source, nodes, on_progress)
        else:
            outputs = predict_outputs(model, source, nodes, on_progress).reshape(labels.shape)
        return Evaluation(
            score=self._measured(outputs, labels).value,
            summary=lambda: self._summary(split, outputs, labels),
        )

    def _known(self, split: Split) -> tuple[IdArray, NDArray[Any]]:
        """Return the nodes (n,) of a split with a label, and their labels (n,) or (n, k)."""
        nodes = self.dataset.valid if split == "valid" else self.dataset.test
        labels = self.dataset.labels_of(nodes)
        is_known = has_label(labels)
        return nodes[is_known], labels[is_known]

    def _measured(self, outputs: NDArray[Any], labels: NDArray[Any]) -> Score:
        """Return the metric of ``outputs`` for ``labels``, of the same shape."""
        return self.measure.compute(outputs, labels, names=self._names, threshold=_LOGIT)

    def _summary(self, split: Split, outputs: NDArray[Any], labels: NDArray[Any]) -> Mapping[str, Any]:
        """Return the content of ``scores.json``."""
        # This import is late: a run without a folder needs no summary.
        from gloader.training.score_summary import score_summary

        names = self.dataset.labelled.label_names if self.kind == "classes" else self._names
        are_logits = self.kind in ("binary", "multilabel")
        return score_summary(self.kind, outputs, labels, names, are_logits=are_logits) | {"split": split}

    @property
    def _names(self) -> Sequence[str] | None:
        """The names of the k label columns; None without names, and for labels that are classes."""
        labelled = self.dataset.labelled
        return None if labelled.label_kind == "classes" else labelled.label_names

    def _held_bytes(self, num_nodes: int) -> int:
        """Return the bytes of the outputs and labels of ``num_nodes`` nodes; 0 for classes, which have no scores."""
        if self.kind == "classes":
            return 0
        is_int = self.dataset.labelled.label_kind == "classes"
        return num_nodes * self.spec.encoder.out_dim * (4 + (8 if is_int else 4))


def _objective(kind: LabelKind, dataset: Dataset, class_weights: str) -> Objective:
    """Return the loss for labels of ``kind``. Reads the labels of the training nodes, except for equal classes."""
    if kind in ("classes", "binary"):
        if class_weights == "none":
            return NODE_CLASSES if kind == "classes" else BinaryClasses()
        labels = plain_classes(dataset.labels_of(dataset.train))
        if kind == "classes":
            return NodeClasses(class_weights_of(class_weights, labels, dataset.num_classes))
        weights = class_weights_of(class_weights, labels, 2)
        return BinaryClasses((weights[0], weights[1]))
    width = dataset.labelled.label_width
    has_unknown = any(bool(np.isnan(labels).any()) for labels in _training_labels(dataset, width))
    return LabelColumns(width, has_accuracy=kind == "multilabel", is_uneven=has_unknown)


def _training_labels(dataset: Dataset, width: int) -> Iterator[NDArray[Any]]:
    """Yield the labels of the training nodes, (., k) float32, a part at a time."""
    nodes = dataset.train
    step = max(1, _STEP_LABELS // width)
    for start in range(0, len(nodes), step):
        yield dataset.labels_of(nodes[start : start + step])


def _beside(inference: HeteroInference, num_bytes: int) -> HeteroInference:
    """Return ``inference`` with ``num_bytes`` less memory."""
    if not num_bytes:
        return inference
    return replace(inference, memory_budget_bytes=inference.memory_budget_bytes - num_bytes)
