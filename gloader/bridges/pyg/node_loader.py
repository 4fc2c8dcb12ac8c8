"""The loader, yielding PyG's ``Data``, or ``HeteroData`` where there are several types."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch

from gloader.bridges.loader_view import LoaderView, at_most, to_loader
from gloader.bridges.pyg.data import to_data
from gloader.bridges.pyg.graph_data import GraphData
from gloader.bridges.pyg.hetero_data import to_hetero_data
from gloader.bridges.pyg.hetero_graph_data import HeteroGraphData
from gloader.bridges.pyg.repeated_seeds import SeedRows, repeat_edges, repeat_nodes
from gloader.bridges.pyg.seed_samplers import SeedOrder
from gloader.dataset import Dataset
from gloader.errors import ConfigError
from gloader.loader import HeteroLoader
from gloader.samplers import preferred_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gloader.bridges.loader_view import AnyLoader
    from gloader.core.fanouts import FanoutsLike
    from gloader.loader import Loader
    from gloader.types import HeteroReadyBatch, IdArray, ReadyBatch


Nodes: TypeAlias = "torch.Tensor | NDArray[Any]"

OF_WORKERS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "pin_memory")


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
    input_nodes : (n,) ids or (N,) mask of the seeds; None: all nodes. Ids may repeat: a seed that a batch draws twice
        has two rows, with the same neighbours. Of a graph of several types a type and these, as
        ``("paper", ids)``, or a type alone
    batch_size : seeds per batch; all of them where they are fewer, as in PyG
    shuffle : order the seeds anew in every epoch
    sampler : one of torch's, ``WeightedRandomSampler``, ``RandomSampler``, ``SubsetRandomSampler`` or
        ``SequentialSampler``, or PyG's ``ImbalancedSampler``: its weights and counts are taken, and the draws follow
        from ``seed`` and the epoch, so that a resumed run draws the same. A name is gloader's, see `gloader.Loader`
    settings : other keywords of `gloader.Loader`: ``memory_budget``, ``features``, ``device``, ...

    Raises
    ------
    ConfigError
        A setting speaks of the worker processes that PyG has; ``input_nodes`` is no mask of all nodes, or names no
        type where there are several; ``sampler`` is of another kind; or as `gloader.Loader`.
    SeedError
        ``input_nodes`` holds what is no node.
    """

    _refused = (*OF_WORKERS, "batch_sampler")
    _renamed = ("fanouts", "seeds")

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
        ids, name = _nodes_of(data, input_nodes)
        order = SeedOrder.take(settings, len(ids), shuffle=shuffle)
        seeds, num_seeds = order.apply(ids, name, has_times="times" in settings)
        super().__init__(
            data.dataset,
            seeds=seeds,
            fanouts=num_neighbors,
            batch_size=at_most(batch_size, num_seeds),
            shuffle=order.shuffle,
            **settings,
        )


def refuse_workers(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError where a setting speaks of the worker processes that PyG has."""
    if workers := [name for name in OF_WORKERS if name in settings]:
        raise ConfigError(
            f"{', '.join(workers)}: gloader samples and reads in threads of this process; leave it out "
            "(threads= is how many sample)"
        )


def _to_data_of(loader: Loader) -> Callable[[ReadyBatch], Any]:
    def convert(batch: ReadyBatch) -> Any:
        positions = loader.seed_positions(batch.id)
        data = to_data(batch, input_id=torch.tensor(positions))
        drawn, seeds = loader.seeds[positions], batch.nodes[: batch.num_seeds]
        if (rows := SeedRows.of(drawn, seeds, len(batch.nodes), batch.x.device)) is not None:
            repeat_nodes(data, rows)
            repeat_edges(data, rows, rows)
            data.y, data.batch_size = data.y[rows.rows], len(drawn)
        return data

    return convert


def _to_hetero_data_of(loader: HeteroLoader) -> Callable[[HeteroReadyBatch], Any]:
    dataset, labelled = loader.dataset, loader.dataset.labelled.name
    bounds = dict(zip(dataset.node_types, pairwise(dataset.type_starts.tolist()), strict=True))
    counts = np.histogram(loader.seeds, bins=dataset.type_starts)[0]
    seeded = [name for name, count in zip(dataset.node_types, counts, strict=True) if count]

    def convert(batch: HeteroReadyBatch) -> Any:
        positions = loader.seed_positions(batch.id)
        numbers = loader.seeds[positions]
        input_id, rows = {}, {}
        for name in seeded:
            first, end = bounds[name]
            is_own = (numbers >= first) & (numbers < end)
            input_id[name] = torch.tensor(positions[is_own])
            nodes = batch.nodes[name]
            seeds = nodes[: batch.num_seeds[name]]
            rows[name] = SeedRows.of(numbers[is_own] - first, seeds, len(nodes), batch.y.device)
        data = to_hetero_data(batch, labelled=labelled, input_id=input_id)
        for name, found in rows.items():
            if found is not None:
                repeat_nodes(data[name], found)
                data[name].num_nodes, data[name].batch_size = len(found.nodes), len(found.rows)
        for source, relation, destination in data.edge_types:
            if (ends := (rows.get(source), rows.get(destination))) != (None, None):
                repeat_edges(data[source, relation, destination], *ends)
        if (found := rows.get(labelled)) is not None:
            data[labelled].y = data[labelled].y[found.rows]
        return data

    return convert


def _nodes_of(
    data: GraphData | HeteroGraphData, nodes: Nodes | str | tuple[str, Nodes | None] | None
) -> tuple[IdArray, str | None]:
    """Return the ids of ``nodes``, and their type where there are several."""
    if isinstance(data, GraphData):
        if isinstance(nodes, (str, tuple)):
            raise ConfigError("input_nodes names a type, and this graph has one: give ids or a mask")
        return _as_ids(nodes, data.num_nodes), None
    name, given = nodes if isinstance(nodes, tuple) else (nodes, None)
    if not isinstance(name, str) or name not in data.dataset.node_types:
        allowed = ", ".join(map(repr, data.dataset.node_types))
        raise ConfigError(
            f"input_nodes has to name a type of nodes, as ('paper', ids); this graph has {allowed}"
        )
    return _as_ids(given, data.dataset.node_tables[name].num_nodes), name


def _as_ids(nodes: Nodes | None, num_nodes: int) -> IdArray:
    if nodes is None:
        return np.arange(num_nodes, dtype=np.int64)
    found = nodes.cpu().numpy() if isinstance(nodes, torch.Tensor) else np.asarray(nodes)
    if found.dtype != np.bool_:
        return found
    if found.shape != (num_nodes,):
        raise ConfigError(f"input_nodes is a mask of shape {found.shape}; the graph has {num_nodes} nodes")
    return np.flatnonzero(found)
