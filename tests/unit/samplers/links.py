"""Tables of links in memory, and what `LinkSeeds` makes of them once more, in plain Python integers and lists."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from unit.samplers.oracle import bounded, layer_key, node_key

from gloader.core.negatives import Binary, InBatch, Negatives, Table, Uniform
from gloader.samplers import HeteroGraph, Topology
from gloader.types import BatchId, BatchSeeds, LinkRows, Relation

NODE: Relation = ("node", "to", "node")
NEGATIVES_LAYER = 0x6E65676174697665


class NothingFreeError(Exception):
    """A strict negative does not exist."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldLinks:
    """A `LinkReader` of arrays."""

    relation: Relation = NODE
    reverse_relation: Relation | None = NODE
    pairs: np.ndarray  # (n, 4) source, destination, position, reverse position
    labels: np.ndarray | None = None
    times: np.ndarray | None = None
    negatives: np.ndarray | None = None

    @property
    def num_rows(self) -> int:
        """Edges in the table."""
        return len(self.pairs)

    def read(self, rows: np.ndarray, /) -> LinkRows:
        """Return some rows, read-only as those of a file may be."""
        found = self.pairs[rows].T
        found.flags.writeable = False
        rest = {
            name: None if values is None else values[rows]
            for name, values in (
                ("labels", self.labels),
                ("times", self.times),
                ("negatives", self.negatives),
            )
        }
        sources, destinations, positions, reverses = found
        return LinkRows(
            sources=sources, destinations=destinations, positions=positions, reverses=reverses, **rest
        )


def edges_of(graph: Topology) -> list[tuple[int, int]]:
    """The source and destination of every edge of a graph in memory, by position."""
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))  # type: ignore[attr-defined]
    return list(zip(graph.indices.tolist(), destinations.tolist(), strict=True))  # type: ignore[attr-defined]


def links_of(
    graph: Topology,
    pairs: list[tuple[int, int]],
    *,
    relation: Relation = NODE,
    reverse: Topology | None = None,
    reverse_relation: Relation | None = NODE,
    **columns: Any,
) -> HeldLinks:
    """A table of ``pairs``, each at one of its positions in ``graph`` and one of ``reverse``, or -1."""
    back = edges_of(graph if reverse is None else reverse)
    here = edges_of(graph)
    rows = [
        (
            source,
            destination,
            here.index((source, destination)) if (source, destination) in here else -1,
            back.index((destination, source)) if (destination, source) in back else -1,
        )
        for source, destination in pairs
    ]
    return HeldLinks(
        relation=relation,
        reverse_relation=reverse_relation,
        pairs=np.array(rows, dtype=np.int64).reshape(-1, 4),
        **columns,
    )


