"""The ordering of nodes, each part against a plain version of itself."""

from dataclasses import replace

import numpy as np
import pytest
from convert_helpers import ListEdges

from gloader.convert import node_order
from gloader.convert.csc import external_csc
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.node_order import (
    NodeOrder,
    adopt_sources,
    community_order,
    count_sources,
    find_order,
    move_nodes,
    ordered_rows,
    renumbered_edges,
)
from gloader.convert.options import EdgeRules
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.readers.arrays import array_features
from gloader.errors import FeatureValueError, GraphError, ShapeError, StoreWriteError

PLAIN = EdgeRules()


def edges_of(edges, num_nodes):
    return ListEdges(edges), EdgeEnds.of(num_nodes, "npy:x")


def order_of(edges, num_nodes, name, scratch, *, rules=PLAIN, budget=1 << 23):
    found = find_order(
        *edges_of(edges, num_nodes),
        name,
        rules=rules,
        budget_bytes=budget,
        max_edges=3,
        scratch=scratch,
        progress=NO_PROGRESS,
    )
    assert not list(scratch.iterdir())
    return found


def to_csc(edges, num_nodes):
    sources = [[u for u, v in edges if v == node] for node in range(num_nodes)]
    indptr = np.cumsum([0, *map(len, sources)])
    return indptr.astype(np.int64), np.array([u for part in sources for u in part], np.int32)


def plain_moves(edges, labels):
    """The plain twin of `move_nodes`: the new labels, and how many changed."""
    labels, moved = list(labels), 0
    for node in range(len(labels)):
        sources = [u for u, v in edges if v == node]
        votes = [labels[u] for u in sources if u != node]
        ranked = [labels[node], *(labels[u] for u in sources)]
        best = max(ranked, key=lambda label: (votes.count(label), -ranked.index(label)))
        moved += best != labels[node]
        labels[node] = best
    return labels, moved


def test_none_is_no_order(tmp_path):
    assert order_of([(0, 1)], 2, "none", tmp_path) is None


def test_degree_counts_who_is_gathered_from(tmp_path):
    edges = [(2, 0), (2, 1), (2, 3), (1, 0), (1, 0), (3, 0)]
    order = order_of(edges, 5, "degree", tmp_path)
    assert order.original_ids.tolist() == [2, 1, 3, 0, 4]
    assert order.new_ids.tolist() == [3, 1, 0, 2, 4]
    both_ways = order_of(edges, 5, "degree", tmp_path, rules=EdgeRules(symmetrize=True))
    assert both_ways.original_ids.tolist() == [0, 1, 2, 3, 4]  # 4, 4, 3, 2 and 0 edge ends


def test_cliques_lie_together_the_most_used_first(tmp_path):
    cliques = [[1, 5, 9, 13], [0, 4, 8], [2, 6, 10, 3, 7]]
    edges = [(u, v) for clique in cliques for u in clique for v in clique if u != v] + [(8, 1)]
    order = order_of(edges, 14, "community", tmp_path).original_ids.tolist()
    found = [frozenset(order[:5]), frozenset(order[5:9]), frozenset(order[9:12])]
    assert found == [frozenset(cliques[2]), frozenset(cliques[0]), frozenset(cliques[1])]
    assert order[9] == 8  # the most used of its community
    assert order[12:] == [11, 12]  # without edges


def test_nodes_nobody_points_to_join_a_community_that_reads_them(tmp_path):
    cliques = [[0, 1, 2, 3], [4, 5, 6, 7]]
    edges = [(u, v) for clique in cliques for u in clique for v in clique if u != v]
    edges += [(8, 6), (9, 2), (8, 7)]
    order = order_of(edges, 10, "community", tmp_path).original_ids.tolist()
    assert {frozenset(order[:5]), frozenset(order[5:])} == {
        frozenset([0, 1, 2, 3, 9]),
        frozenset([4, 5, 6, 7, 8]),
    }


@pytest.mark.parametrize("seed", range(5))
def test_kernels_equal_their_plain_twins(seed):
    random = np.random.default_rng(seed)
    edges = [tuple(pair) for pair in random.integers(0, 12, (40, 2)).tolist()]
    indptr, indices = to_csc(edges, 12)
    labels, votes = random.integers(0, 12, 12).astype(np.int32), np.zeros(12, np.int32)
    expected, moves = plain_moves(edges, labels.tolist())
    assert move_nodes(0, indptr, indices, labels, votes) == moves
    assert (labels.tolist(), votes.any()) == (expected, False)
    degrees, has_sources = np.zeros(12, np.int64), np.zeros(12, np.bool_)
    count_sources(0, indptr, indices, degrees, has_sources)
    assert degrees.tolist() == [sum(u == node for u, _ in edges) for node in range(12)]
    assert has_sources.tolist() == [any(v == node for _, v in edges) for node in range(12)]
    labels = np.arange(12, dtype=np.int32)
    adopt_sources(0, indptr, indices, has_sources, labels)
    for node in range(12):
        readers = [v for v in range(12) for u, w in edges if (u, w) == (node, v)]
        assert labels[node] == (readers[0] if readers and not has_sources[node] else node)


