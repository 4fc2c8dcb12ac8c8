"""Files that are not quite tables of numbers: read as what they mean, or refused with what to do about it."""

import bz2
import decimal
import gzip
import lzma
import re
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from gloader.convert.options import PrepareOptions, SourceOptions
from gloader.convert.prepare import prepare
from gloader.convert.registry import open_source
from gloader.dataset import Dataset
from gloader.errors import BudgetError, GloaderError

N = 6
PAIRS = [(i, (i + 1) % N) for i in range(N)]
X = (np.arange(2 * N).reshape(N, 2) / 4).astype(np.float32)
BUDGET = 60 * 10**6

pytestmark = pytest.mark.reliability("S1")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("y.npy", np.arange(N) % 2)
    Path("e.csv").write_text(text())
    return tmp_path


def text(form="{},{}\n", header="src,dst\n"):
    return header + "".join(form.format(*pair) for pair in PAIRS)


def rows(form, header="id,f\n", last=None):
    lines = [form.format(i, i / 2) for i in range(N)]
    return header + "".join(lines if last is None else [*lines[:-1], last])


def prepared(edges="e.csv", features="x.npy", labels="y.npy", **options):
    """Return the dataset of some files, which must not be there before."""
    source = open_source(
        f"edges:{edges}",
        SourceOptions(features=Path(features), labels=Path(labels), memory_budget_bytes=BUDGET),
    )
    prepare(source, Path("out"), PrepareOptions(memory_budget_bytes=BUDGET, overwrite=True, **options))
    return Dataset.open("out")


def refusal(**files):
    with pytest.raises(GloaderError) as caught:
        prepared(**files)
    said = str(caught.value)
    assert said.isprintable()
    return said


def save(name, content):
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


EDGES = [
    ("e2.csv", text("{}.0,{}.0\n"), "row 0 (line 2), column 'src' is '0.0'; ids are whole numbers: if all"),
    ("e2.csv", text("{},{}.0\n") + "3,\n", "is '1.0'; ids are whole numbers, and row 6 has none, so pandas wrote"),
    ("e2.csv", text("{},{}\n") + "3,NA\n", "row 6 (line 8), column 'dst' is 'NA', a missing value: leave"),
    ("e2.csv", text("+{},{}\n"), "column 'src' is '+0'; expected a whole number below 2**63"),
    ("e2.csv", text("1844674407370955161{},{}\n"), "is '18446744073709551610'; expected a whole number below"),
    ("e2.csv", text("'{}',{}\n"), "column 'src' is \"'0'\"; expected a whole number"),
    ("e2.csv", text("{},{},\n"), "row 0 (line 2) has 3 fields; the header has 2: '0, 1, '"),
    ("e2.csv", text("{},{},much\n", "src,dst,weight\n"), "column 'weight' holds strings; weights are numbers"),
    ("e2.csv", text("{},{},1e-300\n", "src,dst,weight\n"), "edge 0 has weight 1e-300, which float32 would round to 0;"),
    ("e2.csv", text("{},{},1e300\n", ""), "column 'c2': edge 0 has weight 1e+300, which float32 would round to inf;"),
    ("e2.csv", text("{},{},1,2\n", "src,dst,w,Weight\n"), "columns may be the weights of e2.csv: w, Weight; keep one"),
    ("e2.csv", text("{}::{}\n", ""), "e2.csv has one column, '0::1'; an edge list has"),
    ("e2.csv", text().encode("utf-16"), "(UTF-16); save it as UTF-8"),
    ("e2.csv", text().encode("utf-16-le"), "has zero bytes, so it is not UTF-8 text"),
    ("e2.csv", text("{},{},1\n", "src,dst,größe\n").encode("latin-1"), "which is not UTF-8; save the file as"),
    ("e2.csv", gzip.compress(text().encode()), "e2.csv is packed with gzip; add .gz to its name"),
    ("e2.csv", b"PK\x03\x04\0\0", "e2.csv is a zip archive, or a workbook of Excel; unpack it"),
    ("e2.csv", pa.compress(b"0,1\n", "zstd", asbytes=True), "e2.csv is packed with zstd; unpack it"),
    ("e2.csv", bz2.compress(b"0,1\n"), "e2.csv is packed with bzip2; unpack it"),
    ("e2.csv", lzma.compress(b"0,1\n"), "e2.csv is packed with xz; unpack it"),
    ("e2.csv", b"PAR1\0\0", "e2.csv is a Parquet file; give it a name that ends in .parquet"),
    ("e2.txt", "%%MatrixMarket matrix coordinate\n3 3 1\n1 2 1\n", "a matrix of Matrix Market; rename it so that"),
    ("e2.csv.zip", b"PK", "the name has no known suffix; use one of .arrow, "),
    ("e2.csv.zst", b"", "(.gz after those of text): unpack it, or pack it with gzip"),
    ("e2.xlsx", b"", "save it as CSV"),
    ("e2.jsonl", b"{}", "pandas.read_json(file, lines=True).to_parquet("),
    ("e2.pkl", b"", "pickles are never read, because they can run code. If you trust the file, turn it into tables"),
    ("e2.graphml", "", "graph = networkx.read_graphml(file); networkx.to_pandas_edgelist(graph).to_parquet("),
    ("e2.gexf.gz", b"", "graph = networkx.read_gexf(file)"),
    ("e2.npz", b"", "matrix = scipy.sparse.load_npz(file).tocoo()"),
    ("e2.npy", b"", "edges as an array are edges.npy in a folder of arrays, npy:FOLDER"),
    ("*/part.csv", None, "*/part.csv is a pattern of folders; only file names may have marks"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "said"), EDGES, ids=[f"{i}" for i in range(len(EDGES))])
