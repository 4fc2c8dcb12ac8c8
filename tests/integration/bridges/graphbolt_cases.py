"""GraphBolt pipelines over our store and sampler; run by `make test-graphbolt` in an environment of its own.

Not collected otherwise: GraphBolt's binaries exist for certain versions of torch only (DGL 2.1.0 with torch 2.2.1).
"""

import warnings

import numpy as np
import pytest
import torch

from gloader import Binary, InBatch, Table, Uniform, collective
from gloader.adapters.graphbolt import BlockSampler, NegativeSampler, StoreFeature
from gloader.bridges.graphbolt_steps import gb
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


def pairs_of(dataset, count):
    """The first edges of the graph as pairs (n, 2)."""
    graph = dataset.load_graph()
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return torch.from_numpy(np.stack([graph.indices, ends], axis=1)[:count].astype(np.int64))


def link_pipeline(dataset, negatives, *, num_workers=0, **settings):
    graph = dataset.load_graph()
    source = gb.ItemSampler(gb.ItemSet(pairs_of(dataset, 100), names="seeds"), batch_size=32)
    drawn = NegativeSampler(source, graph, negatives, seed=1) if negatives is not None else source
    sampled = BlockSampler(drawn, graph, [4, 3], seed=1, **settings)
    return list(gb.DataLoader(sampled, num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_pairs_have_the_attributes_that_graphbolts_own_negatives_give_them(dataset, num_workers):
    graph, pairs = dataset.load_graph(), pairs_of(dataset, 100)
    csc = gb.fused_csc_sampling_graph(torch.tensor(graph.indptr), torch.tensor(graph.indices).long())
    source = gb.ItemSampler(gb.ItemSet(pairs, names="seeds"), batch_size=32)
    theirs = list(gb.DataLoader(source.sample_uniform_negative(csc, 3).sample_neighbor(csc, [3, 4])))
    ours = link_pipeline(dataset, Uniform(3), num_workers=num_workers)
    assert len(ours) == len(theirs) == 4
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for name in ("seeds", "labels", "indexes", "compacted_seeds"):
            found, expected = getattr(mine, name), getattr(other, name)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        assert torch.equal(mine.labels, other.labels)
        assert torch.equal(mine.indexes, other.indexes)
        count = int(mine.labels.sum())
        assert torch.equal(mine.seeds[:count], pairs[32 * number :][:count])
        assert torch.equal(mine.seeds[count:, 0], mine.seeds[mine.indexes[count:], 0])
        assert torch.equal(mine.input_nodes[mine.compacted_seeds], mine.seeds)


def test_negatives_are_the_same_for_any_number_of_workers_and_others_in_another_epoch(dataset):
    alone, workers = (link_pipeline(dataset, Binary(1.5), num_workers=count) for count in (0, 1))
    for mine, other in zip(alone, workers, strict=True):
        assert torch.equal(mine.seeds, other.seeds)
        assert torch.equal(mine.input_nodes, other.input_nodes)
    graph, batch = dataset.load_graph(), gb.MiniBatch(seeds=pairs_of(dataset, 32))
    later = NegativeSampler([], graph, "uniform:2", epoch=1).add_negatives(batch)
    first = NegativeSampler([], graph, "uniform:2").add_negatives(gb.MiniBatch(seeds=pairs_of(dataset, 32)))
    assert not torch.equal(later.seeds, first.seeds)
    crossed = NegativeSampler([], graph, InBatch()).add_negatives(gb.MiniBatch(seeds=pairs_of(dataset, 8)))
    assert not set(map(tuple, crossed.seeds[8:].tolist())) & set(map(tuple, crossed.seeds[:8].tolist()))


@pytest.mark.parametrize("negatives", [None, Uniform(2)])
def test_edges_of_the_pairs_are_in_no_hop(dataset, negatives):
    graph = dataset.load_graph()
    met = {}
    for exclude in ("none", "self", "reverse"):
        met[exclude] = [0, 0]
        for batch in link_pipeline(dataset, negatives, exclude=exclude):
            positives = batch.seeds if negatives is None else batch.seeds[batch.labels]
            pairs = set(map(tuple, positives.tolist()))
            for hop in batch.sampled_subgraphs:
                ids = hop.original_edge_ids.numpy()
                ends = np.searchsorted(graph.indptr, ids, side="right") - 1
                taken = set(zip(graph.indices[ids].tolist(), ends.tolist(), strict=True))
                met[exclude][0] += len(taken & pairs)
                met[exclude][1] += len(taken & {pair[::-1] for pair in pairs})
    assert met["none"][0] > 20
    assert met["self"][0] == met["reverse"][0] == met["reverse"][1] == 0


def test_typed_pairs_have_negatives_and_are_in_no_hop(typed):
    graph = typed.load_hetero_graph()
    writes, back = ("author", "writes", "paper"), ("paper", "written_by", "author")
    edges = graph.relations[writes]
    ends = np.repeat(np.arange(edges.num_nodes), np.diff(edges.indptr))
    pairs = torch.from_numpy(np.stack([edges.indices, ends], axis=1)[:64].astype(np.int64))
    items = gb.ItemSetDict({"author:writes:paper": gb.ItemSet(pairs, names="seeds")})
    drawn = NegativeSampler(gb.ItemSampler(items, batch_size=32), graph, Uniform(2))
    sampled = BlockSampler(
        drawn, graph, [4, 3], exclude="reverse", reverse={writes: "paper:written_by:author"}
    )
    batches = list(gb.DataLoader(sampled))
    assert len(batches) == 2
    for batch in batches:
        key = "author:writes:paper"
        assert batch.seeds[key].shape == (96, 2)
        assert batch.labels[key].tolist() == [True] * 32 + [False] * 64
        assert batch.indexes[key].tolist() == [*range(32), *np.repeat(np.arange(32), 2)]
        compacted = batch.compacted_seeds[key]
        assert torch.equal(batch.input_nodes["author"][compacted[:, 0]], batch.seeds[key][:, 0])
        assert torch.equal(batch.input_nodes["paper"][compacted[:, 1]], batch.seeds[key][:, 1])
        positives = set(map(tuple, batch.seeds[key][:32].tolist()))
        for hop in batch.sampled_subgraphs:
            for relation, order in ((writes, 1), (back, -1)):
                ids = hop.original_edge_ids[":".join(relation)].numpy()
                found = np.searchsorted(graph.relations[relation].indptr, ids, side="right") - 1
                taken = zip(graph.relations[relation].indices[ids].tolist(), found.tolist(), strict=True)
                assert not positives & {pair[::order] for pair in taken}
    with pytest.raises(ConfigError, match=r"name the reverse relation of author:writes:paper"):
        list(gb.DataLoader(BlockSampler(gb.ItemSampler(items, 32), graph, [2], exclude="reverse")))


def test_what_pairs_cannot_be_is_refused(dataset, typed):
    graph, types = dataset.load_graph(), typed.load_hetero_graph()
    with pytest.raises(ConfigError, match=r"table:wrong: GraphBolt gives pairs and has no link table"):
        NegativeSampler([], graph, Table("wrong"))
    step = NegativeSampler([], graph, Uniform(1))
    with pytest.raises(ConfigError, match=r"a minibatch has no pairs"):
        step.add_negatives(gb.MiniBatch(seed_nodes=torch.arange(3)))
    with pytest.raises(SeedError, match=r"1 destinations of pairs are not in 0\.\.599, among them \[600\]"):
        step.add_negatives(gb.MiniBatch(seeds=torch.tensor([[1, 600]])))
    with pytest.raises(
        SeedError, match=r"the pairs have author:reads:paper; this graph has author:writes:paper"
    ):
        wrong = {"author:reads:paper": torch.tensor([[1, 2]])}
        NegativeSampler([], types, Uniform(1)).add_negatives(gb.MiniBatch(seeds=wrong))
