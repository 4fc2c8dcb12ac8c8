"""``HeteroData`` carries the native batch in merged hops; typed models see what PyG's own layout would show them."""

import warnings
from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from gloader.adapters.pyg import to_hetero_data
from gloader.bridges.loader_view import nodes_by_hop
from gloader.bridges.pyg.data import Hops, merge_edges
from tests.unit.bridges.hetero_batches import CITES, DIMS, NEVER, NUM_NODES, RELATIONS, WRITES, SmallGraph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import HeteroConv, SAGEConv
    from torch_geometric.utils import trim_to_layer

SEEDS = [5, 80, 17, 44]


@pytest.fixture(scope="module")
def graph():
    return SmallGraph()


def hop_that_found(batch):
    """Of each type, the hop that found each of its nodes (0: a seed), from the blocks in plain Python."""
    found = {name: [0] * count for name, count in batch.num_seeds.items()}
    for number, hop in enumerate(reversed(batch.blocks), start=1):
        for (source, _, _), block in hop.items():
            found[source].extend([number] * (block.num_src - len(found[source])))
    return found


@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("fanouts", [[3], [3, 2], [2, 0, 2], [-1, -1, -1]])
@pytest.mark.parametrize("seeds", [{"paper": SEEDS}, {"paper": SEEDS, "author": [3, 1]}, {"author": [9]}])
def test_it_carries_every_type_and_relation_and_the_edges_that_a_node_drew_when_it_was_found(
    graph, fanouts, seeds, is_merged
):
    batch = graph.batch(seeds, fanouts, is_merged=is_merged)
    data = to_hetero_data(batch, labelled="paper")
    assert data.node_types == list(NUM_NODES)
    assert data.edge_types == list(RELATIONS)
    found = hop_that_found(batch)
    for name in NUM_NODES:
        assert data[name].n_id.tolist() == batch.nodes[name].tolist()
        assert data[name].num_nodes == len(batch.nodes[name])
        assert data[name].num_sampled_nodes == [found[name].count(hop) for hop in range(len(fanouts) + 1)]
        if DIMS[name]:
            np.testing.assert_array_equal(data[name].x.numpy(), graph.features[name][batch.nodes[name]])
        else:
            assert "x" not in data[name]
    for relation in RELATIONS:
        expected = []
        for number, hop in enumerate(reversed(batch.blocks)):
            source, destination = hop[relation].edge_index.tolist()
            edges = zip(source, destination, hop[relation].edge_ids.tolist(), strict=True)
            expected.append([edge for edge in edges if found[relation[2]][edge[1]] == number])
        store = data[relation]
        assert list(zip(*store.edge_index.tolist(), store.e_id.tolist(), strict=True)) == list(
            chain(*expected)
        )
        assert store.num_sampled_edges == [len(edges) for edges in expected]
        assert store.edge_index.dtype == store.e_id.dtype == torch.int64
        assert store.edge_index.shape == (2, sum(store.num_sampled_edges))
    assert data["paper"].y.tolist() == graph.labels[seeds.get("paper", [])].tolist()
    assert data["paper"].batch_size == len(seeds.get("paper", []))
    for name, ids in seeds.items():
        assert data[name].batch_size == len(ids)
        assert data[name].n_id[: len(ids)].tolist() == ids
    assert data.validate()


def test_edges_are_edges_of_the_graph(graph):
    data = to_hetero_data(graph.batch({"paper": SEEDS}, [3, 2]), labelled="paper")
    for relation, (indptr, indices) in graph.csc.items():
        source, destination = data[relation].edge_index
        ids = data[relation].e_id.numpy()
        np.testing.assert_array_equal(data[relation[0]].n_id[source].numpy(), indices[ids])
        places = np.searchsorted(indptr, ids, side="right") - 1
        np.testing.assert_array_equal(data[relation[2]].n_id[destination].numpy(), places)


def test_a_type_that_no_batch_reaches_is_there_and_empty(graph):
    data = to_hetero_data(graph.batch({"paper": SEEDS}, [3, 2]), labelled="paper")
    assert data["patent"].x.shape == (0, 2)
    assert data["patent"].num_sampled_nodes == [0, 0, 0]
    assert data[NEVER].edge_index.shape == (2, 0)
    assert data[NEVER].num_sampled_edges == [0, 0]


def test_x_and_n_id_are_shared(graph):
    batch = graph.batch({"paper": SEEDS}, [3, 2])
    data = to_hetero_data(batch, labelled="paper")
    assert data["paper"].x.data_ptr() == batch.x["paper"].data_ptr()
    assert data["author"].n_id.numpy().ctypes.data == batch.nodes["author"].ctypes.data


