"""Full-neighbour inference, one layer for all nodes at a time, on graphs whose features exceed memory, on any device.

A sampled network would visit a node's neighbourhood once per batch; layer by layer every node is computed
once. A layer is projected node by node while its inputs stream past in node order, and then propagated
along all in-edges from the projected table, which is kept in memory, by slabs of columns where it must.
Where rows come from, where edges come from and where activations stay follows from the memory of the device.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch

from gloader.device.seam import settle_vector_math
from gloader.errors import ConfigError
from gloader.models.conv import made_dim
from gloader.observe.peak_memory import release_freed_memory
from gloader.training.inference.edges import EdgeFeatures, PieceLimits
from gloader.training.inference.placement import Given, OutputRoom, in_less_memory, place_inference
from gloader.training.inference.plan import plan_inference, read_dim
from gloader.training.inference.row_stream import DeviceRows, fetch_behind, num_ahead, stream_rows
from gloader.training.inference.rows import EmbeddedRows, RamRows, SsdRows, iter_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.device import Device, DeviceTier
    from gloader.models import GraphNetwork
    from gloader.models.conv import Conv, Table
    from gloader.samplers import Topology
    from gloader.training.inference.placement import LayerOutputs, Placement
    from gloader.training.inference.plan import LayerPlan
    from gloader.training.inference.row_stream import AnyRows
    from gloader.training.inference.rows import MadeRows
    from gloader.types import FeatureSource, IdArray

    Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerwiseInference:
    """Full-neighbour inference of any network over one graph, its features and a memory budget.

    Parameters
    ----------
    graph : the whole topology
    features : (N, F)
    memory_budget_bytes : of host memory, for tables, activations and buffers; the topology is not counted. On a GPU,
        tables and activations take its free memory first
    scratch : folder for activations that do not fit; defaults to $GLOADER_SPILL_DIR, else the system's temporary
        folder. Only a private folder inside it is written, and removed at the end; after a kill the next run removes it
    tier : what a loader's device holds and reads in place; used where it is the network's device
    device : computes; defaults to that of the network
    edge_features : (E, F_e), in the order of the edges; read in that order, beside them, by layers that look at them
    """

    graph: Topology
    features: FeatureSource
    memory_budget_bytes: int
    scratch: Path | None = None
    tier: DeviceTier | None = None
    device: Device | None = None
    edge_features: FeatureSource | None = None

    def logits(
        self, model: GraphNetwork, nodes: IdArray, on_progress: Progress = lambda _: None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the logits of ``nodes`` (n,) in order: a range of positions and (stop - start, classes).

        The network computes in evaluation mode and without dropout; it is left in the mode it was in.

        Parameters
        ----------
        model : the network, on its device
        nodes : (n,) int64
        on_progress : called with the share that is done, 0 to 1

        Raises
        ------
        BudgetError
            The budget is too small for the narrowest table; raised before anything is read.
        ConfigError
            The network looks at features of edges, and there are none, or of another width.
        ThreadStartError
            The system allows no more threads.
        """
        return self._rows(model, nodes, None, on_progress)

    def activations(
        self,
        model: GraphNetwork,
        num_layers: int,
        nodes: IdArray,
        *,
        order: IdArray | None = None,
        on_progress: Progress = lambda _: None,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield what the layer number ``num_layers``, 1 to L, makes of ``nodes`` (n,): positions, and their rows.

        Parameters
        ----------
        model, on_progress : as of `logits`
        num_layers : as many are computed
        nodes : (n,) int64, best in ascending order, in which edges are read
        order : (n,) at each position of the result, which of ``nodes`` it is; None: they come as they are

        Raises
        ------
        BudgetError, ConfigError, ThreadStartError
            As of `logits`.
        """
        return self._rows(model.below(num_layers), nodes, order, on_progress)

    def _rows(
        self, model: GraphNetwork, nodes: IdArray, order: IdArray | None, on_progress: Progress
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        with self._made(model, nodes, on_progress) as made:
            width = made_dim(model.layers[-1])
            for positions, rows in iter_rows(made, num_rows=len(nodes), width=width, order=order):
                yield positions, _finished(model, rows)

    @contextmanager
    def embedded(
        self, model: GraphNetwork, *, on_progress: Progress = lambda _: None
    ) -> Iterator[EmbeddedRows]:
        """Open the output of ``model`` for all nodes.

        The network is in evaluation mode, and torch keeps no gradients, until it is closed.

        Parameters
        ----------
        model, on_progress : as of `logits`

        Raises
        ------
        BudgetError, ConfigError, ThreadStartError
            As of `logits`.
        """
        last, num_nodes = model.layers[-1], self.graph.num_nodes
        with self._made(model, range(num_nodes), on_progress) as made:
            yield EmbeddedRows(
                made,
                num_rows=num_nodes,
                kept_dim=made_dim(last),
                width=last.out_dim,
                leave=None if last.head is None else partial(_finished, model),
            )

    def require_memory(self, model: GraphNetwork, *, num_outputs: int | None) -> None:
        """Raise BudgetError where it would not fit the budget; nothing is read.

        Parameters
        ----------
        model : computes
        num_outputs : nodes that `logits` are wanted of; None: what `embedded` gives is wanted
        """
        plan_inference(
            model.layers,
            num_nodes=self.graph.num_nodes,
            num_outputs=self.graph.num_nodes if num_outputs is None else num_outputs,
            budget_bytes=self.memory_budget_bytes,
        )

    @contextmanager
    def _made(self, model: GraphNetwork, nodes: IdArray | range, on_progress: Progress) -> Iterator[MadeRows]:
        """Open what the last layer makes of ``nodes``."""
        # Before a thread computes: its first call must not happen in two threads at once.
        settle_vector_math()
        self._require_edge_features(model)
        given = Given(
            graph=self.graph,
            features=self.features,
            budget_bytes=self.memory_budget_bytes,
            tier=self.tier,
            device=self.device,
        )
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad(), ExitStack() as stack:
                yield in_less_memory(
                    lambda share: place_inference(model, given, num_outputs=len(nodes), share=share),
                    lambda placed, attempt: _Run(self, placed, attempt).all_layers(nodes, on_progress),
                    stack,
                )
        finally:
            model.train(was_training)

    def _require_edge_features(self, model: GraphNetwork) -> None:
        found = 0 if self.edge_features is None else self.edge_features.dim
        for conv in model.layers:
            if conv.edge_dim not in (0, found):
                raise ConfigError(
                    f"the network looks at {conv.edge_dim} features of every edge; the graph has {found}"
                )


def _finished(model: GraphNetwork, rows: torch.Tensor) -> torch.Tensor:
    """Return the output for ``rows`` (n, width) that the last layer made, on the host."""
    last = len(model.layers) - 1
    if model.layers[last].head is None:
        return rows
    return model.finish(last, rows.to(next(model.parameters()).device)).cpu()


class _Run:
    """One pass through all layers. What it opens is closed by ``stack``."""

    def __init__(self, job: LayerwiseInference, placed: Placement, stack: ExitStack) -> None:
        self._num_nodes = job.graph.num_nodes
        self._edge_features = None if job.edge_features is None else EdgeFeatures(source=job.edge_features)
        self._placed = placed
        self._device = placed.device
        self._room = OutputRoom(job.scratch, placed.device, stack)

    def all_layers(self, nodes: IdArray | range, on_progress: Progress) -> MadeRows:
        """Return the activations of the last layer for ``nodes``, in host memory or on the SSD."""
        plans = self._placed.plans
        steps = 2 * sum(len(plan.slabs) for plan in plans)
        done = 0
        inputs: AnyRows = self._placed.inputs
        for depth, (conv, plan) in enumerate(zip(self._placed.model.layers, plans, strict=True)):
            targets = nodes if depth == len(plans) - 1 else range(self._num_nodes)
            outputs = self._room.open(f"layer-{depth}", plan, num_rows=len(targets), width=made_dim(conv))
            # Each slab reads all inputs again: more I/O, in order, instead of a table that does not fit.
            for columns in plan.slabs:
                table = self._project(depth, conv, inputs, plan, columns)
                done += 1
                on_progress(done / steps)
                self._propagate(conv, table, targets, plan, columns, outputs)
                del table  # before the next one is made
                # Smaller blocks stay in the heap where they are freed: 30 MB after the slabs of a budget of 300 MB.
                release_freed_memory()
                done += 1
                on_progress(done / steps)
            # A layer's inputs go as soon as all of its slabs are done: two layers' activations at most are held.
            inputs.close()
            inputs = outputs
        assert isinstance(outputs, RamRows | SsdRows)  # noqa: S101 - no plan leaves a result on the device
        return outputs

    def _project(self, depth: int, conv: Conv, inputs: AnyRows, plan: LayerPlan, columns: slice) -> Table:
        widths = conv.table_widths(columns.stop - columns.start)
        table = tuple(torch.empty(self._num_nodes, width, device=self._device.place) for width in widths)
        chunks = stream_rows(
            inputs,
            self._device,
            shape=(self._num_nodes, read_dim(self._placed.model.layers, depth)),
            rows_per_read=plan.rows_per_read,
            buffers=lambda: self._buffers,
        )
        with closing(chunks):
            for start, x in chunks:
                below = x if depth == 0 else self._placed.model.finish(depth - 1, x)
                entered = self._placed.model.enter(depth, below)
                # Of the whole graph, as in training, where blocks carry it.
                degree = self._placed.edges.degree(start, start + len(x))
                for part, values in zip(table, conv.project(entered, degree, columns), strict=True):
                    part[start : start + len(x)] = values
        return table

    def _propagate(
        self,
        conv: Conv,
        table: Table,
        targets: IdArray | range,
        plan: LayerPlan,
        columns: slice,
        outputs: LayerOutputs,
    ) -> None:
        limits = PieceLimits(max_edges=plan.edges_per_piece, max_rows=plan.rows_per_piece)
        with ExitStack() as stack:
            features = self._edge_features if conv.edge_dim else None
            parts = stack.enter_context(closing(self._placed.edges.parts(targets, limits, features)))
            chunks = (conv.propagate(table, part.nodes, part.pieces, part.degree, columns) for part in parts)
            if isinstance(outputs, DeviceRows):
                outputs.write_slab(columns, chunks)
            else:
                fetched = fetch_behind(chunks, self._device, lambda: self._buffers)
                outputs.write_slab(columns, stack.enter_context(closing(fetched)))

    @cached_property
    def _buffers(self) -> list[NDArray[np.uint8]]:
        """For inputs on their way to the device, and for outputs on their way back: never for both at a time."""
        plans, layers = self._placed.plans, self._placed.model.layers
        num_values = max(
            max(
                min(plan.rows_per_read, self._num_nodes) * read_dim(layers, depth),
                min(plan.rows_per_piece, self._num_nodes) * plan.slabs[0].stop,
            )
            for depth, plan in enumerate(plans)
        )
        return [self._device.host_buffer(4 * num_values) for _ in range(num_ahead(self._device))]
