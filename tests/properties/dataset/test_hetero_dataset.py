"""Any graph of several types is found on disk as it was given: an oracle of plain Python sorts the edges."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.core.offsets import offsets_of
from gloader.dataset import Dataset
from gloader.dataset.topology import open_hetero_topology
from gloader.dataset.verify import verify_dataset

# fsync is most of the time on a disk, and nothing to these tests.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
NAMES = st.text("abXY_.-09", min_size=1, max_size=6).filter(
    lambda name: "__" not in name and ".." not in name and name[0] not in "-._" and name[-1] not in "-._"
)


def distinct(count: st.SearchStrategy[int]) -> st.SearchStrategy[list[str]]:
    return count.flatmap(lambda size: st.lists(NAMES, min_size=size, max_size=size, unique_by=str.casefold))


@st.composite
def graphs(draw: Any) -> dict[str, Any]:
    """Draw types of 0 to 9 nodes, relations of 0 to 12 edges, features of some types and weights of some relations."""
    types = draw(distinct(st.integers(1, 4)))
    num_nodes = {name: draw(st.integers(0, 9)) for name in types}
    labelled = draw(st.sampled_from(types))
    num_nodes[labelled] += 1
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    edges: dict[tuple[str, str, str], np.ndarray] = {}
    for name in draw(distinct(st.integers(0, 4))):
        source, destination = draw(st.sampled_from(types)), draw(st.sampled_from(types))
        count = draw(st.integers(0, 12)) if num_nodes[source] and num_nodes[destination] else 0
        ends = [rng.integers(0, max(num_nodes[each], 1), count) for each in (source, destination)]
        edges[source, name, destination] = np.stack(ends)
    return {
        "num_nodes": num_nodes,
        "features": {
            name: rng.random((count, draw(st.integers(1, 3))), np.float32)
            for name, count in num_nodes.items()
            if draw(st.booleans())
        },
        "edges": edges,
        "edge_weight": {
            relation: rng.random(pair.shape[1], np.float32)
            for relation, pair in edges.items()
            if draw(st.booleans())
        },
        "labels": {labelled: rng.integers(-1, 3, num_nodes[labelled])},
        "num_classes": 3,
        "train": np.empty(0, np.int64),
        "valid": np.empty(0, np.int64),
        "test": np.arange(num_nodes[labelled]),
    }


@settings(max_examples=30)
@given(graphs(), st.integers(0, 400))
def test_any_graph_is_found_as_it_was_given(graph: dict[str, Any], max_bytes: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        dataset = Dataset.from_numpy_hetero(Path(folder) / "d", **graph)
        assert verify_dataset(dataset.root).is_ok
        assert {name: table.num_nodes for name, table in dataset.node_tables.items()} == graph["num_nodes"]
        assert dataset.num_edges == sum(pair.shape[1] for pair in graph["edges"].values())
        for name, table in dataset.node_tables.items():
            assert table.has_features == (name in graph["features"])
            if table.has_features:
                np.testing.assert_array_equal(table.all_features(), graph["features"][name])
        with open_hetero_topology(dataset, max_bytes=max_bytes) as topology:
            assert list(topology.relations) == list(graph["edges"])
            for relation, (src, dst) in graph["edges"].items():
                found = topology.relations[relation]
                weights = graph["edge_weight"].get(relation)
                rows = sorted(range(len(src)), key=lambda edge: dst[edge])
                sources = [int(each) for piece in found.sources.pieces() for each in piece]
                assert sources == [int(src[edge]) for edge in rows]
                ends = offsets_of(found.offsets, np.arange(found.num_nodes + 1)).tolist()
                assert ends == [
                    sum(int(each) < node for each in dst)
                    for node in range(graph["num_nodes"][relation[2]] + 1)
                ]
                assert (found.weights is None) == (weights is None)
                if found.weights is not None:
                    kept = [each for piece in found.weights.pieces() for each in piece.tolist()]
                    assert kept == [float(weights[edge]) for edge in rows]
