"""DGL's own data loader and sampler over features on the SSD."""

import pickle
import warnings

import numpy as np
import pytest
import torch

from gloader.adapters.dgl import to_dgl, wrap_graph
from gloader.bridges.dgl.blocks import dgl
from gloader.errors import ForkError, ShapeError, StoreReadError


@pytest.fixture
def graph(dataset):
    made = to_dgl(dataset.load_graph())
    made.ndata["label"] = torch.tensor(dataset.labels)
    return made


def loop(graph, seeds, **how):
    sampler = dgl.dataloading.NeighborSampler([4, 3], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DGL and torch warn about cores, affinity and each other
        yield from dgl.dataloading.DataLoader(
            graph,
            torch.tensor(seeds),
            sampler,
            batch_size=32,
            shuffle=True,
            **how,
        )


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": 0, "use_prefetch_thread": False},
        {"num_workers": 0, "use_prefetch_thread": True},
        {"num_workers": 2, "use_prefetch_thread": False},
    ],
)
def test_dgls_loader_gets_its_features_from_the_store(dataset, graph, how):
    with dataset.open_features() as store:
        wrapped = wrap_graph(graph, {"feat": store}, cache="20KB")
        expected = np.empty((600, 24), np.float32)
        store.read_into(np.arange(600), expected)
        batches = 0
        for input_nodes, output_nodes, blocks in loop(wrapped, dataset.train, **how):
            np.testing.assert_array_equal(blocks[0].srcdata["feat"].numpy(), expected[input_nodes.numpy()])
            np.testing.assert_array_equal(
                blocks[-1].dstdata["label"].numpy(), dataset.labels[output_nodes.numpy()]
            )
            batches += 1
        assert batches == 4
        rows = wrapped.storages["feat"].rows
        assert rows.hits > 0
        assert rows.read.rows > 0
        assert wrapped.num_nodes() == 600  # everything else is the graph's


@pytest.mark.parametrize("use_prefetch_thread", [False, True])
def test_an_error_of_the_store_reaches_the_loop(dataset, graph, monkeypatch, use_prefetch_thread):
    def fail(*_args, **_kwargs):
        raise StoreReadError("Input/output error")

    with dataset.open_features() as store:
        wrapped = wrap_graph(graph, {"feat": store})
        monkeypatch.setattr(store, "read_into", fail)
        with pytest.raises(StoreReadError, match="Input/output error"):
            list(loop(wrapped, dataset.train, use_prefetch_thread=use_prefetch_thread))


def test_it_pickles_for_spawned_workers_which_may_not_fetch(dataset, graph):
    with dataset.open_features() as store:
        wrapped = pickle.loads(pickle.dumps(wrap_graph(graph, {"feat": store})))  # noqa: S301 - ours
        assert wrapped.num_nodes() == 600
        with pytest.raises(ForkError, match="prefetch_node_feats"):
            wrapped.get_node_storage("feat").fetch(torch.arange(3), "cpu")


def test_a_store_of_other_nodes_is_refused(dataset):
    with (
        dataset.open_features() as store,
        pytest.raises(ShapeError, match=r"'feat' have 600 rows, the graph has 2 nodes"),
    ):
        wrap_graph(dgl.graph(([0], [1])), {"feat": store})
