"""The rows of an embedding that are in memory while a run trains them, and their way to and from the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import NEVER, Cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gloader.cache.write_plan import WritePlan, WritePlanner
    from gloader.pipeline.embedding_optimizers import RowOptimizer
    from gloader.pipeline.superbatch import OrderedRows
    from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedRows:
    """A superbatch whose rows of the table (TABLE) were read ahead."""

    plan: WritePlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSlots:
    """The slots of a batch's rows."""

    number: int  # of the batch, counted from the planner's start or restart
    slots: torch.Tensor  # (U,) int64, in batch order; a row that repeats has its slot again
    order: torch.Tensor | None  # (V,) the first place of each distinct row; None if no row repeats
    repeats: torch.Tensor | None  # (2, U - V) repeated places, and the index in `order` of their rows


@dataclass(slots=True, kw_only=True)
class RowCounts:
    """Counts of an embedding since it was opened."""

    loaded_forward: int = 0  # rows loaded from forward pieces
    loaded_staged: int = 0  # from rows that were read ahead
    loaded_late: int = 0  # from the table at the load
    evicted_forward: int = 0  # rows evicted to a later batch
    evicted_table: int = 0  # written to the table
    evicted_clean: int = 0  # not written, because the table has them
    waited_s: float = 0.0  # seconds that loads waited for steps


class EmbeddingRows:
    """An embedding's rows in slots. See the module. Does not own ``table`` and ``spill``.

    Parameters
    ----------
    table : all rows
    optimizer : changes the rows
    capacity : C, the slots; at least the distinct rows of the largest batch
    depth : batches that loads may run ahead of steps, as for `WritePlanner`
    spill : folder for rows that wait for a later batch and do not fit in memory. None: they go to the table
    staging_bytes : memory for rows that wait for a later batch
    allocate : returns the slots' memory, at least as many bytes as asked for
    """

    planner: WritePlanner
    num_steps: int  # optimizer steps in the life of the table
    counts: RowCounts
    num_bytes: int  # memory of slots and staging

    def __init__(
        self,
        table: EmbeddingTable,
        optimizer: RowOptimizer,
        *,
        capacity: int,
        depth: int = 4,
        spill: SpillFolder | None = None,
        staging_bytes: int,
        allocate: Callable[[int], NDArray[np.uint8]] = aligned_bytes,
    ) -> None:
        raise NotImplementedError

    def stage(self, plan: WritePlan, *, cancellation: Cancellation = NEVER) -> StagedRows:
        """Read the rows that ``plan`` loads from the table. Called by the stage thread."""
        raise NotImplementedError

    def load(
        self, staged: StagedRows, index: int, rows: OrderedRows, *, cancellation: Cancellation = NEVER
    ) -> BatchSlots:
        """Wait for earlier steps, evict and load rows for batch ``index``. Called by the read thread, in order."""
        raise NotImplementedError

    def leaf(self, slots: BatchSlots, device: torch.device | None = None) -> torch.Tensor:
        """Return the batch's weights (U, D) as a leaf with gradients, when all earlier batches are done."""
        raise NotImplementedError

    def step(self, slots: BatchSlots, grad: torch.Tensor | None) -> None:
        """Apply the optimizer to the batch's rows; None: only mark the batch as done. Called by the training thread."""
        raise NotImplementedError

    def read(self, ids: IdArray) -> NDArray[np.float32]:
        """Return the newest weights (M, D) of ``ids`` (M,), in any order. Writes nothing."""
        raise NotImplementedError

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first id and the newest weights (n, D) of all rows, in id order. Writes nothing."""
        raise NotImplementedError

    def checkpoint(self, record: str, facts: Mapping[str, Any]) -> None:
        """Commit all rows at a step boundary. Called by the training thread."""
        raise NotImplementedError

    def restart(self) -> None:
        """Make the planner and the rows ready for another run, when no thread of the last run is left."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End all waits, until `restart`. Idempotent."""
        raise NotImplementedError

    def close(self) -> None:
        """Release everything; rows since the last checkpoint are lost. Idempotent."""
        raise NotImplementedError
