"""The task of node labels: a network predicts the classes, the labels of 0 and 1, or the values of nodes.

`NodeTask` is the task that a training run uses: it chooses the loss and the metric for the kind of the labels, opens
the loader and evaluates. It learns its `rows`: nodes with labels, or the rows of a task table, which are nodes with
labels and perhaps times (see `gloader.training.learned_rows`). Shapes: n rows, k labels of each, C classes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.config import CORRECT_AND_SMOOTH
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ScoreError
from gloader.loader import HeteroLoader, Loader
from gloader.training.class_weights import balanced_seeds, class_weights_of, plain_classes
from gloader.training.correct_and_smooth import TrainingLabels, require_smoothing, smoothed
from gloader.training.dataset_checks import (
    TASK_OF_KIND,
    kind_of_task,
    labels_to_learn,
    metric_of_task,
    num_outputs,
    require_rows,
)
from gloader.training.evaluate import predict_classes, predict_outputs
from gloader.training.learned_rows import SPLITS, LearnedNodes, LearnedTable
from gloader.training.model_spec import spec_of
from gloader.training.objectives import BinaryClasses, LabelColumns, NodeClasses
from gloader.training.scores import METRICS
from gloader.training.task import Evaluation, Scores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.config import LoaderSettings, SamplingSettings, TrainSettings
    from gloader.dataset import Dataset
    from gloader.dataset.values import LabelKind
    from gloader.pipeline.open.device_rows import DryRun
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.evaluate import Inference
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.learned_rows import LearnedRows
    from gloader.training.model_spec import AnyModelSpec
    from gloader.training.objectives import Objective
    from gloader.training.scores import Metric, Score
    from gloader.training.task import AnyLoader, Split

logger = logging.getLogger("gloader")

_SUMMARY_BYTES: Final = 10 * 2**20  # memory of `score_summary` besides scores, labels and a metric
_LOGIT: Final = 0.0  # a logit above it predicts label 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTask:
    """Learns and evaluates the labels of nodes, or of the rows of a task table.

    Parameters
    ----------
    rows : the learned and evaluated rows
    spec : specification of a network with `num_outputs` outputs for each node
    kind : the kind of the learned labels
    measure : the metric of validation and test
    objective : the loss
    """

    rows: LearnedRows
    spec: AnyModelSpec
    kind: LabelKind
    measure: Metric
    objective: Objective

    @classmethod
    def of(cls, settings: TrainSettings, dataset: Dataset, *, world_size: int = 1) -> NodeTask:
        """Return the task for a run with ``settings``, on ``world_size`` ranks.

        Raises
        ------
        ConfigError
            There are no training rows, or the labels, the metric or the model do not fit.
        """
        require_rows(settings, dataset)
        kind, measure = kind_of_task(settings, dataset), metric_of_task(settings, dataset)
        width = num_outputs(kind, labels_to_learn(settings.table, dataset))
        spec = spec_of(settings, dataset, num_outputs=width)
        rows: LearnedRows
        if settings.table is not None:
            rows = LearnedTable.of(settings, dataset, spec, world_size=world_size)
        else:
            balanced = balanced_seeds(dataset) if settings.optim.balance == "classes" else None
            rows = LearnedNodes(dataset=dataset, balanced=balanced)
        return cls(
            rows=rows,
            spec=spec,
            kind=kind,
            measure=measure,
            objective=_objective(kind, rows, settings.optim.class_weights),
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
        """Log how many labels each evaluation leaves out, and which tables of a task give no score.

        Raises
        ------
        ScoreError
            The metric is not defined for the labels of a split. So a run ends before its first epoch, not after it.
        """
        if isinstance(self.rows, LearnedTable) and (lacking := self.rows.unscored):
            logger.warning("there is no score of %s", ", and none of ".join(lacking))
        if self.kind == "classes":
            return
        for split in SPLITS:
            _, labels = self.rows.known(split)
            if not len(labels):
                continue
            try:
                # Whether a metric is defined depends on the labels alone.
                found = self._measured(np.zeros(labels.shape, np.float32), labels)
            except ScoreError as error:
                raise ScoreError(
                    f"--metric {self.metric} on the {split} {self.rows.noun}: {error}"
                ) from error
            if found.num_left_out:
                logger.warning(
                    "%s of the %s %s is the mean over %s of %s labels: the others have no known %s of each class",
                    self.metric,
                    split,
                    self.rows.noun,
                    f"{labels.shape[1] - found.num_left_out:,}",
                    f"{labels.shape[1]:,}",
                    self.rows.noun.removesuffix("s"),
                )

    def open_loader(
        self, dataset: Dataset, settings: LoaderSettings, *, device_dry_run: DryRun | None, **given: Any
    ) -> AnyLoader:
        """Return a loader with batches for the model."""
        kind = HeteroLoader if self.spec.has_types else Loader
        return kind.from_settings(
            dataset, settings, device_dry_run=device_dry_run, **self.rows.loader_keywords, **given
        )

    def drawn(self, batch: Any, loader: AnyLoader) -> tuple[Any, torch.Tensor | None]:
        """Return ``batch`` with a label for each draw, and the network's row for each label.

        Without balanced seeds, or if no seed was drawn twice, the result is ``batch`` and None. Rows of a task table
        without times may have one node several times.
        """
        if isinstance(self.rows, LearnedTable):
            return batch, batch.row_seeds
        if self.rows.balanced is None:
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
        """Return the training rows."""
        return self.rows.seeds(sampling, are_named=self.spec.has_types)

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if a split's outputs and labels do not fit, next to the inference or to the metric."""
        num_rows = self.rows.most_rows()
        held = self._held_bytes(num_rows)
        if held:
            # The inference has ended when the metric, or the summary of all metrics, is computed.
            scratch = max(metric.bytes_per_score for metric in METRICS.values() if self.kind in metric.kinds)
            needed = held + scratch * num_rows + _SUMMARY_BYTES
            if needed > inference.memory_budget_bytes:
                raise BudgetError(
                    f"the scores and labels of {num_rows:,} {self.rows.noun}, with a metric of them, take "
                    f"{format_bytes(needed)} of {format_bytes(inference.memory_budget_bytes)} for an evaluation",
                    short_bytes=needed - inference.memory_budget_bytes,
                )
        left = _beside(inference, held)
        self.rows.require_memory(model, left)
        if self._smoothed_dataset is not None:
            require_smoothing(model, left, self._smoothed_dataset, is_binary=self.kind == "binary")

    def score(
        self, split: Split, model: Any, inference: HeteroInference, on_progress: Callable[[float], None]
    ) -> Evaluation:
        """Return the metric on the split's rows. Correct and smooth follows the network in the test alone."""
        rows, _ = self.rows.known(split)
        if not len(rows):
            return Evaluation(score=None)
        left = self.rows.inference(split, _beside(inference, self._held_bytes(len(rows))))
        found = self._scored(split, model, left, on_progress)
        if split == "valid" or self._smoothed_dataset is None:
            return found
        beside = _beside(inference, self._held_bytes(self.rows.most_rows()))
        labels = TrainingLabels.of(self._smoothed_dataset, is_binary=self.kind == "binary")
        with smoothed(model, beside, labels, on_progress) as outputs:
            valid = self._scored("valid", model, outputs, on_progress).score
            test = self._scored("test", model, outputs, on_progress)
        return replace(found, summary=test.summary, behind=Scores(valid=valid, test=test.score))

    @property
    def _smoothed_dataset(self) -> Dataset | None:
        """The dataset whose training labels correct and smooth reads behind the network; None for other models."""
        return self.rows.dataset if self.spec.encoder.config.name == CORRECT_AND_SMOOTH else None

    def _scored(
        self, split: Split, model: Any, inference: Inference, on_progress: Callable[[float], None]
    ) -> Evaluation:
        """Return the metric on the split's rows of the outputs of ``inference``."""
        rows, labels = self.rows.known(split)
        if not len(rows):
            return Evaluation(score=None)
        outputs: NDArray[Any]
        if self.kind == "classes":
            outputs = predict_classes(model, inference, rows, on_progress)
        else:
            outputs = predict_outputs(model, inference, rows, on_progress).reshape(labels.shape)
        return Evaluation(
            score=self._measured(outputs, labels).value,
            summary=lambda: self._summary(split, outputs, labels),
        )

    def _measured(self, outputs: NDArray[Any], labels: NDArray[Any]) -> Score:
        """Return the metric of ``outputs`` for ``labels``, of the same shape."""
        return self.measure.compute(outputs, labels, names=self._names, threshold=_LOGIT)

    def _summary(self, split: Split, outputs: NDArray[Any], labels: NDArray[Any]) -> Mapping[str, Any]:
        """Return the content of ``scores.json``."""
        # This import is late: a run without a folder needs no summary.
        from gloader.training.score_summary import score_summary

        names = self.rows.owner.label_names if self.kind == "classes" else self._names
        are_logits = self.kind in ("binary", "multilabel")
        return score_summary(self.kind, outputs, labels, names, are_logits=are_logits) | {"split": split}

    @property
    def _names(self) -> Sequence[str] | None:
        """The names of the k label columns; None without names, and for labels that are classes."""
        labelled = self.rows.owner
        return None if labelled.label_kind == "classes" else labelled.label_names

    def _held_bytes(self, num_rows: int) -> int:
        """Return the bytes of the outputs and labels of ``num_rows`` rows. Classes of nodes count elsewhere."""
        if self.kind == "classes":
            # A table's rows may be many more than the nodes: their number, label and prediction, and the label as read.
            return 32 * num_rows if isinstance(self.rows, LearnedTable) else 0
        is_int = self.rows.owner.label_kind == "classes"
        return num_rows * self.spec.encoder.out_dim * (4 + (8 if is_int else 4))


def _objective(kind: LabelKind, rows: LearnedRows, class_weights: str) -> Objective:
    """Return the loss for labels of ``kind``. Reads the labels of the training rows, except for equal classes."""
    mean_weight = rows.mean_weight()
    if kind in ("classes", "binary"):
        num_classes = rows.owner.num_classes if kind == "classes" else 2
        weights = None
        if class_weights != "none":
            labels = np.concatenate([plain_classes(part) for part in rows.training_labels()])
            weights = class_weights_of(class_weights, labels, num_classes)
        if kind == "classes":
            return NodeClasses(weights, mean_weight=mean_weight)
        return BinaryClasses(weights, mean_weight=mean_weight)
    width = rows.owner.label_width
    has_unknown = any(bool(np.isnan(labels).any()) for labels in rows.training_labels())
    return LabelColumns(
        width, has_accuracy=kind == "multilabel", is_uneven=has_unknown, mean_weight=mean_weight
    )


def _beside(inference: HeteroInference, num_bytes: int) -> HeteroInference:
    """Return ``inference`` with ``num_bytes`` less memory."""
    if not num_bytes:
        return inference
    return replace(inference, memory_budget_bytes=inference.memory_budget_bytes - num_bytes)
