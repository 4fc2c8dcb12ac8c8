from __future__ import annotations

import tracemalloc
from contextlib import closing

import numpy as np
import pytest
import torch

from gloader.device.tier import upload_topology
from gloader.samplers import CscGraph
from gloader.samplers.graph import HeldScan
from gloader.ssd_store import RamFeatures
from gloader.testing.rehearsed_device import RehearsedDevice
from gloader.training.inference.scanned_edges import (
    DeviceEdges,
    EdgeFeatures,
    HostEdges,
    PieceLimits,
    cut_rows,
)

WHERE = ["host", "held", "sent"]
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


def _edges(where: str, graph: CscGraph) -> HostEdges | DeviceEdges:
    device = RehearsedDevice()
    held = upload_topology(graph, device.place)
    match where:
        case "host":
            return HostEdges(graph)
        case "held":
            return DeviceEdges(graph, device, held.indptr, held.indices)
        case _:
            return DeviceEdges(graph, device, held.indptr, None)


def _cut(edges: HostEdges | DeviceEdges, nodes, *, max_edges=100, max_rows=100, features=None):
    limits = PieceLimits(max_edges=max_edges, max_rows=max_rows)
    with closing(edges.parts(nodes, limits, features)) as parts:
        return [(part, list(part.pieces)) for part in parts]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("nodes", [[5, 1, 0], [1, 2, 3], [0, 0], range(7), [6]])
def test_the_edges_of_any_nodes_come_in_their_order(where, nodes) -> None:
    graph = _graph()
    ((part, pieces),) = _cut(_edges(where, graph), np.array(nodes))
    counts = [COUNTS[node] for node in nodes]
    assert part.nodes.tolist() == list(nodes)
    assert part.degree.tolist() == counts
    if sum(counts) == 0:
        assert pieces == []
        return
    (piece,) = pieces
    assert piece.indptr.tolist() == [0, *np.cumsum(counts)]
    assert piece.indptr.dtype == piece.indices.dtype == torch.int32
    expected = np.concatenate([graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in nodes])
    assert piece.indices.tolist() == expected.tolist()


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("max_edges", [1, 7, 25, 50, 51])
def test_a_hub_comes_in_pieces_that_hold_every_edge_once(where, max_edges) -> None:
    graph = _graph()
    cut = _cut(_edges(where, graph), range(7), max_edges=max_edges)
    (pieces,) = (pieces for part, pieces in cut if part.nodes.tolist() == [3])
    assert all(piece.num_edges <= max_edges and piece.num_dst == 1 for piece in pieces)
    assert all(piece.indptr.tolist() == [0, piece.num_edges] for piece in pieces)
    assert torch.cat([piece.indices for piece in pieces]).tolist() == graph.indices[3:53].tolist()
    assert sum(piece.num_edges for _, pieces in cut for piece in pieces) == graph.num_edges


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("rows_per_read", [1, 3, 1000])
@pytest.mark.parametrize("max_edges", [1, 7, 100])
@pytest.mark.parametrize("nodes", [[5, 1, 0], [3, 3, 1], range(7), [6], [4, 0, 5]])
def test_pieces_carry_the_features_of_their_edges(
    where, rows_per_read, max_edges, nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.training.inference.scanned_edges._ROWS_PER_READ", rows_per_read)
    graph = _graph()
    matrix = np.random.default_rng(0).normal(size=(graph.num_edges, 2)).astype(np.float32)
    cut = _cut(
        _edges(where, graph),
        nodes if isinstance(nodes, range) else np.array(nodes),
        max_edges=max_edges,
        features=EdgeFeatures(source=RamFeatures(matrix)),
    )
    expected = [matrix[graph.indptr[v] : graph.indptr[v + 1]] for v in nodes]
    found = [piece.wanted_features for _, pieces in cut for piece in pieces]
    assert torch.equal(torch.cat([torch.empty(0, 2), *found]), torch.from_numpy(np.concatenate(expected)))
    lists = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in nodes]
    sources = [piece.indices for _, pieces in cut for piece in pieces]
    assert [u for part in sources for u in part.tolist()] == np.concatenate(lists).tolist()


def test_features_of_the_piece_and_of_the_one_ahead_are_all_that_is_held() -> None:
    most, dim = 5000, 16
    indptr = np.arange(0, 60_001, 10)
    graph = CscGraph(indptr=indptr, indices=np.zeros(indptr[-1], np.int32))
    features = EdgeFeatures(source=RamFeatures(np.zeros((indptr[-1], dim), np.float16)))

    def run() -> int:
        limits = PieceLimits(max_edges=most, max_rows=most)
        with closing(HostEdges(graph).parts(range(graph.num_nodes), limits, features)) as parts:
            return sum(piece.wanted_features.shape[0] for part in parts for piece in part.pieces)

    assert run() == indptr[-1]  # compiles
    tracemalloc.start()
    try:
        run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The plan counts two pieces of features. Ids and places of the rows that are read come beside them.
    assert peak < 2 * 4 * dim * most + 8 * 2 * most + 100 * graph.num_nodes + 40 * most + 100_000


@pytest.mark.parametrize("where", WHERE)
def test_degrees_of_consecutive_nodes(where) -> None:
    degree = _edges(where, _graph()).degree(1, 5)
    assert degree.dtype == torch.float32
    assert degree.tolist() == [3, 0, 50, 2]


def test_a_layer_that_asks_for_no_edges_is_sent_none(monkeypatch) -> None:
    monkeypatch.setattr(HeldScan, "lists", lambda *_: pytest.fail("edges were cut"))
    limits = PieceLimits(max_edges=3, max_rows=2)
    assert sum(len(part.nodes) for part in _edges("sent", _graph()).parts(range(7), limits)) == 7
