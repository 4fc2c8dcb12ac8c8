"""Accuracy and predicted classes of nodes, computed with all neighbours of each node instead of sampled ones.

`evaluate` gives the accuracy on several splits, `accuracy` on one set of nodes, and `predict_classes` the classes
themselves. `HeteroInference` does the computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gloader.errors import DivergedError
from gloader.training.process import eager_release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gloader.models import GraphNetwork
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.types import IdArray


def accuracy(
    model: GraphNetwork,
    inference: HeteroInference,
    nodes: IdArray,
    labels: IdArray,
    *,
    on_progress: Callable[[float], None] = lambda _: None,
) -> float | None:
    """Return the share of correctly predicted nodes, over all neighbours; None if no node has a label.

    Parameters
    ----------
    model : the network; its mode (training or evaluation) is restored
    inference : graph, features and memory
    nodes : (n,) int64
    labels : (n,) int64 classes of ``nodes``; nodes with a negative label are unlabelled and left out
    on_progress : called with the finished share, 0 to 1
    """
    is_known = labels >= 0
    if not is_known.any():
        return None
    predicted = predict_classes(model, inference, nodes[is_known], on_progress)
    return float((predicted == labels[is_known]).mean())


def evaluate(
    model: GraphNetwork,
    inference: HeteroInference,
    labels: IdArray,
    splits: Mapping[str, IdArray],
    *,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[str, float | None]:
    """Return the accuracy on each split over all neighbours, in one pass; None for a split without labels.

    Parameters
    ----------
    model : the network; its mode is restored
    inference : graph, features and memory
    labels : (N,) int64 classes; nodes with a negative label are unlabelled and left out
    splits : names and arrays of node ids; a node may be in several
    on_progress : called with the finished share, 0 to 1
    """
    known = {name: nodes[labels[nodes] >= 0] for name, nodes in splits.items()}
    # Splits may share nodes; each node is computed once.
    nodes = np.unique(np.concatenate([np.empty(0, np.int64), *known.values()]))
    if len(nodes) == 0:
        return dict.fromkeys(splits)
    predicted = predict_classes(model, inference, nodes, on_progress)
    is_right = predicted == labels[nodes]
    return {
        name: float(is_right[np.searchsorted(nodes, ids)].mean()) if len(ids) else None
        for name, ids in known.items()
    }


def predict_classes(
    model: GraphNetwork, inference: HeteroInference, nodes: IdArray, on_progress: Callable[[float], None]
) -> IdArray:
    """Return the most likely class for each of ``nodes``, (n,) int64, over all neighbours.

    Parameters
    ----------
    model, inference, on_progress : see `accuracy`
    nodes : (n,) int64

    Raises
    ------
    DivergedError
        Logits are NaN, so no class is the most likely. The error counts the nodes.
    """
    predicted = np.empty(len(nodes), dtype=np.int64)

    def take(positions: slice, logits: torch.Tensor) -> None:
        predicted[positions] = torch.argmax(logits, dim=1).numpy()

    _for_logits(model, inference, nodes, on_progress, take)
    return predicted


def predict_outputs(
    model: GraphNetwork, inference: HeteroInference, nodes: IdArray, on_progress: Callable[[float], None]
) -> NDArray[np.float32]:
    """Return the network's outputs for each of ``nodes``, (n, width) float32, over all neighbours.

    Parameters
    ----------
    model, inference, on_progress : see `accuracy`
    nodes : (n,) int64

    Raises
    ------
    DivergedError
        Outputs are NaN. The error counts the nodes.
    """
    outputs = np.empty((len(nodes), model.out_dim), dtype=np.float32)

    def take(positions: slice, logits: torch.Tensor) -> None:
        outputs[positions] = logits.numpy()

    _for_logits(model, inference, nodes, on_progress, take)
    return outputs


def _for_logits(
    model: GraphNetwork,
    inference: HeteroInference,
    nodes: IdArray,
    on_progress: Callable[[float], None],
    take: Callable[[slice, torch.Tensor], None],
) -> None:
    """Call ``take`` with ranges of positions in ``nodes`` and their logits, (., width); DivergedError if any are NaN."""
    num_bad, first_bad = 0, -1  # nodes with NaN logits, and the first of them
    # The arrays of an inference are large and have many sizes. Freed at once, they leave no holes in the heap, which
    # would exceed the memory budget.
    with eager_release():
        for positions, logits in inference.logits(model, nodes, on_progress):
            take(positions, logits)
            # The maximum of an array with a NaN is NaN.
            is_bad = logits.amax(dim=1).isnan().numpy()
            if is_bad.any():
                first_bad = int(nodes[positions][is_bad.argmax()]) if first_bad < 0 else first_bad
                num_bad += int(np.count_nonzero(is_bad))
    if num_bad:
        raise DivergedError(
            f"the logits of {num_bad:,} of {len(nodes):,} nodes are NaN, the first of node {first_bad}: features are "
            "NaN, or the network diverged; clean them (gloader prepare refuses them without --allow-nan), or train "
            "with a lower --lr"
        )
