"""Nodes that a loop gives by type, as our samplers take them: numbered through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.errors import SeedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import NDArray

    from gloader.samplers import HeteroGraph
    from gloader.types import IdArray


def number_through(graph: HeteroGraph, nodes: Mapping[str, NDArray[Any]]) -> IdArray:
    """Return the nodes (n,) of all types, in the graph's order of types: where their type begins, plus their id. Pure.

    Raises
    ------
    SeedError
        A type is unknown, or ids are no integers or none of nodes of their type.
    """
    if unknown := [name for name in nodes if name not in graph.num_nodes]:
        raise SeedError(
            f"nodes are of the type {unknown[0]!r}; this graph has {', '.join(map(repr, graph.node_types))}"
        )
    found = [np.empty(0, dtype=np.int64)]
    for (name, num_nodes), start in zip(graph.num_nodes.items(), graph.type_starts, strict=False):
        ids = as_ids(nodes.get(name, found[0]), noun=f"nodes of type {name!r}", error=SeedError)
        # Ids beyond their type would be nodes of the next one.
        if len(bad := outside(ids, num_nodes)):
            raise SeedError(
                f"{len(bad)} nodes of type {name!r} are not in 0..{num_nodes - 1}, among them {bad[:5].tolist()}"
            )
        found.append(ids + start)
    return np.concatenate(found)