@dataclass(frozen=True, kw_only=True)
class LinkOracle:
    """`LinkSeeds`, in plain Python. Edges are looked for among all of the graph's."""

    graph: Topology | HeteroGraph
    table: HeldLinks
    negatives: Negatives | None
    exclude: str = "none"
    duplicates: bool = False
    seed: int = 0
    has_times: bool = False
    negative_table: HeldLinks | None = None

    @property
    def typed(self) -> HeteroGraph:
        """The graph as one of several types."""
        if isinstance(self.graph, HeteroGraph):
            return self.graph
        return HeteroGraph(num_nodes={"node": self.graph.num_nodes}, relations={NODE: self.graph})

    def batch(self, batch_id: BatchId, rows: list[int]) -> dict[str, Any]:
        """What a batch is expected to be, as lists."""
        positives = [(int(s), int(d)) for s, d, _, _ in self.table.pairs[rows]]
        wrong = self.wrong(batch_id, rows, positives)  # (source, destination, owner) of each
        pairs = [(s, d, i) for i, (s, d) in enumerate(positives)] + wrong
        source_type, _, destination_type = self.table.relation
        starts = dict(zip(self.typed.node_types, self.typed.type_starts.tolist(), strict=False))
        sources = [starts[source_type] + s for s, _, _ in pairs]
        destinations = [starts[destination_type] + d for _, d, _ in pairs]
        times = None
        if self.has_times:
            assert self.table.times is not None
            # Negatives that have the source of their positive share it, as it asks at the same time.
            shares = isinstance(self.negatives, Uniform | InBatch | Table) and self.negative_table is None
            used = len(rows) if shares else len(pairs)
            nodes = sources[:used] + destinations
            of_pairs = [int(self.table.times[rows[i]]) for _, _, i in pairs]
            times = of_pairs[:used] + of_pairs
            offset = used if source_type == destination_type else 0
            owners = [i if shares else at for at, (_, _, i) in enumerate(pairs)]
            placed = [[owner, offset + at] for at, owner in enumerate(owners)]
        else:
            nodes = sorted({*sources, *destinations})
            names = [self.type_of(number) for number in nodes]
            of_type = {
                name: [n for n, own in zip(nodes, names, strict=True) if own == name] for name in names
            }
            placed = [
                [of_type[source_type].index(s), of_type[destination_type].index(d)]
                for s, d in zip(sources, destinations, strict=True)
            ]
        labels = [1.0] * len(rows) + [0.0] * len(wrong)
        if self.negatives is None:
            assert self.table.labels is not None
            labels = self.table.labels[rows].tolist()
        return {
            "nodes": nodes,
            "times": times,
            "pairs": placed,
            "labels": labels,
            "edge_ids": rows + [-1] * len(wrong),
            "num_positives": len(rows),
            "excluded": self.excluded(rows),
        }

    def type_of(self, number: int) -> str:
        """The type of the node that has ``number`` among all."""
        at = int(np.searchsorted(self.typed.type_starts, number, side="right")) - 1
        return self.typed.node_types[at]

    def wrong(
        self, batch_id: BatchId, rows: list[int], positives: list[tuple[int, int]]
    ) -> list[tuple[int, int, int]]:
        """The negatives, each with the positive that it is beside."""
        key = layer_key(self.seed, batch_id.epoch, batch_id.index, NEGATIVES_LAYER)
        own = [node_key(key, row) for row in rows]
        match self.negatives:
            case Uniform(k, strict):
                return [
                    (s, self.destination(node_key(own[i], j), s, strict), i)
                    for i, (s, _) in enumerate(positives)
                    for j in range(k)
                ]
            case Binary(ratio, strict):
                count = math.ceil(Fraction(str(ratio)) * len(rows))
                places = [(j % len(rows), j // len(rows)) for j in range(count)]
                return [(*self.pair(node_key(own[i], number), strict), i) for i, number in places]
            case InBatch():
                return self.crossed(rows, positives)
            case Table() if self.negative_table is not None:
                drawn = [bounded(node_key(each, 0), 0, self.negative_table.num_rows) for each in own]
                given = self.negative_table.pairs[drawn].tolist()
                return [(s, d, i) for i, (s, d, _, _) in enumerate(given)]
            case Table():
                assert self.table.negatives is not None
                return [
                    (s, int(d), i)
                    for i, (s, _) in enumerate(positives)
                    for d in self.table.negatives[rows[i]]
                ]
        return []

    def destination(self, key: int, source: int, strict: bool) -> int:
        """A drawn destination."""
        topology = self.typed.relations[self.table.relation]
        edges = set(edges_of(topology)) if strict else set()
        if strict and self.table.relation[0] == self.table.relation[2]:
            edges |= {(source, source)}
        for attempt in range(64):
            drawn = bounded(key, 2 * attempt, topology.num_nodes)
            if (source, drawn) not in edges:
                return drawn
        free = [node for node in range(topology.num_nodes) if (source, node) not in edges]
        if not free:
            raise NothingFreeError
        return free[bounded(key, 128, len(free))]

    def pair(self, key: int, strict: bool) -> tuple[int, int]:
        """A drawn pair."""
        topology = self.typed.relations[self.table.relation]
        edges = set(edges_of(topology)) if strict else set()
        for attempt in range(64):
            drawn = (
                bounded(key, 2 * attempt + 1, topology.num_sources),
                bounded(key, 2 * attempt, topology.num_nodes),
            )
            if drawn not in edges:
                return drawn
        free = [
            (source, node)
            for node in range(topology.num_nodes)
            for source in range(topology.num_sources)
            if (source, node) not in edges
        ]
        if not free:
            raise NothingFreeError
        return free[bounded(key, 128, len(free))]

    def crossed(self, rows: list[int], positives: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """The destinations of the other positives, for each."""
        found, seen = [], set()
        for i, (source, own) in enumerate(positives):
            time = None
            if self.has_times:
                assert self.table.times is not None
                time = int(self.table.times[rows[i]])
            for _, other in positives:
                is_new = (source, other, time) not in seen
                if other != own and (source, other) not in positives and is_new:
                    seen.add((source, other, time))
                    found.append((source, other, i))
        return found

    def excluded(self, rows: list[int]) -> list[list[int]]:
        """The positions of each relation; [] where there is none of any."""
        numbers = list(self.typed.relations)
        found: list[set[int]] = [set() for _ in numbers]
        ways = [(self.table.relation, 2, (0, 1))] if self.exclude != "none" else []
        if self.exclude == "reverse":
            assert self.table.reverse_relation is not None
            ways.append((self.table.reverse_relation, 3, (1, 0)))
        for relation, column, order in ways:
            of_one = found[numbers.index(relation)]
            for row in self.table.pairs[rows].tolist():
                of_one |= {row[column]} - {-1}
                if self.duplicates:
                    ends = (row[order[0]], row[order[1]])
                    edges = edges_of(self.typed.relations[relation])
                    of_one |= {at for at, edge in enumerate(edges) if edge == ends}
        return [sorted(of_one) for of_one in found] if any(found) else []


def as_lists(batch: BatchSeeds) -> dict[str, Any]:
    """A batch as `LinkOracle.batch` gives it, after a look at its dtypes."""
    links = batch.links
    assert links is not None
    assert links.pairs.dtype == np.int32
    assert links.pairs.shape == (len(links.edge_ids), 2)
    arrays = [batch.nodes, links.edge_ids, *batch.excluded, *([] if batch.times is None else [batch.times])]
    assert all(array.dtype == np.int64 and array.flags.c_contiguous for array in arrays)
    return {
        "nodes": batch.nodes.tolist(),
        "times": None if batch.times is None else batch.times.tolist(),
        "pairs": links.pairs.tolist(),
        "labels": links.labels.tolist(),
        "edge_ids": links.edge_ids.tolist(),
        "num_positives": links.num_positives,
        "excluded": [array.tolist() for array in batch.excluded],
    }
