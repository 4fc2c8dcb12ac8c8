"""The rows that a node task learns: the labelled nodes of a dataset, or the rows of a task table.

Both have rows for training, validation and test, with labels of one kind. `LearnedNodes` are nodes of the labelled
type, with the dataset's splits. `LearnedTable` are the tables NAME.train, NAME.valid and NAME.test of a task. Shapes: n
rows of a split, k labels of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np

from gloader.dataset.values import has_label
from gloader.errors import ConfigError
from gloader.pipeline.seeds import plan_training_seeds
from gloader.training.table_inference import (
    NodeRowInference,
    RowInference,
    column_parts,
    evaluated_settings,
    forward_bytes_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.config import LoaderSettings, SamplingSettings, TrainSettings
    from gloader.core.order import DrawnSeeds
    from gloader.dataset import Dataset
    from gloader.dataset.tables import NodeTable
    from gloader.dataset.task_table import TaskTable
    from gloader.pipeline.seeds import SeedPlan
    from gloader.training.evaluate import Inference
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.training.model_spec import EncoderSpec
    from gloader.training.task import Split
    from gloader.types import IdArray

SPLITS: Final[tuple[Split, ...]] = ("valid", "test")
_STEP_LABELS: Final = 1 << 20  # labels that are read at once, so that temporary arrays stay small


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedNodes:
    """The nodes of a dataset's splits.

    Parameters
    ----------
    dataset : the dataset
    balanced : the training nodes, drawn equally often from every class; None takes each once per epoch
    """

    dataset: Dataset
    balanced: DrawnSeeds | None = None

    noun: ClassVar[str] = "nodes"  # the rows, for messages

    @property
    def owner(self) -> NodeTable:
        """The labelled type."""
        return self.dataset.labelled

    @property
    def loader_keywords(self) -> dict[str, Any]:
        """The balanced seeds, or the training nodes."""
        return {"seeds": self.balanced}

    def seeds(self, sampling: SamplingSettings, *, are_named: bool) -> SeedPlan:
        """Return the training nodes."""
        return plan_training_seeds(self.dataset, sampling, are_named=are_named, drawn=self.balanced)

    def mean_weight(self) -> None:
        """Return None: nodes have no weights."""

    def training_labels(self) -> Iterator[NDArray[Any]]:
        """Yield the labels of the training nodes, (.,) or (., k), a part at a time."""
        nodes = self.dataset.train
        step = max(1, _STEP_LABELS // self.owner.label_width)
        for start in range(0, len(nodes), step):
            yield self.dataset.labels_of(nodes[start : start + step])

    def most_rows(self) -> int:
        """Return the number of nodes of the larger evaluated split."""
        return max(len(self.dataset.valid), len(self.dataset.test))

    def known(self, split: Split) -> tuple[IdArray, NDArray[Any]]:
        """Return the nodes of a split with a label, and their labels."""
        nodes = self.dataset.valid if split == "valid" else self.dataset.test
        labels = self.dataset.labels_of(nodes)
        is_known = has_label(labels)
        return nodes[is_known], labels[is_known]

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if the layers do not fit the budget of ``inference``."""
        inference.require_memory(model, num_outputs=self.most_rows())

    def inference(self, split: Split, inference: HeteroInference) -> Inference:  # noqa: ARG002 - one for all nodes
        """Return ``inference``, which computes layer by layer over all neighbours."""
        return inference


