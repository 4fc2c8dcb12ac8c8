"""Our sampler under PyG's own loader."""

from __future__ import annotations

import hashlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gloader.errors import ConfigError
from gloader.samplers import NeighborSampler
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.samplers import CscGraph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric warns about torch's own deprecations at import
    from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput


class MergedSampler(BaseSampler):
    """Neighbour sampling for ``torch_geometric.loader.NodeLoader``; needs neither pyg-lib nor torch-sparse.

    PyG does not say which batch of which epoch it asks for, so a batch's random key is a digest of its ``input_id``
    and of the epoch last given to `set_epoch`: equal for any number of workers, and the same every epoch where
    neither the order nor the epoch changes.

    Parameters
    ----------
    graph : the topology
    fanouts : neighbours per node and hop, the hop next to the seeds first; -1 takes all
    seed : any integer
    """

    def __init__(self, graph: CscGraph, fanouts: Sequence[int], *, seed: int = 0) -> None:
        self._sampler = NeighborSampler(graph, fanouts, seed=seed)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Draw other neighbours from now on; worker processes started before keep the epoch they started in."""
        self.epoch = epoch

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Sample merged hops around the input nodes.

        Raises
        ------
        ConfigError
            PyG asks for temporal sampling.
        SeedError
            The input nodes repeat within a batch, or are no nodes of the graph.
        """
        if index.time is not None:
            raise ConfigError("input_time: temporal sampling is not supported; leave input_time out")
        batch_id = BatchId(epoch=self.epoch, index=_digest(index.input_id))
        merged = self._sampler.sample_merged(batch_id, index.node.numpy())
        pair = torch.from_numpy(merged.edge_index.astype(np.int64))
        return SamplerOutput(
            node=torch.from_numpy(merged.nodes),
            row=pair[0],
            col=pair[1],
            edge=torch.from_numpy(merged.edge_ids),
            batch=None,
            num_sampled_nodes=list(merged.num_sampled_nodes),
            num_sampled_edges=list(merged.num_sampled_edges),
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, index: Any, **_: Any) -> SamplerOutput:  # noqa: ARG002 - refused
        """Refuse: link tasks are not supported.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError("MergedSampler samples around nodes; use it with NodeLoader, not LinkLoader")


def _digest(input_id: torch.Tensor) -> int:
    # Positions in the loader's seeds, which are the same for any number of workers.
    data = np.ascontiguousarray(input_id.numpy(), dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")
