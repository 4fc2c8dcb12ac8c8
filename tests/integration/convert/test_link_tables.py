"""Link tables that are given, in files and arrays, of graphs of one type and of several; or nothing at all."""

import json
import logging
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from convert_helpers import write_folder
from link_tables import check_positions, edges_by_position, read_table, rows_of
from typed_sources import CITES, WRITES, typed_graph

from gloader.cli.main import main
from gloader.convert.csc import spill
from gloader.convert.links import locate
from gloader.convert.options import PrepareOptions, SourceOptions, edge_shares
from gloader.convert.prepare import plan_source, prepare
from gloader.convert.sources.npy import open_npy
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, GraphError, ShapeError, SourceError, StoreWriteError
from gloader.types import EDGE

MB = 10**6
EDGES = np.array([[0, 1], [2, 1], [0, 1], [3, 3], [1, 0], [4, 2]])
ROWS = {"src": [0, 0, 0, 3, 9], "dst": [1, 1, 1, 3, 0]}


def run(tmp_path, *tables, options=None, **replaced):
    write_folder(tmp_path / "in", **({"edges": EDGES} | replaced))
    given = PrepareOptions(
        edge_tables=tuple(f"{name}={file}" for name, file in tables),
        memory_budget_bytes=60 * MB,
        **(options or {}),
    )
    prepare(open_npy(str(tmp_path / "in"), SourceOptions()), tmp_path / "out", given)
    return Dataset.open(tmp_path / "out")


