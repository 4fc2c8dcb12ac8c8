import weakref

import numpy as np
import pytest
from convert_helpers import ListEdges, MemorySink, expected_neighbors

from gloader.convert.csc import external_csc
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.external_csc import build_csc, plan_csc
from gloader.convert.csc.sorted_ranges import cut_ranges
from gloader.convert.csc.spill import NO_COLUMNS, EdgeColumns, record_dtype
from gloader.convert.options import EdgeRules
from gloader.errors import BudgetError, GraphError, StoreWriteError

MB = 10**6


def build(edges, num_nodes, tmp_path, *, rules=EdgeRules(), budget=100 * MB, weighted=False):  # noqa: B008
    sink = MemorySink()
    report = build_csc(
        ListEdges(edges, weighted=weighted),
        sink,
        ends=EdgeEnds.of(num_nodes, "edges.csv"),
        rules=rules,
        budget_bytes=budget,
        scratch=tmp_path,
    )
    return sink, report


def test_small_graph_is_sorted_in_memory(tmp_path):
    sink, report = build([(2, 0), (1, 0), (0, 2), (1, 0)], 3, tmp_path)
    assert sink.offsets.value.tolist() == [0, 3, 3, 4]
    assert sink.sources.value.tolist() == [2, 1, 1, 0]
    assert sink.sources.dtype == "int32"
    assert report.spilled_bytes == 0


@pytest.mark.reliability("C6")
def test_no_edges_and_one_node(tmp_path):
    sink, report = build([], 1, tmp_path)
    assert sink.offsets.value.tolist() == [0, 0]
    assert sink.sources.length == report.num_edges == 0


@pytest.mark.reliability("C2")
@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([(0, 1), (3, 1)], "edges.csv: edge 1 (counted from 0) has source 3; node ids must lie in 0..2"),
        ([(0, 1), (0, 1), (1, -1)], "edge 2 (counted from 0) has destination -1"),
        ([(-(2**31), 1)], "edge 0 (counted from 0) has source -2147483648"),
        ([(2**32, 1)], "edge 0 (counted from 0) has source 4294967296"),
    ],
)
def test_bad_id_is_named(tmp_path, edges, text):
    with pytest.raises(GraphError) as caught:
        build(edges, 3, tmp_path)
    assert text in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.reliability("C2")
def test_bad_id_in_a_late_chunk_leaves_no_spill(tmp_path, monkeypatch):
    monkeypatch.setattr(external_csc, "_MIN_CHUNK_EDGES", 4)
    monkeypatch.setattr(external_csc, "PIECE_BYTES", 64)
    edges = [(0, 1)] * 200 + [(9, 1)]
    with pytest.raises(GraphError, match=r"edge 200 .* source 9"):
        build(edges, 3, tmp_path, budget=1500)
    assert not list(tmp_path.iterdir())


@pytest.mark.reliability("C2")
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_bad_weight_is_named(tmp_path, weight):
    with pytest.raises(GraphError, match=r"edge 1 \(counted from 0\) has weight"):
        build([(0, 1, 1.0), (1, 0, weight)], 2, tmp_path, weighted=True)


@pytest.mark.reliability("C14")
def test_budget_too_small_says_needed_and_allowed(tmp_path):
    with pytest.raises(BudgetError, match=r"sorting edges of 1000000 nodes needs at least .* leaves 1 MB"):
        build([(0, 1)], 10**6, tmp_path, budget=1 * MB)


@pytest.mark.parametrize("rules", [EdgeRules(), EdgeRules(deduplicate=True), EdgeRules(symmetrize=True)])
@pytest.mark.parametrize("weighted", [False, True])
def test_node_with_more_edges_than_can_be_sorted_at_once(tmp_path, monkeypatch, rules, weighted):
    monkeypatch.setattr(external_csc, "_MIN_CHUNK_EDGES", 4)
    monkeypatch.setattr(external_csc, "PIECE_BYTES", 64)
    random = np.random.default_rng(0)
    edges = [(int(src), 5, float(src % 3)) for src in random.integers(0, 40, 900)] + [(5, 7, 2.0)]
    edges = edges if weighted else [edge[:2] for edge in edges]
    sink, report = build(edges, 40, tmp_path, rules=rules, budget=4000, weighted=weighted)
    assert sink.neighbors(weighted=weighted) == expected_neighbors(edges, 40, rules)
    assert report.spilled_bytes > 0


def test_merged_weights_add_up_and_reverses_do_not_double(tmp_path):
    edges = [(0, 1, 2.0), (0, 1, 3.0), (1, 0, 4.0), (2, 2, 1.5)]
    sink, _ = build(edges, 3, tmp_path, rules=EdgeRules(symmetrize=True), weighted=True)
    assert sink.neighbors(weighted=True) == [[(1, 5.0)], [(0, 5.0)], [(2, 1.5)]]