@dataclass(frozen=True, kw_only=True)
class LearnedTable:
    """The rows of a task's tables. The tables of the evaluated splits may be absent, or have no labels.

    Parameters
    ----------
    dataset : the dataset
    name : the task's name
    spec : the network's specification
    settings : the settings of the training's loader
    batch_size : the rows of a training step on all ranks together
    """

    dataset: Dataset
    name: str
    spec: EncoderSpec
    settings: LoaderSettings
    batch_size: int

    noun: ClassVar[str] = "rows"  # the rows, for messages

    @classmethod
    def of(
        cls, settings: TrainSettings, dataset: Dataset, spec: EncoderSpec, *, world_size: int
    ) -> LearnedTable:
        """Return the rows for a run with ``settings``, on ``world_size`` ranks.

        Raises
        ------
        ConfigError
            A training row has no label, or the tables of the task have other labels, nodes or times.
        """
        assert settings.table is not None  # noqa: S101 - a run that learns a table
        learned = cls(
            dataset=dataset,
            name=settings.table,
            spec=spec,
            settings=settings.loader,
            batch_size=settings.loader.sampling.batch_size * world_size,
        )
        for table in learned._evaluated.values():
            _require_alike(learned.owner, table)
        without = sum(int((~has_label(labels)).sum()) for labels in learned.training_labels())
        if without:
            raise ConfigError(
                f"{without:,} of the {learned.owner.num_rows:,} rows of table {learned.owner.name!r} have no label; "
                "training rows need one, so leave these rows out of the table"
            )
        return learned

    @property
    def owner(self) -> TaskTable:
        """The table of the training rows."""
        return self.dataset.task_table(f"{self.name}.train")

    @property
    def loader_keywords(self) -> dict[str, Any]:
        """The name of the training rows' table."""
        return {"table": self.owner.name}

    def seeds(self, sampling: SamplingSettings, *, are_named: bool) -> SeedPlan:
        """Return the rows of the training table."""
        return plan_training_seeds(self.dataset, sampling, are_named=are_named, table=self.owner.name)

    def training_labels(self) -> Iterator[NDArray[Any]]:
        """Yield the labels of the training rows."""
        return column_parts(self.owner, "labels")

    def mean_weight(self) -> float | None:
        """Return the mean weight of the training rows; None if they have no weights.

        Raises
        ------
        ConfigError
            All weights are 0, so that nothing is learned.
        """
        if not self.owner.has_weights:
            return None
        total = sum(float(part.sum(dtype=np.float64)) for part in column_parts(self.owner, "weights"))
        if not total:
            raise ConfigError(
                f"all weights of the rows of table {self.owner.name!r} are 0, so that no row is learned; give some "
                "rows a weight above 0, or leave the weights out"
            )
        return total / self.owner.num_rows

    def known(self, split: Split) -> tuple[IdArray, NDArray[Any]]:
        """Return the numbers (n,) of a table's rows with a label, ascending, and their labels (n,) or (n, k)."""
        table = self._evaluated.get(split)
        if table is None:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        labels = np.concatenate(list(column_parts(table, "labels")))
        is_known = has_label(labels)
        return np.flatnonzero(is_known), labels[is_known]

    def most_rows(self) -> int:
        """Return the number of rows of the larger evaluated table."""
        return max((table.num_rows for table in self._evaluated.values()), default=0)

    def require_memory(self, model: Any, inference: HeteroInference) -> None:
        """Raise BudgetError if the rows' trees, or for rows without times the layers, do not fit."""
        for split in self._evaluated:
            self.inference(split, inference).require_memory(model)

    def inference(self, split: Split, inference: HeteroInference) -> RowInference | NodeRowInference:
        """Return what computes the outputs of a table's rows, within the budget of ``inference``."""
        table = self._evaluated[split]
        if not table.has_times:
            return NodeRowInference.of(table, inference)
        return RowInference(
            dataset=self.dataset,
            table=table,
            spec=self.spec,
            settings=self._settings_of(table),
            memory_budget_bytes=inference.memory_budget_bytes,
            forward_bytes=self._forward_bytes,
            embeddings=inference.embeddings,
        )

    @cached_property
    def _evaluated(self) -> dict[Split, TaskTable]:
        """The tables of the evaluated splits that have rows and labels."""
        tables = {split: self.dataset.task_tables.get(f"{self.name}.{split}") for split in SPLITS}
        return {split: each for split, each in tables.items() if each and each.num_rows and each.label_kind}

    @property
    def unscored(self) -> list[str]:
        """The evaluated tables that give no score, each with the reason."""
        found = []
        for split in SPLITS:
            if split not in self._evaluated:
                table = self.dataset.task_tables.get(f"{self.name}.{split}")
                lacks = (
                    "is not there" if table is None else "has no labels" if table.num_rows else "has no rows"
                )
                found.append(f"table '{self.name}.{split}', which {lacks}")
        return found

    def _settings_of(self, table: TaskTable) -> LoaderSettings:
        """Return the settings of a loader that evaluates ``table``."""
        return evaluated_settings(self.settings, table, batch_size=self.batch_size)

    @cached_property
    def _forward_bytes(self) -> int:
        """The bytes of a forward pass, in the largest batch of all evaluated rows."""
        return max(
            forward_bytes_of(self.dataset, table, self.spec, self._settings_of(table))
            for table in self._evaluated.values()
        )


LearnedRows: TypeAlias = LearnedNodes | LearnedTable


def _require_alike(train: TaskTable, other: TaskTable) -> None:
    """Raise ConfigError if a network that learns the rows of ``train`` cannot be scored on those of ``other``."""
    for what, (learned, scored) in {
        "nodes of type": (train.node_type, other.node_type),
        "times": (train.has_times, other.has_times),
        "labels of kind": (train.label_kind, other.label_kind),
        "columns of labels": (train.label_width, other.label_width),
        "classes": (train.num_classes, max(train.num_classes, other.num_classes)),
    }.items():
        if learned != scored:
            raise ConfigError(
                f"table {other.name!r} has rows of another kind than {train.name!r}: {what} {scored} in place of "
                f"{learned}; prepare the tables of a task with equal types, kinds and classes"
            )
