"""Checks that a dataset suits a training run, made before kernels are compiled and torch is imported.

`require_dataset` makes all checks. The single checks also serve the modules that open models and tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.config import HETERO_MODELS
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.config import TrainSettings
    from gloader.dataset import Dataset


def require_dataset(settings: TrainSettings, dataset: Dataset) -> None:
    """Check that ``dataset`` has the training data for ``settings``; reads none of its arrays.

    Raises
    ------
    ConfigError
        There are no training nodes, there is no link table (edges to predict), or the model does not fit the dataset or
        the setting ``compile``.
    """
    if settings.task == "link":
        require_link_tables(dataset)
    else:
        require_training_nodes(dataset)
    require_model(settings, dataset)
    require_no_compile(settings)


def require_no_compile(settings: TrainSettings) -> None:
    """Raise ConfigError if a model for several node types is to be compiled by torch."""
    # Measured: two minutes for an epoch of seven batches. Some batches have empty relations, and torch compiles
    # anew for each such case.
    if settings.step.compile and settings.model.name in HETERO_MODELS:
        raise ConfigError(
            f"--compile is for models of graphs of one node type, and {settings.model.name!r} is for several; leave it "
            "out"
        )


def require_training_nodes(dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` has no training nodes."""
    if not dataset.labelled.split_sizes["train"]:
        instead = "; predict its edges with --task link" if dataset.link_tables else ""
        raise ConfigError(f"{dataset.location} has no training nodes with labels to learn{instead}")


def require_link_tables(dataset: Dataset) -> None:
    """Raise ConfigError if ``dataset`` has no link table."""
    if not dataset.link_tables:
        raise ConfigError(
            f"{dataset.location} has no link tables, and --task link predicts the edges of one; make some with "
            "`gloader prepare --edge-split 80/10/10`"
        )


def require_model(settings: TrainSettings, dataset: Dataset) -> None:
    """Raise ConfigError if the model of ``settings`` does not fit ``dataset``.

    A model of one node type accepts no other graph. "gine" needs edge features that the loader reads.
    """
    name = settings.model.name
    if name in HETERO_MODELS:
        return
    if dataset.kind == "hetero":
        raise ConfigError(
            f"model {name!r} is for graphs of one node type, and dataset {dataset.name} has "
            f"{len(dataset.node_types)}: {', '.join(dataset.node_types[:10])}; models for several are "
            f"{', '.join(HETERO_MODELS)}"
        )
    (table,) = dataset.edge_tables.values()
    is_read = settings.loader.sampling.edge_features != "none"
    if name == "gine" and (table.feature_rows is None or not is_read):
        lacking = (
            f"dataset {dataset.name} has none"
            if table.feature_rows is None
            else "edge_features='none' leaves them out"
        )
        raise ConfigError(f"model 'gine' needs edge features, and {lacking}; gat works without them")
