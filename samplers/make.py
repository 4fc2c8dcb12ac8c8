"""The table of samplers: it makes a sampler from a name with options, and estimates the sampler's memory.

A spec is a sampler's name with options, as in "labor:iterations=1". A relation is an edge type. A pick chooses one
relation's edges in each hop (`RelationPick`); a sampler runs one pick for each relation. A sweep reads the whole edge
file in order, and each batch takes its edges as they pass; not every sampler can work in this way.

The order of this file: the table; functions that look up a spec's properties and memory; `make_sampler` for a graph
of one type; `make_hetero_sampler` for several types; and the samplers for seeds with times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from gloader.config import Layout
from gloader.errors import ConfigError
from gloader.samplers import pick_kernels, poisson_kernels, weighted_kernels
from gloader.samplers.arguments import checked_fanouts, resolve_fanouts
from gloader.samplers.collective import CollectiveDraws
from gloader.samplers.graph import HeteroGraph
from gloader.samplers.hetero import MergedHeteroBlockSampler, RelationwiseSampler
from gloader.samplers.labor import LaborPick, LaborSampler
from gloader.samplers.layerwise import LayerPick, LayerSampler
from gloader.samplers.neighbor import MergedBlockSampler, NeighborPick, NeighborSampler, require_weights
from gloader.samplers.node_map import hash_map_bytes
from gloader.samplers.ranges import TimeRule, search_bytes
from gloader.samplers.temporal import HeteroTemporalSampler, TemporalSampler
from gloader.samplers.workspace import DENSE_LIMIT, candidate_bytes
from gloader.types import CollectiveFanouts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    from gloader.config import TimeBound, TimeStrategy
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers.graph import Topology
    from gloader.samplers.hops import RelationPick
    from gloader.types import AnyBatch, Block, HeteroSampler, IdArray, Sampler

_MAP_BYTES = 4  # bytes per graph node: its int32 local id
_MAP_AND_CHANCE_BYTES = 8  # bytes per graph node: its local id and float32 sampling chance
# Bytes per edge that a kernel writes before the number of edges is known: the edge's index and weight.
_TAKEN_EDGE_BYTES = 12
_DRAW_BYTES = 8  # bytes per edge drawn over all relations together: its int64 position
# Bytes per edge of a sampler by time, in addition to its block: the source's entry and its index. An entry is a number
# for a node in the tree of a seed, see `ranges`.
_EDGE_BYTES = 16
# Bytes per node of a sampler by time: its tree, id, requested time, and the searched ends of its time range.
_NODE_BYTES = 88

# The refusal of sweeps for seeds with times, in the form of `sweep_refusal`.
TIMED_SWEEP_REFUSAL = (
    "a node with a time searches the times of all its in-edges before it takes one",
    "time_strategy='none'",
)
# Why a sampler has layered hops only, in the form of `_SamplerKind.why_layered`.
_CHOOSES_TOGETHER = (
    "which chooses for all nodes of a layer together, so that a node cannot keep its earlier draws"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SamplerKind:
    """One sampler in the table of samplers."""

    make: Callable[..., Sampler]  # takes the graph, the fan-outs, ``seed`` and the options
    options: dict[str, type]  # the type of each option, in the order of messages
    node_bytes: int  # bytes of memory per graph node and sampling thread
    kernels: ModuleType  # the sampler's kernels; if none is compiled, the sampler has never run here
    # The values that the sampler reads for all in-edges of a hop; None if it reads taken edges only.
    lists: Literal["sources", "weights"] | None = None
    # Maps the options to True if the sampler chooses for all destinations together, see `Candidates`.
    has_candidates: Callable[[dict[str, Any]], bool] = lambda _: False
    # Maps the options to the words (each as large as a node id) that a sweep returns per taken edge; 0 means no sweeps.
    swept_words: Callable[[dict[str, Any]], int] = lambda _: 0
    # The ends of the message "edges cannot be swept, as the sampler X ...; use ...".
    why_unswept: str = "weighs the in-edges of all nodes of a hop before it takes one"
    instead_swept: str = "the sampler 'neighbor'"
    # Wraps the sampler from ``make``, which has ``sample_merged``. None means that only layered hops are possible.
    to_merged: Callable[[Any], Sampler] | None = None
    why_layered: str = "which has layered hops only"  # ends "layout='merged' with sampler X, ..."
    # Makes a relation's picks, with the parameters of ``make``. None means only graphs with one type.
    pick: Callable[..., RelationPick] | None = None
    has_times: bool = False  # True if the picks take edges before a time


def _weighted_words(options: dict[str, Any]) -> int:
    """Return the words per edge that a sweep returns for "weighted": index, source and, optionally, importance.

    The result is 0 with replacement, which needs sums of weights and cannot be swept.
    """
    if options.get("replace", False):
        return 0
    return 3 if options.get("importance", True) else 2


def _weighted_pick(topology: Topology, *arguments: Any, **options: Any) -> NeighborPick:
    """Return a pick by weight, or a uniform pick for a relation without weights."""
    return NeighborPick(topology, *arguments, weighted=topology.weights is not None, **options)


# A new sampler is one line here. Its class samples layered blocks, see `gloader.types.Sampler`.
_SAMPLERS = {
    "neighbor": _SamplerKind(
        make=NeighborSampler,
        options={"replace": bool},
        node_bytes=_MAP_BYTES,
        kernels=pick_kernels,
        swept_words=lambda _: 1,
        to_merged=MergedBlockSampler,
        pick=NeighborPick,
        has_times=True,
    ),
    "weighted": _SamplerKind(
        make=partial(NeighborSampler, weighted=True),
        options={"replace": bool, "importance": bool},
        node_bytes=_MAP_BYTES,
        kernels=weighted_kernels,
        lists="weights",
        swept_words=_weighted_words,
        why_unswept="needs the sum of a node's weights before its first draw",
        instead_swept="the sampler 'weighted:replace=false'",
        to_merged=MergedBlockSampler,
        pick=_weighted_pick,
        has_times=True,
    ),
    "labor": _SamplerKind(
        make=LaborSampler,
        options={"iterations": int, "share_layers": bool, "normalize": bool},
        node_bytes=_MAP_AND_CHANCE_BYTES,
        kernels=poisson_kernels,
        lists="sources",
        has_candidates=lambda options: options.get("iterations", 0) != 0,
        swept_words=lambda options: 2 if options.get("iterations", 0) == 0 else 0,
        instead_swept="the sampler 'labor:iterations=0'",
        why_layered=_CHOOSES_TOGETHER,
        pick=LaborPick,
    ),
    "ladies": _SamplerKind(
        make=partial(LayerSampler, method="ladies"),
        options={"adjacency": str, "normalize": bool},
        node_bytes=_MAP_AND_CHANCE_BYTES,
        kernels=poisson_kernels,
        lists="sources",
        has_candidates=lambda _: True,
        why_layered=_CHOOSES_TOGETHER,
        pick=partial(LayerPick, method="ladies"),
    ),
    "fastgcn": _SamplerKind(
        make=partial(LayerSampler, method="fastgcn"),
        options={"adjacency": str, "normalize": bool},
        node_bytes=_MAP_AND_CHANCE_BYTES,
        kernels=poisson_kernels,
        lists="sources",
        why_layered=_CHOOSES_TOGETHER,
    ),
}
SAMPLER_NAMES = tuple(_SAMPLERS)
_WITH_MERGED = [repr(name) for name, kind in _SAMPLERS.items() if kind.to_merged is not None]
_WITH_TYPES = [repr(name) for name, kind in _SAMPLERS.items() if kind.pick is not None]
_WITH_TIMES = [repr(name) for name, kind in _SAMPLERS.items() if kind.has_times]


def node_map_bytes(spec: str, *, num_nodes: int, found: int) -> int:
    """Return the peak bytes of a sampling thread's node map for the sampler ``spec``. Pure.

    Parameters
    ----------
    spec : a sampler name, with options
    num_nodes : N
    found : nodes plus edges in a large batch, an upper bound on the hash table's entries
    """
    node_bytes = _SAMPLERS[parse_spec(spec)[0]].node_bytes
    # A sampler that also stores a chance per node is counted as if every node had an entry.
    if num_nodes <= DENSE_LIMIT or node_bytes != _MAP_BYTES:
        return node_bytes * num_nodes
    return hash_map_bytes(min(found, num_nodes))


def kernels_of(spec: str) -> ModuleType:
    """Return the kernel module of the sampler ``spec``. Pure."""
    return _SAMPLERS[parse_spec(spec)[0]].kernels


def call_bytes(
    spec: str, graph: Topology | HeteroGraph, batch: AnyBatch, *, is_collective: bool = False
) -> int:
    """Return the bytes that a sampler call holds for ``batch``, without the batch itself and the node map. Pure.

    The bytes are copies of edges from the SSD, and the candidate edges. Relations are sampled one after another, so the
    largest relation counts. A sampler with `Candidates` keeps all relations' candidates together, so their sum counts.

    Parameters
    ----------
    spec : a sampler name, with options
    graph : the topology
    batch : a large batch
    is_collective : True if the edges were drawn over all relations together
    """
    hops = _last_hop(graph, batch)
    held = [
        hop_bytes(
            spec, topology, num_edges=block.num_edges, in_edges=_in_edges(topology, nodes, block.num_dst)
        )
        for topology, nodes, block in hops
        if block.num_edges
    ]
    # Draws over all relations are kept until the last relation has its share.
    drawn = sum(_DRAW_BYTES * block.num_edges for _, _, block in hops) if is_collective else 0
    return drawn + (sum(held) if has_candidates(spec) else max(held, default=0))


def temporal_call_bytes(graph: Topology | HeteroGraph, batch: AnyBatch, spec: str = "neighbor") -> int:
    """Return the bytes that a sampler by time holds in a call, without the batch and the entry map. Pure.

    Parameters
    ----------
    graph : the topology, with times
    batch : a large batch
    spec : a sampler name, with options
    """
    held = [0]
    for topology, nodes, block in _last_hop(graph, batch):
        # With one type, the call looks up the degrees of all nodes in the batch.
        num_ranges = block.num_dst if isinstance(graph, HeteroGraph) else len(nodes)
        in_edges = _in_edges(topology, nodes, block.num_dst)
        taken = hop_bytes(spec, topology, num_edges=block.num_edges, in_edges=in_edges)
        searched = 0
        if topology.times is not None:  # a window has two ends to search
            num_searched = _in_edges(topology, nodes, num_ranges)
            searched = search_bytes(topology.times, num_lists=2 * num_ranges, num_edges=2 * num_searched)
        # The larger amount counts: a hop frees the search before it takes edges.
        held.append(max(_EDGE_BYTES * block.num_edges + taken, _NODE_BYTES * num_ranges + searched))
    return max(held)


# Former names of these functions, kept for programs that import them.
hetero_call_bytes, hetero_temporal_call_bytes = call_bytes, temporal_call_bytes


def _last_hop(graph: Topology | HeteroGraph, batch: AnyBatch) -> list[tuple[Topology, IdArray, Block]]:
    """Return each relation's topology, the nodes of its destination type, and its block in the last hop.

    The last hop is the largest: the one farthest from the seeds. The list is empty for a batch without hops.
    """
    typed = HeteroGraph.of(graph)
    nodes = dict(zip(typed.node_types, batch.node_arrays, strict=True))
    return [
        (topology, nodes[relation[2]], batch.edges_of(number)[0])
        for number, (relation, topology) in enumerate(typed.relations.items())
        if batch.blocks
    ]


def _in_edges(graph: Topology, nodes: IdArray, count: int) -> int:
    """Return the number of in-edges of the first ``count`` nodes."""
    return int(graph.in_degrees(nodes[:count]).sum())


def hop_bytes(spec: str, graph: Topology, *, num_edges: int, in_edges: int) -> int:
    """Return the bytes that the sampler ``spec`` holds in one relation's hop, without block and node map. Pure.

    Parameters
    ----------
    spec : a sampler name, with options
    graph : the topology
    num_edges : edges that the hop takes
    in_edges : in-edges of the hop's destinations
    """
    name, options = parse_spec(spec)
    kind = _SAMPLERS[name]
    fetched = graph.sources.fetch_bytes(num_edges)
    match kind.lists:
        case None:
            return fetched
        case "weights":
            return fetched + (0 if graph.weights is None else graph.weights.list_bytes(in_edges))
        case "sources":
            listed = graph.sources.list_bytes(in_edges)
            if kind.has_candidates(options):
                return listed + _TAKEN_EDGE_BYTES * in_edges + candidate_bytes(in_edges, graph.num_sources)
            return listed + _TAKEN_EDGE_BYTES * num_edges


def has_candidates(spec: str) -> bool:
    """Return True if the sampler ``spec`` chooses for all destinations together, see `Candidates`. Pure."""
    name, options = parse_spec(spec)
    return _SAMPLERS[name].has_candidates(options)


def swept_words(spec: str) -> int:
    """Return the words per taken edge that a sweep returns for the sampler ``spec``. Pure.

    A word is as large as a node id. The result is 0 if the sampler cannot be swept.
    """
    name, options = parse_spec(spec)
    return _SAMPLERS[name].swept_words(options)


def sweep_refusal(spec: str) -> tuple[str, str] | None:
    """Return the reason against sweeps with the sampler ``spec``, and a sampler that can be swept. Pure.

    The result is None if ``spec`` can be swept.
    """
    if swept_words(spec):
        return None
    kind = _SAMPLERS[parse_spec(spec)[0]]
    return f"the sampler {spec!r} {kind.why_unswept}", kind.instead_swept


def reads_weights(spec: str) -> bool:
    """Return True if the sampler ``spec`` reads edge weights. Pure."""
    return _SAMPLERS[parse_spec(spec)[0]].lists == "weights"


def preferred_layout(spec: str) -> Layout:
    """Return PyG's layout "merged" if the sampler ``spec`` has it, else "layered". Pure."""
    return "merged" if _SAMPLERS[parse_spec(spec)[0]].to_merged is not None else "layered"


