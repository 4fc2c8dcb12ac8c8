"""PyG's ``Data`` carries the native batch in merged hops; models see what PyG's own layout would show them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gloader.adapters.pyg import to_data
from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.samplers import NeighborSampler
from gloader.types import BatchId

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv, SAGEConv
    from torch_geometric.nn.models import GCN, GraphSAGE
    from torch_geometric.utils import trim_to_layer

SEEDS = np.array([5, 390, 17, 200, 44])


def native_edges(batch):
    """Every edge of the native batch with the hop that drew it and its destination's, as plain Python."""
    hop_of = np.empty(len(batch.nodes), int)
    hops = tuple(reversed(batch.blocks))
    before = 0
    for number, count in enumerate([hops[0].num_dst, *(hop.num_src for hop in hops)]):
        hop_of[before:count] = number
        before = max(before, count)
    for number, hop in enumerate(hops):
        src, dst = hop.edge_index.numpy()
        for s, d, e in zip(src, dst, hop.edge_ids.numpy(), strict=True):
            yield number, hop_of[d], int(s), int(d), int(e)


@pytest.mark.parametrize("fanouts", [[4], [4, 3], [5, 0, 2], [-1, -1, -1]])
def test_it_carries_the_nodes_of_the_batch_and_the_edges_that_a_node_drew_when_it_was_found(
    arrays, make_batch, fanouts
):
    batch = make_batch(fanouts, SEEDS)
    data = to_data(batch, input_id=torch.arange(5))
    np.testing.assert_array_equal(data.n_id.numpy(), batch.nodes)
    np.testing.assert_array_equal(data.x.numpy(), arrays.features[batch.nodes])
    np.testing.assert_array_equal(data.y.numpy(), arrays.labels[SEEDS])
    np.testing.assert_array_equal(data.input_id.numpy(), np.arange(5))
    assert data.batch_size == 5
    assert sum(data.num_sampled_nodes) == data.num_nodes == len(batch.nodes)
    assert len(data.num_sampled_nodes) == len(fanouts) + 1
    expected = [(s, d, e) for drawn, found, s, d, e in native_edges(batch) if drawn == found]
    found = list(zip(*data.edge_index.tolist(), data.e_id.tolist(), strict=True))
    assert found == expected
    drawn = [number for number, found, *_ in native_edges(batch) if number == found]
    assert data.num_sampled_edges == [drawn.count(number) for number in range(len(fanouts))]


@pytest.mark.reliability("F3")
@pytest.mark.parametrize("fanouts", [[4], [4, 3], [5, 0, 2], [4, 3, 2], [-1, -1, -1]])
def test_it_carries_exactly_the_nodes_and_edges_of_a_merged_batch(make_batch, fanouts):
    batch = make_batch(fanouts, SEEDS, "merged")
    data = to_data(batch)
    assert data.n_id.tolist() == batch.nodes.tolist()
    native = {edge[2:] for edge in native_edges(batch)}
    found = list(zip(*data.edge_index.tolist(), data.e_id.tolist(), strict=True))
    assert set(found) == native
    assert len(found) == len(native)  # each once, though a batch repeats it in every layer that needs it
    assert torch.equal(data.edge_index, batch.blocks[0].edge_index)
    assert torch.equal(data.e_id, batch.blocks[0].edge_ids)
    assert sum(data.num_sampled_nodes) == len(batch.nodes)


def pyg_edges(batch, data, *, is_gcn):
    """Edges, and gloader's own GCN weights with the self loops that it adds, for `GCNConv(normalize=False)`."""
    if not is_gcn:
        return data.edge_index, None
    source, target = data.edge_index
    degree = batch.blocks[0].src_degree
    drawn = torch.bincount(target, minlength=len(degree)).clamp(min=1)
    norm = (degree + 1).rsqrt()
    loops = torch.arange(len(degree))
    weight = norm[source] * norm[target] * degree[target] / drawn[target]
    return (
        torch.cat([data.edge_index, torch.stack([loops, loops])], dim=1),
        torch.cat([weight, norm.square()]),
    )


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
@pytest.mark.parametrize("fanouts", [[4, 3], [4, 3, 2]])
def test_native_models_compute_what_pygs_layers_do_on_the_same_batch(make_batch, name, fanouts):
    """Whole and trimmed; backward too, so that an edge that is seen once too often shows."""
    batch = make_batch(fanouts, SEEDS, "merged")
    data = to_data(batch)
    torch.manual_seed(0)
    config = ModelConfig(name=name, hidden=6, dropout=0.0)
    native = build_model(config, in_dim=6, out_dim=3, num_layers=len(fanouts))
    is_gcn = name == "gcn"
    layers = [
        GCNConv(conv.in_dim, conv.out_dim, normalize=False) if is_gcn else SAGEConv(conv.in_dim, conv.out_dim)
        for conv in native.convs
    ]
    for ours, theirs in zip(native.convs, layers, strict=True):
        theirs.load_state_dict(ours.state_dict())
    expected = native(batch.x, batch.blocks)
    expected.square().sum().backward()

    edges, weight = pyg_edges(batch, data, is_gcn=is_gcn)
    whole = data.x
    for number, layer in enumerate(layers):
        whole = layer(whole.relu() if number else whole, edges, *([weight] if is_gcn else []))
    torch.testing.assert_close(whole[:5], expected)
    whole[:5].square().sum().backward()
    for ours, theirs in zip(native.convs, layers, strict=True):
        found = dict(theirs.named_parameters())
        for key, parameter in ours.named_parameters():
            torch.testing.assert_close(found[key].grad, parameter.grad)

    x, kept, kept_weight = data.x, data.edge_index, None if weight is None else weight[: data.num_edges]
    for number, layer in enumerate(layers):
        x, kept, kept_weight = trim_to_layer(
            number, data.num_sampled_nodes, data.num_sampled_edges, x, kept, kept_weight
        )
        x = x.relu() if number else x
        if is_gcn:
            loops = torch.arange(len(x))
            own = weight[data.num_edges :][: len(x)]
            x = layer(x, torch.cat([kept, torch.stack([loops, loops])], dim=1), torch.cat([kept_weight, own]))
        else:
            x = layer(x, kept)
    torch.testing.assert_close(x[:5], expected)


