"""Tables whose nodes have keys: one dataset from any format, the right edges behind the keys, and clear refusals."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from gloader.cli.main import main
from gloader.convert.numbered_graph import NumberedGraph
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, GraphError, ShapeError, SourceError, StoreExistsError

N, E = 40, 300
CITIES = ("Oslo", "Paris", "Rome")


def tables(*, seed=0, rename=lambda key: key):
    """Return the users, their follows and their orders as pyarrow tables; ``rename`` changes each user's key."""
    rng = np.random.default_rng(seed)
    keys = [rename(f"u{number:03d}") for number in rng.permutation(1000)[:N]]
    users = pa.table(
        {
            "user_id": keys,
            "age": rng.integers(18, 80, N),
            "city": [CITIES[i] for i in rng.integers(0, 3, N)],
            "churned": rng.integers(0, 2, N).astype(bool),
            "fold": rng.permutation(np.arange(N) % 5),
        }
    )
    ends = rng.integers(0, N, (2, E))
    follows = pa.table(
        {
            "follower": [keys[i] for i in ends[0]],
            "followee": [keys[i] for i in ends[1]],
            "strength": np.round(rng.random(E), 3).astype(np.float32),
            "since": rng.integers(0, 10**6, E),
            "kind": [("near", "far")[i] for i in rng.integers(0, 2, E)],
        }
    )
    orders = pa.table(
        {
            "buyer": [keys[i] for i in rng.integers(0, N, E)],
            "sku": [f"sku {i}" for i in rng.integers(0, 12, E)],
            "price": np.round(100 * rng.random(E), 2),
        }
    )
    return {"users": users, "follows": follows, "orders": orders}


USER = "{file: users%s, key: user_id, columns: [age, {name: city, as: category}], labels: churned, split: %s}"
SPLIT = "{column: fold, train: [0, 1, 2], valid: 3, test: 4}"
FOLLOWS = "{file: follows%s, src: user.follower, dst: user.followee, weight: strength, time: since%s}"
ORDERS = "{file: orders%s, src: user.buyer, dst: item.sku, columns: [price]}"


def one_type(form=".csv", *, split=SPLIT, more=", columns: [{name: kind, as: category}]", top=""):
    return f"name: shop\n{top}nodes:\n  user: {USER % (form, split)}\nedges:\n  follows: {FOLLOWS % (form, more)}\n"


def two_types(form=".csv", *, item="", top=""):
    return (
        f"name: shop\n{top}nodes:\n  user: {USER % (form, SPLIT)}\n{item}edges:\n  follows: {FOLLOWS % (form, '')}\n"
        f"  buys: {ORDERS % form}\n"
    )


def as_csv(table, path):
    pc.write_csv(table, path)


def as_gz(table, path):
    with gzip.open(path, "wb") as file:
        pc.write_csv(table, file)


def as_parts(table, path):
    path.mkdir()
    for number in range(3):
        rows = table.slice(
            number * table.num_rows // 3, (number + 1) * table.num_rows // 3 - number * table.num_rows // 3
        )
        pq.write_table(rows, path / f"part-{number}.parquet")
    (path / "_SUCCESS").touch()


def as_parquet(table, path):
    pq.write_table(table, path, row_group_size=37)


def as_arrow(table, path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=41)


FORMS = {
    ".csv": as_csv,
    ".csv.gz": as_gz,
    "/": as_parts,
    ".parquet": as_parquet,
    ".arrow": as_arrow,
}


def written(folder, yaml, given=None, *, form=".csv"):
    """Write tables in a format, with a description, and return the folder."""
    folder.mkdir(exist_ok=True)
    for name, table in (given or tables()).items():
        FORMS[form](table, folder / f"{name}{form.rstrip('/')}")
    (folder / "graph.yaml").write_text(yaml)
    return folder


def made(folder, out, *, source=None, **options):
    """Prepare a folder, and return the dataset and its receipt."""
    given = {"memory_budget_bytes": 10**8} | options
    report = prepare(
        open_source(f"tables:{folder}", source or SourceOptions(memory_budget_bytes=10**8)),
        out,
        PrepareOptions(**given),
    )
    return Dataset.open(out), report.receipt


