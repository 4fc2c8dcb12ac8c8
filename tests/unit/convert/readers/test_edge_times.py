"""Times of edges in text, Parquet and arrays: whole seconds since 1970, or a refusal."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.readers.edge_columns import EdgeColumn, array_column, timed_edges, to_seconds
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import TableEdges
from gloader.convert.source import EdgeChunk
from gloader.errors import ShapeError, SourceError

DAY = 24 * 3600
DATES = ["1970-01-02", "2024-02-29", "1969-12-31"]
SECONDS = [DAY, 1_709_164_800, -DAY]


def times(path, max_edges=2):
    edges = TableEdges.open(open_table(path))
    timed = TableEdges(table=edges.table, src=edges.src, dst=edges.dst, time="t").stream()
    assert timed.has_times
    return [second for chunk in timed.chunks(max_edges) for second in chunk.time.tolist()]


def text(tmp_path, *fields):
    path = tmp_path / "e.csv"
    path.write_text("src,dst,t\n" + "".join(f"0,1,{field}\n" for field in fields))
    return path


def parquet(tmp_path, values, kind=None):
    rows = pa.array(values, kind)
    pq.write_table(
        pa.table({"src": [0] * len(rows), "dst": [1] * len(rows), "t": rows}), tmp_path / "e.parquet"
    )
    return tmp_path / "e.parquet"


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        (["5", "-7", "9007199254740993"], [5, -7, 2**53 + 1]),  # as integers, which float64 would round
        (["5.0", "-7", "1e3"], [5, -7, 1000]),
        (DATES, SECONDS),
        ([f"{date} 00:00:01" for date in DATES], [second + 1 for second in SECONDS]),
        ([f"{date}T00:00:01Z" for date in DATES], [second + 1 for second in SECONDS]),
    ],
)
def test_times_in_text(tmp_path, fields, seconds):
    assert times(text(tmp_path, *fields)) == seconds


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["5", "", "6"], "row 1 .*'t' is '', a missing value"),
        (["5", "2024-01-31"], "row 1 .*'2024-01-31'; expected whole seconds"),
        (["2024-01-31", "5x"], "row 1 .*'5x'; expected whole seconds"),
        (["5", str(2**63)], f"row 1 .*'{2**63}'; expected whole seconds"),
        (["5.0", "6.0", "7.5"], "row 2 has time 7.5; times are whole seconds, and every edge has one"),
        (["5.0", "6.0", "nan"], "row 2 has time nan"),
        (["5.0", "6.0", "1e300"], r"row 2 has time 1e\+300"),
        (["noon"], "'noon'; expected whole seconds"),
    ],
)
def test_times_in_text_that_are_none(tmp_path, fields, said):
    with pytest.raises(Exception, match=said) as raised:
        times(text(tmp_path, *fields))
    assert type(raised.value).__name__ in {"SourceError", "GraphError"}


@pytest.mark.parametrize(
    ("values", "kind", "seconds"),
    [
        ([5, -7], pa.int32(), [5, -7]),
        ([5.0, -7.0], pa.float64(), [5, -7]),
        ([DAY * 10**6, -DAY * 10**6], pa.timestamp("us"), [DAY, -DAY]),
        ([DAY, 0], pa.timestamp("s", "Europe/Berlin"), [DAY, 0]),  # stored as UTC
        ([dt.date(1970, 1, 2), dt.date(1969, 12, 31)], pa.date32(), [DAY, -DAY]),
    ],
)
def test_times_in_parquet(tmp_path, values, kind, seconds):
    assert times(parquet(tmp_path, values, kind)) == seconds


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ([5, None], pa.int64(), "row 1, column 't' is null"),
        ([5.0, 6.5], pa.float64(), "row 1 has time 6.5"),
        ([5.0, float("nan")], pa.float64(), "row 1 has time nan"),
        ([5, 6], pa.float32(), "dtype float32, which holds whole seconds only up to 16,777,216"),
        ([5, 2**63], pa.uint64(), f"row 1 has time {2**63}"),
        ([10**6, 10**6 + 1], pa.timestamp("us"), "row 1 has time 1970-01-01T00:00:01.000001"),
        (["a"], pa.string(), "column 't' has type string; it must hold seconds or timestamps"),
    ],
)
def test_times_in_parquet_that_are_none(tmp_path, values, kind, said):
    with pytest.raises(Exception, match=said) as raised:
        times(parquet(tmp_path, values, kind))
    assert type(raised.value).__name__ in {"SourceError", "GraphError"}


@pytest.mark.parametrize("value", [2.0**53, -(2.0**53), 0.0])
def test_floats_are_exact_up_to_2_to_53(value):
    assert to_seconds(np.array([value]), first=0, where="t").tolist() == [int(value)]
    with pytest.raises(SourceError, match="row 3 has time"):
        to_seconds(np.array([np.copysign(2.0**53 + 2, value)]), first=3, where="t")


def test_dates_that_are_missing_are_refused():
    with pytest.raises(SourceError, match="row 1 has time NaT"):
        to_seconds(np.array(["2024-01-01", "NaT"], "datetime64[D]"), first=0, where="t")


class Edges:
    has_weights = has_times = False

    def __init__(self, count, num_edges):
        self.count, self.num_edges = count, num_edges

    def chunks(self, max_edges):
        for start in range(0, self.count, max_edges):
            ids = np.arange(start, min(self.count, start + max_edges))
            yield EdgeChunk(src=ids, dst=ids, weight=None)


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_pieces_of_any_size_find_their_edges(piece):
    values = np.arange(20) * 3

    def pieces(_max_values):
        return (values[start : start + piece] for start in range(0, 20, piece))

    timed = timed_edges(Edges(20, None), EdgeColumn(pieces=pieces, where="t"))
    assert [
        (int(src), int(at))
        for chunk in timed.chunks(6)
        for src, at in zip(chunk.src, chunk.time, strict=True)
    ] == [(edge, 3 * edge) for edge in range(20)]


@pytest.mark.parametrize(
    ("count", "said"), [(19, "ends after 19 times; there are more"), (21, "more times than .* 20")]
)
def test_there_is_one_time_for_each_edge(count, said):
    timed = timed_edges(Edges(20, None), EdgeColumn(pieces=lambda _: iter([np.arange(count)]), where="t"))
    with pytest.raises(ShapeError, match=said):
        list(timed.chunks(6))
    with pytest.raises(ShapeError, match=f"t holds {count} times for 20 edges"):
        timed_edges(Edges(20, 20), array_column(np.arange(count), where="t"))