def test_edges_that_are_not_quite_a_table_are_refused(name, content, said):
    if content is not None:
        save(name, content)
    assert said in refusal(edges=name)


@pytest.mark.parametrize(
    "content",
    [
        text().replace("\n", "\r"),
        text('"{}","{}"\n'),
        text("{:03},{:03}\n"),
        text("0x{:x},0x{:x}\n"),
        text("{},{},\n", "src,dst,\n"),
        text("{},{},\n", ""),
    ],
    ids=["carriage returns", "quotes", "zeros", "hexadecimal", "empty column", "empty field"],
)
def test_edges_that_are_written_otherwise_are_read(content):
    dataset = prepared(edges=save("e2.csv", content))
    np.testing.assert_array_equal(dataset.load_graph().indices, np.roll(np.arange(N), 1))


FEATURES = [
    ("n.csv", rows("{},{}\n", last="5,\n"), "n.csv: row 5, column 'f' is nan; clean them, or let such values in"),
    ("n.csv", rows("{},{}\n", last="5,NA\n"), "is 'NA', a missing value: leave such rows out, or"),
    ("n.csv", rows("{}.0,{}\n"), "column 'id' is '0.0'; ids are whole numbers: if all of these ids are, write"),
    ("n.csv", rows("{}.0,{}\n") + ",1\n", f"ids are whole numbers, and row {N} has none, so pandas wrote all ids"),
    ("n.csv", rows('{0},"[{0}.5, {1}]"\n'), "n.csv: f holds text that is almost a number, such as '[0.1, 0.2]'"),
    ("n.csv", rows('{0},"{0},5",2\n', "id,f,g\n"), "f holds text that is almost a number"),
    ("n.csv", rows('{0},"1,00{0}"\n'), "f holds text that is almost a number"),
    ("n.csv", rows("{},{}%,2\n", "id,f,g\n"), "f holds text that is almost a number"),
    ("n.csv", rows("{},${},2\n", "id,f,g\n"), "f holds text that is almost a number"),
    ("n.csv", rows("{},1e300\n"), "n.csv: row 0, column 'f' is 1e+300, which is beyond float32; scale"),
    ("n.csv", rows("{},{}\n", last="5,1e-46\n"), "row 5, column 'f' is 1e-46, which float32 would round to 0. Scale"),
    ("n.csv", rows("{},{}\n", last="5,16777217\n"), "row 5, column 'f' is 16777217, which float32 would round"),
    ("n.csv", "id,f\n", "n.csv has names and no rows; features are a table with a row per node"),
    ("n.xlsx", b"PK", "n.xlsx is no .npy or .npz array: the name has no known suffix"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "said"), FEATURES, ids=[f"{i}" for i in range(len(FEATURES))])
def test_features_that_are_not_quite_a_table_are_refused(name, content, said):
    assert said in refusal(features=save(name, content))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.full((N, 1), 2.0**24 + 1), "row 0, column 0 is 16777217.0, which float32 would round"),
        (
            np.full((N, 2), 1e-300),
            "column 0 is 1e-300, which float32 would round to 0. Scale the features, or accept",
        ),
        (
            np.full((N, 2), 1e300),
            "row 0, column 0 is 1e.300, beyond the largest float32 3.40282e.38; scale the",
        ),
        (X.astype(complex), "and dtype complex128, .* save its numbers with .astype"),
        (np.zeros((N, 2), "M8[s]"), r"dtype datetime64\[s\], .* save its numbers with .astype"),
        (X[:, 0], r"has shape \(6,\) .* save features.reshape\(N, -1\)"),
    ],
)
def test_arrays_that_are_no_features_are_refused(array, said):
    np.save("x2.npy", array)
    with pytest.raises(GloaderError, match=said):
        prepared(features="x2.npy")


