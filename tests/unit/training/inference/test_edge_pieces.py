from __future__ import annotations

import numpy as np
import pytest
import torch

from gloader.samplers import CscGraph
from gloader.training.inference.edge_pieces import cut_rows, iter_pieces

CPU = torch.device("cpu")
COUNTS = np.array([0, 3, 0, 50, 2, 2, 0])


def _graph() -> CscGraph:
    indptr = np.concatenate([[0], np.cumsum(COUNTS)])
    return CscGraph(indptr=indptr, indices=(np.arange(indptr[-1]) % len(COUNTS)).astype(np.int32))


@pytest.mark.parametrize("max_edges", [1, 2, 3, 4, 49, 50, 51, 1000])
@pytest.mark.parametrize("max_rows", [1, 2, 100])
def test_ranges_cover_the_rows_and_only_a_lone_hub_exceeds_the_edges(max_edges, max_rows) -> None:
    ranges = cut_rows(COUNTS, max_edges=max_edges, max_rows=max_rows)
    assert [row for r in ranges for row in range(r.start, r.stop)] == list(range(len(COUNTS)))
    for r in ranges:
        assert r.stop - r.start <= max_rows
        assert COUNTS[r.start : r.stop].sum() <= max_edges or r.stop - r.start == 1


def test_ranges_are_as_long_as_they_may_be() -> None:
    assert [(r.start, r.stop) for r in cut_rows(COUNTS, max_edges=5, max_rows=9)] == [(0, 3), (3, 4), (4, 7)]


def test_no_rows_make_no_ranges() -> None:
    assert cut_rows(np.empty(0, np.int64), max_edges=5, max_rows=5) == ()


def test_the_edges_of_any_nodes_come_in_their_order() -> None:
    graph = _graph()
    nodes = np.array([5, 1, 0])
    (piece,) = iter_pieces(graph, nodes, max_edges=100, device=CPU)
    assert piece.indptr.tolist() == [0, 2, 5, 5]
    expected = np.concatenate([graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in nodes])
    assert piece.indices.tolist() == expected.tolist()


@pytest.mark.parametrize("max_edges", [1, 7, 25, 50, 51])
def test_a_hub_comes_in_pieces_that_hold_every_edge_once(max_edges) -> None:
    graph = _graph()
    pieces = list(iter_pieces(graph, np.array([3]), max_edges=max_edges, device=CPU))
    assert all(piece.num_edges <= max_edges and piece.num_dst == 1 for piece in pieces)
    assert torch.cat([piece.indices for piece in pieces]).tolist() == graph.indices[3:53].tolist()


def test_a_lone_node_without_edges_has_no_piece() -> None:
    assert list(iter_pieces(_graph(), np.array([0]), max_edges=10, device=CPU)) == []
