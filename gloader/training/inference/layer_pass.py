"""One full-neighbour inference pass through a network, layer by layer and type by type.

A layer has one convolution for each relation (edge type) and, if it adds several terms, a Linear term for a node's own
row. It computes the rows of a node type in two steps. First the rows of a source type are read in chunks and projected
into a table. Then the table's rows are added along all in-edges, relation after relation, into sums. The sums are the
layer's outputs and the next layer's inputs.

`HeteroInference` makes an `InferenceRun` for each call. `layer_plan` chose the chunks, the slabs (ranges of output
columns) and the home of the outputs before; `placement` chose the device. Activations are the rows between two layers.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gloader.observe.peak_memory import release_freed_memory
from gloader.training.inference.layer_rows import RamRows, SsdRows, Targets
from gloader.training.inference.placement import OutputRoom
from gloader.training.inference.row_stream import DeviceRows, fetch_behind, num_ahead, stream_rows
from gloader.training.inference.scanned_edges import PieceLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.models.adjacency import Part
    from gloader.models.conv import Conv, Layer, Table
    from gloader.training.inference.layer_plan import LayerPlan
    from gloader.training.inference.layer_rows import MadeRows
    from gloader.training.inference.placement import LayerOutputs, Placement
    from gloader.training.inference.row_stream import AnyRows
    from gloader.types import IdArray, Relation

    Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The computation of one layer's rows for one node type."""

    depth: int  # number of the layer, from 0
    layer: Layer
    node_type: str  # type of the output rows
    plan: LayerPlan
    inputs: Mapping[str, AnyRows]  # rows of the types that the layer reads
    targets: Targets  # nodes of the output rows

    @property
    def convs(self) -> dict[Relation, Conv]:
        """The relations into the type and their convolutions.

        A relation from the type itself comes first, because one scan of the type's rows makes its table and all own
        terms.
        """
        into = self.layer.relations_into(self.node_type)
        return dict(sorted(into.items(), key=lambda item: item[0][0] != self.node_type))

    @property
    def is_sum(self) -> bool:
        """True if a row is a sum of several terms. Otherwise one convolution gives the whole row."""
        return self.node_type in self.layer.roots

    @property
    def rowwise(self) -> Conv | None:
        """The convolution, if it makes an output row of the node's own row alone; otherwise None."""
        conv = next(iter(self.layer.relations_into(self.node_type).values()), None)
        return conv if conv is not None and conv.is_rowwise and not self.is_sum else None


