"""Inclusion probabilities of several node types: as on one graph of all of them, and as a plain count says."""

from itertools import chain

import numpy as np
import pytest
from numpy.typing import NDArray

from gloader.cache import RelationEdges, inclusion_by_type, inclusion_probabilities
from gloader.core.offsets import plain_offsets

NUM_NODES = (40, 25, 3)
STARTS = np.cumsum([0, *NUM_NODES])
RELATIONS = ((1, 0), (0, 0), (0, 1), (2, 1), (1, 2))  # source, destination
SEEDS = (np.arange(0, 40, 3), np.array([1, 7]), np.empty(0, dtype=np.int64))


def _edges(fanouts: list[list[int]]) -> list[RelationEdges]:
    rng = np.random.default_rng(0)
    found = []
    for (source, destination), own in zip(RELATIONS, fanouts, strict=True):
        degrees = rng.integers(0, 6, NUM_NODES[destination])
        indices = rng.integers(0, NUM_NODES[source], degrees.sum()).astype(np.int32)
        found.append(
            RelationEdges(
                source=source,
                destination=destination,
                offsets=plain_offsets(np.concatenate([[0], np.cumsum(degrees)])),
                pieces=lambda indices=indices: np.array_split(indices, 3),
                fanouts=own,
            )
        )
    return found


def _by_type(edges: list[RelationEdges], *, is_collective: bool = False) -> NDArray[np.float64]:
    found = inclusion_by_type(NUM_NODES, edges, seeds=SEEDS, batch_size=6, is_collective=is_collective)
    assert [len(chances) for chances in found] == list(NUM_NODES)
    return np.concatenate(found)


def _lists(edges: RelationEdges) -> list[list[int]]:
    indices, indptr = np.concatenate(list(edges.pieces())), edges.offsets.low
    return [indices[indptr[v] : indptr[v + 1]].tolist() for v in range(NUM_NODES[edges.destination])]


@pytest.mark.parametrize("fanouts", [[3, 2], [-1, 1], [2]])
def test_collective_draws_reach_what_they_reach_on_one_graph_of_all_types(fanouts: list[int]) -> None:
    edges = _edges([fanouts] * len(RELATIONS))
    merged: list[list[int]] = [[] for _ in range(STARTS[-1])]
    for relation in edges:
        for node, sources in enumerate(_lists(relation)):
            merged[STARTS[relation.destination] + node] += [STARTS[relation.source] + v for v in sources]
    expected = inclusion_probabilities(
        plain_offsets(np.cumsum([0, *map(len, merged)])),
        lambda: [np.array([*chain.from_iterable(merged)], dtype=np.int64)],
        seeds=np.concatenate([ids + start for ids, start in zip(SEEDS, STARTS[:-1], strict=True)]),
        batch_size=6,
        fanouts=fanouts,
    )
    np.testing.assert_allclose(_by_type(edges, is_collective=True), expected, rtol=1e-12)


def test_each_relation_draws_as_many_as_its_own_fanouts_say() -> None:
    edges = _edges([[2, 1], [3, 0], [-1, 2], [1, 1], [0, 4]])
    seeds = [np.zeros(count) for count in NUM_NODES]
    for mine, ids in zip(seeds, SEEDS, strict=True):
        mine[ids] = 6 / 16
    chances = seeds
    for hop in range(2):
        absent = [1 - mine for mine in chances]
        for relation in edges:
            for node, sources in enumerate(_lists(relation)):
                fanout = relation.fanouts[hop]
                share = 1.0 if fanout < 0 else min(1.0, fanout / max(len(sources), 1))
                for source in sources:
                    absent[relation.source][source] *= 1 - share * chances[relation.destination][node]
        chances = [1 - mine for mine in absent]
    np.testing.assert_allclose(_by_type(edges), np.concatenate(chances), rtol=1e-12)


def test_no_relations_reach_nothing_but_the_seeds() -> None:
    found = inclusion_by_type([3, 2], [], seeds=[np.array([1]), np.array([0])], batch_size=1)
    assert [chances.tolist() for chances in found] == [[0, 0.5, 0], [0.5, 0]]
