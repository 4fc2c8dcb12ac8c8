"""Features, topology and sampler of several types under PyG's own loader."""

import warnings

import numpy as np
import pytest
import torch

from gloader import collective
from gloader.adapters.pyg import MergedSampler, RowStore, TopologyStore
from gloader.errors import ConfigError, SeedError, ShapeError
from gloader.types import ReadStats
from tests.unit.bridges.hetero_batches import RELATIONS, SmallGraph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.loader import NodeLoader
    from torch_geometric.sampler import NodeSamplerInput


class Rows:
    """All rows in memory, as a `FeatureSource`."""

    def __init__(self, array):
        self.array = array
        self.num_rows, self.dim = array.shape
        self.dtype = array.dtype

    def read_into(self, rows, out, /, *, at=None):
        out[slice(None) if at is None else at] = self.array[rows]
        return ReadStats(rows=len(rows), requests=1, bytes_read=0)


@pytest.fixture(scope="module")
def graph():
    return SmallGraph()


@pytest.fixture
def store(graph):
    return RowStore(
        {name: Rows(graph.features[name]) for name in ("paper", "venue", "patent")}, {"paper": graph.labels}
    )


def test_rows_and_labels_are_those_of_their_types(graph, store):
    ids = torch.tensor([4, 0, 4])
    for name in ("paper", "venue"):
        rows = store.get_tensor(group_name=name, attr_name="x", index=ids)
        np.testing.assert_array_equal(rows.numpy(), graph.features[name][ids])
        assert store.get_tensor_size(group_name=name, attr_name="x") == graph.features[name].shape
    found = store.get_tensor(group_name="paper", attr_name="y", index=ids)
    np.testing.assert_array_equal(found.numpy(), graph.labels[ids])
    assert {(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()} == {
        ("paper", "x"),
        ("venue", "x"),
        ("patent", "x"),
        ("paper", "y"),
    }


def test_what_a_type_does_not_have_is_missing(store):
    for group, attribute in (("author", "x"), ("venue", "y"), ("paper", "z")):
        assert store.get_tensor(group_name=group, attr_name=attribute, index=None) is None
        assert store.get_tensor_size(group_name=group, attr_name=attribute) is None


def test_every_relation_is_an_edge_type(graph):
    edges = TopologyStore(graph.topology())
    assert [attr.edge_type for attr in edges.get_all_edge_attrs()] == list(RELATIONS)
    for attr in edges.get_all_edge_attrs():
        indptr, indices = graph.csc[attr.edge_type]
        row, colptr = edges.get_edge_index(attr)
        assert row.tolist() == indices.tolist()
        assert colptr.tolist() == indptr.tolist()
        assert attr.size == (graph.num_nodes[attr.edge_type[0]], graph.num_nodes[attr.edge_type[2]])


def test_bad_input_is_refused_in_a_sentence(graph):
    with pytest.raises(ShapeError, match=r"paper: labels have shape \(3,\) for 90 feature rows"):
        RowStore({"paper": Rows(graph.features["paper"])}, {"paper": np.arange(3)})
    with pytest.raises(ConfigError, match="features and labels are both given by type, or neither is"):
        RowStore({"paper": Rows(graph.features["paper"])}, graph.labels)


FANOUTS = [[3, 2], {"author:writes:paper": [3, 2], "*": [2, 1]}, collective([4, 3])]


@pytest.mark.parametrize("node_type", ["paper", "author"])
@pytest.mark.parametrize("fanouts", FANOUTS)
def test_pygs_loader_yields_typed_batches_of_the_graph(graph, store, fanouts, node_type):
    seeds = torch.arange(0, 60, 3)
    loader = NodeLoader(
        (store, TopologyStore(graph.topology())),
        MergedSampler(graph.topology(), fanouts, seed=1),
        input_nodes=(node_type, seeds),
        batch_size=8,
        filter_per_worker=False,
    )
    batches = list(loader)
    assert [batch[node_type].batch_size for batch in batches] == [8, 8, 4]
    for batch in batches:
        for name in ("paper", "venue", "patent"):
            found = graph.features[name][batch[name].n_id.numpy()]
            np.testing.assert_array_equal(batch[name].x.numpy(), found)
        np.testing.assert_array_equal(batch["paper"].y.numpy(), graph.labels[batch["paper"].n_id.numpy()])
        own = batch[node_type]
        assert torch.equal(seeds[own.input_id], own.n_id[: own.batch_size])
        for relation, (indptr, indices) in graph.csc.items():
            source, destination = batch[relation].edge_index
            ids = batch[relation].e_id.numpy()
            np.testing.assert_array_equal(indices[ids], batch[relation[0]].n_id[source].numpy())
            places = np.searchsorted(indptr, ids, side="right") - 1
            np.testing.assert_array_equal(places, batch[relation[2]].n_id[destination].numpy())
            assert sum(batch[relation].num_sampled_edges) == len(ids)
        for name in graph.num_nodes:
            assert sum(batch[name].num_sampled_nodes) == len(batch[name].n_id)
        assert len(batch["author", "writes", "paper"].e_id) > 0


def test_seeds_that_are_no_nodes_of_their_type_are_refused(graph):
    sampler = MergedSampler(graph.topology(), [2])

    def sample(node_type, *ids):
        sampler.sample_from_nodes(
            NodeSamplerInput(torch.arange(len(ids)), torch.tensor(ids), None, node_type)
        )

    with pytest.raises(SeedError, match=r"1 nodes of type 'paper' are not in 0\.\.89, among them \[90\]"):
        sample("paper", 3, 90)  # would be the first author
    with pytest.raises(SeedError, match=r"nodes have the type 'book'; this graph has 'paper', 'author'"):
        sample("book", 3)
    with pytest.raises(ConfigError, match=r"as \(type, ids\); the types are 'paper', 'author'"):
        sample(None, 3)
