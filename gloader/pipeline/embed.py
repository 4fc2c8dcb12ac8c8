"""Embed: the consumer's last step, which puts the trained rows of a batch into the batch.

An embedding is the trained rows of a node type. `EmbeddingRows` has loaded the rows of the batch into slots. Their
values are final only after the step of the batch before, so the copy is made at the moment when the training loop
receives the batch. The loop then steps or skips each embedding of the batch, and asks for the next batch.

- A leaf is a batch's weights as a tensor that receives a gradient.
- A frozen embedding is read, and not trained, by this loader.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from gloader.core.near_names import Named
from gloader.core.signals import uninterrupted
from gloader.core.units import format_bytes, format_count, format_seconds
from gloader.errors import BudgetError, GloaderError, ShapeError, StateError
from gloader.pipeline.embedding_rows import slot_bytes
from gloader.types import LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import Trace
    from gloader.cache.write_plan import WritePlan
    from gloader.observe.epoch_stats import StatsRecorder
    from gloader.observe.instruments import Work
    from gloader.pipeline.embedding_rows import BatchSlots, EmbeddingRows
    from gloader.pipeline.send import SentBatch
    from gloader.types import AnyReadyBatch, BatchId, Delivered, IdArray


logger = logging.getLogger("gloader")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """The batch that the training loop has."""

    id: BatchId
    slots: BatchSlots
    leaf: torch.Tensor  # (U, D)


class SlotRows(Protocol):
    """The rows of an embedding in slots: `EmbeddingRows`, or on a rank that does not load, its view of them."""

    num_steps: int  # optimizer steps in the life of the table

    @property
    def bytes_read(self) -> int:
        """Bytes read by this process, of the table and of the spill folder."""
        ...

    @property
    def bytes_written(self) -> int:
        """Bytes written by this process."""
        ...

    def leaf(self, slots: BatchSlots, device: torch.device | None = None) -> torch.Tensor:
        """Return a copy of the batch's weights (U, D), a leaf with gradients."""
        ...

    def read(self, ids: IdArray) -> NDArray[np.float32]:
        """Return the newest weights (M, D) of ``ids`` (M,)."""
        ...

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first id and the newest weights (n, D) of all rows, in id order."""
        ...

    def checkpoint(self, record: str, facts: Mapping[str, Any]) -> None:
        """Make all rows durable under the name ``record``."""
        ...

    def flush(self) -> None:
        """Write all changed rows to the table, at the end of the service."""
        ...

    def restart(self) -> None:
        """Make ready for another run."""
        ...

    def close(self) -> None:
        """Release the slots. Idempotent."""
        ...


R_co = TypeVar("R_co", bound=SlotRows, covariant=True)


class TrainedEmbedding(Generic[R_co]):
    """An embedding that a loader trains: its rows in slots, and the batch that the training loop has.

    `deliver`, `step` and `skip` are for the thread of the training loop.

    Parameters
    ----------
    name : the node type
    number : the node type's number
    rows : the rows
    step : makes the step of a batch, given its slots and the gradient of its leaf; as `EmbeddingRows.step`, or together
        with other ranks
    """

    def __init__(
        self,
        *,
        name: str,
        number: int,
        rows: R_co,
        step: Callable[[BatchSlots, torch.Tensor | None], None],
    ) -> None:
        self.name = name
        self.number = number
        self.rows = rows
        self._step = step
        self._present: _Present | None = None  # the delivered batch, until its step
        self._counting = threading.Lock()  # guards the next field
        # Bytes read and written when the loader was opened, and at the last call of `count_bytes`.
        self._before = self._counted = (rows.bytes_read, rows.bytes_written)

    def plan(self: TrainedEmbedding[EmbeddingRows], trace: Trace, lookahead: Trace) -> WritePlan:
        """Plan the slots of a superbatch; see `WritePlanner.plan`."""
        try:
            return self.rows.planner.plan(trace, lookahead)
        except BudgetError as error:
            error.add_note(
                f"the embedding is that of {self.name!r}; a slot takes {slot_bytes(self.rows.table.width)} bytes of "
                "its cache="
            )
            raise

    def count_bytes(self, work: Work, recorder: StatsRecorder) -> None:
        """Add the bytes since the last call, of the table and the spill folder, to a stage's work and to its epoch."""
        with self._counting:  # the stages that load and those that read ahead count together
            (read, written), self._counted = self._counted, (self.rows.bytes_read, self.rows.bytes_written)
            read, written = self._counted[0] - read, self._counted[1] - written
        work.add_bytes(read=read, written=written)
        recorder.add_staged(bytes_read=read, bytes_written=written, requests=0)

    def explain_run(self: TrainedEmbedding[EmbeddingRows]) -> str:
        """Return a line on the loaded rows, by their sources, and on the bytes moved; "" before the first load."""
        counts, rows = self.rows.counts, self.rows
        loaded = counts.loaded_forward + counts.loaded_table + counts.loaded_late
        if not loaded:
            return ""
        read, written = rows.bytes_read - self._before[0], rows.bytes_written - self._before[1]
        forward, late = counts.loaded_forward / loaded, counts.loaded_late / loaded
        return (
            f"trained rows of {self.name}: {format_count(loaded)} loaded, {forward:.0%} of them kept since an earlier "
            f"batch, {late:.0%} read from the table without staging; {format_bytes(read)} read, "
            f"{format_bytes(written)} written; loads waited {format_seconds(counts.waited_s)} for steps"
        )

    def require_done(self) -> None:
        """Raise StateError if the delivered batch was neither stepped nor skipped."""
        if self._present is not None:
            raise StateError(
                f"{_named(self._present.id)} was not stepped: call embedding.step(batch) after loss.backward(), or "
                f"embedding.skip(batch), before the next batch; this is for the embedding of {self.name!r}"
            )

    def deliver(self, batch: BatchId, slots: BatchSlots, device: torch.device) -> torch.Tensor:
        """Return the leaf (U, D) of ``batch`` on ``device``; the loop has the batch from now on."""
        leaf = self.rows.leaf(slots, device)
        self._present = _Present(id=batch, slots=slots, leaf=leaf)
        return leaf

    def step(self, batch: Delivered) -> None:
        """Change the rows of ``batch`` by its leaf's gradient; see `NodeEmbedding.step`."""
        present = self._require_present(batch, "step")
        leaf = present.leaf
        grad = leaf.grad
        if grad is None and len(leaf):
            raise StateError(
                f"{_named(batch.id)} has no gradient for the rows of {self.name!r}: call loss.backward() before "
                "embedding.step(batch), or embedding.skip(batch) if the loss does not depend on them"
            )
        if grad is not None and (grad.shape != leaf.shape or grad.dtype != leaf.dtype):
            raise ShapeError(
                f"the gradient of {_named(batch.id)} for the rows of {self.name!r} has shape {tuple(grad.shape)} and "
                f"dtype {grad.dtype}; it must have those of the leaf, {tuple(leaf.shape)} and {leaf.dtype}"
            )
        # Without a row there is nothing to do, as for torch's optimizers if a parameter has no gradient.
        self._finish(present, grad)

    def skip(self, batch: Delivered) -> None:
        """Finish ``batch`` without a change; see `NodeEmbedding.skip`."""
        self._finish(self._require_present(batch, "skip"), None)

    def restart(self) -> None:
        """Make the rows ready for another run, after the threads of a run have ended.

        A batch that was neither stepped nor skipped is dropped.
        """
        if self._present is not None:
            logger.warning(
                "%s was left without a step of the embedding of %r", _named(self._present.id), self.name
            )
        self._present = None
        try:
            self.rows.restart()
        except GloaderError:
            # The rows refuse every later call, so that the error is not lost.
            logger.exception("the trained rows of %r could not be written at the end of a run", self.name)

    def _require_present(self, batch: Delivered, verb: str) -> _Present:
        """Return the batch that the loop has. Raises StateError if it is not ``batch``."""
        present = self._present
        if present is None or present.id != batch.id:
            has = "no batch is waiting for its step" if present is None else f"{_named(present.id)} is"
            raise StateError(
                f"embedding.{verb} of {_named(batch.id)} comes at the wrong time: {has}. Each batch is stepped or "
                "skipped once, before the next batch is taken and before its epoch is left"
            )
        if batch.embedded is None or batch.embedded.get(self.name) is not present.leaf:
            raise StateError(
                f"embedding.{verb}: {_named(batch.id)} is of another loader, or without the rows of {self.name!r}"
            )
        return present

    def _finish(self, present: _Present, grad: torch.Tensor | None) -> None:
        """Make the step, and mark the batch as done. A signal does not cut it."""
        with uninterrupted():
            self._step(present.slots, grad)
            self._present = None


class FrozenRows(Protocol):
    """The rows of an embedding that another loader may train; see `NodeEmbedding.frozen`."""

    @property
    def node_type(self) -> str:
        """The node type."""
        ...

    def rows(self, ids: IdArray, /) -> torch.Tensor:
        """Return the present weights (M, D) of the nodes ``ids`` (M,)."""
        ...


class Embed:
    """Puts trained and frozen rows into the batches that the consumer hands out. For the training loop's thread.

    Parameters
    ----------
    trained : the embeddings that this loader trains, in the order of `SentBatch.slots`
    frozen : the embeddings that this loader reads
    place : the batches' device
    """

    def __init__(
        self, trained: Sequence[TrainedEmbedding[SlotRows]], frozen: Sequence[FrozenRows], place: torch.device
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


def _named(batch: BatchId) -> str:
    """Return the batch's address as text."""
    return f"batch (epoch {batch.epoch}, index {batch.index})"
