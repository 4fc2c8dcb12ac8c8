"""Folders in RelBench's format as graphs: rows, times, foreign keys, columns and tasks."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from relbench_folders import (
    CUSTOMER_TASKS,
    DAY,
    KINDS,
    START,
    TEST,
    VALID,
    Table,
    write_database,
    write_shop,
    write_task,
)

from gloader.convert.csc.edge_rules import plan_relations
from gloader.convert.options import PrepareOptions, SourceOptions, edge_shares
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source, source_files
from gloader.convert.source_check import check_source
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, SourceError

BUDGET = 10**8
NONE = np.iinfo(np.int64).min


def opened(folder, **options):
    source = open_source(f"relbench:{folder}", SourceOptions(memory_budget_bytes=BUDGET, **options))
    check_source(source)
    return source


def rows(stream):
    return np.concatenate(list(stream.chunks(2)))


def edges(source, relation):
    (stream,) = [each.edges for each in source.relations if each.relation == relation]
    return [
        (int(src), int(dst), None if chunk.time is None else int(chunk.time[row]))
        for chunk in stream.chunks(2)
        for row, (src, dst) in enumerate(zip(chunk.src, chunk.dst, strict=True))
    ]


def nodes(source, name):
    return next(each for each in source.nodes if each.name == name)


def seconds(time):
    return int(pd.Timestamp(time).value // 10**9)


def pair(folder, *, parent=None, child=None, tasks=(), **changes):
    """Write two tables: users without a time, and visits with a time and a user."""
    users = Table(pd.DataFrame(parent or {"id": [0, 1, 2], "score": [1.0, 2.0, 3.0]}), pkey="id")
    visits = pd.DataFrame(
        child
        or {
            "user": [0.0, 2.0, np.nan, 7.0, 1.0],
            "at": [VALID - DAY, VALID, TEST, TEST + DAY, pd.NaT],
            "pages": [4, 2, 3, 1, 9],
        }
    )
    write_database(folder, {"users": users, "visits": Table(visits, time_col="at", fkeys={"user": "users"})})
    path = folder / "manifest.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | changes))
    for name, description, parts in tasks:
        write_task(folder, name, description, **parts)
    return folder


ACTIVE = {"task_type": "binary_classification", "entity_table": "users", "entity_col": "id", "target_col": "active",
          "time_col": "when"}  # fmt: skip


def active(ids, labels, when=VALID):
    return pd.DataFrame({"when": [when] * len(ids), "id": ids, "active": labels})


@pytest.fixture
def _two_rows(monkeypatch):
    """Read the files in batches of two rows, so that every reader meets several."""
    monkeypatch.setattr("gloader.convert.readers.typed_table._BATCH_NUMBERS", 2)
    monkeypatch.setattr("gloader.convert.readers.typed_table._BATCH_TEXTS", 2)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shop") / "made"
    write_shop(folder)
    return folder


@pytest.mark.usefixtures("_two_rows")
class TestRowsAndKeys:
    def test_rows_are_known_up_to_the_test_time(self, tmp_path):
        source = opened(pair(tmp_path / "made"))
        visits = nodes(source, "visits")
        # The row at the test time is known; the later one and the one without a time are not.
        assert visits.row_times.tolist() == [seconds(VALID - DAY), seconds(VALID), seconds(TEST)]
        assert source.num_nodes == {"users": 3, "visits": 3}
        assert nodes(source, "users").row_times is None
        assert nodes(source, "users").keys is None  # the keys are the nodes' ids
        assert (
            source.column_notes[2]
            == "visits: the rows of visits.parquet, 3, time at in seconds, rounded down"
        )
        assert source.unused == ("1 rows of visits after the test time", "1 rows of visits without a time")

    def test_a_foreign_key_makes_two_relations_with_the_time_of_the_source_row(self, tmp_path):
        source = opened(pair(tmp_path / "made"))
        assert edges(source, ("visits", "f2p_user", "users")) == [
            (0, 0, seconds(VALID - DAY)),
            (1, 2, seconds(VALID)),
        ]
        assert edges(source, ("users", "p2f_user", "visits")) == [(0, 0, None), (2, 1, None)]

    def test_dangling_and_missing_keys_make_no_edge_and_are_counted(self, tmp_path):
        late = {"user": [1.0, np.nan, 5.0, 3.0], "at": [VALID] * 4}
        source = opened(pair(tmp_path / "made", child=late))
        assert edges(source, ("users", "p2f_user", "visits")) == [(1, 0, None)]
        assert source.key_note == "user of visits.parquet: 1 without a key, 2 dangling, first 5 in row 2"

    def test_keys_that_are_no_row_numbers_are_found(self, tmp_path):
        folder = pair(
            tmp_path / "made",
            parent={"id": [70, -3, 11], "score": [1.0, 2.0, 3.0]},
            child={"user": [11, 70, 1, -3], "at": [VALID] * 4},
        )
        source = opened(folder)
        assert [edge[:2] for edge in edges(source, ("visits", "f2p_user", "users"))] == [
            (0, 2),
            (1, 0),
            (3, 1),
        ]
        prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=BUDGET))
        assert Dataset.open(tmp_path / "out").node_tables["users"].keys_of(np.array([1, 0])).tolist() == [
            -3,
            70,
        ]

    def test_times_are_rounded_down(self, tmp_path):
        child = {"user": [0, 0], "at": pd.to_datetime(["2020-01-01 00:00:01.9", "1969-12-31 23:59:59.5"])}
        visits = nodes(opened(pair(tmp_path / "made", child=child)), "visits")
        assert visits.row_times.tolist() == [seconds("2020-01-01") + 1, -1]

    @pytest.mark.parametrize(
        ("parent", "text"),
        [
            ({"id": [0, 2, 2]}, r"rows 1 and 2 have the primary key 2 in column 'id'"),
            ({"id": [0, np.nan, 1]}, "row 1, column 'id' is missing; every row has a primary key"),
            (
                {"id": ["a", "b", "c"]},
                r"column 'id' has type .*string; keys are whole numbers, in RelBench 0\.\.N-1",
            ),
            ({"id": [0, 1.5, 2]}, r"keys are whole numbers: .*1\.500000 was truncated"),
            ({"key": [0, 1, 2]}, r"users has the column 'id'; the columns of .*users\.parquet are key"),
        ],
    )
    def test_primary_keys_that_are_refused(self, tmp_path, parent, text):
        folder = pair(tmp_path / "made", parent=parent)
        with pytest.raises(SourceError, match=text):
            opened(folder)

    def test_a_reverse_edge_has_the_time_of_its_own_source_row(self, tmp_path):
        source = opened(pair(tmp_path / "made"))
        planned = [each.source for each in plan_relations(source, PrepareOptions(add_reverse=True))]
        assert {each.relation[1]: each.edges.has_times for each in planned} == {
            "f2p_user": True,
            "p2f_user": False,
            "rev_f2p_user": False,
            "rev_p2f_user": False,
        }
        with pytest.raises(
            ConfigError, match=r"^--edge-split: .*f2p_user.* have the times of their source rows"
        ):
            prepare(
                source,
                tmp_path / "out",
                PrepareOptions(
                    edge_split=edge_shares("60/20/20"),
                    edge_split_relation="f2p_user",
                    memory_budget_bytes=BUDGET,
                ),
            )

    def test_a_budget_that_is_too_small_names_a_sufficient_one(self, shop):
        options = SourceOptions(memory_budget_bytes=10_000)
        with pytest.raises(
            BudgetError, match=r"the times of .*orders\.parquet take .*Raise --memory-budget to at least"
        ):
            open_source(f"relbench:{shop}", options)


class TestColumns:
    def test_encoders_are_fitted_to_the_rows_up_to_the_time_of_validation(self, tmp_path):
        child = {"user": [0, 1, 2], "at": [VALID - DAY, VALID, VALID + DAY], "pages": [1.0, 3.0, 100.0]}
        visits = nodes(opened(pair(tmp_path / "made", child=child)), "visits")
        (encoder,) = visits.encoders.columns
        assert (encoder.mean, encoder.deviation) == ((2.0,), (1.0,))
        assert rows(visits.features).ravel().tolist() == [-1, 1, 98]

    def test_the_times_of_rows_and_keys_are_no_features(self, shop):
        source = opened(shop, task_tables="customer-churn")
        assert nodes(source, "orders").features.names == ("amount", "rating")
        assert nodes(source, "customers").features.names == (
            "city=Bern", "city=Lima", "city=Oslo", "age", "age=missing", "newsletter",
        )  # fmt: skip

    def test_a_table_without_columns_has_one_feature_that_is_one(self, tmp_path):
        visits = nodes(
            opened(pair(tmp_path / "made", child={"user": [0, 1, 2], "at": [VALID] * 3})), "visits"
        )
        assert rows(visits.features).tolist() == [[1], [1], [1]]

    def test_columns_that_a_chosen_task_may_not_see_are_left_out(self, shop):
        source = opened(shop)
        assert nodes(source, "orders").features.names == ("1",)
        (line,) = [line for line in source.column_notes if line.startswith("orders: ")]
        assert "amount hidden for order-rating, rating hidden for order-rating" in line
        assert "rating (integer) of orders.parquet" in source.unused


class TestTasks:
    def test_each_type_has_its_kind_of_labels(self, shop):
        tables = {table.name: table for table in opened(shop).tables}
        kinds = {"churn": "binary", "spend": "values", "favourite": "classes", "kinds": "multilabel"}
        for name in CUSTOMER_TASKS:
            for part, file in (("train", "train"), ("valid", "val"), ("test", "test")):
                table = tables[f"customer-{name}.{part}"]
                frame = pd.read_parquet(shop / "tasks" / f"customer-{name}" / f"{file}.parquet")
                assert (table.node_type, table.label_kind) == ("customers", kinds[name])
                np.testing.assert_array_equal(table.nodes, frame["customer_id"])
                np.testing.assert_array_equal(table.times, frame["timestamp"].map(seconds))
                expected = np.stack(frame[name]) if name == "kinds" else frame[name].to_numpy()
                found = table.labels if name in {"favourite", "kinds"} else table.labels[:, 0]
                np.testing.assert_array_equal(found, expected.astype(found.dtype))
                assert table.num_classes == (len(KINDS) if name in {"favourite", "kinds"} else 1)

    def test_classes_have_one_number_in_all_parts(self, shop):
        tables = {table.name: table for table in opened(shop, task_tables="order-rating").tables}
        for part, file in (("train", "train"), ("valid", "val"), ("test", "test")):
            table = tables[f"order-rating.{part}"]
            ratings = pd.read_parquet(shop / "tasks" / "order-rating" / f"{file}.parquet")["rating"]
            assert [table.label_names[label] for label in table.labels] == [str(rating) for rating in ratings]
            assert (table.num_classes, table.node_type) == (5, "orders")

    def test_rows_after_the_test_time_are_nodes_for_a_task_that_completes_them(self, shop):
        table = pd.read_parquet(shop / "db" / "orders.parquet")
        assert nodes(opened(shop, task_tables="order-rating"), "orders").num_nodes == len(table)
        assert (
            nodes(opened(shop, task_tables="customer-churn"), "orders").num_nodes
            == (table["date"] <= TEST).sum()
        )

    def test_a_recommendation_has_a_row_for_each_destination(self, shop):
        links = {link.name: link for link in opened(shop, task_tables="customer-buys").links}
        assert list(links) == ["customer-buys.train", "customer-buys.valid", "customer-buys.test"]
        frame = pd.read_parquet(shop / "tasks" / "customer-buys" / "val.parquet").explode("product_id")
        link = links["customer-buys.valid"]
        chunks = list(link.rows.chunks(7))
        assert link.relation == "customers:customer-buys:products"
        assert link.rows.num_rows == len(frame)
        assert max(chunk.num_rows for chunk in chunks) == 7
        for name, column in (("src", "customer_id"), ("dst", "product_id")):
            found = np.concatenate([getattr(chunk, name) for chunk in chunks])
            np.testing.assert_array_equal(found, frame[column].astype(int))
        assert {int(time) for chunk in chunks for time in chunk.time} == {seconds(VALID)}

    @pytest.mark.usefixtures("_two_rows")
    def test_rows_that_name_no_node_are_left_out(self, tmp_path):
        parts = {"train": active([0, 9, 2], [0, 1, 1]), "val": active([1], [1])}
        source = opened(pair(tmp_path / "made", tasks=[("active", ACTIVE, parts)]))
        table = source.tables[0]
        assert (table.nodes.tolist(), table.labels.tolist()) == ([0, 2], [[0], [1]])
        assert (
            "active.train: 2 rows of train.parquet, 1 left out that name no row of users"
            in source.column_notes
        )

    def test_a_masked_part_has_no_labels(self, tmp_path):
        parts = {"train": active([0], [0]), "val": active([1], [1]), "test": active([2], [0])[["when", "id"]]}
        source = opened(pair(tmp_path / "made", tasks=[("active", ACTIVE, parts)]))
        table = source.tables[2]
        assert (table.name, table.labels, table.label_kind, table.num_classes) == (
            "active.test",
            None,
            None,
            0,
        )
        assert "active.test: 1 rows of test.parquet, without labels" in source.column_notes

    def test_a_missing_file_names_how_to_make_it(self, tmp_path):
        parts = {"train": active([0], [0]), "val": active([1], [1])}
        window = {"kind": "forecast", "timedelta": "1 days", "sql": "SELECT 1"}
        source = opened(pair(tmp_path / "made", tasks=[("active", ACTIVE | window, parts)]))
        (text,) = [text for text in source.unused if text.startswith("active.test: ")]
        assert "test.parquet is missing; RelBench makes it: relbench.load_dataset(" in text
        assert ".load_task('active').get_table('test', mask_input_cols=False).df.to_parquet(" in text

    def test_rows_beyond_the_budget_are_refused(self, shop):
        options = SourceOptions(memory_budget_bytes=60_000, task_tables="order-rating")
        with pytest.raises(
            BudgetError, match=r"the rows of .*order-rating take .*Raise --memory-budget to at least"
        ):
            open_source(f"relbench:{shop}", options)

    def test_the_chosen_tasks(self, shop):
        source = opened(shop, task_tables="customer-churn,customer-spend")
        assert {table.name.partition(".")[0] for table in source.tables} == {
            "customer-churn",
            "customer-spend",
        }
        with pytest.raises(
            ConfigError, match=r"--task-tables customer-chrn: .* did you mean 'customer-churn'"
        ):
            opened(shop, task_tables="customer-chrn")
        with pytest.raises(
            ConfigError, match=r"--task-tables chooses tasks of relbench:DIR, and 'builtin:digits' is no such"
        ):
            open_source("builtin:digits", SourceOptions(task_tables="churn"))

    @pytest.mark.parametrize(
        ("change", "frame", "text"),
        [
            ({"task_type": "ranking"}, None, r"task_type is 'ranking'; allowed: regression, binary"),
            ({"kind": "guess"}, None, "kind is 'guess'; allowed: forecast, autocomplete, external"),
            ({"entity_table": "user"}, None, "entity_table is 'user'; did you mean 'users'"),
            (
                {"target_col": None},
                None,
                "target_col is None; a external task of type binary_classification names a",
            ),
            (
                {"remove_columns": ["score"]},
                None,
                r"remove_columns has 'score'; it is a list of \[table, column\]",
            ),
            (
                {},
                active([0, 1], [0, 2]),
                "labels of a task of type binary_classification are 0 and 1, and column",
            ),
            (
                {},
                active([0, 1], [0, 1])[["id", "active"]],
                r"train\.parquet has no column 'when'; its columns are id",
            ),
            (
                {},
                active([0, 1], [0, 1], when=None),
                "row 0, column 'when' is missing; each row of a task has a time",
            ),
        ],
    )
    def test_tasks_that_are_refused(self, tmp_path, change, frame, text):
        parts = {"train": active([0], [0]) if frame is None else frame}
        if frame is not None and len(frame.columns) == 3 and frame["when"].isna().all():
            parts["train"]["when"] = pd.to_datetime(parts["train"]["when"])
        folder = pair(tmp_path / "made", tasks=[("active", ACTIVE | change, parts)])
        with pytest.raises(SourceError, match=text):
            opened(folder)


class TestDescription:
    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (
                {"manifest_version": 2},
                "has manifest_version 2; this build reads 1, the version of RelBench 3",
            ),
            ({"tables": []}, r"tables is \[\]; it maps each table to its pkey, time_col and fkeys"),
            (
                {"tables": {"users": {"fkeys": {"a": "b"}}}},
                "fkeys of users: a names the table 'b'; allowed: users",
            ),
            (
                {"tables": {"users": {"fkeys": ["a"]}}},
                "the table 'users' is .*; it has pkey, time_col, and fkeys",
            ),
            ({"val_timestamp": "soon"}, "val_timestamp is 'soon'; it is a date such as 2005-01-01"),
            ({"tables": {"nobody": {}}}, "nobody.parquet"),
        ],
    )
    def test_descriptions_that_are_refused(self, tmp_path, change, text):
        folder = pair(tmp_path / "made", **change)
        with pytest.raises(SourceError, match=text):
            opened(folder)

    def test_options_that_name_files_or_columns_are_refused(self, tmp_path):
        text = "--labels, --edge-time: a database has its features, labels and times in its own tables"
        with pytest.raises(ConfigError, match=text):
            opened(pair(tmp_path / "made"), edge_time="at", labels=tmp_path / "y.npy")

    def test_all_files_of_the_folder_are_watched(self, tmp_path):
        folder = pair(tmp_path / "made", tasks=[("active", ACTIVE, {"train": active([0], [0])})])
        found = {
            str(path.relative_to(folder.resolve()))
            for path in source_files(f"relbench:{folder}", SourceOptions())
        }
        assert found == {
            "manifest.yaml",
            "db/users.parquet",
            "db/visits.parquet",
            "tasks/active/manifest.yaml",
            "tasks/active/train.parquet",
        }


class TestDataset:
    def test_the_tables_are_in_the_dataset(self, tmp_path, shop):
        source = opened(shop)
        report = prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=BUDGET))
        dataset = Dataset.open(tmp_path / "out")
        assert set(dataset.task_tables) == {table.name for table in source.tables}
        for given in source.tables:
            table = dataset.task_table(given.name)
            with table.open(max_bytes=BUDGET) as reader:
                found = reader.read(np.arange(table.num_rows))
            np.testing.assert_array_equal(found["nodes"], given.nodes)
            np.testing.assert_array_equal(found["times"], given.times)
            np.testing.assert_array_equal(found["labels"], given.labels)
        for each in source.nodes:
            found = dataset.node_tables[each.name].row_times
            assert (found is None) == (each.row_times is None)
            assert found is None or np.array_equal(found, each.row_times)
        assert report.links["customer-buys.train"].in_graph == 0
        links = dataset.link_tables["customer-buys.train"]
        with links.open(max_bytes=BUDGET) as reader:
            pairs = reader.read(np.arange(links.num_rows))
        (chunk,) = source.links[0].rows.chunks(BUDGET)
        np.testing.assert_array_equal(pairs.sources, chunk.src)
        np.testing.assert_array_equal(pairs.destinations, chunk.dst)
        assert (pairs.positions == -1).all()
        assert (pairs.reverses == -1).all()
        np.testing.assert_array_equal(pairs.times, chunk.time)
        assert (links.relation, links.reverse_relation) == (("customers", "customer-buys", "products"), None)
        assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == []

    def test_pairs_within_one_type_and_ends_that_are_no_nodes(self, tmp_path):
        ends = {f"{end}_entity_{word}": value for end, column in (("src", "id"), ("dst", "friend"))
                for word, value in (("table", "users"), ("col", column))}  # fmt: skip
        friends = pd.DataFrame({"id": [0, 2, 9, 1], "friend": [[1, 7], [], [0], [2, 0]]})
        parts = {"train": friends, "val": friends.assign(friend=[1, 2, 0, 9]), "test": friends[["id"]]}
        tasks = [("friends", {"task_type": "recommendation", **ends}, parts)]
        source = opened(pair(tmp_path / "made", tasks=tasks))
        assert source.column_notes[-2:] == (
            "friends.train: 3 pairs of train.parquet, 2 left out that name no row of users",
            "friends.valid: 2 pairs of val.parquet, 2 left out that name no row of users",
        )
        assert source.unused[-1].endswith("test.parquet has no column 'friend'")
        report = prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=BUDGET))
        assert report.links["friends.train"].num_rows == 3
        links = Dataset.open(tmp_path / "out").link_tables["friends.train"]
        assert (links.relation, links.reverse_relation, links.has_times) == (
            ("users", "friends", "users"), None, False,
        )  # fmt: skip
        with links.open(max_bytes=BUDGET) as reader:
            pairs = reader.read(np.arange(3))
        assert (pairs.sources.tolist(), pairs.destinations.tolist()) == ([0, 1, 1], [1, 2, 0])

    def test_rows_without_a_time_come_before_all_others(self, tmp_path):
        rated = {
            "kind": "autocomplete",
            "task_type": "regression",
            "entity_table": "visits",
            "target_col": "pages",
        }
        parts = {"train": pd.DataFrame({"at": [VALID], "primary_key": [1], "pages": [2.0]})}
        folder = pair(tmp_path / "made", tasks=[("pages", rated, parts)])
        source = opened(folder)
        assert nodes(source, "visits").row_times.tolist()[-1] == NONE
        report = prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=BUDGET))
        topology = Dataset.open(tmp_path / "out").edge_tables["visits", "f2p_user", "users"]
        assert min(part.min() for part in topology.load_graph().times.pieces()) == NONE
        assert f"times {seconds(VALID - DAY)} to {seconds(VALID)}" in report.receipt["edges read"]

    def test_an_index_is_not_rounded(self, tmp_path):
        words = [f"word {number % 100}" for number in range(500)]
        child = {"user": [0] * 500, "at": [VALID] * 500, "word": words}
        source = opened(pair(tmp_path / "made", child=child))
        assert nodes(source, "visits").encoders.columns[0].kind == "index"
        with pytest.raises(
            ConfigError, match=r"the values of 'word' \(as: index\) are rounded by --dtype float16"
        ):
            prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=BUDGET, dtype="float16"))
        assert not (tmp_path / "out").exists()


def test_a_dictionary_column_is_read_as_its_values(tmp_path):
    folder = pair(tmp_path / "made")
    path = folder / "db" / "users.parquet"
    table = pa.table({"id": [0, 1, 2], "word": pa.array(["x", "y", "x"]).dictionary_encode()})
    pq.write_table(table, path)
    assert nodes(opened(folder), "users").encoders is None  # less than 4 rows for each value
    assert START < VALID < TEST
