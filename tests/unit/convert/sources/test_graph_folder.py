import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typed_sources import CITES, IN, WRITES, flat, typed_graph

from gloader.convert.options import SourceOptions
from gloader.convert.registry import open_source, source_files
from gloader.convert.source_check import check_source
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

YAML = """
name: library
nodes:
  paper: {features: paper.npy, labels: labels.npy, splits: splits.npz}
  author:
    num_nodes: 20
  place: {features: place.npy}
edges:
  author:writes:paper: {file: writes.parquet, weight: times}
  paper:cites:paper: cites.npy
  author:in:place: {file: places.csv, src: who, dst: where}
"""


@pytest.fixture
def graph():
    return typed_graph()


@pytest.fixture
def folder(tmp_path, graph):
    (tmp_path / "graph.yaml").write_text(YAML)
    np.save(tmp_path / "paper.npy", graph.features["paper"])
    np.save(tmp_path / "place.npy", graph.features["place"])
    np.save(tmp_path / "labels.npy", graph.labels)
    np.savez(tmp_path / "splits.npz", **graph.splits)
    src, dst, times = zip(*graph.edges[WRITES], strict=True)
    pq.write_table(pa.table({"src": src, "dst": dst, "times": times}), tmp_path / "writes.parquet")
    np.save(tmp_path / "cites.npy", np.array(graph.edges[CITES]))
    rows = "".join(f"{where},{who}\n" for who, where in graph.edges[IN])
    (tmp_path / "places.csv").write_text("where,who\n" + rows)
    return tmp_path


def opened(folder):
    return open_source(f"tables:{folder}", SourceOptions(memory_budget_bytes=10**8))


def replaced(folder, old, new):
    text = (folder / "graph.yaml").read_text()
    assert old in text
    (folder / "graph.yaml").write_text(text.replace(old, new))


def test_a_folder_is_read_as_it_is_described(folder, graph):
    source = opened(folder)
    check_source(source)
    assert source.name == "library"
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == graph.num_nodes
    assert [each.relation for each in source.relations] == [WRITES, CITES, IN]
    for each in source.relations:
        assert flat(each.edges.chunks(11)) == [edge[:2] for edge in graph.edges[each.relation]]
    assert [each.edges.has_weights for each in source.relations] == [True, False, False]
    (chunk,) = source.relations[0].edges.chunks(1000)
    assert chunk.weight.tolist() == [edge[2] for edge in graph.edges[WRITES]]
    for nodes in source.nodes:
        if nodes.name in graph.features:
            assert np.array_equal(np.concatenate(list(nodes.features.chunks(7))), graph.features[nodes.name])
    assert source.nodes[1].features is None
    assert source.labelled == "paper"
    assert np.array_equal(source.labels, graph.labels)
    assert np.array_equal(source.splits.valid, graph.splits["valid"])


def test_numbers_of_nodes_are_those_of_rows_labels_or_edges(folder, graph):
    replaced(folder, "num_nodes: 20", "")
    replaced(folder, "features: paper.npy, ", "")
    source = opened(folder)
    largest = max(edge[0] for relation in (WRITES, IN) for edge in graph.edges[relation])
    assert {nodes.name: nodes.num_nodes for nodes in source.nodes} == {
        "paper": 30,
        "author": largest + 1,
        "place": 5,
    }


def test_without_splits_the_seed_draws_them_and_classes_may_be_more(folder):
    replaced(folder, "splits: splits.npz", "num_classes: 9")
    source = opened(folder)
    assert len(source.splits.train) == 18
    assert source.num_classes == 9


def test_weights_beside_an_array_are_a_file(folder):
    replaced(folder, "cites.npy", "{file: cites.npy, weight: w.npy}")
    np.save(folder / "w.npy", np.arange(90, dtype=np.float32))
    (chunk,) = opened(folder).relations[1].edges.chunks(1000)
    assert chunk.weight.tolist() == list(range(90))


def test_of_two_columns_of_weights_one_is_named(folder):
    replaced(folder, "cites.npy", "cites.csv")
    (folder / "cites.csv").write_text("src,dst,w,weight\n0,1,2,3\n1,2,4,5\n")
    with pytest.raises(
        SourceError, match=r"columns may be the weights of .*cites\.csv: w, weight; keep one of these"
    ):
        opened(folder)
    replaced(folder, "cites.csv", "{file: cites.csv, weight: w}")
    (chunk,) = opened(folder).relations[1].edges.chunks(1000)
    assert chunk.weight.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("key", "column", "error", "what"),
    [("weight", "src", SourceError, "weights"), ("time", "dst", ConfigError, "times")],
)
def test_an_end_is_no_weight_and_no_time(folder, key, column, error, what):
    replaced(folder, "cites.npy", f"{{file: cites.csv, {key}: {column}}}")
    (folder / "cites.csv").write_text("src,dst,n\n0,1,2\n1,2,4\n")
    wanted = rf"cites\.csv: column '{column}' is an end of the edges, and is named as their {what}; the columns are "
    with pytest.raises(error, match=wanted):
        opened(folder)


