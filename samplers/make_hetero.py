"""From the name of a sampler and its options to one of a graph of several types."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gloader.errors import ConfigError
from gloader.samplers.arguments import checked_fanouts, resolve_fanouts
from gloader.samplers.hetero import MergedHeteroBlockSampler, RelationwiseSampler
from gloader.samplers.labor import LaborSampler
from gloader.samplers.make import parse_spec, require_layout
from gloader.samplers.neighbor import NeighborSampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.config import Layout
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers.graph import Topology
    from gloader.samplers.hetero import HeteroSampler, RelationSampler
    from gloader.samplers.hetero_graph import HeteroGraph

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
        has_candidates=options.get("iterations", 0) != 0,
    )
    return MergedHeteroBlockSampler(sampler) if layout == "merged" else sampler


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
