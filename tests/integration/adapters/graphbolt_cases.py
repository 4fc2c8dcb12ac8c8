"""GraphBolt pipelines over our store and sampler; run by `make test-graphbolt` in an environment of its own.

Not collected otherwise: GraphBolt's binaries exist for certain versions of torch only (DGL 2.1.0 with torch 2.2.1).
"""

import warnings

import numpy as np
import pytest
import torch

from gloader import collective
from gloader.adapters.graphbolt import BlockSampler, StoreFeature, gb
from gloader.errors import ConfigError, SeedError, StoreReadError
from gloader.samplers import NeighborSampler


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def store(dataset):
    with dataset.open_features() as opened:
        yield opened


@pytest.fixture
def rows(dataset, store):
    found = np.empty((dataset.num_nodes, dataset.feature_dim), np.float32)
    store.read_into(np.arange(dataset.num_nodes), found)
    return torch.from_numpy(found)


def pipeline(dataset, feature, *, sampler, num_workers=0):
    items = gb.ItemSet(
        (torch.tensor(dataset.train), torch.tensor(dataset.labels[dataset.train])),
        names=("seed_nodes", "labels"),
    )
    source = gb.ItemSampler(items, batch_size=32, shuffle=False)
    sampled = sampler(source).fetch_feature(
        gb.BasicFeatureStore({("node", None, "feat"): feature}), node_feature_keys=["feat"]
    )
    return list(gb.DataLoader(sampled, num_workers=num_workers))


def own_sampler(dataset):
    graph = dataset.load_graph()
    return lambda source: BlockSampler(source, graph, [4, 3], seed=1)


def graphbolts_sampler(dataset):
    graph = dataset.load_graph()
    csc = gb.fused_csc_sampling_graph(torch.tensor(graph.indptr), torch.tensor(graph.indices).long())
    return lambda source: source.sample_neighbor(csc, [3, 4])


@pytest.mark.parametrize("make_sampler", [own_sampler, graphbolts_sampler])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_pipeline_gets_its_features_from_the_store(dataset, store, rows, make_sampler, num_workers):
    feature = StoreFeature(store, cache="20KB")
    batches = pipeline(dataset, feature, sampler=make_sampler(dataset), num_workers=num_workers)
    assert len(batches) == 4
    for batch in batches:
        assert torch.equal(batch.node_features["feat"], rows[batch.input_nodes])
        assert torch.equal(batch.labels, torch.tensor(dataset.labels)[batch.seed_nodes])
        assert batch.blocks[-1].num_dst_nodes() == len(batch.seed_nodes)
        assert batch.blocks[0].num_src_nodes() == len(batch.input_nodes)
    assert feature.rows.hits > 0


def test_the_sampler_takes_edges_of_the_graph_and_the_same_for_any_number_of_workers(dataset, store):
    graph = dataset.load_graph()
    feature = StoreFeature(store)
    alone = pipeline(dataset, feature, sampler=own_sampler(dataset))
    workers = pipeline(dataset, feature, sampler=own_sampler(dataset), num_workers=1)
    for ours, theirs in zip(alone, workers, strict=True):
        assert torch.equal(ours.input_nodes, theirs.input_nodes)
        for hop in ours.sampled_subgraphs:
            src = hop.original_row_node_ids[hop.sampled_csc.indices]
            np.testing.assert_array_equal(graph.indices[hop.original_edge_ids.numpy()], src.numpy())
            dst = hop.original_column_node_ids.repeat_interleave(hop.sampled_csc.indptr.diff())
            found = np.searchsorted(graph.indptr, hop.original_edge_ids.numpy(), side="right") - 1
            np.testing.assert_array_equal(found, dst.numpy())


def test_blocks_are_those_of_our_sampler(dataset, monkeypatch):
    seen = []
    original = NeighborSampler.sample
    monkeypatch.setattr(
        NeighborSampler, "sample", lambda self, *words: seen.append(original(self, *words)) or seen[-1]
    )
    sampler = BlockSampler(
        gb.ItemSampler(gb.ItemSet(torch.arange(4), names="seed_nodes"), 4), dataset.load_graph(), [4, 3]
    )
    nodes, subgraphs = sampler.sample_subgraphs(torch.arange(4), None, seeds_pre_time_window=None)
    np.testing.assert_array_equal(nodes.numpy(), seen[0].nodes)
    for subgraph, block in zip(subgraphs, seen[0].blocks, strict=True):
        np.testing.assert_array_equal(subgraph.sampled_csc.indices.numpy(), block.indices)


