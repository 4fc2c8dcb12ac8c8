"""DGL's form of batches of links: the names and shapes of its own edge sampler, and what our loader has in them."""

import warnings

import numpy as np
import pytest
import torch
from integration.loader.linked import NUM_NODES, NUM_ROWS, write_linked
from linked import BOUGHT, BUYS, link_arrays, write_linked_types
from linked import NUM_NODES as NUM_TYPED

import gloader
from gloader.adapters.dgl import BlockLoader, LinkBlockLoader
from gloader.bridges.dgl.blocks import dgl
from gloader.errors import ConfigError
from gloader.types import NO_EDGE

SETTINGS = {"fanouts": [4, 3], "batch_size": 32, "memory_budget": "200MB", "threads": 2, "seed": 3}


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    return write_linked(tmp_path_factory.mktemp("links") / "graph")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    tables = {"train": (BUYS, BOUGHT, link_arrays(90, labels="int64"))}
    return write_linked_types(tmp_path_factory.mktemp("links") / "typed", tables)


def first_of_dgl(graph, edges, **fetched):
    """The first batch of DGL's own loader."""
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler([3, 4], **fetched),
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DGL's, of its threads
        return next(iter(dgl.dataloading.DataLoader(graph, edges, sampler, batch_size=32)))


def names_of(frame):
    """Names with dtype and number of axes."""
    return {name: (values.dtype, values.ndim) for name, values in frame.items()}


def test_names_and_shapes_are_those_of_dgl(linked):
    graph = dgl.graph(
        (torch.from_numpy(linked.src).long(), torch.from_numpy(linked.dst).long()), num_nodes=NUM_NODES
    )
    graph.ndata["feat"] = torch.from_numpy(linked.x)
    graph.edata["feat"] = torch.from_numpy(linked.edge_x)
    named = {"prefetch_node_feats": ["feat"], "prefetch_edge_feats": ["feat"]}
    theirs = first_of_dgl(graph, torch.arange(64), **named)
    with LinkBlockLoader(linked.dataset, negatives=gloader.Uniform(2), **SETTINGS) as loader:
        ours = next(iter(loader))
    assert len(ours) == len(theirs) == 4
    assert (ours[0].dtype, ours[0].ndim) == (theirs[0].dtype, theirs[0].ndim)
    for mine, other in zip(ours[1:3], theirs[1:3], strict=True):
        assert (mine.num_edges(), mine.idtype) == (other.num_edges(), other.idtype)
        assert mine.canonical_etypes == other.canonical_etypes
        assert not mine.is_block
        assert mine.ndata[dgl.NID].shape == (mine.num_nodes(),)
    assert ours[1].num_nodes() == ours[2].num_nodes() == ours[3][-1].num_dst_nodes()
    assert names_of(ours[1].edata) == {dgl.EID: (torch.int64, 1)}
    assert theirs[1].edata[dgl.EID].shape == ours[1].edata[dgl.EID].shape
    assert names_of(ours[2].edata) == names_of(theirs[2].edata) == {}
    for mine, other in zip(ours[3], theirs[3], strict=True):
        assert names_of(mine.edata) == names_of(other.edata)
        assert mine.edata["feat"].shape == (mine.num_edges(), 3)
    assert names_of(ours[3][0].srcdata) == names_of(theirs[3][0].srcdata)


def test_typed_names_and_shapes_are_those_of_dgl(typed):
    graph = dgl.heterograph(
        {
            relation: (
                torch.from_numpy(edges.indices.astype(np.int64)),
                torch.from_numpy(np.repeat(np.arange(edges.num_nodes), np.diff(edges.indptr))),
            )
            for relation, edges in typed.load_hetero_graph().relations.items()
        },
        NUM_TYPED,
    )
    for relation in graph.canonical_etypes:
        graph.edges[relation].data["feat"] = torch.zeros(graph.num_edges(relation), 3)
    named = {"prefetch_edge_feats": {relation: ["feat"] for relation in graph.canonical_etypes}}
    theirs = first_of_dgl(graph, {BUYS: torch.arange(64)}, **named)
    with LinkBlockLoader(typed, negatives=gloader.Uniform(2), **SETTINGS) as loader:
        ours = next(iter(loader))
    assert set(ours[0]) == set(theirs[0])
    for mine, other in zip(ours[1:3], theirs[1:3], strict=True):
        assert mine.canonical_etypes == other.canonical_etypes
        assert mine.ntypes == other.ntypes
        for relation in graph.canonical_etypes:
            assert mine.num_edges(relation) == other.num_edges(relation)
    for name in graph.ntypes:
        assert ours[1].num_nodes(name) == ours[2].num_nodes(name) == ours[3][-1].num_dst_nodes(name)
        assert ours[1].nodes[name].data[dgl.NID].tolist() == ours[0][name][: ours[1].num_nodes(name)].tolist()
    for mine, other in zip(ours[3], theirs[3], strict=True):
        for relation in graph.canonical_etypes:
            assert names_of(mine.edges[relation].data) == names_of(other.edges[relation].data)


