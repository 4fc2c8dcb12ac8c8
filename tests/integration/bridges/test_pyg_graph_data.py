"""The doors of PyG's ``Data`` and ``NeighborLoader`` on a prepared dataset."""

import copy
import re

import numpy as np
import pytest
import torch

import gloader
from gloader.adapters.dgl import BlockLoader
from gloader.adapters.pyg import GraphData, HeteroGraphData, NeighborLoader, NodeLoader
from gloader.compat.dgl import dataloading
from gloader.errors import ConfigError, SeedError


def test_numbers_labels_and_masks_are_those_of_the_data_in_memory(dataset):
    ours, theirs = GraphData(dataset), dataset.to_pyg()
    for name in ("num_nodes", "num_edges", "num_features", "num_node_features"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.num_classes == dataset.num_classes
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype


def test_what_stays_on_the_disk_says_where_it_is(dataset):
    data = GraphData(dataset)
    with pytest.raises(AttributeError, match=r"no 'x': the rows of a batch are batch\.x"):
        _ = data.x
    with pytest.raises(AttributeError, match=r"no 'edge_index': the edges of a batch are batch\.edge_index"):
        _ = data.edge_index
    assert not hasattr(data, "edge_attr")
    assert copy.copy(data).num_nodes == data.num_nodes


def test_all_nodes_come_in_order_with_all_their_neighbours(dataset):
    graph = dataset.load_graph()
    with NeighborLoader(dataset, [-1], batch_size=256, memory_budget="200MB") as loader:
        assert len(loader.dataset) == dataset.num_nodes
        batches = list(loader)
    assert [batch.batch_size for batch in batches] == [256, 256, 88]
    for batch, first in zip(batches, (0, 256, 512), strict=True):
        seeds = batch.n_id[: batch.batch_size].numpy()
        np.testing.assert_array_equal(seeds, np.arange(first, first + batch.batch_size))
        assert batch.edge_index.shape[1] == graph.in_degrees(seeds).sum()


@pytest.mark.parametrize("form", ["mask", "tensor", "array"])
def test_seeds_may_be_a_mask_or_ids_and_fewer_than_a_batch(dataset, form):
    data = GraphData(dataset)
    nodes = {"mask": data.train_mask, "tensor": torch.tensor(dataset.train), "array": dataset.train}[form]
    with NeighborLoader(data, [2, 2], nodes, batch_size=1024, shuffle=True, memory_budget="200MB") as loader:
        (batch,) = loader
        assert loader.data is data
        assert len(loader.dataset) == len(dataset.train) == batch.batch_size
    assert sorted(batch.n_id[: batch.batch_size].tolist()) == sorted(dataset.train.tolist())


def test_what_it_cannot_take_is_refused_with_the_way_out(dataset):
    with pytest.raises(
        ConfigError, match=r"num_workers, persistent_workers: .* threads of this process; leave it out"
    ):
        NeighborLoader(dataset, [2], num_workers=6, persistent_workers=True)
    with pytest.raises(ConfigError, match=r"input_nodes is a mask of shape \(3,\); the graph has 600 nodes"):
        NeighborLoader(dataset, [2], torch.ones(3, dtype=torch.bool))
    with pytest.raises(SeedError, match="601"):
        NeighborLoader(dataset, [2], torch.tensor([601]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'directed'"):
        NeighborLoader(dataset, [2], directed=False)


def test_a_name_that_is_not_there_is_answered_with_the_nearest(dataset, typed):
    data, many = GraphData(dataset), HeteroGraphData(typed)
    settings = {"memory_budget": "64MB"}
    for call, error, text in (
        (
            lambda: gloader.Loader(dataset, fanout=[2], batch_size=2),
            TypeError,
            "'fanout'; did you mean 'fanouts'?",
        ),
        (lambda: gloader.Loader(dataset, num_neighbors=[2]), TypeError, "did you mean 'fanouts'?"),
        (
            lambda: gloader.LinkLoader(dataset, fanouts=[2], negative=1),
            TypeError,
            "did you mean 'negatives'?",
        ),
        (lambda: NeighborLoader(data, num_neighbours=[2]), TypeError, "did you mean 'num_neighbors'?"),
        (lambda: NeighborLoader(data, fanouts=[2]), TypeError, "did you mean 'num_neighbors'?"),
        (lambda: NodeLoader(dataset, fanout=[2], **settings), TypeError, "did you mean 'fanouts'?"),
        (lambda: BlockLoader(dataset, fanout=[2], **settings), TypeError, "did you mean 'fanouts'?"),
        (
            lambda: dataloading.DataLoader(dataset, [1], None, fanouts=[2]),
            TypeError,
            "did you mean 'graph_sampler'?",
        ),
        (lambda: gloader.Loder, AttributeError, "module 'gloader' has no 'Loder'; did you mean 'Loader'?"),
        (
            lambda: data.num_feature,
            AttributeError,
            "a GraphData has no 'num_feature'; did you mean 'num_features'?",
        ),
        (
            lambda: many["paper"].num_node,
            AttributeError,
            "a NodeData has no 'num_node'; did you mean 'num_nodes'?",
        ),
        (
            lambda: data.to("cpu"),
            AttributeError,
            "a GraphData has no 'to': it stays where it is: the loader's device=",
        ),
        (lambda: many.to("cpu"), AttributeError, "a HeteroGraphData has no 'to': it stays where it is"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            call()


def test_objects_print_what_they_hold(dataset, typed):
    data, many = GraphData(dataset), HeteroGraphData(typed)
    assert repr(data) == (
        "GraphData(num_nodes=600, num_edges=4000, num_features=24, num_classes=4, y, train_mask, val_mask, test_mask, "
        f"dataset={dataset.location!r})"
    )
    assert "  paper=NodeData(num_nodes=400, num_features=" in repr(many)
    assert "  (author, writes, paper)=EdgeData(num_edges=" in repr(many)
    assert repr(dataset) == (
        f"Dataset({dataset.location!r}, num_nodes=600, num_edges=4000, feature_dim=24, num_classes=4)"
    )
    assert "4 types, 7 relations" in repr(typed)
    with NeighborLoader(data, [2, 2], batch_size=100, memory_budget="64MB") as loader:
        assert repr(loader) == (
            f"NeighborLoader({dataset!r}, fanouts=[2, 2], batch_size=100: 600 seeds in 6 batches)"
        )
        list(loader)
        assert loader.bottleneck() == loader.loader.bottleneck()
        assert "peak memory of this process: " in loader.explain()
        assert loader.explain().endswith("is what the loader alone may hold")


def test_a_mask_of_ones_own_is_kept_under_the_name_that_it_is_given(dataset):
    data = GraphData(dataset)
    mask = torch.arange(600) < 30
    data["train_mask"] = mask
    assert data.train_mask is data["train_mask"] is mask
    with NeighborLoader(data, [2], data.train_mask, batch_size=30, memory_budget="64MB") as loader:
        assert len(loader.dataset) == 30
    with pytest.raises(KeyError, match="a GraphData has no 'x'"):
        data["x"]
    for name in ("x", "y", "edge_index"):
        with pytest.raises(ConfigError, match=f"a GraphData's '{name}' is that of the prepared dataset"):
            data[name] = mask
