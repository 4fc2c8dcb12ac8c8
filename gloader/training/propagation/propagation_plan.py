"""The plan of a propagation: slabs, and what is held in memory, within a budget, with its predicted cost. Pure.

A *slab* is a range of a type's input columns. Columns are independent, so a slab goes through all hops before the next
one is read. A *pass* makes one state of one slab: it needs one table, a matrix (N, w) in memory. In a *held*
propagation, one slab has all columns and the states are in memory too. Otherwise the states are on the SSD, between two
passes, and the widest slab that fits is best, because every slab reads the edges once more in each pass.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.convert.read_ahead import ITEMS_AT_A_TIME
from gloader.core.dtypes import STORED_DTYPES
from gloader.core.offsets import compact_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.plan.too_small import advice, rounded_up
from gloader.training.propagation.hop_pass import PassLimits
from gloader.training.propagation.state_rows import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gloader.dataset import Dataset
    from gloader.training.propagation.chains import HopState, HopStep, HopTrees
    from gloader.types import Relation

FLOAT_BYTES: Final = 4
# Memory of a file that is written, `array_writer.BUFFER_BYTES` twice, and of the buffer for what is read back.
WRITER_BYTES: Final = 9 << 20
RING_BYTES: Final = 2 << 20
# Memory of heaps, stacks and page checksums that is not counted one by one: 2 MB were measured beyond the other bytes.
_HEAP_BYTES: Final = 6 << 20
# A chunk of rows and a piece of edges take this part of the budget each. Larger ones than the limits are not faster.
_BUFFER_PART: Final = 128
_MAX_CHUNK_BYTES: Final = 4 << 20
_MAX_PIECE_EDGES: Final = 1 << 19
_MIN_PIECE_EDGES: Final = 1 << 14
# Bytes of a piece's part of the nodes in the thread that cuts them: offsets, numbers and degrees of 65,536 nodes.
_CUT_BYTES: Final = 4 * 8 << 16
# Memory of a topology whose edges are read page by page: its bounce memory, a round of pages of two arrays.
_PAGED_BYTES: Final = 6 << 20
# Bytes of a state's row in a deviation along "out": the mean and the sum of squares in float64, beside the result.
_MOMENT_BYTES: Final = 16
# Slabs have widths of whole vectors, of 8 values or at least 4: a gather of 7 columns took 2.7 times as long as of 8.
_VECTORS: Final = (8, 4, 1)
# An extent of a slab in the file of cut rows: large reads are as fast as sequential ones.
_EXTENT_BYTES: Final = 512 << 10

# Processor time of a thread on this project's machine (2 cores, 24 GB): a gather of 16 M edges among 1 M nodes took
# 0.09 s with 8 columns and 0.48 s with 128, and 32 M edges among 2 M nodes took 0.32 to 0.38 s with 8, and 1.6 s with
# 128. So an edge takes a time, and each of its values.
EDGE_S: Final = 6e-9
VALUE_S: Final = 0.25e-9
# Time for each byte of a file besides the disk's: checksums, copies, waits between reading and computing. Three hops
# with 10.2 GB read and 4.1 GB written took 10 s longer than the disk and the edges alone would, and the join of 8.2 GB
# 5.4 s.
BYTE_S: Final = 0.7e-9
# Rates of an SSD of which no profile is known.
READ_BYTES_PER_S: Final = 1.2e9
WRITE_BYTES_PER_S: Final = 0.9e9


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSizes:
    """The sizes of one relation's edges."""

    num_edges: int
    source_bytes: int  # bytes of all edges' sources
    weight_bytes: int  # bytes of all edges' weights; 0 without weights
    offset_bytes: int  # bytes of the plain offsets in memory

    @property
    def edge_bytes(self) -> int:
        """Bytes of all sources and weights."""
        return self.source_bytes + self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """The sizes on which a plan depends."""

    num_nodes: Mapping[str, int]
    edges: Mapping[Relation, EdgeSizes]
    input_bytes: Mapping[str, int]  # bytes of a type's input rows as they are read, by type

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> GraphSizes:
        """Return the sizes of a dataset whose features are the inputs."""
        edges = {
            relation: EdgeSizes(
                num_edges=table.num_edges,
                source_bytes=table.arrays["indices"].num_bytes,
                weight_bytes=table.arrays["edge_weight"].num_bytes if table.has_weights else 0,
                offset_bytes=table.arrays["indptr"].num_bytes,
            )
            for relation, table in dataset.edge_tables.items()
        }
        return cls(
            num_nodes={name: nodes.num_nodes for name, nodes in dataset.node_tables.items()},
            edges=edges,
            input_bytes={name: nodes.feature_bytes for name, nodes in dataset.node_tables.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of a machine."""

    read_bytes_per_s: float = READ_BYTES_PER_S
    write_bytes_per_s: float = WRITE_BYTES_PER_S
    edge_s: float = EDGE_S  # seconds of a thread for an edge
    value_s: float = VALUE_S  # seconds of a thread for one column of an edge
    byte_s: float = BYTE_S  # seconds for each byte read or written, besides the disk's
    is_measured: bool = False  # whether the disk's rates were measured here; else they are usual ones


@dataclass(frozen=True, slots=True, kw_only=True)
class HopCost:
    """Bytes and seconds, predicted or measured."""

    rows_read: int = 0  # bytes of rows that are read
    rows_written: int = 0
    edges_read: int = 0
    seconds: float = 0.0  # without the compilation of kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationPlan:
    """The order and the memory in which the states are computed."""

    trees: HopTrees
    slabs: Mapping[str, tuple[slice, ...]]  # ranges of each root type's input columns
    is_held: bool  # whether the states are in memory
    topology_bytes: int  # memory for the edges: `open_hetero_topology`'s ``max_bytes``
    limits: PassLimits
    rows_per_cut: int  # rows of a chunk that is cut into slabs
    held_bytes: int  # predicted peak of the memory
    disk_bytes: int  # predicted peak of the work folder
    cost: HopCost  # predicted

    @property
    def num_slabs(self) -> int:
        """The slabs of all types."""
        return sum(map(len, self.slabs.values()))


def plan_propagation(  # noqa: PLR0913 - independent keywords
    trees: HopTrees,
    sizes: GraphSizes,
    *,
    budget_bytes: int,
    num_kept: int | None = None,
    dtype: str = "float32",
    has_disk: bool = True,
    widths: Mapping[str, int] | None = None,
    threads: int = 0,
    rates: Rates | None = None,
) -> PropagationPlan:
    """Return the fastest plan that keeps within the budget. Pure.

    Parameters
    ----------
    trees : the states
    sizes : the graph's sizes
    budget_bytes : memory for everything
    num_kept : rows of the result; None means all nodes of the target type
    dtype : dtype of the result on the SSD: float32, float16 or bfloat16
    has_disk : whether there is a work folder for states and results; without it, everything is in memory
    widths : columns of a slab by type, from an earlier run that is continued; None chooses them
    threads : computing threads; 0 means one for each core
    rates : the machine's rates

    Raises
    ------
    BudgetError
        The budget is too small; the message has the least budget.
    """
    planner = _SlabPlanner(trees, sizes, budget_bytes, num_kept, dtype, has_disk, threads, rates or Rates())
    plans = list(planner.plans(budget_bytes, widths))
    if not plans:
        raise planner.too_small(budget_bytes, widths)
    return min(plans, key=lambda plan: plan.cost.seconds)


class _SlabPlanner:
    """The sizes of one propagation, in different plans."""

    def __init__(
        self,
        trees: HopTrees,
        sizes: GraphSizes,
        budget_bytes: int,
        num_kept: int | None,
        dtype: str,
        has_disk: bool,
        threads: int,
        rates: Rates,
    ) -> None:
        self._trees = trees
        self._sizes = sizes
        self._buffer = budget_bytes // _BUFFER_PART  # bytes of a chunk or of a piece
        self._keeps_all = num_kept is None
        self._num_kept = sizes.num_nodes[trees.target] if num_kept is None else num_kept
        self._item_bytes = STORED_DTYPES[dtype].stored.itemsize
        self._has_disk = has_disk
        self._threads = threads or len(os.sched_getaffinity(0))
        self._rates = rates
        # Whether an output's rows on the SSD are also the state from which later rows are computed.
        self.shares_rows = self._keeps_all and dtype == "float32"

    def plans(self, budget: int, widths: Mapping[str, int] | None) -> Iterator[PropagationPlan]:
        """Yield every plan that fits."""
        full = dict(self._trees.widths)
        if widths is None or all(widths[name] >= full[name] for name in self._trees.roots):
            plan = self._plan(full, is_held=True, holds_edges=True)
            if plan.held_bytes <= budget:
                yield plan
        if not self._has_disk:
            return
        for holds_edges in (True, False):
            chosen = widths or self._widest(budget, holds_edges=holds_edges)
            if chosen is not None:
                plan = self._plan(chosen, is_held=False, holds_edges=holds_edges)
                if plan.held_bytes <= budget:
                    yield plan

    def too_small(self, budget: int, widths: Mapping[str, int] | None) -> BudgetError:
        """Return the error for a budget without a plan."""
        narrow = widths or dict.fromkeys(self._trees.roots, 1)
        what = "the narrowest slab of columns needs" if widths is None else "the begun propagation needs"
        if not self._has_disk:
            narrow, what = dict(self._trees.widths), "a propagation in memory needs"
        least = 0
        # The buffers are a part of the budget, so the least budget is found step by step.
        while (
            needed := self._plan(
                narrow, is_held=not self._has_disk, holds_edges=not self._has_disk
            ).held_bytes
        ) > least:
            least = needed + needed // 100
            self._buffer = least // _BUFFER_PART
        return BudgetError(
            f"{what} {format_bytes(least)} ({least} bytes) and the memory budget is {format_bytes(budget)}",
            short_bytes=least - budget,
            advice=advice(rounded_up(least)),
        )

    def _widest(self, budget: int, *, holds_edges: bool) -> dict[str, int] | None:
        """Return the widest slabs that fit, in whole vectors and evenly, or None if one column does not fit."""
        widths = {}
        for name in self._trees.roots:
            full = self._trees.widths[name]
            low, high = 0, full
            while low < high:
                width = (low + high + 1) // 2
                fits = self._plan({name: width}, is_held=False, holds_edges=holds_edges).held_bytes <= budget
                low, high = (width, high) if fits else (low, width - 1)
            if not low:
                return None
            # Slabs of equal width, and no narrow rest.
            even = -(-full // -(-full // low))
            step = next(step for step in _VECTORS if step <= low)
            widths[name] = min(-(-even // step), low // step) * step
        return widths

    def _plan(self, widths: Mapping[str, int], *, is_held: bool, holds_edges: bool) -> PropagationPlan:
        """Return the plan with these slabs, whatever it needs."""
        trees, sizes = self._trees, self._sizes
        slabs = {
            name: tuple(
                slice(start, min(start + width, trees.widths[name]))
                for start in range(0, trees.widths[name], width)
            )
            for name, width in widths.items()
        }
        widest = max(widths.values())
        limits = PassLimits(
            rows=max(1, min(self._buffer, _MAX_CHUNK_BYTES) // self._row_bytes(widest)),
            edges=self._piece_edges(),
            threads=self._threads,
        )
        topology_bytes = sum(each.edge_bytes + each.offset_bytes for each in sizes.edges.values())
        fixed = topology_bytes if holds_edges else self._paged_bytes()
        buffers = self._buffer_bytes(limits, widest)
        tables = max(
            self._peak(trees.roots[name], width) if is_held else self._table_bytes(trees.roots[name], width)
            for name, width in widths.items()
        )
        # Rows that are cut into slabs: a chunk in work, two that are read ahead, and one in the reader's buffer.
        # With a multiple of a block's values, the columns of every slab begin a block in every chunk.
        extent, chunk = _EXTENT_BYTES // widest, 4 * self._buffer // max(trees.widths.values())
        rows_per_cut = max(min(extent, chunk) // FLOAT_BYTES // BLOCK, 1) * BLOCK
        is_cut = any(len(ranges) > 1 for ranges in slabs.values())
        cut = 4 * rows_per_cut * FLOAT_BYTES * max(trees.widths.values()) if is_cut else 0
        result = 0 if self._has_disk else self._num_kept * trees.width * FLOAT_BYTES
        joins = self._num_kept * trees.width * self._item_bytes // 512 if self._has_disk else 0
        held = (
            _HEAP_BYTES
            + fixed
            + self._scale_bytes()
            + max(tables + buffers, cut + (1 if self._keeps_all else 2) * WRITER_BYTES)
            + result
        )
        return PropagationPlan(
            trees=trees,
            slabs=slabs,
            is_held=is_held,
            topology_bytes=topology_bytes if holds_edges else 0,
            limits=limits,
            rows_per_cut=rows_per_cut,
            held_bytes=max(held, joins + buffers),
            disk_bytes=self._disk_bytes(slabs, is_held=is_held) if self._has_disk else 0,
            cost=self._cost(slabs, is_held=is_held, holds_edges=holds_edges),
        )

    def _piece_edges(self) -> int:
        """Return the edges of a piece: at most a sixteenth of the edges, so that threads share small graphs too."""
        most = max(each.num_edges for each in self._sizes.edges.values()) // 16
        return max(min(most, self._buffer // self._edge_bytes(), _MAX_PIECE_EDGES), _MIN_PIECE_EDGES)

    def _edge_bytes(self) -> int:
        """Return the memory of an edge in a piece: its source, and its weight as it is stored and in float32."""
        return max(
            max(-(-each.source_bytes // max(each.num_edges, 1)), 4)
            + (4 + -(-each.weight_bytes // max(each.num_edges, 1)) if each.weight_bytes else 0)
            for each in self._sizes.edges.values()
        )

    def _paged_bytes(self) -> int:
        """Return the memory of edges that are read page by page: offsets and page checksums of all relations."""
        total = 0
        for relation, each in self._sizes.edges.items():
            total += (
                compact_bytes(self._sizes.num_nodes[relation[2]])
                + each.edge_bytes // 512
                + each.edge_bytes // 1024
            )
            total += _PAGED_BYTES + each.num_edges // 128
        return total

    def _buffer_bytes(self, limits: PassLimits, width: int) -> int:
        """Return the memory of chunks, pieces and files."""
        nodes = max(self._sizes.num_nodes.values())
        # A ring of rows that are made; and three chunks that are read and one of their product, if rows are read beside
        # a table: by a step along "out", and for ppr.
        is_ppr = self._trees.spec.norm == "ppr"
        beside = 4 if is_ppr or "out" in self._trees.spec.directions else 0
        chunks = (limits.chunks + beside) * min(limits.rows, nodes) * self._row_bytes(width)
        # Pieces that wait for a thread or are in work, and those that are read ahead.
        pieces = (limits.chunks + ITEMS_AT_A_TIME) * limits.edges * self._edge_bytes() + _CUT_BYTES
        files = 0
        if self._has_disk:
            files = (1 if self.shares_rows else 2) * WRITER_BYTES + (2 if is_ppr else 1) * RING_BYTES
        return chunks + pieces + files + (8 * self._num_kept if not self._keeps_all else 0)

    def _row_bytes(self, width: int) -> int:
        """Return the memory of a row in a chunk: its values, moments of deviations, and two numbers of its edges."""
        has_std = any(state.stat == "std" for state in self._states())
        return width * (FLOAT_BYTES + (_MOMENT_BYTES if has_std else 0)) + 2 * 8

    def _scale_bytes(self) -> int:
        """Return the memory of the factors of all steps with means, and of one step's degrees as they are counted."""
        steps = self._mean_steps()
        counted = [8 * self._sizes.num_nodes[step.target] for step in steps if self._counts_edges(step)]
        factors = sum(FLOAT_BYTES * self._sizes.num_nodes[step.target] for step in steps)
        return factors + max(counted, default=0)

    def _counts_edges(self, step: HopStep) -> bool:
        """Return whether the degrees of a step need a pass over its edges, because offsets do not have them."""
        return self._sizes.edges[step.relation].weight_bytes > 0 or step.direction == "out"

    def _mean_steps(self) -> list[HopStep]:
        """Return the different steps with means."""
        return list(
            dict.fromkeys(state.path[-1] for state in self._states() if state.path and state.stat == "mean")
        )

    def _states(self) -> Iterator[HopState]:
        """Yield the states of all trees."""
        for root in self._trees.roots.values():
            yield from root.walk()

    def _rows_bytes(self, state: HopState, width: int) -> int:
        """Return the bytes of a state's rows."""
        return self._sizes.num_nodes[state.node_type] * width * FLOAT_BYTES

    def _receiver_bytes(self, state: HopState, width: int) -> int:
        """Return the bytes of the table that a step along "out" fills, with what it needs beside it."""
        nodes = self._sizes.num_nodes[state.node_type]
        extra = {"mean": 0, "min": 1, "max": 1, "std": 8 + _MOMENT_BYTES * width}[state.stat]
        return nodes * (FLOAT_BYTES * width + extra)

    def _table_bytes(self, state: HopState, width: int) -> int:
        """Return the bytes of the largest table below ``state``, if the states are on the SSD."""
        most = 0
        for each in state.nexts:
            is_in = each.path[-1].direction == "in"
            table = self._rows_bytes(state, width) if is_in else self._receiver_bytes(each, width)
            most = max(most, table, self._table_bytes(each, width))
        return most

    def _peak(self, state: HopState, width: int) -> int:
        """Return the peak bytes of a state's rows and of all that is computed from them in memory."""
        own = most = self._rows_bytes(state, width)
        order = in_order(state)
        for each in order:
            is_out = each.path[-1].direction == "out"
            is_last = each is order[-1] and not self._stays(state)
            is_copied = needs_scaling(each, self._trees) and not is_out and not is_last
            made = self._rows_bytes(each, width) if each.nexts or is_out else 0
            if is_out:
                made = self._receiver_bytes(each, width)
            most = max(most, own + (own if is_copied else 0) + made)
            most = max(most, (0 if is_last else own) + self._peak(each, width))
        return most

    def _stays(self, state: HopState) -> bool:
        """Return whether a state's rows are needed until the end of its tree: the input rows of ppr."""
        return not state.path and self._trees.spec.norm == "ppr"

    def _pieces_bytes(self, width: int) -> int:
        """Return the bytes of an output's rows on the SSD."""
        return self._num_kept * width * self._item_bytes

    def _disk_bytes(self, slabs: Mapping[str, tuple[slice, ...]], *, is_held: bool) -> int:
        """Return the peak bytes of the work folder: outputs, cut rows, and the states of the deepest chain."""
        columns = sum(
            self._trees.widths[name]
            for name, root in self._trees.roots.items()
            for state in root.walk()
            if state.group and (state.path or not self._keeps_all)
        )
        total = self._pieces_bytes(1) * columns
        for name, ranges in slabs.items():
            if len(ranges) > 1:
                total += self._sizes.num_nodes[name] * self._trees.widths[name] * FLOAT_BYTES
        if not is_held:
            widest = max(ranges[0].stop for ranges in slabs.values())
            total += max(self._chain_bytes(self._trees.roots[name], widest) for name in slabs)
        return total

    def _chain_bytes(self, state: HopState, width: int) -> int:
        """Return the bytes of the states on the SSD, below ``state``, that exist at a time."""
        return max(
            (
                (0 if not each.nexts or (each.group and self.shares_rows) else self._rows_bytes(each, width))
                + self._chain_bytes(each, width)
                for each in state.nexts
            ),
            default=0,
        )

    def _cost(self, slabs: Mapping[str, tuple[slice, ...]], *, is_held: bool, holds_edges: bool) -> HopCost:
        """Return the predicted bytes and seconds."""
        sizes, rates, trees = self._sizes, self._rates, self._trees
        rows_read = rows_written = edges_read = 0
        seconds = 0.0
        for step in filter(self._counts_edges, self._mean_steps()):
            counted = sizes.edges[step.relation]
            edges_read += 0 if holds_edges else counted.edge_bytes
            seconds += counted.num_edges * rates.edge_s
        if holds_edges:
            seconds += sum(each.edge_bytes for each in sizes.edges.values()) / rates.read_bytes_per_s
        for name, ranges in slabs.items():
            root, width = trees.roots[name], trees.widths[name]
            matrix = sizes.num_nodes[name] * width * FLOAT_BYTES
            is_cut = len(ranges) > 1
            if is_held or is_cut or (root.group and not self._keeps_all):
                rows_read += sizes.input_bytes[name]
                seconds += sizes.input_bytes[name] / rates.read_bytes_per_s
            if is_cut:
                rows_written += matrix
                seconds += matrix / rates.write_bytes_per_s
            if root.group and not self._keeps_all and self._has_disk:
                rows_written += self._pieces_bytes(width)
            for state in root.walk():
                for each in state.nexts:
                    edge = sizes.edges[each.path[-1].relation]
                    read = written = 0
                    if not is_held:
                        source = (
                            sizes.input_bytes[name]
                            if not state.path and not is_cut
                            else self._rows_bytes(state, width)
                        )
                        read += source
                        if trees.spec.norm == "ppr" and each.stat == "mean":
                            read += matrix if is_cut else sizes.input_bytes[name]
                    if self._has_disk:
                        if each.group:
                            written += self._pieces_bytes(width)
                        if not is_held and each.nexts and not (each.group and self.shares_rows):
                            written += self._rows_bytes(each, width)
                    edge_bytes = edge.edge_bytes if each.stat == "mean" else edge.source_bytes
                    edge_bytes *= 0 if holds_edges else len(ranges)
                    compute = edge.num_edges * (rates.edge_s * len(ranges) + rates.value_s * width)
                    compute /= self._threads
                    rows_read, rows_written = rows_read + read, rows_written + written
                    edges_read += edge_bytes
                    seconds += read / rates.read_bytes_per_s + max(
                        compute,
                        edge_bytes / rates.read_bytes_per_s + written / rates.write_bytes_per_s,
                    )
        seconds += (rows_read + rows_written + edges_read) * rates.byte_s
        return HopCost(rows_read=rows_read, rows_written=rows_written, edges_read=edges_read, seconds=seconds)


def needs_scaling(state: HopState, trees: HopTrees) -> bool:
    """Return whether a state is computed from rows times factors: the means of gcn and ppr. Pure."""
    return state.stat == "mean" and trees.spec.norm != "mean"


def in_order(state: HopState) -> list[HopState]:
    """Return the states after ``state`` in the order of computation: means last, because they may change its rows."""
    return sorted(state.nexts, key=lambda each: (each.stat == "mean", each.path[-1].direction == "in"))
