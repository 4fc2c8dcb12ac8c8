"""A dataset of several types: what is written comes back, of each type and relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import ConfigError, GraphError, ShapeError, SourceError

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
    message = r"relation author:writes:paper: edge 1 \(counted from 0\) has source 30; .* must lie in 0\.\.29"
    with pytest.raises(GraphError, match=message):
        Dataset.from_numpy_hetero(tmp_path / "d", **arrays(edges=edges))
    assert not (tmp_path / "d").exists()


def test_types_that_are_not_counted_have_as_many_nodes_as_their_arrays_or_edges_say(tmp_path: Path) -> None:
    given = arrays(
        edges={WRITES: np.array([[3, 40, 7], [0, 1, 2]]), CITES: np.array([[0], [49]])}, edge_weight={}
    )
    del given["num_nodes"], given["features"]["author"]
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **given)
    assert {name: table.num_nodes for name, table in dataset.node_tables.items()} == {
        "paper": 50,
        "author": 41,
    }


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"labels": {}}, SourceError, "has no labels on any node type; exactly one type has labels and splits"),
        (
            {"labels": {"paper": np.zeros(50, int), "author": np.zeros(30, int)}},
            SourceError,
            r"has labels on 2 node types \(paper, author\); exactly one",
        ),
        ({"labels": {"pape": np.zeros(50, int)}}, GraphError, "labels are given for node type 'pape'; there are 'pap"),
        ({"features": {"x": np.ones((3, 2))}}, GraphError, "features are given for node type 'x'; there are 'paper'"),
        (
            {"features": {"author": np.ones((31, 2))}},
            ShapeError,
            r"node type 'author' has 30 nodes, and features of shape \(31, 2\)",
        ),
        ({"features": {"author": np.ones(30)}}, ShapeError, r"node type 'author': x has shape \(30,\)"),
        ({"labels": {"paper": np.zeros(49, int)}}, ShapeError, "has 50 nodes, and labels of shape"),
        (
            {"edge_weight": {("a", "b", "c"): np.ones(3)}},
            GraphError,
            "weights are given for relation 'a:b:c'; there are 'author:writes:paper', 'paper:cites:paper'",
        ),
        ({"edge_weight": {CITES: np.ones(3)}}, ShapeError, r"edge_weight has shape \(3,\) for 300 edges"),
        ({"edge_weight": {CITES: np.full(300, -1.0)}}, GraphError, "paper:cites:paper.*edge 0 .* has weight -1"),
        ({"symmetrize": ["writes"]}, ConfigError, "only one within a type has both directions"),
        ({"symmetrize": ["wrote"]}, ConfigError, "relation 'wrote' is none of numpy's relations; write one of: auth"),
        ({"train": None}, SourceError, "node type 'paper' has no train split"),
        ({"train": np.array([50])}, SourceError, r"train holds node 50 at position 0; nodes are 0\.\.49"),
        ({"colour": 3}, TypeError, r"unexpected keyword argument 'colour'; allowed: path, edges"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Dataset.from_numpy_hetero(tmp_path / "d", **arrays(**changes))
    assert not list(tmp_path.iterdir())


def test_reverses_come_behind_all_others_and_a_symmetrized_relation_has_none(tmp_path: Path) -> None:
    given = arrays(edge_weight={WRITES: np.arange(200, dtype=np.float32)})
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **given, add_reverse=True, symmetrize=[CITES])
    reverses = (("paper", "rev_writes", "author"), ("venue", "rev_held_at", "paper"))
    assert dataset.relations == (WRITES, CITES, NOWHERE, *reverses)
    found = dataset.to_numpy()
    pairs, weights = found["edges"], found["edge_weight"]
    there = sorted(zip(*pairs[WRITES], weights[WRITES], strict=True))
    back = sorted(zip(*pairs[reverses[0]][::-1], weights[reverses[0]], strict=True))
    assert there == back
    both = {*zip(*given["edges"][CITES], strict=True)} | {*zip(*given["edges"][CITES][::-1], strict=True)}
    cites = [*zip(*pairs[CITES], strict=True)]
    assert len(cites) == len(set(cites))
    assert set(cites) == both


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_features_of_all_types_are_stored_as_asked(tmp_path: Path, dtype: str) -> None:
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **arrays(), feature_dtype=dtype, name="mine")
    assert dataset.name == "mine"
    assert [table.feature_dtype for table in dataset.node_tables.values() if table.has_features] == [
        dtype
    ] * 2
    rows = dataset.to_numpy()["features"]["author"]
    np.testing.assert_allclose(rows, arrays()["features"]["author"], atol=0.01)


def test_one_relation_of_one_type_is_the_graph_that_it_is_as_a_homogeneous_dataset(tmp_path: Path) -> None:
    given = arrays()
    shared = {name: given[name] for name in ("train", "valid", "test", "num_classes")}
    plain = Dataset.from_numpy(
        tmp_path / "plain",
        features=given["features"]["paper"],
        labels=given["labels"]["paper"],
        edge_index=given["edges"][CITES],
        **shared,
    )
    typed = Dataset.from_numpy_hetero(
        tmp_path / "typed",
        num_nodes={"paper": 50},
        features={"paper": given["features"]["paper"]},
        labels=given["labels"],
        edges={CITES: given["edges"][CITES]},
        **shared,
    )
    graph = typed.edge_tables[CITES].load_graph()
    same(
        {"a": graph.indptr, "b": graph.indices},
        {"a": plain.load_graph().indptr, "b": plain.load_graph().indices},
    )
    digests = {name.rpartition("/")[2]: record.digest for name, record in typed.arrays.items()}
    assert digests == {name: record.digest for name, record in plain.arrays.items()}


def test_a_type_or_relation_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path) -> None:
    dataset = Dataset.from_numpy_hetero(tmp_path / "d", **arrays())
    with pytest.raises(KeyError, match=r"'papers' is no node type .* did you mean 'paper'"):
        dataset.node_tables["papers"]
    with pytest.raises(
        KeyError, match=r"'wrote', .* is no relation .* did you mean \('author', 'writes', 'paper'\)"
    ):
        dataset.edge_tables["author", "wrote", "paper"]
    with pytest.raises(KeyError, match=r"'book' is no node type .* there are 'paper', 'author', 'venue'"):
        dataset.node_tables["book"]
    assert dataset.node_tables.get("papers") is None
    assert "papers" not in dataset.node_tables
