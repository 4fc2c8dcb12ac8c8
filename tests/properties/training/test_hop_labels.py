"""Propagated labels of random graphs: equal to dense matrices, and blind to each node's own label."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hop_oracles as oracle
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gloader
from gloader.dataset import Dataset
from gloader.training.propagation.label_rows import folds_of


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a graph with self loops, parallel edges and isolated nodes, and labels of any kind."""
    count = draw(st.integers(6, 30))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_edges = draw(st.integers(1, 90))
    labels: Any = random.integers(0, 3, count)
    if draw(st.booleans()):
        labels = random.normal(size=(count, 2)).astype(np.float32)
        labels[::4, 1] = np.nan
    ids = random.permutation(count)
    return {
        "features": random.normal(size=(count, 1)).astype(np.float32),
        "labels": labels,
        "num_classes": None if labels.ndim > 1 else 3,
        "edge_index": random.integers(0, count, (2, num_edges)),
        "edge_weight": random.random(num_edges).astype(np.float32) if draw(st.booleans()) else None,
        "train": ids[: count // 2],
        "valid": ids[count // 2 : count // 2 + 1],
        "test": ids[count // 2 + 1 :],
    }


def label_columns(dataset: Dataset, folder: Path, asked: dict[str, Any]) -> dict[str, np.ndarray]:
    made = gloader.propagate(dataset, folder, labels=True, **asked)
    assert isinstance(made, Dataset)
    rows = made.labelled.all_features()
    spans = made.metadata["hops"]["columns"]
    return {name: rows[:, start:stop] for name, start, stop in spans if name.startswith("label.")}


def write(folder: Path, graph: dict[str, Any]) -> Dataset:
    return Dataset.from_numpy(folder, **{name: value for name, value in graph.items() if value is not None})


@settings(max_examples=15)
@given(graphs(), st.sampled_from(["gcn", "mean"]), st.integers(1, 3), st.data())
def test_no_node_sees_its_own_label(graph: dict[str, Any], norm: str, hops: int, data: st.DataObject) -> None:
    asked = {"hops": hops, "norm": norm, "directions": ["in", "out"]}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        dataset = write(folder / "d", graph)
        found = label_columns(dataset, folder / "hops", asked)
        edges = oracle.adjacency(dataset)
        for direction, matrix in (("in", edges), ("out", edges.T)):
            expected = oracle.label_means(oracle.operator(matrix, norm), dataset, hops)
            for hop, rows in enumerate(expected, 1):
                assert np.allclose(found[f"label.{direction}{hop}"], rows, atol=2e-5)
        # Another label of a training node changes only rows of nodes in other folds.
        node = int(data.draw(st.sampled_from(graph["train"].tolist())))
        labels = graph["labels"].copy()
        labels[node] = (labels[node] + 1) % 3 if labels.ndim == 1 else labels[node] + 1
        changed = label_columns(write(folder / "e", graph | {"labels": labels}), folder / "other", asked)
        nodes = np.arange(dataset.num_nodes)
        is_same_fold = folds_of(nodes) == folds_of(nodes[node : node + 1])
        for name, rows in found.items():
            assert (changed[name][is_same_fold] == rows[is_same_fold]).all()


def test_a_label_comes_back_where_folds_do_not_stop_it() -> None:
    # Two nodes that name each other: without folds, the second hop would be the own label.
    folds = folds_of(np.arange(7))
    other = int(np.argmax(folds != folds[0]))
    edges = np.array([[0, other], [other, 0]])
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        dataset = Dataset.from_numpy(
            Path(place) / "d",
            features=random.normal(size=(9, 1)).astype(np.float32),
            labels=np.arange(9) % 3,
            edge_index=edges,
            train=np.arange(7),
            valid=np.array([7]),
            test=np.array([8]),
        )
        found = label_columns(dataset, Path(place) / "hops", {"hops": 2, "norm": "mean"})
        assert found["label.in1"][0].tolist() == np.eye(3)[other % 3].tolist()
        assert not found["label.in2"][[0, other]].any()