def pairs_of(dataset, relation=None):
    """Return the edges of a relation as sorted rows of keys and the weight."""
    table = next(iter(dataset.edge_tables.values())) if relation is None else dataset.edge_tables[relation]
    arrays = dataset.to_numpy()
    if dataset.kind == "homogeneous":
        dst = np.repeat(np.arange(dataset.num_nodes), np.diff(arrays["indptr"]))
        ends, weight = np.stack([arrays["indices"], dst]), arrays.get("edge_weight")
    else:
        ends, weight = arrays["edges"][relation], arrays.get("edge_weight", {}).get(relation)
    first, last = (None, None) if dataset.kind == "homogeneous" else table.relation[::2]
    columns = [dataset.keys_of(ends[0], first), dataset.keys_of(ends[1], last)]
    columns += [] if weight is None else [np.round(weight, 3).tolist()]
    return sorted(zip(*columns, strict=True))


@pytest.fixture(scope="module")
def csv_folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("csv") / "shop", one_type())


def no_residue(*folders):
    for folder in folders:
        assert not [path for path in folder.iterdir() if path.name.startswith((".", "gloader-"))]


def test_a_graph_of_one_type_has_the_edges_of_its_keys(tmp_path, csv_folder):
    given = tables()
    dataset, receipt = made(csv_folder, tmp_path / "out")
    assert dataset.kind == "homogeneous"
    follows = given["follows"].to_pydict()
    wanted = zip(
        follows["follower"], follows["followee"], np.round(follows["strength"], 3).tolist(), strict=True
    )
    assert [row[:2] for row in pairs_of(dataset)] == [row[:2] for row in sorted(wanted)]
    users = given["users"].to_pydict()
    assert dataset.keys_of(np.arange(N)).tolist() == users["user_id"]
    assert dataset.ids_of(users["user_id"]).tolist() == list(range(N))
    rows = dataset.to_numpy()["features"]
    assert rows[:, 0].tolist() == users["age"]
    assert [CITIES[i] for i in rows[:, 1:].argmax(axis=1)] == users["city"]
    assert dataset.labels.tolist() == [int(each) for each in users["churned"]]
    assert dataset.label_names == ("false", "true")
    folds = np.array(users["fold"])
    assert sorted(dataset.train.tolist()) == np.flatnonzero(folds < 3).tolist()
    assert sorted(dataset.test.tolist()) == np.flatnonzero(folds == 4).tolist()
    assert receipt["keys"] == "user_id of users.csv, text, 40"
    no_residue(tmp_path, csv_folder)


def test_edge_features_and_times_stay_with_their_edges(tmp_path, csv_folder):
    dataset, _ = made(csv_folder, tmp_path / "out")
    follows = tables()["follows"].to_pydict()
    arrays = dataset.to_numpy()
    dst = np.repeat(np.arange(N), np.diff(arrays["indptr"]))
    # The categories of the column ``kind`` are far and near, in this order.
    kinds = np.array(["far", "near"])[arrays["edge_features"].argmax(axis=1)]
    found = sorted(
        zip(
            dataset.keys_of(arrays["indices"]),
            dataset.keys_of(dst),
            arrays["edge_time"].tolist(),
            kinds,
            strict=True,
        )
    )
    columns = ("follower", "followee", "since", "kind")
    assert found == sorted(zip(*(follows[name] for name in columns), strict=True))


@pytest.mark.parametrize("yaml", [one_type, two_types])
def test_the_same_tables_in_any_format_give_one_dataset(tmp_path, yaml):
    prints = {}
    for number, form in enumerate(FORMS):
        folder = written(tmp_path / f"folder-{number}", yaml(form), form=form)
        prints[form], _ = made(folder, tmp_path / f"out-{number}")
    assert len({dataset.fingerprint for dataset in prints.values()}) == 1


@pytest.mark.parametrize("budget", [60_000_000, 10**8, 10**9])
def test_the_memory_budget_changes_nothing(tmp_path, csv_folder, budget):
    dataset, _ = made(csv_folder, tmp_path / "out", memory_budget_bytes=budget)
    assert dataset.fingerprint == made(csv_folder, tmp_path / "other")[0].fingerprint


