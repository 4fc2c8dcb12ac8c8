"""Edges of a hub by time: runs in files, merged a few at a time."""

import numpy as np
import pytest
from convert_helpers import ListEdges, MemorySink, expected_columns

from gloader.convert.csc import external_csc, sorted_ranges
from gloader.convert.csc.edge_rules import EdgeEnds
from gloader.convert.csc.external_csc import EdgeNumbers, build_csc
from gloader.convert.csc.sorted_ranges import TimeRuns
from gloader.convert.options import EdgeRules
from gloader.errors import StoreWriteError

RECORD = np.dtype([("src", np.int32), ("time", np.int64), ("number", np.int32)])


def drawn(count, *, seed, num_times=4, num_sources=5):
    """Return records of few times and sources, numbered as they come."""
    random = np.random.default_rng(seed)
    records = np.zeros(count, RECORD)
    records["src"] = random.integers(0, num_sources, count)
    records["time"] = random.integers(-2, num_times, count)
    records["number"] = np.arange(count)
    return records


@pytest.mark.parametrize("max_records", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("max_runs", [2, 3, 64])
def test_merged_runs_are_a_stable_sort_by_time_and_source(tmp_path, monkeypatch, max_records, max_runs):
    monkeypatch.setattr(sorted_ranges, "_MAX_RUNS", max_runs)
    records = drawn(300, seed=max_records)
    runs = TimeRuns(tmp_path, RECORD, max_records=max_records)
    for start in range(0, 300, 37):
        runs.append(records[start : start + 37])
    assert runs.num_records == 300
    pieces = list(runs.merged())
    assert np.array_equal(np.concatenate(pieces), records[np.lexsort((records["src"], records["time"]))])
    assert max(map(len, pieces)) <= max(max_records, max_runs)
    assert not list(tmp_path.iterdir())


def test_no_records_are_no_pieces(tmp_path):
    runs = TimeRuns(tmp_path, RECORD, max_records=4)
    assert [piece.tolist() for piece in runs.merged()] == []
    runs.close()


def test_closing_midway_leaves_no_file(tmp_path):
    runs = TimeRuns(tmp_path, RECORD, max_records=10)
    runs.append(drawn(100, seed=0))
    next(runs.merged())
    assert list(tmp_path.iterdir())
    runs.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "rules", [EdgeRules(), EdgeRules(deduplicate=True), EdgeRules(symmetrize=True, self_loops=True)]
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_a_hub_beyond_the_sort_buffer_keeps_times_and_numbers(tmp_path, monkeypatch, rules, weighted, timed):
    monkeypatch.setattr(external_csc, "_MIN_CHUNK_EDGES", 4)
    monkeypatch.setattr(external_csc, "PIECE_BYTES", 96)
    monkeypatch.setattr(sorted_ranges, "PIECE_BYTES", 96)
    merged_runs = []
    plain = sorted_ranges.SortedRanges._hub
    monkeypatch.setattr(
        sorted_ranges.SortedRanges,
        "_hub",
        lambda self, bucket, node, degree: merged_runs.append(node) or plain(self, bucket, node, degree),
    )
    random = np.random.default_rng(0)
    # Where both directions become one, the reverse of the first edge comes behind the second.
    edges = [(5, 7, 2.0), (7, 5, 1.0)]
    edges += [(int(src), 5, float(src % 3)) for src in random.integers(0, 40, 900)]
    edges = edges if weighted else [edge[:2] for edge in edges]
    times = random.integers(0, 50, 902).tolist() if timed else None
    sink = MemorySink()
    numbers = EdgeNumbers.of(tmp_path / "numbers", 902)
    report = build_csc(
        ListEdges(edges, weighted=weighted, times=times),
        sink,
        ends=EdgeEnds.of(40),
        rules=rules,
        budget_bytes=6000,
        scratch=tmp_path,
        numbers=numbers,
    )
    expected = expected_columns(edges, times, 40, rules)
    assert merged_runs
    assert sink.neighbors(weighted=weighted) == [[row[:2] for row in entries] for entries in expected]
    assert numbers.array.read(0, report.num_edges).tolist() == [row[3] for part in expected for row in part]
    if timed:
        assert sink.times.value.tolist() == [row[2] for part in expected for row in part]
    assert [path.name for path in tmp_path.iterdir()] == ["numbers"]


def test_a_full_disk_under_the_runs_of_a_hub_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(external_csc, "_MIN_CHUNK_EDGES", 4)
    monkeypatch.setattr(external_csc, "PIECE_BYTES", 96)
    monkeypatch.setattr(sorted_ranges, "PIECE_BYTES", 96)
    (tmp_path / "hub-00002.edges").symlink_to("/dev/full")
    with pytest.raises(StoreWriteError, match="No space left on device"):
        build_csc(
            ListEdges([(0, 1)] * 500, times=range(500)),
            MemorySink(),
            ends=EdgeEnds.of(3),
            rules=EdgeRules(),
            budget_bytes=3000,
            scratch=tmp_path,
        )
    assert not list(tmp_path.iterdir())
