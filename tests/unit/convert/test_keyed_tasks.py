"""Own tables with times of rows and with tasks: what they become, and what is refused by file, row and value."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.cli.main import main
from gloader.convert.csc.edge_rules import plan_relations
from gloader.convert.key_numbers import numbered
from gloader.convert.options import PrepareOptions, SourceOptions, edge_shares
from gloader.convert.prepare import prepare
from gloader.convert.progress import NO_PROGRESS
from gloader.convert.registry import open_source, source_files
from gloader.convert.source import GraphSource, TaskSource
from gloader.core.units import parse_bytes
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, GraphError, SourceError

NONE = np.iinfo(np.int64).min
BUYS, BACK = ("user", "buys", "item"), ("item", "rev_buys", "user")
YAML = """
nodes:
  user: {file: users.csv, key: user_id, time: signup, columns: [age]}
  item: {file: items.csv, key: sku, columns: [price]}
edges:
  buys: {file: orders.csv, src: user.user_id, dst: item.sku}
tables:
  churn:
    type: user
    train: {file: train.csv, node: user_id, time: date, label: left, weight: w}
    valid: {file: valid.csv, node: user_id, time: date, label: left}
    test: {file: test.csv, node: user_id, time: date}
"""
FILES = {
    "users.csv": "user_id,age,signup\na,30,1970-01-02\nb,40,\nc,50,1970-01-01T00:00:07.900Z\n",
    "items.csv": "sku,price,made\nx,1,10\ny,2,20\n",
    "orders.csv": "user_id,sku,at\nc,x,5\nb,y,6\na,x,7\nc,y,8\n",
    "train.csv": "user_id,date,left,w,note\nb,1970-01-03,yes,0.5,n\na,1970-01-04,no,2,n\nb,100,no,1,n\n",
    "valid.csv": "user_id,date,left\nc,1970-01-05,maybe\na,7.5,\n",
    "test.csv": "user_id,date\nc,1970-01-06\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"graph.yaml": YAML, **FILES}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def edited(folder: Path, file: str, *pairs: tuple[str, str]) -> None:
    """Replace texts of a file that are there once."""
    text = (folder / file).read_text()
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / file).write_text(text)


@contextmanager
def opened(folder: Path, *, budget: int = 10**8, **options: Any) -> Iterator[GraphSource]:
    """Yield the graph of the folder's description with numbered keys."""
    source: Any = open_source(f"tables:{folder}", SourceOptions(memory_budget_bytes=budget, **options))
    shutil.rmtree(folder / "spill", ignore_errors=True)
    (folder / "spill").mkdir()
    with numbered(
        source, folder / "spill", PrepareOptions(), budget_bytes=budget, progress=NO_PROGRESS
    ) as graph:
        yield graph


def tables(graph: GraphSource) -> dict[str, TaskSource]:
    return {table.name: table for table in graph.tables}


def edges(stream: Any) -> list[tuple[int, int, int | None]]:
    """Return source, destination and time of all edges."""
    return [
        (src, dst, None if chunk.time is None else int(chunk.time[i]))
        for chunk in stream.chunks(3)
        for i, (src, dst) in enumerate(zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True))
    ]


def refused(folder: Path, error: type[Exception], text: str, **options: Any) -> None:
    """Assert the end of the error that opening and numbering raise."""
    with pytest.raises(error, match=re.escape(text)), opened(folder, **options):
        pass
    assert not [
        path for path in folder.rglob("*") if path.is_file() and path.name not in {"graph.yaml", *FILES}
    ]


