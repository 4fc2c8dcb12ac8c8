"""A dataset of several types: what is written comes back, of each type and relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import ConfigError, GraphError

if TYPE_CHECKING:
    from pathlib import Path

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
NOWHERE = ("paper", "held_at", "venue")
NUM_NODES = {"paper": 50, "author": 30, "venue": 0}


def arrays(**changes: Any) -> dict[str, Any]:
    """Return the arrays of a graph of three types, one of which has no nodes."""
    rng = np.random.default_rng(7)
    given: dict[str, Any] = {
        "num_nodes": NUM_NODES,
        "features": {"paper": rng.random((50, 5), np.float32), "author": rng.random((30, 3), np.float32)},
        "edges": {
            WRITES: np.stack([rng.integers(0, 30, 200), rng.integers(0, 50, 200)]),
            CITES: rng.integers(0, 50, (2, 300)),
            NOWHERE: np.empty((2, 0), np.int64),
        },
        "edge_weight": {CITES: rng.random(300, np.float32)},
        "labels": {"paper": rng.integers(0, 4, 50)},
        "num_classes": 4,
        "train": np.arange(20),
        "valid": np.arange(20, 30),
        "test": np.arange(30, 40),
    }
    return given | changes


def same(found: Any, given: Any) -> None:
    """Assert that nested arrays are equal."""
    if isinstance(given, dict):
        assert list(found) == list(given)
        for key, value in given.items():
            same(found[key], value)
    else:
        np.testing.assert_array_equal(found, given)


def by_destination(given: dict[str, Any]) -> dict[str, Any]:
    orders = {relation: np.argsort(pair[1], kind="stable") for relation, pair in given["edges"].items()}
    edges = {relation: pair[:, orders[relation]] for relation, pair in given["edges"].items()}
    weights = {relation: weight[orders[relation]] for relation, weight in given["edge_weight"].items()}
    return given | {"edges": edges, "edge_weight": weights}


def test_arrays_come_back_as_they_went_in(tmp_path: Path) -> None:
    given = by_destination(arrays())
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **arrays())
    found = dataset.to_numpy()
    assert found.keys() == given.keys()
    for key in given:
        same(found[key], given[key])
    again = Dataset.from_numpy_hetero(tmp_path / "e", **found)
    assert again.fingerprint == dataset.fingerprint
    assert verify_dataset(tmp_path / "d").is_ok


def test_a_dataset_knows_its_types_and_relations(tmp_path: Path) -> None:
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **arrays())
    assert dataset.kind == "hetero"
    assert dataset.node_types == ("paper", "author", "venue")
    assert dataset.relations == (WRITES, CITES, NOWHERE)
    assert dataset.type_starts.tolist() == [0, 50, 80, 80]
    assert (dataset.num_nodes, dataset.num_edges, dataset.num_classes) == (80, 500, 4)
    assert dataset.labelled.name == "paper"
    assert dataset.train.tolist() == list(range(20))
    paper, author, venue = dataset.node_tables.values()
    assert [table.number for table in (paper, author, venue)] == [0, 1, 2]
    assert (author.feature_dim, author.feature_bytes, author.has_labels) == (3, 30 * 12, False)
    assert (venue.has_features, venue.feature_dim, venue.feature_bytes) == (False, 0, 0)
    writes = dataset.edge_tables[WRITES]
    assert (writes.num_nodes, writes.num_sources, writes.num_edges) == (50, 30, 200)
    assert (writes.has_weights, dataset.edge_tables[CITES].has_weights) == (False, True)
    graph = dataset.load_hetero_graph()
    assert dict(graph.num_nodes) == NUM_NODES
    assert list(graph.relations) == [WRITES, CITES, NOWHERE]


def test_a_dataset_of_one_type_is_one_table_of_each(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dataset = Dataset.from_numpy(
        tmp_path / "d",
        features=rng.random((30, 4), np.float32),
        labels=rng.integers(0, 3, 30),
        edge_index=rng.integers(0, 30, (2, 90)),
    )
    assert dataset.kind == "homogeneous"
    assert dataset.node_types == ("node",)
    assert dataset.relations == (("node", "to", "node"),)
    assert dataset.node_tables["node"] is dataset.labelled
    (graph,) = dataset.load_hetero_graph().relations.values()
    np.testing.assert_array_equal(graph.sources.array, dataset.load_graph().indices)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "ask",
    [
        lambda dataset: dataset.feature_dim,
        lambda dataset: dataset.feature_dtype,
        lambda dataset: dataset.features_path,
        lambda dataset: dataset.open_features(),
        lambda dataset: dataset.load_graph(),
    ],
)
def test_what_each_type_has_of_its_own_is_asked_of_its_table(tmp_path: Path, ask: Any) -> None:
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **arrays())
    with pytest.raises(ConfigError, match=r"use Dataset\.(node|edge)_tables\[\.\.\.\] with one of"):
        ask(dataset)


def test_a_type_without_features_or_labels_says_so(tmp_path: Path) -> None:
    venue = Dataset.from_numpy_hetero(tmp_path / "d", **arrays()).node_tables["venue"]
    with pytest.raises(ConfigError, match="nodes of type 'venue' have no features"):
        venue.open_features()
    with pytest.raises(ConfigError, match="nodes of type 'venue' have no labels and splits"):
        _ = venue.train


def test_an_edge_out_of_a_types_range_is_refused(tmp_path: Path) -> None:
    edges = arrays()["edges"] | {WRITES: np.array([[0, 30], [0, 0]])}
    message = (
        r"relation author:writes:paper.* edge 1 \(counted from 0\) has source 30; .*type 'author'.* 0\.\.29"
    )
    with pytest.raises(GraphError, match=message):
        Dataset.from_numpy_hetero(tmp_path / "d", **arrays(edges=edges))
    assert not (tmp_path / "d").exists()
