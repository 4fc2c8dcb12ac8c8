"""A loader's rows of a task table: their seeds, and what a batch has beside its nodes.

A row of a task table is a node, perhaps with a time, labels and a weight. `gloader.pipeline.seeds` makes a `RowTask`
from the argument ``table`` of a loader. When the loader opens, `RowTask.bind` opens the table, and turns rows into
seeds. With times, each row is a seed with its own tree of nodes. Without times, the batch's distinct nodes are the
seeds.

The sending thread asks `RowAnswers` for the labels of a batch's rows, and for the ages of its nodes. A row age is the
seed's time less the time of the node, for types whose nodes are rows of a table with times. Every rank opens the table
for its own batches. The memory plan counts all ranks of the machine. Shapes: B rows of a batch, U_t nodes of type t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.units import format_bytes
from gloader.dataset.task_record import ROW_LABELS, ROW_NODES, ROW_TIMES, ROW_WEIGHTS
from gloader.types import NO_TIME, BatchSeeds, ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from numpy.typing import NDArray

    from gloader.config import IoMode, LoaderSettings
    from gloader.core.order import RowOrder
    from gloader.dataset import Dataset
    from gloader.dataset.row_columns import OpenColumns
    from gloader.dataset.task_table import TaskTable
    from gloader.samplers import HeteroGraph, Topology
    from gloader.types import AnyBatch, AnyReadyBatch, AnySeeds, BatchId, IdArray

# Largest share of the memory budget for the table and the row times, over all ranks of the machine. Columns beyond it
# are read from the SSD, a page for each row.
_HELD_SHARE: Final = 1 / 8
# Peak bytes of a row while seeds are made of rows: the number, the node and the time of the row, and the arrays that
# find distinct nodes.
_EXPAND_BYTES: Final = 96
# Batches with labels in memory: two in the copy to the device, one waiting, one with the training loop.
_IN_FLIGHT: Final = 4
# Bytes of a node's age in each of these batches, and of the arrays from which it is computed.
_AGE_BYTES: Final = 4 * _IN_FLIGHT + 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The labels of a batch's seeds, and further columns of a table's rows, which the sending thread adds to it."""

    labels: NDArray[Any]  # (B,) classes, or (B, k) values; -1 for rows of a table without labels
    row_ids: IdArray | None = None  # (B,) rows of the table; None for seeds without a table
    weights: NDArray[np.float32] | None = None  # (B,), or None without weights
    # (B,) the index of each row's seed. None means that row i is seed i.
    row_seeds: IdArray | None = None
    # By type: (U_t,) float32 seconds, NaN for a row without a time; None for a type without row times. None without
    # times of seeds.
    ages: tuple[NDArray[np.float32] | None, ...] | None = None

    def small_arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays beside the labels that a device needs, in the order of weights, row seeds and ages."""
        found = (self.weights, self.row_seeds, *(self.ages or ()))
        return tuple(each for each in found if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRows:
    """A task table and the row times of all types, open for reading."""

    table: OpenColumns
    first_node: int  # the number of the type's first node, over all types
    row_times: tuple[OpenColumns | None, ...]  # by type; all None if the table has no times

    @property
    def held_bytes(self) -> int:
        """Bytes in memory."""
        return self.table.held_bytes + sum(each.held_bytes for each in self.row_times if each is not None)

    def seeds_of(self, batch: BatchId, rows: IdArray) -> AnySeeds:
        """Return the seeds of the batch with ``rows`` (B,)."""
        del batch  # the rows determine the seeds
        columns = self.table.read(rows, names=(ROW_NODES, ROW_TIMES))
        nodes, times = columns[ROW_NODES], columns.get(ROW_TIMES)
        if times is None:
            return distinct_nodes(nodes)[0] + self.first_node
        return BatchSeeds(nodes=nodes + self.first_node, times=times)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswers:
    """The labels, weights and ages of one rank's batches."""

    order: RowOrder  # the rows of the rank's batches
    rows: OpenRows

    def answers(self, sampled: AnyBatch) -> Answers:
        """Return what a batch has beside its nodes."""
        row_ids = self.order.batch_items(sampled.id).copy()  # the loop may keep and change it
        # Rows with times are seeds themselves. Their nodes are not read again.
        first = ROW_NODES if sampled.trees is None else ROW_TIMES
        columns = self.rows.table.read(row_ids, names=(first, ROW_LABELS, ROW_WEIGHTS))
        labels, times = columns.get(ROW_LABELS), columns.get(ROW_TIMES)
        return Answers(
            labels=np.full(len(row_ids), -1) if labels is None else labels,
            row_ids=row_ids,
            weights=columns.get(ROW_WEIGHTS),
            row_seeds=distinct_nodes(columns[ROW_NODES])[1] if times is None else None,
            ages=None if times is None else self._ages(sampled, times),
        )

    def _ages(self, sampled: AnyBatch, times: IdArray) -> tuple[NDArray[np.float32] | None, ...] | None:
        """Return the ages by type; ``times`` (B,) are those of the seeds."""
        if not any(self.rows.row_times):
            return None
        return tuple(
            None if opened is None else row_ages(times[trees], next(iter(opened.read(nodes).values())))
            for opened, nodes, trees in zip(
                self.rows.row_times, sampled.node_arrays, sampled.tree_arrays, strict=True
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundRows:
    """A task table's row order that yields seeds, and the open table."""

    order: RowOrder  # gives each batch's table rows, and turns them into seeds
    held_bytes: int  # memory of the columns that are held, and of the labels in flight, on all ranks
    text: str  # a line that names the task
    rows: OpenRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTask:
    """The rows of a task table, whose labels a model predicts."""

    dataset: Dataset
    table: TaskTable

    @property
    def seed_types(self) -> tuple[str, ...]:
        """The seeds' node types."""
        return (self.table.node_type,)

    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the batches, without the dataset, as JSON values by name."""
        return {"table": self.table.name}

    def open(self, stack: ExitStack, *, budget_bytes: int, num_ranks: int, io: IoMode) -> OpenRows:
        """Open the table, and the row times of all types that ages need.

        Parameters
        ----------
        stack : closes the table
        budget_bytes : the full memory budget
        num_ranks : ranks of the machine, each of which opens the table
        io : the I/O mode for rows on disk

        Raises
        ------
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError, FormatError, ConfigError
            A file cannot be read.
        """
        left = int(_HELD_SHARE * budget_bytes) // num_ranks
        table = stack.enter_context(self.table.open(max_bytes=left, io=io))
        left -= table.held_bytes
        row_times: list[OpenColumns | None] = []
        for nodes in self.dataset.node_tables.values():
            opened = None
            if self.table.has_times and nodes.has_row_times:
                opened = stack.enter_context(nodes.open_row_times(max_bytes=max(left, 0), io=io))
                left -= opened.held_bytes
            row_times.append(opened)
        number = self.dataset.node_tables[self.table.node_type].number
        first_node = int(self.dataset.type_starts[number])
        return OpenRows(table=table, first_node=first_node, row_times=tuple(row_times))

    def bind(
        self,
        order: RowOrder,
        topology: Topology | HeteroGraph,
        settings: LoaderSettings,
        stack: ExitStack,
        *,
        budget_bytes: int,
        num_ranks: int = 1,
    ) -> BoundRows:
        """Open the table, and return ``order`` with seeds in place of its rows.

        Parameters
        ----------
        order : the order of the table's rows
        topology : not used
        settings : the loader's settings
        stack, budget_bytes, num_ranks : as in `open`

        Raises
        ------
        ChecksumError, StoreOpenError, StoreReadError, TruncatedStoreError, FormatError, ConfigError
            As in `open`.
        """
        del topology
        table = self.table
        rows = self.open(stack, budget_bytes=budget_bytes, num_ranks=num_ranks, io=settings.reading.io)
        times = " with times" if table.has_times else ""
        text = (
            f"rows: {table.num_rows:,} of table {table.name!r} (nodes of type {table.node_type!r}{times}), "
            f"{format_bytes(rows.held_bytes)} held"
        )
        batch_bytes = _IN_FLIGHT * order.batch_size * (20 + 4 * max(table.label_width, 2))
        return BoundRows(
            order=replace(order, expand=rows.seeds_of, expand_bytes=_EXPAND_BYTES * order.batch_size),
            held_bytes=num_ranks * (rows.held_bytes + batch_bytes),
            text=text,
            rows=rows,
        )

    def try_step(self, step: Callable[[Any], object], batch: AnyReadyBatch) -> object:
        """Run a trial step of the model on ``batch``, with blank labels, weights and ages as the rows bring them."""
        first, num_rows, table = next(iter(batch.typed.x.values())), batch.y.shape[0], self.table
        fields: dict[str, Any] = {}
        if table.label_kind not in (None, "classes"):
            fields["y"] = first.new_zeros((num_rows, table.label_width))
        if table.has_weights:
            fields["weights"] = first.new_ones(num_rows)
        if table.has_times and any(nodes.has_row_times for nodes in self.dataset.node_tables.values()):
            ages = {
                name: first.new_zeros(len(nodes))
                for name, nodes in batch.typed.nodes.items()
                if self.dataset.node_tables[name].has_row_times
            }
            fields["row_age"] = next(iter(ages.values())) if isinstance(batch, ReadyBatch) else ages
        return step(replace(batch, **fields))

    def age_bytes(self, batches: list[AnyBatch]) -> int:
        """Return the bytes for the ages of all nodes of the largest of ``batches``. Pure."""
        if not self.table.has_times:
            return 0
        aged = [table.has_row_times for table in self.dataset.node_tables.values()]
        counts = [
            sum(len(nodes) for nodes, is_aged in zip(batch.node_arrays, aged, strict=True) if is_aged)
            for batch in batches
        ]
        return _AGE_BYTES * max(counts, default=0)


def distinct_nodes(nodes: IdArray) -> tuple[IdArray, IdArray | None]:
    """Return the distinct ``nodes`` (n,) in their order, and each node's index among them; None if all differ. Pure."""
    _, firsts, inverse = np.unique(nodes, return_index=True, return_inverse=True)
    if len(firsts) == len(nodes):
        return nodes, None
    order = np.argsort(firsts)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return nodes[firsts[order]], place[inverse]


def row_ages(times: IdArray, row_times: IdArray) -> NDArray[np.float32]:
    """Return the ages (n,) float32 seconds: ``times`` less ``row_times``, NaN where a row has no time. Pure.

    The difference is exact, and rounded once: as an unsigned number it never overflows.
    """
    is_later = times < row_times
    seconds = (times - row_times).view(np.uint64)
    ages = np.where(is_later, np.uint64(0) - seconds, seconds).astype(np.float32)
    np.negative(ages, where=is_later, out=ages)
    ages[row_times == NO_TIME] = np.nan
    return ages