def write_parquet(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_a_parquet_file_brings_labels_times_and_negatives(tmp_path):
    file = write_parquet(
        tmp_path / "valid.parquet",
        **ROWS,
        label=[1, 0, 2, 1, 1],
        time=[5, 4, 3, 2, -1],
        negatives=[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    )
    made = run(tmp_path, ("valid", file))
    table, found = made.link_table("valid"), read_table(made, "valid")
    assert (table.label_dtype, table.has_times, table.negatives_per_row) == ("int64", True, 2)
    assert found.sources.tolist() == ROWS["src"]
    assert found.destinations.tolist() == ROWS["dst"]
    assert found.labels.tolist() == [1, 0, 2, 1, 1]
    assert found.times.tolist() == [5, 4, 3, 2, -1]
    assert found.negatives.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    stored = edges_by_position(made, EDGE)
    assert stored[:4] == [(1, 0), (0, 1), (2, 1), (0, 1)]
    # Of three rows of a pair that has two edges, the last two have the last one.
    assert found.positions.tolist() == [1, 3, 3, 5, -1]
    assert found.reverses.tolist() == [0, 0, 0, 5, -1]
    check_positions(made, "valid")


@pytest.mark.parametrize("form", ["csv", "csv without names", "npy", "npy rows", "parquet floats"])
def test_other_forms_bring_the_same_pairs(tmp_path, form):
    path = tmp_path / "train.csv"
    pairs = np.array([ROWS["src"], ROWS["dst"]])
    if form == "csv":
        path.write_text("from,to,y,timestamp\n" + "".join(f"{u},{v},{u}.5,{v}\n" for u, v in pairs.T))
    elif form == "csv without names":
        path.write_text("".join(f"{u},{v}\n" for u, v in pairs.T))
    elif form == "parquet floats":
        path = write_parquet(
            tmp_path / "train.parquet", source=pairs[0], target=pairs[1], label=pairs[0] + 0.5
        )
    else:
        path = tmp_path / "train.npy"
        np.save(path, pairs if form == "npy" else pairs.T.astype(np.int32))
    made = run(tmp_path, ("train", path))
    assert rows_of(made, "train") == list(zip(*pairs.tolist(), strict=True))
    check_positions(made, "train")
    table, found = made.link_table("train"), read_table(made, "train")
    if form in {"csv", "parquet floats"}:
        assert table.label_dtype == "float32"
        assert found.labels.tolist() == [source + 0.5 for source in ROWS["src"]]
    assert table.has_times == (form == "csv")
    if form == "csv":
        assert found.times.tolist() == ROWS["dst"]


def test_whole_labels_of_text_are_classes(tmp_path):
    (tmp_path / "t.csv").write_text("src,dst,label\n0,1,3\n1,2,0\n")
    made = run(tmp_path, ("train", tmp_path / "t.csv"))
    assert made.link_table("train").label_dtype == "int64"
    assert read_table(made, "train").labels.tolist() == [3, 0]


def test_an_empty_table_is_a_table(tmp_path):
    (tmp_path / "t.csv").write_text("src,dst\n")
    assert run(tmp_path, ("train", tmp_path / "t.csv")).link_table("train").num_rows == 0


def test_rows_are_renumbered_with_the_nodes(tmp_path):
    file = write_parquet(tmp_path / "t.parquet", **ROWS, negatives=[[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])
    edges = 9 - EDGES  # the last nodes come first
    plain = run(tmp_path, ("train", file), edges=edges)
    original = read_table(plain, "train")
    made = run(tmp_path, ("train", file), options={"order": "degree", "overwrite": True}, edges=edges)
    found = read_table(made, "train")
    old = made.original_ids
    assert old is not None
    assert old[0] == 9
    assert old[found.sources].tolist() == original.sources.tolist()
    assert old[found.destinations].tolist() == original.destinations.tolist()
    assert old[found.negatives].tolist() == original.negatives.tolist()
    check_positions(made, "train")


def test_held_out_edges_in_the_graph_are_warned_of(tmp_path, caplog):
    for name in ("train", "valid", "test"):
        write_parquet(tmp_path / f"{name}.parquet", src=[0, 1, 2, 9], dst=[1, 2, 4, 9])
    files = [(name, tmp_path / f"{name}.parquet") for name in ("train", "valid", "test")]
    with caplog.at_level(logging.WARNING, "gloader"):
        made = run(tmp_path, *files)
    assert [made.link_table(name).in_graph for name, _ in files] == [1, 1, 1]
    said = [
        f"link table {name}: 1 of its 4 edges are in the graph, and 2 more the other way round; messages pass along "
        "them, so that a model sees what it is to predict; take them out of the edges of the source, and prepare it "
        "again"
        for name in ("valid", "test")
    ]
    assert [record.getMessage() for record in caplog.records] == said


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        (
            {"src": [0, 10], "dst": [1, 1]},
            GraphError,
            "link table 'valid': row 1 has source 10; ids must lie in 0..9",
        ),
        (
            {"src": [0, 1], "dst": [1, -1]},
            GraphError,
            "'valid': row 1 has destination -1; ids must lie in 0..9",
        ),
        (
            {"src": [0, 1], "dst": [1, 1], "negatives": [[1, 2], [3, 10]]},
            GraphError,
            "'valid': row 1 has the negative destination 10; ids must lie in 0..9",
        ),
        (
            {"src": [0, 1], "dst": [1, 1], "negatives": [[1, 2], [3]]},
            ShapeError,
            "row 1 has a list of 1 in column 'negatives'; every row must have a list of 2",
        ),
        (
            {"src": [0, 1], "dst": [1, 1], "negatives": [[1, 2], None]},
            ShapeError,
            "row 1 has no list in column 'negatives'",
        ),
        ({"src": [0], "dst": [1], "negatives": [[]]}, GraphError, "list<.*null>; it must hold integers"),
        (
            {"src": [0], "dst": [1], "negatives": [[1, None]]},
            GraphError,
            "row 0, column 'negatives' is null; every row needs a value",
        ),
        ({"a": [0], "b": [1]}, SourceError, r"has the columns a, b: none are known as ends of edges"),
        ({"src": [0], "dst": [1.5]}, GraphError, "column 'dst' has type double; ids are whole numbers"),
        (
            {"src": [0], "dst": [1], "label": [float("nan")]},
            SourceError,
            "row 0 has label nan; labels are finite",
        ),
        ({"src": [0], "dst": [1], "time": [0.5]}, SourceError, "row 0 has time 0.5; times are whole seconds"),
    ],
)
def test_malformed_table_leaves_nothing(tmp_path, columns, error, text):
    file = write_parquet(tmp_path / "valid.parquet", **columns)
    with pytest.raises(error, match=text):
        run(tmp_path, ("valid", file))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "valid.parquet"]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("valid", "edge table 'valid': write NAME=FILE"),
        ("=t.csv", "write NAME=FILE"),
        ("a@=t.csv", "write NAME=FILE"),
        ("a__b=t.csv", "link table 'a__b': a name has"),
        ("../x=t.csv", "link table '../x': a name has"),
        ("a@cites=t.csv", "relation 'cites' is none of"),
    ],
)
def test_tables_that_cannot_be_named_are_refused(tmp_path, monkeypatch, table, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("src,dst\n0,1\n")
    write_folder(tmp_path / "in", edges=EDGES)
    options = PrepareOptions(edge_tables=(table,), memory_budget_bytes=60 * MB)
    with pytest.raises(ConfigError, match=text):
        prepare(open_npy(str(tmp_path / "in"), SourceOptions()), tmp_path / "out", options)


def test_a_name_is_given_once(tmp_path):
    file = write_parquet(tmp_path / "t.parquet", **ROWS)
    with pytest.raises(ConfigError, match=r"the link table 'Valid' of .*t\.parquet is there already, from"):
        run(tmp_path, ("valid", file), ("Valid", file))
    with pytest.raises(ConfigError, match=r"'train' of .*t\.parquet is there already, made by --edge-split"):
        run(tmp_path, ("train", file), options={"edge_split": edge_shares("80/10/10")})


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.csv", "src,dst,negatives\n0,1,2\n", "negatives are lists, which Parquet and Arrow files hold"),
        ("t.csv", "0,1,2\n", "has 3 columns without names; an edge table has columns src and dst"),
        ("t.txt", "", "has the columns .*an edge table has|has 0 columns without names"),
        ("t.parquet", "x", "is not a Parquet file"),
        ("t.json", "x", "the name has no known suffix"),
        ("t.npy", "x", "is not a .npy array"),
    ],
)
def test_files_of_other_content_are_refused(tmp_path, name, content, text):
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=text):
        run(tmp_path, ("valid", tmp_path / name))


