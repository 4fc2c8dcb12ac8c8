"""A dataset in another row order is the same graph: numbers map back, and everything else is equal."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from convert_helpers import ListEdges
from hypothesis import given
from hypothesis import strategies as st

from gloader.convert import node_order, prepare_plan
from gloader.convert.csc import external_csc, sorted_ranges
from gloader.convert.options import PrepareOptions
from gloader.convert.prepare import plan_source, prepare
from gloader.convert.readers.arrays import array_features
from gloader.convert.source import Source, Splits
from gloader.dataset import Dataset


@pytest.fixture(scope="module", autouse=True)
def tiny_buffers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_csc, "_MIN_CHUNK_EDGES", 5)
        patch.setattr(external_csc, "_BUCKET_NODES", 4)
        patch.setattr(external_csc, "PIECE_BYTES", 48)
        patch.setattr(sorted_ranges, "PIECE_BYTES", 48)
        patch.setattr(prepare_plan, "WRITER_BYTES", 0)
        patch.setattr(node_order, "_PIECE_BYTES", 64)
        patch.setattr(external_csc, "_BLOCK_NODES", 5)
        patch.setattr(node_order, "_MAX_PIECE_EDGES", 128)
        patch.setattr(os, "fsync", lambda _: None)  # power does not fail here, and a disk takes its time
        yield


@st.composite
def sources(draw):
    num_nodes = draw(st.integers(1, 25))
    node = st.integers(0, num_nodes - 1)
    weighted = draw(st.booleans())
    edges = draw(st.lists(st.tuples(node, node, st.integers(0, 8).map(float)), max_size=100))
    parts = np.array(draw(st.lists(st.integers(0, 3), min_size=num_nodes, max_size=num_nodes)))
    return Source(
        name="x",
        origin="npy:x",
        num_nodes=num_nodes,
        num_classes=3,
        edges=ListEdges(edges if weighted else [edge[:2] for edge in edges], weighted=weighted),
        features=array_features(np.arange(2 * num_nodes, dtype=np.float32).reshape(-1, 2)),
        labels=np.arange(num_nodes) % 3,
        splits=Splits(
            **{name: np.flatnonzero(parts == i) for i, name in enumerate(("train", "valid", "test"))}
        ),
    )


def neighbors(dataset, names):
    """Return the (in-neighbour, weight) pairs of each node, all in the numbering ``names`` (N,)."""
    graph = dataset.load_graph()
    weights = np.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    found = {}
    for node in range(graph.num_nodes):
        span = slice(graph.indptr[node], graph.indptr[node + 1])
        found[int(names[node])] = list(
            zip(names[graph.indices[span]].tolist(), weights[span].tolist(), strict=True)
        )
    return found


def read_features(dataset):
    return np.load(dataset.root / "features.npy", allow_pickle=False)


@pytest.mark.reliability("C4")
@given(
    source=sources(),
    order=st.sampled_from(["degree", "community"]),
    merges=st.booleans(),
    loops=st.booleans(),
    budget=st.integers(6000, 12_000),
)
def test_another_order_is_the_same_graph(source, order, merges, loops, budget):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"symmetrize": merges, "self_loops": loops}
        prepare(source, folder / "plain", PrepareOptions(memory_budget_bytes=10**8, **settings))
        for target, size in (("a", 10**8), ("b", budget)):
            options = PrepareOptions(order=order, memory_budget_bytes=size, **settings)
            assert plan_source(source, folder / target, options).memory_bytes <= size
            prepare(source, folder / target, options)
        plain, ordered = Dataset.open(folder / "plain"), Dataset.open(folder / "a")
        assert ordered.fingerprint == Dataset.open(folder / "b").fingerprint
        ids = ordered.original_ids
        assert plain.original_ids is None
        assert sorted(ids.tolist()) == list(range(source.num_nodes))
        expected, found = neighbors(plain, np.arange(source.num_nodes)), neighbors(ordered, ids)
        if merges:  # then in-neighbours are in ascending order, of the ids that are stored
            expected = {node: sorted(pairs) for node, pairs in expected.items()}
            found = {node: sorted(pairs) for node, pairs in found.items()}
        assert found == expected
        assert np.array_equal(
            ordered.in_original_order(read_features(ordered)), np.concatenate(list(source.features.chunks(5)))
        )
        assert np.array_equal(ordered.in_original_order(ordered.labels), source.labels)
        for part in ("train", "valid", "test"):
            assert np.array_equal(ids[getattr(ordered, part)], getattr(source.splits, part))
        if order == "degree":
            degrees = np.bincount(plain.load_graph().indices, minlength=source.num_nodes)
            assert merges or (np.diff(degrees[ids]) <= 0).all()
