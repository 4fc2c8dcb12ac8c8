"""Neighbour sampling on a device that holds the topology; its batches equal the CPU sampler's, bit for bit.

`DeviceSampler` calls the kernels of `gloader.device.sampling_kernels` hop by hop. A hop samples in-edges of its
destinations. In the *layered* layout, the destinations are all nodes so far. In the *merged* layout, they are only the
nodes that the last hop found. A label is a node's local id, its index among the batch's nodes. Arrays on the device
have *spare room* (room for the largest possible number of nodes or edges), until the true number is known on the host.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from gloader.device import sampling_kernels
from gloader.device.sampling_kernels import Destinations, Sampling
from gloader.device.tier import room_of_hop
from gloader.samplers import MergedBlockSampler, NeighborSampler
from gloader.samplers.arguments import checked_seeds, checked_total, require_distinct
from gloader.samplers.exclusion import unexcluded_seeds
from gloader.samplers.rng import layer_key
from gloader.types import AnySeeds, BatchId, Block, DeviceBlock, IdArray, SampledBatch, SampledOnDevice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.device.seam import Device
    from gloader.device.tier import DeviceTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hop:
    """A hop's edges, in arrays with spare room until `cut`. Its destinations are the batch's nodes ``first:last``."""

    to: Destinations  # the destinations, and the number of edges of each
    indices: torch.Tensor  # int32, each edge's source, as a local id
    edge_ids: torch.Tensor  # int64, each edge's position in the graph
    first: int = 0  # local id of the first destination; known after `cut`
    last: int = 0  # local id after the last destination; known after `cut`

    def cut(self, first: int, last: int, num_edges: int) -> _Hop:
        """Return the hop without the spare room. Pure."""
        return _Hop(
            to=self.to.cut(last - first),
            indices=self.indices[:num_edges],
            edge_ids=self.edge_ids[:num_edges],
            first=first,
            last=last,
        )


class DeviceSampler:
    """A `NeighborSampler` on a device. Pure and thread-safe: one call runs at a time.

    A batch's topology stays on the device, see `SampledOnDevice`. The host receives only the batch's nodes, at the end.
    Until then the host does not wait: the arrays have room for all edges that the fan-outs allow, and the device counts
    nodes and edges itself. If this room would be too large for a hop, the host waits for the hop's count.

    Holds 4 bytes per node on the device, in addition to the topology.

    Parameters
    ----------
    sampler : the CPU sampler of the same batches; its draws have no weights
    graph : the topology of ``sampler``, on ``device``
    device : device that runs Triton's kernels
    """

    def __init__(
        self, sampler: NeighborSampler | MergedBlockSampler, *, graph: DeviceTopology, device: Device
    ) -> None:
        self._is_merged = isinstance(sampler, MergedBlockSampler)
        uniform = sampler.sampler if isinstance(sampler, MergedBlockSampler) else sampler
        # The sampler itself is not kept, because its node maps would stay in the host's memory.
        self._fanouts, self._seed, self._is_replaced = uniform.fanouts, uniform.seed, uniform.replace
        self.graph = graph
        self._device = device
        self._lock = threading.Lock()
        # (N,) int32, all `UNSEEN` between calls; None before the first call and during a call
        self._labels: torch.Tensor | None = None
        self._host_copy: IdArray = np.empty(0, dtype=np.int64)  # host memory for copies from the device

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample the neighbourhood of ``seeds`` (B,); errors as in `NeighborSampler.sample`.

        Raises
        ------
        ConfigError
            Edges are excluded, which the device does not support.
        """
        batch_seeds = unexcluded_seeds(seeds, sampler="the device", instead="sampling_device='cpu'")
        checked = checked_seeds(batch_seeds.nodes, self.graph.num_nodes)
        require_distinct(checked)
        with self._lock, self._device.sampling():
            # A failed call leaves wrong labels. It also leaves None in ``_labels``, so that the next call allocates new
            # ones.
            labels, self._labels = self._labels, None
            if labels is None:
                labels = torch.full(
                    (self.graph.num_nodes,),
                    sampling_kernels.UNSEEN,
                    dtype=torch.int32,
                    device=self._device.place,
                )
            on_device, on_host, hops = self._sample_hops(batch_id, checked, labels)
            nodes = self._owned(on_device)
            degrees = self._owned(  # (U,) float32, in-degrees in the full graph
                self.graph.indptr[on_device + 1] - self.graph.indptr[on_device], torch.float32
            )
            make = self._merged_blocks if self._is_merged else self._layered_blocks
            blocks = make(hops, len(on_device), degrees)
            # Only the entries of the batch's nodes were written, so only they are reset.
            labels.index_fill_(0, on_device, sampling_kernels.UNSEEN)
            self._labels = labels
            made = self._device.mark_computing()
        return SampledBatch(
            id=batch_id,
            nodes=on_host,
            num_seeds=len(checked),
            blocks=(),
            on_device=SampledOnDevice(nodes=nodes, src_degree=degrees, blocks=blocks, made=made),
            links=batch_seeds.links,
        )

    def _sample_hops(
        self, batch_id: BatchId, seeds: IdArray, labels: torch.Tensor
    ) -> tuple[torch.Tensor, IdArray, list[_Hop]]:
        """Return a batch's nodes (U,) in first-seen order, on device and host, and its hops from the seeds on."""
        state, nodes = self._begun(batch_id, seeds, labels)
        hops: list[_Hop] = []
        # For each hop: find the largest possible number of edges, or fetch the true number if this would be too large.
        # Then allocate room for the edges, sample them, and label new nodes.
        most_nodes = most_new = len(seeds)  # upper bounds for all nodes, and for the last hop's new nodes
        for hop, fanout in enumerate(self._fanouts):
            most_rows = most_new if self._is_merged else most_nodes
            to = sampling_kernels.launch_count(state, nodes, hop=hop, fanout=fanout, capacity=most_rows)
            most_edges = room_of_hop(most_rows, fanout)
            if most_edges is None:
                # The room would be too large, so the host waits for the counts of nodes and of this hop's edges.
                ends, totals, offset = self._fetched(state.ends, state.totals, to.offsets[-1:])
                totals[hop] = offset[0]
                self._require_fit(batch_id, ends, totals[: hop + 1])
                most_nodes, most_edges = int(ends[hop + 1]), int(totals[hop])
                to = to.cut(most_nodes - self._first(ends, hop))
            most_new = min(most_edges, self.graph.num_nodes)
            most_nodes = min(most_nodes + most_edges, self.graph.num_nodes)
            nodes = _grown(nodes, most_nodes)
            edge_ids = nodes.new_empty(most_edges)
            indices = torch.empty_like(edge_ids, dtype=torch.int32)
            hops.append(_Hop(to=to, indices=indices, edge_ids=edge_ids))
            if most_edges:
                sources = sampling_kernels.launch_pick(
                    state, nodes, to, edge_ids, hop=hop, is_drawn=fanout >= 0
                )
                sampling_kernels.launch_relabel(state, nodes, to, sources, indices, hop=hop)
            else:  # a hop without edges finds no nodes
                state.ends[hop + 2 : hop + 3].copy_(state.ends[hop + 1 : hop + 2])
        ends, totals, on_host = self._fetched(state.ends, state.totals, nodes)
        self._require_fit(batch_id, ends, totals)
        count = int(ends[-1])
        cut = [
            with_room.cut(self._first(ends, hop), int(ends[hop + 1]), int(totals[hop]))
            for hop, with_room in enumerate(hops)
        ]
        return nodes[:count], on_host[:count].copy(), cut

    def _begun(
        self, batch_id: BatchId, seeds: IdArray, labels: torch.Tensor
    ) -> tuple[Sampling, torch.Tensor]:
        """Return a batch's state before its first hop, and its nodes so far, which are the seeds."""
        num_hops = len(self._fanouts)
        # One copy sends `ends`, `totals` and `keys` of `Sampling` one after another, then the seeds. The seeds start
        # after an even number of int64 values, because kernels need an alignment of 16 bytes.
        keys_at = 2 * num_hops + 2
        head = np.zeros(keys_at + num_hops + num_hops % 2, dtype=np.int64)
        head[1] = len(seeds)  # `ends` begins with 0 and the number of seeds
        keys = [layer_key(self._seed, batch_id.epoch, batch_id.index, hop) for hop in range(num_hops)]
        head[keys_at : keys_at + num_hops] = np.array(keys, dtype=np.uint64).view(np.int64)
        (sent,) = self._device.upload((np.concatenate([head, seeds]),))
        state = Sampling(
            graph=self.graph,
            labels=labels,
            ends=sent[: num_hops + 2],
            totals=sent[num_hops + 2 : keys_at],
            keys=sent[keys_at : keys_at + num_hops],
            is_merged=self._is_merged,
            is_replaced=self._is_replaced,
        )
        return state, sent[len(head) :]

    def _first(self, ends: IdArray, hop: int) -> int:
        """Return the local id of the first destination of ``hop``; ``ends`` is `Sampling.ends`."""
        return int(ends[hop]) if self._is_merged else 0

    def _require_fit(self, batch_id: BatchId, ends: IdArray, totals: IdArray) -> None:
        """Raise ConfigError if a hop is too large for local ids, which are int32.

        ``ends`` is `Sampling.ends`, and ``totals`` has the number of edges of each hop so far.
        """
        total = 0  # edges of a block: of one hop, or in the merged layout, of all hops so far
        for hop, num_edges in enumerate(totals.tolist()):
            total = num_edges + (total if self._is_merged else 0)
            most_nodes = min(int(ends[hop + 1]) + num_edges, self.graph.num_nodes)
            checked_total(max(total, most_nodes), hop, batch_id, self._fanouts)

    def _layered_blocks(
        self, hops: Sequence[_Hop], num_nodes: int, degrees: torch.Tensor
    ) -> tuple[DeviceBlock, ...]:
        """Return one block per hop, the seeds' block last, in the layered layout."""
        # A hop's sources are all nodes up to the next hop's last destination.
        num_src = [*(hop.last for hop in hops[1:]), num_nodes]
        blocks = [
            DeviceBlock(
                indptr=self._owned(hop.to.offsets, torch.int32),
                indices=self._owned(hop.indices),
                edge_ids=self._owned(hop.edge_ids),
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
        """Return the blocks in the merged layout: prefixes of all hops' joined edges, see `MergedBatch.to_blocks`."""
        shifts = np.cumsum([0, *(len(hop.indices) for hop in hops)]).tolist()  # edges in all earlier hops
        offsets = [hop.to.offsets[1:] + shift for hop, shift in zip(hops, shifts, strict=False)]
        indptr = self._owned(torch.cat([hops[0].to.offsets[:1], *offsets]), torch.int32)
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

    def _fetched(self, *values: torch.Tensor) -> list[IdArray]:
        """Return ``values`` (int64) in host memory after the device has computed them. Valid until the next call."""
        starts = np.cumsum([0, *map(len, values)]).tolist()
        if len(self._host_copy) < starts[-1]:
            self._host_copy = self._device.host_buffer(8 * starts[-1]).view(np.int64)
        arrays = [self._host_copy[start:end] for start, end in itertools.pairwise(starts)]
        for array, tensor in zip(arrays, values, strict=True):
            torch.from_numpy(array).copy_(tensor, non_blocking=True)
        # A thread that waits for a mark sleeps. A thread that waits for a copy would occupy a core.
        self._device.mark_computing().wait()
        return arrays

    def _owned(self, values: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a copy of ``values`` without spare room, as ``dtype``."""
        owned = self._device.empty(tuple(values.shape), dtype or values.dtype)
        owned.copy_(values)
        return owned


def _grown(nodes: torch.Tensor, size: int) -> torch.Tensor:
    """Return ``nodes`` with ``size`` entries, extended by spare room or cut after the used entries."""
    if size <= len(nodes):
        return nodes[:size]
    grown = nodes.new_empty(size)
    grown[: len(nodes)] = nodes
    return grown


def blocks_on_host(batch: SampledBatch) -> SampledBatch:
    """Return ``batch`` with its blocks in host memory, even if the device sampled it."""
    if batch.on_device is None:
        return batch
    batch.on_device.made.wait()
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
