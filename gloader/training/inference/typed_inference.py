"""Full-neighbour inference of a graph of several node types: a layer at a time, a type at a time, out of core."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from gloader.device.seam import settle_vector_math
from gloader.observe.peak_memory import release_freed_memory
from gloader.training.inference.edges import PieceLimits
from gloader.training.inference.placement import HeteroGiven, OutputRoom, in_less_memory, place_types
from gloader.training.inference.plan import Extent, plan_types
from gloader.training.inference.row_stream import DeviceRows, fetch_behind, num_ahead, stream_rows
from gloader.training.inference.rows import EmbeddedRows, RamRows, SsdRows, Targets, iter_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.device import Device
    from gloader.models import HeteroNetwork
    from gloader.models.conv import HeteroLayer, RelationConv, Table
    from gloader.samplers.graph import HeteroGraph
    from gloader.training.inference.placement import HeteroPlacement, LayerOutputs
    from gloader.training.inference.plan import LayerPlan
    from gloader.training.inference.row_stream import AnyRows
    from gloader.training.inference.rows import MadeRows
    from gloader.types import FeatureSource, IdArray, Relation

    Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A layer and a type that it makes."""

    depth: int
    layer: HeteroLayer
    node_type: str
    plan: LayerPlan
    inputs: Mapping[str, AnyRows]  # of the types that it reads
    targets: Targets

    @property
    def convs(self) -> dict[Relation, RelationConv]:
        """The relations into the type; one from the type to itself first, as its table is made with the sums."""
        into = {key: conv for key, conv in self.layer.relations.items() if key[2] == self.node_type}
        return dict(sorted(into.items(), key=lambda item: item[0][0] != self.node_type))


