import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse
from convert_helpers import read_all

from gloader.convert.options import SourceOptions
from gloader.convert.sources.edge_source import _name_of, open_edges
from gloader.errors import ConfigError, GraphError, SourceError

EDGES = [(i % 7, i * i % 9) for i in range(500)]
FEATURES = np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2, -1, 0, 1])


@pytest.fixture
def options(tmp_path):
    np.save(tmp_path / "x.npy", FEATURES)
    np.save(tmp_path / "y.npy", LABELS)
    return SourceOptions(features=tmp_path / "x.npy", labels=tmp_path / "y.npy", seed=3)


def text(separator=",", header="", edges=EDGES):
    return header + "".join(separator.join(map(str, edge)) + "\n" for edge in edges)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", text()),
        ("header.csv", text(header="src,dst\n")),
        ("blank.csv", "\n" + text(header="src,dst\n\n")),
        ("quoted.csv", text(header='"source","target"\n')),
        ("snap.txt", text("\t", header="# Directed graph\n# FromNodeId ToNodeId\n")),
        ("spaces.txt", text(" ", header="% konect\n")),
        ("semicolon.csv", text(";")),
        ("swapped.csv", text(header="dst,src\n", edges=[(b, a) for a, b in EDGES])),
        ("more.csv", text(header="time,src,dst,kind\n", edges=[(1.5, a, b, "x") for a, b in EDGES])),
        ("windows.csv", text().replace("\n", "\r\n")),
        ("no_last_newline.csv", text()[:-1]),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_text_files(tmp_path, options, name, content, zipped):
    path = tmp_path / (name + ".gz" if zipped else name)
    path.write_bytes(gzip.compress(content.encode()) if zipped else content.encode())
    source = open_edges(str(path), options)
    for size in (64, 10_000):
        assert read_all(source.edges.chunks(size)) == EDGES
    assert [len(chunk.src) for chunk in source.edges.chunks(200)] == [200, 200, 100]
    assert not source.edges.has_weights
    assert (source.num_nodes, source.num_classes, source.name) == (9, 3, name.split(".", maxsplit=1)[0])


def test_parquet(tmp_path, options):
    src, dst = np.array(EDGES).T
    table = pa.table(
        {"weight": pa.array(dst / 2), "dst": pa.array(dst, pa.int16()), "src": pa.array(src, pa.uint64())}
    )
    pq.write_table(table, tmp_path / "e.parquet", row_group_size=77)
    source = open_edges(str(tmp_path / "e.parquet"), options)
    assert source.edges.num_edges == 500
    assert read_all(source.edges.chunks(64)) == EDGES
    assert np.array_equal(np.concatenate([chunk.weight for chunk in source.edges.chunks(64)]), dst / 2)


@pytest.mark.parametrize("header", ["", "u,v,w\n"])
def test_third_column_is_the_weight(tmp_path, options, header):
    (tmp_path / "e.csv").write_text(header + "0,1,0.5\n2,3,4\n")
    (chunk,) = open_edges(str(tmp_path / "e.csv"), options).edges.chunks(10)
    assert chunk.weight.tolist() == [0.5, 4.0]


@pytest.mark.reliability("C6")
@pytest.mark.parametrize("content", ["", "src,dst\n", "# nothing\n"])
def test_no_edges(tmp_path, options, content):
    (tmp_path / "e.csv").write_text(content)
    assert read_all(open_edges(str(tmp_path / "e.csv"), options).edges.chunks(10)) == []


@pytest.mark.reliability("C3")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0,1\n2,x\n", "e.csv: row 1 (line 2), column 'c1' is 'x'; expected a whole number below 2**63"),
        ("src,dst\n0,1\n2,1.5\n", "row 1 (line 3), column 'dst' is '1.5'"),
        ("0,1\n2,9223372036854775808\n", "row 1 (line 2), column 'c1' is '9223372036854775808'"),
        ("0,1\n,2\n", "row 1 (line 2), column 'c0' is ''"),
        ("0,1\n2\n", "row 1 (line 2) has 1 fields; the first row has 2"),
        ("0,1\n2,3,4\n", "row 1 (line 2) has 3 fields; the first row has 2"),
    ],
)
def test_bad_text_names_file_row_and_value(tmp_path, options, content, message):
    (tmp_path / "e.csv").write_text(content)
    with pytest.raises(GraphError) as caught:
        read_all(open_edges(str(tmp_path / "e.csv"), options).edges.chunks(10))
    assert message in str(caught.value)


@pytest.mark.reliability("C3")
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([1.0, 2.0]),
            "column 'src' has type double; ids are whole numbers: if all of these ids are",
        ),
        (
            pa.array(["1", "2"]),
            "column 'src' holds texts such as '1'. Node ids are whole numbers from 0, and texts are keys: name",
        ),
        (pa.array([1, None]), "row 1, column 'src' is null; every row needs a value"),
        (
            pa.array([1, 2**63], pa.uint64()),
            "column 'src': entry 1 is 9223372036854775808; ids must be below 2**63",
        ),
    ],
)
def test_bad_parquet_names_column_and_row(tmp_path, options, column, message):
    pq.write_table(pa.table({"src": column, "dst": pa.array([0, 1])}), tmp_path / "e.parquet")
    with pytest.raises(GraphError) as caught:
        read_all(open_edges(str(tmp_path / "e.parquet"), options).edges.chunks(10))
    assert message in str(caught.value)