class TestTables:
    def test_rows_have_nodes_times_labels_and_weights(self, folder: Path) -> None:
        with opened(folder) as graph:
            found = tables(graph)
            assert list(found) == ["churn.train", "churn.valid", "churn.test"]
            train, valid, test = found.values()
            assert (train.node_type, train.label_kind, train.num_classes) == ("user", "classes", 3)
            assert train.nodes.tolist() == [1, 0, 1]
            assert train.times is not None
            assert train.times.tolist() == [2 * 86_400, 3 * 86_400, 100]
            assert train.weights is not None
            assert train.weights.tolist() == [0.5, 2.0, 1.0]
            assert valid.times is not None
            assert valid.times.tolist() == [4 * 86_400, 7]  # rounded down
            assert (test.nodes.tolist(), test.labels, test.weights) == ([2], None, None)
            assert graph.unused == (
                "made (integer) of items.csv",
                "at (integer) of orders.csv",
                "note (string) of train.csv",
            )

    def test_classes_have_one_number_in_all_parts(self, folder: Path) -> None:
        with opened(folder) as graph:
            train, valid, _ = graph.tables
            assert train.label_names == valid.label_names == ("maybe", "no", "yes")
            assert train.labels is not None
            assert valid.labels is not None
            assert (train.labels.tolist(), valid.labels.tolist()) == ([2, 1, 1], [0, -1])

    def test_values_and_several_columns_are_labels_too(self, folder: Path) -> None:
        edited(
            folder,
            "graph.yaml",
            ("date, label: left, weight: w", "date, label: {columns: [left, w], as: values}"),
        )
        edited(
            folder,
            "graph.yaml",
            ("    valid: {file: valid.csv, node: user_id, time: date, label: left}\n", ""),
        )
        edited(folder, "train.csv", ("yes", "1"), ("04,no", "04,0"), ("100,no", "100,"))
        with opened(folder) as graph:
            (train, _) = graph.tables
            assert (train.label_kind, train.num_classes, train.label_names) == ("values", 2, ("left", "w"))
            np.testing.assert_array_equal(train.labels, np.array([[1, 0.5], [0, 2], [np.nan, 1]], np.float32))

    def test_a_dataset_has_them(self, folder: Path) -> None:
        assert main(["prepare", str(folder / "graph.yaml"), str(folder / "out")]) == 0
        with closing(Dataset.open(folder / "out")) as dataset:
            assert dataset.is_for_tables_alone
            table = dataset.task_table("churn")
            assert (table.name, table.num_rows, table.has_times, table.has_weights) == (
                "churn.train",
                3,
                True,
                True,
            )
            with table.open(max_bytes=10**6) as rows:
                assert rows.read(np.arange(3))["nodes"].tolist() == [1, 0, 1]
            assert dataset.ids_of(["b", "a"], "user").tolist() == [1, 0]
            assert dataset.node_tables["user"].has_row_times
            assert not dataset.node_tables["item"].has_row_times

    def test_labels_of_nodes_stand_beside_tables(self, folder: Path) -> None:
        edited(folder, "graph.yaml", ("columns: [price]", "columns: [price], labels: made"))
        with opened(folder) as graph:
            assert (graph.labelled, len(graph.tables), graph.labels.tolist()) == ("item", 3, [0, 1])

    def test_without_labels_the_type_of_the_first_task_counts_as_labelled(self, folder: Path) -> None:
        text = (folder / "graph.yaml").read_text().partition("tables:")[0]
        task = "tables: {dear: {type: item, train: {file: items.csv, node: sku, label: made}}}\n"
        (folder / "graph.yaml").write_text(text + task)
        with opened(folder) as graph:
            assert (graph.labelled, graph.labels.tolist(), len(graph.splits.train)) == ("item", [-1, -1], 0)

    def test_rows_of_a_type_without_keys_have_ids(self, folder: Path) -> None:
        edited(folder, "graph.yaml", ("key: user_id, ", ""), ("src: user.user_id", "src: user.id"))
        for file in ("orders.csv", "train.csv", "valid.csv", "test.csv"):
            text = FILES[file].replace("user_id", "id" if file == "orders.csv" else "user_id")
            (folder / file).write_text(
                re.sub(r"^([abc]),", lambda at: f"{'abc'.index(at[1])},", text, flags=re.MULTILINE)
            )
        with opened(folder) as graph:
            assert [table.nodes.tolist() for table in graph.tables] == [[1, 0, 1], [2, 0], [2]]
            assert edges(graph.relations[0].edges)[0] == (2, 0, 7)
        edited(folder, "test.csv", ("2,1970", "3,1970"))
        with pytest.raises(
            GraphError,
            match=r"test\.csv, task table 'churn\.test': row 0 has node 3; nodes of user are 0\.\.2",
        ):
            prepare(open_source(f"tables:{folder}", SourceOptions()), folder / "out", PrepareOptions())
        assert not (folder / "out").exists()

    def test_one_type_gives_a_dataset_of_one_type(self, folder: Path) -> None:
        (folder / "graph.yaml").write_text(
            "nodes: {user: {file: users.csv, key: user_id, time: signup, columns: [age]}}\n"
            "edges: {to: {file: orders.csv, src: user.user_id, dst: user.user_id}}\n"
            "tables: {churn: {type: user, train: {file: test.csv, node: user_id, time: date}}}\n"
        )
        edited(folder, "orders.csv", ("user_id,sku", "user_id,dst"))
        edited(folder, "graph.yaml", ("dst: user.user_id", "dst: user.dst"))
        (folder / "orders.csv").write_text("user_id,dst\na,c\nc,b\n")
        report = prepare(open_source(f"tables:{folder}", SourceOptions()), folder / "out", PrepareOptions())
        assert report.tables == {"churn.train": "1 rows of node"}
        with closing(Dataset.open(folder / "out")) as dataset:
            assert (dataset.kind, dataset.task_table("churn").node_type) == ("homogeneous", "node")

    def test_keys_of_text_files_adapt_to_the_typed_keys_of_a_task(self, folder: Path) -> None:
        for file in ("users.csv", "orders.csv", "valid.csv", "test.csv"):
            text = re.sub(
                r"^([abc]),", lambda at: f"{'abc'.index(at[1]) + 5},", FILES[file], flags=re.MULTILINE
            )
            (folder / file).write_text(text)
        pq.write_table(
            pa.table(
                {
                    "user_id": pa.array([6, 5], pa.int32()),
                    "date": [1, 2],
                    "left": ["yes", "no"],
                    "w": [1.0, 2.0],
                }
            ),
            folder / "train.parquet",
        )
        edited(folder, "graph.yaml", ("train.csv", "train.parquet"))
        with opened(folder) as graph:
            assert [table.nodes.tolist() for table in graph.tables] == [[1, 0], [2, 0], [2]]
            keys = graph.nodes[0].keys
            assert keys is not None
            assert keys.kind == "int64"
        pq.write_table(
            pa.table({"user_id": [5, 6, 7], "age": [1, 2, 3], "signup": [1, 2, 3]}), folder / "u.parquet"
        )
        pq.write_table(
            pa.table({"user_id": ["6"], "date": [1], "left": ["yes"], "w": [1.0]}), folder / "train.parquet"
        )
        edited(folder, "graph.yaml", ("users.csv", "u.parquet"))
        with pytest.raises(
            SourceError, match=r"keys of 'user': .*u\.parquet.* type int64.*train\.parquet.* string"
        ):
            open_source(f"tables:{folder}", SourceOptions())

    def test_rows_are_the_same_if_keys_go_to_disk(self, folder: Path) -> None:
        random = np.random.default_rng(3)
        keys = random.permutation(60_000)[:20_000]
        when = random.integers(0, 10**9, len(keys))
        pq.write_table(
            pa.table({"user_id": keys, "age": when % 80, "signup": when}), folder / "users.parquet"
        )
        pq.write_table(pa.table({"user_id": keys[:9], "sku": ["x"] * 9}), folder / "orders.parquet")
        chosen = random.integers(0, 60_000, 5000)
        columns = {"user_id": chosen, "date": chosen % 1000, "left": chosen % 3, "w": chosen % 7}
        for part in ("train", "valid", "test"):
            pq.write_table(pa.table(columns), folder / f"{part}.parquet")
        text = YAML.replace(".csv", ".parquet").replace("items.parquet", "items.csv")
        (folder / "graph.yaml").write_text(f"{text}dangling: drop\n")
        source: Any = open_source(f"tables:{folder}", SourceOptions())
        row_of = {int(key): row for row, key in enumerate(keys)}
        kept = [(row_of[key], key) for key in chosen.tolist() if key in row_of]
        assert 1000 < len(kept) < 4000
        for budget in (10**8, source.reading_bytes + 200_000):
            with opened(folder, budget=budget) as graph:
                for table in graph.tables:
                    assert table.nodes.tolist() == [row for row, _ in kept]
                    assert table.times is not None
                    assert table.times.tolist() == [key % 1000 for _, key in kept]
                is_spilled = any((folder / "spill").rglob("keys-user-ids-*"))
                assert is_spilled == (budget < 10**8)

    def test_an_empty_part_has_no_rows(self, folder: Path) -> None:
        (folder / "valid.csv").write_text("user_id,date,left\n")
        with opened(folder) as graph:
            assert tables(graph)["churn.valid"].nodes.tolist() == []

    def test_a_changed_table_is_noticed(self, folder: Path) -> None:
        files = source_files(str(folder / "graph.yaml"), SourceOptions())
        assert {"train.csv", "valid.csv", "test.csv"} <= {path.name for path in files}


