"""Accuracy and predictions from all neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from gloader.dataset.topology import open_topology, require_offsets
from gloader.errors import CheckpointError
from gloader.memory.available import default_budget_bytes
from gloader.memory.plan import topology_share
from gloader.training.inference.layerwise_inference import LayerwiseInference
from gloader.training.model_spec import HeteroModelSpec
from gloader.training.process import eager_release

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from gloader.dataset import Dataset
    from gloader.models import GraphNetwork, HeteroNetwork
    from gloader.training.checkpoint.save import Checkpoint
    from gloader.types import IdArray

    AnyNetwork = GraphNetwork | HeteroNetwork


class Inference(Protocol):
    """Inference from all neighbours over a graph, its features and a memory budget, of one node type or of several."""

    def logits(
        self, model: Any, nodes: IdArray, on_progress: Callable[[float], None] = ..., /
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the logits of ``nodes`` (n,), of the type that has labels: a range of positions, and its (., classes).

        Parameters
        ----------
        model : a network for such graphs
        nodes : (n,) int64
        on_progress : called with the share that is done, 0 to 1
        """
        ...

    def require_memory(self, model: Any, /, *, num_outputs: int) -> None:
        """Raise BudgetError where the logits of so many nodes would not fit the budget; nothing is read."""
        ...


def accuracy(
    model: AnyNetwork,
    inference: Inference,
    nodes: IdArray,
    labels: IdArray,
    *,
    on_progress: Callable[[float], None] = lambda _: None,
) -> float | None:
    """Return the share of nodes whose class is predicted right from all neighbours; None if none has a label.

    Parameters
    ----------
    model : the network; left in the mode it was in
    inference : graph, features and memory
    nodes : (n,) int64
    labels : (n,) int64 classes of ``nodes``, negative for unlabelled ones, which are left out
    on_progress : called with the share that is done, 0 to 1
    """
    is_known = labels >= 0
    if not is_known.any():
        return None
    predicted = _predict(model, inference, nodes[is_known], on_progress)
    return float((predicted == labels[is_known]).mean())


def evaluate(
    model: AnyNetwork,
    inference: Inference,
    labels: IdArray,
    splits: Mapping[str, IdArray],
    *,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[str, float | None]:
    """Return the accuracy on each split from all neighbours, in one pass; None for a split without labels.

    Parameters
    ----------
    model : the network; left in the mode it was in
    inference : graph, features and memory
    labels : (N,) int64 classes, negative for unlabelled nodes, which are left out
    splits : names and arrays of node ids; a node may be in several
    on_progress : called with the share that is done, 0 to 1
    """
    known = {name: nodes[labels[nodes] >= 0] for name, nodes in splits.items()}
    # Splits may share nodes; each is computed once.
    nodes = np.unique(np.concatenate([np.empty(0, np.int64), *known.values()]))
    if len(nodes) == 0:
        return dict.fromkeys(splits)
    predicted = _predict(model, inference, nodes, on_progress)
    is_right = predicted == labels[nodes]
    return {
        name: float(is_right[np.searchsorted(nodes, ids)].mean()) if len(ids) else None
        for name, ids in known.items()
    }


def predict(
    dataset: Dataset,
    checkpoint: Checkpoint,
    *,
    memory_budget_bytes: int | None = None,
    device: str | torch.device = "cpu",
    scratch: Path | None = None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> IdArray:
    """Return the most likely class of every node, (N,) int64, from all neighbours.

    Nodes count as in ``dataset``, which is where its labels and splits count them too;
    `Dataset.in_original_order` puts the result in the order of the source.

    Parameters
    ----------
    dataset : whose nodes are classified
    checkpoint : the network, with its best weights
    memory_budget_bytes : for everything held, the topology included; defaults to half of what is free
    device : computes
    scratch : folder for activations that do not fit; defaults to the system's temporary folder
    on_progress : called with the share that is done, 0 to 1

    Raises
    ------
    CheckpointError
        The checkpoint belongs to a dataset with other features or classes.
    BudgetError
        The budget is too small.
    """
    spec = checkpoint.spec
    if isinstance(spec, HeteroModelSpec):
        raise CheckpointError(f"the checkpoint is of a model for several node types, {spec.config.name!r}")
    if (spec.in_dim, spec.num_classes) != (dataset.feature_dim, dataset.num_classes):
        raise CheckpointError(
            f"the checkpoint maps {spec.in_dim} features to {spec.num_classes} classes; dataset "
            f"{dataset.name} has {dataset.feature_dim} and {dataset.num_classes}"
        )
    budget = default_budget_bytes() if memory_budget_bytes is None else memory_budget_bytes
    share = topology_share(budget)
    if dataset.topology_bytes > share:
        require_offsets(dataset, budget_bytes=budget)
    with (
        # Of edges that do not fit no page is kept: each layer reads all of them, in order.
        open_topology(dataset, max_bytes=share if dataset.topology_bytes <= share else 0) as topology,
        dataset.open_features() as features,
    ):
        inference = LayerwiseInference(
            graph=topology,
            features=features,
            memory_budget_bytes=budget - topology.held_bytes,
            scratch=scratch,
        )
        everyone = np.arange(dataset.num_nodes, dtype=np.int64)
        return _predict(checkpoint.model().to(device), inference, everyone, on_progress)


def _predict(
    model: AnyNetwork, inference: Inference, nodes: IdArray, on_progress: Callable[[float], None]
) -> IdArray:
    predicted = np.empty(len(nodes), dtype=np.int64)
    # Tables and slabs are large and of many sizes: kept in the heap, they would leave holes that the budget
    # does not count.
    with eager_release():
        for positions, logits in inference.logits(model, nodes, on_progress):
            predicted[positions] = torch.argmax(logits, dim=1).numpy()
    return predicted
