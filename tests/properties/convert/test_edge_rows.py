"""Features of edges against a plain oracle, with budgets so small that rows, and their places, go through files."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from convert_helpers import Column, ListEdges, MemorySink, expected_columns
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert import edge_rows, node_order
from gloader.convert.csc import external_csc, sorted_ranges
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.spill import Spill
from gloader.convert.edge_rows import FeaturedEdges, write_edges
from gloader.convert.options import EdgeRules
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.readers.arrays import array_features
from gloader.errors import BudgetError, FeatureValueError, ShapeError, StoreWriteError


@pytest.fixture(scope="module", autouse=True)
def tiny_buffers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_csc, "_MIN_CHUNK_EDGES", 5)
        patch.setattr(external_csc, "_BUCKET_NODES", 4)
        patch.setattr(external_csc, "PIECE_BYTES", 48)
        patch.setattr(sorted_ranges, "PIECE_BYTES", 48)
        patch.setattr(node_order, "_PIECE_BYTES", 64)
        patch.setattr(edge_rows, "_CHUNK_BYTES", 200)
        patch.setattr(edge_rows, "_DEAL_POSITIONS", 7)
        # A few rows, and the places of a few, take the whole budget of a sort.
        patch.setattr(edge_rows, "ROW_SORT_BYTES", 300)
        patch.setattr(edge_rows, "PAIR_BYTES", 200)
        yield


class FeatureSink(MemorySink):
    """Takes features of edges, too."""

    def edge_features(self, num_edges, dim, dtype):
        self.rows = Column(num_edges, dtype)
        return self.rows


class Dropping:
    """A stream that leaves some edges out, and says which number those have that are left."""

    has_weights = False

    def __init__(self, edges, kept):
        self.edges, self.kept, self.num_edges = edges, np.asarray(kept, np.bool_), None

    @property
    def has_times(self):
        return self.edges.has_times

    def chunks(self, max_edges):
        first = 0
        for chunk in self.edges.chunks(max_edges):
            part = np.flatnonzero(self.kept[first : first + len(chunk.src)])
            left = chunk.take(part)
            yield type(chunk)(
                src=left.src, dst=left.dst, weight=None, time=left.time, number=part.astype(np.int64) + first
            )
            first += len(chunk.src)


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 20))
    node, hub = st.integers(0, num_nodes - 1), st.integers(0, min(1, num_nodes - 1))
    edges = draw(st.lists(st.tuples(node, st.one_of(node, hub)), max_size=80))
    times = draw(st.lists(st.integers(-3, 6), min_size=len(edges), max_size=len(edges)))
    kept = draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    return num_nodes, edges, times, kept


@given(
    graph=graphs(),
    rules=st.builds(EdgeRules, symmetrize=st.booleans(), self_loops=st.booleans(), deduplicate=st.booleans()),
    timed=st.booleans(),
    drops=st.booleans(),
    dim=st.integers(1, 3),
    budget=st.integers(3600, 12000),
)
def test_features_follow_their_edges(graph, rules, timed, drops, dim, budget):
    num_nodes, edges, times, kept = graph
    rows = np.random.default_rng(len(edges)).standard_normal((len(edges), dim)).astype(np.float32)
    stream, sink = ListEdges(edges, times=times if timed else None), FeatureSink()
    with tempfile.TemporaryDirectory() as folder:
        write_edges(
            FeaturedEdges(
                edges=Dropping(stream, kept) if drops else stream,
                features=array_features(rows),
                dtype="float32",
            ),
            sink,
            ends=EdgeEnds.of(num_nodes),
            rules=rules,
            budget_bytes=budget,
            scratch=Path(folder),
            progress=NO_PROGRESS,
        )
        assert not list(Path(folder).iterdir())
    numbers = np.flatnonzero(kept) if drops else np.arange(len(edges))
    expected = expected_columns(
        [edges[number] for number in numbers],
        [times[number] for number in numbers] if timed else None,
        num_nodes,
        rules,
    )
    assert sink.neighbors() == [[(row[0], 1.0) for row in entries] for entries in expected]
    padded, of_row = np.vstack([rows, np.zeros((1, dim))]), [*numbers.tolist(), len(edges)]
    wanted = padded[[of_row[row[3]] for entries in expected for row in entries]].astype(np.float32)
    found = sink.rows.value.reshape(-1, dim)
    assert sink.rows.length == len(found)
    assert np.array_equal(found, wanted)


def test_small_budgets_send_rows_and_places_through_files(tmp_path, monkeypatch):
    written = set()
    plain = edge_rows.EdgeMoves.deal_out

    def spying(self, progress):
        plain(self, progress)
        written.update(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(edge_rows.EdgeMoves, "deal_out", spying)
    plain_drop = Spill.drop

    def watched(self, bucket):
        written.update(path.name for path in tmp_path.iterdir())
        plain_drop(self, bucket)

    monkeypatch.setattr(Spill, "drop", watched)
    edges = [(number % 7, number % 5) for number in range(400)]
    sink = FeatureSink()
    write_edges(
        FeaturedEdges(
            edges=ListEdges(edges),
            features=array_features(np.arange(400.0).reshape(400, 1)),
            dtype="float32",
        ),
        sink,
        ends=EdgeEnds.of(7),
        rules=EdgeRules(),
        budget_bytes=4000,
        scratch=tmp_path,
        progress=NO_PROGRESS,
    )
    assert {"edge-numbers", "moves-00001", "rows-00001"} <= written
    order = [number for node in range(7) for number in range(400) if edges[number][1] == node]
    assert sink.rows.value.ravel().tolist() == order


def test_a_budget_without_room_for_a_row_says_needed_and_allowed():
    class Wide:
        num_rows, dim, dtype = 10, 10**6, np.dtype(np.float32)

    with pytest.raises(
        BudgetError,
        match="features of 10 edges in order takes at least 64 MB; the memory budget leaves 9 MB",
    ):
        edge_rows.plan_edge_rows(
            Wide(), 10, dtype="float32", rules=EdgeRules(), budget_bytes=9 * 10**6, where="x"
        )


@pytest.mark.parametrize(
    ("num_rows", "message"),
    [(3, "edges: edge 3 .counted from 0. has no edge features; there are 3 rows"), (5, "5 rows for 4 edges")],
)
def test_rows_that_are_not_one_for_each_edge_are_refused_and_leave_nothing(tmp_path, num_rows, message):
    stream = ListEdges([(0, 1)] * 4, is_counted=False)
    features = array_features(np.zeros((num_rows, 2), np.float32))
    with pytest.raises(ShapeError, match=message):
        write_edges(
            FeaturedEdges(edges=stream, features=features, dtype="float32"),
            FeatureSink(),
            ends=EdgeEnds.of(2),
            rules=EdgeRules(),
            budget_bytes=4000,
            scratch=tmp_path,
            progress=NO_PROGRESS,
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["edge-numbers", "moves-00001", "rows-00001"])
def test_a_full_disk_leaves_nothing(tmp_path, name):
    (tmp_path / name).symlink_to("/dev/full")
    edges = [(number % 7, number % 5) for number in range(400)]
    with pytest.raises(StoreWriteError, match="No space left on device"):
        write_edges(
            FeaturedEdges(
                edges=ListEdges(edges), features=array_features(np.zeros((400, 1))), dtype="float32"
            ),
            FeatureSink(),
            ends=EdgeEnds.of(7),
            rules=EdgeRules(),
            budget_bytes=4000,
            scratch=tmp_path,
            progress=NO_PROGRESS,
        )
    assert not list(tmp_path.iterdir())


def test_a_value_that_cannot_be_stored_names_its_row_in_the_source(tmp_path):
    rows = np.zeros((4, 2))
    rows[2] = 1e6
    with pytest.raises(FeatureValueError, match="row 2, column 0 is 1e"):
        write_edges(
            FeaturedEdges(
                edges=ListEdges([(0, 1), (0, 0), (1, 0), (1, 1)]),
                features=array_features(rows),
                dtype="float16",
            ),
            FeatureSink(),
            ends=EdgeEnds.of(2),
            rules=EdgeRules(),
            budget_bytes=4000,
            scratch=tmp_path,
            progress=NO_PROGRESS,
        )
