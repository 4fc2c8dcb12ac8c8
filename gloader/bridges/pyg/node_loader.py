"""Loaders that yield PyG's ``Data``, or ``HeteroData`` for a dataset with several types.

`NodeLoader` converts the batches of gloader's own ("native") loaders, and `NeighborLoader` also takes PyG's arguments.
PyG's loaders accept a torch sampler, which chooses an epoch's seeds and their order. `SeedOrder` takes the weights and
counts from this sampler. The native loader then draws the seeds with a random key of (seed, epoch), so that a run can
be resumed. A draw is one choice of a seed. If a batch draws a seed twice, the native batch has the node once, and
`SeedRows` gives each draw a row, as in PyG.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from gloader.bridges.loader_view import LoaderView, at_most, to_loader
from gloader.bridges.pyg.data import to_data, to_hetero_data
from gloader.bridges.pyg.graph_data import GraphData, HeteroGraphData
from gloader.core.order import DrawnSeeds, Draws
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


@dataclass(frozen=True, slots=True)
class SeedRows:
    """A type's nodes in a batch, with an additional copy of a seed for each repeated draw.

    The batch has B draws of S distinct seeds, and U nodes. The new nodes are one copy of a seed for each draw, in the
    order of the draws, and then the U - S other nodes. Each copy has its seed's in-edges. A seed's outgoing edges start
    at its first copy.
    """

    rows: torch.Tensor  # (B,) each draw's seed, as a position among the type's U nodes
    nodes: torch.Tensor  # (B + U - S,) for each new node: its position among the U nodes
    places: torch.Tensor  # (U,) each node's new position, for a seed that of its first copy

    @classmethod
    def of(cls, drawn: IdArray, seeds: IdArray, num_nodes: int, device: torch.device) -> SeedRows | None:
        """Return the rows for the ids ``drawn`` (B,), which repeat some ``seeds`` (S,); None if no seed repeats."""
        if len(drawn) == len(seeds):
            return None
        by_id = np.argsort(seeds)
        # Each draw's position among the distinct seeds.
        seed_positions = by_id[np.searchsorted(seeds[by_id], drawn)]
        places = np.arange(num_nodes) + len(drawn) - len(seeds)
        _, firsts = np.unique(seed_positions, return_index=True)  # seeds are in the order of their first draw
        places[: len(seeds)] = firsts
        rows = torch.from_numpy(seed_positions).to(device)
        rest = torch.arange(len(seeds), num_nodes, device=device)
        return cls(rows=rows, nodes=torch.cat([rows, rest]), places=torch.from_numpy(places).to(device))


def repeat_nodes(store: Any, seeds: SeedRows) -> None:
    """Give ``store``, the nodes of one type in a PyG batch, a row for each draw.

    Does not change ``num_nodes``; the caller sets it if ``store`` has it.
    """
    for name in ("x", "n_id"):
        if name in store:
            store[name] = store[name][seeds.nodes]
    first, *others = store.num_sampled_nodes  # ``first`` counts the seeds
    store.num_sampled_nodes = [first + len(seeds.nodes) - len(seeds.places), *others]


def repeat_edges(store: Any, source: SeedRows | None, destination: SeedRows | None) -> None:
    """Connect the edges in ``store`` to the draws' rows; each copy of a seed gets the seed's in-edges.

    The first hop's edges are grouped by seed. For each draw, its seed's group is repeated.

    Parameters
    ----------
    store : a relation's edges; the first hop's edges come first, and include all edges into seeds
    source, destination : the two types' rows; None if the type's seeds do not repeat
    """
    src, dst = store.edge_index
    first, *others = store.num_sampled_edges
    if destination is not None:
        # In ``by_seed``, the edges into one seed begin at ``starts[seed]``, and are ``degrees[seed]`` many. For each
        # new edge, ``copies`` has its draw, ``within`` its index among the draw's edges, and ``taken`` the old edge.
        degrees = torch.bincount(dst[:first], minlength=len(destination.places))
        starts = degrees.cumsum(0) - degrees
        by_seed = torch.argsort(dst[:first], stable=True)
        counts = degrees[destination.rows]
        copies = torch.repeat_interleave(torch.arange(len(counts), device=dst.device), counts)
        within = torch.arange(len(copies), device=dst.device) - (counts.cumsum(0) - counts)[copies]
        taken = by_seed[starts[destination.rows][copies] + within]
        kept = torch.cat([taken, torch.arange(first, len(dst), device=dst.device)])
        src, dst = src[kept], torch.cat([copies, destination.places[dst[first:]]])
        store.num_sampled_edges = [len(copies), *others]
        for name in ("e_id", "edge_weight", "edge_attr"):
            if name in store:
                store[name] = store[name][kept]
    if source is not None:
        src = source.places[src]
    store.edge_index = torch.stack([src, dst])


# The torch samplers that a loader accepts.
_KNOWN = (WeightedRandomSampler, RandomSampler, SubsetRandomSampler, SequentialSampler)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOrder:
    """The order and selection in which an epoch serves the seeds."""

    shuffle: bool
    draws: Draws | None = None  # None serves each seed once

    @classmethod
    def take(cls, settings: dict[str, Any], num_seeds: int, *, shuffle: bool) -> Self:
        """Remove a torch sampler from ``settings`` and return its order. A string is a gloader sampler, which stays.

        Raises
        ------
        ConfigError
            The sampler's kind is unknown, it is made for another number of seeds, or another order is also given.
        """
        if settings.get("batch_sampler") is not None:
            raise ConfigError("batch_sampler: give its sampler as sampler=, with batch_size= and drop_last=")
        settings.pop("batch_sampler", None)
        if not isinstance(sampler := settings.get("sampler"), Sampler):
            return cls(shuffle=shuffle)
        _require_known(sampler, shuffle=shuffle)
        del settings["sampler"]
        if isinstance(sampler, SubsetRandomSampler):
            return cls(shuffle=True, draws=_subset(np.asarray(sampler.indices, np.int64), num_seeds))
        if isinstance(sampler, WeightedRandomSampler):
            weights = sampler.weights.numpy()
            _require_as_many(sampler, len(weights), num_seeds)
            draws = Draws(num_draws=sampler.num_samples, weights=weights, replace=sampler.replacement)
            return cls(shuffle=True, draws=draws)
        if isinstance(sampler, RandomSampler):
            _require_as_many(sampler, len(sampler.data_source), num_seeds)
            if not sampler.replacement and sampler.num_samples == num_seeds:
                return cls(shuffle=True)
            return cls(shuffle=True, draws=Draws(num_draws=sampler.num_samples, replace=sampler.replacement))
        if isinstance(sampler, SequentialSampler):
            _require_as_many(sampler, len(sampler), num_seeds)
        return cls(shuffle=False)

    def apply(self, ids: IdArray, name: str | None, *, has_times: bool) -> tuple[Any, int]:
        """Return the loader's seeds in place of ``ids`` (n,), and the number of seeds in an epoch.

        Parameters
        ----------
        ids : node ids
        name : node type, if there are several
        has_times : True if each seed has a query time. Such seeds may repeat, each with its own neighbours.
        """
        nodes = ids if name is None else {name: ids}
        if self.draws is not None:
            return DrawnSeeds(nodes=nodes, draws=self.draws), self.draws.num_draws
        ordered = np.sort(ids)
        repeats = bool((ordered[1:] == ordered[:-1]).any())
        return DrawnSeeds(nodes=nodes) if repeats and not has_times else nodes, len(ids)


def _require_as_many(sampler: Sampler[Any], given: int, num_seeds: int) -> None:
    """Raise ConfigError if a sampler draws from another number of items than there are seeds."""
    if given != num_seeds:
        raise ConfigError(
            f"sampler={type(sampler).__name__} draws from {given} items, and there are {num_seeds} input_nodes"
        )


def _subset(positions: IdArray, num_seeds: int) -> Draws:
    """Return draws that serve each of ``positions`` once, in random order; other positions get no weight."""
    weights = np.bincount(positions[(positions >= 0) & (positions < num_seeds)], minlength=num_seeds)
    if weights.sum() != len(positions) or weights.max(initial=0) > 1 or not len(positions):
        raise ConfigError(
            f"sampler=SubsetRandomSampler: its indices are positions in the {num_seeds} input_nodes, each once"
        )
    return Draws(num_draws=len(positions), weights=weights.astype(np.float64), replace=False)


def _require_known(sampler: Sampler[Any], *, shuffle: bool) -> None:
    """Raise ConfigError for a sampler whose draws the loader cannot take over."""
    name = type(sampler).__name__
    if not any(isinstance(sampler, known) and type(sampler).__iter__ is known.__iter__ for known in _KNOWN):
        known = ", ".join(known.__name__ for known in _KNOWN)
        raise ConfigError(
            f"sampler={name}: its order could not be resumed; use {known} or ImbalancedSampler. For a fixed order, "
            "give input_nodes in this order. With several ranks, each loader takes its part of the seeds itself"
        )
    if shuffle:
        raise ConfigError(f"sampler={name} determines the order of the seeds; leave out shuffle=True")
    if getattr(sampler, "generator", None) is not None:
        raise ConfigError(
            f"sampler={name}(generator=...): draws follow from the loader's seed=; leave it out"
        )


Nodes: TypeAlias = "torch.Tensor | NDArray[Any]"

# PyG's settings for worker processes.
OF_WORKERS = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "pin_memory")


class NodeLoader(LoaderView[Any]):
    """Yields batches as PyG's ``NeighborLoader`` for node tasks, without pyg-lib or torch-sparse.

    A batch is a ``Data``, see `to_data`, or a ``HeteroData`` for a dataset with several types, see `to_hetero_data`.
    ``y`` holds only the seeds' labels, so ``batch.y[:batch.batch_size]`` equals ``batch.y``. ``input_id`` holds the
    seeds' positions in the loader's seeds, by default the training nodes.

    Parameters
    ----------
    loader : a `gloader.Loader` or `gloader.HeteroLoader`, or a `gloader.Dataset` from which to build a loader
    settings : settings for the new loader: ``fanouts``, ``batch_size``, ``memory_budget``, ...; see `gloader.Loader`.
        ``layout`` defaults to "merged" if the sampler supports it: batches then have exactly the nodes and edges of
        the native batches. With a layered loader, batches have all its nodes, and the edges that PyG would have drawn

    Raises
    ------
    ConfigError
        See `to_loader`.
    """

    def __init__(self, loader: AnyLoader | Dataset, **settings: Any) -> None:
        if isinstance(loader, Dataset):
            # PyG samples each node once, as does the merged layout, so no edge of a native batch is left out.
            settings.setdefault("layout", preferred_layout(settings.get("sampler", "neighbor")))
        native = to_loader(loader, settings)
        convert = _to_hetero_data_of(native) if isinstance(native, HeteroLoader) else _to_data_of(native)
        super().__init__(native, convert=convert, is_owner=isinstance(loader, Dataset))

    @property
    def dataset(self) -> range:
        """The seeds' positions, as in PyG: ``len(loader.dataset)`` is the number of seeds in an epoch."""
        return range(len(cast("AnyLoader", self.loader).seeds))