def test_tables_that_do_not_fit_into_memory_are_the_same(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    edges = random.integers(0, 3000, (60_000, 2))
    edges[:20_000, 1] = 7  # a hub
    rows = np.concatenate([edges[::2], random.integers(0, 3000, (20_000, 2))])
    np.save(tmp_path / "t.npy", rows)
    given = {"num_nodes": 3000, "edges": edges, "dim": 2}
    first = run(tmp_path, ("train", tmp_path / "t.npy"), **given).fingerprint
    monkeypatch.setattr(locate, "_PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(locate, "_MIN_ROWS", 64)
    plan_locate = locate.plan_locate
    plans = []

    def tiny(num_nodes, *, budget_bytes, num_rows=None):
        plans.append(plan_locate(num_nodes, budget_bytes=1_000_000, num_rows=num_rows))
        return plans[-1]

    monkeypatch.setattr("gloader.convert.links.write_tables.plan_locate", tiny)
    made = run(tmp_path, ("train", tmp_path / "t.npy"), options={"overwrite": True}, **given)
    assert made.fingerprint == first
    assert plans[0].join_rows < 5_000  # the hub's rows came in pieces
    check_positions(made, "train")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    def full(path, array):
        raise StoreWriteError(28, f"writing {array.nbytes} bytes of temporary data to {path} failed: full")

    file = write_parquet(tmp_path / "t.parquet", **ROWS)
    monkeypatch.setattr(spill, "append_bytes", full)
    plan_locate = locate.plan_locate

    def spilling(*arguments, **keywords):
        plan = plan_locate(*arguments, **keywords)
        return locate.LocatePlan(**{name: getattr(plan, name) for name in plan.__slots__} | {"held_bytes": 0})

    monkeypatch.setattr("gloader.convert.links.write_tables.plan_locate", spilling)
    with pytest.raises(StoreWriteError, match=r"temporary data to .*by-destination-00000 failed"):
        run(tmp_path, ("train", file))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "t.parquet"]


def test_a_table_that_is_cut_off_midway_leaves_nothing(tmp_path):
    np.save(tmp_path / "t.npy", np.zeros((2, 100_000), np.int64))

    class Cutting:
        def advance(self, step, *_):
            if step == "sorting edges":
                whole = (tmp_path / "t.npy").read_bytes()
                (tmp_path / "t.npy").write_bytes(whole[:500_000])

    write_folder(tmp_path / "in", edges=EDGES)
    options = PrepareOptions(edge_tables=(f"train={tmp_path / 't.npy'}",), memory_budget_bytes=60 * MB)
    with pytest.raises(SourceError, match=r"t\.npy .*early"):
        prepare(
            open_npy(str(tmp_path / "in"), SourceOptions()), tmp_path / "out", options, progress=Cutting()
        )
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "t.npy"]


