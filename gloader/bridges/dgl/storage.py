"""Features on the SSD under DGL's own data loader and samplers.

A storage is DGL's object that fetches rows of node or edge data. `wrap_graph` returns a `GraphWithStores`, in which
some node data has a `RowStorage` over one of gloader's feature sources. DGL's loader gets the storage from the graph,
and calls its ``fetch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gloader.bridges.cached_rows import CachedRows
from gloader.convert.sources.dgl import quiet_dgl
from gloader.core.near_names import near_keywords
from gloader.errors import ForkError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.cache import OnlineName
    from gloader.types import FeatureSource


with quiet_dgl("gloader.adapters.dgl needs"):
    from dgl.storages.base import FeatureStorage


@near_keywords
def wrap_graph(
    graph: Any,
    features: Mapping[str, FeatureSource],
    *,
    cache: str | int = 0,
    policy: OnlineName = "sieve",
) -> GraphWithStores:
    """Return ``graph`` with some of its node data in stores, for ``dgl.dataloading.DataLoader``.

    DGL chooses the batches: future samples are unknown, so the cache decides batch by batch which rows to keep.
    `BlockLoader` plans with its future batches, reads less and waits less. List the names in ``features`` in the
    sampler's ``prefetch_node_feats``, so that DGL fetches them in the main process.

    Parameters
    ----------
    graph : a `dgl.DGLGraph`
    features : sources by name, with one row per node, such as ``dataset.open_features()``; the caller closes them
    cache : bytes of host memory for each source's rows ("2GB" or a number)
    policy : "sieve", "s3fifo", "lru", "clock" or "fifo"

    Raises
    ------
    ShapeError
        A source has another number of rows than the graph has nodes.
    ConfigError
        The policy is unknown.
    """
    for name, source in features.items():
        if source.num_rows != graph.num_nodes():
            raise ShapeError(
                f"features {name!r} have {source.num_rows} rows, the graph has {graph.num_nodes()} nodes; "
                "one row per node is needed"
            )
    storages = {
        name: RowStorage(CachedRows(source, cache=cache, policy=policy)) for name, source in features.items()
    }
    return GraphWithStores(graph, storages)


class RowStorage(FeatureStorage):
    """A DGL feature storage over a source's rows.

    Its pickle for DGL's worker processes leaves out the rows: workers sample, and only the main process fetches.
    """

    def __init__(self, rows: CachedRows) -> None:
        self.rows: CachedRows | None = rows

    def fetch(
        self, indices: torch.Tensor, device: str | torch.device, pin_memory: bool | None = False, **_: Any
    ) -> Fetched:
        """Read rows at once, in the calling thread. A thread with DGL's own future would lose the read's errors.

        Parameters
        ----------
        indices : (M,) node ids
        device : receives the rows
        pin_memory : copy to the device from pinned memory

        Raises
        ------
        ForkError
            Called in a DGL worker process.
        SeedError, StoreError
            See `CachedRows.gather`.
        """
        if self.rows is None:
            raise ForkError(
                "a worker process requested features of a gloader store; name these features in the sampler's "
                "prefetch_node_feats, so that the main process fetches them"
            )
        # DGL's loader passes None for a graph that is not a `dgl.DGLGraph`.
        is_pinned = bool(pin_memory)
        rows = torch.from_numpy(self.rows.gather(indices.cpu().numpy()))
        if is_pinned:
            rows = rows.pin_memory()
        return Fetched(rows.to(device, non_blocking=is_pinned))

    def __getstate__(self) -> dict[str, Any]:
        return {"rows": None}


class _InMemory(FeatureStorage):
    """A DGL storage that accepts ``pin_memory=None``, which DGL's loader passes for graphs of other classes."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def fetch(
        self, indices: torch.Tensor, device: str | torch.device, pin_memory: bool | None = False, **how: Any
    ) -> Any:
        """Fetch the rows ``indices`` to ``device`` from the wrapped storage."""
        return self._storage.fetch(indices, device, bool(pin_memory), **how)


class Fetched:
    """DGL's future for a fetch, already complete."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def wait(self) -> torch.Tensor:
        """Return the rows."""
        return self._rows


class GraphWithStores:
    """A graph for DGL's data loader, with its own storages by name; all other attributes are the wrapped graph's.

    It is not a `dgl.DGLGraph`, whose node data cannot hold storages.
    """

    def __init__(self, graph: Any, storages: Mapping[str, RowStorage]) -> None:
        self.graph = graph
        self.storages = storages
        # DGL's loader reads this attribute; there are no caches of DGL's own on the GPU.
        self._gpu_caches: dict[str, dict[str, Any]] = {"node": {}, "edge": {}}

    def get_node_storage(self, key: str, ntype: str | None = None) -> Any:
        """Return the storage of node data ``key``."""
        if key in self.storages:
            return self.storages[key]
        return _InMemory(self.graph.get_node_storage(key, ntype))

    def get_edge_storage(self, key: str, etype: Any = None) -> Any:
        """Return the storage of edge data ``key``."""
        return _InMemory(self.graph.get_edge_storage(key, etype))

    def __getattr__(self, name: str) -> Any:
        # While an object is unpickled, ``graph`` is not set yet, and the lookup below would never end.
        if name.startswith("__") or name == "graph":
            raise AttributeError(name)
        return getattr(self.graph, name)