def test_self_loops_are_exactly_one_per_node(tmp_path):
    sink, report = build([(0, 0), (0, 0), (1, 0)], 2, tmp_path, rules=EdgeRules(self_loops=True))
    assert sink.neighbors() == [[(1, 1.0), (0, 1.0)], [(1, 1.0)]]
    assert (report.edges_read, report.num_edges) == (3, 3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rules", [EdgeRules(), EdgeRules(symmetrize=True, self_loops=True)])
@pytest.mark.parametrize("budget", [40 * MB, 10**9])
def test_plan_stays_within_its_budget(budget, rules, weighted):
    plan = plan_csc(
        EdgeEnds.of(1_000_000),
        10**9,
        columns=EdgeColumns(has_weights=weighted),
        rules=rules,
        budget_bytes=budget,
    )
    assert plan.peak_bytes <= budget
    assert plan.num_buckets << plan.shift >= 1_000_000
    assert plan.chunk_edges >= 4096


def test_plan_of_a_small_graph_asks_for_little():
    plan = plan_csc(EdgeEnds.of(1000), 5000, columns=NO_COLUMNS, rules=EdgeRules(), budget_bytes=10**10)
    assert plan.peak_bytes < 6 * MB


def test_indices_are_int64_only_beyond_int32():
    assert record_dtype(num_sources=2**31 - 1, columns=NO_COLUMNS)["src"] == np.int32
    assert record_dtype(num_sources=2**31, columns=NO_COLUMNS)["src"] == np.int64


def test_full_disk_is_a_typed_error_and_leaves_nothing(tmp_path, monkeypatch):
    from gloader.convert.csc import spill

    monkeypatch.setattr(external_csc, "_MIN_CHUNK_EDGES", 4)
    monkeypatch.setattr(external_csc, "PIECE_BYTES", 64)
    monkeypatch.setattr(spill.Spill, "_path", lambda _self, _bucket: tmp_path / "full")
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(StoreWriteError, match="No space left on device"):
        build([(0, 1)] * 500, 3, tmp_path, budget=1500)
    assert not list(tmp_path.iterdir())


def test_ranges_hold_at_most_so_many_edges():
    assert list(cut_ranges(np.array([3, 0, 2, 9, 1, 1]), 5)) == [(0, 3), (3, 4), (4, 6)]
    assert list(cut_ranges(np.array([0, 0]), 5)) == [(0, 2)]


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        ((5, 0), "writes: edge 1 (counted from 0) has source 5; ids of sources must lie in 0..4"),
        ((-1, 0), "writes: edge 1 (counted from 0) has source -1; ids of sources must lie in 0..4"),
        ((0, 3), "writes: edge 1 (counted from 0) has destination 3; ids of destinations must lie in 0..2"),
    ],
)
def test_each_end_of_a_relation_has_a_range_of_its_own(edge, message, tmp_path):
    ends = EdgeEnds(num_nodes=3, num_sources=5, where="writes", has_names=True)
    with pytest.raises(GraphError) as raised:
        build_csc(
            ListEdges([(4, 2), edge]),
            MemorySink(),
            ends=ends,
            rules=EdgeRules(),
            budget_bytes=MB * 100,
            scratch=tmp_path,
        )
    assert str(raised.value) == message


def test_a_relation_into_a_type_without_nodes_takes_no_edge(tmp_path):
    ends = EdgeEnds(num_nodes=0, num_sources=5, where="writes", has_names=True)
    with pytest.raises(GraphError, match="has destination 0; there are no destinations"):
        build_csc(
            ListEdges([(1, 0)]),
            MemorySink(),
            ends=ends,
            rules=EdgeRules(),
            budget_bytes=MB * 100,
            scratch=tmp_path,
        )


def test_a_hub_of_a_relation_keeps_sources_beyond_the_number_of_destinations(tmp_path, monkeypatch):
    for name, value in (("_MIN_CHUNK_EDGES", 5), ("PIECE_BYTES", 48)):
        monkeypatch.setattr(external_csc, name, value)
    monkeypatch.setattr("gloader.convert.csc.sorted_ranges.PIECE_BYTES", 48)
    sink = MemorySink()
    build_csc(
        ListEdges([(source % 90, 0) for source in range(180)]),
        sink,
        ends=EdgeEnds(num_nodes=2, num_sources=90, has_names=True),
        rules=EdgeRules(deduplicate=True),
        budget_bytes=1000,
        scratch=tmp_path,
    )
    assert sink.sources.value.tolist() == list(range(90))


def test_no_chunk_is_alive_when_the_sort_begins(tmp_path):
    read, alive = [], []

    class Watched(ListEdges):
        def chunks(self, max_edges):
            for chunk in super().chunks(max_edges):
                read.append(weakref.ref(chunk.src))
                yield chunk

    class Progress:
        def advance(self, step, done, total, unit):
            if step == "sorting edges":
                alive.append(sum(source() is not None for source in read))

    build_csc(
        Watched([(node, 0) for node in range(90)]),
        MemorySink(),
        ends=EdgeEnds.of(90),
        rules=EdgeRules(),
        budget_bytes=MB * 100,
        scratch=tmp_path,
        progress=Progress(),
    )
    assert read
    assert alive == [0] * len(alive) != []