class TestDangling:
    def test_a_strange_key_is_refused(self, folder: Path) -> None:
        edited(folder, "valid.csv", ("a,7.5", "zz,7.5"))
        refused(
            folder,
            SourceError,
            "valid.csv, column 'user_id': row 1 has the key 'zz', which no row of ",
        )

    def test_rows_are_dropped_with_all_their_columns(self, folder: Path) -> None:
        edited(folder, "train.csv", ("a,1970", "zz,1970"))
        edited(folder, "graph.yaml", ("tables:", "dangling: drop\ntables:"))
        with opened(folder) as graph:
            train = graph.tables[0]
            assert train.times is not None
            assert train.labels is not None
            assert train.weights is not None
            assert (train.nodes.tolist(), train.times.tolist()) == ([1, 1], [2 * 86_400, 100])
            assert (train.labels.tolist(), train.weights.tolist()) == ([2, 1], [0.5, 1.0])
            (note,) = (line for line in graph.column_notes if line.startswith("churn.train"))
            assert note == (
                "churn.train: 2 rows of train.csv, user_id is the node, date the time in seconds, rounded down, w the "
                "weight, dangling: 1 rows left out, first 'zz' in row 1"
            )

    def test_nodes_are_not_made_of_rows(self, folder: Path) -> None:
        edited(folder, "graph.yaml", ("tables:", "dangling: node\ntables:"))
        refused(
            folder,
            SourceError,
            "a row to predict (tables.churn) needs a row of its node; write dangling: drop",
        )

    def test_a_type_that_edges_make_has_no_tables(self, folder: Path) -> None:
        edited(folder, "graph.yaml", ("type: user", "type: buyer"))
        refused(
            folder,
            SourceError,
            "tables.churn.type is 'buyer'; it is the type of the nodes, one of those under nodes: user, item",
        )


