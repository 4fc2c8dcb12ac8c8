"""The stream of batches: every epoch's batches, one after another, each with a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.order import EpochOrder
    from gloader.core.row_order import AnyOrder
    from gloader.types import IdArray


class BatchStream:
    """The batches from ``first`` on, over the borders of epochs; position 0 is ``first``. Thread-safe.

    The steps of several ranks are interleaved: position t is step t // L of the (t % L)-th of the L ranks.

    Parameters
    ----------
    order : the batches of each epoch
    first : where the stream begins
    end_epoch : the epoch before which it ends; None: it goes on for ever
    ranks : whose batches; defaults to the rank of ``order`` alone
    """

    def __init__(
        self,
        order: AnyOrder,
        first: BatchId,
        *,
        end_epoch: int | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = (order.rank,) if ranks is None else tuple(ranks)
        self._order = order
        self._first = first
        self._end_epoch = end_epoch
        self._per_epoch = order.num_batches
        epochs = None if end_epoch is None else max(end_epoch - first.epoch, 0)
        self._end = (
            0 if self._per_epoch == 0 else None if epochs is None else epochs * self._per_epoch - first.index
        )

    def of_ranks(self, ranks: Sequence[int]) -> BatchStream:
        """Return the same steps, the batches of ``ranks`` interleaved."""
        return BatchStream(self._order, self._first, end_epoch=self._end_epoch, ranks=ranks)

    def has(self, position: int) -> bool:
        """Return whether there is a batch at ``position``."""
        return self._end is None or position < self._end * len(self._ranks)

    def id_of(self, position: int) -> BatchId:
        """Return the address of the batch at ``position``."""
        epochs, index = divmod(self._first.index + position // len(self._ranks), self._per_epoch)
        return BatchId(epoch=self._first.epoch + epochs, index=index)

    def seeds_at(self, position: int) -> Any:  # AnySeeds
        """Return the seeds (B,) of the batch at ``position``."""
        # Every rank knows every rank's seeds: the order is of all of them, and each takes its part of a step.
        return self._order.seeds_of(self.id_of(position), rank=self._ranks[position % len(self._ranks)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSeeds:
    """The labels of the seeds of an epoch, in the order's own order."""

    labels: IdArray  # (n,) int64
    has_label: NDArray[np.bool_] | None = None  # (n,) whether a seed is of the labelled type; None: all are


class BatchLabels(Protocol):
    """The labels that go with a batch."""

    def of(self, batch: BatchId, /) -> IdArray:
        """Return the labels of the seeds of ``batch``."""
        ...


@dataclass(frozen=True, slots=True)
class NoLabels:
    """Seeds that have no labels of their own: what is predicted of them comes with the batch."""

    def of(self, batch: BatchId) -> IdArray:  # noqa: ARG002 - as of `BatchLabels`
        """Return none."""
        return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SeedLabels:
    """The labels of the seeds of an epoch, cut into the batches of this rank. Thread-safe."""

    order: EpochOrder
    seeds: LabelledSeeds

    def of(self, batch: BatchId) -> IdArray:
        """Return the labels (B,) of the seeds of ``batch`` that are of the labelled type."""
        positions = self.order.batch_positions(batch)
        has_label = self.seeds.has_label
        return self.seeds.labels[positions if has_label is None else positions[has_label[positions]]]
