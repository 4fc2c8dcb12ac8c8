"""Topologies to DGL and back share the edges."""

import numpy as np
import pytest
import torch

from gloader.adapters import dgl as adapter
from gloader.bridges.dgl.blocks import dgl
from gloader.errors import GraphError
from gloader.samplers import CscGraph


def test_a_round_trip_shares_the_edges(arrays):
    made = adapter.to_dgl(arrays.graph, keep_ids=True)
    back = adapter.from_dgl(made)
    assert made.idtype == torch.int32
    assert np.shares_memory(back.indices, arrays.graph.indices)
    np.testing.assert_array_equal(back.indptr, arrays.graph.indptr)
    assert back.indptr.dtype == np.int64


def test_int32_ids_are_widened_unless_told_otherwise(arrays):
    made = adapter.to_dgl(arrays.graph)
    assert made.idtype == torch.int64  # DGL's fused sampler aborts the process on int32 graphs
    np.testing.assert_array_equal(made.adj_tensors("csc")[1].numpy(), arrays.graph.indices)


def test_an_int64_graph_shares_the_offsets_too(arrays):
    graph = CscGraph(indptr=arrays.graph.indptr, indices=arrays.graph.indices.astype(np.int64))
    made = adapter.to_dgl(graph)
    back = adapter.from_dgl(made)
    assert made.idtype == torch.int64
    assert np.shares_memory(back.indptr, graph.indptr)
    assert np.shares_memory(back.indices, graph.indices)


def test_edges_and_weights_of_an_edge_list_follow_dgls_csc_order():
    src, dst = torch.tensor([3, 0, 2, 1]), torch.tensor([1, 0, 1, 3])
    made = dgl.graph((src, dst), num_nodes=4)
    made.edata["w"] = torch.tensor([10.0, 20.0, 30.0, 40.0])
    graph = adapter.from_dgl(made, weight="w")
    numbers = made.adj_tensors("csc")[2].numpy()
    np.testing.assert_array_equal(graph.indices, src.numpy()[numbers])
    np.testing.assert_array_equal(graph.indptr, [0, 1, 3, 3, 4])
    np.testing.assert_array_equal(graph.edge_weight, made.edata["w"].numpy()[numbers])
    np.testing.assert_array_equal(adapter.to_dgl(graph).edata["weight"].numpy(), graph.edge_weight)


def test_graphs_that_cannot_be_taken_are_refused():
    made = dgl.graph(([0], [0]))
    with pytest.raises(GraphError, match=r"no edge data 'w'; it has none"):
        adapter.from_dgl(made, weight="w")
    with pytest.raises(GraphError, match=r"dgl\.to_homogeneous"):
        adapter.from_dgl(dgl.heterograph({("a", "r", "b"): ([0], [0])}))