def test_a_budget_too_small_is_known_before_anything_is_written(tmp_path):
    file = write_parquet(tmp_path / "t.parquet", **ROWS)
    write_folder(tmp_path / "in", edges=EDGES)
    options = PrepareOptions(edge_tables=(f"train={file}",), memory_budget_bytes=30 * MB)
    with pytest.raises(BudgetError, match="finding link tables in a graph of 10 nodes needs at least"):
        prepare(open_npy(str(tmp_path / "in"), SourceOptions()), tmp_path / "out", options)


# --- arrays ---------------------------------------------------------------------------------------


def arrays(**changes):
    return {
        "features": np.ones((10, 2), np.float32),
        "labels": np.full(10, -1),
        "edge_index": EDGES.T,
        "memory_budget": "60MB",
    } | changes


def test_arrays_bring_link_tables(tmp_path):
    links = {
        "train": {"edge_index": np.array([[0, 4], [1, 2]], np.uint8)},
        "valid": {
            "edge_index": np.array([[9], [9]]),
            "labels": np.array([True]),
            "times": np.array([[3]]),
            "negatives": np.array([[1, 2, 3]]),
        },
    }
    made = Dataset.from_numpy(tmp_path / "out", **arrays(links=links))
    assert list(made.link_tables) == ["train", "valid"]
    assert rows_of(made, "train") == [(0, 1), (4, 2)]
    found = read_table(made, "valid")
    assert (found.labels.tolist(), found.times.tolist(), found.negatives.tolist()) == ([1], [3], [[1, 2, 3]])
    assert found.positions.tolist() == [-1]


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({}, ConfigError, r"links\['t'\] has no edge_index; it takes edge_index, labels"),
        ({"edge_index": EDGES.T, "label": 1}, ConfigError, r"links\['t'\] has the key 'label'"),
        (
            {"edge_index": EDGES},
            ShapeError,
            r"edge_index of shape \(6, 2\); it must be \(2, n\), as .T makes it",
        ),
        ({"edge_index": EDGES.T * 0.5}, GraphError, "must be native integers"),
        ({"edge_index": EDGES.T, "labels": np.ones(5)}, ShapeError, r"labels have shape \(5,\) for 6 rows"),
        (
            {"edge_index": EDGES.T, "times": np.ones(6, np.float32)},
            SourceError,
            "times has dtype float32, which holds whole",
        ),
        (
            {"edge_index": EDGES.T, "times": np.ones(7, int)},
            ShapeError,
            r"times have shape \(7,\) for 6 rows",
        ),
        ({"edge_index": EDGES.T, "negatives": np.ones(6, int)}, ShapeError, r"negatives have shape \(6,\)"),
        ({"edge_index": EDGES.T, "negatives": np.full((6, 2), 10)}, GraphError, "negative destination 10"),
        ({"edge_index": EDGES.T, "relation": "a:b:c"}, ConfigError, "relation 'a:b:c' is none of numpy's"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, table, error, text):
    with pytest.raises(error, match=text):
        Dataset.from_numpy(tmp_path / "out", **arrays(links={"t": table}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"edge_split": "80/10/20"}, "adds up to 110"),
        (
            {"edge_split_relation": "to"},
            "--edge-split-relation names a relation to split, and --edge-split is missing",
        ),
        ({"edge_split": "80/10/10", "edge_split_relation": "cites"}, "relation 'cites' is none of numpy's"),
        (
            {"edge_split": "98/1/1"},
            "splitting its 6 edges by --edge-split leaves the table '(valid|test)' empty",
        ),
    ],
)
def test_splits_that_cannot_be_are_refused(tmp_path, options, text):
    with pytest.raises(ConfigError, match=text):
        Dataset.from_numpy(tmp_path / "out", **arrays(**options))
    assert not list(tmp_path.iterdir())


def test_split_by_time_needs_times(tmp_path):
    with pytest.raises(SourceError, match="its edges have no times for --edge-split-by time"):
        Dataset.from_numpy(tmp_path / "out", **arrays(edge_split="80/10/10", edge_split_by="time"))


