"""Sparse matrices in Matrix Market files as edges."""

import gzip

import numpy as np
import pyarrow as pa
import pytest

from gloader.convert.readers import csv_table
from gloader.convert.readers.matrix_market import require_square
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import TableEdges
from gloader.errors import GraphError, SourceError

scipy_io = pytest.importorskip("scipy.io")
scipy_sparse = pytest.importorskip("scipy.sparse")


def write(
    path, kind="real general", size="4 4 3", rows=("1 2 0.5", "4 4 -1", "3 1 2e3"), comments="% made up\n"
):
    text = f"%%MatrixMarket matrix coordinate {kind}\n{comments}{size}\n" + "".join(
        f"{row}\n" for row in rows
    )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def edges(path, max_edges=2):
    """Return the edges (E, 2) as a list, and the weights or None."""
    chunks = list(TableEdges.open(open_table(path)).stream().chunks(max_edges))
    pairs = [pair for chunk in chunks for pair in zip(chunk.src.tolist(), chunk.dst.tolist(), strict=True)]
    weights = [w for chunk in chunks if chunk.weight is not None for w in chunk.weight.tolist()]
    return pairs, weights or None


@pytest.mark.parametrize("name", ["a.mtx", "a.mtx.gz"])
def test_an_entry_is_an_edge_from_its_row_to_its_column(tmp_path, name):
    path = write(tmp_path / name, comments="%\n% two comments\n\n")
    assert edges(path) == ([(0, 1), (3, 3), (2, 0)], [0.5, -1, 2000])
    assert open_table(path).num_rows == open_table(path).count_rows() == 3


def test_a_pattern_has_no_weights(tmp_path):
    path = write(tmp_path / "a.mtx", "pattern general", "4 4 2", ("1 2", "2   1"))
    assert edges(path) == ([(0, 1), (1, 0)], None)


def test_a_symmetric_matrix_has_its_entries_both_ways(tmp_path):
    path = write(tmp_path / "a.mtx", "integer symmetric", "4 4 3", ("2 1 5", "3 3 7", "4 2 9"))
    assert edges(path) == ([(1, 0), (0, 1), (2, 2), (3, 1), (1, 3)], [5, 5, 7, 9, 9])
    table = open_table(path)
    assert (table.num_rows, table.count_rows()) == (None, 5)
    assert "symmetric: an entry outside the diagonal is two edges" in table.remark


def test_the_other_side_of_a_skew_symmetric_matrix_is_negative(tmp_path):
    path = write(tmp_path / "a.mtx", "real skew-symmetric", "4 4 2", ("2 1 5", "4 2 0.5"))
    assert edges(path) == ([(1, 0), (0, 1), (3, 1), (1, 3)], [5, -5, 0.5, -0.5])
    assert "the second one with the negative value" in open_table(path).remark


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_scipy_reads_the_same_matrix(tmp_path, field, symmetry, monkeypatch):
    if (field, symmetry) == ("pattern", "skew-symmetric"):
        pytest.skip("no such matrix")
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 1 << 10)  # many batches
    draw = np.random.default_rng(0)
    matrix = scipy_sparse.random_array((300, 300), density=0.01, rng=draw, format="coo")
    matrix.data = draw.integers(1, 90, matrix.nnz).astype(np.float64 if field == "real" else np.int64)
    if symmetry != "general":
        lower = scipy_sparse.tril(matrix, -1)
        matrix = lower + lower.T * (-1 if "skew" in symmetry else 1)
    path = tmp_path / "a.mtx"
    scipy_io.mmwrite(path, matrix, field=field, symmetry=symmetry)
    pairs, weights = edges(path, max_edges=17)
    expected = scipy_io.mmread(path).tocsr()
    found = scipy_sparse.coo_array(
        (weights or np.ones(len(pairs)), np.transpose(pairs)), shape=(300, 300)
    ).tocsr()
    assert len(pairs) == expected.nnz == matrix.nnz
    assert abs(found - expected).max() == 0


def test_stored_values_begin_at_zero_too(tmp_path):
    table = open_table(write(tmp_path / "a.mtx"))
    (batch,) = table.read_arrow(["column", "weight"], error=SourceError)
    assert (
        batch.schema.types
        == [pa.int64(), pa.float64()]
        == [table.arrow_type(n) for n in ("column", "weight")]
    )
    assert batch.to_pydict() == {"column": [1, 3, 0], "weight": [0.5, -1, 2000]}


@pytest.mark.parametrize(
    ("kind", "size", "rows", "text"),
    [
        ("real general", "4 4 2", ("1 2 1", "0 1 1"), "entry 1 has row 0; ids are 1..4 in this matrix"),
        ("real general", "3 4 2", ("1 4 1", "1 5 1"), "entry 1 has column 5; ids are 1..4 in this matrix"),
        (
            "real general",
            "4 4 3",
            ("1 2 1",),
            "has 1 entries, and its size line says 3; the file is truncated",
        ),
        ("real general", "4 4 1", ("1 2 1", "1 3 1"), "has more than 1 entries, and its size line says 1"),
        ("real general", "4 4 2", ("1 2 1", "1 2"), r"row 1 \(line 5\) has 2 fields; the header has 3"),
        ("real general", "4 4 1", ("1 x 1",), r"row 0 \(line 4\), column 'column' is 'x'; expected a whole"),
        (
            "real symmetric",
            "4 4 2",
            ("2 1 1", "1 3 1"),
            "is symmetric, and has entries on both sides of the diag",
        ),
        ("real symmetric", "4 5 1", ("2 1 1",), "is symmetric, but has 4 rows and 5 columns"),
        (
            "complex hermitian",
            "4 4 1",
            ("2 1 1 1",),
            "is a hermitian matrix of complex numbers; weights are real",
        ),
        ("real general", "4 4", (), "line 3 is '4 4'; it must have the numbers of rows, columns and entries"),
        ("general", "4 4 0", (), "the first line is .*; a matrix begins with a line such as %%MatrixMarket"),
    ],
)
def test_what_is_no_such_matrix_is_refused(tmp_path, kind, size, rows, text):
    path = write(tmp_path / "a.mtx", kind, size, rows)
    with pytest.raises((GraphError, SourceError), match=rf"a\.mtx.*{text}"):
        edges(path, max_edges=100)


def test_a_dense_matrix_is_refused(tmp_path):
    scipy_io.mmwrite(tmp_path / "a.mtx", np.ones((2, 2)))
    with pytest.raises(
        SourceError, match=r"dense matrix \(array\).*scipy.io.mmwrite\(file, scipy.sparse.coo_matrix"
    ):
        open_table(tmp_path / "a.mtx")


def test_an_empty_matrix_has_no_edges(tmp_path):
    assert edges(write(tmp_path / "a.mtx", size="4 4 0", rows=())) == ([], None)


def test_a_matrix_that_is_not_square_has_two_node_types(tmp_path):
    require_square(open_table(write(tmp_path / "a.mtx")))
    with pytest.raises(
        SourceError, match=r"a\.mtx has 4 rows and 5 columns, so they are different .*graph\.yaml"
    ):
        require_square(open_table(write(tmp_path / "a.mtx", size="4 5 3")))
    with pytest.raises(SourceError, match=r"a\.mtx has 4 rows and 5 columns"):
        require_square(open_table(tmp_path / "*.mtx"))
