"""What a sampler that leaves edges out must hold to, for its conformance suites."""

# ruff: noqa: S101 - checks that are shipped, for suites to call

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.types import Links

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.samplers import CscGraph
    from gloader.types import Block, IdArray

LINKS = Links(
    pairs=np.array([[0, 1], [1, 2]], dtype=np.int32),
    labels=np.array([1, 0], dtype=np.float32),
    edge_ids=np.array([5, -1]),
    num_positives=1,
)


def edges_to_exclude(graph: CscGraph, nodes: IdArray, number: int = 0) -> IdArray:
    """Return positions (X,) to exclude: all of a node, some of every third one, and few of others. Pure.

    Parameters
    ----------
    graph : whose edges they are
    nodes : of a batch; in-edges of others are excluded as well, as a later hop may find them
    number : others, other edges
    """
    random = np.random.default_rng(number)
    chance = np.full(graph.num_nodes, 0.02)
    chance[nodes[::3]] = 0.5
    chance[nodes[:1]] = 1.0
    chance[nodes[1::3]] = 0.0
    edges: IdArray = np.flatnonzero(random.random(graph.num_edges) < np.repeat(chance, np.diff(graph.indptr)))
    return edges


def require_left_out(blocks: Iterable[Block], excluded: IdArray) -> None:
    """Check that none of ``blocks`` has one of the edges ``excluded``. Pure; AssertionError names some."""
    for block in blocks:
        found = np.intersect1d(block.edge_ids, excluded)
        assert len(found) == 0, (
            f"excluded edges were taken: {found[:5].tolist()} in a block of {len(block.edge_ids)}"
        )


def require_full(graph: CscGraph, nodes: IdArray, found: Block, plain: Block, excluded: IdArray) -> None:
    """Check what the hop next to the seeds took, beside what it takes where nothing is excluded. Pure.

    A node without excluded edges takes the same; others as many, as far as there are edges left.

    Parameters
    ----------
    graph : the topology
    nodes : (D,) destinations of both blocks
    found, plain : with and without the exclusion
    excluded : ascending positions
    """
    starts, stops = graph.indptr[nodes], graph.indptr[nodes + 1]
    left = stops - starts - (np.searchsorted(excluded, stops) - np.searchsorted(excluded, starts))
    taken, before = np.diff(found.indptr), np.diff(plain.indptr)
    short = np.flatnonzero(taken < np.minimum(before, left))
    assert len(short) == 0, f"fan-outs are not full: nodes {nodes[short][:5].tolist()} had edges left"
    for at in np.flatnonzero(left == stops - starts).tolist():
        ours, others = (
            block.edge_ids[block.indptr[at] : block.indptr[at + 1]].tolist() for block in (found, plain)
        )
        assert ours == others, (
            f"node {nodes[at]} has no excluded edge, and draws others than without exclusion"
        )
