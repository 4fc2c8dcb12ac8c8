"""Neighbour sampling (Hamilton, Ying, Leskovec: "Inductive representation learning on large graphs", NIPS'17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import ConfigError, SeedError
from gloader.samplers import pick, weighted
from gloader.samplers.rng import layer_key
from gloader.samplers.workspace import Workspace, WorkspacePool
from gloader.types import BatchId, Block, IdArray, LocalArray, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.samplers.graph import CscGraph

_MAX_LOCAL = 2**31 - 2  # local ids and offsets are int32


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBatch:
    """The topology of one mini-batch with the edges of all hops over one list of nodes, as PyG lays it out.

    Only nodes that a hop found first sample in the next hop.
    """

    id: BatchId
    nodes: IdArray  # (U,) global ids, unique, in first-seen order; nodes[:num_seeds] are the seeds
    num_seeds: int
    edge_index: LocalArray  # (2, num_edges) local ids: sources, destinations; hop after hop
    edge_ids: IdArray  # (num_edges,) positions in the graph's ``indices``
    num_sampled_nodes: tuple[int, ...]  # L + 1: the seeds, then the new nodes of each hop
    num_sampled_edges: tuple[int, ...]  # L


class NeighborSampler:
    """Samples up to ``fanouts[l]`` in-neighbours of each node in hop l.

    Every draw is a hash of (seed, epoch, batch index, hop, node): equal arguments give equal batches, for any
    number of threads and any order of calls. Pure and thread-safe; each concurrent call holds 4 bytes per node
    (a hash table for large graphs), released with the sampler.

    A hop takes k distinct in-edges of a node, each k-subset equally likely, or all of them in order when there
    are no more than k. Parallel edges count as often as they occur; self loops are edges like any other.

    Parameters
    ----------
    graph : the topology
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all in order
    seed : any integer; taken modulo 2**64
    replace : draw with replacement: k draws for every node that has a neighbour
    weighted : draw in proportion to ``graph.edge_weight``; edges of weight zero are never taken

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, there is none, or ``weighted`` is set for a graph without weights.
    """

    def __init__(
        self,
        graph: CscGraph,
        fanouts: Sequence[int],
        *,
        seed: int = 0,
        replace: bool = False,
        weighted: bool = False,
    ) -> None:
        if weighted and graph.edge_weight is None:
            raise ConfigError("weighted=True needs edge weights; pass CscGraph(..., edge_weight=...)")
        self.graph = graph
        self.fanouts = checked_fanouts(fanouts)
        self.seed = _checked_seed(seed)
        self.replace = bool(replace)
        self.weighted = bool(weighted)
        self._pool = WorkspacePool(graph.num_nodes, max(self.fanouts))

    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        """Sample layered blocks: every node found so far samples again in each hop, as in DGL. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : (B,) distinct node ids; B = 0 gives an empty batch

        Raises
        ------
        SeedError
            Seeds are no integers, out of range or repeat; the message lists up to five.
        ConfigError
            The batch would have 2**31 nodes or edges in a hop.
        """
        checked = _checked_seeds(seeds, self.graph.num_nodes)
        blocks: list[Block] = []
        with np.errstate(over="ignore"), self._pool.lend() as work:  # interpreted hashes wrap around
            num_nodes = _enter_seeds(work, checked)
            seen = 0
            for hop in range(len(self.fanouts)):
                self._fetch_degrees(work, seen, num_nodes)
                seen = num_nodes
                block = self._sample_hop(work, batch_id, hop, 0, num_nodes)
                blocks.append(block)
                num_nodes = block.num_src
            nodes = work.nodes[:num_nodes].copy()
        return SampledBatch(id=batch_id, nodes=nodes, num_seeds=len(checked), blocks=tuple(reversed(blocks)))

    def sample_merged(self, batch_id: BatchId, seeds: IdArray, /) -> MergedBatch:
        """Sample merged hops: only the nodes found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors are those of `sample`.
        """
        checked = _checked_seeds(seeds, self.graph.num_nodes)
        hops: list[Block] = []
        with np.errstate(over="ignore"), self._pool.lend() as work:
            counts = [0, _enter_seeds(work, checked)]
            for hop in range(len(self.fanouts)):
                self._fetch_degrees(work, counts[-2], counts[-1])
                hops.append(self._sample_hop(work, batch_id, hop, counts[-2], counts[-1]))
                counts.append(hops[-1].num_src)
            nodes = work.nodes[: counts[-1]].copy()
        return _merge(batch_id, nodes, hops, counts)

    def _fetch_degrees(self, work: Workspace, first: int, last: int) -> None:
        pick.fetch_degrees(self.graph.indptr, work.nodes, first, last, work.starts, work.degrees)

    def _sample_hop(self, work: Workspace, batch_id: BatchId, hop: int, first: int, last: int) -> Block:
        """Let the nodes ``first:last`` of the batch sample; its nodes so far are ``:last``."""
        indptr = np.empty(last - first + 1, dtype=np.int32)
        num_edges = self._count(work, self.fanouts[hop], first, last, indptr)
        most_nodes = min(last + num_edges, self.graph.num_nodes)
        if num_edges < 0 or most_nodes > _MAX_LOCAL:
            raise ConfigError(
                f"hop {hop} of {batch_id} would have 2**31 edges or more; "
                f"lower the batch size or fanouts={self.fanouts}"
            )
        work.reserve(most_nodes + 1, last)
        edge_ids = np.empty(num_edges + pick.SLACK, dtype=np.int64)
        indices = np.empty(num_edges, dtype=np.int32)
        key = layer_key(self.seed, batch_id.epoch, batch_id.index, hop)
        self._pick(work, self.fanouts[hop], first, last, key, indptr, edge_ids)
        edge_ids = edge_ids[:num_edges]
        num_src = work.map.relabel(self.graph.indices, edge_ids, work.nodes, last, indices)
        return Block(indptr=indptr, indices=indices, edge_ids=edge_ids, num_src=num_src, num_dst=last - first)

    def _count(self, work: Workspace, fanout: int, first: int, last: int, indptr: LocalArray) -> int:
        if self.weighted:
            total: int = weighted.count_weighted(
                self.graph.edge_weight,
                work.starts,
                work.degrees,
                first,
                last,
                fanout,
                self.replace,
                _MAX_LOCAL,
                indptr,
            )
        else:
            total = pick.count_uniform(work.degrees, first, last, fanout, self.replace, _MAX_LOCAL, indptr)
        return total

    def _pick(
        self,
        work: Workspace,
        fanout: int,
        first: int,
        last: int,
        key: np.uint64,
        indptr: LocalArray,
        out: IdArray,
    ) -> None:
        if fanout == 0:
            return
        rows = (work.nodes, work.starts, work.degrees, first, last)
        if not self.weighted:
            if self.replace:
                pick.pick_with_replacement(*rows, fanout < 0, key, indptr, out)
            else:
                pick.pick_uniform(*rows, key, indptr, out, work.bits)
        elif self.replace:
            work.reserve_scratch(int(work.degrees[first:last].max(initial=0)))
            weighted.pick_weighted_with_replacement(
                self.graph.edge_weight, *rows, fanout, key, indptr, out, work.scratch
            )
        else:
            work.reserve_scratch(max(fanout, 0))
            weighted.pick_weighted(self.graph.edge_weight, *rows, fanout, key, indptr, out, work.scratch)


def checked_fanouts(fanouts: Sequence[int]) -> tuple[int, ...]:
    """Return ``fanouts`` as a tuple of integers. Pure.

    Raises
    ------
    ConfigError
        There is none, or one is not an integer >= -1.
    """
    if isinstance(fanouts, (str, bytes)) or not hasattr(fanouts, "__iter__"):
        raise ConfigError(f"fanouts is {fanouts!r}; pass one integer per hop, such as [15, 10, 5]")
    checked = tuple(fanouts)
    if not checked:
        raise ConfigError("fanouts is empty; pass one integer per hop, such as [15, 10, 5]")
    for hop, fanout in enumerate(checked):
        if isinstance(fanout, (bool, np.bool_)) or not isinstance(fanout, (int, np.integer)):
            raise ConfigError(f"fanouts[{hop}] is {fanout!r}; it must be an integer, -1 for all neighbours")
        if not -1 <= fanout <= _MAX_LOCAL:
            raise ConfigError(f"fanouts[{hop}] is {fanout}; it must be at least 0, or -1 for all neighbours")
    return tuple(int(fanout) for fanout in checked)


def _checked_seed(seed: int) -> int:
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"seed is {seed!r}; it must be an integer")
    return int(seed) % 2**64


def _checked_seeds(seeds: IdArray, num_nodes: int) -> IdArray:
    """Return ``seeds`` as contiguous int64 after the range check; no kernel sees an unchecked id."""
    ids = np.asarray(seeds)
    if ids.ndim != 1:
        raise SeedError(f"seeds have shape {ids.shape}; they must have one dimension")
    if ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if ids.dtype.kind not in "iu":
        raise SeedError(f"seeds have dtype {ids.dtype}; they must be integers")
    if ids.min() < 0 or ids.max() >= num_nodes:
        bad = ids[(ids < 0) | (ids >= num_nodes)]
        raise SeedError(f"{len(bad)} seeds are not in 0..{num_nodes - 1}, among them {bad[:5].tolist()}")
    return np.ascontiguousarray(ids, dtype=np.int64)


def _enter_seeds(work: Workspace, seeds: IdArray) -> int:
    work.reserve(len(seeds) + 1, 0)
    if work.map.begin(seeds, work.nodes):
        values, counts = np.unique(seeds, return_counts=True)
        repeated = values[counts > 1]
        raise SeedError(f"{len(repeated)} seeds repeat within the batch, among them {repeated[:5].tolist()}")
    return len(seeds)


def _merge(batch_id: BatchId, nodes: IdArray, hops: list[Block], counts: list[int]) -> MergedBatch:
    """Join the hops of a batch; the destinations of hop l are the nodes ``counts[l]:counts[l + 1]``. Pure."""
    sources = np.concatenate([hop.indices for hop in hops])
    destinations = np.concatenate(
        [
            np.repeat(np.arange(first, first + hop.num_dst, dtype=np.int32), np.diff(hop.indptr))
            for first, hop in zip(counts, hops, strict=False)
        ]
    )
    return MergedBatch(
        id=batch_id,
        nodes=nodes,
        num_seeds=counts[1],
        edge_index=np.stack([sources, destinations]),
        edge_ids=np.concatenate([hop.edge_ids for hop in hops]),
        num_sampled_nodes=tuple(np.diff(counts).tolist()),
        num_sampled_edges=tuple(hop.num_edges for hop in hops),
    )
