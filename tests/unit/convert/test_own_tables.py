"""`gloader.prepare`: the same tables as files and as streams of many programs make one dataset; the rest is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.parquet as papq
import pytest
from doc_blocks import ROOT, blocks_of

import gloader
from gloader.cli.main import main
from gloader.errors import ConfigError, GloaderError, GraphError, SourceError, StoreExistsError

USERS, ITEMS, ORDERS = 40, 9, 200
BUYS = ("user", "buys", "item")


def shop() -> dict[str, pa.Table]:
    """Return tables of users, items and orders, with texts as keys."""
    random = np.random.default_rng(7)
    users = pa.table(
        {
            "user_id": [f"u{number:03}" for number in random.permutation(USERS)],
            "age": random.integers(18, 80, USERS),
            "city": random.choice(["Oslo", "Rome", "a,b"], USERS),
            "churned": random.random(USERS) < 0.3,
        }
    )
    items = pa.table({"sku": [f"i-{number}" for number in range(ITEMS)], "price": random.random(ITEMS)})
    orders = pa.table(
        {
            "user_id": random.choice(users["user_id"].to_pylist(), ORDERS),
            "sku": random.choice(items["sku"].to_pylist(), ORDERS),
            "amount": random.integers(1, 9, ORDERS),
        }
    )
    return {"users": users, "items": items, "orders": orders}


def prepared(out: Path, users: Any, items: Any, orders: Any, **options: Any) -> gloader.Dataset:
    return gloader.prepare(
        nodes={
            "user": {
                "table": users,
                "key": "user_id",
                "columns": ["age", {"name": "city", "as": "category"}],
                "labels": "churned",
            },
            "item": {"table": items, "key": "sku", "columns": ["price"]},
        },
        edges={BUYS: {"table": orders, "src": "user_id", "dst": "sku", "weight": "amount"}},
        out=out,
        **options,
    )


def in_csv(folder: Path, table: pa.Table) -> Path:
    pacsv.write_csv(table, folder / "table.csv")
    return folder / "table.csv"


def in_parts(folder: Path, table: pa.Table) -> str:
    (folder / "parts").mkdir()
    half = table.num_rows // 2
    papq.write_table(table.slice(0, half), folder / "parts" / "part-0.parquet")
    papq.write_table(table.slice(half), folder / "parts" / "part-1.parquet")
    return str(folder / "parts")


def of_duckdb(folder: Path, table: pa.Table) -> Any:
    duckdb = pytest.importorskip("duckdb")
    papq.write_table(table, folder / "table.parquet")
    return duckdb.read_parquet(str(folder / "table.parquet")).filter("true")


def of_polars(folder: Path, table: pa.Table) -> Any:
    return pytest.importorskip("polars").from_arrow(table)


def in_dataset(folder: Path, table: pa.Table) -> Any:
    return pads.dataset(in_parts(folder, table))


FORMS = {
    "csv": in_csv,
    "a folder of Parquet": in_parts,
    "a table of pyarrow": lambda folder, table: table,
    "a reader": lambda folder, table: table.to_reader(max_chunksize=7),
    "a dataset of pyarrow": in_dataset,
    "pandas": lambda folder, table: table.to_pandas(),
    "duckdb": of_duckdb,
    "polars": of_polars,
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the fingerprint of the same graph from a graph.yaml over CSV files."""
    folder = tmp_path_factory.mktemp("files")
    for name, table in shop().items():
        pacsv.write_csv(table, folder / f"{name}.csv")
    (folder / "graph.yaml").write_text(
        "nodes:\n"
        "  user: {file: users.csv, key: user_id, columns: [age, {name: city, as: category}], labels: churned}\n"
        "  item: {file: items.csv, key: sku, columns: [price]}\n"
        "edges:\n"
        "  buys: {file: orders.csv, src: user.user_id, dst: item.sku, weight: amount}\n"
    )
    assert main(["prepare", str(folder / "graph.yaml"), str(folder / "out")]) == 0
    return gloader.Dataset.open(folder / "out").fingerprint


