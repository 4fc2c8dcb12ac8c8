"""`gloader prepare --missing`: features of arrays and tables without NaN and infinity, and the receipt's line."""

import json

import numpy as np
import pytest

from gloader.cli.main import main
from gloader.dataset import Dataset
from gloader.errors import ConfigError, FeatureValueError

N, E = 40, 120
RANDOM = np.random.default_rng(0)
PAIRS = RANDOM.integers(0, N, (2, E))
X = RANDOM.standard_normal((N, 3)).astype(np.float32)
X[3, 1] = X[20, 1] = np.nan
X[5, 2] = np.inf
TRAIN, VALID, TEST = np.arange(10), np.arange(10, 20), np.arange(20, N)


def made(path, **changes):
    arrays = {"features": X, "labels": np.arange(N) % 3, "edge_index": PAIRS}
    arrays |= {"train": TRAIN, "valid": VALID, "test": TEST}
    return Dataset.from_numpy(path, **arrays | changes)


def mean(column, rows=TRAIN):
    values = X[rows, column]
    return values[np.isfinite(values)].astype(np.float64).mean().astype(np.float32)


@pytest.mark.parametrize("order", ["none", "degree"])
def test_means_are_those_of_the_training_nodes(tmp_path, order):
    dataset = made(tmp_path / "d", missing="mean", order=order)
    rows = dataset.in_original_order(dataset.to_numpy()["features"])
    expected = X.copy()
    expected[[3, 20], 1], expected[5, 2] = mean(1), mean(2)
    np.testing.assert_array_equal(rows, expected)
    assert dataset.metadata["receipt"]["missing values"] == "3 -> mean, in columns 1, 2, 1 of them infinite"
    assert dataset.metadata["options"]["missing"] == "mean"
    assert "no NaN" in dataset.metadata["receipt"]["feature values"]


def test_flags_make_the_features_wider(tmp_path):
    dataset = made(tmp_path / "d", missing="flag", dtype="float16")
    rows = dataset.to_numpy()["features"]
    assert rows.shape == (N, 5)
    assert np.flatnonzero(rows[:, 3]).tolist() == [3, 20]
    assert np.flatnonzero(rows[:, 4]).tolist() == [5]


def test_edge_features_are_filled_with_the_mean_of_all_edges(tmp_path):
    edges = np.arange(2 * E, dtype=np.float32).reshape(E, 2)
    edges[7, 0] = np.nan
    rows = made(tmp_path / "d", missing="mean", edge_features=edges).to_numpy()["edge_features"]
    wanted = np.nanmean(edges[:, 0].astype(np.float64)).astype(np.float32)
    assert np.count_nonzero(rows[:, 0] == wanted) == 1
    assert np.isfinite(rows).all()


def test_other_types_have_the_mean_of_all_their_nodes(tmp_path):
    dataset = Dataset.from_numpy_hetero(
        tmp_path / "d",
        edges={("a", "to", "b"): PAIRS},
        labels={"a": np.arange(N) % 3},
        features={"a": X, "b": X},
        train=TRAIN,
        valid=VALID,
        test=TEST,
        missing="mean",
    )
    rows = dataset.to_numpy()["features"]
    assert rows["a"][3, 1] == mean(1)
    assert rows["b"][3, 1] == mean(1, np.arange(N))
    assert dataset.metadata["receipt"]["missing values"] == (
        "a 3 -> mean, in columns 1, 2, 1 of them infinite; b 3 -> mean, in columns 1, 2, 1 of them infinite"
    )


def test_tables_are_filled_by_the_flag(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,2\n2,0\n")
    (tmp_path / "x.csv").write_text("id,a,b\n1,,7\n0,4,8\n2,6,inf\n")
    (tmp_path / "y.csv").write_text("id,label\n0,0\n1,1\n2,0\n")
    np.savez(tmp_path / "s.npz", train=[0, 2], valid=[1], test=np.array([], np.int64))
    files = [f"--{name}={tmp_path / file}" for name, file in (("features", "x.csv"), ("labels", "y.csv"))]
    command = [
        "prepare",
        f"edges:{tmp_path / 'e.csv'}",
        str(tmp_path / "d"),
        *files,
        f"--splits={tmp_path / 's.npz'}",
    ]
    assert main([*command, "--json"]) == 1
    assert "row 0, column 'a' is nan" in capsys.readouterr().err
    assert main([*command, "--missing=flag", "--json"]) == 0
    receipt = json.loads(capsys.readouterr().out)["receipt"]
    assert receipt["missing values"] == "2 -> the mean and a flag, in columns a, b, 1 of them infinite"
    rows = Dataset.open(tmp_path / "d").to_numpy()["features"]
    assert rows.tolist() == [[4, 8, 0, 0], [5, 7, 1, 0], [6, 8, 0, 1]]


def test_contradictions_and_unknown_words_are_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="--missing mean replaces missing features, and --allow-nan keeps them"
    ):
        made(tmp_path / "d", missing="mean", allow_nan=True)
    with pytest.raises(ConfigError, match="missing 'median'; allowed: zero, mean, flag"):
        made(tmp_path / "d", missing="median")
    with pytest.raises(FeatureValueError, match="or replace them: --missing mean, in Python missing='mean'"):
        made(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_the_memory_budget_holds(tmp_path):
    num_rows = 20_000
    rows = np.ones((num_rows, 64), np.float32)
    rows[::7, 3] = np.nan
    labels = np.zeros(num_rows, np.int64)
    made(
        tmp_path / "d",
        features=rows,
        labels=labels,
        missing="flag",
        memory_budget="32MB",
    )
    assert Dataset.open(tmp_path / "d").feature_dim == 65