def test_whole_floats_may_be_rounded_where_a_dtype_was_asked_for():
    np.save("x2.npy", np.full((N, 1), 2.0**24 + 1))
    assert prepared(features="x2.npy", dtype="float32").to_numpy()["features"][0, 0] == 2**24
    np.save("x2.npy", np.full((N, 1), 1e-300))
    assert prepared(features="x2.npy", dtype="float32").to_numpy()["features"][0, 0] == 0


@pytest.mark.parametrize(
    ("value", "dtype", "said"),
    [
        (1e-300, float, "row 3, column 1 is 1e-300, which float32 would round to 0"),
        (2**24 + 1, np.int64, "row 3, column 1 is 16777217, which float32 would round"),
        (1, complex, "x2.npz[data] has dtype complex128; features are real numbers: save them with"),
    ],
)
def test_sparse_features_are_as_exact_as_others(value, dtype, said):
    matrix = np.zeros((N, 2), dtype)
    matrix[3, 1] = value
    scipy.sparse.save_npz("x2.npz", scipy.sparse.csr_array(matrix))
    assert said in refusal(features="x2.npz")


def test_a_class_id_that_is_no_class_is_refused_with_the_classes_that_there_are():
    cure = "different labels: write np.unique(labels, return_inverse=True)[1]"
    for given, said in (
        (
            [0, 5, 10**9, 5, 0, 7],
            f"row 2 has label 1000000000; labels are classes in 0..999999, .*; there are 4 {cure} instead",
        ),
        (
            [0, 5, -1, 2**31, 0, 7],
            f"row 3 has label 2147483648; .*; there are 4 {cure} - 1 instead, which gives",
        ),
        (
            [0, 5, 5, 0, 5, 99_999],
            f"go up to 99999, for which a model has 100,000 outputs; there are 3 {cure} instead",
        ),
    ):
        np.save("y2.npy", given)
        assert re.search(re.sub(r"([\[\]()])", r"\\\1", said), refusal(labels="y2.npy"))
    renumbered = np.unique([0, 5, -1, 2**31, 0, 7], return_inverse=True)[1] - 1
    np.save("y2.npy", renumbered)
    assert prepared(labels="y2.npy").to_numpy()["labels"].tolist() == [0, 1, -1, 3, 0, 2]


def test_several_columns_of_labels_are_refused():
    save("l.csv", "y,label\n" + "0,1\n" * N)
    assert "several columns may be the labels of l.csv: y, label; keep one of these names" in refusal(
        labels="l.csv"
    )


def parquet(name, **columns):
    pq.write_table(pa.table(columns), name)
    return name


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.float64(), 2), pa.large_list(pa.float16())]
)
def test_lists_in_a_table_are_features_beside_its_numbers(kind):
    ids = np.random.default_rng(0).permutation(N)
    lists = pa.array(X[ids].astype(np.float16 if kind.value_type == pa.float16() else float).tolist(), kind)
    price = pa.array([decimal.Decimal(int(i)) / 4 for i in ids], pa.decimal128(6, 2))
    name = parquet("n.parquet", emb=lists, id=ids, age=ids * 2, price=price)
    dataset = prepared(features=name)
    expected = np.column_stack([X, np.arange(N) * 2, np.arange(N) / 4])
    np.testing.assert_array_equal(dataset.to_numpy()["features"], expected)
    assert "features: emb, age, price of n.parquet, joined by id" in dataset.metadata["receipt"]["columns"]


def test_lists_that_are_no_features_are_refused():
    ragged = parquet("r.parquet", emb=[[1.0, 2.0]] * (N - 1) + [[1.0]])
    assert "row 5 has a list of 1 in column 'emb'; every row must have a list of 2" in refusal(
        features=ragged
    )
    large = parquet("l.parquet", emb=[[1, 2**24 + 1]] * N)
    assert "row 0, column 'emb' is 16777217, which float32 would round" in refusal(features=large)
    words = parquet("w.parquet", emb=[["a"]] * N)
    assert "no columns of numbers that are features: emb (list<element: string>). Turn" in refusal(
        features=words
    )
    nan = parquet("n.parquet", emb=[[1.0, 2.0]] * (N - 1) + [[1.0, float("nan")]])
    assert "n.parquet: row 5, column 'emb[1]' is nan" in refusal(features=nan)


def test_parts_have_lists_of_one_length():
    Path("parts").mkdir()
    parquet("parts/a.parquet", emb=[[1.0, 2.0]] * 3)
    parquet("parts/b.parquet", emb=[[1.0]] * 3)
    assert "b.parquet holds list of 1s in column 'emb', and a.parquet list of 2s" in refusal(features="parts")
    parquet("parts/b.parquet", emb=[[1.0, 2.0]] * 3)
    parquet("parts/c.parquet", emb=pa.array([], pa.list_(pa.float64())))
    assert prepared(features="parts").feature_dim == 2