def test_an_edge_out_of_range_is_counted_as_the_source_has_it(tmp_path):
    bad = np.concatenate([EDGES, [[0, 10]]])
    with pytest.raises(GraphError, match=r"edge 6 \(counted from 0\) has destination 10"):
        Dataset.from_numpy(tmp_path / "out", **arrays(edge_index=bad.T, edge_split="50/25/25"))


# --- several types --------------------------------------------------------------------------------


def typed(tmp_path, graph, **options):
    prepare(graph.source(), tmp_path / "out", PrepareOptions(memory_budget_bytes=60 * MB, **options))
    return Dataset.open(tmp_path / "out")


@pytest.mark.parametrize("relation", [WRITES, CITES])
@pytest.mark.parametrize("brings_reverse", [False, True])
def test_held_out_edges_of_a_relation_leave_its_reverse_too(tmp_path, relation, brings_reverse):
    graph = typed_graph()
    back = (relation[2], f"rev_{relation[1]}", relation[0])
    if brings_reverse:
        graph.edges[back] = [(edge[1], edge[0]) for edge in graph.edges[relation]]
    given = graph.edges[relation]
    made = typed(
        tmp_path,
        graph,
        add_reverse=not brings_reverse,
        edge_split=edge_shares("60/20/20"),
        edge_split_relation=":".join(relation),
    )
    tables = {name: rows_of(made, name) for name in ("train", "valid", "test")}
    is_ordered = relation[0] != relation[2]
    side = {(pair if is_ordered else frozenset(pair)): name for name, rows in tables.items() for pair in rows}
    for name, rows in tables.items():
        pairs = [edge[:2] for edge in given]
        assert rows == [pair for pair in pairs if side[pair if is_ordered else frozenset(pair)] == name]
        assert made.link_table(name).relation == relation
        assert made.link_table(name).reverse_relation == back
        check_positions(made, name)
    assert sorted(edges_by_position(made, relation)) == sorted(tables["train"])
    assert sorted(edges_by_position(made, back)) == sorted((v, u) for u, v in tables["train"])
    untouched = next(each for each in graph.edges if each not in {relation, back})
    assert len(edges_by_position(made, untouched)) == len(graph.edges[untouched])


def test_a_relation_stored_both_ways_leads_back_itself(tmp_path):
    made = typed(
        tmp_path,
        typed_graph(),
        symmetrize=("cites",),
        edge_split=edge_shares("60/20/20"),
        edge_split_relation="cites",
    )
    table = made.link_table("train")
    assert table.reverse_relation == CITES
    found = read_table(made, "train")
    assert (found.reverses >= 0).all()
    check_positions(made, "train")
    stored = {frozenset(pair) for pair in edges_by_position(made, CITES)}
    for name in ("valid", "test"):
        assert not stored.intersection(map(frozenset, rows_of(made, name)))


def test_tables_of_a_relation_are_given_by_its_name(tmp_path):
    graph = typed_graph()
    np.save(tmp_path / "w.npy", np.array([edge[:2] for edge in graph.edges[WRITES]]))
    made = typed(tmp_path, graph, edge_tables=(f"mine@author:writes:paper={tmp_path / 'w.npy'}",))
    assert made.link_table("mine").relation == WRITES
    assert made.link_table("mine").reverse_relation is None
    assert made.link_table("mine").in_graph == 80
    check_positions(made, "mine")


def test_relations_that_are_not_said_are_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.zeros((2, 3), int))
    with pytest.raises(
        ConfigError, match="--edge-split needs --edge-split-relation, as made:tiny has 3 relations"
    ):
        typed(tmp_path, typed_graph(), edge_split=edge_shares("60/20/20"))
    with pytest.raises(
        ConfigError, match="link table 't' needs a relation, as in --edge-table t@RELATION=FILE"
    ):
        typed(tmp_path, typed_graph(), edge_tables=(f"t={tmp_path / 'w.npy'}",))
    with pytest.raises(ConfigError, match="relation 'likes' is none of made:tiny's relations"):
        typed(tmp_path, typed_graph(), edge_split=edge_shares("60/20/20"), edge_split_relation="likes")
    np.save(tmp_path / "w.npy", np.array([[0, 19, 20], [0, 29, 0]]))
    with pytest.raises(GraphError, match=r"row 2 has source 20; ids must lie in 0..19"):
        typed(tmp_path, typed_graph(), edge_tables=(f"t@writes={tmp_path / 'w.npy'}",))


