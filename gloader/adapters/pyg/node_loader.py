"""The loader, yielding PyG's ``Data``, or ``HeteroData`` where there are several types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch

from gloader.adapters.loader_view import LoaderView, to_loader
from gloader.adapters.pyg.data import to_data
from gloader.adapters.pyg.graph_data import GraphData
from gloader.adapters.pyg.hetero_data import to_hetero_data
from gloader.adapters.pyg.hetero_graph_data import HeteroGraphData
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.loader import HeteroLoader
from gloader.samplers import preferred_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gloader.adapters.loader_view import AnyLoader
    from gloader.core.fanouts import FanoutsLike
    from gloader.loader import Loader
    from gloader.types import HeteroReadyBatch, IdArray, ReadyBatch

Nodes: TypeAlias = "torch.Tensor | NDArray[Any]"

_OF_WORKERS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context")


class NodeLoader(LoaderView[Any]):
    """Yields what PyG's ``NeighborLoader`` yields for node tasks, without pyg-lib or torch-sparse.

    That is a ``Data``, see `to_data`, or a ``HeteroData`` of a dataset of several types, see `to_hetero_data`. ``y``
    holds the labels of the seeds alone, so that ``batch.y[:batch.batch_size]`` is all of it; ``input_id`` are the
    seeds' positions in the loader's seeds (the training nodes where none were given).

    Parameters
    ----------
    loader : a `gloader.Loader` or `gloader.HeteroLoader`, or a `gloader.Dataset` to build one for
    settings : of the loader to build: ``fanouts``, ``batch_size``, ``memory_budget``, ...; see `gloader.Loader`.
        ``layout`` is "merged" where it is not given and the sampler has it: batches have exactly the nodes and edges of
        native ones. Of a layered loader they have the nodes, and the edges that PyG would have drawn

    Raises
    ------
    ConfigError
        As `to_loader`.
    """

    def __init__(self, loader: AnyLoader | Dataset, **settings: Any) -> None:
        if isinstance(loader, Dataset):
            # PyG samples each node once, and so does the merged layout: a batch has exactly the edges of
            # the native one.
            settings.setdefault("layout", preferred_layout(settings.get("sampler", "neighbor")))
        native = to_loader(loader, settings)
        convert = _to_hetero_data_of(native) if isinstance(native, HeteroLoader) else _to_data_of(native)
        super().__init__(native, convert=convert, is_owner=isinstance(loader, Dataset))

    @property
    def dataset(self) -> range:
        """The positions of the seeds, as in PyG: ``len(loader.dataset)`` is the seeds of an epoch."""
        return range(len(cast("AnyLoader", self.loader).seeds))


class NeighborLoader(NodeLoader):
    """`NodeLoader` by the names, and with the defaults, of ``torch_geometric.loader.NeighborLoader``.

    All nodes in their order where nothing else is said: ``NeighborLoader(data, [-1], batch_size=1024)`` gives what
    layer-wise inference takes, a layer a pass.

    Parameters
    ----------
    data : a `GraphData` or `HeteroGraphData`, or the `gloader.Dataset` itself; ``loader.data`` is the former
    num_neighbors : neighbours per node and hop, the hop next to the seeds first; -1 takes all. Of a graph of several
        types also by relation, see `gloader.HeteroLoader`; "*" stands for relations that are not named
    input_nodes : (n,) ids or (N,) mask of the seeds; None: all nodes. Of a graph of several types a type and these, as
        ``("paper", ids)``, or a type alone
    batch_size : seeds per batch; all of them where they are fewer, as in PyG
    shuffle : order the seeds anew in every epoch
    settings : other keywords of `gloader.Loader`: ``memory_budget``, ``features``, ``device``, ...

    Raises
    ------
    ConfigError
        A setting speaks of the worker processes that PyG has; ``input_nodes`` is no mask of all nodes, or names no
        type where there are several; or as `gloader.Loader`.
    SeedError
        ``input_nodes`` holds what is no node, or one twice.
    """

    def __init__(
        self,
        data: GraphData | HeteroGraphData | Dataset,
        num_neighbors: FanoutsLike,
        input_nodes: Nodes | str | tuple[str, Nodes | None] | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        **settings: Any,
    ) -> None:
        refuse_workers(settings)
        if isinstance(data, Dataset):
            data = HeteroGraphData(data) if data.kind == "hetero" else GraphData(data)
        self.data = data
        seeds, num_seeds = _seeds_of(data, input_nodes)
        super().__init__(
            data.dataset,
            seeds=seeds,
            fanouts=num_neighbors,
            batch_size=min(batch_size, max(num_seeds, 1)),
            shuffle=shuffle,
            **settings,
        )


def refuse_workers(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError where a setting speaks of the worker processes that PyG has."""
    if workers := [name for name in _OF_WORKERS if name in settings]:
        raise ConfigError(
            f"{', '.join(workers)}: gloader samples and reads in threads of this process; leave it out "
            "(threads= is how many sample)"
        )


