"""PyG's form of batches of links: names and shapes of its own `LinkNeighborLoader`, and what our loader has in them."""

import warnings

import numpy as np
import pytest
import torch
from integration.loader.linked import NUM_NODES, NUM_ROWS, write_linked
from linked import BOUGHT, BUYS, link_arrays, write_linked_types

import gloader
from gloader.adapters.pyg import GraphData, LinkLoader, LinkNeighborLoader, MergedSampler, NodeLoader
from gloader.errors import ConfigError
from gloader.types import NO_EDGE

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.loader import LinkNeighborLoader as PygLoader
    from torch_geometric.sampler import NegativeSampling

SETTINGS = {"fanouts": [4, 3], "batch_size": 32, "memory_budget": "200MB", "threads": 2, "seed": 3}
FORMS = [
    "binary",
    {"mode": "binary", "amount": 1.5},
    "triplet",
    {"mode": "triplet", "amount": 3},
    NegativeSampling("triplet", 2),
]


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    return write_linked(tmp_path_factory.mktemp("links") / "graph")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    tables = {"train": (BUYS, BOUGHT, link_arrays(90, labels="int64"))}
    return write_linked_types(tmp_path_factory.mktemp("links") / "typed", tables)


def names_and_shapes(store):
    """Names with dtype and number of axes, and sizes where they do not hang on what was drawn."""
    drawn = {
        "x",
        "edge_index",
        "edge_attr",
        "e_id",
        "n_id",
        "num_nodes",
        "num_sampled_nodes",
        "num_sampled_edges",
    }
    return {
        name: (values.dtype, values.shape[values.ndim :] if name in drawn else values.shape)
        if isinstance(values, torch.Tensor)
        else (type(values), None if isinstance(values, int) else len(values))
        for name, values in store.items()
    }


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_names_dtypes_and_shapes_are_those_of_pyg(linked, form):
    edges = torch.from_numpy(np.stack([linked.src, linked.dst]).astype(np.int64))
    data = Data(x=torch.from_numpy(linked.x), edge_index=edges, edge_attr=torch.from_numpy(linked.edge_x))
    pairs = torch.from_numpy(linked.pairs[:, :2].T.copy())
    sampler = MergedSampler(linked.dataset.load_graph(), [4, 3])
    theirs = PygLoader(data, [4, 3], pairs, neg_sampling=form, batch_size=32, neighbor_sampler=sampler)
    with LinkNeighborLoader(
        GraphData(linked.dataset), [4, 3], "train", neg_sampling=form, batch_size=32, memory_budget="200MB"
    ) as ours:
        assert len(ours) == len(theirs)
        assert len(ours.dataset) == len(theirs.dataset) == NUM_ROWS
        for mine, other in zip(ours, theirs, strict=True):
            assert names_and_shapes(mine) == names_and_shapes(other)
            assert mine.input_id.tolist() == other.input_id.tolist()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_typed_names_dtypes_and_shapes_are_those_of_pyg(typed, form):
    graph = typed.load_hetero_graph()
    data = HeteroData()
    for name, count in graph.num_nodes.items():
        data[name].num_nodes = count
    for relation, edges in graph.relations.items():
        ends = np.repeat(np.arange(edges.num_nodes), np.diff(edges.indptr))
        data[relation].edge_index = torch.from_numpy(np.stack([edges.indices.astype(np.int64), ends]))
        data[relation].edge_attr = torch.zeros(len(ends), 3)
    pairs = torch.from_numpy(typed.link_table("train").open(max_bytes=2**20).read(np.arange(90)).sources)
    pairs = torch.stack([pairs, pairs % 25])
    theirs = PygLoader(
        data,
        [4, 3],
        (BUYS, pairs),
        neg_sampling=form,
        batch_size=32,
        neighbor_sampler=MergedSampler(graph, [4, 3]),
    )
    with LinkNeighborLoader(typed, [4, 3], "train", neg_sampling=form, batch_size=32) as ours:
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.node_types == other.node_types
            assert mine.edge_types == other.edge_types
            for key in [*mine.node_types, *mine.edge_types]:
                assert names_and_shapes(mine[key]) == names_and_shapes(other[key]), key


