"""The plan of a run of `gloader.propagate`: memory, disk and seconds of its propagations and of the join. Pure.

The *join* turns finished columns into the rows of a dataset or a table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from gloader.core.dtypes import STORED_DTYPES
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.ssd_store.write.array_writer import disk_bytes
from gloader.training.propagation.hop_dataset import copied_arrays, keeps_edges
from gloader.training.propagation.hop_request import split_bytes
from gloader.training.propagation.label_rows import label_bytes
from gloader.training.propagation.propagation_plan import GraphSizes, HopCost, Rates, plan_propagation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gloader.dataset import Dataset
    from gloader.training.propagation.chains import HopTrees
    from gloader.training.propagation.hop_request import HopRequest
    from gloader.training.propagation.propagation_plan import PropagationPlan

# A run that takes less than this is not worth files from which it could go on.
_KEPT_FROM_S: Final = 30.0
# Bytes on disk: of a number in a CSV file, of key, split and label in a row of a table, and of these and the index of
# keys in a dataset. Texts are longer or shorter.
_CSV_BYTES: Final = 12
_TABLE_ROW_BYTES: Final = 32
_NODE_BYTES: Final = 64
# Memory of the join: a chunk of rows as it is read, joined and rounded, and as a table's columns and file; and the
# buffers of the output's files.
_CHUNKS_HELD: Final = 6
_JOIN_BYTES: Final = 24 << 20
# Of a chunk of a dataset's rows. Every piece has a part of it, and short reads are slow.
_CHUNK_BYTES: Final = (4 << 20, 64 << 20)
# A chunk of a table is a row group of Parquet. The file's footer, which is in memory until the end, has an entry for
# each column of each row group; pyarrow 26 took 700 bytes for one.
_ENTRY_BYTES: Final = 800
_GROUP_ROWS: Final = (1 << 10, 1 << 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class HopPart:
    """The propagation of features, or of labels."""

    name: str  # its folder in the work folder
    trees: HopTrees
    sizes: GraphSizes
    dtype: str  # of finished columns


@dataclass(frozen=True, slots=True, kw_only=True)
class HopPlan:
    """The plan of a run."""

    request: HopRequest
    num_rows: int  # kept nodes
    num_nodes: int  # all nodes of their type
    parts: tuple[PropagationPlan, ...]  # of the features, then of the labels
    is_kept: bool  # whether finished columns are kept in the work folder, from which the run can go on
    is_continued: bool  # whether the work folder has columns of an interrupted run
    output_bytes: int  # bytes of the new dataset or table on disk
    disk_bytes: int  # bytes on disk at the peak, with the work folder
    write_s: float  # predicted seconds of the join: finished columns are read, and the result is written
    held_bytes: int  # memory at the peak
    budget_bytes: int
    has_measured_rates: bool  # whether the seconds follow from rates that were measured on this disk

    @property
    def cost(self) -> HopCost:
        """The predicted bytes and seconds of the propagation, without the join."""
        return total_cost([part.cost for part in self.parts])


def total_cost(costs: Sequence[HopCost]) -> HopCost:
    """Return the sums of several costs. Pure."""
    return HopCost(**{each.name: sum(getattr(cost, each.name) for cost in costs) for each in fields(HopCost)})


def parts_of(dataset: Dataset, request: HopRequest) -> tuple[HopPart, ...]:
    """Return the propagations of a request: of features, then perhaps of labels. Pure."""
    dtype, sizes = STORED_DTYPES[request.settings.dtype], GraphSizes.of_dataset(dataset)
    # The scale of an int8 row is that of all its columns, so its columns stay float32 until they are joined.
    stored = "float32" if dtype.has_scale else dtype.name
    features = HopPart(name="features", trees=request.features, sizes=sizes, dtype=stored)
    if request.labels is None:
        return (features,)
    # Labels come from memory, and those of the folds are summed up before they are rounded.
    sizes = replace(sizes, input_bytes=dict.fromkeys(sizes.input_bytes, 0))
    return (features, HopPart(name="labels", trees=request.labels, sizes=sizes, dtype="float32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HopPlanner:
    """The facts on which the plan of a run depends, besides its memory budget."""

    dataset: Dataset
    request: HopRequest
    suffix: str  # of a table's file, such as ".csv"; empty for a dataset
    begun: Mapping[str, Mapping[str, int] | None]  # widths of slabs that an interrupted run began, by part
    shares_files: bool  # whether unchanged arrays get second names, and take no disk space
    rates: Rates

    @property
    def parts(self) -> tuple[HopPart, ...]:
        """The propagations."""
        return parts_of(self.dataset, self.request)

    def plan(self, budget_bytes: int) -> HopPlan:
        """Return the plan for a memory budget.

        Raises
        ------
        BudgetError
            The budget is too small.
        """
        request = self.request
        splits = self.dataset.labelled.split_sizes
        num_nodes = self.dataset.labelled.num_nodes
        num_kept = num_nodes if request.settings.nodes == "all" else min(sum(splits.values()), num_nodes)
        keeps_all = num_kept == num_nodes and request.settings.nodes == "all"
        _, join_bytes = self.join(num_kept)
        left = budget_bytes - self.fixed_bytes()
        if left < join_bytes:
            needed = budget_bytes - left + join_bytes
            raise BudgetError(
                f"the ids and labels of the splits, and a chunk of rows, take {format_bytes(needed)}, and the memory "
                f"budget is {format_bytes(budget_bytes)}",
                short_bytes=needed - budget_bytes,
            )
        num_rows = None if keeps_all else num_kept
        plans, is_kept = self._in_memory(left - join_bytes, num_rows), False
        if plans is None:
            is_kept = True
            _, join_bytes = self.join(num_kept, budget_bytes)
            plans = tuple(
                plan_propagation(
                    part.trees,
                    part.sizes,
                    budget_bytes=left,
                    num_kept=num_rows,
                    dtype=part.dtype,
                    widths=self.begun[part.name],
                    rates=self.rates,
                )
                for part in self.parts
            )
        output_bytes = self._output_bytes(num_kept)
        # The join reads the finished columns from the work folder.
        kept_bytes = is_kept * 4 * num_kept * sum(part.trees.width for part in self.parts)
        return HopPlan(
            request=request,
            num_rows=num_kept,
            num_nodes=num_nodes,
            parts=plans,
            is_kept=is_kept,
            is_continued=any(widths is not None for widths in self.begun.values()),
            output_bytes=output_bytes,
            disk_bytes=output_bytes + sum(plan.disk_bytes for plan in plans),
            write_s=output_bytes * (1 / self.rates.write_bytes_per_s + self.rates.byte_s)
            + kept_bytes * (1 / self.rates.read_bytes_per_s + self.rates.byte_s),
            held_bytes=budget_bytes - left + max(join_bytes, *(plan.held_bytes for plan in plans)),
            budget_bytes=budget_bytes,
            has_measured_rates=self.rates.is_measured,
        )

    def _in_memory(self, budget_bytes: int, num_kept: int | None) -> tuple[PropagationPlan, ...] | None:
        """Return the plans without files, or None if they do not fit, or are worth files from which a run can go on."""
        if any(widths is not None for widths in self.begun.values()):
            return None
        plans: list[PropagationPlan] = []
        left = budget_bytes
        try:
            for part in self.parts:
                plan = plan_propagation(
                    part.trees,
                    part.sizes,
                    budget_bytes=left,
                    num_kept=num_kept,
                    has_disk=False,
                    rates=self.rates,
                )
                plans.append(plan)
                num_rows = self.dataset.labelled.num_nodes if num_kept is None else num_kept
                left -= 4 * num_rows * part.trees.width  # the result
        except BudgetError:
            return None
        return tuple(plans) if total_cost([each.cost for each in plans]).seconds < _KEPT_FROM_S else None

    def join(self, num_rows: int, budget_bytes: int = 0) -> tuple[int, int]:
        """Return the rows that are joined at a time, and the memory of the join.

        ``budget_bytes`` is its memory if the columns are on the SSD. Columns in memory take short reads as well.
        """
        row_bytes = 4 * sum(part.trees.width for part in self.parts)
        least, most = _CHUNK_BYTES
        chunk_bytes = min((budget_bytes - self.fixed_bytes() - _JOIN_BYTES) // _CHUNKS_HELD, most)
        chunk_rows, footer = max(max(chunk_bytes, least) // row_bytes, 1), 0
        if self.suffix:
            # Small row groups make a large footer. At the root, both take the same memory, whatever the columns.
            least, most = _GROUP_ROWS
            chunk_rows = min(max(math.isqrt(num_rows * _ENTRY_BYTES // (4 * _CHUNKS_HELD)), least), most)
            footer = -(-num_rows // chunk_rows) * self.request.width * _ENTRY_BYTES
        chunk = row_bytes * min(chunk_rows, max(num_rows, 1))
        return chunk_rows, _CHUNKS_HELD * chunk + footer + _JOIN_BYTES

    def fixed_bytes(self) -> int:
        """Return the memory that a run takes from its beginning to its end."""
        tables = self.dataset.node_tables
        # A page of 4096 bytes has a checksum of 8 bytes.
        checksums = sum(tables[name].feature_bytes // 512 for name in self.request.features.roots)
        needs_splits = bool(self.suffix) or self.request.settings.nodes == "labelled"
        return (
            checksums
            + (split_bytes(self.dataset) if needs_splits else 0)
            + (label_bytes(self.dataset) if self.request.labels is not None else 0)
        )

    def _output_bytes(self, num_rows: int) -> int:
        """Return the bytes on disk of the result."""
        settings, width = self.request.settings, self.request.width
        if self.suffix:
            value_bytes = (
                _CSV_BYTES if self.suffix == ".csv" else STORED_DTYPES[settings.dtype].stored.itemsize
            )
            return num_rows * (value_bytes * width + _TABLE_ROW_BYTES)
        num_bytes = (
            disk_bytes(settings.dtype, (num_rows, width))
            + 4 * num_rows * STORED_DTYPES[settings.dtype].has_scale
        )
        if settings.nodes == "labelled":
            return num_bytes + num_rows * _NODE_BYTES
        if self.shares_files:
            return num_bytes
        has_edges = keeps_edges(self.dataset, range(num_rows))
        copied = copied_arrays(self.dataset, has_edges=has_edges).values()
        return num_bytes + sum(disk_bytes(each.dtype, each.shape) for each in copied)