def test_an_end_with_the_name_of_weights_is_an_end(folder):
    replaced(folder, "cites.npy", "{file: cites.csv, src: w, dst: to}")
    (folder / "cites.csv").write_text("w,to,n\n0,1,2\n1,2,4\n")
    (chunk,) = opened(folder).relations[1].edges.chunks(1000)
    assert (chunk.src.tolist(), chunk.weight) == ([0, 1], None)


def test_every_named_file_counts_for_what_was_prepared(folder):
    found = {path.name for path in source_files(f"tables:{folder}", SourceOptions())}
    names = [
        "graph.yaml",
        "paper.npy",
        "labels.npy",
        "splits.npz",
        "place.npy",
        "writes.parquet",
        "cites.npy",
    ]
    assert found == {*names, "places.csv"}


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("nodes:\n", "node:\n", SourceError, "graph.yaml has the key 'node'; allowed are name, nodes, edges"),
        ("name: library", "name: [1]", SourceError, "graph.yaml: name is [1]; it must be a text of up to 100"),
        ("num_nodes: 20", "num_nodes: -1", SourceError, "nodes.author.num_nodes is -1; it must be a whole number in"),
        ("num_nodes: 20", "count: 20", SourceError, "nodes.author has the key 'count'; allowed are num_nodes,"),
        ("{features: place.npy}", "place.npy", SourceError, "nodes.place is 'place.npy'; it must have some of"),
        ("{features: place.npy}", "{features: x.npy}", SourceError, "nodes.place.features: "),
        ("{features: place.npy}", "{features: place.npy, num_nodes: 6}", ShapeError, "nodes.place.num_nodes is 6; "),
        ("{features: place.npy}", "{labels: labels.npy}", SourceError, ("graph.yaml has labels on 2 node types (paper, "
         "place); exactly one type has labels and splits")),
        ("labels: labels.npy, ", "", SourceError, "graph.yaml has no labels on any node type"),
        ("labels: labels.npy", "labels: place.npy", ShapeError, "nodes.paper.labels: "),
        ("author:writes:paper", "author:writes", SourceError, "edges.author:writes: a relation is written source:"),
        ("author:writes:paper", "author:writes:book", SourceError, ("edges.author:writes:book names the node type"
         " 'book'; nodes has paper, author, place")),
        ("cites.npy", "[cites.npy]", SourceError, "edges.paper:cites:paper is ['cites.npy']; it must be a file, or"),
        ("cites.npy", "{src: a}", SourceError, "edges.paper:cites:paper has no file; name the table of its edges"),
        ("cites.npy", "missing.npy", SourceError, "edges.paper:cites:paper: "),
        ("cites.npy", "paper.npy", GraphError, "edges.paper:cites:paper: "),
        ("cites.npy", "{file: cites.npy, src: a}", SourceError, "edges.paper:cites:paper: src and dst name columns"),
        ("src: who", "src: whom", SourceError, "edges.author:in:place: src is 'whom'; the columns of "),
        ("weight: times", "weight: 5", SourceError, "edges.author:writes:paper.weight is 5; it must be a name"),
        ("splits: splits.npz", "splits: {train: [1]}", SourceError, "it must be a name, such as splits: parts.npz"),
        ("name: library", "name: [", SourceError, "is not YAML: "),
        (YAML, "- 1", SourceError, "holds a list, not name, nodes and edges of a graph"),
        (YAML, "nodes: {}\nedges: {}", SourceError, "nodes is {}; it must list node types"),
        (YAML, "nodes: {a: {}}\nedges: 5", SourceError, "edges is 5; it must list relations such as"),
    ],
)  # fmt: skip
def test_a_description_that_is_wrong_is_refused_by_file_and_key(folder, old, new, error, message):
    replaced(folder, old, new)
    with pytest.raises(error) as raised:
        opened(folder)
    assert message in str(raised.value)
    assert str(folder / "graph.yaml") in str(raised.value)


def test_a_folder_without_a_description_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"the description .*graph\.yaml cannot be read: No such file"):
        opened(tmp_path)


def test_a_table_that_turns_out_wrong_names_file_and_row(folder):
    with (folder / "places.csv").open("a") as file:
        file.write("x,1\n")
    source = opened(folder)
    with pytest.raises(GraphError, match=r"places\.csv: row 25 \(line 27\), column 'where' is 'x'"):
        list(source.relations[2].edges.chunks(100))


def test_a_matrix_may_lead_from_one_type_to_another(folder):
    matrix = "%%MatrixMarket matrix coordinate pattern general\n20 9 2\n1 9\n20 1\n"
    (folder / "w.mtx").write_text(matrix)
    replaced(folder, "{file: writes.parquet, weight: times}", "w.mtx")
    (writes,) = (each for each in opened(folder).relations if each.relation == WRITES)
    (chunk,) = writes.edges.chunks(10)
    assert (chunk.src.tolist(), chunk.dst.tolist()) == ([0, 19], [8, 0])
    replaced(folder, "cites.npy", "w.mtx")
    with pytest.raises(SourceError, match=r"edges\.paper:cites:paper: .*w\.mtx has 20 rows and 9 columns"):
        opened(folder)