class NeighborLoader(NodeLoader):
    """`NodeLoader` with the names and defaults of ``torch_geometric.loader.NeighborLoader``.

    The default is all nodes in order: ``NeighborLoader(data, [-1], batch_size=1024)`` serves
    layer-wise inference, one layer per pass.

    Parameters
    ----------
    data : a `GraphData` or `HeteroGraphData`, or the `gloader.Dataset` itself, which ``loader.data`` then wraps
    num_neighbors : neighbours per node and hop, the hop next to the seeds first; -1 takes all. A graph with several
        types also accepts fan-outs by relation, see `gloader.HeteroLoader`; "*" stands for relations not named
    input_nodes : (n,) ids or (N,) mask of the seeds; None means all nodes. Ids may repeat: a seed that a batch draws
        twice has two rows, with the same neighbours. A graph with several types needs a pair such as
        ``("paper", ids)``, or only a type's name
    batch_size : seeds per batch; at most all seeds, as in PyG
    shuffle : order the seeds anew in every epoch
    sampler : a torch sampler: ``WeightedRandomSampler``, ``RandomSampler``, ``SubsetRandomSampler`` or
        ``SequentialSampler``; or PyG's ``ImbalancedSampler``. The loader takes over its weights and counts. The draws
        follow from ``seed`` and the epoch, so a resumed run draws the same seeds. A string names a gloader sampler,
        see `gloader.Loader`
    settings : other keywords of `gloader.Loader`: ``memory_budget``, ``features``, ``device``, ...

    Raises
    ------
    ConfigError
        A setting concerns PyG's worker processes; ``input_nodes`` is a mask with a wrong length, or lacks a
        type if there are several; ``sampler`` has an unsupported kind. For other causes see `gloader.Loader`.
    SeedError
        ``input_nodes`` contains an id that is no node.
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
    """Raise ConfigError if a setting concerns PyG's worker processes."""
    if workers := [name for name in OF_WORKERS if name in settings]:
        raise ConfigError(
            f"{', '.join(workers)}: gloader samples and reads in threads of this process; leave it out "
            "(threads= sets the number of sampling threads)"
        )