def test_truncated_files(tmp_path, options):
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(text(edges=EDGES * 100).encode())[:200])
    with pytest.raises(SourceError, match=r"e\.csv\.gz is truncated"):
        read_all(open_edges(str(tmp_path / "e.csv.gz"), options).edges.chunks(10))
    pq.write_table(pa.table({"src": [1], "dst": [1]}), tmp_path / "e.parquet")
    (tmp_path / "e.parquet").write_bytes((tmp_path / "e.parquet").read_bytes()[:100])
    with pytest.raises(SourceError, match=r"e\.parquet is not a Parquet file, or is truncated"):
        open_edges(str(tmp_path / "e.parquet"), options)


def test_features_and_labels_in_other_formats(tmp_path, options):
    (tmp_path / "e.csv").write_text(text())
    np.savetxt(tmp_path / "x.csv", FEATURES, delimiter=",", header="a,b,c", comments="", fmt="%.9g")
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csr_array(FEATURES))
    pq.write_table(pa.table({str(i): column for i, column in enumerate(FEATURES.T)}), tmp_path / "x.parquet")
    np.savetxt(tmp_path / "y.csv", LABELS, fmt="%d")
    pq.write_table(pa.table({"y": LABELS}), tmp_path / "y.parquet")
    for features in ("x.csv", "x.npz", "x.parquet", "x.npy"):
        for labels in ("y.csv", "y.parquet", "y.npy"):
            given = SourceOptions(features=tmp_path / features, labels=tmp_path / labels)
            source = open_edges(str(tmp_path / "e.csv"), given)
            assert (source.features.num_rows, source.features.dim) == FEATURES.shape
            assert np.array_equal(np.concatenate(list(source.features.chunks(4))), FEATURES)
            assert np.array_equal(source.labels, LABELS)


def test_given_and_random_splits(tmp_path, options):
    (tmp_path / "e.csv").write_text(text())
    random = open_edges(str(tmp_path / "e.csv"), options).splits
    assert sorted([*random.train, *random.valid, *random.test]) == [0, 1, 2, 3, 4, 5, 7, 8]
    np.savez(tmp_path / "s.npz", train=[0], val=[1], test=[2])
    (tmp_path / "s").mkdir()
    for name, ids in (("train", [0]), ("valid", [1]), ("test", [2])):
        np.save(tmp_path / "s" / f"{name}.npy", ids)
    for name in ("s.npz", "s"):
        given = SourceOptions(features=options.features, labels=options.labels, splits=tmp_path / name)
        splits = open_edges(str(tmp_path / "e.csv"), given).splits
        assert (splits.train.tolist(), splits.valid.tolist(), splits.test.tolist()) == ([0], [1], [2])


def test_what_is_missing_is_said(tmp_path, options):
    (tmp_path / "e.csv").write_text(text())
    (tmp_path / "one.csv").write_text("1\n2\n")
    with pytest.raises(ConfigError, match="needs features; name their file with --features FILE"):
        open_edges(str(tmp_path / "e.csv"), SourceOptions())
    with pytest.raises(SourceError, match=r"nowhere\.csv is missing"):
        open_edges(str(tmp_path / "nowhere.csv"), options)
    with pytest.raises(
        SourceError, match=r"the name has no known suffix; use one of .arrow, .arrows, .csv, "
    ):
        open_edges(str(tmp_path / "x.npy"), options)
    with pytest.raises(SourceError, match="has one column; an edge list has source, destination"):
        open_edges(str(tmp_path / "one.csv"), options)
    (tmp_path / "x.csv").write_text("1,2\n3,x\n" + 7 * "5,6\n")
    given = SourceOptions(features=tmp_path / "x.csv", labels=options.labels)
    with pytest.raises(SourceError, match=r"x\.csv: row 1 \(line 2\), column 'c1' is 'x'; expected a number"):
        list(open_edges(str(tmp_path / "e.csv"), given).features.chunks(10))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("edges.csv", "citations"),
        ("edge_list.csv.gz", "citations"),
        ("Edges.parquet", "citations"),
        ("friends.csv", "friends"),
    ],
)
def test_a_graph_is_called_by_its_file_or_by_the_folder_of_its_edges(tmp_path, file, name):
    folder = tmp_path / "citations"
    assert _name_of(folder / file) == name


def test_a_matrix_of_matrix_market_is_edges(tmp_path, options):
    scipy.io.mmwrite(
        tmp_path / "web.mtx", scipy.sparse.coo_matrix(np.diag(np.arange(1.0, 9), -1)), symmetry="symmetric"
    )
    source = open_edges(str(tmp_path / "web.mtx"), options)
    assert read_all(source.edges.chunks(5)) == [pair for i in range(8) for pair in ((i + 1, i), (i, i + 1))]
    assert (source.name, source.edges.has_weights) == ("web", True)
    assert source.column_notes[0] == (
        "edges: row and column of web.mtx (Matrix Market, ids from 1, symmetric: an entry outside the diagonal is two "
        "edges), weight is the weight"
    )


def test_a_matrix_is_no_features_and_has_as_many_rows_as_columns(tmp_path, options):
    scipy.io.mmwrite(tmp_path / "web.mtx", scipy.sparse.coo_matrix(np.ones((9, 3))))
    with pytest.raises(SourceError, match=r"web\.mtx has 9 rows and 3 columns, so they are different nodes"):
        open_edges(str(tmp_path / "web.mtx"), options)
    (tmp_path / "e.csv").write_text(text())
    given = SourceOptions(features=tmp_path / "web.mtx", labels=options.labels)
    with pytest.raises(
        SourceError, match=r"web\.mtx is a sparse matrix of .* save sparse features with scipy\.sparse"
    ):
        open_edges(str(tmp_path / "e.csv"), given)
    given = SourceOptions(features=options.features, labels=tmp_path / "web.mtx")
    with pytest.raises(SourceError, match=r"web\.mtx is a sparse matrix of .* save the labels as a \.npy"):
        open_edges(str(tmp_path / "e.csv"), given)
