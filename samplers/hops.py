"""The hops of a batch, one after the other: the frame around the picking of every sampler of layered blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.errors import ConfigError, SeedError
from gloader.samplers import graph_errors, pick_kernels, poisson_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_seeds
from gloader.samplers.exclusion import degrees_without, excluded_edges
from gloader.types import BatchId, BatchSeeds, Block, IdArray, LocalArray, SampledBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.samplers.workspace import FoundNodes, Workspace, WorkspacePool


class SampleHop(Protocol):
    """Lets the first ``num_dst`` nodes of the batch in ``work`` sample; appends what they find to its nodes."""

    def __call__(
        self, graph: Topology, work: Workspace, batch_id: BatchId, hop: int, num_dst: int, /
    ) -> Block:
        """Return the block of hop ``hop``, 0 next to the seeds."""
        ...


def sample_layers(
    graph: Topology,
    pool: WorkspacePool,
    batch_id: BatchId,
    seeds: BatchSeeds,
    num_hops: int,
    sample_hop: SampleHop,
) -> SampledBatch:
    """Sample layered blocks: every node found so far samples again in each hop, as in DGL. Thread-safe.

    Parameters
    ----------
    graph : the topology
    pool : lends this call its scratch memory
    batch_id : the address of the batch, part of the random key
    seeds : distinct node ids; none give an empty batch. Degrees do not count excluded edges, and ``sample_hop`` passes
        over them
    num_hops : L
    sample_hop : the sampler's own part

    Raises
    ------
    SeedError
        Seeds are no integers, out of range or repeat; the message lists up to five. Excluded positions do not
        ascend, or are none of the graph.
    GraphError
        A graph that was not checked has an entry that cannot be; the message names the node and the position.
    """
    checked = checked_seeds(seeds.nodes, graph.num_nodes)
    excluded = excluded_edges(seeds.excluded, graph, checked)
    blocks: list[Block] = []
    with np.errstate(over="ignore"), pool.lend() as work:  # interpreted hashes wrap around
        num_nodes = enter_seeds(work.sources, checked)
        work.begin(excluded)
        for hop in range(num_hops):
            fetch_degrees(graph, work, range(num_nodes))
            blocks.append(sample_hop(graph, work, batch_id, hop, num_nodes))
            num_nodes = blocks[-1].num_src
        # A copy, as the workspace goes to another call; the blocks hold arrays of their own.
        nodes = work.nodes[:num_nodes].copy()
    # A model starts at the hop that lies farthest from the seeds.
    return SampledBatch(
        id=batch_id,
        nodes=nodes,
        num_seeds=len(checked),
        blocks=tuple(reversed(blocks)),
        links=seeds.links,
        in_degrees=degrees_without(excluded, graph, nodes),
    )


def enter_seeds(found: FoundNodes, seeds: IdArray) -> int:
    """Make ``seeds``, which are in range, the first nodes of a batch; return their number.

    Raises
    ------
    SeedError
        One repeats.
    """
    # The map counts repeats as it goes; which seeds they are is worth a sort for the message only.
    if found.begin(seeds):
        require_distinct(seeds)
    return len(seeds)


def require_distinct(seeds: IdArray, *, noun: str = "seeds") -> None:
    """Raise SeedError where one of ``seeds``, which the user knows as ``noun``, repeats; it lists up to five. Pure."""
    values, counts = np.unique(seeds, return_counts=True)
    repeated = values[counts > 1]
    if len(repeated):
        raise SeedError(f"{len(repeated)} {noun} repeat within the batch, among them {repeated[:5].tolist()}")


def fetch_degrees(graph: Topology, work: Workspace, destinations: range) -> None:
    """Write where the in-edges of ``destinations`` begin, and how many there are to take.

    Parameters
    ----------
    graph : the topology
    work : the batch so far; ``starts`` and ``degrees`` of ``destinations`` are written, but for those that an earlier
        hop fetched
    destinations : positions in ``work.nodes``

    Raises
    ------
    GraphError
        The in-edges of a node do not lie within the graph's.
    """
    first, last = max(work.fetched, destinations.start), destinations.stop
    if first >= last:
        return
    work.reserve_degrees(last)
    bad = pick_kernels.fetch_degrees(
        graph.offsets, graph.num_edges, work.nodes, first, last, work.starts, work.degrees
    )
    if bad >= 0:
        raise graph_errors.bad_degree(graph, int(work.nodes[bad]))
    work.fetched = last
    work.leave_out(first, last)


def taken_block(
    graph: Topology,
    work: Workspace,
    destinations: range,
    indptr: LocalArray,
    edge_ids: IdArray,
    *,
    sources: tuple[NDArray[Any], IdArray],
    edge_weight: NDArray[np.float32] | None = None,
) -> Block:
    """Return the block of the edges that a hop takes; their sources join the nodes found.

    Parameters
    ----------
    graph : the topology
    work : the batch so far
    destinations : positions in ``work.nodes``
    indptr : (D + 1,) where the edges of each destination begin
    edge_ids : (M,) positions in the graph
    sources : an array, and where in it (M,) the source of each edge is
    edge_weight : (M,) of the block

    Raises
    ------
    GraphError
        A source is no node.
    """
    values, places = sources
    indices = np.empty(len(edge_ids), dtype=np.int32)
    num_src = work.sources.append(values, places, indices)
    if num_src < 0:
        at, nodes = -1 - num_src, work.nodes[destinations.start : destinations.stop]
        raise graph_errors.bad_neighbor(graph, nodes, indptr, edge_ids, at, source=int(values[places[at]]))
    return Block(
        indptr=indptr,
        indices=indices,
        edge_ids=edge_ids,
        num_src=num_src,
        num_dst=len(destinations),
        edge_weight=edge_weight,
    )


def weighted_block(
    graph: Topology,
    work: Workspace,
    lists: EdgeLists,
    num_dst: int,
    indptr: LocalArray,
    *,
    normalize: bool,
) -> Block:
    """Return the block of the edges and weights that a kernel left in ``work.scratch``; sources join the nodes found.

    Parameters
    ----------
    graph : the topology
    work : the batch so far; its edges are places in ``lists``
    lists : the sources of the in-edges of the destinations
    num_dst : D, destinations of the hop
    indptr : (D + 1,) int32, where the edges of each destination begin in ``work.scratch.edges``
    normalize : make the weights of each destination add up to its in-degree
    """
    num_edges = int(indptr[-1])
    # Copies: how many edges there are is known only after the picking, and ``work`` goes to another call.
    edge_ids = work.scratch.edges[:num_edges].copy()
    edge_weight = work.scratch.weights[:num_edges].copy()
    if normalize:
        poisson_kernels.scale_to_degree(work.degrees, num_dst, indptr, edge_weight)
    indices = np.empty(num_edges, dtype=np.int32)
    num_src = work.sources.append(lists.values, edge_ids, indices)
    lists.to_positions(edge_ids, indptr)
    if num_src < 0:
        raise graph_errors.bad_neighbor(graph, work.nodes[:num_dst], indptr, edge_ids, -1 - num_src)
    return Block(
        indptr=indptr,
        indices=indices,
        edge_ids=edge_ids,
        num_src=num_src,
        num_dst=num_dst,
        edge_weight=edge_weight,
    )


def checked_total(total: int, hop: int, batch_id: BatchId, fanouts: tuple[int, ...]) -> int:
    """Return ``total``, the in-edges or edges of a hop, after the check that int32 offsets can hold it. Pure.

    Parameters
    ----------
    total : edges; a kernel that gave up counting returns -1
    hop, batch_id, fanouts : for the message

    Raises
    ------
    ConfigError
        There are 2**31 edges or more.
    """
    if not 0 <= total <= MAX_LOCAL:
        raise ConfigError(
            f"hop {hop} of {batch_id} would have 2**31 edges or more; lower the batch size or fanouts={fanouts}"
        )
    return total
