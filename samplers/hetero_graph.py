"""A graph of several node types: one CSC graph for each relation, ids of its own in each type."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import GraphError
from gloader.types import ByShapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gloader.samplers.graph import Topology
    from gloader.types import IdArray, Relation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HeteroGraph(ByShapes):
    """The nodes of each type, and for each relation the in-neighbours of the nodes of its destination type.

    The order of types and relations is part of it: the draws of a relation depend on its number. A graph of one type
    is one of one relation. Thread-safe, as its topologies are.

    Parameters
    ----------
    num_nodes : of each type; ids within a type count from 0
    relations : of (source type, name, destination type): ``num_nodes`` of the topology are the destinations,
        ``num_sources`` the sources; in memory or on the SSD

    Raises
    ------
    GraphError
        There is no type, a relation names one that is not there, or its topology has other numbers of nodes.
    """

    num_nodes: Mapping[str, int]
    relations: Mapping[Relation, Topology]

    def __post_init__(self) -> None:
        """Check that types and relations fit one another."""
        if not self.num_nodes:
            raise GraphError("a graph needs a node type, and there is none")
        for relation, topology in self.relations.items():
            source, _, destination = relation
            for node_type, count, end in (
                (source, topology.num_sources, "sources"),
                (destination, topology.num_nodes, "destinations"),
            ):
                if node_type not in self.num_nodes:
                    allowed = ", ".join(map(repr, self.num_nodes))
                    raise GraphError(
                        f"relation {':'.join(relation)} names the type {node_type!r}; there are {allowed}"
                    )
                if count != self.num_nodes[node_type]:
                    raise GraphError(
                        f"relation {':'.join(relation)} has {count} {end}; type {node_type!r} has "
                        f"{self.num_nodes[node_type]} nodes"
                    )

    @property
    def node_types(self) -> tuple[str, ...]:
        """The types, in order."""
        return tuple(self.num_nodes)

    @property
    def type_starts(self) -> IdArray:
        """(T + 1,) int64: node v of type t has the number ``type_starts[t] + v`` where all nodes are numbered through.

        Seeds are: the order of an epoch knows no types.
        """
        return np.array([0, *accumulate(self.num_nodes.values())], dtype=np.int64)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that are held for it."""
        return sum(topology.held_bytes for topology in self.relations.values())