def test_other_keys_give_the_same_graph_through_the_map(tmp_path, csv_folder):
    def rename(key):
        return f"{key[::-1]}@{ord(key[1]) * 7919}"

    other = written(tmp_path / "other", one_type(), tables(rename=rename))
    first, second = made(csv_folder, tmp_path / "out")[0], made(other, tmp_path / "out2")[0]
    arrays, others = first.to_numpy(), second.to_numpy()
    for name in ("indptr", "indices", "edge_weight", "edge_time", "features", "labels"):
        assert np.array_equal(arrays[name], others[name])
    assert [rename(key) for key in first.keys_of(np.arange(N))] == second.keys_of(np.arange(N)).tolist()


def test_types_without_a_table_get_the_keys_of_the_edges(tmp_path):
    folder = written(tmp_path / "shop", two_types())
    dataset, receipt = made(folder, tmp_path / "out")
    orders = tables()["orders"].to_pydict()
    assert dataset.kind == "hetero"
    assert dataset.keys_of(np.arange(12), "item").tolist() == list(dict.fromkeys(orders["sku"]))
    assert pairs_of(dataset, ("user", "buys", "item")) == sorted(
        zip(orders["buyer"], orders["sku"], strict=True)
    )
    assert receipt["keys"] == (
        "user: user_id of users.csv, text, 40; item: of the edges, in order of first appearance, text, 12"
    )


def test_without_any_table_of_nodes_the_keys_of_the_edges_are_the_nodes(tmp_path):
    yaml = "edges:\n  follows: {file: follows.csv, src: user.follower, dst: user.followee}\n"
    folder = written(tmp_path / "shop", yaml)
    dataset, _ = made(
        folder, tmp_path / "out", source=SourceOptions(needs_labels=False, memory_budget_bytes=10**8)
    )
    follows = tables()["follows"].to_pydict()
    ends = [key for pair in zip(follows["follower"], follows["followee"], strict=True) for key in pair]
    assert dataset.keys_of(np.arange(dataset.num_nodes), "user").tolist() == list(dict.fromkeys(ends))


def test_types_with_and_without_keys_stand_side_by_side(tmp_path):
    given = tables()
    given["orders"] = pa.table(
        {"buyer": given["orders"]["buyer"], "item": np.arange(E) % 12, "price": given["orders"]["price"]}
    )
    yaml = two_types(item="  item: {num_nodes: 15}\n").replace("item.sku", "item.item")
    dataset, _ = made(written(tmp_path / "shop", yaml, given), tmp_path / "out")
    assert dataset.node_tables["item"].num_nodes == 15
    assert not dataset.node_tables["item"].has_keys
    src, dst = dataset.to_numpy()["edges"]["user", "buys", "item"]
    found = sorted(zip(dataset.keys_of(src, "user"), dst.tolist(), strict=True))
    assert found == sorted(
        zip(given["orders"]["buyer"].to_pylist(), (np.arange(E) % 12).tolist(), strict=True)
    )


def test_tables_of_nodes_without_keys_have_their_rows_as_ids(tmp_path):
    given = tables()
    number = {key: row for row, key in enumerate(given["users"]["user_id"].to_pylist())}
    follows = given["follows"].to_pydict()
    ends = {name: [number[key] for key in follows[name]] for name in ("follower", "followee")}
    given["follows"] = pa.table(follows | ends)
    yaml = one_type().replace("key: user_id, ", "").replace("  follows:", "  user:follows:user:")
    dataset, receipt = made(written(tmp_path / "shop", yaml, given), tmp_path / "out")
    assert not dataset.node_tables["user"].has_keys
    src, dst = dataset.to_numpy()["edges"]["user", "follows", "user"]
    assert sorted(zip(src.tolist(), dst.tolist(), strict=True)) == sorted(zip(*ends.values(), strict=True))
    assert "row i is node i, because no key is named" in receipt["columns"]
    assert "keys" not in receipt


def strangers(given):
    """Return the tables with two orders, in rows 7 and 9, and one follow by buyers that are no users."""
    orders, follows = given["orders"].to_pydict(), given["follows"].to_pydict()
    orders["buyer"][7] = orders["buyer"][9] = "nobody"
    follows["followee"][5] = "ghost"
    return given | {"orders": pa.table(orders), "follows": pa.table(follows)}


