"""The numbers that rows would have in a dataset that was prepared in another order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.cache import access_counts
from gloader.convert.csc.scratch_csc import CscPiece
from gloader.convert.order.communities import order_of_communities
from gloader.convert.order.row_order import RowOrder, by_falling_degree
from gloader.convert.progress import NO_PROGRESS
from gloader.errors import ConfigError
from gloader.samplers import CscGraph, HeteroGraph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.dataset import Dataset
    from gloader.pipeline.table_files import TableFiles
    from gloader.samplers import Topology
    from gloader.types import IdArray


def reordered_rows(
    dataset: Dataset, files: TableFiles, topology: Topology | HeteroGraph, name: str
) -> IdArray | None:
    """Return the new number (N,) of each row, as of `gloader prepare --order`; None where it stays as it is.

    Nodes of equal degree keep the order that they have. Batches are sampled as before: that they are those of the same
    nodes is what makes two orders comparable.

    Parameters
    ----------
    dataset : whose nodes
    files : their rows
    topology : in memory, where the order is one by communities
    name : of the order

    Raises
    ------
    ConfigError
        It cannot be found for this dataset.
    """
    if isinstance(topology, HeteroGraph) or len(files.tables) != 1 or files.tables[0].is_of_edges:
        raise ConfigError(
            f"order={name}: what another order does can be told of nodes of one type whose edges have no features"
        )
    if _order_of(dataset) == name:
        return None
    if name == "none":
        return dataset.original_ids
    if name == "degree":
        degrees = access_counts(topology.sources.pieces(), topology.num_nodes)
        return RowOrder.of(by_falling_degree(degrees)).new_ids
    if not isinstance(topology, CscGraph):
        raise ConfigError(
            f"order={name}: the edges have to be in memory for that, and there is too little of it here"
        )
    graph = _HeldLists(graph=topology)
    nodes = order_of_communities(graph, max_edges=max(topology.num_edges, 1), progress=NO_PROGRESS)
    return RowOrder.of(nodes).new_ids


def _order_of(dataset: Dataset) -> str:
    """Return the order in which a dataset was prepared; what others wrote is in none."""
    options = dataset.metadata.get("options")
    return str(options.get("order", "none")) if isinstance(options, dict) else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldLists:
    """The in-neighbours of a graph in memory, as `order_of_communities` reads them."""

    graph: CscGraph

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    def pieces(self, max_edges: int) -> Iterator[CscPiece]:  # noqa: ARG002 - they are in memory already
        yield CscPiece(first=0, indptr=self.graph.indptr, indices=self.graph.indices)
