"""The source ``synthetic:SPEC``: a random graph of the kind and size in a specification.

`open_synthetic` makes labels and splits in memory. Edges and features are streams, made when a conversion reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.source import Source, Splits
from gloader.convert.sources.synthetic.generators import (
    class_centers,
    community_classes,
    community_edges,
    make_permutation,
    node_traits,
    num_traits,
    permute_range,
    rmat_edges,
    rmat_labels,
    synthetic_features,
    trait_centers,
)
from gloader.convert.sources.synthetic.spec import CommunitySpec, SyntheticSpec, parse_spec
from gloader.core.units import format_bytes
from gloader.errors import BudgetError

if TYPE_CHECKING:
    from gloader.convert.options import SourceOptions

# The specification behind the short form ``synthetic:demo``.
DEMO_SPEC = "community,nodes=200000,edges=4000000,dim=128,classes=16,seed=1,train=0.25,valid=0.15"


def open_synthetic(argument: str, options: SourceOptions) -> Source:
    """Open ``synthetic:argument``, such as ``community,nodes=200000,edges=4000000,dim=128,classes=16``.

    Raises
    ------
    ConfigError
        The specification has an unknown kind or key, or a value that is not allowed.
    BudgetError
        The labels and splits do not fit the memory budget.
    """
    spec = parse_spec(argument, seed=options.seed)
    _check_memory(spec, options.budget_bytes)
    resident = 0  # bytes that the streams keep, besides labels and splits
    # ``codes`` (N,) is each node's row in ``centers``: its class in a community graph, its traits in an R-MAT graph.
    if isinstance(spec, CommunitySpec):
        kind, edges = "community", community_edges(spec)
        codes = labels = community_classes(spec)
        centers = class_centers(spec.classes, spec.dim, signal=spec.signal, seed=spec.seed)
    else:
        kind, edges, codes = "rmat", rmat_edges(spec), node_traits(spec)
        labels, resident = rmat_labels(spec, edges, codes), codes.nbytes
        centers = trait_centers(num_traits(spec.classes), spec.dim, signal=spec.signal, seed=spec.seed)
    return Source(
        name=f"synthetic-{kind}-{spec.nodes}",
        origin=f"synthetic:{argument}",
        num_nodes=spec.nodes,
        num_classes=spec.classes,
        edges=edges,
        features=synthetic_features(codes, centers, seed=spec.seed),
        labels=labels,
        splits=_make_splits(spec),
        resident_bytes=resident,
    )


def _make_splits(spec: SyntheticSpec) -> Splits:
    """Split the nodes by their rank in a random permutation. So the parts have exactly their shares of the nodes."""
    perm = make_permutation(spec.nodes, spec.seed, "splits")
    rank = permute_range(0, spec.nodes, spec.nodes, perm)
    first = round(spec.train * spec.nodes)
    second = min(spec.nodes, first + round(spec.valid * spec.nodes))
    return Splits(
        train=np.flatnonzero(rank < first),
        valid=np.flatnonzero((rank >= first) & (rank < second)),
        test=np.flatnonzero(rank >= second),
    )


def _check_memory(spec: SyntheticSpec, budget_bytes: int) -> None:
    """Raise BudgetError if labels and splits do not fit."""
    # Bytes per node for labels, splits and the splits' permutation. R-MAT adds traits, and an int32 vote per trait.
    per_node = 32 if isinstance(spec, CommunitySpec) else 40 + 4 * num_traits(spec.classes)
    needed = per_node * spec.nodes
    if needed > budget_bytes:
        raise BudgetError(
            f"a synthetic graph of {spec.nodes} nodes needs {format_bytes(needed)} of memory for labels and "
            f"splits; the memory budget is {format_bytes(budget_bytes)}"
        )
