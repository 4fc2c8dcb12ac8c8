"""Full-neighbour inference of a graph of several node types, on any device, whatever exceeds memory.

`hetero_run` computes; where, and in which pieces, is settled by `hetero_placement` and `hetero_plan`.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from gloader.device.mkl_first_call import settle_vector_math
from gloader.training.inference.attempts import in_less_memory
from gloader.training.inference.hetero_placement import HeteroGiven, place_types
from gloader.training.inference.hetero_plan import Extent, plan_types
from gloader.training.inference.hetero_run import HeteroRun
from gloader.training.inference.results import EmbeddedRows, iter_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from gloader.device import Device
    from gloader.models import HeteroNetwork
    from gloader.samplers.hetero_graph import HeteroGraph
    from gloader.training.inference.activations import MadeRows
    from gloader.types import FeatureSource, IdArray

    Progress = Callable[[float], None]


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
