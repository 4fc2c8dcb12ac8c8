"""Full-neighbour inference, layer by layer, on any device, for graphs whose features exceed memory.

Batch by batch, a node's row would be computed again for every batch that reaches the node. Layer by layer, every row is
computed once, from the rows of the layer below. A graph of one node type is treated as a graph of one type and one
relation.

`HeteroInference` is the entry, for evaluations and predictions. In each call, `layer_plan` fits all layers into the
memory. `placement` chooses the device, and the copies of rows and edges to read. `layer_pass` then computes the layers.
A layer's sums are its output rows before the network's last operations on a row, its tail.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gloader.device.seam import settle_vector_math
from gloader.errors import ConfigError
from gloader.samplers.graph import HeteroGraph
from gloader.training.inference.embedded_features import EmbeddedFeatures
from gloader.training.inference.layer_pass import InferenceRun
from gloader.training.inference.layer_plan import plan_inference
from gloader.training.inference.layer_rows import EmbeddedRows, iter_rows
from gloader.training.inference.placement import FIRST_SHARE, Given, place_inference
from gloader.types import EDGE, NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from gloader.device import Device, DeviceTier
    from gloader.loader.node_embedding import FrozenEmbedding
    from gloader.models import GraphNetwork
    from gloader.samplers import Topology
    from gloader.training.inference.layer_plan import Extent
    from gloader.training.inference.layer_rows import MadeRows
    from gloader.types import FeatureSource, IdArray, Relation

    Progress = Callable[[float], None]


logger = logging.getLogger("gloader")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeteroInference:
    """Full-neighbour inference of any network over a graph's types and relations, within a memory budget.

    Parameters
    ----------
    graph : the graph, with the in-edges of all relations
    features : (N_t, F_t) features of each type that has some
    target : the type for `logits`
    memory_budget_bytes : host memory for tables, activations and buffers. The topology and the network, with its
        learned rows, are not counted. On a GPU, tables and activations take its free memory first
    scratch : folder for activations that do not fit; defaults to $GLOADER_SPILL_DIR, otherwise the system's temporary
        folder. Only a private folder inside it is written, and removed at the end. After a kill, the next run removes
        the private folder
    device : the computing device; defaults to the network's device
    edge_features : (E, F_e) features of relations in edge order, which layers with edge features read in that order
    tiers : the loader's part of the device memory, with cached rows and perhaps the edges, by type; used if the
        loader's device is the network's, and there are no embeddings
    embeddings : (N_t, D_t) trained rows of each type with an embedding, which are columns behind its features
    """

    graph: HeteroGraph
    features: Mapping[str, FeatureSource]
    target: str
    memory_budget_bytes: int
    scratch: Path | None = None
    device: Device | None = None
    edge_features: Mapping[Relation, FeatureSource] = field(default_factory=dict)
    tiers: Mapping[str, DeviceTier] = field(default_factory=dict)
    embeddings: Mapping[str, FrozenEmbedding] = field(default_factory=dict)

    @classmethod
    def of_one_type(
        cls,
        *,
        graph: Topology,
        features: FeatureSource,
        edge_features: FeatureSource | None = None,
        tier: DeviceTier | None = None,
        **options: Any,
    ) -> HeteroInference:
        """Return the inference over a graph of one type.

        Parameters
        ----------
        graph : the full topology
        features : (N, F)
        edge_features : (E, F_e), in edge order
        tier : the loader's device memory; used if the loader's device is the network's
        **options : memory_budget_bytes, scratch and device, see `HeteroInference`
        """
        return cls(
            graph=HeteroGraph.of_one_type(graph),
            features={NODE: features},
            target=NODE,
            edge_features={} if edge_features is None else {EDGE: edge_features},
            tiers={} if tier is None else {NODE: tier},
            **options,
        )

    def logits(
        self,
        network: GraphNetwork,
        nodes: IdArray,
        on_progress: Progress = lambda _: None,
        *,
        order: IdArray | None = None,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield position ranges and their logits, (., classes), for target ``nodes``, in order.

        The network computes in evaluation mode, without dropout. Its mode is restored afterwards.

        Parameters
        ----------
        network : the network, on its device
        nodes : (n,) int64, ids within the type, in any order
        on_progress : called with the finished share, 0 to 1
        order : (n,) the position in ``nodes`` of each result row. If None, rows keep the order of ``nodes``

        Raises
        ------
        BudgetError
            The budget is too small for the narrowest table of a type. Raised before any read.
        ConfigError
            The network belongs to another dataset, or its edge features are missing in the graph or have another width.
        ThreadStartError
            The system allows no more threads.
        """
        num_layers = len(network.layers)
        return self._rows(network, num_layers, self.target, nodes, order, on_progress, is_output=True)

    def activations(
        self,
        network: GraphNetwork,
        num_layers: int,
        node_type: str,
        nodes: IdArray,
        *,
        order: IdArray | None = None,
        on_progress: Progress = lambda _: None,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield ranges of positions and their rows after layer number ``num_layers``, 1 to L.

        Parameters
        ----------
        network, on_progress : see `logits`
        num_layers : number of layers to compute
        node_type : a type that this layer computes
        nodes : (n,) int64, ids within ``node_type``; ascending ids, the order of the edges, are fastest
        order : (n,) the position in ``nodes`` of each result row. If None, rows keep the order of ``nodes``

        Raises
        ------
        BudgetError, ConfigError, ThreadStartError
            See `logits`.
        """
        return self._rows(network, num_layers, node_type, nodes, order, on_progress, is_output=False)

    @contextmanager
    def embedded(
        self, network: GraphNetwork, *, on_progress: Progress = lambda _: None
    ) -> Iterator[dict[str, EmbeddedRows]]:
        """Open the output of ``network`` for all target nodes, by type, computed in one pass.

        Until the context closes, the network is in evaluation mode, and torch records no gradients.

        Parameters
        ----------
        network, on_progress : see `logits`

        Raises
        ------
        BudgetError, ConfigError, ThreadStartError
            See `logits`.
        """
        counts = self._all_outputs(network)
        all_nodes = {name: range(count) for name, count in counts.items()}
        leave = _tail_on_host(network, len(network.layers), is_output=True)
        with self._last_sums(network, len(network.layers), all_nodes, on_progress) as sums:
            yield {
                name: EmbeddedRows(
                    rows,
                    num_rows=counts[name],
                    kept_dim=network.layers[-1].sum_dim,
                    width=network.out_dim,
                    leave=leave,
                )
                for name, rows in sums.items()
            }

    def require_memory(self, network: GraphNetwork, *, num_outputs: int | None) -> None:
        """Raise BudgetError if the network does not fit the budget; reads nothing.

        Parameters
        ----------
        network : the network
        num_outputs : number of nodes for `logits`. None stands for the rows of `embedded`
        """
        outputs = self._all_outputs(network) if num_outputs is None else {self.target: num_outputs}
        self.require_layers(network, len(network.layers), outputs)

    def require_layers(self, network: GraphNetwork, num_layers: int, outputs: Mapping[str, int]) -> None:
        """Raise BudgetError if ``num_layers`` do not fit with ``outputs`` rows of each type; reads nothing."""
        extent = self._given().extent(outputs)
        plan_inference(network.layers[:num_layers], extent, budget_bytes=self.memory_budget_bytes)

    def extent(self, *, num_outputs: int) -> Extent:
        """Return the sizes of the graph and a result for ``num_outputs`` target nodes."""
        return self._given().extent({self.target: num_outputs})

    def _all_outputs(self, network: GraphNetwork) -> dict[str, int]:
        """Return the number of nodes of each target type."""
        return {name: self.graph.num_nodes[name] for name in network.targets}

    def _given(self) -> Given:
        """Return the inputs in the form that `place_inference` takes."""
        joined = {
            name: EmbeddedFeatures(embedding, self.features.get(name))
            for name, embedding in self.embeddings.items()
        }
        return Given(
            graph=self.graph,
            features={**self.features, **joined},
            budget_bytes=self.memory_budget_bytes,
            edge_features=self.edge_features,
            # A tier holds features alone.
            tiers={} if joined else self.tiers,
            device=self.device,
        )

    def _rows(
        self,
        network: GraphNetwork,
        num_layers: int,
        node_type: str,
        nodes: IdArray,
        order: IdArray | None,
        on_progress: Progress,
        *,
        is_output: bool,
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield position ranges and rows after layer number ``num_layers``.

        The parameters are those of `activations`. ``is_output`` means that the rows are the network's output.
        """
        leave = _tail_on_host(network, num_layers, is_output=is_output)
        with self._last_sums(network, num_layers, {node_type: nodes}, on_progress) as sums:
            width = network.layers[num_layers - 1].sum_dim
            for positions, rows in iter_rows(sums[node_type], num_rows=len(nodes), width=width, order=order):
                yield positions, rows if leave is None else leave(rows)

    @contextmanager
    def _last_sums(
        self,
        network: GraphNetwork,
        num_layers: int,
        nodes: Mapping[str, IdArray | range],
        on_progress: Progress,
    ) -> Iterator[dict[str, MadeRows]]:
        """Open the sums of layer number ``num_layers``, 1 to L, for each type's ``nodes``."""
        # This comes before any thread computes, because two threads must not make the first call at the same time.
        settle_vector_math()
        self._require_edge_features(network)
        was_training = network.training
        network.eval()
        try:
            with torch.no_grad(), ExitStack() as stack:
                yield self._all_layers(network, num_layers, nodes, on_progress, stack)
        finally:
            network.train(was_training)

    def _all_layers(
        self,
        network: GraphNetwork,
        num_layers: int,
        nodes: Mapping[str, IdArray | range],
        on_progress: Progress,
        stack: ExitStack,
    ) -> dict[str, MadeRows]:
        """Return a layer's sums. If a device runs out of memory, try again in half of it.

        Parameters
        ----------
        network, num_layers, nodes, on_progress : see `_last_sums`
        stack : owns the files and memory of the successful attempt
        """
        given, share = self._given(), FIRST_SHARE
        extent = given.extent({name: len(ids) for name, ids in nodes.items()})
        while True:
            placed = place_inference(network, given, extent, num_layers=num_layers, share=share)
            device = placed.device
            # Each attempt has its own stack, so that its folder is removed before the next attempt.
            with ExitStack() as attempt:
                try:
                    sums = InferenceRun(placed, self.scratch, attempt).all_layers(nodes, on_progress)
                except torch.OutOfMemoryError:
                    if not device.is_asynchronous:
                        raise
                    sums = None
                else:
                    stack.push(attempt.pop_all())
                # The attempt's device memory must not count as taken.
                del placed
            # torch keeps freed memory for the stream that allocated it, but batches use another stream. This call makes
            # torch release that memory; its result is not needed.
            device.free_bytes()
            if sums is not None:
                return sums
            share *= 2
            logger.warning("evaluation ran out of memory on %s: again, in half of it", device.place)

    def _require_edge_features(self, network: GraphNetwork) -> None:
        """Raise ConfigError if a layer reads edge features of a width that the graph does not have."""
        for layer in network.layers:
            for relation, conv in layer.relations.items():
                source = self.edge_features.get(relation)
                edge_dim = 0 if source is None else source.dim
                if conv.edge_dim not in (0, edge_dim):
                    raise ConfigError(
                        f"the network reads {conv.edge_dim} features per edge; the graph has {edge_dim}"
                    )


def _tail_on_host(
    network: GraphNetwork, num_layers: int, *, is_output: bool
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the function `GraphNetwork.tail`, from a layer's sums to its rows, for rows on the host. May be None."""
    tail = network.tail(num_layers, is_output=is_output)
    if tail is None:
        return None
    return lambda rows: tail(rows.to(next(network.parameters()).device)).cpu()
