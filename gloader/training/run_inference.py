"""Inference over the graph and the features of a run's loader, for its evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from gloader.dataset.tables import ONLY_EDGES
from gloader.loader import Loader
from gloader.training.inference.hetero_inference import HeteroInference
from gloader.training.inference.layerwise_inference import LayerwiseInference
from gloader.training.machine_rows import MachineRows
from gloader.training.model_spec import HeteroModelSpec, edge_feature_rows

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.dataset import Dataset
    from gloader.training.evaluate import Inference
    from gloader.training.run_budget import RunBudget
    from gloader.training.task import Task
    from gloader.types import FeatureSource


def require_inference(task: Task, dataset: Dataset, budget: RunBudget, loader: Any) -> None:
    """Raise BudgetError where the evaluations of a run would not fit their share; nothing is read.

    Parameters
    ----------
    task, dataset : of the run
    budget : its shares
    loader : as of `inference_of`
    """
    with torch.device("meta"):
        model = task.spec.build()
    # Rows of other machines arrive beside what is computed.
    arriving = 0 if dataset.ranges is None else MachineRows.memory_bytes
    memory = max(budget.phase_bytes - arriving, 0)
    task.require_memory(model, inference_of(task, dataset, loader, memory_bytes=memory))


def inference_of(
    task: Task,
    dataset: Dataset,
    loader: Any,
    *,
    memory_bytes: int,
    rows: MachineRows | None = None,
    scratch: Path | None = None,
) -> Inference:
    """Return inference with what a loader has of a dataset.

    Parameters
    ----------
    task : of the run
    dataset : of the loader
    loader : one whose batches the model takes, or what is planned for one: it has ``graph`` and ``features``
    memory_bytes : for all that is held
    rows : of other machines, which take a part of that; None: all rows are here
    scratch : folder for what does not fit
    """
    # What a loader has of graph and features is of the kind that its batches are, and these what the model takes.
    spec = task.spec.encoder
    features = features_of(task, dataset, loader)
    if rows is not None:
        features = {name: rows.source(name) for name in features}
        memory_bytes = max(memory_bytes - rows.memory_bytes, 0)
    if isinstance(spec, HeteroModelSpec):
        return HeteroInference(
            graph=loader.graph,
            features={name: each for name, each in features.items() if name in spec.schema.num_nodes},
            target=spec.schema.targets[0],
            memory_budget_bytes=memory_bytes,
            scratch=scratch,
        )
    (name,) = dataset.node_types
    told = edge_feature_rows(dataset) if spec.uses_edge_features else None
    return LayerwiseInference(
        graph=loader.graph,
        features=features[name],
        memory_budget_bytes=memory_bytes,
        scratch=scratch,
        tier=loader.device_tier if isinstance(loader, Loader) else loader.device_tiers.get(name),
        edge_features=None if told is None else features.get(told.name),
    )


def features_of(task: Task, dataset: Dataset, loader: Any) -> dict[str, FeatureSource]:
    """Return what the loader has of features, by the names of their tables."""
    if isinstance(loader.features, Mapping):
        return dict(loader.features)
    (name,) = dataset.node_types
    told = loader.edge_features if task.spec.encoder.uses_edge_features else None
    return {name: loader.features} | ({} if told is None else {ONLY_EDGES: told})