def test_a_key_that_no_node_has_is_refused_by_file_row_and_key(tmp_path):
    folder = written(tmp_path / "shop", two_types(), strangers(tables()))
    message = (
        r"follows\.csv, column 'followee': row 5 has the key 'ghost', which no row of .*users\.csv, column 'user_id' "
        "has; add the node, or say what becomes of such"
    )
    with pytest.raises(SourceError, match=message):
        made(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    no_residue(tmp_path)


def test_dropped_edges_leave_with_their_columns(tmp_path):
    given = strangers(tables())
    folder = written(tmp_path / "shop", two_types(top="dangling: drop\n"), given)
    dataset, receipt = made(folder, tmp_path / "out")
    orders = given["orders"].to_pydict()
    kept = [row for row in range(E) if orders["buyer"][row] != "nobody"]
    arrays = dataset.to_numpy()
    buys = ("user", "buys", "item")
    src, dst = arrays["edges"][buys]
    prices = np.round(arrays["edge_features"][buys][:, 0], 2).tolist()
    found = sorted(zip(dataset.keys_of(src, "user"), dataset.keys_of(dst, "item"), prices, strict=True))
    wanted = sorted((orders["buyer"][row], orders["sku"][row], orders["price"][row]) for row in kept)
    assert [row[:2] for row in found] == [row[:2] for row in wanted]
    assert np.allclose([row[2] for row in found], [row[2] for row in wanted], atol=1e-2)
    assert dataset.node_tables["user"].num_nodes == N
    assert (
        "dangling: 1 edges of follows.csv dropped, first 'ghost' of column 'followee' in row 5"
        in receipt["keys"]
    )
    assert (
        "dangling: 2 edges of orders.csv dropped, first 'nobody' of column 'buyer' in row 7"
        in receipt["keys"]
    )


@pytest.mark.parametrize("num_kept", [0, 9])
def test_almost_all_edges_of_a_relation_may_be_dropped(tmp_path, num_kept):
    # With few edges left, whole chunks of rows are dropped.
    given = tables()
    buyers = given["orders"]["buyer"].to_pylist()
    is_kept = np.arange(E) >= E - num_kept
    buyers = [buyer if kept else "nobody" for buyer, kept in zip(buyers, is_kept, strict=True)]
    given["orders"] = given["orders"].set_column(0, "buyer", pa.array(buyers))
    folder = written(tmp_path / "shop", two_types(top="dangling: drop\n"), given)
    dataset, receipt = made(folder, tmp_path / "out")
    arrays = dataset.to_numpy()
    buys = ("user", "buys", "item")
    assert arrays["edges"][buys].shape == (2, num_kept)
    prices = given["orders"]["price"].to_numpy()[is_kept].astype(np.float32)
    assert sorted(arrays["edge_features"][buys][:, 0]) == sorted(prices)
    assert f"dangling: {E - num_kept} edges of orders.csv dropped" in receipt["keys"]


def test_a_key_that_no_node_has_may_make_a_node(tmp_path):
    folder = written(tmp_path / "shop", two_types(top="dangling: node\n"), strangers(tables()))
    dataset, receipt = made(folder, tmp_path / "out")
    assert dataset.node_tables["user"].num_nodes == N + 2
    assert dataset.keys_of([N, N + 1], "user").tolist() == ["ghost", "nobody"]
    arrays = dataset.to_numpy()
    assert not arrays["features"]["user"][N:].any()
    assert arrays["labels"]["user"][N:].tolist() == [-1, -1]
    assert receipt["keys"].startswith(
        "user: user_id of users.csv, text, 40 and 2 made for keys of edges: features 0, no label"
    )


def changed(name, column, row, value):
    given = tables()
    values = given[name].to_pydict()
    values[column][row] = value(values) if callable(value) else value
    return given | {name: pa.table(values)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: changed("users", "user_id", 9, lambda users: users["user_id"][4]),
         r"users\.csv, column 'user_id': rows 4 and 9 both have the key 'u\d+'"),
        (lambda: changed("users", "user_id", 6, None), r"users\.csv, column 'user_id': row 6 has no key"),
        (lambda: changed("follows", "follower", 8, None), r"follows\.csv, column 'follower': row 8 has no key"),
    ],
)  # fmt: skip
def test_keys_that_are_twice_or_missing_are_named_by_file_and_row(tmp_path, given, message):
    folder = written(tmp_path / "shop", one_type(), given())
    with pytest.raises(SourceError, match=message):
        made(folder, tmp_path / "out")
    no_residue(tmp_path)


