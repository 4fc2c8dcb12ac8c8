"""The adapted loops over several types: the batches of the native loader, whatever the settings, and its state."""

import itertools

import numpy as np
import pytest
import torch

import gloader
from gloader.adapters.dgl import BlockLoader
from gloader.adapters.pyg import GraphData, HeteroGraphData, NeighborLoader, NodeLoader
from gloader.bridges.dgl.blocks import dgl
from gloader.errors import ConfigError, SeedError

CHANGES = [{}, {"threads": 1, "features": "ssd"}, {"features": "ssd", "cache": 6000, "policy": "lru"}]
FANOUTS = [[4, 3], {"author:writes:paper": [2, 1], "*": [3, 2]}, gloader.collective([6, 4])]


@pytest.fixture
def make_loader(typed, settings):
    return lambda **changes: gloader.HeteroLoader(typed, **(settings | changes))


def edges_of(native, relation):
    """Source, destination and edge id of the edges of a merged batch, each once."""
    block = native.blocks[0][relation]
    return set(zip(*block.edge_index.tolist(), block.edge_ids.tolist(), strict=True))


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
def test_pyg_batches_carry_the_nodes_and_edges_of_the_native_batch(
    typed, make_loader, settings, changes, fanouts
):
    ours = settings | changes | {"fanouts": fanouts}
    with make_loader(layout="merged", fanouts=fanouts) as native, NodeLoader(typed, **ours) as adapted:
        assert len(adapted) == len(native) == 7
        for _ in range(2):
            for batch, data in zip(native, adapted, strict=True):
                for name in typed.node_types:
                    assert data[name].n_id.tolist() == batch.nodes[name].tolist()
                    if typed.node_tables[name].has_features:
                        assert torch.equal(data[name].x, batch.x[name])
                for relation in typed.relations:
                    found = data[relation]
                    edges = set(zip(*found.edge_index.tolist(), found.e_id.tolist(), strict=True))
                    assert edges == edges_of(batch, relation)
                    assert len(edges) == found.num_edges
                assert torch.equal(data["paper"].y, batch.y)
                seeds = data["paper"].n_id[: data["paper"].batch_size]
                np.testing.assert_array_equal(typed.train[data["paper"].input_id.numpy()], seeds)
                assert "x" not in data["author"]
                assert "batch_size" not in data["author"]


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_dgl_batches_carry_the_nodes_and_edges_of_the_native_batch(
    typed, make_loader, settings, changes, layout
):
    with (
        make_loader(layout=layout) as native,
        BlockLoader(typed, **(settings | changes | {"layout": layout})) as adapted,
    ):
        assert len(adapted) == 7
        for batch, (input_nodes, output_nodes, blocks) in zip(native, adapted, strict=True):
            assert {name: ids.tolist() for name, ids in input_nodes.items()} == {
                name: ids.tolist() for name, ids in batch.nodes.items()
            }
            assert output_nodes["paper"].tolist() == batch.nodes["paper"][: batch.num_seeds["paper"]].tolist()
            assert torch.equal(blocks[-1].dstdata["label"]["paper"], batch.y)
            assert set(blocks[0].srcdata["feat"]) == {"paper", "venue", "patent"}
            for name, rows in blocks[0].srcdata["feat"].items():
                assert torch.equal(rows, batch.x[name])
            for block, hop in zip(blocks, batch.blocks, strict=True):
                for relation in typed.relations:
                    source, destination = block.edges(order="eid", etype=relation)
                    assert torch.equal(torch.stack([source, destination]).long(), hop[relation].edge_index)
                    assert torch.equal(block.edges[relation].data[dgl.EID], hop[relation].edge_ids)


def test_seeds_of_several_types_have_their_positions_and_the_labels_of_one(typed, settings):
    seeds = {"author": np.arange(50, 80), "paper": np.arange(40)}
    with NodeLoader(typed, seeds=seeds, shuffle=True, **settings) as loader:
        assert len(loader.dataset) == 70
        met = {name: [] for name in seeds}
        for data in loader:
            for name in seeds:
                own = data[name]
                ids = own.n_id[: own.batch_size]
                met[name] += ids.tolist()
                start = int(typed.type_starts[typed.node_types.index(name)])
                np.testing.assert_array_equal(loader.loader.seeds[own.input_id.numpy()], ids + start)
            papers = data["paper"].n_id[: data["paper"].batch_size].numpy()
            np.testing.assert_array_equal(data["paper"].y, typed.labels[papers])
        assert sorted(met["author"]) == list(range(50, 80))
        assert sorted(met["paper"]) == list(range(40))


def parts_of(item):
    if isinstance(item, tuple):
        nodes, _, blocks = item
        return [ids.tolist() for ids in nodes.values()], blocks[0].srcdata["feat"]["paper"].tolist()
    return [item[name].n_id.tolist() for name in item.node_types], item["paper"].x.tolist()


