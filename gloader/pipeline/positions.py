"""The stream of batches: every epoch's batches, one after another, each with a position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.core.order import EpochOrder
    from gloader.types import IdArray


class BatchStream:
    """The batches from ``first`` on, over the borders of epochs; position 0 is ``first``. Thread-safe.

    The steps of several ranks are interleaved: position t is step t // L of the (t % L)-th of the L ranks.

    Parameters
    ----------
    order : the batches of each epoch
    first : where the stream begins
    end_epoch : the epoch before which it ends; it goes on for ever where None
    ranks : whose batches; those of the rank of ``order`` alone where None
    """

    def __init__(
        self,
        order: EpochOrder,
        first: BatchId,
        *,
        end_epoch: int | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = (order.rank,) if ranks is None else tuple(ranks)
        self._order = order
        self._first = first
        self._per_epoch = order.num_batches
        epochs = None if end_epoch is None else max(end_epoch - first.epoch, 0)
        self._end = (
            0 if self._per_epoch == 0 else None if epochs is None else epochs * self._per_epoch - first.index
        )

    def has(self, position: int) -> bool:
        """Return whether there is a batch at ``position``."""
        return self._end is None or position < self._end * len(self._ranks)

    def id_of(self, position: int) -> BatchId:
        """Return the address of the batch at ``position``."""
        epochs, index = divmod(self._first.index + position // len(self._ranks), self._per_epoch)
        return BatchId(epoch=self._first.epoch + epochs, index=index)

    def seeds_at(self, position: int) -> IdArray:
        """Return the seeds (B,) of the batch at ``position``."""
        return self._order.seeds[self.seed_positions(position)]

    def seed_positions(self, position: int) -> IdArray:
        """Return where the seeds (B,) of the batch at ``position`` stand among the seeds of an epoch."""
        batch = self.id_of(position)
        rank = self._ranks[position % len(self._ranks)]
        return self._order.batch_seeds(self._order.epoch_positions(batch.epoch), batch.index, rank=rank)
