"""From the name of a sampler and its options to one of a graph of several types."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gloader.errors import ConfigError
from gloader.samplers.arguments import checked_fanouts, resolve_fanouts
from gloader.samplers.collective import CollectiveDraws
from gloader.samplers.hetero import MergedHeteroBlockSampler, RelationwiseSampler
from gloader.samplers.labor import LaborSampler
from gloader.samplers.make import (
    has_candidates,
    hop_bytes,
    node_map_bytes,
    parse_spec,
    require_layout,
    sweep_refusal,
)
from gloader.samplers.neighbor import NeighborSampler
from gloader.types import CollectiveFanouts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gloader.config import Layout
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers.graph import Topology
    from gloader.samplers.hetero_graph import HeteroGraph
    from gloader.samplers.relation_sampler import RelationSampler
    from gloader.types import HeteroBatch, HeteroSampler

_DRAW_BYTES = 8
_WITH_TYPES = ("neighbor", "weighted", "labor")


def make_hetero_sampler(
    spec: str,
    graph: HeteroGraph,
    fanouts: FanoutsLike,
    seed: int = 0,
    *,
    layout: Layout = "layered",
) -> HeteroSampler:
    """Return the sampler that ``spec`` describes, of a graph of several types.

    Parameters
    ----------
    spec : "neighbor", "weighted" (relations without weights are drawn alike) or "labor"; options may follow, as of
        `make_sampler`
    graph : the topology
    fanouts : neighbours per node, relation and hop, see `checked_fanouts`
    seed : any integer; taken modulo 2**64
    layout : see `make_sampler`

    Raises
    ------
    ConfigError
        The name, an option or the layout is unknown, or a value is not allowed; the sampler is for graphs of one type,
        or by weights, and no relation has any; fan-outs name a relation that is not there, or miss one.
    """
    name, options = parse_spec(spec)
    require_layout(spec, layout)
    checked = checked_fanouts(fanouts)
    resolved = resolve_fanouts(checked, tuple(graph.relations))
    make = _maker(name, graph, options)
    pairs = zip(graph.relations.values(), resolved, strict=True)
    sampler = RelationwiseSampler(
        graph,
        [make(topology, hops, seed=seed) for topology, hops in pairs],
        num_hops=len(checked),
        has_candidates=has_candidates(spec),
        collective=_collective(name, graph, checked, options)
        if isinstance(checked, CollectiveFanouts)
        else None,
    )
    return MergedHeteroBlockSampler(sampler) if layout == "merged" else sampler


def _collective(
    name: str, graph: HeteroGraph, fanouts: CollectiveFanouts, options: dict[str, Any]
) -> CollectiveDraws:
    if name != "neighbor":
        raise ConfigError(
            f"sampler {name!r} with fanouts={str(fanouts)!r}: fan-outs of all relations together are drawn alike; use "
            "the sampler 'neighbor', or fan-outs of each relation"
        )
    return CollectiveDraws(graph, fanouts.fanouts, replace=options.get("replace", False))


def hetero_sweep_refusal(spec: str, fanouts: FanoutsLike) -> tuple[str, str] | None:
    """Return why the edges of a sampler of any graph cannot be swept, and what can be; None: they can be. Pure.

    Parameters
    ----------
    spec : the name of a sampler, with options
    fanouts : of every relation, of each, or of all together
    """
    if isinstance(checked_fanouts(fanouts), CollectiveFanouts):
        return (
            "fan-outs of all relations together draw over the edges of several files at once",
            "fan-outs of each relation",
        )
    return sweep_refusal(spec)


def hetero_map_bytes(spec: str, graph: HeteroGraph, found: Mapping[str, int]) -> int:
    """Return the most bytes that a sampling thread of the sampler ``spec`` keeps to find nodes again. Pure.

    Parameters
    ----------
    spec : the name of a sampler, with options
    graph : the topology
    found : of each type, nodes and edges of a large batch, each of which may be a node of a hash table; a type that is
        not there has none
    """
    return sum(
        node_map_bytes(spec, num_nodes=num_nodes, found=found.get(name, 0))
        for name, num_nodes in graph.num_nodes.items()
    )


def hetero_call_bytes(
    spec: str, graph: HeteroGraph, batch: HeteroBatch, *, is_collective: bool = False
) -> int:
    """Return what a call of the sampler ``spec`` held to sample ``batch``, beside it and the map of nodes. Pure.

    Copies of edges that are not in memory, and what is noted of those that it chose from: of the relation with most,
    as relations are sampled one after the other.

    Parameters
    ----------
    spec : the name of a sampler, with options
    graph : the topology
    batch : a large one
    is_collective : whether it was drawn from all relations together
    """
    if not batch.blocks:
        return 0
    last_hop = batch.blocks[0]  # the largest
    held = [
        hop_bytes(
            spec,
            graph.relations[relation],
            num_edges=block.num_edges,
            in_edges=int(
                graph.relations[relation].in_degrees(batch.nodes[relation[2]][: block.num_dst]).sum()
            ),
        )
        for relation, block in last_hop.items()
        if block.num_edges
    ]
    # Draws of all relations wait until they are dealt out; `Candidates` of one type stay while another's are found.
    drawn = sum(_DRAW_BYTES * block.num_edges for block in last_hop.values()) if is_collective else 0
    return drawn + (sum(held) if has_candidates(spec) else max(held, default=0))


def _maker(name: str, graph: HeteroGraph, options: dict[str, Any]) -> Callable[..., RelationSampler]:
    """Return what makes the sampler of a relation of its topology and its fan-outs."""
    if name == "neighbor":
        return partial(NeighborSampler, **options)
    if name == "labor":
        return partial(LaborSampler, **options)
    if name != "weighted":
        raise ConfigError(
            f"sampler {name!r} draws nodes of one type; a graph of several types takes the samplers "
            f"{', '.join(map(repr, _WITH_TYPES))}"
        )
    if all(topology.weights is None for topology in graph.relations.values()):
        raise ConfigError(
            "weighted sampling needs a weight for each edge, and no relation of this graph has any; use the sampler "
            "'neighbor', or write edge weights of a relation when the dataset is made"
        )
    return partial(_weighted_if_it_can_be, **options)


def _weighted_if_it_can_be(topology: Topology, *arguments: Any, **options: Any) -> NeighborSampler:
    return NeighborSampler(topology, *arguments, weighted=topology.weights is not None, **options)