class TestTimes:
    def test_the_time_of_an_edge_is_that_of_its_source_row(self, folder: Path) -> None:
        with opened(folder) as graph:
            users, items = graph.nodes
            assert users.row_times is not None
            assert users.row_times.tolist() == [86_400, NONE, 7]
            assert items.row_times is None
            (buys,) = graph.relations
            assert (buys.edges.has_times, buys.is_row_timed) == (True, True)
            assert edges(buys.edges) == [(2, 0, 7), (1, 1, NONE), (0, 0, 86_400), (2, 1, 7)]
            assert "user:buys:item: the time of an edge is that of its user row" in graph.column_notes
            assert any(line.endswith("rounded down, 1 rows without a time") for line in graph.column_notes)

    def test_a_time_of_its_own_stays(self, folder: Path) -> None:
        edited(folder, "graph.yaml", ("dst: item.sku", "dst: item.sku, time: at"))
        with opened(folder) as graph:
            assert [time for _, _, time in edges(graph.relations[0].edges)] == [5, 6, 7, 8]
            assert not graph.relations[0].is_row_timed
            assert "edges: user_id and sku of orders.csv, at is the time" in graph.column_notes
        with opened(folder, edge_time="none") as graph:
            assert not graph.relations[0].edges.has_times

    def test_a_reverse_edge_has_the_time_of_its_own_source_row(self, folder: Path) -> None:
        options = PrepareOptions(add_reverse=True)
        with opened(folder) as graph:
            back = plan_relations(graph, options)[1].source
            assert (back.relation, back.is_row_timed, back.edges.has_times) == (BACK, True, False)
            assert edges(back.edges) == [(0, 2, None), (1, 1, None), (0, 0, None), (1, 2, None)]
        edited(folder, "graph.yaml", ("key: sku", "key: sku, time: made"))
        with opened(folder) as graph:
            back = plan_relations(graph, options)[1].source
            assert edges(back.edges) == [(0, 2, 10), (1, 1, 20), (0, 0, 10), (1, 2, 20)]
        edited(folder, "graph.yaml", ("dst: item.sku", "dst: item.sku, time: at"))
        with opened(folder) as graph:
            back = plan_relations(graph, options)[1].source
            assert [time for _, _, time in edges(back.edges)] == [5, 6, 7, 8]  # the time of the event

    def test_both_directions_of_one_edge_are_refused(self, folder: Path) -> None:
        edited(
            folder, "graph.yaml", ("dst: item.sku", "dst: user.sku"), ("tables:", "dangling: drop\ntables:")
        )
        with (
            opened(folder) as graph,
            pytest.raises(
                ConfigError,
                match=r"--symmetrize: the edges of .*orders\.csv.* have the times of their source rows",
            ),
        ):
            plan_relations(graph, PrepareOptions(symmetrize=True))

    def test_an_edge_split_is_refused(self, folder: Path) -> None:
        source = open_source(f"tables:{folder}", SourceOptions())
        with pytest.raises(ConfigError, match=r"^--edge-split: the edges of .*orders\.csv.* different times"):
            prepare(source, folder / "out", PrepareOptions(edge_split=edge_shares("60/20/20")))
        assert not (folder / "out").exists()

    def test_nodes_that_edges_made_have_no_time(self, folder: Path) -> None:
        text = (folder / "graph.yaml").read_text().partition("tables:")[0]
        (folder / "graph.yaml").write_text(f"{text}dangling: node\n")
        edited(folder, "orders.csv", ("b,y,6", "d,y,6"))
        with opened(folder, needs_labels=False) as graph:
            assert graph.nodes[0].row_times is not None
            assert graph.nodes[0].row_times.tolist() == [86_400, NONE, 7, NONE]
            assert edges(graph.relations[0].edges)[1] == (3, 1, NONE)