def test_input_ids_are_given_to_their_types(graph):
    batch = graph.batch({"paper": SEEDS}, [2])
    data = to_hetero_data(batch, labelled="paper", input_id={"paper": torch.arange(4)})
    assert data["paper"].input_id.tolist() == [0, 1, 2, 3]
    assert "input_id" not in data["author"]


def test_weights_of_a_weighing_sampler_go_with_their_edges(graph):
    data = to_hetero_data(graph.batch({"paper": SEEDS}, [3, 2], weigh=True), labelled="paper")
    for relation in RELATIONS:
        assert torch.equal(data[relation].edge_weight, data[relation].e_id.float())
    assert "edge_weight" not in to_hetero_data(graph.batch({"paper": SEEDS}, [3]), labelled="paper")[WRITES]


@pytest.mark.filterwarnings("ignore:There exist node types")  # patents have no in-edges
@pytest.mark.parametrize("is_merged", [False, True])
def test_trimmed_and_whole_typed_models_of_pyg_see_the_same_seeds(graph, is_merged):
    data = to_hetero_data(graph.batch({"paper": SEEDS}, [3, 2, 2], is_merged=is_merged), labelled="paper")
    torch.manual_seed(0)
    rows = {name: torch.randn(data[name].num_nodes, 5) for name in NUM_NODES}
    layers = [HeteroConv({r: SAGEConv((5, 5), 5) for r in RELATIONS}, aggr="sum") for _ in range(3)]
    whole = rows
    for layer in layers:
        whole = rows | layer(whole, data.edge_index_dict)
    trimmed, edges = rows, data.edge_index_dict
    nodes_of, edges_of = data.num_sampled_nodes_dict, data.num_sampled_edges_dict
    for number, layer in enumerate(layers):
        trimmed, edges, _ = trim_to_layer(number, nodes_of, edges_of, trimmed, edges)
        trimmed = {name: found[: len(trimmed[name])] for name, found in rows.items()} | layer(trimmed, edges)
    torch.testing.assert_close(trimmed["paper"][:4], whole["paper"][:4])


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_full_neighbourhoods_give_the_full_graph_forward(graph):
    data = to_hetero_data(graph.batch({"paper": SEEDS}, [-1, -1]), labelled="paper")
    torch.manual_seed(0)
    rows = {name: torch.randn(count, 5) for name, count in NUM_NODES.items()}
    layers = [HeteroConv({r: SAGEConv((5, 5), 5) for r in RELATIONS}, aggr="sum") for _ in range(2)]
    full_edges = {
        relation: torch.from_numpy(
            np.stack([indices, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))])
        )
        for relation, (indptr, indices) in graph.csc.items()
    }
    full, sampled = rows, {name: rows[name][data[name].n_id] for name in NUM_NODES}
    for layer in layers:
        full = full | layer(full, full_edges)
        sampled = sampled | layer(sampled, data.edge_index_dict)
    torch.testing.assert_close(sampled["paper"][:4], full["paper"][SEEDS])


def test_a_merged_batch_is_carried_whole(graph):
    batch = graph.batch({"paper": SEEDS}, [3, 2, 2], is_merged=True)
    data = to_hetero_data(batch, labelled="paper")
    for relation in RELATIONS:
        assert torch.equal(data[relation].edge_index, batch.blocks[0][relation].edge_index)
        assert torch.equal(data[relation].e_id, batch.blocks[0][relation].edge_ids)


def test_hops_follow_one_another(graph):
    data = to_hetero_data(graph.batch({"paper": SEEDS}, [3, 2, 2]), labelled="paper")
    destinations = data[CITES].edge_index[1]
    ends = np.cumsum([0, *data["paper"].num_sampled_nodes])
    pieces = np.cumsum([0, *data[CITES].num_sampled_edges])
    for hop, (begin, end) in enumerate(pairwise(pieces)):
        assert ((destinations[begin:end] >= ends[hop]) & (destinations[begin:end] < ends[hop + 1])).all()


@pytest.mark.parametrize("is_merged", [False, True])
def test_edges_are_the_same_where_they_lie_on_a_device(graph, is_merged):
    batch = graph.batch({"paper": SEEDS}, [3, 2, 2], is_merged=is_merged, weigh=True)
    hops, known = batch.blocks[::-1], nodes_by_hop(batch.num_seeds, batch.blocks)
    chains = [
        Hops(blocks=[hop[relation] for hop in hops], firsts=(0, *known[relation[2]][:2]))
        for relation in RELATIONS
    ]
    # Nothing is copied to the device that is named: what runs there runs on tensors of any.
    for host, device in zip(
        merge_edges(chains, torch.device("cpu")), merge_edges(chains, torch.device("cuda")), strict=True
    ):
        assert torch.equal(host.edge_index, device.edge_index)
        assert torch.equal(host.edge_ids, device.edge_ids)
        assert torch.equal(host.edge_weight, device.edge_weight)
        assert host.counts == device.counts
