"""Helpers for tests of link tables: a dataset's table, and its graph, in plain Python."""

from __future__ import annotations

import numpy as np

from gloader.dataset import Dataset


def read_table(dataset: Dataset, name: str):
    """Return all rows of a link table."""
    table = dataset.link_table(name)
    with table.open(max_bytes=1 << 30) as links:
        return links.read(np.arange(table.num_rows))


def rows_of(dataset: Dataset, name: str) -> list[tuple[int, int]]:
    """Return the pairs of a link table, in order."""
    found = read_table(dataset, name)
    return list(zip(found.sources.tolist(), found.destinations.tolist(), strict=True))


def edges_by_position(dataset: Dataset, relation) -> list[tuple[int, int]]:
    """Return the edges of a relation, in the order of the lists."""
    graph = dataset.edge_tables[relation].load_graph()
    nodes = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return list(zip(graph.indices.tolist(), nodes.tolist(), strict=True))


def check_positions(dataset: Dataset, name: str) -> None:
    """Assert that every row has an edge of its own while there are any, then the last; and so have the reverses."""
    table, found = dataset.link_table(name), read_table(dataset, name)
    rows = list(zip(found.sources.tolist(), found.destinations.tolist(), strict=True))
    _check(rows, found.positions.tolist(), edges_by_position(dataset, table.relation))
    back = [(destination, source) for source, destination in rows]
    if table.reverse_relation is None:
        assert set(found.reverses.tolist()) <= {-1}
    else:
        _check(back, found.reverses.tolist(), edges_by_position(dataset, table.reverse_relation))


def _check(rows, positions, edges):
    there, taken = {}, {}
    for position, edge in enumerate(edges):
        there.setdefault(edge, []).append(position)
    for row, position in zip(rows, positions, strict=True):
        number = taken[row] = taken.get(row, -1) + 1
        places = there.get(row, [-1])
        assert position == places[min(number, len(places) - 1)]