def make_sampler(
    spec: str,
    graph: Topology,
    fanouts: Sequence[int],
    seed: int = 0,
    *,
    layout: Layout = "layered",
    **options: Any,
) -> Sampler:
    """Return the sampler that ``spec`` describes.

    Parameters
    ----------
    spec : "neighbor", "weighted" (neighbours in proportion to the graph's edge weights), "labor", "ladies" or
        "fastgcn"; options may follow, as in "labor:iterations=1,normalize=true"
    graph : the topology
    fanouts : neighbours per node, for "ladies" and "fastgcn" nodes per layer; the hop next to the seeds first
    seed : any integer; taken modulo 2**64
    layout : "layered": every node found so far draws in each hop, as in DGL. "merged": a node draws once, in the hop
        after its discovery, as in PyG, see `MergedBatch.to_blocks`. "neighbor" and "weighted" have both layouts
    options : further keyword arguments; they override ``spec``. "neighbor" has ``replace``; "weighted" has ``replace``
        and ``importance``; "labor" has ``iterations``, ``share_layers`` and ``normalize``; "ladies" and "fastgcn" have
        ``adjacency`` and ``normalize``

    Raises
    ------
    ConfigError
        The name, an option or the layout is unknown, or a value is not allowed.
    """
    name, given = parse_spec(spec)
    _check_options(name, options)
    require_layout(spec, layout)
    kind = _SAMPLERS[name]
    sampler = kind.make(graph, fanouts, seed=seed, **given | options)
    # The second condition is for the type checker: `require_layout` refuses samplers without the layout.
    if layout == "merged" and kind.to_merged is not None:
        return kind.to_merged(sampler)
    return sampler