class InferenceRun:
    """One pass through all layers.

    Parameters
    ----------
    placed : the inference's device, plans, inputs and edges
    scratch : parent of the folder for activations that do not fit into memory; None means the default
    stack : the caller's exit stack, which closes the activations
    """

    def __init__(self, placed: Placement, scratch: Path | None, stack: ExitStack) -> None:
        self._num_nodes = placed.graph.num_nodes
        self._with_edges = frozenset(placed.extent.relations)
        self._placed = placed
        self._device = placed.device
        self._room = OutputRoom(scratch, placed.device, stack)
        self._num_steps = sum(
            # One step for the nodes' own rows, and one for each relation.
            len(plan.slabs) * (1 + len(layer.relations_into(name)))
            for layer, plans in zip(placed.layers, placed.plans, strict=True)
            for name, plan in plans.items()
        )
        self._num_done = 0  # finished steps, for the progress

    def all_layers(self, nodes: Mapping[str, IdArray | range], on_progress: Progress) -> dict[str, MadeRows]:
        """Return the last layer's sums for ``nodes`` of each target type, in host memory or on the SSD.

        Parameters
        ----------
        nodes : (n,) ids by target type
        on_progress : called with the finished share, 0 to 1
        """
        placed = self._placed
        inputs: dict[str, AnyRows] = dict(placed.inputs)
        outputs_by_type: dict[str, LayerOutputs] = {}
        for depth, (layer, plans) in enumerate(zip(placed.layers, placed.plans, strict=True)):
            outputs_by_type = {}
            for number, (node_type, plan) in enumerate(plans.items()):
                all_nodes = range(self._num_nodes[node_type])
                target_ids = nodes[node_type] if depth == len(placed.plans) - 1 else all_nodes
                targets = Targets(target_ids, len(all_nodes), self._device.place)
                outputs = outputs_by_type[node_type] = self._room.open(
                    f"layer-{depth}-{number}", plan, num_rows=len(targets), width=layer.sum_dim
                )
                step = _Step(
                    depth=depth, layer=layer, node_type=node_type, plan=plan, inputs=inputs, targets=targets
                )
                # Each slab reads all inputs again, in order. This is more I/O, but no table exceeds the memory.
                for columns in plan.slabs:
                    self._make(step, columns, outputs, on_progress)
                # Inputs that no later type of this layer reads are closed at once.
                later = {
                    name for after in list(plans)[number + 1 :] for name in placed.extent.types_read(after)
                }
                for name in [name for name in inputs if name not in later]:
                    inputs.pop(name).close()
            inputs = dict(outputs_by_type)
        results: dict[str, MadeRows] = {}
        for node_type in nodes:
            result = outputs_by_type[node_type]
            assert isinstance(result, RamRows | SsdRows)  # noqa: S101 - no plan leaves a result on the device
            results[node_type] = result
        return results

    def _make(self, step: _Step, columns: slice, outputs: LayerOutputs, on_progress: Progress) -> None:
        """Compute one slab of columns for all rows of a type, and write it to ``outputs``.

        `_begin` scans the type's own rows. Then each relation's table is made and its messages are added.
        """

        def advance() -> None:
            self._num_done += 1
            on_progress(self._num_done / self._num_steps)

        if (rowwise := step.rowwise) is not None:
            with closing(self._own_rows(step, rowwise, columns)) as chunks:
                if isinstance(outputs, DeviceRows):
                    outputs.write_slab(columns, chunks)
                else:
                    # The buffers of `_write` are in use: they bring the inputs.
                    outputs.write_slab(columns, (rows.cpu().numpy() for rows in chunks))
            advance()
            advance()
            return
        sums = self._sums(step, columns, outputs) if step.is_sum else None
        own_terms, first_table = self._begin(step, columns, sums)
        advance()
        for relation, conv in step.convs.items():
            table = self._project(step, relation, conv, columns) if first_table is None else first_table
            first_table = None  # each table is freed before the next one is made
            own = own_terms[relation]
            with closing(self._messages(step, relation, conv, table, own, columns)) as messages:
                if sums is None:
                    # The messages of one convolution are the whole rows, in order.
                    self._write(outputs, columns, (rows for _, rows in messages))
                else:
                    for positions, rows in messages:
                        sums[positions] += rows
                        del rows  # freed before the next rows are made
            del table
            # glibc keeps smaller freed blocks in the heap: 30 MB after the slabs of a 300 MB budget.
            release_freed_memory()
            advance()
        if sums is not None and not self._adds_in_place(outputs):
            step_rows = step.plan.rows_per_piece
            self._write(
                outputs,
                columns,
                (sums[start : start + step_rows] for start in range(0, len(sums), step_rows)),
            )

    def _write(self, outputs: LayerOutputs, columns: slice, chunks: Iterator[torch.Tensor]) -> None:
        """Write consecutive chunks of rows, on the device, to ``columns`` of the outputs."""
        if isinstance(outputs, DeviceRows):
            outputs.write_slab(columns, chunks)
            return
        with closing(fetch_behind(chunks, self._device, lambda: self._buffers)) as fetched:
            outputs.write_slab(columns, fetched)

    def _adds_in_place(self, outputs: LayerOutputs) -> bool:
        """Return whether sums are added in the memory of ``outputs``, because it is the computing device's."""
        return isinstance(outputs, DeviceRows) or (
            isinstance(outputs, RamRows) and not self._device.is_asynchronous
        )

    def _sums(self, step: _Step, columns: slice, outputs: LayerOutputs) -> torch.Tensor:
        """Return the array that receives the sums of all relations, (n, columns): a view of the outputs if possible."""
        if isinstance(outputs, DeviceRows):
            return outputs.columns(columns)
        if isinstance(outputs, RamRows) and self._adds_in_place(outputs):
            return torch.from_numpy(outputs.columns(columns))
        return torch.empty(len(step.targets), columns.stop - columns.start, device=self._device.place)

    def _begin(
        self, step: _Step, columns: slice, sums: torch.Tensor | None
    ) -> tuple[dict[Relation, Table], Table | None]:
        """Scan the type's own rows; write their Linear terms to ``sums``, if there are sums.

        Returns each relation's own terms, the values that its convolution computes from the destination's own row
        (`Conv.project_own`). Also returns the first relation's table if its sources have this type, otherwise None.
        """
        convs, num_columns = step.convs, columns.stop - columns.start
        own_terms = {
            relation: self._blank(len(step.targets), conv.own_widths(num_columns))
            for relation, conv in convs.items()
        }
        first = next(iter(convs), None)
        table = None
        if first is not None and first[0] == step.node_type and self._table_rows(step, first):
            table = self._blank(self._num_nodes[step.node_type], convs[first].table_widths(num_columns))
        for start, x in self._entered(step, step.node_type):
            if table is not None and first is not None:
                self._project_chunk(table, start, x, first, convs[first], columns)
            # The chunk's rows of target nodes: their positions in the outputs, and in the chunk.
            choice = step.targets.among(start, start + len(x)) if sums is not None else None
            if sums is None or choice is None:
                continue
            positions, rows = choice
            target_x = x[rows]
            sums[positions] = step.layer.own(step.node_type, target_x, columns)
            for relation, conv in convs.items():
                _write(own_terms[relation], positions, conv.project_own(target_x, columns))
        return own_terms, table

    def _own_rows(self, step: _Step, conv: Conv, columns: slice) -> Generator[torch.Tensor]:
        """Yield the output rows of a rowwise convolution, in the order of the targets. Reads only their rows."""
        nodes, plan = step.targets.nodes, step.plan
        chunks = stream_rows(
            step.inputs[step.node_type],
            self._device,
            shape=(len(nodes), step.layer.read_dims[step.node_type]),
            rows_per_read=min(plan.rows_per_read, plan.rows_per_piece),
            buffers=lambda: self._buffers,
            nodes=None if isinstance(nodes, range) else nodes,
        )
        with closing(chunks):
            for start, x in chunks:
                entered = self._placed.network.enter_sums(step.depth, step.node_type, x, start)
                (rows,) = conv.project(entered, x.new_empty(0), columns)
                yield rows

    def _project(self, step: _Step, relation: Relation, conv: Conv, columns: slice) -> Table:
        """Return the table of a relation's sources. It has no rows for a relation without edges."""
        num_rows = self._table_rows(step, relation)
        table = self._blank(num_rows, conv.table_widths(columns.stop - columns.start))
        if num_rows:
            for start, x in self._entered(step, relation[0]):
                self._project_chunk(table, start, x, relation, conv, columns)
        return table

    def _project_chunk(
        self, table: Table, start: int, x: torch.Tensor, relation: Relation, conv: Conv, columns: slice
    ) -> None:
        """Write the projection of the rows ``x``, which begin at node ``start``, into ``table``."""
        stop = start + len(x)
        # Only within one type may a convolution use in-degrees. They count all edges of the graph, as the degrees of
        # training blocks do.
        is_within = relation[0] == relation[2]
        degree = self._placed.edges(relation).degree(start, stop) if is_within else x.new_empty(0)
        _write(table, slice(start, stop), conv.project(x, degree, columns))

    def _table_rows(self, step: _Step, relation: Relation) -> int:
        """Return a relation's number of table rows: 0 without edges, unless the table also has the nodes' own rows.

        It has these rows if one convolution gives the whole row.
        """
        return self._num_nodes[relation[0]] if relation in self._with_edges or not step.is_sum else 0

    def _entered(self, step: _Step, node_type: str) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield consecutive chunks of a type's rows as they enter the layer, each with its first row number."""
        chunks = stream_rows(
            step.inputs[node_type],
            self._device,
            shape=(self._num_nodes[node_type], step.layer.read_dims[node_type]),
            rows_per_read=step.plan.rows_per_read,
            buffers=lambda: self._buffers,
        )
        with closing(chunks):
            for start, x in chunks:
                yield start, self._placed.network.enter_sums(step.depth, node_type, x, start)

    def _messages(
        self, step: _Step, relation: Relation, conv: Conv, table: Table, own: Table, columns: slice
    ) -> Generator[tuple[slice, torch.Tensor]]:
        """Yield (range of target positions, their summed messages (., columns)) in one scan of the edges."""
        limits = PieceLimits(max_edges=step.plan.edges_per_piece, max_rows=step.plan.rows_per_piece)
        features = self._placed.edge_features[relation] if conv.edge_dim else None
        parts: Generator[Part] = self._placed.edges(relation).parts(step.targets.nodes, limits, features)
        row = 0
        with closing(parts):
            for part in parts:
                positions = slice(row, row + len(part.nodes))
                part_own = tuple(values[positions] for values in own)
                yield positions, conv.propagate(table, part_own, part, columns)
                row = positions.stop

    def _blank(self, num_rows: int, widths: tuple[int, ...]) -> Table:
        """Return an unwritten table on the computing device."""
        return tuple(torch.empty(num_rows, width, device=self._device.place) for width in widths)

    @cached_property
    def _buffers(self) -> list[NDArray[np.uint8]]:
        """Host buffers for inputs on the way to the device, or for outputs on the way back, never for both at once."""
        values = 1  # floats of the largest chunk in the whole pass
        for layer, plans in zip(self._placed.layers, self._placed.plans, strict=True):
            for node_type, plan in plans.items():
                rows = {name: self._num_nodes[name] for name in self._placed.extent.types_read(node_type)}
                read = max(
                    min(plan.rows_per_read, count) * layer.read_dims[name] for name, count in rows.items()
                )
                values = max(values, read, min(plan.rows_per_piece, rows[node_type]) * plan.slabs[0].stop)
        return [self._device.host_buffer(4 * values) for _ in range(num_ahead(self._device))]


def _write(table: Table, positions: slice | torch.Tensor, rows: Table) -> None:
    """Write ``rows`` to ``positions`` of ``table``, part by part."""
    for part, values in zip(table, rows, strict=True):
        part[positions] = values
