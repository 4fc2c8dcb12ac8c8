"""The description of a graph: what its keys mean, and what is refused by file and key."""

import re

import pytest

from gloader.convert.sources.graph_yaml import read_graph_yaml
from gloader.errors import SourceError

YAML = """
name: shop
nodes:
  user: {file: users.csv, key: user_id, columns: [age, {name: city, as: category}], labels: churned, split: fold}
  item: {file: items/, key: sku, features: items.npy, missing: mean}
  place: {num_nodes: 7}
edges:
  buys: {file: orders.parquet, src: user.user_id, dst: item.sku, time: at, columns: [price], missing: zero}
  user:lives:place: {file: lives.csv, src: who, dst: where}
dangling: drop
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "graph.yaml").write_text(YAML)
    return tmp_path


def test_a_description_with_keys_is_read(folder):
    graph = read_graph_yaml(folder)
    user, item = graph.nodes["user"], graph.nodes["item"]
    assert graph.is_keyed
    assert graph.dangling == "drop"
    assert (user.file, user.key) == (folder / "users.csv", "user_id")
    assert user.columns == ["age", {"name": "city", "as": "category"}]
    assert (user.label_columns, user.labels, user.split) == ("churned", None, "fold")
    assert (item.features, item.missing) == (folder / "items.npy", "mean")
    assert list(graph.edges) == [("user", "buys", "item"), ("user", "lives", "place")]
    buys = graph.edges["user", "buys", "item"]
    assert buys.ends(["user_id", "sku"]) == ("user_id", "sku")
    assert (buys.columns, buys.missing) == (["price"], "zero")
    assert graph.unlisted == ()
    names = {path.name for path in graph.files()}
    assert {"users.csv", "items", "items.npy", "orders.parquet", "lives.csv"} <= names


def test_the_file_itself_may_have_any_name(folder):
    other = folder / "shop.yml"
    other.write_text(YAML.replace("name: shop\n", ""))
    graph = read_graph_yaml(other)
    assert (graph.path, graph.name) == (other, "shop")


@pytest.mark.parametrize(
    "text",
    [
        "edges: {follows: {file: f.csv, src: user.a, dst: user.b}}",
        "edges: {'user:follows:user': {file: f.csv, src: a, dst: b}}",
    ],
)
def test_types_that_only_edges_name_are_made_by_their_keys(tmp_path, text):
    (tmp_path / "graph.yaml").write_text(text)
    graph = read_graph_yaml(tmp_path)
    assert graph.is_keyed
    assert (dict(graph.nodes), graph.unlisted) == ({}, ("user",))
    (entry,) = graph.edges.values()
    assert entry.ends(["a", "b"]) == ("a", "b")


def test_a_column_whose_whole_name_has_a_dot_comes_first(folder):
    entry = read_graph_yaml(folder).edges["user", "buys", "item"]
    assert entry.ends(["user.user_id", "user_id", "sku"]) == ("user.user_id", "sku")


def test_types_with_dots_are_found(tmp_path):
    text = (
        "nodes: {a.b: {file: n.csv, key: k}, a: {file: m.csv, key: k}}\n"
        "edges: {r: {file: e.csv, src: a.b.c, dst: a.x}}"
    )
    (tmp_path / "graph.yaml").write_text(text)
    graph = read_graph_yaml(tmp_path)
    assert list(graph.edges) == [("a.b", "r", "a")]
    assert graph.edges["a.b", "r", "a"].ends(["c", "x"]) == ("c", "x")


@pytest.mark.parametrize(
    "text",
    [
        "nodes: {p: {features: p.npy, labels: y.npy}}\nedges: {'p:c:p': e.csv}",
        "nodes: {p: {num_nodes: 3}}\nedges: {'p:c:p': {file: e.csv, src: p.x, dst: y}}",
    ],
)
def test_descriptions_without_keys_are_what_they_were(tmp_path, text):
    (tmp_path / "graph.yaml").write_text(text)
    assert not read_graph_yaml(tmp_path).is_keyed


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dangling: drop", "dangling: ignore", "dangling is 'ignore'; it must be one of error, drop, node"),
        ("key: user_id", "keys: user_id", "nodes.user has the key 'keys'; allowed are num_nodes, features, labels"),
        ("file: users.csv, ", "", "nodes.user.key is about a table of nodes, and the entry has no file; add file:"),
        ("key: user_id", "num_nodes: 7", "nodes.user.num_nodes: the rows of users.csv are the nodes; leave it out"),
        ("features: items.npy", "features: items.npy, columns: [a]", "nodes.item has columns and features; give one"),
        ("split: fold", "split: fold, splits: s.npz", "nodes.user has split and splits; give one of"),
        ("missing: mean", "missing: median", "nodes.item: missing is 'median'; it must be one of zero, mean"),
        ("src: user.user_id", "src: user_id", "edges.buys.src is 'user_id'; the relation is only named, so src and"),
        ("src: user.user_id, ", "", "edges.buys.src is None; the relation is only named, so src and dst must name"),
        ("src: user.user_id", "src: user.", "edges.buys.src is 'user.'; the relation is only named"),
        ("buys:", "buys:item:", "edges.buys:item: a relation is written source:name:destination"),
        ("user:lives:place", "user:buys:item", "edges.user:buys:item is the relation buys once more"),
        ("user:lives:place", "user:lives:town", "edges.user:lives:town names the node type 'town'; nodes has user"),
        ("columns: [price], ", "", "edges.buys.missing is about columns, and the entry has no columns"),
        ("columns: [price]", "columns: [price], features: f.npy", "edges.buys has columns and features; give one of"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_file_and_key(folder, old, new, message):
    text = (folder / "graph.yaml").read_text()
    assert old in text
    (folder / "graph.yaml").write_text(text.replace(old, new))
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        read_graph_yaml(folder)
    assert str(caught.value).startswith(str(folder / "graph.yaml"))


TASKS = """
nodes:
  user: {file: users.csv, key: user_id, time: signup}
  place: {num_nodes: 7}