@pytest.mark.parametrize("changes", [{}, {"features": "ssd", "cache": 900}])
def test_batches_carry_what_the_native_loader_has(linked, changes):
    settings = SETTINGS | changes | {"negatives": gloader.Uniform(2), "exclude": "reverse"}
    with (
        gloader.LinkLoader(linked.dataset, layout="merged", **settings) as native,
        LinkLoader(linked.dataset, **settings) as labelled,
        LinkLoader(linked.dataset, triplets=True, **settings) as triplets,
    ):
        for batch, data, triple in zip(native, labelled, triplets, strict=True):
            count, nodes = batch.num_positives, batch.batch.nodes
            rows = batch.edge_ids[:count]
            assert data.n_id.tolist() == triple.n_id.tolist() == nodes.tolist()
            assert torch.equal(data.x, batch.batch.x)
            assert torch.equal(data.edge_label_index, batch.pairs.t())
            assert torch.equal(data.edge_label, batch.labels)
            assert data.input_id.tolist() == triple.input_id.tolist() == rows.tolist()
            np.testing.assert_array_equal(
                data.n_id[data.edge_label_index[:, :count]].T, linked.pairs[rows, :2]
            )
            np.testing.assert_array_equal(triple.n_id[triple.src_index], linked.pairs[rows, 0])
            np.testing.assert_array_equal(triple.n_id[triple.dst_pos_index], linked.pairs[rows, 1])
            assert torch.equal(triple.dst_neg_index.reshape(-1), batch.pairs[count:, 1])
            for found in (data, triple):  # every edge of the graph, where it stands there, with its row
                ids = found.e_id.numpy()
                np.testing.assert_array_equal(nodes[found.edge_index[0]], linked.src[ids])
                np.testing.assert_array_equal(nodes[found.edge_index[1]], linked.dst[ids])
                np.testing.assert_array_equal(found.edge_attr, linked.edge_x[ids])
                out = linked.pairs[rows, 2:].reshape(-1)
                assert not np.isin(ids, out[out != NO_EDGE]).any()


TIMED = [gloader.Uniform(2), gloader.Binary(1.5), gloader.InBatch()]


@pytest.mark.parametrize("negatives", TIMED, ids=str)
def test_nodes_say_for_which_positive_they_were_found_and_when_it_asked(linked, negatives):
    with LinkLoader(
        linked.dataset, negatives=negatives, time_strategy="uniform", time_bound="<=", **SETTINGS
    ) as loader:
        for data in loader:
            rows = data.input_id.numpy()
            when = linked.times[rows]
            count, num_pairs = len(rows), data.edge_label.shape[0]
            assert data.edge_label_time[:count].tolist() == when.tolist()
            # Both ends of a pair are of the positive that it stands beside, and ask at its time.
            owners = data.batch[data.edge_label_index]
            assert torch.equal(owners[0], owners[1])
            assert owners[0][:count].tolist() == list(range(count))
            np.testing.assert_array_equal(data.edge_label_time, when[owners[0]])
            if isinstance(negatives, gloader.Uniform):
                assert owners[0][count:].tolist() == np.repeat(np.arange(count), 2).tolist()
            assert num_pairs > count
            # No edge leads from one tree to another, or is later than its positive.
            trees = data.batch[data.edge_index]
            assert torch.equal(trees[0], trees[1])
            assert (linked.time[data.e_id.numpy()] <= when[trees[1].numpy()]).all()


def test_triplets_of_edges_with_times_have_one_time_each(linked):
    with LinkLoader(linked.dataset, triplets=True, time_strategy="last", **SETTINGS) as loader:
        for data in loader:
            assert data.seed_time.tolist() == linked.times[data.input_id.numpy()].tolist()
            for name in ("src_index", "dst_pos_index", "dst_neg_index"):
                assert data.batch[data[name]].tolist() == list(range(len(data.input_id)))


@pytest.mark.parametrize("triplets", [False, True])
def test_typed_edges_with_times(typed, triplets):
    table = typed.link_table("train").open(max_bytes=2**20).read(np.arange(90))
    with LinkLoader(typed, triplets=triplets, time_strategy="uniform", **SETTINGS) as loader:
        for data in loader:
            rows = data[BUYS].input_id.numpy()
            users, items = data["user"], data["item"]
            if triplets:
                assert users.seed_time.tolist() == items.seed_time.tolist() == table.times[rows].tolist()
                pairs = torch.stack([users.src_index, items.dst_pos_index])
                assert items.batch[items.dst_neg_index].tolist() == list(range(len(rows)))
            else:
                assert data[BUYS].edge_label_time.tolist() == [*table.times[rows]] * 2
                pairs = data[BUYS].edge_label_index[:, : len(rows)]
            assert users.n_id[pairs[0]].tolist() == table.sources[rows].tolist()
            assert items.n_id[pairs[1]].tolist() == table.destinations[rows].tolist()
            for store, ends in zip((users, items), pairs, strict=True):
                assert store.batch[ends].tolist() == list(range(len(rows)))
            for relation in typed.relations:
                source, destination = data[relation].edge_index
                assert torch.equal(data[relation[0]].batch[source], data[relation[2]].batch[destination])