def test_features_of_an_array_lie_in_the_order_of_the_table(tmp_path):
    yaml = one_type().replace("columns: [age, {name: city, as: category}]", "features: x.npy")
    folder = written(tmp_path / "shop", yaml)
    rows = np.random.default_rng(3).random((N, 5)).astype(np.float32)
    np.save(folder / "x.npy", rows)
    dataset, _ = made(folder, tmp_path / "out")
    assert np.array_equal(dataset.to_numpy()["features"], rows)
    np.save(folder / "x.npy", rows[:-1])
    with pytest.raises(
        ShapeError, match=r"39 feature rows for 40 user nodes; rows of features lie in the order"
    ):
        made(folder, tmp_path / "other")


def test_features_with_ids_beside_a_table_of_nodes_are_refused(tmp_path):
    yaml = one_type().replace("columns: [age, {name: city, as: category}]", "features: x.csv")
    folder = written(tmp_path / "shop", yaml)
    (folder / "x.csv").write_text("id,f\n" + "".join(f"{i},0.5\n" for i in range(N)))
    with pytest.raises(
        SourceError, match=r"nodes\.user\.features: .*x\.csv has the column 'id', which may be keys or"
    ):
        made(folder, tmp_path / "out")


@pytest.mark.parametrize("order", ["degree", "community"])
def test_keys_follow_their_nodes_into_another_order(tmp_path, csv_folder, order):
    plain, _ = made(csv_folder, tmp_path / "plain")
    moved, _ = made(csv_folder, tmp_path / "out", order=order)
    assert pairs_of(moved) == pairs_of(plain)
    keys = moved.keys_of(np.arange(N))
    assert moved.ids_of(keys).tolist() == list(range(N))
    assert keys.tolist() != plain.keys_of(np.arange(N)).tolist()


def test_an_edge_split_divides_the_edges_of_keys(tmp_path, csv_folder):
    dataset, _ = made(csv_folder, tmp_path / "out", edge_split=(0.8, 0.1, 0.1))
    assert sum(table.num_rows for table in dataset.link_tables.values()) == E


def test_tables_of_links_are_refused_beside_keys(tmp_path, csv_folder):
    with pytest.raises(
        ConfigError, match=r"tables of links have node ids, and the nodes of .* have keys; divide its"
    ):
        made(csv_folder, tmp_path / "out", edge_tables=("train=links.csv",))


def test_an_existing_dataset_is_refused_before_the_keys_are_read(tmp_path, csv_folder, monkeypatch):
    made(csv_folder, tmp_path / "out")
    monkeypatch.setattr("gloader.convert.key_numbers.numbered", None)
    with pytest.raises(StoreExistsError, match="it exists already"):
        made(csv_folder, tmp_path / "out")


def test_a_budget_that_is_too_small_for_keys_names_one_that_is_enough(tmp_path, csv_folder):
    message = r"numbering the keys of 1 node type .*; ([\d.]+ [kM]B) are enough for the keys\. Raise --memory-budget"
    with pytest.raises(BudgetError, match=message) as caught:
        made(csv_folder, tmp_path / "out", memory_budget_bytes=10**6)
    # With it the keys are numbered, and the plan of the rest names what it needs.
    enough = 10**6 + caught.value.short_bytes
    with pytest.raises(BudgetError, match=r"preparing tables:.* Give memory_budget=") as caught:
        made(csv_folder, tmp_path / "out", memory_budget_bytes=enough)
    made(csv_folder, tmp_path / "out", memory_budget_bytes=enough + caught.value.short_bytes)
    no_residue(tmp_path)


_MEASURED = """
import sys
from pathlib import Path
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
shop, out, budget = sys.argv[1:]
for target in ("first", "out"):  # the first one compiles the kernels
    opened = open_source(f"tables:{shop}", SourceOptions(needs_labels=False, memory_budget_bytes=int(budget)))
    report = prepare(opened, Path(out) / target, PrepareOptions(memory_budget_bytes=int(budget)))
print(report.peak_bytes)
"""