edges:
  user:lives:place: {file: lives.csv, src: who, dst: where}
tables:
  churn:
    type: user
    train: {file: train.csv, node: id, time: at, label: {column: y, as: classes}, weight: w}
    test: {file: test/, node: id}
  moved: {type: place, valid: {file: moved.csv, node: place}}
"""


def test_tasks_and_times_of_rows_are_read(tmp_path):
    (tmp_path / "graph.yaml").write_text(TASKS)
    graph = read_graph_yaml(tmp_path)
    assert graph.is_keyed
    assert graph.nodes["user"].time == "signup"
    churn, moved = graph.tables["churn"], graph.tables["moved"]
    assert (churn.type, list(churn.parts), list(moved.parts)) == ("user", ["train", "test"], ["valid"])
    train, test = churn.parts.values()
    assert (train.file, train.node, train.time, train.weight) == (tmp_path / "train.csv", "id", "at", "w")
    assert (train.label, test.label, test.time) == ({"column": "y", "as": "classes"}, None, None)
    assert {"train.csv", "test", "moved.csv"} <= {path.name for path in graph.files()}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type: user\n", "type: person\n", "tables.churn.type is 'person'; it is the type of the nodes, one of those"),
        ("    type: user\n", "", "tables.churn.type is None; it is the type of the nodes, one of those under nodes"),
        ("valid: {", "val: {", "tables.moved has the key 'val'; allowed are type, train, valid, test"),
        (", valid: {file: moved.csv, node: place}", "", "tables.moved has no part; add train: {file: TABLE, node:"),
        ("file: moved.csv, ", "", "tables.moved.valid has no file; a part is {file: TABLE, node: COLUMN,"),
        (", node: place", "", "tables.moved.valid has no node; a part is {file: TABLE, node: COLUMN,"),
        (", node: place", ", node: 3", "tables.moved.valid.node is 3; it must be a name"),
        (", node: place", ", key: place", "tables.moved.valid has the key 'key'; allowed are file, node, time, label"),
        ("{file: moved.csv, node: place}", "moved.csv", "tables.moved.valid is 'moved.csv'; it must have file, node"),
        ("{type: place, valid: {file: moved.csv, node: place}}", "3", "tables.moved is 3; it must have type, train"),
        ("  moved:", "  mo__ved:", "tables.mo__ved: a task has a name of its own, of 1 to 100 of the characters"),
        ("  moved:", "  Churn:", "tables.Churn: a task has a name of its own, of 1 to 100 of the characters"),
        ("    test:", "    train:", "the key 'train' is there twice"),
        ("file: users.csv, key: user_id, time: signup", "time: signup", "nodes.user.time is about a table of nodes"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_tasks_is_named_by_file_and_key(tmp_path, old, new, message):
    assert old in TASKS
    (tmp_path / "graph.yaml").write_text(TASKS.replace(old, new))
    with pytest.raises(SourceError, match=re.escape(message)) as caught:
        read_graph_yaml(tmp_path)
    assert str(tmp_path / "graph.yaml") in str(caught.value)
