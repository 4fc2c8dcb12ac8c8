import numpy as np
import pytest
import scipy.sparse
from convert_helpers import read_all, write_folder

from gloader.convert.options import SourceOptions
from gloader.convert.source_check import check_source
from gloader.convert.sources.npy import open_npy
from gloader.errors import GraphError, ShapeError, SourceError

OPTIONS = SourceOptions()


def opened(folder):
    return open_npy(str(folder), OPTIONS)


def pairs(array):
    return [tuple(pair) for pair in np.asarray(array).tolist()]


def test_plain_folder(tmp_path):
    arrays = write_folder(tmp_path / "tiny")
    source = opened(tmp_path / "tiny")
    assert (source.name, source.num_nodes, source.num_classes) == ("tiny", 10, 3)
    assert read_all(source.edges.chunks(7)) == pairs(arrays["edges"])
    assert read_all(source.edges.chunks(1000)) == pairs(arrays["edges"])
    assert np.array_equal(np.concatenate(list(source.features.chunks(4))), arrays["features"])
    assert np.array_equal(source.splits.test, arrays["test"])
    check_source(source)


@pytest.mark.parametrize("dtype", ["int32", "uint16", "uint64", "int64"])
@pytest.mark.parametrize("layout", ["edges", "edge_index", "edges_t", "edge_index_t", "fortran"])
def test_pairs_in_every_layout(tmp_path, layout, dtype):
    edges = np.random.default_rng(0).integers(0, 10, (50, 2)).astype(dtype)
    forms = {
        "edges": ("edges", edges),
        "edge_index": ("edge_index", np.ascontiguousarray(edges.T)),
        "edges_t": ("edges", np.ascontiguousarray(edges.T)),
        "edge_index_t": ("edge_index", edges),
        "fortran": ("edge_index", edges.T),
    }
    name, array = forms[layout]
    write_folder(tmp_path, **{"edges": None, name: array})
    assert read_all(opened(tmp_path).edges.chunks(9)) == pairs(edges)


@pytest.mark.parametrize(
    ("name", "expected"), [("edges", [(0, 1), (2, 3)]), ("edge_index", [(0, 2), (1, 3)])]
)
def test_two_by_two_is_read_as_the_name_says(tmp_path, name, expected):
    write_folder(tmp_path, **{"edges": None, name: np.array([[0, 1], [2, 3]])})
    assert read_all(opened(tmp_path).edges.chunks(9)) == expected


@pytest.mark.parametrize("archived", [False, True])
def test_compressed_topology_with_weights(tmp_path, archived):
    indptr, indices = np.array([0, 2, 2, 3]), np.array([1, 2, 0], np.int32)
    weight = np.array([0.5, 1.5, 2.5])
    topology = {"indptr": indptr, "indices": indices, "edge_weight": weight}
    splits = {"train": np.array([0]), "valid": np.array([1]), "test": np.array([2])}
    write_folder(tmp_path, num_nodes=3, edges=None, **({} if archived else topology), **splits)
    if archived:
        np.savez_compressed(tmp_path / "graph.npz", **topology)
    source = opened(tmp_path)
    assert read_all(source.edges.chunks(2)) == [(1, 0), (2, 0), (0, 2)]
    assert [w for chunk in source.edges.chunks(2) for w in chunk.weight] == [0.5, 1.5, 2.5]


def test_sparse_features_are_made_dense_chunk_by_chunk(tmp_path):
    matrix = scipy.sparse.random(10, 6, 0.3, format="csr", dtype=np.float32, random_state=0)
    write_folder(tmp_path, features=None)
    scipy.sparse.save_npz(tmp_path / "features_csr.npz", matrix)
    source = opened(tmp_path)
    for rows in (1, 3, 100):
        assert np.array_equal(np.concatenate(list(source.features.chunks(rows))), matrix.toarray())


def test_sparse_features_that_are_malformed(tmp_path):
    write_folder(tmp_path, features=None)
    parts = {"format": b"csr", "shape": [10, 6], "indptr": np.arange(11), "data": np.ones(10)}
    np.savez(tmp_path / "features_csr.npz", indices=np.array([0] * 7 + [6, 0, 0]), **parts)
    with pytest.raises(SourceError, match=r"entry 7 is column 6; columns are 0..5"):
        list(opened(tmp_path).features.chunks(4))
    for other in ({"shape": [11, 6]}, {"data": np.ones(9)}):
        np.savez(tmp_path / "features_csr.npz", indices=np.zeros(10, int), **(parts | other))
        with pytest.raises(SourceError, match="contradicts itself"):
            opened(tmp_path)
    np.savez(tmp_path / "features_csr.npz", indices=np.zeros(10, int), **(parts | {"format": b"coo"}))
    with pytest.raises(SourceError, match="format 'coo'"):
        opened(tmp_path)