@pytest.mark.parametrize("adapter", [NodeLoader, BlockLoader])
def test_resume_in_the_middle_of_an_epoch_continues_bit_for_bit(typed, settings, adapter):
    with adapter(typed, **settings) as stream:
        states, parts = [stream.state_dict()], []
        for item in itertools.chain(stream, stream):
            parts.append(parts_of(item))
            states.append(stream.state_dict())
    assert len(parts) == 14
    for step in (0, 3, 7, 11):
        with adapter(typed, **settings) as resumed:
            resumed.load_state_dict(states[step])
            rest = [parts_of(item) for _ in range(2) for item in resumed]
        assert rest[: 14 - step] == parts[step:][: len(rest)]


def test_a_dataset_of_one_type_comes_typed_from_a_typed_loader(dataset, settings):
    with NodeLoader(gloader.HeteroLoader(dataset, **settings)) as loader:
        data = next(iter(loader))
    assert data.node_types == ["node"]
    assert data.edge_types == [("node", "to", "node")]
    with BlockLoader(gloader.HeteroLoader(dataset, **settings)) as loader:
        input_nodes, _, blocks = next(iter(loader))
    assert list(input_nodes) == ["node"]
    assert blocks[0].srcdata["feat"].shape == (len(input_nodes["node"]), dataset.feature_dim)


def test_the_numbers_of_the_graph_are_there_by_pygs_names(typed):
    data = HeteroGraphData(typed)
    assert data.metadata() == (list(typed.node_types), list(typed.relations))
    assert data.num_nodes == 668
    assert data.num_edges == 5230
    assert data.num_features == {"paper": 24, "author": 0, "venue": 5, "patent": 3}
    assert data.num_classes == 4
    assert (data["paper"].num_nodes, data["paper"].num_features) == (400, 24)
    assert data["paper", "founds", "patent"].num_edges == 30
    assert data["paper"].y.tolist() == typed.labels.tolist()
    for name, ids in (
        ("train_mask", typed.train),
        ("val_mask", typed.valid),
        ("test_mask", typed.test),
    ):
        assert getattr(data["paper"], name).nonzero().ravel().tolist() == sorted(ids.tolist())
    assert data["paper"].y is data["paper"].y


def test_what_is_not_there_says_where_it_is(typed, dataset):
    data = HeteroGraphData(typed)
    with pytest.raises(AttributeError, match=r"no 'x_dict': the rows of a batch are batch\.x_dict"):
        _ = data.x_dict
    with pytest.raises(AttributeError, match=r"no 'edge_index': the edges of a batch are batch\[RELATION\]"):
        _ = data["author", "writes", "paper"].edge_index
    with pytest.raises(AttributeError, match=r"type 'author' have no 'y': the labelled type is 'paper'"):
        _ = data["author"].y
    with pytest.raises(
        KeyError, match=r"'book' is neither a type nor a relation of this graph; there are 'paper"
    ):
        _ = data["book"]
    with pytest.raises(ConfigError, match=r"nodes of one type; use gloader\.adapters\.pyg\.GraphData"):
        HeteroGraphData(dataset)
    with pytest.raises(
        ConfigError, match=r"several types of nodes; use gloader\.adapters\.pyg\.HeteroGraphData"
    ):
        GraphData(typed)


@pytest.mark.parametrize("form", ["mask", "tensor", "name"])
def test_pygs_own_arguments_are_taken(typed, form):
    data = HeteroGraphData(typed)
    mask = data["paper"].train_mask
    nodes = {"mask": ("paper", mask), "tensor": ("paper", mask.nonzero().ravel()), "name": "author"}[form]
    fanouts = {("author", "writes", "paper"): [2, 2], "*": [1, 1]}
    with NeighborLoader(data, fanouts, nodes, batch_size=1024, memory_budget="200MB") as loader:
        (batch,) = loader
        assert loader.data is data
    name = "author" if form == "name" else "paper"
    expected = range(250) if form == "name" else sorted(typed.train.tolist())
    assert sorted(batch[name].n_id[: batch[name].batch_size].tolist()) == list(expected)
    draws = torch.bincount(batch["author", "writes", "paper"].edge_index[1])
    assert draws.max() == 2
    assert torch.bincount(batch["paper", "cites", "paper"].edge_index[1]).max() == 1


def test_bad_seeds_are_refused_in_a_sentence(typed, dataset):
    with pytest.raises(
        ConfigError, match=r"name a type of nodes, as \('paper', ids\); this graph has 'paper', 'au"
    ):
        NeighborLoader(typed, [2])
    with pytest.raises(ConfigError, match="name a type of nodes"):
        NeighborLoader(typed, [2], torch.arange(3))
    with pytest.raises(ConfigError, match=r"mask of shape \(3,\); the graph has 250 nodes"):
        NeighborLoader(typed, [2], ("author", torch.ones(3, dtype=torch.bool)))
    with pytest.raises(SeedError, match="author"):
        NeighborLoader(typed, [2], ("author", torch.tensor([250])))
    with pytest.raises(ConfigError, match="names a type, and this graph has one"):
        NeighborLoader(dataset, [2], "paper")