def test_typed_arrays_bring_link_tables(tmp_path):
    writes = np.array([[0, 1, 1], [2, 0, 0]])
    given = {
        "edges": {WRITES: writes, ("paper", "by", "author"): writes[::-1]},
        "labels": {"paper": np.zeros(3, int)},
        "num_nodes": {"author": 2, "paper": 3},
        "memory_budget": "60MB",
    }
    links = {"train": {"edge_index": writes, "relation": WRITES, "reverse": "paper:by:author"}}
    made = Dataset.from_numpy_hetero(tmp_path / "out", **given, links=links)
    assert made.link_table("train").reverse_relation == ("paper", "by", "author")
    assert read_table(made, "train").reverses.tolist() == [0, 1, 2]
    check_positions(made, "train")


# --- other ways in --------------------------------------------------------------------------------


def test_the_command_line_makes_tables_and_says_what_leaks(tmp_path, capsys):
    random = np.random.default_rng(0)
    for name in ("valid", "mine"):
        np.save(tmp_path / f"{name}.npy", random.integers(0, 1797, (2, 50)))
    words = [
        "prepare",
        "builtin:digits",
        str(tmp_path / "out"),
        "--edge-table",
        f"mine={tmp_path / 'mine.npy'}",
    ]
    assert (
        main(
            [
                *words,
                "--edge-table",
                f"later={tmp_path / 'valid.npy'}",
                "--edge-split",
                "80/10/10",
                "--seed",
                "3",
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    made = Dataset.open(tmp_path / "out")
    assert list(made.link_tables) == ["train", "valid", "test", "mine", "later"]
    assert made.metadata["options"]["edge_split"] == "80/10/10"
    assert made.metadata["options"]["edge_split_seed"] == 3
    train = made.link_table("train")
    counts = f"{train.num_rows:,} of node:to:node, {train.num_rows:,} of them in the graph"
    assert re.search(f"links train +{counts}", said.out)
    assert (
        main(["prepare", "builtin:digits", str(tmp_path / "json"), "--edge-split", "80/10/10", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["links"]["valid"]["in_graph"] == report["links"]["valid"]["reversed_in_graph"] == 0
    np.save(tmp_path / "leak.npy", np.array(rows_of(made, "train")[:7]).T)
    words = [
        "prepare",
        "builtin:digits",
        str(tmp_path / "leaky"),
        "--edge-table",
        f"valid={tmp_path / 'leak.npy'}",
    ]
    assert main(words) == 0
    warned = " ".join(capsys.readouterr().out.split())
    assert "link table valid: 7 of its 7 edges are in the graph; messages pass along them" in warned
    assert main(["info", str(tmp_path / "leaky")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "7 of them in the graph, where a model sees what it is to predict" in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--edge-split", "80/10/20"], "edge split '80/10/20' adds up to 110; it must be 100"),
        (["--edge-split", "80/10/10", "--edge-split-by", "time"], "its edges have no times"),
        (["--edge-split", "80/10/10", "--edge-split-relation", "cites"], "relation 'cites' is none of"),
        (["--edge-table", "valid"], "edge table 'valid': write NAME=FILE"),
        (["--edge-table", "valid=/nowhere.csv"], "/nowhere.csv is missing"),
    ],
)
def test_mistakes_on_the_command_line_are_one_sentence(tmp_path, capsys, words, text):
    assert main(["prepare", "builtin:digits", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["pyg", "dgl"])
def test_graphs_of_libraries_are_split_as_arrays_are(tmp_path, library):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    pairs = random.integers(0, 50, (2, 400))
    expected = Dataset.from_numpy(
        tmp_path / "numpy",
        features=np.ones((50, 2), np.float32),
        labels=np.zeros(50, int),
        edge_index=pairs,
        edge_split=(0.6, 0.2, 0.2),
        seed=5,
    )
    if library == "pyg":
        data_class = pytest.importorskip("torch_geometric.data").Data
        data = data_class(
            x=torch.ones(50, 2), edge_index=torch.from_numpy(pairs), y=torch.zeros(50, dtype=torch.long)
        )
        made = Dataset.from_pyg(data, tmp_path / "out", edge_split=(0.6, 0.2, 0.2), seed=5)
    else:
        dgl = pytest.importorskip("dgl")
        graph = dgl.graph(tuple(map(torch.from_numpy, pairs)), num_nodes=50)
        graph.ndata["feat"], graph.ndata["label"] = torch.ones(50, 2), torch.zeros(50, dtype=torch.long)
        made = Dataset.from_dgl(graph, tmp_path / "out", edge_split=(0.6, 0.2, 0.2), seed=5)
    for name in ("train", "valid", "test"):
        # DGL lists edges in an order of its own.
        assert sorted(rows_of(made, name)) == sorted(rows_of(expected, name))
        check_positions(made, name)
    assert sorted(edges_by_position(made, EDGE)) == sorted(edges_by_position(expected, EDGE))


def test_splitting_a_reverse_takes_held_out_edges_from_the_relation_too(tmp_path):
    graph = typed_graph()
    back = ("paper", "rev_writes", "author")
    graph.edges[back] = [(edge[1], edge[0]) for edge in graph.edges[WRITES]]
    split = {"edge_split": edge_shares("60/20/20"), "edge_split_relation": "rev_writes"}
    made = typed(tmp_path, graph, **split)
    assert made.link_table("train").reverse_relation == WRITES
    kept = sorted(rows_of(made, "train"))
    assert sorted(edges_by_position(made, back)) == kept
    assert sorted(edges_by_position(made, WRITES)) == sorted((v, u) for u, v in kept)
    assert len(kept) < len(graph.edges[back])


def test_pairs_of_two_types_are_dealt_out_each_by_itself(tmp_path):
    graph = typed_graph()
    graph.edges[WRITES] = [(u, v, 1.0) for u in range(20) for v in range(20)]
    made = typed(tmp_path, graph, edge_split=edge_shares("60/20/20"), edge_split_relation="writes")
    part = {pair: name for name in ("train", "valid", "test") for pair in rows_of(made, name)}
    assert len(part) == 400
    # Author 1 of paper 2, and author 2 of paper 1, are different things.
    assert any(part[u, v] != part[v, u] for u, v in part)


def test_the_plan_counts_the_tables_of_a_split(tmp_path):
    edges = np.random.default_rng(0).integers(0, 10, (4000, 2))
    write_folder(tmp_path / "in", edges=edges)
    source = open_npy(str(tmp_path / "in"), SourceOptions())
    given = PrepareOptions(memory_budget_bytes=60 * MB)
    plain = plan_source(source, tmp_path / "out", given)
    split = replace(given, edge_split=edge_shares("60/20/20"))
    plan = plan_source(source, tmp_path / "out", split)
    assert plan.dataset_bytes - plain.dataset_bytes >= 4000 * 32
    prepare(source, tmp_path / "out", split)
    stored = sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert stored <= plan.dataset_bytes
    with pytest.raises(BudgetError, match="finding link tables in a graph of 10 nodes needs at least"):
        plan_source(source, tmp_path / "out", replace(split, memory_budget_bytes=30 * MB))


def test_keywords_of_a_typed_graph_take_relations_as_tuples(tmp_path):
    given = {
        "num_nodes": {"paper": 40, "author": 20},
        "edges": {
            ("paper", "cites", "paper"): np.arange(80).reshape(2, 40) % 37,
            ("author", "writes", "paper"): np.arange(60).reshape(2, 30) % 20,
        },
        "edge_split": (0.8, 0.1, 0.1),
    }
    cites = ("paper", "cites", "paper")
    made = [
        Dataset.from_numpy_hetero(
            tmp_path / str(number), symmetrize=[relation], edge_split_relation=relation, **given
        )
        for number, relation in enumerate((cites, "paper:cites:paper", "cites"))
    ]
    assert {each.fingerprint for each in made} == {made[0].fingerprint}
    assert made[0].link_table("train").relation == cites
    with pytest.raises(ConfigError, match="names no relation; write source:name:destination"):
        Dataset.from_numpy_hetero(tmp_path / "no", edge_split_relation=("paper", "cites"), **given)