@pytest.mark.parametrize("name", ["n.csv", "n.parquet"])
def test_missing_numbers_are_let_in_where_they_were_asked_for(name):
    frame = pd.DataFrame({"a": X[:, 0], "b": pd.array([1, None, 3, 4, 5, 6], "Int64")})
    (frame.to_csv if name.endswith("csv") else frame.to_parquet)(name, index=False)
    assert f"{name}: row 1, column 'b' is nan" in refusal(features=name)
    held = prepared(features=name, allow_nan=True).to_numpy()["features"]
    assert np.isnan(held).tolist() == np.isnan(frame.astype(float).to_numpy()).tolist()


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_partitions_are_refused_with_what_puts_them_into_one_folder(kind, folder):
    for part in (0, 1):
        path = folder / "edges" / f"half={part}" / f"a.{kind}"
        path.parent.mkdir(parents=True)
        frame = pd.DataFrame(PAIRS[3 * part : 3 * part + 3], columns=["src", "dst"])
        (frame.to_csv if kind == "csv" else frame.to_parquet)(path, index=False)
    said = refusal(edges="edges")
    assert "edges holds half=" in said
    Path("flat.py").write_text(said[said.index("import pyarrow") :])
    runpy.run_path("flat.py")
    dataset = prepared(edges="edges_flat")
    np.testing.assert_array_equal(dataset.load_graph().indices, np.roll(np.arange(N), 1))


def test_labels_of_some_nodes_are_joined_by_id():
    dataset = prepared(labels=save("l.csv", "label,id\n1,4\n0,1\n1,0\n"))
    assert dataset.labels.tolist() == [1, 0, -1, -1, 1, -1]
    receipt = dataset.metadata["receipt"]
    assert "labels: label of l.csv, joined by id, 3 nodes are not in it" in receipt["columns"]
    assert receipt["labels by class"] == "0: 1, 1: 2; 3 nodes have none"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "label\n1\n0\n",
            "l.csv has 2 rows for 6 nodes, and no column with the nodes' ids: add a column named id, or",
        ),
        (",label\n0,1\n1,0\n", "l.csv has 2 rows for 6 nodes, and no column with the nodes' ids"),
        (
            "id,label\n0,1\n6,0\n",
            "row 1 has 6 in column 'id', which joins rows to nodes: ids are 0..5 for 6",
        ),
        ("id,label\n0,1\n0,0\n", "row 1 has 0 in column 'id'"),
        ("id,label\n", "l.csv has names and no rows; labels are a table with a row per node"),
        ("", "l.csv is empty; labels are a table with a row per node"),
    ],
)
def test_labels_that_may_be_of_other_nodes_are_refused(content, said):
    assert said in refusal(labels=save("l.csv", content))


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.eye(2)[np.arange(N) % 2][:, None], "labels must be (N,), one class or value per node, or (N, k)"),
        (np.array(["a"] * N), "np.unique(labels"),
    ],
)
def test_arrays_that_are_no_labels_say_what_to_write(array, said):
    np.save("l.npy", array)
    assert said in refusal(labels="l.npy")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_a_conversion_stays_within_its_budget_as_its_report_says(kind):
    random = np.random.default_rng(0)
    ends, budget = random.integers(0, 20_000, (2, 400_000)), 48_000_000
    x = random.standard_normal((20_000, 64)).astype(np.float32)
    np.save("y.npy", np.zeros(20_000, np.int64))
    frame = pd.DataFrame(ends.T, columns=["src", "dst"])
    if kind == "npy":
        Path("g").mkdir()
        np.savez("g/graph.npz", edge_index=ends, labels=np.load("y.npy"))
        np.save("g/features.npy", x)
        source = open_source("npy:g", SourceOptions(memory_budget_bytes=budget))
    else:
        (frame.to_csv if kind == "csv" else frame.to_parquet)(f"e.{kind}", index=False)
        pq.write_table(pa.table({"x": pa.array(list(x))}), "n.parquet")
        source = open_source(
            f"edges:e.{kind}",
            SourceOptions(features=Path("n.parquet"), labels=Path("y.npy"), memory_budget_bytes=budget),
        )
    report = prepare(source, Path("out"), PrepareOptions(memory_budget_bytes=budget))
    assert 1_000_000 < report.peak_bytes <= budget


def test_a_table_of_many_columns_is_refused_where_its_pages_do_not_fit():
    x = np.random.default_rng(0).standard_normal((20_000, 200))
    pd.DataFrame(x).add_prefix("f").to_parquet("n.parquet", index=False)
    np.save("y.npy", np.zeros(20_000, np.int64))
    with pytest.raises(BudgetError, match=r"needs 105 MB .* the memory budget allows 60 MB"):
        prepared(features="n.parquet")