class TestRefusals:
    @pytest.mark.parametrize(
        ("file", "old", "new", "text"),
        [
            ("train.csv", "b,1970-01-03", "b,soon", "train.csv: row 0, column 'date' is 'soon'; times are texts"),
            ("valid.csv", "a,7.5", "a,", "valid.csv: row 1, column 'date' is missing; each row to predict has a time"),
            ("users.csv", "1970-01-02", "1e15", "users.csv: row 0, column 'signup' is "),
            ("valid.csv", "c,1970", ",1970", "valid.csv, column 'user_id': row 0 has no key; every row needs one"),
            ("train.csv", "no,2,", "no,-2,", "train.csv, column 'w': row 1 has weight -2.0; weights are finite and at"),
            ("train.csv", "no,2,", "no,,", "train.csv, column 'w': row 1 has weight nan; weights are finite and at"),
            ("valid.csv", "maybe", "3", "valid.csv holds integers in column 'left', and train.csv strings; a"),
            ("graph.yaml", "test.csv", "gone.csv", "graph.yaml: tables.churn.test.file: "),
            ("graph.yaml", "signup", "born", "graph.yaml: nodes.user.time is 'born'; the columns of "),
            ("graph.yaml", "date, label: left, w", "day, label: left, w", "tables.churn.train.time is 'day'; the"),
            ("graph.yaml", "weight: w", "weight: v", "tables.churn.train.weight is 'v'; the columns of"),
            ("graph.yaml", "left, weight", "gone, weight", "tables.churn.train.label is 'gone'; the columns of"),
            ("graph.yaml", "left, weight: w", "w", "the labels of churn.valid and churn.train are described"),
            ("graph.yaml", "t.csv, node: user_id, time: date", "t.csv, node: user_id", "times and churn.test has none"),
            ("graph.yaml", "test.csv", "valid.csv", "tables.churn.test: its file is that of valid, "),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, folder: Path, file: str, old: str, new: str, text: str) -> None:
        edited(folder, file, (old, new))
        refused(folder, SourceError, text)

    def test_an_error_in_a_label_has_the_row_of_its_file(self, folder: Path) -> None:
        edited(folder, "graph.yaml", ("label: left}", "label: {column: left, as: values}}"))
        edited(folder, "graph.yaml", ("label: left, weight: w", "label: {column: left, as: values}"))
        (folder / "train.csv").write_text("user_id,date,left\na,1,1.5\nb,1,2.5\n")
        (folder / "valid.csv").write_text("user_id,date,left\na,1,1.5\nb,1,inf\n")
        refused(folder, SourceError, "valid.csv: row 1, column 'left'")

    def test_a_budget_that_is_too_small_names_one_that_is_enough(self, folder: Path) -> None:
        rows = "".join(f"{'abc'[i % 3]},{i},no,1,n\n" for i in range(500_000))
        (folder / "train.csv").write_text("user_id,date,left,w,note\n" + rows)
        source: Any = open_source(f"tables:{folder}", SourceOptions())
        with pytest.raises(
            BudgetError, match=r"the rows of .*tables\.churn take 47 MB besides 24 B"
        ) as caught:
            prepare(source, folder / "out", PrepareOptions(memory_budget_bytes=28 * 10**6))
        assert not (folder / "out").exists()
        enough = re.search(r"Raise --memory-budget to at least ([\d.]+ MB)$", str(caught.value))
        assert enough is not None
        with opened(folder, budget=parse_bytes(enough[1])) as graph:
            assert len(graph.tables[0].nodes) == 500_000
