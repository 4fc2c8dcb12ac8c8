"""`gloader.propagate`: columns against dense matrices, what is recorded, what is refused, and what stays behind."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import hop_oracles as oracle
import numpy as np
import pyarrow.parquet as pq
import pytest
from row_worlds import world
from tasks import task_arrays, write_tasks

import gloader
from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import BudgetError, ConfigError, StateError, StoreExistsError, StoreWriteError
from gloader.ssd_store.os_io import OsIO
from gloader.training.propagation import hop_plan, propagate_dataset
from gloader.training.propagation.hop_request import HopSettings, kept_nodes, split_bytes
from gloader.training.propagation.propagate_dataset import make_hops

N, F, C = 250, 4, 3


def make(path: Path, **more: Any) -> Dataset:
    random = np.random.default_rng(0)
    ids = random.permutation(N)
    given: dict[str, Any] = {
        "features": random.normal(size=(N, F)).astype(np.float32),
        "labels": random.integers(0, C, N),
        "edge_index": random.integers(0, N - 10, (2, 1200)),
        "train": ids[:100],
        "valid": ids[100:130],
        "test": ids[130:150],
    }
    return Dataset.from_numpy(path, **given | more)


@pytest.fixture(name="dataset")
def _dataset(tmp_path: Path) -> Dataset:
    return make(tmp_path / "d")


def columns(dataset: Dataset) -> dict[str, np.ndarray]:
    """Return the columns of each group."""
    rows = dataset.labelled.all_features()
    return {name: rows[:, start:stop] for name, start, stop in dataset.metadata["hops"]["columns"]}


def test_columns_are_those_of_a_dense_matrix(tmp_path: Path, dataset: Dataset) -> None:
    made = gloader.propagate(dataset, tmp_path / "hops", hops=2, directions=["in", "out"])
    assert isinstance(made, Dataset)
    assert verify_dataset(made.root).is_ok
    found = columns(made)
    assert list(found) == ["x", "in1.mean", "in2.mean", "out1.mean", "out2.mean"]
    edges, x = oracle.adjacency(dataset), dataset.labelled.all_features()
    assert (found["x"] == x).all()
    for direction, matrix in (("in", edges), ("out", edges.T)):
        for hop, rows in enumerate(oracle.hop_means(oracle.operator(matrix, "gcn"), x, 2)[1:], 1):
            assert np.allclose(found[f"{direction}{hop}.mean"], rows, atol=1e-5)
    assert made.metadata["hops"] | {"columns": []} == {
        "norm": "gcn",
        "hops": 2,
        "directions": ["in", "out"],
        "stats": ["mean"],
        "nodes": "all",
        "source": dataset.fingerprint,
        "columns": [],
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "hops"]


def test_labels_are_those_of_other_folds(tmp_path: Path, dataset: Dataset) -> None:
    made = gloader.propagate(dataset, tmp_path / "hops", hops=2, norm="mean", labels=True)
    assert isinstance(made, Dataset)
    found = columns(made)
    assert list(found) == ["x", "in1.mean", "in2.mean", "label.in1", "label.in2"]
    expected = oracle.label_means(oracle.operator(oracle.adjacency(dataset), "mean"), dataset, 2)
    for hop, rows in enumerate(expected, 1):
        assert np.allclose(found[f"label.in{hop}"], rows, atol=1e-6)


def test_labelled_nodes_alone(tmp_path: Path, dataset: Dataset) -> None:
    whole = gloader.propagate(dataset, tmp_path / "all", hops=2, labels=True)
    made = gloader.propagate(dataset, tmp_path / "some", hops=2, nodes="labelled", labels=True)
    assert isinstance(whole, Dataset)
    assert isinstance(made, Dataset)
    nodes = np.unique(np.concatenate([dataset.train, dataset.valid, dataset.test]))
    assert (made.labelled.all_features() == whole.labelled.all_features()[nodes]).all()
    assert (made.keys_of(np.arange(len(nodes))) == nodes).all()
    assert (made.num_nodes, made.num_edges) == (150, 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("nodes", ["all", "labelled"])
def test_a_dtype_only_rounds_what_is_stored(
    tmp_path: Path, dataset: Dataset, dtype: str, nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gloader.propagate(dataset, tmp_path / "whole", hops=2, labels=True, nodes=nodes)
    assert isinstance(whole, Dataset)
    rows = whole.labelled.all_features()
    with Dataset.create(tmp_path / "direct", name="x", num_nodes=len(rows), num_classes=C) as writer:
        writer.indptr().append(np.zeros(len(rows) + 1, np.int64))
        writer.indices(0, "int32").close()
        writer.features(rows.shape[1], dtype).append(rows)
        writer.labels(np.zeros(len(rows), np.int64))
        writer.splits(train=np.arange(1), valid=np.arange(1), test=np.arange(1))
    digest = Dataset.open(tmp_path / "direct").arrays["features"].digest
    for name, least_s in (("held", 30.0), ("stored", 0.0)):
        monkeypatch.setattr(hop_plan, "_KEPT_FROM_S", least_s)
        made = gloader.propagate(dataset, tmp_path / name, hops=2, labels=True, nodes=nodes, dtype=dtype)
        assert isinstance(made, Dataset)
        assert made.arrays["features"].digest == digest


def test_columns_do_not_depend_on_the_budget(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []
    settings = HopSettings(hops=2, labels=True, stats=("mean", "max"))
    digests = []
    for number, (budget, least_s) in enumerate([(10**9, 30.0), (10**9, 0.0), (70_000_000, 0.0)]):
        monkeypatch.setattr(hop_plan, "_KEPT_FROM_S", least_s)
        out = tmp_path / str(number)
        make_hops(dataset, out, settings, memory_budget_bytes=budget, on_plan=plans.append)
        digests.append(Dataset.open(out).arrays["features"].digest)
    assert len(set(digests)) == 1
    assert [plan.is_kept for plan in plans] == [False, True, True]


def test_a_table_names_its_columns(tmp_path: Path) -> None:
    import pyarrow as pa

    random = np.random.default_rng(0)
    keys = [f"n{i}" for i in range(N)]
    nodes = pa.table({"id": keys, "age": random.normal(size=N), "y": random.integers(0, C, N)})
    edges = pa.table({"src": random.choice(keys, 900), "dst": random.choice(keys, 900)})
    entry = {"table": nodes, "key": "id", "columns": ["age"], "labels": "y"}
    dataset = gloader.prepare(nodes={"node": entry}, edges=edges, out=tmp_path / "d")
    made = gloader.propagate(dataset, tmp_path / "t.parquet", hops=1, labels=True)
    assert made == tmp_path / "t.parquet"
    table = pq.read_table(made)
    assert table.column_names == [
        *("key", "split", "label", "x.age", "in1.mean.age"),
        *("label.in1.0", "label.in1.1", "label.in1.2"),
    ]
    step = oracle.operator(oracle.adjacency(dataset), "gcn")
    assert np.allclose(
        table["in1.mean.age"].to_numpy(), (step @ dataset.labelled.all_features())[:, 0], atol=1e-5
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "t.parquet"]


def several(path: Path, **more: Any) -> Dataset:
    random = np.random.default_rng(0)

    def ends(first: int, second: int, count: int) -> np.ndarray:
        return np.stack([random.integers(0, first, count), random.integers(0, second, count)])

    given: dict[str, Any] = {
        "num_nodes": {"author": 50, "paper": N, "topic": 9},
        "features": {
            "paper": random.normal(size=(N, 2)).astype(np.float32),
            "author": random.normal(size=(50, 3)).astype(np.float32),
        },
        "edges": {
            ("author", "writes", "paper"): ends(50, N, 400),
            ("paper", "cites", "paper"): ends(N, N, 600),
            ("topic", "of", "paper"): ends(9, N, 300),
        },
        "labels": {"paper": random.integers(0, C, N)},
        "train": np.arange(0, N, 3),
        "valid": np.arange(1, N, 3),
        "test": np.arange(2, N, 3),
    }
    return Dataset.from_numpy_hetero(path, **given | more)


def test_several_types_have_a_group_for_each_metapath(tmp_path: Path) -> None:
    dataset = several(tmp_path / "d")
    made = gloader.propagate(dataset, tmp_path / "hops", hops=2, labels=True)
    assert isinstance(made, Dataset)
    found = columns(made)
    assert list(found) == [
        *("x", "writes.mean", "cites.mean", "cites-writes.mean", "cites-cites.mean"),
        *("label.cites", "label.cites-cites"),
    ]
    assert made.metadata["hops"]["norm"] == "mean"
    graph = dataset.load_hetero_graph().relations
    steps = {}
    for (source, name, target), each in graph.items():
        dense = np.zeros((dataset.node_tables[target].num_nodes, dataset.node_tables[source].num_nodes))
        np.add.at(dense, (np.repeat(np.arange(len(dense)), np.diff(each.indptr)), each.indices), 1.0)
        steps[name] = oracle.operator(dense, "mean")
    x, of_authors = (dataset.node_tables[name].all_features() for name in ("paper", "author"))
    assert np.allclose(found["writes.mean"], steps["writes"] @ of_authors, atol=1e-5)
    assert np.allclose(found["cites-writes.mean"], steps["cites"] @ steps["writes"] @ of_authors, atol=1e-5)
    assert np.allclose(found["cites-cites.mean"], steps["cites"] @ steps["cites"] @ x, atol=1e-5)
    expected = oracle.label_means(steps["cites"], dataset, 2)
    assert np.allclose(found["label.cites-cites"], expected[1], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hops": 0}, "hops is 0; it must be a whole number, 1 or more"),
        ({"norm": "gnc"}, "norm: 'gnc' is unknown; did you mean 'gcn'\\?"),
        ({"norm": "ppr"}, "write ppr:0.15"),
        ({"directions": ("up",)}, "directions: 'up' is unknown; allowed: in, out"),
        ({"stats": ("median",)}, "stats: 'median' is unknown"),
        ({"nodes": "some"}, "nodes='some' is not one of 'all', 'labelled'"),
        ({"dtype": "float64"}, "dtype='float64' is not one of"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    tmp_path: Path, dataset: Dataset, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        gloader.propagate(dataset, tmp_path / "hops", **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_what_is_not_used_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = make(tmp_path / "d", edge_time=np.arange(1200))
    with caplog.at_level("INFO", "gloader"):
        gloader.propagate(dataset, tmp_path / "hops", hops=1)
    said = [line for line in caplog.messages if "not used" in line]
    assert said == [
        f"{tmp_path / 'hops'}: not used: edge times: hop columns see every edge, also the later ones"
    ]


def test_task_tables_and_row_times_are_named_as_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = write_tasks(tmp_path / "d", {"t.train": task_arrays(9), "t.test": task_arrays(5)})
    with caplog.at_level("INFO", "gloader"):
        gloader.propagate(dataset, tmp_path / "t.csv", hops=1)
    said = [line.partition("not used: ")[2] for line in caplog.messages if "not used" in line]
    assert "row times: hop columns see every row, also the later ones" in said
    assert "task tables t.train, t.test" in said


def test_a_dataset_for_task_tables_alone_has_no_labelled_nodes(tmp_path: Path) -> None:
    dataset = world(3, num_tables=3).write(tmp_path / "d")
    rows = r"\(the rows of its task tables task.train are in no split\)"
    with pytest.raises(ConfigError, match=f"no node of .* so there is none to keep {rows}; give --nodes all"):
        gloader.propagate(dataset, tmp_path / "hops", nodes="labelled")
    with pytest.raises(ConfigError, match=f"no training nodes with labels {rows}; leave out --labels"):
        gloader.propagate(dataset, tmp_path / "hops", labels=True)


def test_types_beyond_the_hops_have_no_columns(tmp_path: Path) -> None:
    edges = {
        ("author", "writes", "paper"): np.array([[3, 4], [0, 1]]),
        ("topic", "of", "author"): np.array([[0, 1], [3, 3]]),
    }
    features = {
        name: np.ones((size, 1), np.float32) for name, size in (("paper", N), ("author", 50), ("topic", 9))
    }
    dataset = several(tmp_path / "d", edges=edges, features=features)
    made = gloader.propagate(dataset, tmp_path / "one", hops=1)
    assert isinstance(made, Dataset)
    assert list(columns(made)) == ["x", "writes.mean"]
    assert columns(made)["writes.mean"][:3, 0].tolist() == [1, 1, 0]


def test_tables_have_no_int8(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="dtype='int8' is not one of 'float32', 'float16'"):
        gloader.propagate(dataset, tmp_path / "t.csv", dtype="int8")


def test_a_misspelt_keyword_is_named(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(TypeError, match="did you mean 'stats'"):
        gloader.propagate(dataset, tmp_path / "hops", stat=["mean"])  # type: ignore[call-arg]


def test_gcn_is_for_one_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use --norm mean"):
        gloader.propagate(several(tmp_path / "d"), tmp_path / "hops", norm="gcn")


def test_codes_of_categories_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa

    random = np.random.default_rng(0)
    nodes = pa.table(
        {"id": range(N), "city": random.choice(["Oslo", "Rome"], N), "y": random.integers(0, C, N)}
    )
    edges = pa.table({"src": random.integers(0, N, 900), "dst": random.integers(0, N, 900)})
    columns = [{"name": "city", "as": "index"}]
    entry = {"table": nodes, "key": "id", "columns": columns, "labels": "y"}
    dataset = gloader.prepare(nodes={"node": entry}, edges=edges, out=tmp_path / "d")
    with pytest.raises(ConfigError, match=r"column 'city' as: index, .* Prepare it with as: category"):
        gloader.propagate(dataset, tmp_path / "hops")


def test_a_part_of_a_dataset_is_refused(tmp_path: Path) -> None:
    dataset = make(tmp_path / "part", ranges="1/3")
    with pytest.raises(ConfigError, match="has part 1 of 3 of the feature rows"):
        gloader.propagate(dataset, tmp_path / "hops")


def test_labels_that_reach_no_node_are_refused(tmp_path: Path) -> None:
    edges = {("author", "writes", "paper"): np.zeros((2, 5), np.int64)}
    dataset = several(tmp_path / "d", edges=edges)
    with pytest.raises(ConfigError, match="no walk of at most 3 hops leads from 'paper' to 'paper'"):
        gloader.propagate(dataset, tmp_path / "hops", labels=True)
    made = gloader.propagate(dataset, tmp_path / "hops", labels=True, directions=["in", "out"], hops=2)
    assert isinstance(made, Dataset)
    assert "label.writes-~writes" in columns(made)


def test_an_output_that_exists_is_refused_at_once(tmp_path: Path, dataset: Dataset) -> None:
    (tmp_path / "hops").mkdir()
    (tmp_path / "t.csv").touch()
    for name in ("hops", "t.csv"):
        with pytest.raises(StoreExistsError, match="exists already"):
            gloader.propagate(dataset, tmp_path / name)
    (tmp_path / ".hops.propagate").mkdir()
    with pytest.raises(StoreExistsError) as caught:
        gloader.propagate(dataset, tmp_path / "hops")
    assert "is left from a run that was killed" in caught.value.__notes__[0]
    gloader.propagate(dataset, tmp_path / "t.csv", hops=1, overwrite=True)
    assert (tmp_path / "t.csv").read_text().startswith('"id","split","label","x.0"')
    gloader.propagate(dataset, tmp_path / "hops", hops=1, overwrite=True)
    first = Dataset.open(tmp_path / "hops").fingerprint
    gloader.propagate(dataset, tmp_path / "hops", hops=2, overwrite=True)
    assert Dataset.open(tmp_path / "hops").fingerprint != first
    with pytest.raises(ConfigError, match="is the dataset itself"):
        gloader.propagate(dataset, dataset.root, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "hops", "t.csv"]


def test_a_budget_that_is_too_small_names_one_that_is_enough(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(BudgetError, match=r"Give memory_budget=\"[0-9.]+MB\" or more") as caught:
        gloader.propagate(dataset, tmp_path / "hops", memory_budget="1MB")
    enough = str(caught.value).partition('memory_budget="')[2].partition('"')[0]
    gloader.propagate(dataset, tmp_path / "hops", memory_budget=enough)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "hops"]


def test_the_memory_of_the_kept_nodes_is_counted(tmp_path: Path) -> None:
    count = 600_000  # so that a buffer for reading is small beside them
    ids = np.random.default_rng(0).permutation(count)
    dataset = make(
        tmp_path / "d",
        features=np.ones((count, 1), np.float32),
        labels=ids % C,
        **dict(zip(("train", "valid", "test"), np.array_split(ids, 3), strict=True)),
    )
    tracemalloc.start()
    try:
        nodes = kept_nodes(dataset, HopSettings(nodes="labelled"))
        labels = dataset.labelled.labels_of(nodes)
        assert len(labels) == count
        assert 8 * count < tracemalloc.get_traced_memory()[1] < split_bytes(dataset)
    finally:
        tracemalloc.stop()


class NoProgress:
    """Receives the progress of no work."""

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        raise AssertionError(step)


class Small(OsIO):
    """A disk with little room."""

    def statvfs(self, path: Any) -> Any:
        import os

        values = list(super().statvfs(path))
        values[4] = 1000 // values[1]  # f_bavail, in blocks of f_frsize
        return os.statvfs_result(values)


def test_a_disk_that_is_too_small_is_refused_at_once(tmp_path: Path, dataset: Dataset) -> None:
    plans: list[Any] = []
    with pytest.raises(StoreWriteError, match=r"writing needs .* free"):
        make_hops(
            dataset,
            tmp_path / "hops",
            HopSettings(),
            memory_budget_bytes=10**9,
            on_plan=plans.append,
            progress=NoProgress(),
            os_io=Small(),
        )
    assert plans[0].disk_bytes > 1000
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_other_settings_do_not_continue_what_is_begun(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hop_plan, "_KEPT_FROM_S", 0.0)

    def stop(*_: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(propagate_dataset, "write_hop_dataset", stop)
        with pytest.raises(KeyboardInterrupt) as caught:
            gloader.propagate(dataset, tmp_path / "hops", hops=2)
    work = tmp_path / ".hops.propagate"
    assert caught.value.__notes__ == [f"stopped; {work} keeps the finished columns; go on: the same command"]
    with pytest.raises(StateError, match="unfinished propagation"):
        gloader.propagate(dataset, tmp_path / "hops", hops=3)
    assert work.exists()
    plans: list[Any] = []
    report = make_hops(
        dataset, tmp_path / "hops", HopSettings(hops=2), memory_budget_bytes=10**9, on_plan=plans.append
    )
    assert plans[0].is_continued
    assert report.cost.rows_written == 0
    straight = gloader.propagate(dataset, tmp_path / "straight", hops=2)
    assert isinstance(straight, Dataset)
    assert Dataset.open(tmp_path / "hops").fingerprint == straight.fingerprint
    assert not work.exists()


@pytest.mark.parametrize(
    ("journal", "message"),
    [
        (
            json.dumps({"fingerprint": "x", "widths": {}}),
            "holds an unfinished propagation of another dataset",
        ),
        ("{", "is damaged"),
        (json.dumps({"fingerprint": "x", "widths": [1]}), "is damaged"),
    ],
)
def test_a_fresh_run_forgets_what_is_begun(
    tmp_path: Path, dataset: Dataset, journal: str, message: str
) -> None:
    work = tmp_path / ".hops.propagate"
    (work / "features").mkdir(parents=True)
    (work / "features" / "propagation.json").write_text(journal)
    with pytest.raises(StateError, match=f"{message}.* --fresh"):
        gloader.propagate(dataset, tmp_path / "hops")
    gloader.propagate(dataset, tmp_path / "hops", resume=False)
    assert not work.exists()