@pytest.mark.parametrize("form", FORMS)
def test_the_same_tables_in_any_form_make_one_dataset(tmp_path: Path, expected: str, form: str) -> None:
    given = {}
    for name, table in shop().items():
        folder = tmp_path / name
        folder.mkdir()
        given[name] = FORMS[form](folder, table)
    dataset = prepared(tmp_path / "out", **given)
    assert dataset.fingerprint == expected
    assert dataset.keys_of([0, 1]).tolist() == shop()["users"]["user_id"].to_pylist()[:2]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["items", "orders", "out", "users"]


def test_the_receipt_says_what_streams_took(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        dataset = prepared(tmp_path / "out", **shop())
    columns = dataset.metadata["receipt"]["columns"]
    for text in (columns, caplog.text):
        assert "nodes['user']: a stream of 40 rows, kept in " in text
        assert "edges['user:buys:item']: a stream of 200 rows, kept in " in text
    # No split was given, and no relation ends at the users, which are warnings.
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert "no neighbours: no relation ends at user, so its nodes gather nothing from others" in warnings[0]
    assert "60/20/20 at random by seed 0" in warnings[1]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        prepared(tmp_path / "reversed", **shop(), add_reverse=True)
    assert "no neighbours" not in caplog.text


def test_tables_alone_are_one_type_with_keys_of_a_known_name(tmp_path: Path) -> None:
    nodes = pa.table({"user_id": ["c", "a", "b"], "age": [1, 2, 3]})
    edges = pa.table({"dst": ["a", "b", "b"], "src": ["c", "a", "c"]})
    dataset = gloader.prepare(nodes=nodes, edges=edges, out=tmp_path / "out", edge_split=(0.4, 0.3, 0.3))
    assert dataset.node_types == ("node",)
    assert dataset.keys_of([0, 1, 2], "node").tolist() == ["c", "a", "b"]


def test_without_tables_of_nodes_the_edges_make_them(tmp_path: Path) -> None:
    edges = pa.table({"src": ["c", "a", "c"], "dst": ["a", "b", "b"]})
    dataset = gloader.prepare(edges=edges, out=tmp_path / "out", edge_split="40/30/30")
    assert dataset.keys_of([0, 1, 2], "node").tolist() == ["c", "a", "b"]


def test_one_type_may_have_a_name_and_a_mapping(tmp_path: Path) -> None:
    nodes = {"page": {"table": pa.table({"url": ["x", "y"], "v": [1.0, 2.0], "k": [0, 1]}), "key": "url"}}
    nodes["page"] |= {"columns": ("v",), "labels": "k"}
    dataset = gloader.prepare(
        nodes=nodes, edges=pa.table({"from": ["x"], "to": ["y"]}), out=tmp_path / "out", name="links"
    )
    assert dataset.kind == "homogeneous"
    assert dataset.name == "links"
    assert dataset.to_numpy()["features"].tolist() == [[1.0], [2.0]]


def test_a_stream_for_two_entries_is_read_once(tmp_path: Path) -> None:
    reader = pa.table({"id": ["a", "b"], "boss": ["b", "b"], "y": [0, 1]}).to_reader()
    dataset = gloader.prepare(
        nodes={"person": {"table": reader, "key": "id", "labels": "y", "columns": ["y"]}},
        edges={"person:obeys:person": {"table": reader, "src": "id", "dst": "boss"}},
        out=tmp_path / "out",
    )
    assert dataset.num_edges == 2


def test_plain_ids_and_arrays_work_beside_streams(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 1, 1]))
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    dataset = gloader.prepare(
        nodes={"paper": {"features": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}},
        edges={("paper", "cites", "paper"): pa.table({"src": edges[0], "dst": edges[1]})},
        out=tmp_path / "out",
    )
    same = gloader.Dataset.from_numpy_hetero(
        tmp_path / "same",
        edges={("paper", "cites", "paper"): edges},
        features={"paper": np.eye(3, dtype=np.float32)},
        labels={"paper": np.array([0, 1, 1])},
    )
    assert dataset.fingerprint == same.fingerprint
    assert "a stream of 3 rows, kept in " in dataset.metadata["receipt"]["columns"]


