"""Graphs in memory become the same dataset, whichever library holds them, and come back as they were."""

import warnings

import numpy as np
import pytest
import torch

from gloader.dataset import Dataset
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

N, E = 60, 300


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    order = rng.permutation(N)
    return {
        "features": rng.standard_normal((N, 5)).astype(np.float32),
        "labels": rng.integers(0, 3, N),
        "edge_index": rng.integers(0, N, (2, E)),
        "edge_weight": rng.random(E).astype(np.float32),
        "train": order[:30],
        "valid": order[30:40],
        "test": np.isin(np.arange(N), order[40:]),  # a mask
    }


@pytest.fixture
def dataset(arrays, tmp_path):
    return Dataset.from_numpy(tmp_path / "dataset", **arrays)


def test_arrays_are_what_the_dataset_holds(dataset, arrays):
    src, dst = arrays["edge_index"]
    by_dst = np.argsort(dst, kind="stable")
    found = dataset.to_numpy()
    np.testing.assert_array_equal(found["features"], arrays["features"])
    np.testing.assert_array_equal(found["labels"], arrays["labels"])
    np.testing.assert_array_equal(found["indices"], src[by_dst])
    np.testing.assert_array_equal(found["edge_weight"], arrays["edge_weight"][by_dst])
    np.testing.assert_array_equal(np.diff(found["indptr"]), np.bincount(dst, minlength=N))
    np.testing.assert_array_equal(found["train"], arrays["train"])
    np.testing.assert_array_equal(found["test"], np.flatnonzero(arrays["test"]))
    assert (dataset.name, dataset.num_classes) == ("dataset", 3)


def test_every_way_back_and_forth_gives_the_same_dataset(dataset, tmp_path):
    again = Dataset.from_numpy(tmp_path / "a", **dataset.to_numpy())
    assert again.fingerprint == dataset.fingerprint
    masked = Dataset.from_pyg(dataset.to_pyg(), tmp_path / "b")
    assert Dataset.from_dgl(dataset.to_dgl(), tmp_path / "c").fingerprint == masked.fingerprint
    for name in ("indptr", "indices", "edge_weight", "features", "labels"):
        assert masked.arrays[name].digest == dataset.arrays[name].digest
    assert set(masked.train) == set(dataset.train)  # masks have no order


def test_dgl_edge_lists_keep_their_weights(tmp_path, arrays):
    from gloader.convert.sources.dgl import quiet_dgl

    with quiet_dgl("this test needs") as dgl:
        graph = dgl.graph(tuple(torch.from_numpy(arrays["edge_index"])), num_nodes=N)
        graph.edata["weight"] = torch.from_numpy(arrays["edge_weight"])
        graph.ndata["feat"] = torch.from_numpy(arrays["features"])
        graph.ndata["label"] = torch.from_numpy(arrays["labels"])
        made = Dataset.from_dgl(graph, tmp_path / "made", seed=4)
        with pytest.raises(SourceError, match="no labels on any node type"):
            Dataset.from_dgl(dgl.heterograph({("a", "r", "b"): ([0], [0])}), tmp_path / "hetero")
    plain = {name: arrays[name] for name in ("features", "labels", "edge_index", "edge_weight")}
    assert made.fingerprint == Dataset.from_numpy(tmp_path / "plain", **plain, seed=4).fingerprint


def test_options_of_the_preparation_are_taken(arrays, tmp_path):
    made = Dataset.from_numpy(
        tmp_path / "made", **arrays, dtype="float16", self_loops=True, memory_budget="200MB", num_classes=7
    )
    assert (made.feature_dtype, made.has_self_loops, made.num_classes) == ("float16", True, 7)
    assert made.to_numpy()["features"].dtype == np.float32


def test_pyg_data_without_masks_is_split_by_seed(tmp_path, arrays):
    data = Data(
        x=torch.from_numpy(arrays["features"]),
        edge_index=torch.from_numpy(arrays["edge_index"]),
        y=torch.from_numpy(arrays["labels"]),
    )
    made = [Dataset.from_pyg(data, tmp_path / str(i), seed=i // 2) for i in range(3)]
    assert made[0].fingerprint == made[1].fingerprint != made[2].fingerprint
    assert [len(made[0].train), len(made[0].valid), len(made[0].test)] == [36, 12, 12]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"edge_index": None}, ConfigError, "edge_index=, or as indptr= and indices="),
        ({"indptr": np.zeros(N + 1, int)}, ConfigError, "edge_index=, or as indptr= and indices="),
        (
            {"edge_index": np.zeros((3, 4), int)},
            ShapeError,
            r"shape \(3, 4\).*expected ids of shape \(2, E\)",
        ),
        ({"edge_weight": np.ones(4)}, ShapeError, r"edge_weight has shape \(4,\) for 300 edges"),
        ({"edge_index": np.full((2, E), N)}, GraphError, f"{N}"),
        ({"labels": np.zeros(3, int)}, ShapeError, "labels have shape"),
        ({"features": np.zeros(N)}, ShapeError, "features are an"),
        ({"train": None}, SourceError, "has no train split"),
        (
            {"dtyp": "int8"},
            TypeError,
            r"from_numpy.*unexpected keyword argument .dtyp.; did you mean 'dtype'",
        ),
        (
            {"edge_index": None, "indptr": np.zeros(4, int), "indices": np.zeros(0, int)},
            ShapeError,
            rf"indptr has shape \(4,\).*must be \({N + 1},\)",
        ),
        (
            {
                "edge_index": None,
                "edge_weight": None,
                "indptr": np.arange(N + 1),
                "indices": np.zeros(2, int),
            },
            GraphError,
            "indptr",
        ),
    ],
)
def test_bad_arrays_are_refused_and_leave_nothing(arrays, tmp_path, changes, error, text):
    given = {name: value for name, value in (arrays | changes).items() if value is not None}
    with pytest.raises(error, match=text):
        Dataset.from_numpy(tmp_path / "made", **given)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_dataset_is_kept_unless_told_otherwise(dataset, arrays):
    with pytest.raises(FileExistsError):
        Dataset.from_numpy(dataset.root, **arrays)
    assert Dataset.from_numpy(dataset.root, **arrays, overwrite=True).fingerprint == dataset.fingerprint
