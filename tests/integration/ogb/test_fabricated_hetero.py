"""Made-up graphs of several types in the layouts of ogbn-mag and IGBH: the official package loads them."""

import warnings

import numpy as np
import pytest
from fabricate_hetero import SHAPES, fabricate_hetero


@pytest.fixture
def official(monkeypatch, tmp_path):
    """What the official package loads of a made-up ogbn-mag: graph, labels, splits."""
    monkeypatch.setenv("DGLBACKEND", "pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ogb.nodeproppred import NodePropPredDataset

        fabricate_hetero(tmp_path, "ogbn-mag", scale=0.0005)
        found = NodePropPredDataset("ogbn-mag", root=str(tmp_path))
        return (*found[0], found.get_idx_split())


def test_the_official_package_loads_what_was_made_up(official):
    graph, labels, splits = official
    shape = SHAPES["ogbn-mag"].scaled(0.0005)
    assert graph["num_nodes_dict"] == shape.nodes
    assert {key: pairs.shape[1] for key, pairs in graph["edge_index_dict"].items()} == shape.edges
    for (source, _, destination), pairs in graph["edge_index_dict"].items():
        assert (pairs.min(axis=1) >= 0).all()
        assert (pairs.max(axis=1) < [shape.nodes[source], shape.nodes[destination]]).all()
    assert graph["node_feat_dict"]["paper"].shape == (shape.nodes["paper"], 128)
    assert labels["paper"].max() == shape.classes - 1
    parts = [splits[part]["paper"] for part in ("train", "valid", "test")]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(shape.nodes["paper"]))


def test_igbh_has_its_files(tmp_path):
    folder = fabricate_hetero(tmp_path, "igbh-tiny", scale=0.001, dim=8) / "processed"
    shape = SHAPES["igbh-tiny"].scaled(0.001, dim=8)
    for name, count in shape.nodes.items():
        assert np.load(folder / name / "node_feat.npy").shape == (count, 8)
    for relation, count in shape.edges.items():
        pairs = np.load(folder / "__".join(relation) / "edge_index.npy")
        assert pairs.shape == (count, 2)
        assert (pairs.max(axis=0) < [shape.nodes[relation[0]], shape.nodes[relation[2]]]).all()
    assert np.load(folder / "paper" / "node_label_19.npy").shape == (shape.nodes["paper"],)


def test_igbh_small_has_its_true_numbers():
    shape = SHAPES["igbh-small"]
    assert sum(shape.nodes.values()) == 3_131_266
    assert sum(shape.edges.values()) == 25_488_616