def test_masks_floats_and_missing_splits(tmp_path):
    labels = np.array([0, 1, np.nan, 2, 1, 0, np.nan, 0, 1, 2])
    mask = np.arange(10) < 2
    write_folder(
        tmp_path, labels=labels[:, None], train=mask, valid=None, val=np.array([3]), test=np.array([4])
    )
    source = opened(tmp_path)
    assert source.labels.tolist() == [0, 1, -1, 2, 1, 0, -1, 0, 1, 2]
    assert source.splits.train.tolist() == [0, 1]
    assert source.splits.valid.tolist() == [3]
    for name in ("train", "val", "test"):
        (tmp_path / f"{name}.npy").unlink()
    splits = opened(tmp_path).splits
    assert sorted([*splits.train, *splits.valid, *splits.test]) == [0, 1, 3, 4, 5, 7, 8, 9]
    assert np.array_equal(opened(tmp_path).splits.train, splits.train)


@pytest.mark.reliability("C3")
@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (np.zeros((3, 2)), "edges.npy has dtype '<f8'; node ids and offsets must be native integers"),
        (np.zeros((3, 2), ">i8"), "edges.npy has dtype '>i8'"),
        (np.zeros((3, 2), bool), "edges.npy has dtype '|b1'"),
        (
            np.array([[0, 1], [1, 2**63 + 5]], np.uint64),
            "entry 1 is 9223372036854775813; ids must be below 2**63",
        ),
    ],
)
def test_ids_of_a_wrong_dtype(tmp_path, ids, text):
    write_folder(tmp_path, edges=ids)
    with pytest.raises(GraphError) as caught:
        list(opened(tmp_path).edges.chunks(10))
    assert text in str(caught.value)


@pytest.mark.reliability("C2")
@pytest.mark.parametrize(
    ("indptr", "text"),
    [
        ([1, 2, 3, 3], "entry 0 is 1; offsets must start with 0"),
        ([0, 2, 1, 3], "entry 2 is 1, less than entry 1, 2"),
        ([0, 1, 2, 2], "the last entry, number 3, is 2; it must be the number of entries, 3"),
    ],
)
def test_bad_offsets_are_named(tmp_path, indptr, text):
    write_folder(tmp_path, num_nodes=3, edges=None, indptr=np.array(indptr), indices=np.array([0, 1, 2]))
    with pytest.raises(GraphError) as caught:
        opened(tmp_path)
    assert text in str(caught.value)
    assert "indptr.npy" in str(caught.value)


@pytest.mark.reliability("C2")
@pytest.mark.reliability("C13")
def test_offsets_of_another_length_than_the_features(tmp_path):
    write_folder(tmp_path, edges=None, indptr=np.array([0, 1]), indices=np.array([0]))
    with pytest.raises(ShapeError, match="indptr has offsets for 1 nodes, features have 10 rows"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("replaced", "error", "text"),
    [
        (
            {"edges": np.zeros((3, 3), int)},
            ShapeError,
            r"has shape \(3, 3\); edges are an \(E, 2\) or a \(2, E\)",
        ),
        ({"edge_weight": np.ones(3)}, ShapeError, "edge weights are 40 numbers"),
        ({"features": np.ones(10)}, ShapeError, r"has shape \(10,\)"),
        ({"features": np.asfortranarray(np.ones((10, 2)))}, ShapeError, "stored column after column"),
        (
            {"features": None},
            SourceError,
            "holds no features.npy and no features_csr.npz; it holds edges.npy",
        ),
        ({"labels": None}, SourceError, "holds no labels.npy"),
        ({"edges": None}, SourceError, "holds no edges.npy or edge_index.npy or indptr.npy"),
        ({"test": None}, SourceError, "holds no test.npy"),
        ({"labels": np.ones((10, 2, 2))}, ShapeError, r"labels must be \(N,\), one class or value per node"),
        ({"labels": np.full((10, 2), 3)}, SourceError, "row 0, column 0 has label 3; columns of whole"),
        ({"labels": np.array([0] * 9 + [-2])}, SourceError, "row 9 has label -2"),
        ({"labels": np.array([0] * 9 + [np.inf])}, SourceError, "row 9 has label inf"),
        ({"train": np.zeros(4, bool)}, ShapeError, "is a mask of 4 nodes; there are 10"),
        ({"train": np.array([0.0])}, GraphError, "native integers"),
    ],
)
def test_malformed_folder(tmp_path, replaced, error, text):
    write_folder(tmp_path, **replaced)
    with pytest.raises(error, match=text):
        opened(tmp_path)


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(SourceError, match="nowhere is not a folder"):
        opened(tmp_path / "nowhere")
