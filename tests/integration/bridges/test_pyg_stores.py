"""PyG's own loader over our sampler and features on the SSD."""

import warnings

import numpy as np
import pytest
import torch

from gloader.adapters.pyg import MergedSampler, RowStore, TopologyStore
from gloader.errors import ConfigError, ForkError, ShapeError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.loader import NodeLoader
    from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput


@pytest.fixture
def store(dataset):
    with dataset.open_features() as opened:
        yield opened


def loop(dataset, store, sampler=None, **how):
    graph = dataset.load_graph()
    return NodeLoader(
        (RowStore(store, dataset.labels, cache="20KB"), TopologyStore(graph)),
        sampler or MergedSampler(graph, [4, 3], seed=1),
        input_nodes=torch.tensor(dataset.train),
        batch_size=32,
        **({"filter_per_worker": False} | how),
    )


def all_rows(dataset, store):
    rows = np.empty((dataset.num_nodes, dataset.feature_dim), np.float32)
    store.read_into(np.arange(dataset.num_nodes), rows)
    return rows


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pygs_loader_yields_what_its_own_sampler_would(dataset, store, num_workers):
    rows, graph = all_rows(dataset, store), dataset.load_graph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about forking with threads
        batches = list(loop(dataset, store, num_workers=num_workers))
    assert len(batches) == 4
    for batch in batches:
        np.testing.assert_array_equal(batch.x.numpy(), rows[batch.n_id.numpy()])
        np.testing.assert_array_equal(batch.y.numpy(), dataset.labels[batch.n_id.numpy()])
        np.testing.assert_array_equal(
            dataset.train[batch.input_id.numpy()], batch.n_id[: batch.batch_size].numpy()
        )
        src, dst = batch.n_id[batch.edge_index].numpy()
        np.testing.assert_array_equal(graph.indices[batch.e_id.numpy()], src)
        np.testing.assert_array_equal(
            np.searchsorted(graph.indptr, batch.e_id.numpy(), side="right") - 1, dst
        )
        assert sum(batch.num_sampled_nodes) == batch.num_nodes


def test_batches_are_equal_for_any_number_of_workers_and_differ_by_epoch(dataset, store):
    sampler = MergedSampler(dataset.load_graph(), [4, 3], seed=1)

    def edges(**how):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [batch.e_id.tolist() for batch in loop(dataset, store, sampler, **how)]

    first = edges()
    assert edges(num_workers=2) == first
    sampler.set_epoch(1)
    assert edges() != first


def test_features_asked_for_in_a_worker_are_refused_with_the_way_out(dataset, store):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ForkError, match="filter_per_worker=False"):
            list(loop(dataset, store, num_workers=1, filter_per_worker=True))


def test_what_the_sampler_and_the_stores_cannot_do_is_refused(dataset, store):
    sampler = MergedSampler(dataset.load_graph(), [2])
    with pytest.raises(ConfigError, match="temporal sampling is not supported"):
        sampler.sample_from_nodes(NodeSamplerInput(torch.arange(2), torch.arange(2), time=torch.arange(2)))
    timed = EdgeSamplerInput(*[torch.arange(2)] * 3, time=torch.arange(2))
    with pytest.raises(ConfigError, match="edge_label_time: temporal sampling is not supported"):
        sampler.sample_from_edges(timed)
    with pytest.raises(ShapeError, match=r"labels have shape \(3,\) for 600 feature rows"):
        RowStore(store, np.arange(3))
    rows = RowStore(store, dataset.labels)
    with pytest.raises(ConfigError, match="read-only"):
        rows.put_tensor(torch.ones(1), group_name=None, attr_name="x", index=None)
    assert rows.get_tensor_size(group_name=None, attr_name="x") == (600, 24)
    assert TopologyStore(dataset.load_graph()).get_all_edge_attrs()[0].size == (600, 600)