def test_what_later_versions_ask_for(dataset, store, rows):
    feature = StoreFeature(store)
    assert (feature.size(), feature.count()) == (torch.Size([24]), 600)
    assert torch.equal(feature.read(), rows)
    ids = torch.tensor([5, 3, 5])
    stages = list(feature.read_async(ids))
    assert len(stages) == feature.read_async_num_stages(ids.device) == 1
    assert torch.equal(stages[0].wait(), rows[ids])
    assert feature.metadata() == {"backend": "gloader"}
    with pytest.raises(ConfigError, match="read-only"):
        feature.update(rows)
    feature.close()
    feature.close()


def test_an_error_of_the_store_reaches_the_loop(dataset, store, monkeypatch):
    def fail(*_args, **_kwargs):
        raise StoreReadError("Input/output error")

    feature = StoreFeature(store)
    monkeypatch.setattr(store, "read_into", fail)
    with pytest.raises(StoreReadError, match="Input/output error"):
        pipeline(dataset, feature, sampler=own_sampler(dataset))
    with pytest.raises(StoreReadError, match="Input/output error"):
        next(feature.read_async(torch.arange(3))).wait()
    feature.close()


def typed_pipeline(typed, feature, *, fanouts, num_workers=0):
    items = gb.ItemSetDict(
        {
            "paper": gb.ItemSet(
                (torch.tensor(typed.train), torch.tensor(typed.labels[typed.train])),
                names=("seed_nodes", "labels"),
            )
        }
    )
    source = gb.ItemSampler(items, batch_size=32, shuffle=False)
    graph = typed.load_hetero_graph()
    sampled = BlockSampler(source, graph, fanouts, seed=1).fetch_feature(
        gb.BasicFeatureStore({("node", "paper", "feat"): feature}), node_feature_keys={"paper": ["feat"]}
    )
    return list(gb.DataLoader(sampled, num_workers=num_workers))


FANOUTS = [[4, 3], {"author:writes:paper": [2, 1], "*": [3, 2]}, collective([6, 4])]


@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_typed_batches_have_the_edges_of_the_graph_by_graphbolts_names(typed, fanouts, num_workers):
    graph = typed.load_hetero_graph()
    rows = typed.node_tables["paper"].all_features()
    with typed.node_tables["paper"].open_features() as store:
        batches = typed_pipeline(
            typed, StoreFeature(store, cache="20KB"), fanouts=fanouts, num_workers=num_workers
        )
    assert len(batches) == 4
    for batch in batches:
        ids = batch.input_nodes
        assert set(ids) == set(typed.node_types)
        np.testing.assert_array_equal(
            batch.node_features["paper", "feat"].numpy(), np.asarray(rows)[ids["paper"].numpy()]
        )
        assert torch.equal(batch.labels["paper"], torch.tensor(typed.labels)[batch.seed_nodes["paper"]])
        for hop, block in zip(batch.sampled_subgraphs, batch.blocks, strict=True):
            assert set(hop.sampled_csc) == {":".join(relation) for relation in typed.relations}
            for relation, edges in graph.relations.items():
                source, _, destination = relation
                csc = hop.sampled_csc[":".join(relation)]
                found = hop.original_edge_ids[":".join(relation)].numpy()
                src = hop.original_row_node_ids[source][csc.indices.long()]
                np.testing.assert_array_equal(edges.indices[found], src.numpy())
                dst = hop.original_column_node_ids[destination].repeat_interleave(csc.indptr.diff().long())
                np.testing.assert_array_equal(
                    np.searchsorted(edges.indptr, found, side="right") - 1, dst.numpy()
                )
                assert block.num_edges(relation) == len(found)
        assert batch.blocks[-1].num_dst_nodes("paper") == len(batch.seed_nodes["paper"])


def test_typed_and_untyped_seeds_are_told_apart(typed, dataset):
    sampler = BlockSampler(
        gb.ItemSampler(gb.ItemSet(torch.arange(4), names="seed_nodes"), 4), typed.load_hetero_graph(), [2]
    )
    with pytest.raises(ConfigError, match="several types of nodes: give seeds by type"):
        sampler.sample_subgraphs(torch.arange(4))
    with pytest.raises(SeedError, match=r"1 nodes of type 'venue' are not in 0\.\.11, among them \[12\]"):
        sampler.sample_subgraphs({"venue": torch.tensor([12])})
    plain = BlockSampler(
        gb.ItemSampler(gb.ItemSet(torch.arange(4), names="seed_nodes"), 4), dataset.load_graph(), [2]
    )
    with pytest.raises(ConfigError, match="the graph has nodes of one type"):
        plain.sample_subgraphs({"node": torch.arange(4)})