def test_x_and_n_id_are_shared(make_batch):
    batch = make_batch([4, 3], SEEDS)
    data = to_data(batch)
    assert data.x.data_ptr() == batch.x.data_ptr()
    assert data.n_id.numpy().ctypes.data == batch.nodes.ctypes.data


def test_two_hops_have_the_edges_of_the_merged_sampler(arrays, make_batch):
    data = to_data(make_batch([4, 3], SEEDS))
    merged = NeighborSampler(arrays.graph, [4, 3], seed=3).sample_merged(BatchId(epoch=0, index=0), SEEDS)
    np.testing.assert_array_equal(data.e_id.numpy(), merged.edge_ids)
    np.testing.assert_array_equal(data.n_id.numpy()[data.edge_index.numpy()], merged.nodes[merged.edge_index])
    assert data.num_sampled_edges == list(merged.num_sampled_edges)


def test_all_neighbours_give_exactly_the_merged_sampler(arrays, make_batch):
    data = to_data(make_batch([-1, -1, -1], SEEDS))
    merged = NeighborSampler(arrays.graph, [-1, -1, -1]).sample_merged(BatchId(epoch=0, index=0), SEEDS)
    np.testing.assert_array_equal(data.n_id.numpy(), merged.nodes)
    np.testing.assert_array_equal(data.edge_index.numpy(), merged.edge_index)
    assert data.num_sampled_nodes == list(merged.num_sampled_nodes)


@pytest.mark.parametrize("conv", [SAGEConv, GCNConv])
@pytest.mark.parametrize("fanouts", [[4, 3], [4, 3, 2]])
def test_a_trimmed_forward_equals_the_whole_one(make_batch, conv, fanouts):
    data = to_data(make_batch(fanouts, SEEDS))
    torch.manual_seed(0)
    # GCN normalises by the degrees it sees, which trimming changes, so it gets weights instead (docs/from-pyg.md).
    plain = {"normalize": False} if conv is GCNConv else {}
    layers = [conv(6, 6, **plain) for _ in fanouts]
    whole = data.x
    for layer in layers:
        whole = layer(whole, data.edge_index).tanh()
    x, edge_index = data.x, data.edge_index
    for number, layer in enumerate(layers):
        x, edge_index, _ = trim_to_layer(
            number, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index
        )
        x = layer(x, edge_index).tanh()
    torch.testing.assert_close(x[:5], whole[:5])


@pytest.mark.parametrize("model", [GraphSAGE, GCN])
def test_pygs_own_models_run_and_trim(make_batch, model):
    data = to_data(make_batch([4, 3], SEEDS))
    net = model(6, 8, num_layers=2, out_channels=3)
    out = net(
        data.x,
        data.edge_index,
        num_sampled_nodes_per_hop=data.num_sampled_nodes,
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )[: data.batch_size]
    torch.nn.functional.cross_entropy(out, data.y[: data.batch_size]).backward()
    assert out.shape == (5, 3)


def test_full_neighbourhoods_give_the_full_graph_forward(arrays, make_batch):
    data = to_data(make_batch([-1, -1], SEEDS))
    dst = np.repeat(np.arange(arrays.graph.num_nodes), np.diff(arrays.graph.indptr))
    full = torch.from_numpy(np.stack([arrays.graph.indices.astype(np.int64), dst]))
    torch.manual_seed(0)
    first, second = SAGEConv(6, 8, aggr="sum"), SAGEConv(8, 3, aggr="sum")
    expected = second(first(torch.from_numpy(arrays.features), full).relu(), full)[SEEDS]
    got = second(first(data.x, data.edge_index).relu(), data.edge_index)[:5]
    torch.testing.assert_close(got, expected)


def test_weights_of_a_weighing_sampler_go_with_their_edges(make_batch):
    batch = make_batch([4, 3, 2], SEEDS)
    blocks = tuple(replace(hop, edge_weight=hop.edge_ids.float()) for hop in batch.blocks)
    data = to_data(replace(batch, blocks=blocks))
    assert torch.equal(data.edge_weight, data.e_id.float())
    assert "edge_weight" not in to_data(batch)
