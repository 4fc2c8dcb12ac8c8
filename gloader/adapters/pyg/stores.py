"""Features and topology behind PyG's remote-backend interfaces."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.adapters.rows import CachedRows
from gloader.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from gloader.cache import OnlineName
    from gloader.samplers import CscGraph
    from gloader.types import FeatureSource, IdArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
    from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout


class RowStore(FeatureStore):
    """``x`` from a store on the SSD and ``y`` from memory, for ``torch_geometric.loader.NodeLoader``.

    PyG drives: what it will sample is unknown, so the cache decides batch by batch. Pass the loader
    ``filter_per_worker=False``: features must be fetched in the process that opened the store.

    Parameters
    ----------
    features : one row per node, such as ``dataset.open_features()``; the caller closes it
    labels : (N,) int64
    cache : bytes of host memory for rows ("2GB" or a number)
    policy : "sieve", "s3fifo", "lru", "clock" or "fifo"

    Raises
    ------
    ShapeError
        There is not one label per row.
    ConfigError
        The policy is unknown.
    """

    def __init__(
        self, features: FeatureSource, labels: IdArray, *, cache: str | int = 0, policy: OnlineName = "sieve"
    ) -> None:
        super().__init__()
        if labels.shape != (features.num_rows,):
            raise ShapeError(
                f"labels have shape {labels.shape} for {features.num_rows} feature rows; one per row is needed"
            )
        # FeatureStore intercepts attributes of its views; the dictionary is what it leaves alone.
        self.__dict__["rows"] = CachedRows(features, cache=cache, policy=policy)
        self.__dict__["labels"] = torch.tensor(labels)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the names of what is stored; new objects, since PyG writes into them."""
        return [TensorAttr(group_name=None, attr_name=name) for name in ("x", "y")]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor:
        if attr.attr_name == "y":
            labels: torch.Tensor = self.labels[slice(None) if attr.index is None else attr.index]
            return labels
        index = attr.index
        if index is None or isinstance(index, slice):
            index = torch.arange(self.rows.source.num_rows)[index or slice(None)]
        return torch.from_numpy(self.rows.gather(torch.as_tensor(index).cpu().numpy()))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        if attr.attr_name == "y":
            return tuple(self.labels.shape)
        return self.rows.source.num_rows, self.rows.source.dim

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:  # noqa: ARG002 - refused
        raise ConfigError(f"{attr.attr_name}: a RowStore is read-only")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise ConfigError(f"{attr.attr_name}: a RowStore is read-only")


class TopologyStore(GraphStore):
    """A graph as PyG's ``GraphStore``: one CSC edge type. Shares the arrays where their dtype is int64."""

    def __init__(self, graph: CscGraph) -> None:
        super().__init__()
        self.__dict__["graph"] = graph

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return the one edge type."""
        size = (self.graph.num_nodes, self.graph.num_nodes)
        return [EdgeAttr(edge_type=None, layout=EdgeLayout.CSC, is_sorted=True, size=size)]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        if edge_attr.layout != EdgeLayout.CSC:
            return None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return (
                torch.from_numpy(self.graph.indices.astype(np.int64, copy=False)),
                torch.from_numpy(self.graph.indptr),
            )

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:  # noqa: ARG002 - refused
        raise ConfigError("a TopologyStore is read-only")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:  # noqa: ARG002 - refused
        raise ConfigError("a TopologyStore is read-only")