def test_order_does_not_depend_on_the_pieces(tmp_path, monkeypatch):
    random = np.random.default_rng(3)
    edges = [tuple(pair) for pair in random.integers(0, 60, (400, 2)).tolist()]
    whole = order_of(edges, 60, "community", tmp_path)
    monkeypatch.setattr(external_csc, "_BLOCK_NODES", 7)
    monkeypatch.setattr(node_order, "_MAX_PIECE_EDGES", 16)  # no node has more in-edges
    pieces = order_of(edges, 60, "community", tmp_path)
    assert np.array_equal(whole.original_ids, pieces.original_ids)


def test_hubs_larger_than_a_piece_are_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(node_order, "_MAX_PIECE_EDGES", 4)
    edges = [(u, 0) for u in range(1, 10)] + [(0, 3), (3, 5)]
    order = community_order(
        *edges_of(edges, 10), rules=PLAIN, budget_bytes=1 << 23, scratch=tmp_path, progress=NO_PROGRESS
    )
    assert sorted(order.tolist()) == list(range(10))


@pytest.mark.parametrize("name", ["degree", "community"])
def test_bad_edges_are_named_as_in_the_source_and_leave_nothing(tmp_path, name):
    with pytest.raises(GraphError, match=r"npy:x: edge 1 .* has destination 9; node ids must lie in 0\.\.3"):
        order_of([(0, 1), (2, 9)], 4, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_renumbered_edges_keep_order_weights_and_the_messages_of_the_source():
    stream = ListEdges([(0, 1, 0.5), (2, 0, 1.5), (1, 1, 2.0)], weighted=True)
    edges = renumbered_edges(stream, np.array([2, 0, 1]), "npy:x")
    chunks = list(edges.chunks(3))
    assert [len(chunk.src) for chunk in chunks] == [2, 1]
    assert [(u, v) for chunk in chunks for u, v in zip(chunk.src, chunk.dst, strict=True)] == [
        (2, 0),
        (1, 2),
        (0, 0),
    ]
    assert [w for chunk in chunks for w in chunk.weight] == [0.5, 1.5, 2.0]
    bad = renumbered_edges(ListEdges([(0, -1)]), np.arange(3), "npy:x")
    with pytest.raises(GraphError, match=r"edge 0 .* has destination -1"):
        list(bad.chunks(2))


def rows_of(rows, order, scratch, *, dtype="float32", range_rows=3, claimed=None):
    features = array_features(rows)
    if claimed is not None:
        features = replace(features, num_rows=claimed)
    return ordered_rows(
        features,
        NodeOrder.of(np.asarray(order)),
        dtype=dtype,
        chunk_rows=2,
        range_rows=range_rows,
        scratch=scratch,
        progress=NO_PROGRESS,
    )


@pytest.mark.parametrize("range_rows", [1, 3, 7, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bfloat16"])
def test_rows_arrive_in_the_new_order(tmp_path, dtype, range_rows):
    rows = np.arange(14, dtype=np.float64).reshape(7, 2)
    order = [3, 6, 0, 5, 1, 4, 2]
    found = np.concatenate(
        [part.copy() for part in rows_of(rows, order, tmp_path, dtype=dtype, range_rows=range_rows)]
    )
    if dtype == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    assert np.array_equal(found, rows[order])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("range_rows", [3, 8])
def test_wrong_streams_name_rows_of_the_source_and_leave_nothing(tmp_path, range_rows):
    rows = np.zeros((4, 2), np.float32)
    with pytest.raises(ShapeError, match="end after 4 of 6 rows: row 4 is missing"):
        list(rows_of(rows, range(6), tmp_path, claimed=6, range_rows=range_rows))
    with pytest.raises(ShapeError, match="more rows than the 3"):
        list(rows_of(rows, range(3), tmp_path, claimed=3, range_rows=range_rows))
    rows[3, 1] = np.nan
    with pytest.raises(FeatureValueError, match="row 3, column 1 is nan"):
        list(rows_of(rows, [3, 2, 1, 0], tmp_path, dtype="int8", range_rows=range_rows))
    rows[3, 1] = 1e6
    with pytest.raises(FeatureValueError, match="row 3"):
        list(rows_of(rows, [3, 2, 1, 0], tmp_path, dtype="float16", range_rows=range_rows))
    assert not list(tmp_path.iterdir())


def test_temporary_rows_cut_short_are_noticed(tmp_path):
    parts = rows_of(np.ones((4, 2), np.float32), [3, 2, 1, 0], tmp_path, range_rows=2)
    next(parts)
    (left,) = tmp_path.iterdir()
    left.write_bytes(left.read_bytes()[:-1])
    with pytest.raises(StoreWriteError, match="became shorter while it was read"):
        next(parts)
    assert not list(tmp_path.iterdir())
