"""Whether a dataset has nodes to learn classes from, looked at before anything is compiled or opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.dataset import Dataset


def require_training_nodes(dataset: Dataset) -> None:
    """Raise ConfigError where no node of ``dataset`` is trained on; reads none of its arrays."""
    if not dataset.labelled.split_sizes["train"]:
        instead = "; predict its edges with --task link" if dataset.link_tables else ""
        raise ConfigError(f"{dataset.location} has no training nodes, whose labels would be learned{instead}")
