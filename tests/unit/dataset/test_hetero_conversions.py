"""Datasets of several types to PyG's and DGL's graphs, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gloader import Dataset
from gloader.errors import ConfigError, GloaderError, GraphError, ShapeError

if TYPE_CHECKING:
    from pathlib import Path

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
NOWHERE = ("paper", "held_at", "venue")
EDGE = np.array([[0], [1]])


@pytest.fixture(name="dataset")
def _dataset(tmp_path: Path) -> Dataset:
    """A type without features, one without nodes, a relation with weights, one without edges."""
    rng = np.random.default_rng(7)
    return Dataset.from_numpy_hetero(
        tmp_path / "d",
        num_nodes={"paper": 50, "author": 30, "venue": 0, "reader": 4},
        features={"paper": rng.random((50, 5), np.float32), "venue": np.empty((0, 3), np.float32)},
        edges={
            WRITES: np.stack([rng.integers(0, 30, 200), rng.integers(0, 50, 200)]),
            CITES: rng.integers(0, 50, (2, 300)),
            NOWHERE: np.empty((2, 0), np.int64),
        },
        edge_weight={CITES: rng.random(300, np.float32)},
        labels={"paper": np.where(rng.random(50) < 0.1, -1, rng.integers(0, 4, 50))},
        num_classes=4,
    )


def content(dataset: Dataset, *, is_sorted: bool) -> dict[str, Any]:
    """Return everything in lists, types and relations in order, or sorted where the order is a library's."""
    arrays = dataset.to_numpy()
    found = {}
    for name, value in arrays.items():
        if isinstance(value, dict):
            keys = sorted(value) if is_sorted else list(value)
            value = [(key, np.asarray(value[key]).tolist()) for key in keys]  # noqa: PLW2901
        found[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return found


def test_a_hetero_data_has_everything_and_comes_back(dataset: Dataset, tmp_path: Path) -> None:
    data = dataset.to_pyg()
    assert type(data).__name__ == "HeteroData"
    assert data.node_types == list(dataset.node_types)
    assert data.edge_types == list(dataset.relations)
    assert data["author"].num_nodes == 30
    assert "x" not in data["author"]
    assert data["paper"].train_mask.nonzero().flatten().tolist() == sorted(dataset.train.tolist())
    again = Dataset.from_pyg(data, tmp_path / "again", num_classes=4)
    assert content(again, is_sorted=False) == content(dataset, is_sorted=False)
    assert again.fingerprint == dataset.fingerprint


def test_a_heterograph_has_everything_and_comes_back(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("dgl")
    graph = dataset.to_dgl()
    assert sorted(graph.ntypes) == sorted(dataset.node_types)
    assert graph.num_nodes("reader") == 4
    assert graph.nodes["paper"].data["feat"].shape == (50, 5)
    assert graph.edges[CITES].data["weight"].shape == (300,)
    again = Dataset.from_dgl(graph, tmp_path / "again", num_classes=4)
    assert content(again, is_sorted=True) == content(dataset, is_sorted=True)


def test_splits_of_ids_and_features_of_any_width_are_taken_from_a_hetero_data(tmp_path: Path) -> None:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    data["paper"].train_idx = torch.tensor([4, 0])
    data["paper"].val_idx, data["paper"].test_idx = torch.tensor([1]), torch.tensor([2])
    data["author"].x = torch.rand(3, 7, dtype=torch.float16)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 2], [5, 5]])
    dataset = Dataset.from_pyg(data, tmp_path / "d", add_reverse=True)
    assert dataset.train.tolist() == [4, 0]
    assert dataset.node_tables["author"].feature_dim == 7
    assert dataset.relations == (WRITES, ("paper", "rev_writes", "author"))
    assert dataset.edge_tables[WRITES].load_graph().indices.tolist() == [0, 2]


@pytest.mark.parametrize("merge", [True, False])
def test_prepare_does_what_to_undirected_does(merge: bool, tmp_path: Path) -> None:
    """`gloader migrate` promises it: relations and their order, edges within a type, loops and parallel ones."""
    from torch_geometric.transforms import ToUndirected

    rng = np.random.default_rng(3)
    edges = {
        CITES: rng.integers(0, 8, (2, 40)),  # with loops and parallel edges
        WRITES: np.stack([rng.integers(0, 5, 30), rng.integers(0, 8, 30)]),
        ("author", "knows", "author"): np.array([[0, 1, 3], [1, 0, 4]]),
    }
    given = Dataset.from_numpy_hetero(
        tmp_path / "given",
        edges=edges,
        labels={"paper": np.arange(8) % 2},
        num_nodes={"paper": 8, "author": 5},
    ).to_pyg()
    ours = Dataset.from_pyg(given, tmp_path / "ours", add_reverse=True, symmetrize=merge).to_pyg()
    theirs = ToUndirected(merge=merge)(given)
    assert ours.metadata() == theirs.metadata()
    for relation in theirs.edge_types:
        pairs = [sorted(zip(*data[relation].edge_index.tolist(), strict=True)) for data in (ours, theirs)]
        assert pairs[0] == pairs[1]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"edges": {WRITES: np.zeros((3, 1), np.int64)}},
            ShapeError,
            r"relation author:writes:paper .* \(2, E\)",
        ),
        ({"edges": {WRITES: np.int64(3)}}, ShapeError, r"relation author:writes:paper .* \(2, E\)"),
        (
            {"edges": {WRITES: np.full((2, 1), np.nan)}},
            ShapeError,
            r"relation author:writes:paper .* \(2, E\)",
        ),
        ({"edges": {("author", "paper"): EDGE}}, ConfigError, r"\('author', 'paper'\) names no relation"),
        ({"edges": {"author-paper": EDGE}}, ConfigError, "'author-paper' names no relation"),
        (
            {"edge_weight": {"author:reads:paper": [1.0]}},
            GraphError,
            "'author:reads:paper'; there are 'author:wri",
        ),
        ({"labels": {"paper": 3}}, ShapeError, r"'paper' has 2 nodes, and labels of shape \(\)"),
        (
            {"num_nodes": {"paper": 2, "author": 2.0}},
            GraphError,
            "'author' has 2.0 nodes; it must be a whole",
        ),
        ({"symmetrize": True}, ConfigError, "--symmetrize is for relations within a type, and"),
        ({"symmetrize": "writes"}, ConfigError, "--symmetrize author:writes:paper"),
    ],
)
def test_arrays_that_make_no_graph_are_refused(
    tmp_path: Path, changed: Any, error: type[GloaderError], message: str
) -> None:
    arrays = {
        "edges": {WRITES: EDGE},
        "labels": {"paper": [0, 1]},
        "features": {"paper": np.ones((2, 3), "f4")},
    }
    with pytest.raises(error, match=message):
        Dataset.from_numpy_hetero(tmp_path / "d", **arrays | changed)
    assert list(tmp_path.iterdir()) == []


def test_a_relation_may_be_named_by_its_text_and_one_to_symmetrize_alone(tmp_path: Path) -> None:
    splits = {"train": [0], "valid": [1], "test": np.empty(0, np.int64)}
    for number, asked in enumerate(("cites", ["cites"], (CITES,))):
        dataset = Dataset.from_numpy_hetero(
            tmp_path / str(number),
            edges={"paper:cites:paper": EDGE},
            edge_weight={"paper:cites:paper": [2.0]},
            labels={"paper": [0, 1]},
            symmetrize=asked,
            **splits,
        )
        graph = dataset.edge_tables[CITES].load_graph()
        assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 2], [1, 0])
        assert graph.edge_weight is not None
        assert graph.edge_weight.tolist() == [2.0, 2.0]
