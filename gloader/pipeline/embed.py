"""Embed: the consumer's last step, which puts the trained rows of a batch into the batch.

An embedding is the trained rows of a node type. `EmbeddingRows` has loaded the rows of the batch into slots. Their
values are final only after the step of the batch before, so the copy is made at the moment when the training loop
receives the batch. A leaf is this copy, which receives a gradient. A frozen embedding is read, and not trained, by this
loader.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from gloader.core.near_names import Named
from gloader.types import LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.pipeline.node_rows import NodeRows
    from gloader.pipeline.send import SentBatch
    from gloader.pipeline.trained_embedding import TrainedEmbedding
    from gloader.types import AnyReadyBatch, Delivered


def try_with_rows(dims: Mapping[str, int], step: Callable[[Any], object], batch: Delivered) -> object:
    """Run a trial step of the model on ``batch`` with blank trained rows, ``dims`` columns for each type.

    The trial measures the device memory of a step, see `gloader.device.dry_step`.
    """
    typed = batch.typed
    leaves = {
        name: typed.x[name].new_zeros((len(typed.nodes[name]), dim)).requires_grad_()
        for name, dim in dims.items()
    }
    return step(_with_rows(batch, leaves))


class Embed:
    """Puts trained and frozen rows into the batches that the consumer hands out. For the training loop's thread.

    Parameters
    ----------
    trained : the embeddings that this loader trains, in the order of `SentBatch.slots`
    frozen : the embeddings that this loader reads
    place : the batches' device
    """

    def __init__(
        self, trained: Sequence[TrainedEmbedding], frozen: Sequence[NodeRows], place: torch.device
    ) -> None:
        self._trained = trained
        self._frozen = frozen
        self._place = place

    def require_done(self) -> None:
        """Raise StateError if an embedding was neither stepped nor skipped for the last batch."""
        for embedding in self._trained:
            embedding.require_done()

    def restart(self) -> None:
        """Forget the last batch of a run that has ended, and make the trained rows ready for another run."""
        for embedding in self._trained:
            embedding.restart()

    def process(self, sent: SentBatch, ready: Delivered) -> Delivered:
        """Return ``ready`` with its trained rows; ``sent`` has their slots."""
        if not self._trained and not self._frozen:
            return ready
        batch = ready.batch if isinstance(ready, LinkBatch) else ready
        leaves: dict[str, torch.Tensor] = {}
        for embedding, slots in zip(self._trained, sent.slots, strict=True):
            leaves[embedding.name] = embedding.deliver(batch.id, slots, self._place)
        nodes = batch.typed.nodes
        for frozen in self._frozen:
            leaves[frozen.node_type] = frozen.rows(nodes[frozen.node_type]).to(self._place)
        return _with_rows(ready, leaves)


def _with_rows(ready: Delivered, leaves: Mapping[str, torch.Tensor]) -> Delivered:
    """Return ``ready`` with ``leaves`` by node type, also as the last columns of ``x``."""
    embedded = Named(leaves.items())
    if isinstance(ready, LinkBatch):
        return replace(ready, batch=_filled(ready.batch, embedded))
    return _filled(ready, embedded)


def _filled(batch: AnyReadyBatch, embedded: Mapping[str, torch.Tensor]) -> AnyReadyBatch:
    if isinstance(batch, ReadyBatch):
        (leaf,) = embedded.values()
        return replace(batch, x=_beside(batch.x, leaf), embedded=embedded)
    x = {name: _beside(x, embedded[name]) if name in embedded else x for name, x in batch.x.items()}
    return replace(batch, x=Named(x.items()), embedded=embedded)


def _beside(x: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return the columns of ``x`` (U, F), then those of ``leaf``; without features the leaf itself."""
    return torch.cat([x, leaf], 1) if x.shape[1] else leaf
