"""Tables as people write them: columns by name, rows by id, text with marks and comments; read, or refused."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gloader.cli.main import main
from gloader.convert.csc.spill import Spill
from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import plan_source, prepare
from gloader.convert.prepared_cache import prepared_path
from gloader.convert.readers import typed_table
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError, FeatureValueError, GloaderError, SourceError

N = 9
PAIRS = [(i * i % N, (i + 1) % N) for i in range(30)]
X = (np.arange(2 * N).reshape(N, 2) + 0.5).astype(np.float32)
SHUFFLED = np.random.default_rng(1).permutation(N)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", np.arange(N) % 2)
    return tmp_path


def write(name, *lines, pairs=PAIRS, form="{},{}", encoding="utf-8"):
    rows = [form.format(*pair) for pair in pairs]
    Path(name).write_text("".join(f"{line}\n" for line in [*lines, *rows]), encoding)


def opened(edges="e.csv", **options):
    given = {"features": "x.npy", "labels": "y.npy", "memory_budget_bytes": 10**8} | options
    for key in ("features", "labels", "splits"):
        given[key] = Path(given[key]) if key in given else None
    return open_source(f"edges:{edges}", SourceOptions(**given))


def pairs_of(source):
    return [
        pair
        for chunk in source.edges.chunks(7)
        for pair in zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True)
    ]


def refused(error=SourceError, **options):
    with pytest.raises(error) as caught:
        source = opened(**options)
        pairs_of(source)
    return str(caught.value)


@pytest.mark.reliability("S3")
@pytest.mark.parametrize(
    "names",
    ["src,dst", "SOURCE,Target", "from,to", "U,V", "u_id,v_id", "src_id,dst_id", "FromNodeId,ToNodeId", "head,tail",
     "subject,object", "node1,node2", "id_1,id_2", "userId:START_ID(User),:END_ID(Item)", "source node,target node",
     "row,col"],
)  # fmt: skip
@pytest.mark.parametrize("is_turned", [False, True])
def test_ends_are_found_by_name_in_any_order_and_place(names, is_turned):
    src, dst = names.split(",")
    if is_turned:
        write("e.csv", f"edge_id,{dst},relation,{src}", form="77,{1},5,{0}")
    else:
        write("e.csv", f",{src},stars:int,{dst},note", form='4,{0},5,{1},"a, b"')
    source = opened()
    assert pairs_of(source) == PAIRS
    assert not source.edges.has_weights
    assert source.column_notes[0] == f"edges: {src} and {dst} of e.csv"


@pytest.mark.reliability("S3")
@pytest.mark.parametrize(
    "names", ["user_id,rating,movie_id", ",a,b", "alice,bob", "from,to,source,target", "x,y"]
)
def test_other_names_are_refused_with_what_says_them(names):
    width = names.count(",") + 1
    write("e.csv", names, form=",".join(["{0}", "{1}", "1", "2"][:width]))
    said = refused()
    assert names.lstrip(",").replace(",", ", ") in said
    assert "--src COLUMN --dst COLUMN" in said


@pytest.mark.reliability("S3")
def test_the_ends_can_be_named():
    write("e.csv", "movie,rating,user", form="{1},3,{0}")
    assert pairs_of(opened(src="user", dst="movie")) == PAIRS
    assert "src is 'who'; the columns of e.csv are movie, rating, user" in refused(src="who", dst="movie")
    words = [
        "prepare",
        "edges:e.csv",
        "d",
        "--features",
        "x.npy",
        "--labels",
        "y.npy",
        "--src",
        "user",
        "--dst",
        "movie",
    ]
    assert main(words) == 0
    assert Dataset.open("d").num_edges == len(PAIRS)
    write("bare.csv", form="3,{1},{0}")
    assert pairs_of(opened("bare.csv", src="c2", dst="c1")) == PAIRS
    write("two.csv", "target,who", form="{1},{0}")
    assert pairs_of(opened("two.csv", dst="target")) == PAIRS
    with pytest.raises(ConfigError, match="--src and --dst name columns of edges:FILE"):
        open_source("builtin:digits", SourceOptions(src="a"))


@pytest.mark.reliability("S3")
@pytest.mark.parametrize(
    ("form", "third", "said"),
    [
        ("{} {} {{}}", None, "(no header)"),
        ("{},{},friend", None, "(no header)"),
        ("{} {} 2015-01-01", None, "(no header)"),
        ("{}\t{}\tNone", None, "(no header)"),
        ("{},{},2.5", 2.5, "(no header), column 3 is the weight"),
        ("{} {} {{'weight': 3, 'kind': 1}}", None, "(no header)"),
    ],
)
def test_without_a_header_no_line_is_lost(form, third, said):
    write("e.csv", form=form)
    source = opened()
    assert pairs_of(source) == PAIRS
    assert source.edges.has_weights == (third is not None)
    assert source.column_notes[0] == f"edges: columns 1 and 2 of e.csv {said}"
    assert any("column 3, c2 (" in each for each in source.unused) == (third is None)


@pytest.mark.reliability("S3")
@pytest.mark.parametrize("comment", ["# ToNodeId FromNodeId", "#dst,src", "% target source"])
def test_a_comment_may_name_the_columns(comment):
    write("e.txt", "# of a graph", comment, form="{1}\t{0}")
    assert pairs_of(opened("e.txt")) == PAIRS
    write("e.txt", "# Directed graph", "# Nodes: 9", form="{}\t{}")
    assert pairs_of(opened("e.txt")) == PAIRS


@pytest.mark.reliability("S3")
def test_text_is_read_whatever_marks_it():
    text = "\ufeff 0  1\n\n# a note\n  12   3 \n   \n%\n4\t5\n# 3 edges\n"
    forms = {"a.txt": text, "b.txt": text.replace("\n", "\r\n"), "c.txt": text.replace("\n", "\r")}
    for name, content in forms.items():
        Path(name).write_bytes(content.encode())
        assert pairs_of(opened(name)) == [(0, 1), (12, 3), (4, 5)], name
    with gzip.open("a.tsv.gz", "wt") as file:
        file.write('"src"\t"dst"\n"0"\t"1"\n')
    assert pairs_of(opened("a.tsv.gz")) == [(0, 1)]


@pytest.mark.reliability("S3")
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["src,dst,note", '0,1,"a', 'b"', "2,3,c"], "line 2 has a quote that does not end in the same line"),
        (["tag,src,dst", "#a,0,1", "b,1,2"], "line 2 is '#a,0,1': a comment, or a row?"),
        (["tag,src,dst", "#a,0,1"], "line 2 is '#a,0,1': a comment, or a row?"),
        (["src,dst,src", "0,1,2"], "the first line is 'src, dst, src', which has 'src' twice"),
        (["NA,1.5", "0,1"], "which is neither names nor numbers"),
        (["src,dst", "0,1", ",2"], "row 1 (line 3), column 'src' is ''"),
    ],
)
def test_text_that_may_mean_two_things_is_refused_by_its_line(lines, message):
    write("e.csv", *lines, pairs=[])
    assert message in refused(GloaderError)
    write("e.csv", "src,dst", encoding="utf-16")
    assert "e.csv is text of two bytes a character (UTF-16); save it as UTF-8" in refused()


@pytest.mark.reliability("S3")
@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet"])
def test_folders_and_patterns_of_part_files(folder, form):
    (folder / "e").mkdir()
    parts = [pd.DataFrame(part, columns=["dst", "src"]) for part in (PAIRS[:11], PAIRS[11:])]
    for number, part in enumerate(parts):
        write_frame = part.to_parquet if form == "parquet" else part.to_csv
        write_frame(folder / "e" / f"part-{number}.{form}", index=False)
    for name in ("_SUCCESS", ".part-0.crc"):
        (folder / "e" / name).touch()
    turned = [pair[::-1] for pair in PAIRS]
    assert pairs_of(opened("e")) == pairs_of(opened(f"e/part-*.{form}")) == turned
    pd.DataFrame({"src": [1], "other": [2]}).to_csv(folder / "e" / "part-2.csv", index=False)
    assert "part-2.csv has src, other; part-0" in refused(edges="e")
    pd.DataFrame({"dst": ["x"], "src": [2]}).to_csv(folder / "e" / "part-2.csv", index=False)
    # Among files of text alone, only a column that is read as numbers must have numbers in all of them.
    with pytest.raises(GloaderError, match=r"part-2\.csv holds strings in column 'dst', and part-0"):
        pairs_of(opened("e"))
    (folder / "e" / "more").mkdir()
    assert "e holds more, which is no file" in refused(edges="e")
    assert "e/nothing-*.csv matches no file" in refused(edges="e/nothing-*.csv")


def test_a_dataset_of_a_pattern_is_made_anew_when_a_file_changes(folder):
    options = SourceOptions(features=folder / "x.npy")
    write("e-1.csv")
    first = prepared_path("edges:e-*.csv", options, PrepareOptions())
    write("e-2.csv")
    assert prepared_path("edges:e-*.csv", options, PrepareOptions()) != first


def node_frame(name="id"):
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(city="here")
    if name is not None:
        frame.insert(1, name, np.arange(N))
    return frame.iloc[SHUFFLED]


def rows_of(source):
    """Return the features in the order of the nodes."""
    rows = np.concatenate(list(source.features.chunks(4)))
    out = np.empty_like(rows)
    out[np.arange(N) if source.row_ids is None else source.row_ids] = rows
    return out


def joined(name, **options):
    write("e.csv")
    return opened(features=name, **options)


@pytest.mark.reliability("S2")
@pytest.mark.parametrize(
    "name", ["id", "Node_ID", "nid", "node", "index", "vid", "key", "paper_id", "movieId:ID(Movie)", None]
)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_node_tables_are_joined_by_id(name, form):
    frame = node_frame(name)
    if form == "csv":
        frame.to_csv("n.csv", index=name is None)
    else:
        frame.to_parquet("n.parquet", index=name is None)
    source = joined(f"n.{form}")
    assert np.array_equal(rows_of(source), X)
    assert "city (string)" in source.unused[-1]
    if name is not None:
        assert source.column_notes[1] == f"features: a, b of n.{form}, joined by {name}"


@pytest.mark.reliability("S2")
def test_the_index_of_pandas_is_joined_and_never_a_feature():
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame.iloc[::-1].to_parquet("turned.parquet")  # a range that counts down, which is no column
    frame.rename_axis("when").iloc[SHUFFLED].to_parquet("named.parquet")
    frame.to_csv("sorted.csv")
    frame.iloc[::2].to_parquet("half.parquet")
    for name in ("turned.parquet", "named.parquet", "sorted.csv"):
        assert np.array_equal(rows_of(joined(name)), X), name
    with pytest.raises(SourceError, match=r"half\.parquet: row 3 has 6 in the pandas index"):
        joined("half.parquet")


@pytest.mark.reliability("S2")
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (
            np.arange(N) + 1,
            "row 8 has 9 in column 'id', which joins rows to nodes: ids are 0..8 for 9 nodes",
        ),
        (np.minimum(np.arange(N), 7), "row 8 has 7 in column 'id'"),
        (np.arange(N) - 1, "row 0 has -1 in column 'id'"),
        (
            [f"n{i}" for i in range(N)],
            "column 'id' holds strings; the ids of nodes are the whole numbers 0..N-1",
        ),
        (np.arange(N) + 0.5, "row 0 (line 2), column 'id' is '0.5'; ids are whole numbers"),
    ],
)
def test_ids_that_number_no_nodes_are_refused(ids, message):
    pd.DataFrame(X, columns=["a", "b"]).assign(id=ids).to_csv("n.csv", index=False)
    with pytest.raises(SourceError) as caught:
        joined("n.csv")
    assert f"n.csv: {message}" in str(caught.value)


@pytest.mark.reliability("S2")
def test_an_id_twice_is_named_by_its_second_row(monkeypatch):
    monkeypatch.setattr(typed_table, "_BATCH_NUMBERS", 4)
    for ids, row in (([0, 1, 2, 3, 4, 5, 1, 7, 8], 6), ([0, 1, 2, 2, 4, 5, 6, 7, 8], 3)):
        pd.DataFrame(X, columns=["a", "b"]).assign(id=ids).to_parquet("n.parquet", index=False)
        with pytest.raises(SourceError, match=rf"row {row} has {ids[row]} in column 'id'"):
            joined("n.parquet")


@pytest.mark.reliability("S2")
def test_what_may_be_ids_is_not_taken_for_a_feature():
    pd.DataFrame(X).assign(n=SHUFFLED)[["n", 0, 1]].to_csv("n.csv", index=False, header=False)
    with pytest.raises(SourceError, match=r"the first column \(no header\) holds 0..8, each once: the ids"):
        joined("n.csv")
    np.savetxt("n.csv", np.column_stack([SHUFFLED, X]), delimiter=",")
    with pytest.raises(SourceError, match=r"the first column \(no header\) holds 0..8"):
        joined("n.csv")
    node_frame("id").assign(node=0).to_csv("n.csv", index=False)
    with pytest.raises(SourceError, match="several columns that may be the ids of nodes: id, node"):
        joined("n.csv")
    pd.DataFrame(X).to_csv("n.csv", index=False)
    with pytest.raises(
        SourceError, match=r"n\.csv has 0, 1 and so on in its first row: the header that pandas"
    ):
        joined("n.csv")
    node_frame("id").assign(label=1).to_csv("n.csv", index=False)
    assert joined("n.csv").features.dim == 2


@pytest.mark.reliability("S2")
def test_labels_are_joined_by_id():
    pd.DataFrame({"note": "x", "label": np.arange(N) % 3, "id": np.arange(N)}).iloc[SHUFFLED].to_csv(
        "l.csv", index=False
    )
    source = joined("x.npy", labels="l.csv")
    assert source.labels.tolist() == (np.arange(N) % 3).tolist()
    assert source.unused == ("note (string) of l.csv",)
    pd.DataFrame({"a": np.zeros(N), "b": np.zeros(N)}).to_csv("l.csv", index=False)
    with pytest.raises(
        SourceError, match=r"2 columns that may be labels: a \(number\), b \(number\); .* name it label"
    ):
        joined("x.npy", labels="l.csv")
    pd.Series(np.arange(N) % 3).to_csv("l.csv", index=False)
    with pytest.raises(
        GloaderError, match="10 rows for 9 nodes, and the first is 0: the header that pandas writes"
    ):
        joined("x.npy", labels="l.csv")


def large_table(num_nodes=12_000, dim=64):
    random = np.random.default_rng(3)
    rows = random.standard_normal((num_nodes, dim)).astype(np.float32)
    order = random.permutation(num_nodes)
    pd.DataFrame(rows, columns=[f"f{i}" for i in range(dim)]).assign(id=np.arange(num_nodes)).iloc[
        order
    ].to_parquet("n.parquet", index=False)
    np.save("y.npy", np.arange(num_nodes) % 2)
    write("e.csv", pairs=random.integers(0, num_nodes, (500, 2)))
    return rows


@pytest.mark.reliability("S2")
@pytest.mark.parametrize("order", ["none", "degree"])
def test_rows_are_moved_out_of_core_within_the_budget(folder, monkeypatch, order):
    rows = large_table()
    budget = 44_000_000  # of which pages, write buffers and the sort of edges take all but some
    source = opened(features="n.parquet", memory_budget_bytes=budget)
    options = PrepareOptions(memory_budget_bytes=budget, order=order)
    plan = plan_source(source, folder / "d", options)
    assert min(shares.range_rows for shares in plan.rows.values()) < len(rows)
    assert plan.memory_bytes <= budget
    dealt = []
    real = Spill.deal_out

    def counted(spill, rows, buckets):
        dealt.append(len(rows))
        real(spill, rows, buckets)

    monkeypatch.setattr(Spill, "deal_out", counted)
    prepare(source, folder / "d", options)
    assert sum(dealt) == len(rows)
    held = Dataset.open("d").to_numpy()
    ids = np.load("d/original_ids.npy") if order == "degree" else np.arange(len(rows))
    assert np.array_equal(held["features"], rows[ids])
    with pytest.raises(BudgetError, match=r"n\.parquet is joined by the ids of its 12,000 rows"):
        opened(features="n.parquet", memory_budget_bytes=100_000)


@pytest.mark.reliability("S2")
def test_typed_tables_are_joined_by_id(folder):
    rows = large_table()
    pd.DataFrame({"who": [1, 2], "what": [0, 11_999]}).to_csv("w.csv", index=False)
    (folder / "graph.yaml").write_text(
        "nodes:\n  paper: {features: n.parquet, labels: y.npy}\n  author: {num_nodes: 5}\n"
        "edges:\n  author:writes:paper: {file: w.csv, src: who, dst: what}\n"
    )
    budget = 44_000_000
    source = open_source(f"tables:{folder}", SourceOptions(memory_budget_bytes=budget))
    prepare(source, folder / "d", PrepareOptions(memory_budget_bytes=budget))
    assert np.array_equal(Dataset.open("d").to_numpy()["features"]["paper"], rows)
    (folder / "graph.yaml").write_text(
        (folder / "graph.yaml").read_text().replace("src: who, dst: what", "weight: who")
    )
    with pytest.raises(
        SourceError, match=r"writes:paper: .*w\.csv has the columns who, what: none .* src: COLUMN"
    ):
        open_source(f"tables:{folder}", SourceOptions(memory_budget_bytes=budget))


def test_whole_numbers_of_a_table_are_exact_or_refused(folder):
    frame = pd.DataFrame({"a": X[:, 0], "big": np.arange(N) + 2**24})
    write("e.csv")
    for name in ("n.csv", "n.parquet"):
        (frame.to_csv if name.endswith("csv") else frame.to_parquet)(name, index=False)
        source = opened(features=name)
        with pytest.raises(
            FeatureValueError, match=r"row 1, column 'big' is 16777217, which float32 would round"
        ):
            prepare(source, folder / "d", PrepareOptions(memory_budget_bytes=10**8, overwrite=True))
        options = PrepareOptions(memory_budget_bytes=10**8, dtype="float32", overwrite=True)
        prepare(source, folder / "d", options)
        assert Dataset.open("d").to_numpy()["features"][1, 1] == 2**24


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty.csv", "empty.csv is empty; features are a table with a row per node"),
        ("x.npz", "x.npz holds the arrays x; features in a .npz are one sparse CSR matrix"),
        ("text.csv", "text.csv has no columns of numbers that are features: a (string)"),
    ],
)
def test_a_wrong_file_of_features_is_named(folder, name, message):
    (folder / "empty.csv").touch()
    (folder / "text.csv").write_text("a\nred\n")
    np.savez("x.npz", x=X)
    write("e.csv")
    assert message in refused(features=name)


def test_a_mask_of_whole_numbers_is_named():
    write("e.csv")
    masks = {
        part: (np.arange(N) % 3 == number).astype(int)
        for number, part in enumerate(("train", "valid", "test"))
    }
    np.savez("s.npz", **masks)
    assert "s.npz[train] is a mask of whole numbers, 0 and 1 for each of the 9 nodes" in refused(
        splits="s.npz"
    )
    write("s.csv", "id,split")
    assert "s.csv is a table; splits are a .npz with arrays train, valid and test" in refused(splits="s.csv")


def test_a_file_of_features_for_edges_lies_in_their_order():
    write("e.csv", "src,dst")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"id": np.arange(len(PAIRS)), "a": random.random(len(PAIRS)), "b": 1.0})
    frame.to_csv("ef.csv", index=False)
    assert opened(edge_features="ef.csv").edge_features.dim == 2
    frame.iloc[::-1].to_csv("ef.csv", index=False)
    assert "ef.csv is not sorted by the ids of its rows" in refused(edge_features="ef.csv")


def test_link_tables_have_ends_by_the_same_names(folder):
    write("e.csv")
    write("t.csv", "rank,tail,score,head,label", pairs=PAIRS[:4], form="0,{1},9,{0},1")
    source = opened()
    prepare(source, folder / "d", PrepareOptions(memory_budget_bytes=10**8, edge_tables=("valid=t.csv",)))
    assert Dataset.open("d").link_table("valid").num_rows == 4
    receipt = Dataset.open("d").metadata["receipt"]
    assert "links valid: head and tail of t.csv, label is the label" in receipt["columns"]
    assert receipt["not used"] == "rank (integer) of t.csv, score (integer) of t.csv"


@pytest.mark.reliability("S1")
@pytest.mark.parametrize("name", ["y", "target", "class", "label"])
def test_labels_in_the_table_of_the_features_are_no_feature(name):
    frame = pd.DataFrame({"a": np.arange(8) + 0.5, name: np.arange(8) % 2, "b": np.arange(8) * 2.0})
    frame.to_csv("n.csv", index=False)
    write("e.csv", "src,dst")
    source = opened(features=Path("n.csv"), labels=Path("n.csv"))
    assert source.features.dim == 2
    np.testing.assert_array_equal(source.labels, np.arange(8) % 2)


def test_text_in_a_column_of_labels_says_what_to_write():
    frame = pd.DataFrame({"a": np.arange(N) + 0.5, "b": np.arange(N) * 2.0, "label": ["some text"] * N})
    frame.to_csv("n.csv", index=False)
    with pytest.raises(SourceError, match=r"column 'label' holds .*pandas.factorize"):
        joined("x.npy", labels="n.csv")


def test_part_files_follow_each_other_by_their_numbers():
    folder = Path("parts")
    folder.mkdir()
    for number, rows in ((1, range(3)), (2, range(3, 6)), (10, range(6, N))):
        pd.DataFrame({"a": [row + 0.5 for row in rows]}).to_csv(folder / f"part-{number}.csv", index=False)
    source = joined(folder)
    np.testing.assert_array_equal(rows_of(source)[:, 0], np.arange(N) + 0.5)
