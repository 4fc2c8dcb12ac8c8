"""DGL blocks carry the native batch, share its memory, and equal what DGL's public constructor makes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gloader.adapters import dgl as adapter
from gloader.bridges.dgl.blocks import dgl, require_device
from gloader.errors import ConfigError

SEEDS = np.array([5, 390, 17, 200, 44])


def test_blocks_carry_the_nodes_edges_features_and_labels_of_the_batch(arrays, make_batch):
    batch = make_batch([4, 3, 2], SEEDS)
    input_nodes, output_nodes, blocks = adapter.to_blocks(batch)
    np.testing.assert_array_equal(input_nodes.numpy(), batch.nodes)
    np.testing.assert_array_equal(output_nodes.numpy(), SEEDS)
    assert len(blocks) == 3
    for block, hop in zip(blocks, batch.blocks, strict=True):
        src, dst, edges = block.edges(form="all", order="eid")
        np.testing.assert_array_equal(src.numpy(), hop.indices.numpy())
        np.testing.assert_array_equal(dst.numpy(), hop.edge_index[1].numpy())
        np.testing.assert_array_equal(edges.numpy(), np.arange(len(hop.indices)))
        ids = block.edata[dgl.EID].numpy()
        np.testing.assert_array_equal(arrays.graph.indices[ids], block.srcdata[dgl.NID][src.long()].numpy())
        dst_ids = block.dstdata[dgl.NID][dst.long()].numpy()
        np.testing.assert_array_equal(np.searchsorted(arrays.graph.indptr, ids, side="right") - 1, dst_ids)
        np.testing.assert_array_equal(
            block.srcdata[dgl.NID][: block.num_dst_nodes()].numpy(), block.dstdata[dgl.NID].numpy()
        )
    np.testing.assert_array_equal(blocks[0].srcdata["feat"].numpy(), arrays.features[batch.nodes])
    np.testing.assert_array_equal(blocks[-1].dstdata["label"].numpy(), arrays.labels[SEEDS])


def test_nothing_is_copied(make_batch):
    batch = make_batch([4, 3], SEEDS)
    input_nodes, output_nodes, blocks = adapter.to_blocks(batch, feature="x", label="y")
    assert blocks[0].srcdata["x"].data_ptr() == batch.x.data_ptr()
    assert blocks[-1].dstdata["y"].data_ptr() == batch.y.data_ptr()
    assert input_nodes.numpy().ctypes.data == output_nodes.numpy().ctypes.data == batch.nodes.ctypes.data
    for block, hop in zip(blocks, batch.blocks, strict=True):
        indptr, indices, _ = block.adj_tensors("csc")
        assert indptr.data_ptr() == hop.indptr.data_ptr()
        assert indices.data_ptr() == hop.indices.data_ptr()
        assert block.edata[dgl.EID].data_ptr() == hop.edge_ids.data_ptr()


def test_a_block_is_what_the_public_constructor_makes(make_batch):
    batch = make_batch([4, 3], SEEDS)
    for block, hop in zip(adapter.to_blocks(batch)[2], batch.blocks, strict=True):
        public = dgl.create_block(
            ("csc", (hop.indptr, hop.indices, hop.indices.new_empty(0))),
            num_src_nodes=hop.num_src,
            num_dst_nodes=hop.num_dst,
        )
        assert (block.ntypes, block.etypes, block.canonical_etypes, block.idtype, block.is_block) == (
            public.ntypes,
            public.etypes,
            public.canonical_etypes,
            public.idtype,
            True,
        )
        for ours, theirs in zip(block.edges(), public.edges(), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(block.in_degrees(), public.in_degrees())
        assert torch.equal(block.out_degrees(), public.out_degrees())


def test_dgl_convolutions_run_and_learn_on_the_blocks(make_batch):
    with dgl_nn() as nn:
        first, second = nn.SAGEConv(6, 8, "mean"), nn.SAGEConv(8, 3, "mean")
    _, _, blocks = adapter.to_blocks(make_batch([4, 3], SEEDS))
    out = second(blocks[1], first(blocks[0], blocks[0].srcdata["feat"]).relu())
    torch.nn.functional.cross_entropy(out, blocks[-1].dstdata["label"]).backward()
    assert out.shape == (5, 3)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in first.parameters())


def dgl_nn():
    import contextlib
    import warnings

    @contextlib.contextmanager
    def quiet():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import dgl.nn.pytorch as nn

            yield nn

    return quiet()


def test_weights_of_a_weighing_sampler_are_edge_data(make_batch):
    batch = make_batch([4, 3], SEEDS)
    weighed = replace(
        batch, blocks=tuple(replace(hop, edge_weight=torch.rand(len(hop.indices))) for hop in batch.blocks)
    )
    for block, hop in zip(adapter.to_blocks(weighed)[2], weighed.blocks, strict=True):
        assert block.edata["weight"].data_ptr() == hop.edge_weight.data_ptr()


def test_a_batch_without_seeds_has_empty_blocks(make_batch):
    input_nodes, output_nodes, blocks = adapter.to_blocks(make_batch([4, 3], np.empty(0, np.int64)))
    assert len(input_nodes) == len(output_nodes) == 0
    assert [block.num_edges() for block in blocks] == [0, 0]


def test_a_device_that_this_dgl_cannot_use_is_refused_before_the_first_batch(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise dgl.DGLError("[08:00:00] runtime.cc:22\nDevice API cuda is not enabled.")

    monkeypatch.setattr(dgl.DGLGraph, "to", refuse)
    with pytest.raises(
        ConfigError, match=r"cannot use cuda:0 \(Device API cuda is not enabled.*device='cpu'"
    ):
        require_device("cuda:0")
    with pytest.raises(ConfigError, match="cannot use cuda"):
        adapter.BlockLoader(None, device="cuda")
    require_device("cpu")
