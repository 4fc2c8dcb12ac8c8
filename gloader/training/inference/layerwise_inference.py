"""Full-neighbour inference, one layer for all nodes at a time, on graphs whose features exceed memory.

A sampled network would visit a node's neighbourhood once per batch; layer by layer every node is computed
once. A layer is projected node by node while its inputs stream past in node order, and then propagated
along all in-edges from the projected table, which is kept in memory, by slabs of columns where it must.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.device.mkl_first_call import settle_vector_math
from gloader.pipeline.channel import Channel
from gloader.pipeline.threads import Failures, Pipeline, stage_thread
from gloader.ssd_store.spill.claim import SpillClaim, remove_dead_spills, spill_parent
from gloader.training.inference.activations import FeatureRows, RamRows, Rows, SsdRows
from gloader.training.inference.edge_pieces import cut_rows, iter_pieces
from gloader.training.inference.layer_plan import LayerPlan, plan_inference
from gloader.training.process import release_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.models import GraphNetwork
    from gloader.models.conv import Conv, Table
    from gloader.samplers import Topology
    from gloader.types import FeatureSource, IdArray

    Progress = Callable[[float], None]

SCRATCH_PREFIX = "gloader-infer-"
# Logits of so many nodes are a few MB, and their class is taken at once.
_ROWS_PER_RESULT = 1 << 16
_NODES_PER_CUT = 1 << 16  # nodes whose degrees are looked at together


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerwiseInference:
    """Full-neighbour inference of any network over one graph, its features and a memory budget.

    Parameters
    ----------
    graph : the whole topology
    features : (N, F)
    memory_budget_bytes : for tables, activations and buffers; the topology is not counted
    scratch : folder for activations that do not fit; defaults to $GLOADER_SPILL_DIR, else the system's temporary
        folder. Only a private folder inside it is written, and removed at the end; after a kill the next run removes it
    """

    graph: Topology
    features: FeatureSource
    memory_budget_bytes: int
    scratch: Path | None = None

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
        ThreadStartError
            The system allows no more threads.
        """
        # Before a thread computes: its first call must not happen in two threads at once.
        settle_vector_math()
        plans = plan_inference(
            model.layers,
            num_nodes=self.graph.num_nodes,
            num_outputs=len(nodes),
            budget_bytes=self.memory_budget_bytes,
            fetch_edge_bytes=self.graph.sources.fetch_bytes(1),
        )
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad(), ExitStack() as stack:
                run = _Run(self, _on_device(model, self.graph.num_nodes, plans), stack)
                result = run.all_layers(plans, nodes, on_progress)
                width = model.layers[-1].out_dim
                for start in range(0, len(nodes), _ROWS_PER_RESULT):
                    stop = min(start + _ROWS_PER_RESULT, len(nodes))
                    out = np.empty((stop - start, width), dtype=np.float32)
                    result.read(start, stop, out)
                    yield slice(start, stop), torch.from_numpy(out)
        finally:
            model.train(was_training)


