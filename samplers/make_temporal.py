"""From the name of a sampler and its options to one that samples by time, and what that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.errors import ConfigError
from gloader.samplers.hetero_temporal import HeteroTemporalSampler
from gloader.samplers.make import hop_bytes, parse_spec, require_layout
from gloader.samplers.node_map import hash_map_bytes
from gloader.samplers.temporal import TemporalSampler
from gloader.samplers.time_search import search_bytes
from gloader.samplers.timed_hops import TimeRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import Layout, TimeBound, TimeStrategy
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers.graph import Topology
    from gloader.samplers.hetero_graph import HeteroGraph
    from gloader.types import Block, HeteroBatch, IdArray, SampledBatch

# Of an edge, beside its block: the entry of its source, and its place among them.
_EDGE_BYTES: Final = 16
# Of a node whose range is looked up: its tree, its id, the time that is asked at, and with a window both of its ends.
_NODE_BYTES: Final = 88

# Why edges are not swept where seeds ask at a time, and what can be, see `sweep_refusal`.
TIMED_SWEEP_REFUSAL: Final = (
    "a node that is asked for at a time looks its edges up in the times of its list before it takes one",
    "time_strategy='none'",
)


def make_temporal_sampler(
    graph: Topology,
    fanouts: Sequence[int],
    seed: int = 0,
    *,
    layout: Layout = "layered",
    strategy: TimeStrategy = "uniform",
    bound: TimeBound = "<",
    window: int | None = None,
    spec: str = "neighbor",
) -> TemporalSampler:
    """Return the sampler of seeds that ask at a time.

    Parameters
    ----------
    graph : the topology, with times
    fanouts : neighbours per node, hop next to the seeds first
    seed : any integer; taken modulo 2**64
    layout : see `make_sampler`
    strategy : "uniform" draws among the edges that a node may take, "last" takes the latest of them, in order
    bound : "<" takes edges before the time of the seed, "<=" also those of that second
    window : seconds up to the bound that edges may be from; None: any time before
    spec : "neighbor", with the options of `make_sampler`

    Raises
    ------
    ConfigError
        A value is not allowed, the graph has no times, or the sampler is another.
    """
    require_layout(spec, layout)
    rule = _rule(spec, strategy, bound, window)
    return TemporalSampler(graph, fanouts, rule=rule, seed=seed, layout=layout)


def make_hetero_temporal_sampler(
    graph: HeteroGraph,
    fanouts: FanoutsLike,
    seed: int = 0,
    *,
    layout: Layout = "layered",
    strategy: TimeStrategy = "uniform",
    bound: TimeBound = "<",
    window: int | None = None,
    spec: str = "neighbor",
) -> HeteroTemporalSampler:
    """Return the sampler of seeds of several types that ask at a time.

    Parameters
    ----------
    graph : the topology, with times of at least one relation
    fanouts : neighbours per node, relation and hop, see `checked_fanouts`
    seed, layout, strategy, bound, window, spec : see `make_temporal_sampler`

    Raises
    ------
    ConfigError
        A value is not allowed, no relation has times, or the sampler is another.
    """
    require_layout(spec, layout)
    rule = _rule(spec, strategy, bound, window)
    return HeteroTemporalSampler(graph, fanouts, rule=rule, seed=seed, layout=layout)


def temporal_map_bytes(found: int) -> int:
    """Return the most bytes that a sampling thread keeps to find entries again, of ``found`` in a large batch. Pure."""
    return hash_map_bytes(found)


def temporal_call_bytes(graph: Topology, batch: SampledBatch) -> int:
    """Return what a call held to sample ``batch``, beside it and the map of entries. Pure.

    Parameters
    ----------
    graph : the topology, with times
    batch : a large one
    """
    if not batch.blocks:
        return 0
    # The last hop is the largest, and behind it the degrees of all nodes are looked up.
    return _hop_bytes(graph, batch.nodes, batch.blocks[0], num_ranges=len(batch.nodes))


def hetero_temporal_call_bytes(graph: HeteroGraph, batch: HeteroBatch) -> int:
    """Return what `temporal_call_bytes` does, of the relation with most: they are sampled one after the other. Pure."""
    if not batch.blocks:
        return 0
    last_hop = batch.blocks[0]
    held = (
        _hop_bytes(
            topology,
            batch.nodes[relation[2]],
            last_hop[relation],
            num_ranges=last_hop[relation].num_dst,
        )
        for relation, topology in graph.relations.items()
    )
    return max(held, default=0)


def _hop_bytes(graph: Topology, nodes: IdArray, block: Block, *, num_ranges: int) -> int:
    in_edges = int(graph.in_degrees(nodes[: block.num_dst]).sum())
    taken = hop_bytes("neighbor", graph, num_edges=block.num_edges, in_edges=in_edges)
    searched = 0
    if graph.times is not None:  # a window has two ends to search
        asked = in_edges if num_ranges == block.num_dst else int(graph.in_degrees(nodes[:num_ranges]).sum())
        searched = search_bytes(graph.times, num_lists=2 * num_ranges, num_edges=2 * asked)
    # One after the other: what a hop may take is known before it takes it.
    return max(_EDGE_BYTES * block.num_edges + taken, _NODE_BYTES * num_ranges + searched)


def _rule(spec: str, strategy: TimeStrategy, bound: TimeBound, window: int | None) -> TimeRule:
    name, options = parse_spec(spec)
    if name != "neighbor":
        raise ConfigError(
            f"sampler {name!r} takes edges of all times; time_strategy goes with the sampler 'neighbor'"
        )
    if strategy == "none":
        raise ConfigError("time_strategy='none' samples edges of all times, which make_sampler does")
    return TimeRule(strategy=strategy, bound=bound, window=window, replace=options.get("replace", False))
