"""Typed DGL blocks carry the native batch, share its memory, and equal what DGL's public constructor makes."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

from gloader.adapters import dgl as adapter
from gloader.bridges.dgl.blocks import dgl
from tests.unit.bridges.hetero_batches import DIMS, NUM_NODES, RELATIONS, SmallGraph

SEEDS = {"paper": [5, 80, 17, 44]}


@pytest.fixture(scope="module")
def graph():
    return SmallGraph()


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("seeds", [SEEDS, {"paper": [1, 2], "author": [3, 1]}, {"venue": [2]}])
def test_blocks_carry_every_type_and_relation_of_the_batch(graph, seeds, is_merged):
    batch = graph.batch(seeds, [3, 2, 2], is_merged=is_merged)
    input_nodes, output_nodes, blocks = adapter.to_hetero_blocks(batch, labelled="paper")
    assert {name: ids.tolist() for name, ids in input_nodes.items()} == {
        name: ids.tolist() for name, ids in batch.nodes.items()
    }
    assert {name: ids.tolist() for name, ids in output_nodes.items()} == {
        name: list(seeds.get(name, [])) for name in NUM_NODES
    }
    for block, hop in zip(blocks, batch.blocks, strict=True):
        assert set(block.canonical_etypes) == set(RELATIONS)
        assert set(block.srctypes) == set(block.dsttypes) == set(NUM_NODES)
        for relation, (indptr, indices) in graph.csc.items():
            source, _, destination = relation
            src, dst, edges = block.edges(form="all", order="eid", etype=relation)
            assert src.tolist() == hop[relation].indices.tolist()
            assert dst.tolist() == hop[relation].edge_index[1].tolist()
            assert edges.tolist() == list(range(len(src)))
            ids = block.edges[relation].data[dgl.EID].numpy()
            src_ids = block.srcnodes[source].data[dgl.NID]
            dst_ids = block.dstnodes[destination].data[dgl.NID]
            np.testing.assert_array_equal(indices[ids], src_ids[src.long()].numpy())
            np.testing.assert_array_equal(
                np.searchsorted(indptr, ids, side="right") - 1, dst_ids[dst.long()].numpy()
            )
        for name in NUM_NODES:
            dst_ids = block.dstnodes[name].data[dgl.NID]
            assert torch.equal(block.srcnodes[name].data[dgl.NID][: len(dst_ids)], dst_ids)
    for name, count in DIMS.items():
        if count:
            found = blocks[0].srcnodes[name].data["feat"].numpy()
            np.testing.assert_array_equal(found, graph.features[name][batch.nodes[name]])
    assert "feat" not in blocks[0].srcnodes["author"].data
    assert blocks[-1].dstnodes["paper"].data["label"].tolist() == batch.y.tolist()


def test_the_nodes_of_a_block_are_the_destinations_of_the_one_before(graph):
    _, _, blocks = adapter.to_hetero_blocks(graph.batch(SEEDS, [3, 2, 2]), labelled="paper")
    for first, second in pairwise(blocks):
        for name in NUM_NODES:
            assert torch.equal(first.dstnodes[name].data[dgl.NID], second.srcnodes[name].data[dgl.NID])


def test_a_block_is_what_the_public_constructor_makes(graph):
    batch = graph.batch(SEEDS, [3, 2])
    for block, hop in zip(adapter.to_hetero_blocks(batch, labelled="paper")[2], batch.blocks, strict=True):
        public = dgl.create_block(
            {
                relation: ("csc", (part.indptr, part.indices, part.indices.new_empty(0)))
                for relation, part in hop.items()
            },
            num_src_nodes={name: block.num_src_nodes(name) for name in NUM_NODES},
            num_dst_nodes={name: block.num_dst_nodes(name) for name in NUM_NODES},
        )
        for word in ("srctypes", "dsttypes", "etypes", "canonical_etypes", "idtype", "is_block"):
            assert getattr(block, word) == getattr(public, word)
        for relation in RELATIONS:
            for ours, theirs in zip(block.edges(etype=relation), public.edges(etype=relation), strict=True):
                assert torch.equal(ours, theirs)
            assert torch.equal(block.in_degrees(etype=relation), public.in_degrees(etype=relation))


def test_nothing_is_copied(graph):
    batch = graph.batch(SEEDS, [3, 2])
    input_nodes, output_nodes, blocks = adapter.to_hetero_blocks(
        batch, labelled="paper", feature="x", label="y"
    )
    assert blocks[0].srcnodes["paper"].data["x"].data_ptr() == batch.x["paper"].data_ptr()
    assert blocks[-1].dstnodes["paper"].data["y"].data_ptr() == batch.y.data_ptr()
    assert input_nodes["paper"].numpy().ctypes.data == batch.nodes["paper"].ctypes.data
    assert output_nodes["paper"].numpy().ctypes.data == batch.nodes["paper"].ctypes.data
    for block, hop in zip(blocks, batch.blocks, strict=True):
        for relation, part in hop.items():
            if part.indices.shape[0]:
                indptr, indices, _ = block.adj_tensors("csc", etype=relation)
                assert indptr.data_ptr() == part.indptr.data_ptr()
                assert indices.data_ptr() == part.indices.data_ptr()


def test_dgls_typed_convolutions_run_and_learn_on_the_blocks(graph):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dgl.nn.pytorch import HeteroGraphConv, SAGEConv
    torch.manual_seed(0)
    table = torch.nn.Embedding(NUM_NODES["author"], 4)
    widths = DIMS | {"author": 4}
    first = HeteroGraphConv(
        {"_".join(r): SAGEConv((widths[r[0]], widths[r[2]]), 8, "mean") for r in RELATIONS}
    )
    second = HeteroGraphConv({"_".join(r): SAGEConv(8, 4, "mean") for r in RELATIONS})
    for layer in (first, second):  # a name of a relation is there twice: DGL takes canonical ones
        layer.mods = torch.nn.ModuleDict({str(r): layer.mods["_".join(r)] for r in RELATIONS})
        layer._get_module = lambda relation, mods=layer.mods: mods[str(relation)]
    input_nodes, _, blocks = adapter.to_hetero_blocks(graph.batch(SEEDS, [3, 2]), labelled="paper")
    rows = dict(blocks[0].srcdata["feat"]) | {"author": table(input_nodes["author"])}
    hidden = {name: part.relu() for name, part in first(blocks[0], rows).items()}
    out = second(blocks[1], hidden)["paper"]
    torch.nn.functional.cross_entropy(out, blocks[-1].dstdata["label"]["paper"]).backward()
    assert out.shape == (4, 4)
    assert table.weight.grad.abs().sum() > 0


def test_weights_of_a_weighing_sampler_are_edge_data(graph):
    batch = graph.batch(SEEDS, [3, 2], weigh=True)
    for block, hop in zip(adapter.to_hetero_blocks(batch, labelled="paper")[2], batch.blocks, strict=True):
        for relation, part in hop.items():
            assert torch.equal(block.edges[relation].data["weight"], part.edge_weight)