class _Run:
    """One pass through all layers. What it opens is closed by ``stack``."""

    def __init__(self, job: LayerwiseInference, model: GraphNetwork, stack: ExitStack) -> None:
        self._job = job
        self._graph = job.graph
        self._model = model
        self._stack = stack
        self._device = next(model.parameters()).device
        self._scratch: Path | None = None

    def all_layers(self, plans: tuple[LayerPlan, ...], nodes: IdArray, on_progress: Progress) -> Rows:
        """Return the activations of the last layer for ``nodes``."""
        steps = 2 * sum(len(plan.slabs) for plan in plans)
        done = 0
        inputs: Rows = FeatureRows(self._job.features)
        for depth, (conv, plan) in enumerate(zip(self._model.layers, plans, strict=True)):
            targets = nodes if depth == len(plans) - 1 else range(self._graph.num_nodes)
            outputs = self._open_outputs(depth, plan, num_rows=len(targets), width=conv.out_dim)
            # Each slab reads all inputs again: more I/O, in order, instead of a table that does not fit.
            for columns in plan.slabs:
                table = self._project(depth, conv, inputs, plan, columns)
                done += 1
                on_progress(done / steps)
                outputs.write_slab(columns, self._propagate(conv, table, targets, plan, columns))
                del table  # before the next one is made
                # Smaller blocks stay in the heap where they are freed: 30 MB after the slabs of a budget of 300 MB.
                release_freed_memory()
                done += 1
                on_progress(done / steps)
            # A layer's inputs go as soon as all of its slabs are done: two layers' activations at most are held.
            inputs.close()
            inputs = outputs
        return inputs

    def _open_outputs(self, depth: int, plan: LayerPlan, *, num_rows: int, width: int) -> RamRows | SsdRows:
        outputs: RamRows | SsdRows
        if plan.is_on_disk:
            # Made with the first layer that needs it; a run that fits leaves no folder, not even an empty one.
            if self._scratch is None:
                parent = spill_parent(self._job.scratch)
                remove_dead_spills(parent)
                claim = SpillClaim(parent, prefix=SCRATCH_PREFIX)
                self._stack.callback(claim.remove)
                self._scratch = claim.path
            outputs = SsdRows(self._scratch / f"layer-{depth}", num_rows=num_rows)
        else:
            outputs = RamRows(num_rows=num_rows, width=width)
        self._stack.callback(outputs.close)
        return outputs

    def _project(self, depth: int, conv: Conv, inputs: Rows, plan: LayerPlan, columns: slice) -> Table:
        num_nodes = self._graph.num_nodes
        widths = conv.table_widths(columns.stop - columns.start)
        table = tuple(torch.empty(num_nodes, width, device=self._device) for width in widths)
        for start, x in _stream(inputs, num_nodes, conv.in_dim, plan.rows_per_read):
            rows = slice(start, start + len(x))
            entered = self._model.enter(depth, torch.from_numpy(x).to(self._device))
            # Of the whole graph, as in training, where blocks carry it.
            degree = self._degree(np.arange(rows.start, rows.stop))
            for part, values in zip(table, conv.project(entered, degree, columns), strict=True):
                part[rows] = values
        return table

    def _propagate(
        self, conv: Conv, table: Table, targets: IdArray | range, plan: LayerPlan, columns: slice
    ) -> Iterator[NDArray[np.float32]]:
        for first in range(0, len(targets), _NODES_PER_CUT):
            nodes = np.array(targets[first : first + _NODES_PER_CUT], dtype=np.int64)
            counts = self._graph.indptr[nodes + 1] - self._graph.indptr[nodes]
            for rows in cut_rows(counts, max_edges=plan.edges_per_piece, max_rows=plan.rows_per_piece):
                chosen = nodes[rows.start : rows.stop]
                pieces = iter_pieces(self._graph, chosen, max_edges=plan.edges_per_piece, device=self._device)
                ids = torch.from_numpy(chosen).to(self._device)
                yield conv.propagate(table, ids, pieces, self._degree(chosen), columns).cpu().numpy()

    def _degree(self, nodes: IdArray) -> torch.Tensor:
        degree = self._graph.indptr[nodes + 1] - self._graph.indptr[nodes]
        return torch.from_numpy(degree.astype(np.float32)).to(self._device)


def _stream(
    source: Rows, num_rows: int, width: int, rows_per_read: int
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield consecutive chunks and their first row; the next chunk is read while this one is used."""
    starts = range(0, num_rows, rows_per_read)
    to_read: Channel[int] = Channel(len(starts))
    for start in starts:
        to_read.put(start)
    to_read.close()
    # Two: one is read into while the other is computed on.
    free: Channel[NDArray[np.float32]] = Channel(2)
    for _ in range(2):
        free.put(np.empty((min(rows_per_read, num_rows), width), dtype=np.float32))
    chunks: Channel[_Chunk] = Channel(1)
    failures = Failures(chunks.fail)
    reader = Pipeline(
        [stage_thread(_ReadChunk(source, num_rows, free), to_read, chunks, failures)],
        cancels=[free, chunks],
        failures=failures,
        on_joined=lambda: None,
    )
    try:
        reader.start()
        for start in starts:
            chunk = chunks.get()
            yield start, chunk.rows
            free.put(chunk.buffer)
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class _Chunk:
    buffer: NDArray[np.float32]
    rows: NDArray[np.float32]  # the part of it that was read


class _ReadChunk:
    """Reads chunks into buffers that are given back."""

    name: Final = "infer"

    def __init__(self, source: Rows, num_rows: int, free: Channel[NDArray[np.float32]]) -> None:
        self._source = source
        self._num_rows = num_rows
        self._free = free

    def process(self, start: int) -> _Chunk:
        buffer = self._free.get()
        rows = buffer[: self._num_rows - start]
        self._source.read(start, start + len(rows), rows)
        return _Chunk(buffer, rows)


def _on_device(model: GraphNetwork, num_nodes: int, plans: tuple[LayerPlan, ...]) -> GraphNetwork:
    """Return the network on its own device where the widest table fits there, else a copy on the CPU."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        return model
    widest = max(
        sum(conv.table_widths(columns.stop - columns.start))
        for conv, plan in zip(model.layers, plans, strict=True)
        for columns in plan.slabs
    )
    free_bytes, _ = torch.cuda.mem_get_info(device)
    # Half of what is free: pieces of edges and their scores lie beside the table.
    if 4 * widest * num_nodes <= free_bytes // 2:
        return model
    return copy.deepcopy(model).to("cpu")
