"""Our sampler under PyG's own loader."""

from __future__ import annotations

import hashlib
import warnings
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from gloader.bridges.numbered import number_through
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError
from gloader.samplers import HeteroGraph, MergedHeteroBlockSampler, NeighborSampler, make_hetero_sampler
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers import CscGraph
    from gloader.types import IdArray


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
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
class MergedSampler(BaseSampler):
    """Neighbour sampling for PyG's ``NodeLoader`` and ``LinkLoader``; needs neither pyg-lib nor torch-sparse.

    PyG does not say which batch of which epoch it asks for, so a batch's random key is a digest of its ``input_id``
    and of the epoch last given to `set_epoch`: equal for any number of workers, and the same every epoch where
    neither the order nor the epoch changes.

    Parameters
    ----------
    graph : the topology, of one type or of several
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all. Of a graph of several types
        also by relation, or of all together, see `gloader.HeteroLoader`
    seed : any integer

    Raises
    ------
    ConfigError
        A fan-out is not allowed, or a relation has none.
    """

    def __init__(self, graph: CscGraph | HeteroGraph, fanouts: FanoutsLike, *, seed: int = 0) -> None:
        self._graph = graph
        self._sampler: NeighborSampler | MergedHeteroBlockSampler
        if isinstance(graph, HeteroGraph):
            made = make_hetero_sampler("neighbor", graph, fanouts, seed, layout="merged")
            self._sampler = cast("MergedHeteroBlockSampler", made)
        else:
            self._sampler = NeighborSampler(graph, cast("Sequence[int]", fanouts), seed=seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw other neighbours from now on; worker processes started before keep the epoch they started in."""
        self.epoch = epoch

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Sample merged hops around the input nodes.

        Raises
        ------
        ConfigError
            PyG asks for temporal sampling, or names no type of nodes where there are several.
        SeedError
            The input nodes repeat within a batch, or are no nodes of the graph.
        """
        if index.time is not None:
            raise ConfigError("input_time: temporal sampling is not supported; leave input_time out")
        batch_id = BatchId(epoch=self.epoch, index=_digest(index.input_id))
        metadata = (index.input_id, index.time)
        if isinstance(self._sampler, NeighborSampler):
            return _sampled_one(self._sampler, batch_id, index.node.numpy(), metadata)
        graph = self._sampler.sampler.graph
        if index.input_type is None:
            allowed = ", ".join(map(repr, graph.node_types))
            raise ConfigError(
                f"input_nodes have to say of which type they are, as (type, ids); there are {allowed}"
            )
        seeds = number_through(graph, {index.input_type: index.node.numpy()})
        return _sampled_several(self._sampler, batch_id, seeds, metadata)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Sample merged hops around the ends of the input edges, and of the negatives that PyG draws beside them.

        Raises
        ------
        ConfigError
            PyG asks for temporal sampling.
        """
        if index.time is not None:
            raise ConfigError(
                "edge_label_time: temporal sampling is not supported; leave edge_label_time out"
            )
        batch_id = BatchId(epoch=self.epoch, index=_digest(index.input_id))

        def around(seeds: Any, times: Any) -> SamplerOutput | HeteroSamplerOutput:  # noqa: ARG001 - none, see above
            if isinstance(self._sampler, NeighborSampler):
                return _sampled_one(self._sampler, batch_id, seeds.numpy(), None)
            graph = self._sampler.sampler.graph
            numbers = number_through(graph, {name: ids.numpy() for name, ids in seeds.items()})
            return _sampled_several(self._sampler, batch_id, numbers, None)

        graph = self._graph
        num_nodes = dict(graph.num_nodes) if isinstance(graph, HeteroGraph) else graph.num_nodes
        return edge_sample(index, around, num_nodes, disjoint=False, neg_sampling=neg_sampling)


def _digest(input_id: torch.Tensor) -> int:
    # Positions in the loader's seeds, which are the same for any number of workers.
    data = np.ascontiguousarray(input_id.numpy(), dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")


def _sampled_one(sampler: NeighborSampler, batch_id: BatchId, seeds: IdArray, metadata: Any) -> SamplerOutput:
    merged = sampler.sample_merged(batch_id, seeds)
    pair = torch.from_numpy(merged.edge_index.astype(np.int64))
    return SamplerOutput(
        node=torch.from_numpy(merged.nodes),
        row=pair[0],
        col=pair[1],
        edge=torch.from_numpy(merged.edge_ids),
        batch=None,
        num_sampled_nodes=list(merged.num_sampled_nodes),
        num_sampled_edges=list(merged.num_sampled_edges),
        metadata=metadata,
    )


def _sampled_several(
    sampler: MergedHeteroBlockSampler, batch_id: BatchId, seeds: IdArray, metadata: Any
) -> HeteroSamplerOutput:
    merged = sampler.sample_merged(batch_id, seeds)
    pairs = {
        relation: torch.from_numpy(merged.edge_index(relation).astype(np.int64)) for relation in merged.edges
    }
    return HeteroSamplerOutput(
        node={name: torch.from_numpy(nodes) for name, nodes in merged.nodes.items()},
        row={relation: pair[0] for relation, pair in pairs.items()},
        col={relation: pair[1] for relation, pair in pairs.items()},
        edge={relation: torch.from_numpy(edges.edge_ids) for relation, edges in merged.edges.items()},
        batch=None,
        num_sampled_nodes={name: list(counts) for name, counts in merged.num_sampled_nodes.items()},
        num_sampled_edges={relation: list(counts) for relation, counts in merged.num_sampled_edges.items()},
        metadata=metadata,
    )
