"""PyG's own loaders over gloader: feature store, graph store and sampler for PyG's interfaces to remote data.

PyG's ``NodeLoader`` gets each batch's nodes and edges from a sampler, and their rows from a feature store.
`MergedSampler` implements the sampler, `RowStore` the feature store and `TopologyStore` the graph store.
`gloader.adapters.pyg.NeighborLoader` reads less, because it plans its cache from the future batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from gloader.bridges.cached_rows import CachedRows
from gloader.bridges.given_seeds import digest_of, number_through
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError, ShapeError
from gloader.samplers import CscGraph, HeteroGraph, make_hetero_sampler
from gloader.types import NODE, BatchId

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.cache import OnlineName
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers import RelationwiseSampler, Topology
    from gloader.types import FeatureSource

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
    from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
    from torch_geometric.sampler import (
        BaseSampler,
        EdgeSamplerInput,
        HeteroSamplerOutput,
        NegativeSampling,
        NodeSamplerInput,
        SamplerOutput,
    )
    from torch_geometric.sampler.neighbor_sampler import edge_sample


@near_keywords
class RowStore(FeatureStore):
    """``x`` from stores on the SSD and ``y`` from memory, for ``torch_geometric.loader.NodeLoader``.

    PyG chooses the batches: future samples are unknown, so the cache decides batch by batch which rows to keep. Pass
    the loader ``filter_per_worker=False``: features must be fetched in the process that opened the store.

    Parameters
    ----------
    features : one row per node, such as ``dataset.open_features()``; the caller closes it. A graph with several types
        has a mapping over the types with features
    labels : (N,) int64 classes, or (N, k) float32 values; a graph with several types has a mapping over the types
        with labels
    cache : bytes of host memory for each source's rows ("2GB" or a number)
    policy : "sieve", "s3fifo", "lru", "clock" or "fifo"

    Raises
    ------
    ShapeError
        There is not one label per row.
    ConfigError
        The policy is unknown; or only features or only labels are given by type.
    """

    def __init__(
        self,
        features: FeatureSource | Mapping[str, FeatureSource],
        labels: NDArray[Any] | Mapping[str, NDArray[Any]],
        *,
        cache: str | int = 0,
        policy: OnlineName = "sieve",
    ) -> None:
        super().__init__()
        sources, classes = _by_type(features, labels)
        for name, found in classes.items():
            if name in sources and found.shape[:1] != (sources[name].num_rows,):
                where = "" if name is None else f"{name}: "
                raise ShapeError(
                    f"{where}labels have shape {found.shape} for {sources[name].num_rows} feature rows; one per row is "
                    "needed"
                )
        # PyG's FeatureStore intercepts the assignment of attributes, but not entries of ``__dict__``. The keys of both
        # mappings are node types; the only key is None for a graph with one type.
        self.__dict__["tables"] = {
            name: CachedRows(source, cache=cache, policy=policy) for name, source in sources.items()
        }
        self.__dict__["classes"] = {name: torch.tensor(found) for name, found in classes.items()}

    @property
    def rows(self) -> CachedRows:
        """The rows, for a graph with one type."""
        rows: CachedRows = self.tables[None]
        return rows

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the stored tensors' names as new objects, since PyG writes into them."""
        pairs = [("x", self.tables), ("y", self.classes)]
        return [
            TensorAttr(group_name=name, attr_name=attribute) for attribute, held in pairs for name in held
        ]

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor | None:
        """Return the rows ``attr.index`` (all if None) of a type's "x" or "y"; None if there are none."""
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
        """Return the shape of a type's "x" or "y", without reading it."""
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
    """A graph as PyG's ``GraphStore``: a CSC edge type for each relation. Shares arrays of dtype int64.

    Parameters
    ----------
    graph : the topology in memory, with one type or several

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
        """Return the sources (E,) and the offsets (N + 1,) of a relation's CSC; None for another layout."""
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
    features: FeatureSource | Mapping[str, FeatureSource], labels: NDArray[Any] | Mapping[str, NDArray[Any]]
) -> tuple[Mapping[Any, FeatureSource], Mapping[Any, NDArray[Any]]]:
    """Return features and labels by type; a one-type graph's key is None, as in PyG."""
    if isinstance(features, Mapping) and isinstance(labels, Mapping):
        return features, labels
    if isinstance(features, Mapping) or isinstance(labels, Mapping):
        raise ConfigError("features and labels are both given by type, or neither is")
    return {None: features}, {None: labels}