class HeteroRun:
    """One pass through all layers.

    Parameters
    ----------
    placed : where it computes, and what from
    scratch : folder for activations that do not fit
    stack : closes what it opens
    """

    def __init__(self, placed: HeteroPlacement, scratch: Path | None, stack: ExitStack) -> None:
        self._num_nodes = placed.graph.num_nodes
        self._with_edges = frozenset(placed.extent.relations)
        self._placed = placed
        self._device = placed.device
        self._room = OutputRoom(scratch, placed.device, stack)

    def all_layers(self, nodes: Mapping[str, IdArray | range], on_progress: Progress) -> dict[str, MadeRows]:
        """Return the activations of the last layer for ``nodes`` of each target, in host memory or on the SSD."""
        placed = self._placed
        num_slabs = sum(len(plan.slabs) for plans in placed.plans for plan in plans.values())
        done = 0
        inputs: dict[str, AnyRows] = dict(placed.inputs)
        made: dict[str, LayerOutputs] = {}
        for depth, plans in enumerate(placed.plans):
            layer = placed.network.layers[depth]
            made = {}
            for number, (node_type, plan) in enumerate(plans.items()):
                everyone = range(self._num_nodes[node_type])
                wanted = nodes[node_type] if depth == placed.num_layers - 1 else everyone
                targets = Targets(wanted, len(everyone), self._device.place)
                outputs = made[node_type] = self._room.open(
                    f"layer-{depth}-{number}", plan, num_rows=len(targets), width=layer.out_dim
                )
                step = _Step(
                    depth=depth, layer=layer, node_type=node_type, plan=plan, inputs=inputs, targets=targets
                )
                for columns in plan.slabs:
                    self._make(step, columns, outputs)
                    done += 1
                    on_progress(done / num_slabs)
                # What no later type of the layer reads goes at once.
                later = {
                    name for after in list(plans)[number + 1 :] for name in placed.extent.types_read(after)
                }
                for name in [name for name in inputs if name not in later]:
                    inputs.pop(name).close()
            inputs = dict(made)
        results: dict[str, MadeRows] = {}
        for node_type in nodes:
            result = made[node_type]
            assert isinstance(result, RamRows | SsdRows)  # noqa: S101 - no plan leaves a result on the device
            results[node_type] = result
        return results

    def _make(self, step: _Step, columns: slice, outputs: LayerOutputs) -> None:
        """Make the columns of all rows of a type."""
        sums = self._sums(step, columns, outputs)
        own, first_table = self._begin(step, columns, sums)
        for relation, conv in step.convs.items():
            table = self._project(step, relation, conv, columns) if first_table is None else first_table
            first_table = None  # each is gone before the next one is made
            self._add(step, relation, conv, table, own[relation], columns, sums)
            del table
            # Smaller blocks stay in the heap where they are freed.
            release_freed_memory()
        if isinstance(outputs, RamRows | SsdRows) and not self._adds_in_place(outputs):
            step_rows = step.plan.rows_per_piece
            chunks = (sums[start : start + step_rows] for start in range(0, len(sums), step_rows))
            with closing(fetch_behind(chunks, self._device, lambda: self._buffers)) as fetched:
                outputs.write_slab(columns, fetched)

    def _adds_in_place(self, outputs: LayerOutputs) -> bool:
        return isinstance(outputs, DeviceRows) or (
            isinstance(outputs, RamRows) and not self._device.is_asynchronous
        )

    def _sums(self, step: _Step, columns: slice, outputs: LayerOutputs) -> torch.Tensor:
        """Return where the relations are added up, (n, columns): the outputs themselves where the device has them."""
        if isinstance(outputs, DeviceRows):
            return outputs.columns(columns)
        if isinstance(outputs, RamRows) and self._adds_in_place(outputs):
            return torch.from_numpy(outputs.columns(columns))
        return torch.empty(len(step.targets), columns.stop - columns.start, device=self._device.place)

    def _begin(
        self, step: _Step, columns: slice, sums: torch.Tensor
    ) -> tuple[dict[Relation, Table], Table | None]:
        """Write what nodes bring to their own sums.

        Return what they bring to the messages of each relation, and the table of the first one, where their type is
        its source.
        """
        convs, num_columns = step.convs, columns.stop - columns.start
        own = {
            relation: self._blank(len(step.targets), conv.own_widths(num_columns))
            for relation, conv in convs.items()
        }
        first = next(iter(convs), None)
        table = None
        if first is not None and first[0] == step.node_type and first in self._with_edges:
            table = self._blank(self._num_nodes[step.node_type], convs[first].table_widths(num_columns))
        for start, x in self._entered(step, step.node_type):
            if table is not None and first is not None:
                _write(table, slice(start, start + len(x)), convs[first].project(x, columns))
            found = step.targets.among(start, start + len(x))
            if found is None:
                continue
            positions, rows = found
            mine = x[rows]
            sums[positions] = step.layer.own(step.node_type, mine, columns)
            for relation, conv in convs.items():
                _write(own[relation], positions, conv.project_own(mine, columns))
        return own, table

    def _project(self, step: _Step, relation: Relation, conv: RelationConv, columns: slice) -> Table:
        """Return the table of a relation's sources; without edges it has no rows."""
        source = relation[0]
        num_rows = self._num_nodes[source] if relation in self._with_edges else 0
        table = self._blank(num_rows, conv.table_widths(columns.stop - columns.start))
        if num_rows:
            for start, x in self._entered(step, source):
                _write(table, slice(start, start + len(x)), conv.project(x, columns))
        return table

    def _entered(self, step: _Step, node_type: str) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the first row of consecutive chunks of a type, and the chunks as the layer sees them."""
        chunks = stream_rows(
            step.inputs[node_type],
            self._device,
            shape=(self._num_nodes[node_type], step.layer.in_dims[node_type]),
            rows_per_read=step.plan.rows_per_read,
            buffers=lambda: self._buffers,
        )
        with closing(chunks):
            for start, x in chunks:
                yield start, self._placed.network.enter(step.depth, node_type, x)

    def _add(
        self,
        step: _Step,
        relation: Relation,
        conv: RelationConv,
        table: Table,
        own: Table,
        columns: slice,
        sums: torch.Tensor,
    ) -> None:
        """Add the messages of a relation to ``sums``, in one scan of its edges."""
        limits = PieceLimits(max_edges=step.plan.edges_per_piece, max_rows=step.plan.rows_per_piece)
        row = 0
        with closing(self._placed.edges(relation).parts(step.targets.nodes, limits)) as parts:
            for part in parts:
                here = slice(row, row + len(part.nodes))
                brought = tuple(values[here] for values in own)
                sums[here] += conv.propagate(table, brought, part.pieces, part.degree, columns)
                row = here.stop

    def _blank(self, num_rows: int, widths: tuple[int, ...]) -> Table:
        return tuple(torch.empty(num_rows, width, device=self._device.place) for width in widths)

    @cached_property
    def _buffers(self) -> list[NDArray[np.uint8]]:
        """For inputs on their way to the device, and for outputs on their way back: never for both at a time."""
        values = 1
        for depth, plans in enumerate(self._placed.plans):
            in_dims = self._placed.network.layers[depth].in_dims
            for node_type, plan in plans.items():
                rows = {name: self._num_nodes[name] for name in self._placed.extent.types_read(node_type)}
                read = max(min(plan.rows_per_read, count) * in_dims[name] for name, count in rows.items())
                values = max(values, read, min(plan.rows_per_piece, rows[node_type]) * plan.slabs[0].stop)
        return [self._device.host_buffer(4 * values) for _ in range(num_ahead(self._device))]


def _write(table: Table, positions: slice | torch.Tensor, rows: Table) -> None:
    for part, values in zip(table, rows, strict=True):
        part[positions] = values


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroInference:
    """Full-neighbour inference of any network over one graph of several types, its features and a memory budget.

    Parameters
    ----------
    graph : all relations
    features : (N_t, F_t) of each type that has features
    target : the type that `logits` are of
    memory_budget_bytes : of host memory, for tables, activations and buffers; the topology and the network, with its
        learned rows, are not counted. On a GPU, tables and activations take its free memory first
    scratch : folder for activations that do not fit; defaults to $GLOADER_SPILL_DIR, else the system's temporary
        folder. Only a private folder inside it is written, and removed at the end; after a kill the next run removes it
    device : computes; defaults to that of the network
    """

    graph: HeteroGraph
    features: Mapping[str, FeatureSource]
    target: str
    memory_budget_bytes: int
    scratch: Path | None = None
    device: Device | None = None

    def logits(
        self, network: HeteroNetwork, nodes: IdArray, on_progress: Progress = lambda _: None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the logits of ``nodes`` (n,) of the target type in order: a range of positions, and its (., classes).

        The network computes in evaluation mode and without dropout; it is left in the mode it was in.

        Parameters
        ----------
        network : on its device
        nodes : (n,) int64, ids within the type, in any order
        on_progress : called with the share that is done, 0 to 1

        Raises
        ------
        BudgetError
            The budget is too small for the narrowest table of a type; raised before anything is read.
        ConfigError
            The network is of another dataset.
        ThreadStartError
            The system allows no more threads.
        """
        return self._rows(network, len(network.layers), self.target, nodes, None, on_progress, is_last=True)

    def activations(
        self,
        network: HeteroNetwork,
        num_layers: int,
        node_type: str,
        nodes: IdArray,
        *,
        order: IdArray | None = None,
        on_progress: Progress = lambda _: None,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield what the layer number ``num_layers``, 1 to L, makes of ``nodes`` (n,): positions, and their rows.

        Parameters
        ----------
        network, on_progress : as of `logits`
        num_layers : as many are computed
        node_type : a type that this layer makes
        nodes : (n,) int64, ids within ``node_type``, best in ascending order, in which edges are read
        order : (n,) at each position of the result, which of ``nodes`` it is; None: they come as they are

        Raises
        ------
        BudgetError, ConfigError, ThreadStartError
            As of `logits`.
        """
        return self._rows(network, num_layers, node_type, nodes, order, on_progress, is_last=False)

    @contextmanager
    def embedded(
        self, network: HeteroNetwork, *, on_progress: Progress = lambda _: None
    ) -> Iterator[dict[str, EmbeddedRows]]:
        """Open the output of ``network`` for all nodes of each of its targets, by type, computed in one pass.

        The network is in evaluation mode, and torch keeps no gradients, until it is closed.

        Parameters
        ----------
        network, on_progress : as of `logits`

        Raises
        ------
        BudgetError, ConfigError, ThreadStartError
            As of `logits`.
        """
        counts = self._all_outputs(network)
        with self._made(
            network, len(network.layers), {name: range(n) for name, n in counts.items()}, on_progress
        ) as (made):
            yield {
                name: EmbeddedRows(
                    rows,
                    num_rows=counts[name],
                    kept_dim=network.layers[-1].out_dim,
                    width=network.out_dim,
                    leave=None if network.mlp is None else partial(_leave, network),
                )
                for name, rows in made.items()
            }

    def require_memory(self, network: HeteroNetwork, *, num_outputs: int | None) -> None:
        """Raise BudgetError where it would not fit the budget; nothing is read.

        Parameters
        ----------
        network : computes
        num_outputs : nodes that `logits` are wanted of; None: what `embedded` gives is wanted
        """
        outputs = self._all_outputs(network) if num_outputs is None else {self.target: num_outputs}
        self.require_layers(network, len(network.layers), outputs)

    def require_layers(self, network: HeteroNetwork, num_layers: int, outputs: Mapping[str, int]) -> None:
        """Raise BudgetError where ``num_layers`` would not fit, for so many nodes of each type; nothing is read."""
        extent = self._given().extent(outputs)
        plan_types(network.layers[:num_layers], extent, budget_bytes=self.memory_budget_bytes)

    def extent(self, *, num_outputs: int) -> Extent:
        """Return how much there is to compute from for so many nodes of the target type."""
        return self._given().extent({self.target: num_outputs})

    def _all_outputs(self, network: HeteroNetwork) -> dict[str, int]:
        return {name: self.graph.num_nodes[name] for name in network.schema.targets}

    def _given(self) -> HeteroGiven:
        return HeteroGiven(
            graph=self.graph,
            features=self.features,
            budget_bytes=self.memory_budget_bytes,
            device=self.device,
        )

    def _rows(
        self,
        network: HeteroNetwork,
        num_layers: int,
        node_type: str,
        nodes: IdArray,
        order: IdArray | None,
        on_progress: Progress,
        *,
        is_last: bool,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        with self._made(network, num_layers, {node_type: nodes}, on_progress) as made:
            width = network.layers[num_layers - 1].out_dim
            for positions, rows in iter_rows(made[node_type], num_rows=len(nodes), width=width, order=order):
                yield positions, _leave(network, rows) if is_last else rows

    @contextmanager
    def _made(
        self,
        network: HeteroNetwork,
        num_layers: int,
        nodes: Mapping[str, IdArray | range],
        on_progress: Progress,
    ) -> Iterator[dict[str, MadeRows]]:
        """Open what the layer number ``num_layers`` makes of ``nodes`` of each type."""
        # Before a thread computes: its first call must not happen in two threads at once.
        settle_vector_math()
        was_training = network.training
        network.eval()
        try:
            with torch.no_grad(), ExitStack() as stack:
                given = self._given()
                extent = given.extent({name: len(wanted) for name, wanted in nodes.items()})
                yield in_less_memory(
                    lambda share: place_types(network, given, extent, num_layers=num_layers, share=share),
                    lambda placed, attempt: HeteroRun(placed, self.scratch, attempt).all_layers(
                        nodes, on_progress
                    ),
                    stack,
                )
        finally:
            network.train(was_training)


def _leave(network: HeteroNetwork, rows: torch.Tensor) -> torch.Tensor:
    """Return the output for ``rows`` (n, width) that leave the last layer, on the host."""
    return network.leave(rows.to(next(network.parameters()).device)).cpu()
