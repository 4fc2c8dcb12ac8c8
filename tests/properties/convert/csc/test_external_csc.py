"""The external sort against a plain-Python oracle, with buffers so small that everything spills and splits."""

import tempfile
from pathlib import Path

import pytest
from convert_helpers import ListEdges, MemorySink, expected_columns, expected_neighbors
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert.csc import external_csc, sorted_ranges
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.external_csc import EdgeNumbers, build_csc
from gloader.convert.options import EdgeRules


@pytest.fixture(scope="module", autouse=True)
def tiny_buffers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_csc, "_MIN_CHUNK_EDGES", 5)
        patch.setattr(external_csc, "_BUCKET_NODES", 4)
        patch.setattr(external_csc, "PIECE_BYTES", 48)
        patch.setattr(sorted_ranges, "PIECE_BYTES", 48)
        yield


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 30))
    node = st.integers(0, num_nodes - 1)
    hub = st.integers(0, min(2, num_nodes - 1))
    edge = st.tuples(node, st.one_of(node, hub), st.integers(0, 8).map(float))
    return num_nodes, draw(st.lists(edge, max_size=120))


rules = st.builds(EdgeRules, symmetrize=st.booleans(), self_loops=st.booleans(), deduplicate=st.booleans())


@pytest.mark.reliability("C4")
@pytest.mark.reliability("C5")
@pytest.mark.reliability("C6")
@given(
    graph=graphs(),
    rules=rules,
    weighted=st.booleans(),
    is_counted=st.booleans(),
    budget=st.integers(2000, 9000),
)
def test_sort_equals_the_oracle(graph, rules, weighted, is_counted, budget):
    num_nodes, edges = graph
    sink, stream = MemorySink(), ListEdges(edges, weighted=weighted, is_counted=is_counted)
    with tempfile.TemporaryDirectory() as scratch:
        report = build_csc(
            stream, sink, ends=EdgeEnds.of(num_nodes), rules=rules, budget_bytes=budget, scratch=Path(scratch)
        )
        assert not list(Path(scratch).iterdir())
    given_edges = edges if weighted else [edge[:2] for edge in edges]
    expected = expected_neighbors(given_edges, num_nodes, rules)
    found = sink.neighbors(weighted=weighted)
    assert found == expected
    assert report.edges_read == len(edges)
    assert report.num_edges == sum(map(len, expected))
    assert stream.passes == 1


@st.composite
def timed_graphs(draw):
    num_nodes, edges = draw(graphs())
    # Few values, so that many edges have the same time.
    times = draw(st.lists(st.integers(-3, 6), min_size=len(edges), max_size=len(edges)))
    return num_nodes, edges, times


@given(
    graph=timed_graphs(),
    rules=rules,
    weighted=st.booleans(),
    timed=st.booleans(),
    numbered=st.booleans(),
    is_counted=st.booleans(),
    budget=st.integers(3500, 12000),
)
def test_times_sort_each_list_and_numbers_follow_their_edges(
    graph, rules, weighted, timed, numbered, is_counted, budget
):
    num_nodes, edges, times = graph
    edges = edges if weighted else [edge[:2] for edge in edges]
    times = times if timed else None
    sink = MemorySink()
    stream = ListEdges(edges, weighted=weighted, times=times, is_counted=is_counted)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        numbers = EdgeNumbers.of(scratch / "numbers", max(1, len(edges))) if numbered else None
        report = build_csc(
            stream,
            sink,
            ends=EdgeEnds.of(num_nodes),
            rules=rules,
            budget_bytes=budget,
            scratch=scratch,
            numbers=numbers,
        )
        kept = numbers.array.read(0, report.num_edges).tolist() if numbers is not None else None
        assert {path.name for path in scratch.iterdir()} <= ({"numbers"} if numbered else set())
    expected = expected_columns(edges, times, num_nodes, rules)
    assert sink.neighbors(weighted=weighted) == [
        [(src, weight) for src, weight, _, _ in entries] for entries in expected
    ]
    if timed:
        assert sink.times.value.tolist() == [row[2] for entries in expected for row in entries]
        assert len(sink.times.value) == sink.times.length
    if kept is not None:
        assert kept == [row[3] for entries in expected for row in entries]


@st.composite
def relations(draw):
    num_sources, num_nodes = draw(st.integers(0, 20)), draw(st.integers(0, 30))
    if not num_sources or not num_nodes:
        return num_sources, num_nodes, []
    edge = st.tuples(
        st.integers(0, num_sources - 1), st.integers(0, num_nodes - 1), st.integers(0, 8).map(float)
    )
    return num_sources, num_nodes, draw(st.lists(edge, max_size=120))


@given(relation=relations(), merges=st.booleans(), weighted=st.booleans(), budget=st.integers(2000, 9000))
def test_a_relation_between_two_types_is_sorted_by_its_destinations(relation, merges, weighted, budget):
    num_sources, num_nodes, edges = relation
    sink, rule = MemorySink(), EdgeRules(deduplicate=merges)
    with tempfile.TemporaryDirectory() as scratch:
        build_csc(
            ListEdges(edges, weighted=weighted),
            sink,
            ends=EdgeEnds(num_nodes=num_nodes, num_sources=num_sources, has_names=True),
            rules=rule,
            budget_bytes=budget,
            scratch=Path(scratch),
        )
    given_edges = edges if weighted else [edge[:2] for edge in edges]
    assert sink.neighbors(weighted=weighted) == expected_neighbors(given_edges, num_nodes, rule)


@given(graph=graphs(), budget=st.integers(2000, 9000))
def test_symmetrizing_twice_changes_nothing(graph, budget):
    num_nodes, edges = graph
    rule = EdgeRules(symmetrize=True)
    once = _neighbors(edges, num_nodes, rule, budget)
    again = [(src, dst, weight) for dst, entries in enumerate(once) for src, weight in entries]
    assert _neighbors(again, num_nodes, rule, budget) == once


def _neighbors(edges, num_nodes, rules, budget):
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as scratch:
        build_csc(
            ListEdges(edges, weighted=True),
            sink,
            ends=EdgeEnds.of(num_nodes),
            rules=rules,
            budget_bytes=budget,
            scratch=Path(scratch),
        )
    return sink.neighbors(weighted=True)
