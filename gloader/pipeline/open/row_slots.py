"""The trained rows of a loader: their memory, and the opening of their slots.

An embedding is the trained rows of a node type. A slot holds one row in memory: the weights, and the optimizer's state.
Rows are staged if they are read ahead of their batch. `embedding_demands` measures the memory on the first batches, and
`open_embeddings` opens the slots when the memory is planned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.pipeline.embedding_rows import EmbeddingRows, slot_bytes
from gloader.pipeline.open.device_rows import LARGER_THAN_PROBED
from gloader.pipeline.sample import count_rows, distinct_rows
from gloader.pipeline.trained_embedding import TrainedEmbedding
from gloader.plan.demand import EmbeddingDemand
from gloader.ssd_store.embedding.embedding_table import append_buffer_rows, table_bytes
from gloader.ssd_store.embedding.row_pieces import WORK_BYTES, least_staging_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from gloader.dataset import Dataset
    from gloader.pipeline.node_rows import NodeRows
    from gloader.pipeline.other_ranks import TrainingRanks
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import AnyBatch


_SHARE: Final = 4  # the slots take at most the memory budget divided by this, if no size was given
_STAGING_SHARE: Final = 4  # memory for staged rows: the bytes of the slots divided by this
# Batches that loads may run ahead of steps. One is read, one waits, one is gathered and one is computed.
_DEPTH: Final = 4
# Values of a large batch per row and column: the leaf, its gradient, and a step's copies of weights and gradient.
_BATCH_COPIES: Final = 4
# The same of each rank, if ranks add their gradients up: the gradient that was sent, its copy beside those of the other
# ranks, the sum, and a step's copies.
_SUM_COPIES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEmbeddings:
    """The embeddings that a loader is given."""

    trained: tuple[NodeRows, ...] = ()  # in the order of the node types
    frozen: tuple[NodeRows, ...] = ()
    ranks: TrainingRanks | None = None  # the ranks that train them together; None if this process is alone

    @property
    def num_ranks(self) -> int:
        """R, the batches of a step."""
        return 1 if self.ranks is None else self.ranks.num_ranks

    @property
    def dims(self) -> dict[str, int]:
        """The columns that each type gets."""
        trained = {each.node_type: each.dim for each in self.trained}
        return trained | {each.node_type: each.dim for each in self.frozen}

    @property
    def table_bytes(self) -> tuple[int, ...]:
        """Bytes of all rows, for each embedding to train."""
        return tuple(_row_bytes(each) * each.table.num_rows for each in self.trained)


NO_EMBEDDINGS: Final = GivenEmbeddings()


def embedding_demands(
    given: GivenEmbeddings, dataset: Dataset, probe: Sequence[AnyBatch], *, budget_bytes: int
) -> tuple[EmbeddingDemand, ...]:
    """Return the memory of the trained rows.

    Parameters
    ----------
    given : the embeddings
    dataset : gives the node types
    probe : the run's first batches
    budget_bytes : memory budget of the loader

    Raises
    ------
    BudgetError
        A requested cache has less room than a large batch needs.
    """
    room = budget_bytes // _SHARE
    demands = []
    for each in given.trained:
        number = dataset.node_types.index(each.node_type)
        distinct = max((len(distinct_rows(batch, number)) for batch in probe), default=1)
        largest = max((count_rows(batch, number) for batch in probe), default=1)
        table = each.table
        batch_rows = min(max(math.ceil(LARGER_THAN_PROBED * distinct), 1), table.num_rows)
        # The rows of all batches of a step are in slots together.
        step_rows = min(batch_rows * given.num_ranks, table.num_rows)
        each_bytes = slot_bytes(table.width)
        num_bytes = each.cache_bytes
        if num_bytes is None:
            num_bytes = room * _row_bytes(each) * table.num_rows // sum(given.table_bytes)
            num_bytes = max(num_bytes, step_rows * each_bytes)
        num_slots = min(num_bytes // each_bytes, table.num_rows)
        buffer_rows = append_buffer_rows(table.num_rows, table.width, num_slots)
        row_bytes = _row_bytes(each)
        staging_bytes = max(num_slots * row_bytes // _STAGING_SHARE, least_staging_bytes(table.width))
        # A requested size may be as small as the measured batches. A larger batch then ends the run with an error.
        if num_slots < (least := min(distinct * given.num_ranks, table.num_rows)):
            unit = "a batch" if given.num_ranks == 1 else f"a step of {given.num_ranks} ranks"
            raise BudgetError(
                f"the embedding of {each.node_type!r} has a cache of {format_bytes(num_bytes)}, and {unit} has up to "
                f"{least:,} of its rows, which need {format_bytes(least * each_bytes)}: all rows of a batch are "
                "in memory until its step. Give it more memory, by NodeEmbedding(cache="
                f"{step_rows * each_bytes}) or --embed-cache (for all types), or use a smaller batch size or fan-out"
            )
        demands.append(
            EmbeddingDemand(
                name=each.node_type,
                num_rows=table.num_rows,
                batch_rows=batch_rows,
                num_slots=num_slots,
                buffer_rows=buffer_rows,
                row_bytes=row_bytes,
                folder=str(table.folder),
                staging_bytes=staging_bytes,
                fixed_bytes=num_slots * each_bytes
                + staging_bytes
                + WORK_BYTES
                + table_bytes(table.num_rows, table.width, buffer_rows)
                + math.ceil(LARGER_THAN_PROBED * largest)
                * _batch_row_bytes(each, dataset, num_ranks=given.num_ranks),
            )
        )
    return tuple(demands)


def open_embeddings(
    given: GivenEmbeddings,
    demands: Sequence[EmbeddingDemand],
    dataset: Dataset,
    stack: ExitStack,
    *,
    num_batches: int,
    spills: Sequence[SpillFolder | None],
) -> tuple[TrainedEmbedding, ...]:
    """Open the slots of the trained rows.

    Parameters
    ----------
    given : the embeddings
    demands : their memory, from `embedding_demands`
    dataset : gives the node types
    stack : ends the service of the embeddings
    num_batches : batches of a superbatch
    spills : a folder for each embedding's rows that wait for a later batch; () if nothing can be spilled

    Raises
    ------
    ConfigError
        Another loader trains an embedding.
    """
    opened = []
    ranks = given.ranks
    places: Sequence[SpillFolder | None] = spills or [None] * len(demands)
    for each, demand, spill in zip(given.trained, demands, places, strict=True):
        each.table.resize_buffer(demand.buffer_rows)
        rows = EmbeddingRows(
            each.table,
            each.optimizer,
            capacity=demand.num_slots,
            depth=_DEPTH,
            batches_per_step=given.num_ranks,
            spill=spill,
            staging_bytes=demand.staging_bytes,
            expected_accesses=2 * num_batches * demand.batch_rows,
            allocate=aligned_bytes if ranks is None else ranks.allocate,
        )
        trained = TrainedEmbedding(
            name=each.node_type,
            number=dataset.node_types.index(each.node_type),
            rows=rows,
            step=None if ranks is None else ranks.stepping(rows),
        )
        each.attach(trained)
        stack.callback(each.detach)
        opened.append(trained)
    return tuple(opened)


def _row_bytes(given: NodeRows) -> int:
    """Return the bytes of a row with its state."""
    return given.table.width * 4


def _batch_row_bytes(given: NodeRows, dataset: Dataset, *, num_ranks: int) -> int:
    """Return the bytes per row of a batch's tensors, with those of the other ranks that a step adds up."""
    features = dataset.node_tables[given.node_type].feature_dim
    beside = features + given.dim if features else 0  # columns of ``x``, if it is not the leaf itself
    copies = _BATCH_COPIES if num_ranks == 1 else _BATCH_COPIES + num_ranks * _SUM_COPIES
    return 4 * (copies * given.dim + beside)