def test_the_memory_of_a_conversion_with_keys_holds_its_budget(tmp_path):
    """In a process of its own: memory that other tests left would be freed while it is measured."""
    rng = np.random.default_rng(5)
    keys = [f"{number:032x}" for number in rng.integers(0, 2**62, 150_000)]
    shop = tmp_path / "large"
    shop.mkdir()
    users = pa.table({"id": keys, "x": rng.random(len(keys))})
    ends = [pa.array(keys).take(pa.array(rng.integers(0, len(keys), 400_000))) for _ in range(2)]
    pq.write_table(users, shop / "users.parquet")
    pq.write_table(pa.table(ends, names=["a", "b"]), shop / "edges.parquet")
    (shop / "graph.yaml").write_text(
        "nodes: {user: {file: users.parquet, key: id, columns: [x]}}\n"
        "edges: {to: {file: edges.parquet, src: user.a, dst: user.b}}\n"
    )
    budget = 46_500_000
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, shop, tmp_path, str(budget)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) <= budget
    dataset = Dataset.open(tmp_path / "out")
    some = rng.integers(0, len(keys), 1_000)
    assert dataset.keys_of(some).tolist() == [keys[i] for i in some]


def test_temporary_files_lie_where_the_user_wants_them(tmp_path, csv_folder, monkeypatch):
    spill = tmp_path / "spill"
    spill.mkdir()
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(spill))
    seen = []
    source = NumberedGraph.source

    def watched(graph):
        seen.extend(path.name for path in spill.iterdir())
        return source(graph)

    monkeypatch.setattr(NumberedGraph, "source", watched)
    made(csv_folder, tmp_path / "out")
    assert len(seen) == 1
    assert seen[0].startswith("gloader-keys-")
    assert not list(spill.iterdir())


@pytest.mark.parametrize("argument", ["tables:{}", "tables:{}/graph.yaml", "{}/graph.yaml"])
def test_a_description_is_a_source_by_its_own_path(tmp_path, csv_folder, argument, capsys):
    assert main(["prepare", argument.format(csv_folder), str(tmp_path / "out")]) == 0
    assert main(["info", str(tmp_path / "out")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "40, keys text" in shown
    assert "keys user_id of users.csv, text, 40" in shown
    assert "{'column'" not in shown


def test_training_and_predictions_by_key(tmp_path, csv_folder, capsys):
    out, run = str(tmp_path / "out"), str(tmp_path / "run")
    assert main(["prepare", f"tables:{csv_folder}", out]) == 0
    assert (
        main(
            [
                "train",
                "--dataset",
                out,
                "--out",
                run,
                "--epochs",
                "1",
                "--batch-size",
                "8",
                "--hidden",
                "4",
                "--fanout",
                "3,3",
            ]
        )
        == 0
    )
    predictions = {}
    for suffix in ("csv", "parquet", "npy"):
        path = tmp_path / f"p.{suffix}"
        assert main(["infer", "--dataset", out, "--checkpoint", run, "--out", str(path)]) == 0
        predictions[suffix] = path
    capsys.readouterr()
    table = pq.read_table(predictions["parquet"])
    assert table.column_names == ["key", "class", "name"]
    assert table["key"].to_pylist() == tables()["users"]["user_id"].to_pylist()
    assert table["class"].to_pylist() == np.load(predictions["npy"]).tolist()
    assert [("false", "true")[i] for i in table["class"].to_pylist()] == table["name"].to_pylist()
    lines = predictions["csv"].read_text().splitlines()
    assert lines[0] == '"key","class","name"'
    assert len(lines) == N + 1


def test_encoders_are_fitted_to_the_training_nodes(tmp_path):
    yaml = one_type().replace("[age, {name: city, as: category}]", "[{name: age, as: standard}]")
    dataset, _ = made(written(tmp_path / "shop", yaml), tmp_path / "out")
    users = tables()["users"].to_pydict()
    ages, is_train = np.array(users["age"]), np.array(users["fold"]) < 3
    wanted = (ages - ages[is_train].mean()) / ages[is_train].std()
    assert np.allclose(dataset.to_numpy()["features"][:, 0], wanted, atol=1e-5)
    assert np.array_equal(
        dataset.encoders().encode(pa.table({"age": users["age"]})), dataset.to_numpy()["features"]
    )


def numbered_keys(given):
    """Return the tables with whole numbers as keys of users."""
    number = {key: 10**12 + int(key[1:]) for key in given["users"]["user_id"].to_pylist()}
    columns = {"users": ["user_id"], "follows": ["follower", "followee"], "orders": ["buyer"]}
    for name, keys in columns.items():
        values = given[name].to_pydict()
        given[name] = pa.table(values | {key: [number[value] for value in values[key]] for key in keys})
    return given


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_keys_of_text_files_adapt_to_the_types_of_others(tmp_path, form):
    given = numbered_keys(tables())
    folder = written(tmp_path / "shop", one_type(form), given, form=form)
    (folder / "graph.yaml").write_text(one_type(form).replace("users" + form, "users.parquet"))
    pq.write_table(given["users"], folder / "users.parquet")
    dataset, receipt = made(folder, tmp_path / "out")
    assert dataset.keys_of(np.arange(N)).tolist() == given["users"]["user_id"].to_pylist()
    assert dataset.keys_of([0]).dtype == np.int64
    assert receipt["keys"] == "user_id of users.parquet, int64, 40"


def test_keys_of_two_types_of_columns_are_refused(tmp_path):
    folder = written(tmp_path / "shop", one_type(".parquet"), form=".parquet")
    pq.write_table(numbered_keys(tables())["users"], folder / "users.parquet")
    message = r"keys of 'user': .*users\.parquet, column 'user_id' has keys of type int64 \(integers\), and .*follows"
    with pytest.raises(SourceError, match=message):
        made(folder, tmp_path / "out")


def list_options(folder, **more):
    return SourceOptions(src="follower", dst="followee", memory_budget_bytes=10**8, **more)


def test_a_list_of_edges_takes_a_table_of_nodes(tmp_path, csv_folder):
    options = list_options(
        csv_folder,
        nodes=csv_folder / "users.csv",
        node_key="user_id",
        columns="age,city:category",
        labels=Path("churned"),
        edge_time="since",
    )
    source = open_source(f"edges:{csv_folder / 'follows.csv'}", options)
    report = prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=10**8))
    dataset, _ = made(csv_folder, tmp_path / "other")
    assert [row[:2] for row in pairs_of(Dataset.open(tmp_path / "out"))] == [
        row[:2] for row in pairs_of(dataset)
    ]
    assert np.array_equal(
        Dataset.open(tmp_path / "out").to_numpy()["features"], dataset.to_numpy()["features"]
    )
    assert report.receipt["keys"] == "user_id of users.csv, text, 40"
    assert "strength (number) of follows.csv" in report.receipt["not used"]