def require_layout(spec: str, layout: Layout) -> None:
    """Check that the sampler ``spec`` has ``layout``. Pure.

    Raises
    ------
    ConfigError
        The sampler lacks the layout, or the layout is unknown.
    """
    if layout not in get_args(Layout):
        raise ConfigError(f"layout={layout!r} is not one of {', '.join(map(repr, get_args(Layout)))}")
    name = parse_spec(spec)[0]
    kind = _SAMPLERS[name]
    if layout == "merged" and kind.to_merged is None:
        raise ConfigError(
            f"layout='merged' with sampler {name!r}, {kind.why_layered}; use layout='layered', or the sampler "
            f"{' or '.join(_WITH_MERGED)}"
        )


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of "name" or "name:option=value,...". Pure.

    Raises
    ------
    ConfigError
        The name or an option is unknown, or an option has no value or a wrong value.
    """
    if not isinstance(spec, str):
        raise ConfigError(
            f"sampler is a {type(spec).__name__}; pass the name of a neighbour sampler, such as 'neighbor'. "
            "For a torch sampler of seeds use gloader.adapters.pyg.NeighborLoader"
        )
    name, _, tail = spec.partition(":")
    if name not in SAMPLER_NAMES:
        raise ConfigError(f"sampler {name!r} is not known; allowed: {', '.join(SAMPLER_NAMES)}")
    options: dict[str, Any] = {}
    for part in tail.split(",") if tail else ():
        key, _, value = part.partition("=")
        if not key or not value:
            raise ConfigError(f"sampler {spec!r}: {part!r} is not option=value, as in 'labor:iterations=1'")
        options[key.strip().replace("-", "_")] = _value(value.strip())
    _check_options(name, options)
    return name, options


def _check_options(name: str, options: dict[str, Any]) -> None:
    """Raise ConfigError if the sampler ``name`` lacks one of ``options``, or a switch is not true or false."""
    known = _SAMPLERS[name].options
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"sampler {name!r} has no option {', '.join(map(repr, unknown))}; allowed: {', '.join(known)}"
        )
    for key, value in options.items():
        # Each sampler checks its numbers and words later. Only booleans need this check: every value has a truth value.
        if known[key] is bool and not isinstance(value, bool):
            raise ConfigError(f"sampler option {key} is {value!r}; allowed: true, false")


def _value(text: str) -> bool | int | str:
    """Return an option's text as a boolean or an integer, if it is one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if text.removeprefix("-").isdecimal() else text