def test_labels_of_the_table_are_there_without_negatives(typed):
    table = typed.link_table("train").open(max_bytes=2**20).read(np.arange(90))
    with LinkNeighborLoader(typed, [2], "train", batch_size=32, shuffle=True) as loader:
        for data in loader:
            found = data[BUYS]
            assert found.edge_label.tolist() == table.labels[found.input_id.numpy()].tolist()
            assert found.edge_label_index.shape == (2, len(found.input_id))


def test_nodes_of_a_node_loader_with_times_say_their_seeds_and_edges_have_features(linked):
    seeds = np.arange(40)
    with NodeLoader(
        linked.dataset, seeds=seeds, times=np.full(40, 600), time_strategy="uniform", **SETTINGS
    ) as loader:
        for data in loader:
            assert data.batch[: data.batch_size].tolist() == list(range(data.batch_size))
            assert torch.equal(*data.batch[data.edge_index])
            np.testing.assert_array_equal(data.edge_attr, linked.edge_x[data.e_id.numpy()])


def test_negatives_are_taken_as_pyg_has_them_and_as_we_do(linked):
    def drawn(**words):
        with LinkNeighborLoader(linked.dataset, [2], "train", batch_size=NUM_ROWS, **words) as loader:
            return loader.loader.negatives, len(loader)

    assert drawn(neg_sampling_ratio=2.0) == (gloader.Binary(2.0), 1)
    assert drawn(neg_sampling="uniform:3,strict") == (gloader.Uniform(3, strict=True), 1)
    assert drawn(neg_sampling=gloader.InBatch()) == (gloader.InBatch(), 1)
    assert drawn(neg_sampling={"mode": "triplet", "amount": 2.0}) == (gloader.Uniform(2), 1)


REFUSED = [
    ({"neg_sampling": "pairs"}, r"'pairs' names no negatives"),
    ({"neg_sampling": {"mode": "both"}}, r"mode 'both' is neither 'binary' nor 'triplet'"),
    ({"neg_sampling": {"mode": "triplet", "amount": 0.5}}, r"Uniform\(k=0\.5\): k must be a whole number"),
    (
        {"neg_sampling": NegativeSampling("binary", 1, src_weight=torch.ones(NUM_NODES))},
        r"drawn alike, without src_weight",
    ),
    ({"num_workers": 2}, r"num_workers: gloader samples and reads in threads"),
    ({"edge_label_time": torch.ones(3)}, r"edge_label_time: times come from the link table"),
    ({"edge_label_index": torch.ones(2, 3)}, r"name a link table of the dataset \('train'\)"),
    ({"edge_label_index": "training"}, r"training"),
    ({}, r"'train' has no labels, .* so that every pair is right: pass neg_sampling=\"binary\""),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_is_not_taken_is_refused_with_the_way_out(linked, words, message):
    with pytest.raises(ConfigError, match=message):
        LinkNeighborLoader(linked.dataset, [2], **{"batch_size": 8, **words})


def test_triplets_are_refused_where_negatives_are_not_as_many_for_each_edge(linked):
    for negatives in (gloader.Binary(1.0), gloader.InBatch()):
        with pytest.raises(ConfigError, match=r"triplets need equally many negatives for each edge"):
            LinkLoader(linked.dataset, triplets=True, negatives=negatives, **SETTINGS)
    with gloader.LinkLoader(linked.dataset, **SETTINGS) as native:
        assert len(list(LinkLoader(native, triplets=True))) == len(native)
        with pytest.raises(ConfigError, match=r"exclude: this loader is built already"):
            LinkLoader(native, exclude="self")
    with pytest.raises(ConfigError, match=r"expected a gloader\.LinkLoader or gloader\.Dataset, got a str"):
        LinkLoader("data/mine")