def test_a_list_of_edges_may_have_keys_alone(tmp_path, csv_folder):
    options = list_options(csv_folder, keys=True, needs_labels=False)
    source = open_source(f"edges:{csv_folder / 'follows.csv'}", options)
    prepare(source, tmp_path / "out", PrepareOptions(memory_budget_bytes=10**8, edge_split=(0.8, 0.1, 0.1)))
    follows = tables()["follows"].to_pydict()
    ends = [key for pair in zip(follows["follower"], follows["followee"], strict=True) for key in pair]
    assert Dataset.open(tmp_path / "out").keys_of(np.arange(N), "node").tolist() == list(dict.fromkeys(ends))


HOLDS_TEXTS = (
    r"column 'follower' holds texts such as 'u\d+'. Node ids are whole numbers from 0, and texts are keys: name the "
    r"table of nodes with --nodes FILE .* prepare a file graph.yaml with this line: {nodes: {node: {file: NODES.csv, "
    r"key: COLUMN, columns: \[COLUMN, ...\], labels: COLUMN}}, edges: {to: {file: follows.csv, src: node.follower, "
    r"dst: node.followee}}}"
)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, GraphError, HOLDS_TEXTS),
        ({"columns": "age"}, GraphError, "holds texts"),
        (
            {"columns": "age", "keys": True},
            ConfigError,
            "--columns is about a table of nodes: name it with --nodes",
        ),
        (
            {"nodes": "users.csv", "keys": True},
            ConfigError,
            "--nodes names the table of nodes, and --keys says that",
        ),
        (
            {"nodes": "users.csv", "node_key": "name"},
            SourceError,
            r"--node-key is 'name'; the columns of .*users\.csv",
        ),
        (
            {"nodes": "orders.csv"},
            ConfigError,
            r"orders\.csv has the columns buyer, sku, price; name the one that",
        ),
        ({"nodes": "users.csv", "columns": "town"}, SourceError, r"users\.csv has no column 'town'"),
    ],
)
def test_what_a_list_of_edges_lacks_is_named(tmp_path, options, error, message):
    folder = written(tmp_path / "shop", one_type())
    given = options | ({"nodes": folder / options["nodes"]} if "nodes" in options else {})
    with pytest.raises(error, match=message):
        open_source(f"edges:{folder / 'follows.csv'}", list_options(folder, **given))


