"""Times and features of edges, from sources and arrays into datasets and back."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from convert_helpers import write_folder

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import ConfigError, GloaderError, ShapeError, SourceError

NODES, EDGES = 20, 90
OPTIONS = PrepareOptions(memory_budget_bytes=40 * 10**6)


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return {
        "features": random.standard_normal((NODES, 2)).astype(np.float32),
        "labels": random.integers(0, 3, NODES),
        "edge_index": random.integers(0, NODES, (2, EDGES)),
        "edge_features": random.standard_normal((EDGES, 3)).astype(np.float32),
        "edge_time": random.integers(0, 9, EDGES),
    }


def rows_of(dataset):
    """Return every edge of a dataset by the ids of the source: source, destination, time, features."""
    held = dataset.to_numpy()
    ids = np.arange(NODES) if dataset.original_ids is None else dataset.original_ids
    destinations = np.repeat(np.arange(NODES), np.diff(held["indptr"]))
    columns = (ids[held["indices"]], ids[destinations], held["edge_time"], held["edge_features"].tolist())
    return sorted((source, node, time, *row) for source, node, time, row in zip(*columns, strict=True))


def given_rows(arrays):
    columns = (*arrays["edge_index"], arrays["edge_time"], arrays["edge_features"].tolist())
    return sorted((source, node, time, *row) for source, node, time, row in zip(*columns, strict=True))


@pytest.mark.parametrize("order", ["none", "degree", "community"])
def test_columns_follow_their_edges_in_every_order_of_the_nodes(tmp_path, arrays, order):
    dataset = Dataset.from_numpy(tmp_path / "out", order=order, **arrays)
    assert rows_of(dataset) == given_rows(arrays)
    graph = dataset.load_graph()
    for low, high in zip(graph.indptr[:-1], graph.indptr[1:], strict=True):
        pairs = list(zip(graph.edge_time[low:high], graph.indices[low:high], strict=True))
        assert pairs == sorted(pairs)


def test_a_round_trip_through_arrays_and_pyg_is_the_same_dataset(tmp_path, arrays):
    pytest.importorskip("torch_geometric")
    dataset = Dataset.from_numpy(tmp_path / "a", **arrays)
    assert Dataset.from_numpy(tmp_path / "b", **dataset.to_numpy()).fingerprint == dataset.fingerprint
    assert Dataset.from_pyg(dataset.to_pyg(), tmp_path / "c").fingerprint == dataset.fingerprint


def test_a_typed_round_trip_through_pyg_is_the_same_dataset(tmp_path, arrays):
    pytest.importorskip("torch_geometric")
    relation = ("a", "to", "a")
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "a",
        edges={relation: arrays["edge_index"]},
        labels={"a": arrays["labels"]},
        features={"a": arrays["features"]},
        edge_features={relation: arrays["edge_features"]},
        edge_time={relation: arrays["edge_time"]},
    )
    assert Dataset.from_pyg(dataset.to_pyg(), tmp_path / "b").fingerprint == dataset.fingerprint


def test_a_round_trip_through_dgl_is_the_same_dataset(tmp_path, arrays):
    pytest.importorskip("dgl")
    dataset = Dataset.from_numpy(tmp_path / "a", **arrays)
    assert Dataset.from_dgl(dataset.to_dgl(), tmp_path / "b").fingerprint == dataset.fingerprint


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("edge_features", lambda rows: rows[:5], ShapeError, "edge_features has 5 rows for 90 edges"),
        (
            "edge_time",
            lambda times: times[:5],
            ShapeError,
            r"edge_time has shape \(5,\); times are one for each of 90",
        ),
        (
            "edge_time",
            lambda times: times.astype(np.float32),
            SourceError,
            "float32, which holds whole seconds only",
        ),
        ("edge_time", lambda times: np.where(times == 3, np.nan, times), SourceError, "row 6 has time nan"),
        ("edge_time", lambda times: times + 0.5, SourceError, "row 0 has time .*5; times are whole seconds"),
        ("edge_time", lambda times: times + 2**62, GloaderError, "edge 0 .* times are seconds in"),
    ],
)
def test_columns_that_are_wrong_are_refused_and_leave_nothing(tmp_path, arrays, name, change, error, message):
    with pytest.raises(error, match=message):
        Dataset.from_numpy(tmp_path / "out", **arrays | {name: change(arrays[name])})
    assert not list(tmp_path.iterdir())


def test_a_folder_and_tables_give_what_the_arrays_give(tmp_path, arrays):
    expected = given_rows(arrays)
    plain = {name: arrays[name] for name in ("features", "labels", "edge_features", "edge_time")}
    write_folder(tmp_path / "in", num_nodes=NODES, edges=arrays["edge_index"].T, **plain)
    prepare(open_source(f"npy:{tmp_path / 'in'}", SourceOptions()), tmp_path / "a", OPTIONS)
    assert rows_of(Dataset.open(tmp_path / "a")) == expected
    named = {f"f{number}": column for number, column in enumerate(arrays["edge_features"].T)}
    src, dst = arrays["edge_index"]
    table = {"src": src, "dst": dst, "when": arrays["edge_time"].astype("datetime64[s]"), **named}
    table["all"] = pa.array(arrays["edge_features"].tolist(), pa.list_(pa.float32()))
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    beside = {"features": tmp_path / "in" / "features.npy", "labels": tmp_path / "in" / "labels.npy"}
    for number, features in enumerate(("f0,f1,f2", "all", str(tmp_path / "in" / "edge_features.npy"))):
        options = SourceOptions(edge_time="when", edge_features=features, **beside)
        prepare(open_source(f"edges:{tmp_path / 'edges.parquet'}", options), tmp_path / f"b{number}", OPTIONS)
        assert rows_of(Dataset.open(tmp_path / f"b{number}")) == expected
    options = SourceOptions(edge_time="day", **beside)
    with pytest.raises(
        ConfigError, match=r"--edge-time 'day': .* has no such column; it has when, f0, f1, f2, all"
    ):
        open_source(f"edges:{tmp_path / 'edges.parquet'}", options)


def test_a_source_without_such_columns_says_so():
    with pytest.raises(ConfigError, match="--edge-time day: the edges of builtin:digits have no such column"):
        open_source("builtin:digits", SourceOptions(edge_time="day"))
