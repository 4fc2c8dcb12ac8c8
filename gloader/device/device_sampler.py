"""Neighbour sampling on a device that holds the topology: the batches of the CPU's sampler, bit for bit."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gloader.device import sampling_kernels
from gloader.samplers import MergedBlockSampler, NeighborSampler
from gloader.samplers.arguments import checked_seeds
from gloader.samplers.exclusion import unexcluded_seeds
from gloader.samplers.hops import checked_total, require_distinct
from gloader.samplers.rng import layer_key
from gloader.types import AnySeeds, BatchId, Block, DeviceBlock, IdArray, SampledBatch, SampledOnDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.device.seam import Device
    from gloader.device.topology import DeviceTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hop:
    """The edges that the nodes ``first`` to ``last`` of a batch took."""

    first: int
    last: int
    offsets: torch.Tensor  # (last - first + 1,) int64
    indices: torch.Tensor  # (num_edges,) int32
    edge_ids: torch.Tensor  # (num_edges,) int64


class DeviceSampler:
    """Samples as a `NeighborSampler` does, on a device. Pure and thread-safe: calls take turns.

    A batch stays where it was sampled, see `SampledOnDevice`; the host gets its nodes. It waits once in each hop, to
    learn how many edges there are, and for the nodes at the end, behind which nothing of the batch is to come.

    Holds 4 bytes per node on the device, beside the topology.

    Parameters
    ----------
    sampler : whose batches these are, in its layout; draws without weights
    graph : the topology of ``sampler``, on ``device``
    device : runs Triton's kernels
    """

    def __init__(
        self, sampler: NeighborSampler | MergedBlockSampler, *, graph: DeviceTopology, device: Device
    ) -> None:
        self._is_merged = isinstance(sampler, MergedBlockSampler)
        uniform = sampler.sampler if isinstance(sampler, MergedBlockSampler) else sampler
        # Not the sampler itself, whose maps of nodes would stay in the host's memory.
        self._fanouts, self._seed, self._is_replaced = uniform.fanouts, uniform.seed, uniform.replace
        self.graph = graph
        self._device = device
        self._lock = threading.Lock()
        self._labels: torch.Tensor | None = None  # (N,), clean; None: not made, or in use

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample the neighbourhood of ``seeds`` (B,); errors are those of `NeighborSampler.sample`.

        Raises
        ------
        ConfigError
            Edges are excluded, which the device cannot.
        """
        given = unexcluded_seeds(seeds, sampler="the device", instead="sampling_device='cpu'")
        checked = checked_seeds(given.nodes, self.graph.num_nodes)
        require_distinct(checked)
        with self._lock, self._device.sampling():
            # A call that fails leaves labels behind: the next one makes them anew.
            labels, self._labels = self._labels, None
            if labels is None:
                labels = torch.full(
                    (self.graph.num_nodes,),
                    sampling_kernels.UNSEEN,
                    dtype=torch.int32,
                    device=self._device.place,
                )
            found, hops = self._sample_hops(batch_id, checked, labels)
            nodes = self._owned(found)
            degrees = self._owned(self.graph.indptr[found + 1] - self.graph.indptr[found], torch.float32)
            make = self._merged_blocks if self._is_merged else self._layered_blocks
            blocks = make(hops, len(found), degrees)
            on_host: IdArray = self._fetched(found)
            labels.index_fill_(0, found, sampling_kernels.UNSEEN)  # no other entry was touched
            self._labels = labels
        return SampledBatch(
            id=batch_id,
            nodes=on_host,
            num_seeds=len(checked),
            blocks=(),
            on_device=SampledOnDevice(nodes=nodes, src_degree=degrees, blocks=blocks),
            links=given.links,
        )

    def _sample_hops(
        self, batch_id: BatchId, seeds: IdArray, labels: torch.Tensor
    ) -> tuple[torch.Tensor, list[_Hop]]:
        """Return the nodes (U,) of a batch in first-seen order, and its hops, next to the seeds first."""
        graph = self.graph
        num_hops = len(self._fanouts)
        keys = [layer_key(self._seed, batch_id.epoch, batch_id.index, hop) for hop in range(num_hops)]
        head = np.array([len(seeds), *np.array(keys, dtype=np.uint64).view(np.int64)])
        # In one copy, which is over when this returns.
        sent = torch.from_numpy(np.concatenate([head, seeds])).to(self._device.place)
        num_nodes, words, nodes = sent[:1], sent[1 : len(head)], sent[len(head) :]
        hops: list[_Hop] = []
        total = 0
        for number, fanout in enumerate(self._fanouts):
            first = hops[-1].last if hops and self._is_merged else 0
            to = sampling_kernels.launch_count(
                graph, labels, nodes, num_nodes, first=first, fanout=fanout, is_replaced=self._is_replaced
            )
            last, num_edges = self._fetched(torch.cat([num_nodes, to.offsets[-1:]])).tolist()
            most_nodes = min(last + num_edges, graph.num_nodes)
            total = num_edges + (total if self._is_merged else 0)
            checked_total(max(total, most_nodes), number, batch_id, self._fanouts)
            to = to.cut(last - first)
            grown = nodes.new_empty(most_nodes)
            grown[:last] = nodes[:last]
            nodes = grown
            edge_ids = self._device.empty((num_edges,), torch.int64)
            indices = self._device.empty((num_edges,), torch.int32)
            hops.append(_Hop(first=first, last=last, offsets=to.offsets, indices=indices, edge_ids=edge_ids))
            if num_edges:
                sources = sampling_kernels.launch_pick(
                    graph,
                    labels,
                    to,
                    words,
                    edge_ids,
                    hop=number,
                    fanout=fanout,
                    is_replaced=self._is_replaced,
                )
                new = sampling_kernels.launch_relabel(labels, sources, nodes, last, indices)
                num_nodes = new.long() + last
        (count,) = self._fetched(num_nodes).tolist()
        return nodes[:count], hops

    def _layered_blocks(
        self, hops: Sequence[_Hop], num_nodes: int, degrees: torch.Tensor
    ) -> tuple[DeviceBlock, ...]:
        num_src = [*(hop.last for hop in hops[1:]), num_nodes]
        blocks = [
            DeviceBlock(
                indptr=self._owned(hop.offsets, torch.int32),
                indices=hop.indices,
                edge_ids=hop.edge_ids,
                src_degree=degrees[:sources],
                num_src=sources,
                num_dst=hop.last,
            )
            for hop, sources in zip(hops, num_src, strict=True)
        ]
        return tuple(reversed(blocks))

    def _merged_blocks(
        self, hops: Sequence[_Hop], num_nodes: int, degrees: torch.Tensor
    ) -> tuple[DeviceBlock, ...]:
        """Return the prefixes of the joined hops, as `MergedBatch.to_blocks` does."""
        shifts = np.cumsum([0, *(len(hop.indices) for hop in hops)]).tolist()
        offsets = [hop.offsets[1:] + shift for hop, shift in zip(hops, shifts, strict=False)]
        indptr = self._owned(torch.cat([hops[0].offsets[:1], *offsets]), torch.int32)
        indices = self._owned(torch.cat([hop.indices for hop in hops]))
        edge_ids = self._owned(torch.cat([hop.edge_ids for hop in hops]))
        num_src = [*(hop.last for hop in hops[1:]), num_nodes]
        blocks = [
            DeviceBlock(
                indptr=indptr[: hop.last + 1],
                indices=indices[:end],
                edge_ids=edge_ids[:end],
                src_degree=degrees[:sources],
                num_src=sources,
                num_dst=hop.last,
            )
            for hop, end, sources in zip(hops, shifts[1:], num_src, strict=True)
        ]
        return tuple(reversed(blocks))

    def _fetched(self, values: torch.Tensor) -> IdArray:
        """Return ``values`` (int64) in the host's memory, once the device has found them."""
        # A thread that waits for a mark sleeps; one that waits for a copy would take a core from the model's host.
        self._device.mark_computing().wait()
        found: IdArray = values.cpu().numpy()
        return found

    def _owned(self, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a copy of ``values`` in memory of the batch."""
        owned = self._device.empty(tuple(values.shape), dtype or values.dtype)
        owned.copy_(values)
        return owned


def blocks_on_host(batch: SampledBatch) -> SampledBatch:
    """Return ``batch`` with its blocks in the host's memory, wherever it was sampled."""
    if batch.on_device is None:
        return batch
    blocks = tuple(
        Block(
            indptr=block.indptr.cpu().numpy(),
            indices=block.indices.cpu().numpy(),
            edge_ids=block.edge_ids.cpu().numpy(),
            num_src=block.num_src,
            num_dst=block.num_dst,
        )
        for block in batch.on_device.blocks
    )
    return SampledBatch(
        id=batch.id, nodes=batch.nodes, num_seeds=batch.num_seeds, blocks=blocks, links=batch.links
    )