def test_the_line_of_the_refusal_is_a_description(tmp_path):
    folder = written(tmp_path / "shop", one_type())
    with pytest.raises(GraphError) as caught:
        open_source(f"edges:{folder / 'follows.csv'}", list_options(folder))
    line = str(caught.value).partition("this line: ")[2]
    line = line.replace("NODES.csv", "users.csv").replace("key: COLUMN", "key: user_id")
    line = line.replace("[COLUMN, ...]", "[age]").replace("labels: COLUMN", "labels: churned")
    (folder / "graph.yaml").write_text(line)
    dataset, _ = made(folder, tmp_path / "out")
    assert dataset.num_nodes == N


def test_flags_about_keys_are_refused_for_other_sources(csv_folder):
    with pytest.raises(ConfigError, match="--nodes, --keys and --dangling are about edges:FILE"):
        open_source(f"tables:{csv_folder}", SourceOptions(dangling="drop"))


def test_pairs_of_keys_get_their_scores(tmp_path, csv_folder, capsys):
    out, run = str(tmp_path / "out"), str(tmp_path / "run")
    words = ["--edge-split", "80/10/10", "--order", "degree"]
    assert main(["prepare", f"tables:{csv_folder}", out, *words]) == 0
    settings = ["--epochs", "1", "--batch-size", "32", "--hidden", "4", "--fanout", "3,3"]
    assert main(["train", "--dataset", out, "--task", "link", "--out", run, *settings]) == 0
    pc.write_csv(tables()["follows"].select(["follower", "followee"]).slice(0, 9), tmp_path / "pairs.csv")
    ids = Dataset.open(out).ids_of(tables()["users"]["user_id"].to_pylist())
    # An array has the rows of the table of users.
    number = {key: row for row, key in enumerate(tables()["users"]["user_id"].to_pylist())}
    pairs = [[number[key] for key in row.values()] for row in pc.read_csv(tmp_path / "pairs.csv").to_pylist()]
    assert ids.tolist() != list(range(N))
    np.save(tmp_path / "pairs.npy", np.array(pairs))
    for suffix, given in (("csv", "csv"), ("npy", "npy")):
        words = ["--pairs", str(tmp_path / f"pairs.{given}"), "--out", str(tmp_path / f"scores.{suffix}")]
        assert main(["infer", "--dataset", out, "--checkpoint", run, *words]) == 0
    scores = pc.read_csv(tmp_path / "scores.csv")
    assert scores.select(["follower", "followee"]).equals(pc.read_csv(tmp_path / "pairs.csv"))
    assert np.allclose(scores["score"].to_numpy(), np.load(tmp_path / "scores.npy"))
    capsys.readouterr()
    words = ["--pairs", str(tmp_path / "pairs.npy"), "--out", str(tmp_path / "scores.csv")]
    assert main(["infer", "--dataset", out, "--checkpoint", run, *words]) == 2
    assert "a table of scores needs --pairs as a table" in capsys.readouterr().err


@pytest.mark.parametrize(("file", "column"), [("users", "id"), ("edges", "b")])
def test_a_missing_key_behind_the_first_batch_is_named_by_its_row(tmp_path, monkeypatch, file, column):
    monkeypatch.setattr("gloader.convert.readers.typed_table._BATCH_TEXTS", 4)
    keys = [f"u{row}" for row in range(12)]
    tables = {"users": {"id": keys, "x": [float(row) for row in range(12)]}, "edges": {"a": keys, "b": keys}}
    tables[file][column] = [None if row == 9 else key for row, key in enumerate(keys)]
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    (tmp_path / "graph.yaml").write_text(
        "nodes: {user: {file: users.parquet, key: id, columns: [x]}}\n"
        "edges: {to: {file: edges.parquet, src: user.a, dst: user.b}}\n"
    )
    source = open_source(f"tables:{tmp_path}", SourceOptions(needs_labels=False))
    with pytest.raises(SourceError, match=rf"{file}\.parquet, column '{column}': row 9 "):
        prepare(source, tmp_path / "out", PrepareOptions())
