"""Features and topology behind PyG's remote-backend interfaces."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.bridges.rows import CachedRows
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError, ShapeError
from gloader.samplers import CscGraph

if TYPE_CHECKING:
    from gloader.cache import OnlineName
    from gloader.samplers import HeteroGraph, Topology
    from gloader.types import FeatureSource, IdArray


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
    from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout


@near_keywords
class RowStore(FeatureStore):
    """``x`` from stores on the SSD and ``y`` from memory, for ``torch_geometric.loader.NodeLoader``.

    PyG drives: what it will sample is unknown, so the cache decides batch by batch. Pass the loader
    ``filter_per_worker=False``: features must be fetched in the process that opened the store.

    Parameters
    ----------
    features : one row per node, such as ``dataset.open_features()``; the caller closes it. Of a graph of several types
        a mapping, of the types that have features
    labels : (N,) int64; of a graph of several types a mapping, of the types that have labels
    cache : bytes of host memory for the rows of each source ("2GB" or a number)
    policy : "sieve", "s3fifo", "lru", "clock" or "fifo"

    Raises
    ------
    ShapeError
        There is not one label per row.
    ConfigError
        The policy is unknown; or features are given by type and labels are not, or the reverse.
    """

    def __init__(
        self,
        features: FeatureSource | Mapping[str, FeatureSource],
        labels: IdArray | Mapping[str, IdArray],
        *,
        cache: str | int = 0,
        policy: OnlineName = "sieve",
    ) -> None:
        super().__init__()
        sources, classes = _by_type(features, labels)
        for name, found in classes.items():
            if name in sources and found.shape != (sources[name].num_rows,):
                where = "" if name is None else f"{name}: "
                raise ShapeError(
                    f"{where}labels have shape {found.shape} for {sources[name].num_rows} feature rows; one per row is "
                    "needed"
                )
        # FeatureStore intercepts attributes of its views; the dictionary is what it leaves alone.
        self.__dict__["tables"] = {
            name: CachedRows(source, cache=cache, policy=policy) for name, source in sources.items()
        }
        self.__dict__["classes"] = {name: torch.tensor(found) for name, found in classes.items()}

    @property
    def rows(self) -> CachedRows:
        """The rows of a graph of one type."""
        rows: CachedRows = self.tables[None]
        return rows

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the names of what is stored; new objects, since PyG writes into them."""
        pairs = [("x", self.tables), ("y", self.classes)]
        return [
            TensorAttr(group_name=name, attr_name=attribute) for attribute, held in pairs for name in held
        ]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor | None:
        group, index = attr.group_name, attr.index
        if attr.attr_name == "y" and group in self.classes:
            labels: torch.Tensor = self.classes[group][slice(None) if index is None else index]
            return labels
        if attr.attr_name != "x" or group not in self.tables:
            return None
        rows = self.tables[group]
        if index is None or isinstance(index, slice):
            index = torch.arange(rows.source.num_rows)[index or slice(None)]
        return torch.from_numpy(rows.gather(torch.as_tensor(index).cpu().numpy()))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        if attr.attr_name == "y" and attr.group_name in self.classes:
            return tuple(self.classes[attr.group_name].shape)
        if attr.attr_name != "x" or attr.group_name not in self.tables:
            return None
        source = self.tables[attr.group_name].source
        return source.num_rows, source.dim

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:  # noqa: ARG002 - refused
        raise ConfigError(f"{attr.attr_name}: a RowStore is read-only")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise ConfigError(f"{attr.attr_name}: a RowStore is read-only")


@near_keywords
class TopologyStore(GraphStore):
    """A graph as PyG's ``GraphStore``: a CSC edge type for each relation. Shares the arrays whose dtype is int64.

    Raises
    ------
    ConfigError
        A relation is not in memory.
    """

    def __init__(self, graph: CscGraph | HeteroGraph) -> None:
        super().__init__()
        relations: Mapping[Any, Topology] = {None: graph} if isinstance(graph, CscGraph) else graph.relations
        for relation, edges in relations.items():
            if not isinstance(edges, CscGraph):
                raise ConfigError(
                    f"{':'.join(relation or ())}: PyG takes graphs in memory, and this relation's edges are on the SSD"
                )
        self.__dict__["relations"] = dict(relations)

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return the edge types."""
        return [
            EdgeAttr(
                edge_type=relation,
                layout=EdgeLayout.CSC,
                is_sorted=True,
                size=(graph.num_sources, graph.num_nodes),
            )
            for relation, graph in self.relations.items()
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        graph = self.relations.get(edge_attr.edge_type)
        if graph is None or edge_attr.layout != EdgeLayout.CSC:
            return None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return (
                torch.from_numpy(graph.indices.astype(np.int64, copy=False)),
                torch.from_numpy(graph.indptr),
            )

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:  # noqa: ARG002 - refused
        raise ConfigError("a TopologyStore is read-only")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:  # noqa: ARG002 - refused
        raise ConfigError("a TopologyStore is read-only")


def _by_type(
    features: FeatureSource | Mapping[str, FeatureSource], labels: IdArray | Mapping[str, IdArray]
) -> tuple[Mapping[Any, FeatureSource], Mapping[Any, IdArray]]:
    """Return both by type; the only type of a graph without types is None, as PyG has it."""
    if isinstance(features, Mapping) and isinstance(labels, Mapping):
        return features, labels
    if isinstance(features, Mapping) or isinstance(labels, Mapping):
        raise ConfigError("features and labels are both given by type, or neither is")
    return {None: features}, {None: labels}