def _to_data_of(loader: Loader) -> Callable[[ReadyBatch], Any]:
    positions = _Positions(loader.seeds)

    def convert(batch: ReadyBatch) -> Any:
        seeds = batch.nodes[: batch.num_seeds]
        return to_data(batch, input_id=torch.from_numpy(positions.of(seeds)))

    return convert


def _to_hetero_data_of(loader: HeteroLoader) -> Callable[[HeteroReadyBatch], Any]:
    dataset, positions = loader.dataset, _Positions(loader.seeds)
    labelled = dataset.labelled.name
    starts = dict(zip(dataset.node_types, dataset.type_starts.tolist(), strict=False))
    counts = np.histogram(loader.seeds, bins=dataset.type_starts)[0]
    seeded = [name for name, count in zip(dataset.node_types, counts, strict=True) if count]

    def convert(batch: HeteroReadyBatch) -> Any:
        input_id = {}
        for name in seeded:
            seeds = starts[name] + batch.nodes[name][: batch.num_seeds[name]]
            input_id[name] = torch.from_numpy(positions.of(seeds))
        return to_hetero_data(batch, labelled=labelled, input_id=input_id)

    return convert


def _seeds_of(
    data: GraphData | HeteroGraphData, nodes: Nodes | str | tuple[str, Nodes | None] | None
) -> tuple[Any, int]:
    """Return what the loader takes as seeds, and how many they are."""
    if isinstance(data, GraphData):
        if isinstance(nodes, (str, tuple)):
            raise ConfigError("input_nodes names a type, and this graph has one: give ids or a mask")
        ids = _as_ids(nodes, data.num_nodes)
        return ids, len(ids)
    name, given = nodes if isinstance(nodes, tuple) else (nodes, None)
    if not isinstance(name, str) or name not in data.dataset.node_types:
        allowed = ", ".join(map(repr, data.dataset.node_types))
        raise ConfigError(
            f"input_nodes has to name a type of nodes, as ('paper', ids); this graph has {allowed}"
        )
    ids = _as_ids(given, data.dataset.node_tables[name].num_nodes)
    return {name: ids}, len(ids)


def _as_ids(nodes: Nodes | None, num_nodes: int) -> IdArray:
    if nodes is None:
        return np.arange(num_nodes, dtype=np.int64)
    found = nodes.cpu().numpy() if isinstance(nodes, torch.Tensor) else np.asarray(nodes)
    if found.dtype != np.bool_:
        return found
    if found.shape != (num_nodes,):
        raise ConfigError(f"input_nodes is a mask of shape {found.shape}; the graph has {num_nodes} nodes")
    return np.flatnonzero(found)


class _Positions:
    """Where each of the (n,) unique ``seeds`` stands."""

    def __init__(self, seeds: IdArray) -> None:
        self._order = np.argsort(seeds)
        self._sorted = seeds[self._order]

    def of(self, nodes: IdArray) -> IdArray:
        """Return the positions of ``nodes`` (B,), all of them seeds."""
        by_id = np.argsort(nodes)  # a search in order runs through memory, one at random does not
        positions = np.empty(len(nodes), dtype=np.int64)
        positions[by_id] = self._order[np.searchsorted(self._sorted, nodes[by_id])]
        return positions