def make_hetero_sampler(
    spec: str,
    graph: HeteroGraph,
    fanouts: FanoutsLike,
    seed: int = 0,
    *,
    layout: Layout = "layered",
) -> HeteroSampler:
    """Return the sampler that ``spec`` describes, for a graph with several types.

    Parameters
    ----------
    spec : "neighbor", "weighted" (uniform in relations without weights), "labor" or "ladies"; options may follow, as in
        `make_sampler`
    graph : the topology
    fanouts : neighbours per node, relation and hop, see `checked_fanouts`; for "ladies" nodes per relation and layer
    seed : any integer; taken modulo 2**64
    layout : see `make_sampler`

    Raises
    ------
    ConfigError
        The name, an option or the layout is unknown, or a value is not allowed. The sampler supports only graphs with
        one type. The sampler needs weights, and no relation has weights. The fan-outs name an unknown relation, or
        leave out a relation.
    """
    name, options = parse_spec(spec)
    require_layout(spec, layout)
    checked = checked_fanouts(fanouts)
    sampler = RelationwiseSampler(
        graph,
        _picks(spec, graph, resolve_fanouts(checked, tuple(graph.relations)), seed),
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
    """Return the draws over all relations together; ConfigError for a sampler ``name`` that is not uniform."""
    if name != "neighbor":
        raise ConfigError(
            f"sampler {name!r} with fanouts={str(fanouts)!r}: fan-outs over all relations together are drawn "
            "uniformly; use the sampler 'neighbor', or a fan-out for each relation"
        )
    return CollectiveDraws(graph, fanouts.fanouts, replace=options.get("replace", False))


def hetero_sweep_refusal(spec: str, fanouts: FanoutsLike) -> tuple[str, str] | None:
    """Return the reason against sweeps with a sampler and its fan-outs, and a choice that can be swept. Pure.

    The result is None if the sampler can be swept.

    Parameters
    ----------
    spec : a sampler name, with options
    fanouts : the same fan-outs for every relation, fan-outs by relation, or collective fan-outs
    """
    if isinstance(checked_fanouts(fanouts), CollectiveFanouts):
        return (
            "fan-outs of all relations together draw over the edges of several files together",
            "fan-outs of each relation",
        )
    return sweep_refusal(spec)


def hetero_map_bytes(spec: str, graph: HeteroGraph, found: Mapping[str, int]) -> int:
    """Return the peak bytes of a sampling thread's node maps for the sampler ``spec``. Pure.

    Parameters
    ----------
    spec : a sampler name, with options
    graph : the topology
    found : by type, nodes plus edges in a large batch, see `node_map_bytes`; a type without a key has none
    """
    return sum(
        node_map_bytes(spec, num_nodes=num_nodes, found=found.get(name, 0))
        for name, num_nodes in graph.num_nodes.items()
    )


def _picks(
    spec: str, graph: HeteroGraph, fanouts: Sequence[Sequence[int]], seed: int, **options: Any
) -> list[RelationPick]:
    """Return the pick of the sampler ``spec`` for each relation. ``options`` extend the options in ``spec``."""
    name, given = parse_spec(spec)
    make = _SAMPLERS[name].pick
    if make is None:
        raise ConfigError(
            f"sampler {name!r} draws nodes of one type; a graph of several types takes the samplers "
            f"{', '.join(_WITH_TYPES)}"
        )
    if reads_weights(spec):
        require_weights(graph)
    between = [":".join(relation) for relation in graph.relations if relation[0] != relation[2]]
    if given.get("adjacency") == "gcn" and between:
        raise ConfigError(
            f"sampler {spec!r} divides by the in-degrees of sources, and the sources of {between[0]!r} have another "
            "type than its destinations; use adjacency=mean"
        )
    return [
        make(topology, hops, seed=seed, **given, **options)
        for topology, hops in zip(graph.relations.values(), fanouts, strict=True)
    ]


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
    """Return the sampler for seeds with times.

    Parameters
    ----------
    graph : the topology, with times
    fanouts : neighbours per node, hop next to the seeds first
    seed : any integer; taken modulo 2**64
    layout : see `make_sampler`
    strategy : "uniform" draws among a node's allowed edges, "last" takes the latest allowed edges, in order
    bound : "<" allows edges before the seed's time, "<=" also edges in the same second
    window : length in seconds of the allowed period up to the bound; None allows any earlier time
    spec : "neighbor" or "weighted", with the options of `make_sampler`

    Raises
    ------
    ConfigError
        A value is not allowed, the graph has no times, or no weights for "weighted", or the sampler does not support
        times.
    """
    require_layout(spec, layout)
    rule = _rule(spec, strategy, bound, window)
    weights = _weights_of(spec)
    return TemporalSampler(graph, fanouts, rule=rule, seed=seed, layout=layout, **weights)


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
    """Return the sampler for seeds with several types and times.

    Parameters
    ----------
    graph : the topology, with times for at least one relation
    fanouts : neighbours per node, relation and hop, see `checked_fanouts`
    seed, layout, strategy, bound, window, spec : see `make_temporal_sampler`

    Raises
    ------
    ConfigError
        A value is not allowed, no relation has times, or the sampler does not support times.
    """
    require_layout(spec, layout)
    rule = _rule(spec, strategy, bound, window)
    weights = _weights_of(spec)
    return HeteroTemporalSampler(graph, fanouts, rule=rule, seed=seed, layout=layout, **weights)


def temporal_map_bytes(found: int) -> int:
    """Return the peak bytes of a sampling thread's entry map, with ``found`` entries in a large batch. Pure."""
    return hash_map_bytes(found)


def _rule(spec: str, strategy: TimeStrategy, bound: TimeBound, window: int | None) -> TimeRule:
    """Return the time rule of the sampler ``spec``, or raise ConfigError if they do not go together."""
    name, options = parse_spec(spec)
    if not _SAMPLERS[name].has_times:
        raise ConfigError(
            f"sampler {name!r} takes edges of all times; use time_strategy with the sampler {' or '.join(_WITH_TIMES)}"
        )
    if strategy == "none":
        raise ConfigError("time_strategy='none' samples edges of all times, which make_sampler does")
    if strategy == "last" and reads_weights(spec):
        raise ConfigError(
            f"time_strategy='last' takes the latest edges and ignores weights; use time_strategy='uniform' with "
            f"the sampler {name!r}, or the sampler 'neighbor'"
        )
    return TimeRule(strategy=strategy, bound=bound, window=window, replace=options.get("replace", False))


def _weights_of(spec: str) -> dict[str, bool]:
    """Return the weight options in ``spec``, as keywords for a sampler by time."""
    options = parse_spec(spec)[1]
    return {"weighted": reads_weights(spec), "importance": options.get("importance", True)}
