"""Accuracy and predictions of nodes, computed with all neighbours of each node instead of sampled ones.

`evaluate` gives the accuracy on several splits, `predict_classes` the classes themselves, and `predict_outputs` the
network's outputs. `logits_in_order` yields the outputs of all nodes. `HeteroInference` does the computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from gloader.core.ids import node_at_id
from gloader.errors import DivergedError
from gloader.training.process import eager_release

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from numpy.typing import NDArray

    from gloader.models import GraphNetwork
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.types import IdArray


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
    model : the network; its mode (training or evaluation) is restored
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
    model, inference, on_progress : see `evaluate`
    nodes : (n,) int64

    Raises
    ------
    DivergedError
        Logits are NaN, so no class is the most likely. The error counts the nodes.
    """
    predicted = np.empty(len(nodes), dtype=np.int64)

    def take(positions: slice, logits: torch.Tensor) -> torch.Tensor:
        highest, classes = torch.max(logits, dim=1)
        predicted[positions] = classes.numpy()
        return highest

    _for_logits(model, inference, nodes, on_progress, take)
    return predicted


def predict_outputs(
    model: GraphNetwork, inference: HeteroInference, nodes: IdArray, on_progress: Callable[[float], None]
) -> NDArray[np.float32]:
    """Return the network's outputs for each of ``nodes``, (n, width) float32, over all neighbours.

    Parameters
    ----------
    model, inference, on_progress : see `evaluate`
    nodes : (n,) int64

    Raises
    ------
    DivergedError
        Outputs are NaN. The error counts the nodes.
    """
    outputs = np.empty((len(nodes), model.out_dim), dtype=np.float32)

    def take(positions: slice, logits: torch.Tensor) -> torch.Tensor:
        outputs[positions] = logits.numpy()
        return logits.amax(dim=1)

    _for_logits(model, inference, nodes, on_progress, take)
    return outputs


def logits_in_order(
    model: GraphNetwork,
    inference: HeteroInference,
    original_ids: IdArray | None,
    on_progress: Callable[[float], None],
) -> Generator[torch.Tensor]:
    """Yield consecutive rows (., width) of the network's outputs for all nodes, in the order of their original ids.

    Parameters
    ----------
    model, inference, on_progress : see `evaluate`
    original_ids : (N,) the id that each node had before the preparation; None if nodes kept their ids

    Raises
    ------
    DivergedError
        Outputs are NaN. Raised at the end; the first chunk with a NaN and those behind it are not yielded.
    """
    num_nodes = inference.graph.num_nodes[inference.target]
    order = node_at_id(original_ids)
    bad = _NanRows(num_nodes)
    for positions, logits in inference.logits(
        model, np.arange(num_nodes, dtype=np.int64), on_progress, order=order
    ):
        bad.count(logits.amax(dim=1), positions.start)
        if not bad.number:
            yield logits
    bad.require_none(lambda position: position)


class _NanRows:
    """Counts the rows of logits that are NaN, of ``num_rows``."""

    def __init__(self, num_rows: int) -> None:
        self.number = 0
        self._num_rows = num_rows
        self._first = -1  # position of the first such row

    def count(self, highest: torch.Tensor, start: int) -> None:
        """Count the rows at ``start`` and behind it, by their maxima (m,): that of a row with a NaN is NaN."""
        is_bad = highest.isnan().numpy()
        if is_bad.any():
            self._first = start + int(is_bad.argmax()) if self._first < 0 else self._first
            self.number += int(np.count_nonzero(is_bad))

    def require_none(self, node_at: Callable[[int], int]) -> None:
        """Raise DivergedError if a row was NaN. ``node_at`` returns the node's id for a position."""
        if self.number:
            raise DivergedError(
                f"the logits of {self.number:,} of {self._num_rows:,} nodes are NaN, the first of node "
                f"{node_at(self._first)}: features are NaN, or the network diverged; clean them (gloader prepare "
                "refuses them without --allow-nan), or train with a lower --lr"
            )


def _for_logits(
    model: GraphNetwork,
    inference: HeteroInference,
    nodes: IdArray,
    on_progress: Callable[[float], None],
    take: Callable[[slice, torch.Tensor], torch.Tensor],
) -> None:
    """Call ``take`` with ranges of positions in ``nodes`` and their logits, (., width). It returns each row's maximum.

    Raises DivergedError if logits are NaN.
    """
    bad = _NanRows(len(nodes))
    # The arrays of an inference are large and have many sizes. Freed at once, they leave no holes in the heap, which
    # would exceed the memory budget.
    with eager_release():
        for positions, logits in inference.logits(model, nodes, on_progress):
            bad.count(take(positions, logits), positions.start)
    bad.require_none(lambda position: int(nodes[position]))