def test_options_reach_the_conversion(tmp_path: Path) -> None:
    tables = shop()
    tables["orders"] = pa.concat_tables(
        [tables["orders"], pa.table({"user_id": ["nobody"], "sku": ["i-1"], "amount": [1]})]
    )
    with pytest.raises(SourceError, match=r"edges\['user:buys:item'\], column 'user_id'.*'nobody'"):
        prepared(tmp_path / "out", **tables)
    dataset = prepared(
        tmp_path / "out",
        **tables,
        dangling="drop",
        add_reverse=True,
        memory_budget="200MB",
        overwrite=True,
        dtype="float16",
    )
    assert [str(relation[1]) for relation in dataset.relations] == ["buys", "rev_buys"]
    assert dataset.edge_tables[BUYS].num_edges == ORDERS
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


class Broken:
    """A stream that fails at its second batch."""

    def __init__(self) -> None:
        self.num_reads = 0

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        self.num_reads += 1

        def batches() -> Any:
            yield pa.record_batch({"src": ["a"], "dst": ["b"]})
            raise OSError("the server is gone")

        schema = pa.schema({"src": pa.string(), "dst": pa.string()})
        return pa.RecordBatchReader.from_batches(schema, batches()).__arrow_c_stream__()


def test_a_failing_stream_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"edges\['node:to:node'\]: the stream failed after 1 rows"):
        gloader.prepare(edges=Broken(), out=tmp_path / "out", edge_split="80/10/10")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_dataset_is_refused_before_a_stream_is_read(tmp_path: Path) -> None:
    prepared(tmp_path / "out", **shop())
    stream = Broken()
    with pytest.raises(StoreExistsError, match="out"):
        gloader.prepare(edges=stream, out=tmp_path / "out", edge_split="80/10/10")
    assert stream.num_reads == 0


NODES = pa.table({"name": ["a", "b"], "y": [0, 1]})
EDGES = pa.table({"src": ["a"], "dst": ["b"]})


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (
            {"nodes": NODES, "edges": EDGES},
            ConfigError,
            r"nodes\['node'\] has the columns name, y; name the one",
        ),
        (
            {"nodes": pa.table({"user_id": ["a"], "city_id": ["b"]}), "edges": EDGES},
            ConfigError,
            r"nodes\['node'\] has the columns user_id, city_id; name the one",
        ),
        (
            {"nodes": {"user": {"tabel": NODES}}, "edges": EDGES},
            ConfigError,
            r"nodes\['user'\] has the key 'tabel', which no entry has; did you mean 'table'\?",
        ),
        (
            {"edges": {BUYS: {"src": ["a"], "dst": ["b"]}}},
            SourceError,
            r"gloader.prepare: edges.user:buys:item has no file",
        ),
        (
            {"nodes": {"user": {"table": NODES, "file": "users.csv"}}, "edges": EDGES},
            ConfigError,
            r"nodes\['user'\] has table and file; give one of them",
        ),
        (
            {"nodes": {"user": {"table": NODES, "key": "nmae"}}, "edges": EDGES},
            SourceError,
            r"gloader.prepare: nodes.user.key is 'nmae'; the columns of nodes\['user'\] are name, y",
        ),
        ({"edges": 7}, SourceError, r"edges\['node:to:node'\] is a int; give a table or a stream of Arrow"),
        ({"edges": {("a", "b"): EDGES}}, ConfigError, "names no relation"),
        (
            {"nodes": {"a": {"table": NODES, "key": "name"}, "b": None}, "edges": EDGES},
            ConfigError,
            r"name the relation: edges=\{\('a', 'to', 'b'\): TABLE\}",
        ),
        (
            {"edges": pa.table({"alpha": ["a"], "beta": ["b"]})},
            SourceError,
            r"edges\['node:to:node'\].*alpha, beta.*src: COLUMN, dst: COLUMN",
        ),
        ({"edges": EDGES}, SourceError, "gloader.prepare has no labels"),
        ({"edges": EDGES.slice(0, 0), "edge_split": "80/10/10"}, SourceError, "gloader.prepare has no nodes"),
        (
            {
                "nodes": {"user": {"table": pa.table({"id": [1, 0], "y": [0, 1]}), "labels": "y"}},
                "edges": EDGES,
            },
            SourceError,
            r"nodes.user: nodes\['user'\] has the column 'id', and the entry names no key.*write key: 'id'",
        ),
        (
            {"nodes": {"user": {"table": pd.DataFrame({"y": [0, 1]}, index=[7, 5])}}, "edges": EDGES},
            SourceError,
            r"has the column '__index_level_0__', and the entry names no key",
        ),
        (
            {"nodes": {"user": {"table": pd.DataFrame({"y": [0, 1, 2]})[1:]}}, "edges": EDGES},
            SourceError,
            r"has a pandas index of range\(1, 3\), and the entry names no key",
        ),
        (
            {"nodes": {"user": {"num_nodes": 2}}, "edges": EDGES, "edge_split": "80/10/10"},
            GraphError,
            r"column 'src' holds texts such as 'a'",
        ),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        gloader.prepare(**given, out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_slip_in_a_keyword_is_answered(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'memory_budgett'; did you mean 'memory_budget'"):
        gloader.prepare(edges=EDGES, out=tmp_path / "out", memory_budgett="1GB")


def test_a_named_index_of_pandas_is_a_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"y": [0, 1], "x": [0.5, 1.5]}, index=pd.Index(["b", "a"], name="user_id"))
    dataset = gloader.prepare(
        nodes={"user": {"table": frame, "key": "user_id", "labels": "y", "columns": ["x"]}},
        edges=pd.DataFrame({"src": ["a"], "dst": ["b"]}),
        out=tmp_path / "out",
    )
    assert dataset.keys_of([0, 1]).tolist() == ["b", "a"]