def _to_data_of(loader: Loader) -> Callable[[ReadyBatch], Any]:
    """Return the conversion of a loader's batches, with a row for each draw of a seed."""

    def convert(batch: ReadyBatch) -> Any:
        """Return ``batch`` as a ``Data``."""
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
    """Return the conversion of a typed loader's batches, with a row for each draw of a seed."""
    dataset, labelled = loader.dataset, loader.dataset.labelled.name
    bounds = dict(zip(dataset.node_types, pairwise(dataset.type_starts.tolist()), strict=True))
    counts = np.histogram(loader.seeds, bins=dataset.type_starts)[0]
    # The types with seeds.
    seeded = [name for name, count in zip(dataset.node_types, counts, strict=True) if count]

    def convert(batch: HeteroReadyBatch) -> Any:
        """Return ``batch`` as a ``HeteroData``."""
        positions = loader.seed_positions(batch.id)
        numbers = loader.seeds[positions]  # in one numbering of all types: a type's first number, plus the id
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
    """Return the ids in ``nodes``, and their type if there are several."""
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
    """Return the ids in an array of ids or in a mask (N,); None means all nodes."""
    if nodes is None:
        return np.arange(num_nodes, dtype=np.int64)
    array = nodes.cpu().numpy() if isinstance(nodes, torch.Tensor) else np.asarray(nodes)
    if array.dtype != np.bool_:
        return array
    if array.shape != (num_nodes,):
        raise ConfigError(f"input_nodes is a mask of shape {array.shape}; the graph has {num_nodes} nodes")
    return np.flatnonzero(array)
