"""Accuracy and predictions of nodes, computed with all neighbours of each node instead of sampled ones.

`evaluate` gives the accuracy on several splits, `predict_classes` the classes themselves, and `predict_outputs` the
network's outputs. `logits_in_order` yields the outputs of all nodes. `HeteroInference` does the computation, or
`gloader.training.correct_and_smooth` has done it: each is an `Inference`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.core.ids import node_at_id
from gloader.errors import DivergedError
from gloader.training.process import eager_release

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import torch
    from numpy.typing import NDArray

    from gloader.models import GraphNetwork
    from gloader.training.inference.layerwise_inference import HeteroInference
    from gloader.types import IdArray

    Progress = Callable[[float], None]


class Inference(Protocol):
    """Computes a network's outputs for rows: nodes, or the rows of a task table."""

    def logits(
        self,
        network: GraphNetwork,
        rows: IdArray,
        on_progress: Progress = ...,
        /,
        *,
        order: IdArray | None = None,
    ) -> Any:
        """Yield position ranges and their outputs, (., width), for ``rows`` (n,); see `HeteroInference.logits`."""
        ...


def evaluate(
    model: GraphNetwork,
    inference: HeteroInference,
    labels: IdArray,
    splits: Mapping[str, IdArray],
    *,
    on_progress: Progress = lambda _: None,
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
    model: GraphNetwork, inference: Inference, nodes: IdArray, on_progress: Progress
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
    # The arrays of an inference are large and have many sizes. Freed at once, they leave no holes in the heap, which
    # would exceed the memory budget.
    with eager_release():
        for positions, logits in checked_logits(model, inference, nodes, on_progress):
            predicted[positions] = logits.max(dim=1).indices.numpy()
    return predicted


def predict_outputs(
    model: GraphNetwork, inference: Inference, nodes: IdArray, on_progress: Progress
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
    with eager_release():  # as in `predict_classes`
        for positions, logits in checked_logits(model, inference, nodes, on_progress):
            outputs[positions] = logits.numpy()
    return outputs


def logits_in_order(
    model: GraphNetwork,
    inference: Inference,
    num_nodes: int,
    original_ids: IdArray | None,
    on_progress: Progress,
) -> Generator[torch.Tensor]:
    """Yield consecutive rows (., width) of the network's outputs for all nodes, in the order of their original ids.

    Parameters
    ----------
    model, inference, on_progress : see `evaluate`
    num_nodes : N
    original_ids : (N,) the id that each node had before the preparation; None if nodes kept their ids

    Raises
    ------
    DivergedError
        Outputs are NaN. Raised at the end; the first chunk with a NaN and those behind it are not yielded.
    """
    nodes = np.arange(num_nodes, dtype=np.int64)
    order = node_at_id(original_ids)
    for _, logits in checked_logits(model, inference, nodes, on_progress, order=order):
        yield logits


def checked_logits(
    model: GraphNetwork,
    inference: Inference,
    nodes: IdArray,
    on_progress: Progress,
    *,
    order: IdArray | None = None,
) -> Generator[tuple[slice, torch.Tensor]]:
    """Yield ranges of result rows and their logits, (., width), up to the first range with a NaN.

    ``order`` is as in `HeteroInference.logits`. Raises DivergedError at the end if logits are NaN, with their number.
    """
    num_bad, first = 0, 0
    for positions, logits in inference.logits(model, nodes, on_progress, order=order):
        is_bad = logits.amax(dim=1).isnan().numpy()  # the maximum of a row with a NaN is NaN
        if not num_bad and is_bad.any():
            first = positions.start + int(is_bad.argmax())
        num_bad += int(np.count_nonzero(is_bad))
        if not num_bad:
            yield positions, logits
    if num_bad:
        raise DivergedError(
            f"the logits of {num_bad:,} of {len(nodes):,} nodes are NaN, the first of node {nodes[first]}: features "
            "are NaN, or the network diverged; clean them (gloader prepare refuses them without --allow-nan), or train "
            "with a lower --lr"
        )