@pytest.mark.parametrize("package", ["duckdb", "polars"])
def test_the_lines_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in blocks_of(ROOT / "docs" / "own-data.md") if block.language == "python"]
    blocks[0].run({})  # writes the three files
    (block,) = (each for each in blocks if each.note == "run by" and f"import {package}" in each.text)
    names: dict[str, Any] = {}
    block.run(names)
    dataset = names["dataset"]
    assert dataset.node_types == ("user", "item")
    assert dataset.edge_tables[BUYS].num_edges == 24000
    dataset.close()


class Lazy:
    """A query that is not run yet, as a LazyFrame of polars or a connection of DuckDB."""

    def fetch_record_batch(self) -> None: ...


def test_a_query_that_is_not_run_is_refused_with_its_method(tmp_path: Path) -> None:
    with pytest.raises(
        SourceError, match=r"is a Lazy; give .* Its method fetch_record_batch\(\) returns one"
    ):
        gloader.prepare(edges=Lazy(), out=tmp_path / "out")


def test_an_index_that_counts_the_rows_needs_no_key(tmp_path: Path) -> None:
    frame = pd.DataFrame({"Unnamed: 0": [0, 1, 2], "y": [0, 1, 1], "x": [1.0, 2.0, 3.0]})
    dataset = gloader.prepare(
        nodes={"user": {"table": frame, "labels": "y", "columns": ["x"]}},
        edges={("user", "knows", "user"): pa.table({"src": [0, 1], "dst": [2, 2]})},
        out=tmp_path / "out",
    )
    assert dataset.to_numpy()["features"]["user"].tolist() == [[1.0], [2.0], [3.0]]


