"""A dataset is a graph of DGL's: its sizes, and its data, of which features are read when they are asked for."""

import gc

import numpy as np
import pytest
import torch

import gloader
import gloader.compat.dgl as dgl
from gloader.errors import DglFeatureError, SeedError, ShapeError

NUM_NODES, DIM = 50, 7


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(3)
    return {
        "features": rng.standard_normal((NUM_NODES, DIM)).astype(np.float32),
        "labels": rng.integers(0, 3, NUM_NODES),
        "edge_index": rng.integers(0, NUM_NODES, (2, 200)),
        "train": np.arange(20),
        "valid": np.arange(20, 30),
        "test": np.arange(30, 50),
    }


@pytest.fixture(scope="module")
def dataset(arrays, tmp_path_factory):
    return gloader.Dataset.from_numpy(tmp_path_factory.mktemp("compat") / "graph", **arrays)


def test_sizes_types_and_degrees(dataset, arrays):
    g = dgl.DGLGraph(dataset)
    assert (g.num_nodes(), g.number_of_nodes(), g.num_edges(), g.number_of_edges()) == (50, 50, 200, 200)
    assert (g.ntypes, g.etypes, g.canonical_etypes) == (["_N"], ["_E"], [("_N", "_E", "_N")])
    assert torch.equal(g.nodes(), torch.arange(50))
    src, dst = arrays["edge_index"]
    np.testing.assert_array_equal(g.in_degrees().numpy(), np.bincount(dst, minlength=50))
    np.testing.assert_array_equal(g.out_degrees().numpy(), np.bincount(src, minlength=50))
    np.testing.assert_array_equal(g.in_degrees([4, 2]).numpy(), np.bincount(dst, minlength=50)[[4, 2]])
    found = {tuple(pair) for pair in torch.stack(g.edges(), 1).tolist()}
    assert found == {tuple(pair) for pair in arrays["edge_index"].T.tolist()}
    assert g.int() is g.long() is g
    assert repr(g).startswith("DGLGraph(50 nodes, 200 edges, of ")


def test_data_of_nodes(dataset, arrays):
    g = dgl.DGLGraph(dataset)
    np.testing.assert_array_equal(g.ndata["label"].numpy(), arrays["labels"])
    for mask, split in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        np.testing.assert_array_equal(g.ndata[mask].nonzero().squeeze(1).numpy(), arrays[split])
    assert list(g.ndata) == ["feat", "label", "train_mask", "val_mask", "test_mask"]
    g.ndata["own"] = torch.arange(50)
    assert torch.equal(g.nodes["_N"].data["own"], torch.arange(50))
    with g.local_scope():
        g.ndata["label"] = torch.zeros(50)
    np.testing.assert_array_equal(g.ndata["label"].numpy(), arrays["labels"])
    assert g.ndata.pop("own") is not None
    assert "own" not in g.ndata
    with pytest.raises(ShapeError, match="'own' has 3 rows; 50 are needed"):
        g.ndata["own"] = torch.ones(3)
    with pytest.raises(KeyError, match="degree: the columns are 'feat', 'label'"):
        g.ndata["degree"]


def test_features_are_indexed_as_a_tensor(dataset, arrays):
    feat = dgl.DGLGraph(dataset).ndata["feat"]
    assert feat.shape == (NUM_NODES, DIM)
    assert (feat.size(1), feat.dim(), feat.ndim, len(feat), feat.numel()) == (
        DIM,
        2,
        2,
        NUM_NODES,
        NUM_NODES * DIM,
    )
    assert feat.dtype == torch.float32
    rows = arrays["features"]
    for index in (torch.tensor([3, 1, 3]), [4, 2], np.array([5]), slice(2, 9, 3), slice(None)):
        np.testing.assert_array_equal(feat[index].numpy(), rows[index])
    np.testing.assert_array_equal(feat[7].numpy(), rows[7])
    assert feat[torch.empty(0, dtype=torch.int64)].shape == (0, DIM)  # a type without nodes in a batch
    mask = torch.arange(50) % 3 == 0
    np.testing.assert_array_equal(feat[mask].numpy(), rows[mask.numpy()])
    assert feat.to("cpu")[torch.tensor([1])].device.type == "cpu"
    assert feat.to(torch.float32).float().cpu().shape == feat.shape
    assert feat.to("meta")[torch.tensor([1, 2])].device.type == "meta"
    with pytest.raises(SeedError, match=r"1 of 1 ids are not rows 0..49"):
        feat[torch.tensor([50])]


def test_the_rows_of_the_last_batch_are_not_read_again(dataset):
    feat = dgl.DGLGraph(dataset).ndata["feat"]
    nodes, rows = torch.tensor([3, 4]), torch.ones(2, DIM)
    feat.keep_ready(nodes, rows)
    assert feat[nodes] is rows
    assert feat.to("cpu")[nodes] is rows
    assert feat[nodes.clone()] is not rows
    del rows
    gc.collect()
    np.testing.assert_array_equal(feat[nodes].numpy(), feat[[3, 4]].numpy())  # nobody has them any more


def test_a_graph_on_another_device_has_its_data_there(dataset):
    g = dgl.DGLGraph(dataset)
    g.ndata["own"] = torch.arange(50)
    moved = g.to("meta")
    assert (moved.device.type, g.device.type) == ("meta", "cpu")
    assert moved.ndata["own"].device.type == moved.ndata["label"].device.type == "meta"
    assert g.ndata["own"].device.type == "cpu"


def test_a_dataset_is_opened_by_its_folder(dataset):
    graphs, labels = dgl.load_graphs(str(dataset.root))
    assert (graphs[0].num_edges(), labels) == (200, {})
    with pytest.raises(DglFeatureError, match="save one graph in each file"):
        dgl.load_graphs(dataset.root, [1])


def test_what_changes_or_computes_on_a_graph_is_refused(dataset):
    g = dgl.DGLGraph(dataset)
    with pytest.raises(
        DglFeatureError, match=r"layers over a whole graph: they take blocks; evaluate layer by layer"
    ):
        dgl.nn.SAGEConv(DIM, 2, "mean")(g, torch.ones(NUM_NODES, DIM))
    for name in ("add_edges", "update_all", "subgraph", "whatever"):
        with pytest.raises(DglFeatureError, match=f"DGLGraph.{name}: .*docs/from-dgl.md"):
            getattr(g, name)
    with pytest.raises(DglFeatureError, match=r"dgl.DGLGraph\(list\)"):
        dgl.DGLGraph([1])
    with pytest.raises(DglFeatureError):
        dgl.DGLGraph()


def test_weights_and_features_of_edges(tmp_path):
    rng = np.random.default_rng(1)
    edge_index = np.stack([rng.permutation(10), np.arange(10)])
    weight, features = rng.random(10).astype(np.float32), rng.standard_normal((10, 2)).astype(np.float32)
    made = gloader.Dataset.from_numpy(
        tmp_path / "graph",
        features=np.zeros((10, 1), np.float32),
        labels=np.zeros(10, np.int64),
        edge_index=edge_index,
        edge_weight=weight,
        edge_features=features,
        train=np.arange(3),
        valid=np.arange(0),
        test=np.arange(0),
    )
    g = dgl.DGLGraph(made)
    # One in-edge for each node, in their order.
    np.testing.assert_array_equal(g.edata["weight"].numpy(), weight)
    np.testing.assert_array_equal(g.edata["feat"][:].numpy(), features)
    np.testing.assert_array_equal(g.edges["_E"].data["feat"][[4]].numpy(), features[[4]])
