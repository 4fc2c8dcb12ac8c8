"""Task tables and row times: written whole or not at all, read as they were written, else refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tasks import NONE, TaskArrays, task_arrays, write_task_table, write_tasks

from gloader.dataset import Dataset
from gloader.dataset.verify import verified_tables, verify_dataset
from gloader.errors import (
    ConfigError,
    FormatError,
    GraphError,
    ShapeError,
    SourceError,
    StoreError,
    VersionError,
)
from gloader.ssd_store.format.format import DATASET_MANIFEST, load_manifest
from gloader.ssd_store.format.manifest import KNOWN_FEATURES
from gloader.types import NO_TIME

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 3000
KINDS = ["classes", "binary", "multilabel", "values", None]


@pytest.fixture(scope="module", name="tables")
def _tables() -> dict[str, TaskArrays]:
    named = {str(kind): task_arrays(COUNT, kind=kind, seed=7) for kind in KINDS}
    return {"churn.train": named["classes"], "churn.valid": task_arrays(0), **named}


@pytest.fixture(scope="module", name="dataset")
def _dataset(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, TaskArrays]) -> Dataset:
    return write_tasks(tmp_path_factory.mktemp("tasks") / "d", tables)


@pytest.mark.parametrize("name", [str(kind) for kind in KINDS])
@pytest.mark.parametrize("max_bytes", [0, 16 * COUNT, 10**9])
def test_rows_are_read_as_they_were_written(
    dataset: Dataset, tables: dict[str, TaskArrays], name: str, max_bytes: int
) -> None:
    rng = np.random.default_rng(1)
    with dataset.task_table(name).open(max_bytes=max_bytes) as opened:
        for rows in (rng.integers(0, COUNT, 900), np.arange(COUNT), np.empty(0, np.int64)):
            tables[name].require(opened.read(rows), rows)
        with pytest.raises(
            ShapeError, match=rf"table '{name}': rows must be in 0\.\.2999; these are not: \[3000\]"
        ):
            opened.read(np.array([3000]))
    with pytest.raises(StoreError, match=rf"table '{name}': the table is closed; open it again"):
        opened.read(np.array([0]))


def test_what_a_table_is_can_be_told_without_reading_it(dataset: Dataset) -> None:
    table = dataset.task_table("multilabel")
    assert (table.name, table.node_type, table.num_rows) == ("multilabel", "node", COUNT)
    assert (table.label_kind, table.num_classes, table.label_width) == ("multilabel", 3, 3)
    assert (table.has_times, table.has_weights, table.label_names) == (True, True, None)
    assert table.num_bytes == (8 + 8 + 12 + 4) * COUNT
    assert table.time_settings == {"time_strategy": "uniform", "time_bound": "<="}
    without = dataset.task_table("None")
    assert (without.label_kind, without.num_classes, without.label_width) == (None, 0, 0)
    assert dataset.task_table("churn").name == "churn.train"
    assert dataset.task_table("classes").label_width == 1


def test_an_unknown_table_is_told_with_those_there_are(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(
        ConfigError, match=r"no table 'chrn' of rows to predict; it has 'churn\.train', 'churn"
    ):
        dataset.task_table("chrn")
    with pytest.raises(ConfigError, match="by the name of a task table, not by a ndarray"):
        dataset.task_table(np.arange(3))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"it has none; `tables:` of graph\.yaml, relbench:DIR and tables="):
        write_tasks(tmp_path / "d", {}).task_table("churn")


def test_columns_are_held_in_order_as_far_as_they_fit(dataset: Dataset) -> None:
    """Nodes, times, labels and weights; the checksums of a page of 4 KiB take 8 bytes."""
    table, bounce = dataset.task_table("classes"), 2 * 2**20
    for max_bytes, expected in (
        (28 * COUNT, 28 * COUNT),
        (28 * COUNT - 1, 24 * COUNT + bounce + 8 * 3),
        (16 * COUNT, 16 * COUNT + bounce + 8 * (6 + 3)),
        (0, bounce + 8 * (6 + 6 + 6 + 3)),
    ):
        with table.open(max_bytes=max_bytes) as opened:
            assert opened.held_bytes == expected


def test_row_times_are_read_held_or_page_by_page(dataset: Dataset) -> None:
    nodes = dataset.node_tables["node"]
    assert nodes.has_row_times
    assert nodes.row_time_bytes == 320
    times = nodes.row_times
    assert times is not None
    assert NONE == NO_TIME
    assert (times[::4] == NO_TIME).all()
    rows = np.array([39, 0, 4, 4, 3])
    for max_bytes in (0, 320):
        with nodes.open_row_times(max_bytes=max_bytes) as opened:
            np.testing.assert_array_equal(opened.read(rows)["row_time"], times[rows])


@pytest.mark.reliability("M2")
@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("nodes", 77, 40, r"nodes\[77\] = 40 is not a node: it must be in 0\.\.39"),
        ("nodes", 77, -1, r"nodes\[77\] = -1 is not a node"),
        ("labels", 77, 5, r"labels\[77\] = 5 is not a class: it must be in -1\.\.4"),
        ("labels", 77, -2, r"labels\[77\] = -2 is not a class"),
        ("weights", 77, np.nan, r"weights\[77\] = nan: weights must be finite and at least 0"),
        ("weights", 77, -0.5, r"weights\[77\] = -0\.5: weights must be finite"),
    ],
)
def test_values_that_cannot_be_are_told_by_file_and_row(
    tmp_path: Path, name: str, at: int, value: float, message: str
) -> None:
    arrays = task_arrays(500)
    getattr(arrays, name)[at] = value
    dataset = write_tasks(tmp_path / "d", {"t": arrays})
    (problem,) = verify_dataset(dataset.root).problems
    assert problem.file == f"tables/t/{name}.npy"
    with pytest.raises(FormatError, match=rf"tables/t/{name}\.npy: {message}"):
        dataset.task_table("t").open(max_bytes=10**9)
    with dataset.task_table("t").open(max_bytes=0) as opened:
        with pytest.raises(FormatError, match=rf"tables/t/{name}\.npy: {message}"):
            opened.read(np.array([499, 77, 0]))
        rows = np.array([499, 0])
        arrays.require(opened.read(rows), rows)


def test_an_infinite_value_is_told_by_its_column_and_nan_is_unknown(tmp_path: Path) -> None:
    arrays = task_arrays(500, kind="values")
    assert arrays.labels is not None
    arrays.labels[7] = np.nan
    dataset = write_tasks(tmp_path / "d", {"t": arrays})
    assert verify_dataset(dataset.root).is_ok
    arrays.labels[77, 1] = np.inf
    dataset = write_tasks(tmp_path / "e", {"t": arrays})
    with pytest.raises(FormatError, match=r"labels\[77, 1\] = inf is not finite"):
        dataset.task_table("t").open(max_bytes=0).read(np.array([77]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "a__b"}, "table 'a__b': a name has 1 to 100"),
        ({"name": "A"}, "table 'A': the dataset has the table 'a' already"),
        ({"node_type": "user"}, "table 't': there is no node type 'user'; there are 'node'"),
        ({"label_kind": "numbers"}, "the kind of its labels is 'numbers'; it must be classes or binary or"),
        ({"label_kind": "classes"}, r"num_classes is 0; with classes it must be a whole number in 1\.\."),
        ({"label_kind": "binary", "num_classes": 2}, r"with binary it must be a whole number in 1\.\.1"),
        (
            {"label_kind": "classes", "num_classes": 2, "label_names": ["a"]},
            "the names of the labels must be 2 different texts",
        ),
    ],
)
def test_a_table_that_cannot_be_is_refused_where_it_begins(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with (
        pytest.raises(GraphError, match=message),
        Dataset.create(tmp_path / "d", name="d", num_nodes=9, num_classes=2) as writer,
    ):
        write_task_table(writer.table("a"), TaskArrays(nodes=np.arange(3)))
        writer.table(**{"name": "t", **given})
    assert not list(tmp_path.iterdir())


@pytest.mark.reliability("M3")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.times(4), "table 't': times has 4 rows, and nodes has 5; it must have one for each row"),
        (lambda t: t.labels(6), "table 't': labels has 6 rows, and nodes has 5"),
        (lambda t: None, "table 't': its labels were not written"),
    ],
)
def test_a_column_of_another_length_or_none_is_refused_where_it_is_written(
    tmp_path: Path, call: Any, message: str
) -> None:
    def write() -> None:
        with Dataset.create_hetero(
            tmp_path / "d", name="d", num_nodes={"a": 9}, relations=[], num_classes=1
        ) as writer:
            writer.nodes("a").labels(np.full(9, -1))
            nobody = np.empty(0, np.int64)
            writer.nodes("a").splits(train=nobody, valid=nobody, test=nobody)
            table = writer.table("t", node_type="a", label_kind="values", num_classes=2)
            with table.nodes(5) as column:
                column.append(np.arange(5))
            call(table)

    with pytest.raises(ShapeError, match=message):
        write()
    assert not list(tmp_path.iterdir())


def test_labels_need_a_kind(tmp_path: Path) -> None:
    with (
        pytest.raises(ShapeError, match="labels cannot be written; no kind of labels was given"),
        Dataset.create(tmp_path / "d", name="d", num_nodes=9, num_classes=2) as writer,
    ):
        writer.table("t").labels(5)


def rewritten(dataset: Dataset, change: Any) -> Path:
    """Change the metadata of a commit record, and write its checksum anew."""
    manifest = load_manifest(dataset.root, DATASET_MANIFEST)
    metadata = json.loads(json.dumps(dict(manifest.metadata)))
    features = list(manifest.required_features)
    change(metadata["tables"]["t"], features)
    changed = replace(manifest, metadata=metadata, required_features=tuple(features))
    (dataset.root / DATASET_MANIFEST).write_bytes(changed.to_bytes())
    return dataset.root


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, _: t.pop("type"), "table 't': it must have type and labels"),
        (lambda t, _: t.update(type="user"), "table 't': there is no node type 'user'; there are 'node'"),
        (
            lambda t, _: t["labels"].pop("kind"),
            "its labels must have kind, names and num_classes, or be null",
        ),
        (lambda t, _: t["labels"].update(names="ab"), "the names of the labels must be a list of texts"),
        (lambda t, _: t["labels"].update(kind="values"), "labels has dtype int64; it must be float32"),
        (lambda t, _: t.update(labels=None), "labels has dtype int64; it must be left out"),
        (lambda _, f: f.remove("task-tables"), "task tables need the required feature 'task-tables'"),
        (lambda _, f: f.remove("row-times"), "the record must name the required feature 'row-times'"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    dataset = write_tasks(tmp_path / "d", {"t": task_arrays(20)})
    with pytest.raises(FormatError, match=message):
        Dataset.open(rewritten(dataset, change))


def test_an_older_build_refuses_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tasks(tmp_path / "d", {"t": task_arrays(20)}).root
    known = KNOWN_FEATURES - {"task-tables", "row-times"}
    monkeypatch.setattr("gloader.ssd_store.format.manifest.KNOWN_FEATURES", known)
    with pytest.raises(VersionError, match=r"needs features \['row-times', 'task-tables'\] that this build"):
        Dataset.open(root)


def test_verify_counts_each_table(tmp_path: Path) -> None:
    dataset = write_tasks(tmp_path / "d", {"t": task_arrays(20), "u": task_arrays(5)})
    report = verify_dataset(dataset.root)
    assert report.is_ok
    tables = {each.table: (each.num_arrays, each.num_bytes) for each in verified_tables(report)}
    assert tables == {"table t": (4, 28 * 20), "table u": (4, 28 * 5)}


def test_the_fingerprint_knows_the_tables(tmp_path: Path) -> None:
    arrays = task_arrays(20)
    one = write_tasks(tmp_path / "a", {"t": arrays, "u": arrays})
    other = write_tasks(tmp_path / "b", {"u": arrays, "t": arrays})
    assert one.fingerprint == other.fingerprint
    assert arrays.labels is not None
    arrays.labels[3] = (arrays.labels[3] + 1) % 5
    assert write_tasks(tmp_path / "c", {"t": arrays, "u": arrays}).fingerprint != one.fingerprint


def test_the_fingerprint_knows_what_the_labels_are(tmp_path: Path) -> None:
    arrays = write_tasks(tmp_path / "a", {}).to_numpy()
    table = {"nodes": np.arange(3), "labels": np.arange(3)}
    found = {
        Dataset.from_numpy(tmp_path / str(number), **arrays, tables={"t": table | given}).fingerprint
        for number, given in enumerate(({}, {"num_classes": 4}, {"names": ["a", "b", "c"]}))
    }
    assert len(found) == 3


def test_arrays_come_back_as_they_were_given(tmp_path: Path) -> None:
    tables = {str(kind): task_arrays(20, kind=kind, weights=kind != "values") for kind in KINDS}
    given = write_tasks(tmp_path / "a", tables)
    again = Dataset.from_numpy(tmp_path / "b", **given.to_numpy())
    assert again.fingerprint == given.fingerprint
    moved = Dataset.from_numpy(tmp_path / "c", order="degree", **given.to_numpy())
    ids = moved.original_ids
    assert ids is not None
    assert given.node_tables["node"].row_times is not None
    np.testing.assert_array_equal(
        moved.node_tables["node"].row_times, given.node_tables["node"].row_times[ids]
    )
    with moved.task_table("classes").open(max_bytes=0) as opened:
        np.testing.assert_array_equal(ids[opened.read(np.arange(20))["nodes"]], tables["classes"].nodes)


def test_arrays_of_several_types_come_back_as_they_were_given(tmp_path: Path) -> None:
    relation = ("order", "by", "user")
    given = Dataset.from_numpy_hetero(
        tmp_path / "a",
        num_nodes={"user": 5, "order": 9},
        edges={relation: np.array([[0, 1, 8], [0, 4, 2]])},
        row_time={"order": np.array(["NaT", *["2020-01-01"] * 8], "datetime64[D]")},
        tables={
            "churn.train": {"type": "user", "nodes": [0, 1, 4], "labels": [0.5, 1, 2], "times": [3, 4, 5]}
        },
    )
    assert given.is_for_tables_alone
    times = given.node_tables["order"].row_times
    assert times is not None
    assert times.tolist() == [NO_TIME, *[1577836800] * 8]
    assert given.task_table("churn").label_kind == "values"
    assert Dataset.from_numpy_hetero(tmp_path / "b", **given.to_numpy()).fingerprint == given.fingerprint


@pytest.mark.parametrize(
    ("tables", "error", "message"),
    [
        ({"t": {"labels": [1]}}, ConfigError, r"tables\['t'\] has no nodes; it takes nodes, type"),
        ({"t": {"nodes": [1], "label": [1]}}, ConfigError, "has the key 'label'; it takes"),
        ({"t": {"nodes": [1, 2], "times": [1]}}, ShapeError, r"times have shape \(1,\) for 2 rows"),
        ({"t": {"nodes": [0.5]}}, GraphError, r"nodes of tables\['t'\] have dtype float64"),
        ({"t": {"nodes": [1, 99]}}, GraphError, r"row 1 has node 99; nodes of node are 0\.\.39"),
        ({"t": {"nodes": [1], "type": "user"}}, SourceError, "no node type 'user'"),
        ({"t": {"nodes": [1], "weights": [-1.0]}}, SourceError, "row 0 has weight -1.0; weights are finite"),
        ({"t": {"nodes": [1], "labels": [0.5], "kind": "classes"}}, SourceError, "0.5"),
        (
            {"t": {"nodes": [1, 2], "times": [5, NO_TIME]}},
            GraphError,
            "times: row 1 is -9223372036854775808; times are seconds in",
        ),
        (
            {"t": {"nodes": [1, 2], "labels": [0, 3], "num_classes": 3}},
            SourceError,
            r"row 1 has label 3; classes are 0\.\.2, and -1",
        ),
        (
            {"t": {"nodes": [1, 2], "labels": [[0.5, 1], [2, np.inf]]}},
            SourceError,
            "row 1, column 1 has label inf; a label must be finite",
        ),
    ],
)
def test_arrays_that_cannot_be_a_table_are_refused(
    tmp_path: Path, tables: Any, error: type[Exception], message: str
) -> None:
    arrays = write_tasks(tmp_path / "a", {}).to_numpy()
    with pytest.raises(error, match=message):
        Dataset.from_numpy(tmp_path / "b", **arrays, tables=tables)
    assert not (tmp_path / "b").exists()


def test_row_times_are_one_for_each_node(tmp_path: Path) -> None:
    arrays = write_tasks(tmp_path / "a", {}).to_numpy() | {"row_time": np.arange(3)}
    with pytest.raises(
        ShapeError, match=r"row_time has shape \(3,\) and dtype int64; it must be \(40,\) int64"
    ):
        Dataset.from_numpy(tmp_path / "b", **arrays)