class TestTasks:
    """`tables=` has the tasks of a ``graph.yaml``."""

    @pytest.fixture
    def parts(self) -> dict[str, pa.Table]:
        train = {
            "user_id": ["u000", "u003", "u000"],
            "at": [5, 6, 7],
            "y": ["a", "b", None],
            "w": [0.5, 1.0, 2.0],
        }
        return {"train": pa.table(train), "test": pa.table({"user_id": ["u001"], "at": [8]})}

    @staticmethod
    def made(out: Path, users: Any, orders: Any, **tables: Any) -> gloader.Dataset:
        entries = {part: {"table": table, "node": "user_id", "time": "at"} for part, table in tables.items()}
        entries["train"] |= {"label": "y", "weight": "w"}
        return gloader.prepare(
            nodes={"user": {"table": users, "key": "user_id", "time": "age", "columns": ["age"]}},
            edges={"buys": {"table": orders, "src": "user.user_id", "dst": "item.sku"}},
            tables={"task": {"type": "user", **entries}},
            dangling="drop",
            out=out,
        )

    def test_streams_and_files_make_one_dataset(self, tmp_path: Path, parts: dict[str, pa.Table]) -> None:
        given = shop()
        (tmp_path / "files").mkdir()
        for name, table in {**given, **parts}.items():
            pacsv.write_csv(table, tmp_path / "files" / f"{name}.csv")
        files = {name: tmp_path / "files" / f"{name}.csv" for name in ("train", "test")}
        streams = {name: table.to_reader() for name, table in parts.items()}
        of_files = self.made(tmp_path / "a", given["users"], given["orders"], **files)
        of_streams = self.made(tmp_path / "b", given["users"], given["orders"], **streams)
        assert of_files.fingerprint == of_streams.fingerprint
        train, test = of_streams.task_tables.values()
        assert (train.num_rows, train.label_names, train.has_weights) == (3, ("a", "b"), True)
        assert (test.num_rows, test.label_kind, test.has_times) == (1, None, True)
        assert of_streams.node_tables["user"].has_row_times
        with train.open(max_bytes=10**6) as rows:
            keys = of_streams.keys_of(rows.read(np.arange(3))["nodes"], "user")
        assert keys.tolist() == ["u000", "u003", "u000"]

    @pytest.mark.parametrize("order", ["none", "degree"])
    def test_rows_and_edges_keep_their_times_in_any_order_of_nodes(self, tmp_path: Path, order: str) -> None:
        random = np.random.default_rng(0)
        when = [None if node % 7 == 0 else node * node % 83 for node in range(50)]
        keys, rows = np.arange(50) + 100, random.integers(0, 50, 20)
        dataset = gloader.prepare(
            nodes={
                "user": {
                    "table": pa.table({"id": keys, "at": when}),
                    "key": "id",
                    "time": "at",
                    "columns": ["id"],
                }
            },
            edges={
                ("user", "knows", "user"): pa.table(
                    {"src": random.integers(100, 150, 300), "dst": random.integers(100, 150, 300)}
                )
            },
            tables={"task": {"type": "user", "train": {"table": pa.table({"id": rows + 100}), "node": "id"}}},
            order=order,
            out=tmp_path / "out",
        )
        arrays = dataset.to_numpy()
        known = [np.iinfo(np.int64).min if time is None else time for time in when]
        nodes = arrays["features"][:, 0].astype(np.int64) - 100  # each node's row in the table
        assert (nodes.tolist() == list(range(50))) == (order == "none")
        assert arrays["row_time"].tolist() == [known[node] for node in nodes]
        np.testing.assert_array_equal(arrays["edge_time"], arrays["row_time"][arrays["indices"]])
        assert nodes[arrays["tables"]["task.train"]["nodes"]].tolist() == rows.tolist()

    @pytest.mark.parametrize(
        ("tables", "text"),
        [
            ([], ""),
            (
                [3],
                r"gloader\.prepare: tables is \[3\]; it must list tasks, each with a type and the parts train,",
            ),
            ({"task": 3}, r"gloader\.prepare: tables\.task is 3; it must have type, train, valid, test"),
            (
                {"task": {"type": "user", "train": "t.csv"}},
                r"tables\.task\.train has no node; a part is \{file: TABLE,",
            ),
            (
                {"task": {"type": "user", "train": {"tabel": 3}}},
                r"tables\['task'\]\['train'\] has the key 'tabel'",
            ),
        ],
    )
    def test_what_is_wrong_is_named_by_its_entry(self, tmp_path: Path, tables: Any, text: str) -> None:
        given = shop()
        nodes = {"user": {"table": given["users"], "key": "user_id", "labels": "churned", "columns": ["age"]}}
        edges = {"buys": {"table": given["orders"], "src": "user.user_id", "dst": "item.sku"}}
        if not text:
            assert not gloader.prepare(
                nodes=nodes, edges=edges, tables=tables, out=tmp_path / "out"
            ).task_tables
            return
        with pytest.raises(GloaderError, match=text):
            gloader.prepare(nodes=nodes, edges=edges, tables=tables, out=tmp_path / "out")
        assert not list(tmp_path.iterdir())