@pytest.mark.parametrize("changes", [{}, {"features": "ssd", "cache": 900}, {"layout": "merged"}])
def test_graphs_carry_what_the_native_loader_has(linked, changes):
    settings = SETTINGS | changes | {"negatives": gloader.Binary(1.5), "exclude": "reverse"}
    met = 0
    with (
        gloader.LinkLoader(linked.dataset, **settings) as native,
        LinkBlockLoader(linked.dataset, **settings) as ours,
    ):
        assert len(ours) == len(native)
        for batch, (input_nodes, pair_graph, neg_graph, blocks) in zip(native, ours, strict=True):
            count = batch.num_positives
            met += count
            assert input_nodes.tolist() == batch.batch.nodes.tolist()
            assert torch.equal(blocks[0].srcdata["feat"], batch.batch.x)
            for graph, pairs in ((pair_graph, batch.pairs[:count]), (neg_graph, batch.pairs[count:])):
                assert torch.equal(torch.stack(graph.edges(order="eid"), dim=1), pairs)
                assert torch.equal(graph.ndata[dgl.NID], blocks[-1].dstdata[dgl.NID])
            rows = pair_graph.edata[dgl.EID].numpy()
            assert rows.tolist() == batch.edge_ids[:count].tolist()
            ends = pair_graph.ndata[dgl.NID][torch.stack(pair_graph.edges(order="eid"), dim=1)]
            np.testing.assert_array_equal(ends, linked.pairs[rows, :2])
            for block, hop in zip(blocks, batch.batch.blocks, strict=True):
                assert torch.equal(block.edata[dgl.EID], hop.edge_ids)
                np.testing.assert_array_equal(block.edata["feat"], linked.edge_x[hop.edge_ids.numpy()])
                out = linked.pairs[rows, 2:].reshape(-1)
                assert not np.isin(hop.edge_ids.numpy(), out[out != NO_EDGE]).any()
    assert met == NUM_ROWS


def test_a_score_of_dgls_own_runs_over_both_graphs(linked):
    with LinkBlockLoader(linked.dataset, negatives=gloader.Uniform(2), **SETTINGS) as loader:
        _, pair_graph, neg_graph, blocks = next(iter(loader))
    layers = [dgl.nn.SAGEConv(6, 4, "mean"), dgl.nn.SAGEConv(4, 4, "mean")]
    found = blocks[0].srcdata["feat"]
    for layer, block in zip(layers, blocks, strict=True):
        found = layer(block, found)
    for graph in (pair_graph, neg_graph):
        with graph.local_scope():
            graph.ndata["h"] = found
            graph.apply_edges(dgl.function.u_dot_v("h", "h", "score"))
            source, destination = graph.edges(order="eid")
            expected = (found[source] * found[destination]).sum(dim=1)
            torch.testing.assert_close(graph.edata["score"][:, 0], expected)


def test_edges_with_times_have_them(linked):
    with LinkBlockLoader(linked.dataset, time_strategy="last", edge_feature="w", **SETTINGS) as loader:
        for _, pair_graph, neg_graph, blocks in loader:
            rows = pair_graph.edata[dgl.EID].numpy()
            assert pair_graph.edata["time"].tolist() == linked.times[rows].tolist()
            assert neg_graph.num_edges() == len(rows)
            assert set(blocks[0].edata) == {dgl.EID, "w"}


def test_labels_of_the_table_are_there_without_negatives(typed):
    table = typed.link_table("train").open(max_bytes=2**20).read(np.arange(90))
    with LinkBlockLoader(typed, negatives=None, label="rating", **SETTINGS) as loader:
        for input_nodes, pair_graph, blocks in loader:
            edges = pair_graph.edges[BUYS].data
            rows = edges[dgl.EID].numpy()
            assert edges["rating"].tolist() == table.labels[rows].tolist()
            users, items = pair_graph.edges(order="eid", etype=BUYS)
            assert input_nodes["user"][users].tolist() == table.sources[rows].tolist()
            assert input_nodes["item"][items].tolist() == table.destinations[rows].tolist()
            assert pair_graph.num_edges(BOUGHT) == 0
            assert blocks[-1].num_dst_nodes("user") == pair_graph.num_nodes("user")


def test_blocks_of_a_node_loader_have_features_of_edges(linked):
    with BlockLoader(linked.dataset, **SETTINGS) as loader:
        for _, _, blocks in loader:
            for block in blocks:
                np.testing.assert_array_equal(
                    block.edata["feat"], linked.edge_x[block.edata[dgl.EID].numpy()]
                )


def test_what_is_no_loader_of_links_is_refused(linked):
    with (
        gloader.Loader(linked.dataset, **SETTINGS) as nodes,
        pytest.raises(ConfigError, match=r"expected a gloader\.LinkLoader or gloader\.Dataset, got a Loader"),
    ):
        LinkBlockLoader(nodes)