@near_keywords
class MergedSampler(BaseSampler):
    """Neighbour sampling for PyG's ``NodeLoader`` and ``LinkLoader``; needs neither pyg-lib nor torch-sparse.

    gloader draws a batch's neighbours with a random key that contains the epoch and the batch's number. PyG gives
    neither. So the key contains the last value from `set_epoch`, and a digest of the batch's ``input_id`` (the seeds'
    positions). The draw is the same for any number of workers. It is also the same in every epoch, unless the order or
    the value from `set_epoch` changes.

    Parameters
    ----------
    graph : the topology, with one type or several
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all. A graph with several types
        also accepts fan-outs by relation, or over all relations together, see `gloader.HeteroLoader`
    seed : any integer

    Raises
    ------
    ConfigError
        A fan-out is not allowed, or a relation has no fan-out.
    """

    def __init__(self, graph: CscGraph | HeteroGraph, fanouts: FanoutsLike, *, seed: int = 0) -> None:
        self._graph = HeteroGraph.of(graph)
        self._only = NODE if graph is not self._graph else None  # the only type, for a graph without types
        self._sampler = cast(
            "RelationwiseSampler", make_hetero_sampler("neighbor", self._graph, fanouts, seed)
        )
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch in the random key, for other draws from now on. Running worker processes keep the old epoch."""
        self.epoch = epoch

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Sample around the input nodes, and return all hops' edges in one list.

        Raises
        ------
        ConfigError
            PyG requests temporal sampling, or names no node type if there are several.
        SeedError
            The input nodes repeat within a batch, or are not graph nodes.
        """
        if index.time is not None:
            raise ConfigError("input_time: temporal sampling is not supported; leave input_time out")
        # ``input_id`` has positions in the loader's seeds, which are the same for any number of workers.
        batch_id = BatchId(epoch=self.epoch, index=digest_of(index.input_id.numpy()))
        metadata = (index.input_id, index.time)
        if (name := self._only or index.input_type) is None:
            allowed = ", ".join(map(repr, self._graph.node_types))
            raise ConfigError(
                f"input_nodes must name their node type, as (type, ids); the types are {allowed}"
            )
        return self._sampled(batch_id, {name: index.node}, metadata)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Sample around the ends of the input edges and of PyG's negatives for these edges, as `sample_from_nodes`.

        Raises
        ------
        ConfigError
            PyG requests temporal sampling.
        """
        if index.time is not None:
            raise ConfigError(
                "edge_label_time: temporal sampling is not supported; leave edge_label_time out"
            )
        batch_id = BatchId(epoch=self.epoch, index=digest_of(index.input_id.numpy()))

        def around(seeds: Any, times: Any) -> SamplerOutput | HeteroSamplerOutput:  # noqa: ARG001
            return self._sampled(batch_id, {self._only: seeds} if self._only else seeds, None)

        counts = self._graph.num_nodes
        num_nodes = counts[self._only] if self._only else dict(counts)
        return edge_sample(index, around, num_nodes, disjoint=False, neg_sampling=neg_sampling)

    def _sampled(
        self, batch_id: BatchId, seeds: Mapping[str, torch.Tensor], metadata: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return merged hops around ``seeds``, ids by type, in PyG's form."""
        nodes = {name: ids.numpy() for name, ids in seeds.items()}
        # With one type, the sampler itself refuses wrong ids.
        numbers = nodes[self._only] if self._only else number_through(self._graph, nodes)
        merged = self._sampler.sample_merged(batch_id, numbers)
        pairs = {
            relation: torch.from_numpy(merged.edge_index(relation).astype(np.int64))
            for relation in merged.edges
        }
        fields: dict[str, Mapping[Any, Any]] = {
            "node": {name: torch.from_numpy(ids) for name, ids in merged.nodes.items()},
            "row": {relation: pair[0] for relation, pair in pairs.items()},
            "col": {relation: pair[1] for relation, pair in pairs.items()},
            "edge": {relation: torch.from_numpy(edges.edge_ids) for relation, edges in merged.edges.items()},
            "num_sampled_nodes": {name: list(counts) for name, counts in merged.num_sampled_nodes.items()},
            "num_sampled_edges": {name: list(counts) for name, counts in merged.num_sampled_edges.items()},
        }
        if self._only is None:
            return HeteroSamplerOutput(**fields, batch=None, metadata=metadata)
        plain = {name: next(iter(of_types.values())) for name, of_types in fields.items()}
        return SamplerOutput(**plain, batch=None, metadata=metadata)
