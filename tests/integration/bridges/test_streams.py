"""The adapted loops: the batches of the native loader, whatever the settings, with its state and its ends."""

import itertools
import threading
import weakref

import numpy as np
import pytest
import torch

from gloader.adapters.dgl import BlockLoader
from gloader.adapters.pyg import NodeLoader
from gloader.bridges.dgl.blocks import dgl
from gloader.errors import ConfigError, LoaderBusyError, LoaderClosedError

ADAPTERS = [BlockLoader, NodeLoader]


def dgl_parts(item):
    """Nodes, features, labels and edges (sources, destinations, ids) by hop, of a DGL batch."""
    input_nodes, output_nodes, blocks = item
    edges = [
        (*(ids.tolist() for ids in block.edges(order="eid")), block.edata[dgl.EID].tolist())
        for block in blocks
    ]
    seeds = output_nodes.tolist()
    return input_nodes.tolist(), seeds, blocks[0].srcdata["feat"], blocks[-1].dstdata["label"].tolist(), edges


def pyg_parts(data):
    nodes = data.n_id.tolist()
    edges = [*data.edge_index.tolist(), data.e_id.tolist()]
    return nodes, nodes[: data.batch_size], data.x, data.y.tolist(), edges


def native_parts(batch):
    edges = [(*hop.edge_index.tolist(), hop.edge_ids.tolist()) for hop in batch.blocks]
    nodes = batch.nodes.tolist()
    return nodes, nodes[: batch.num_seeds], batch.x, batch.y.tolist(), edges


def same(ours, theirs):
    assert ours[:2] == theirs[:2]
    assert torch.equal(ours[2], theirs[2])
    assert ours[3:] == theirs[3:]


CHANGES = [
    {},
    {"threads": 1, "features": "ssd"},
    {"features": "ssd", "cache": 20 * 24 * 4, "policy": "lru"},
    {"features": "ram", "threads": 3},
]


@pytest.mark.reliability("F3")
@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_dgl_batches_carry_the_nodes_and_edges_of_the_native_batch(
    dataset, make_loader, settings, changes, layout
):
    settings = settings | changes | {"layout": layout}
    with make_loader(layout=layout) as native, BlockLoader(dataset, **settings) as adapted:
        assert len(adapted) == len(native) == 7
        for _ in range(2):
            for batch, item in zip(native, adapted, strict=True):
                same(dgl_parts(item), native_parts(batch))


@pytest.mark.reliability("F3")
@pytest.mark.parametrize("changes", CHANGES)
def test_pyg_batches_carry_the_nodes_and_edges_of_the_native_batch(dataset, make_loader, settings, changes):
    with make_loader(layout="merged") as native, NodeLoader(dataset, **(settings | changes)) as adapted:
        assert len(adapted) == 7
        for _ in range(2):
            for batch, data in zip(native, adapted, strict=True):
                same_nodes(dataset, data, batch)
                edges = set(zip(*data.edge_index.tolist(), data.e_id.tolist(), strict=True))
                hops = [(*hop.edge_index.tolist(), hop.edge_ids.tolist()) for hop in batch.blocks]
                assert edges == {edge for hop in hops for edge in zip(*hop, strict=True)}
                assert len(edges) == data.num_edges


@pytest.mark.parametrize("changes", [{}, {"sampler": "labor"}])
def test_pyg_batches_of_a_layered_loader_carry_what_pyg_would_have_drawn(
    dataset, make_loader, settings, changes
):
    adapter = NodeLoader(dataset, **settings, **changes) if changes else NodeLoader(make_loader())
    with make_loader(**changes) as native, adapter as adapted:
        for batch, data in zip(native, adapted, strict=True):
            same_nodes(dataset, data, batch)
            last, first = batch.blocks
            again = last.edge_index[1] < first.num_dst  # what a seed draws a second time is not PyG's
            pairs = torch.cat([first.edge_index, last.edge_index[:, ~again]], dim=1)
            assert torch.equal(data.edge_index, pairs)
            assert torch.equal(data.e_id, torch.cat([first.edge_ids, last.edge_ids[~again]]))


def same_nodes(dataset, data, batch):
    assert data.n_id.tolist() == batch.nodes.tolist()
    assert torch.equal(data.x, batch.x)
    assert torch.equal(data.y, batch.y)
    np.testing.assert_array_equal(dataset.train[data.input_id.numpy()], batch.nodes[: batch.num_seeds])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_loader_that_is_built_already_is_taken(make_loader, adapter):
    with adapter(make_loader()) as stream:
        assert len(list(stream)) == 7
        with pytest.raises(
            ConfigError, match=r"batch_size, seed: this loader is built already; pass the dataset"
        ):
            adapter(stream.loader, batch_size=4, seed=0)
    with pytest.raises(LoaderClosedError):
        next(iter(stream))
    with pytest.raises(
        ConfigError, match=r"expected a gloader\.Loader, gloader\.HeteroLoader or gloader\.Dataset, got a str"
    ):
        adapter("data/mine")


@pytest.mark.reliability("F1")
@pytest.mark.parametrize(("adapter", "parts_of"), [(BlockLoader, dgl_parts), (NodeLoader, pyg_parts)])
def test_resume_at_every_step_continues_bit_for_bit(dataset, settings, adapter, parts_of):
    with adapter(dataset, **settings) as stream:
        states, parts = [stream.state_dict()], []
        for item in itertools.chain(stream, stream):
            parts.append(parts_of(item))
            states.append(stream.state_dict())
    assert len(parts) == 14
    for step in range(0, 14, 3):
        with adapter(dataset, **settings) as resumed:
            resumed.load_state_dict(states[step])
            rest = [parts_of(item) for _ in range(2) for item in resumed]
        for ours, theirs in zip(rest, parts[step:], strict=False):
            same(ours, theirs)


def gloader_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gloader")]


@pytest.mark.reliability("D6")
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("how", ["break", "exception", "del"])
def test_leaving_an_epoch_early_and_closing_leaves_nothing(dataset, settings, adapter, how):
    stream = adapter(dataset, **settings)
    if how == "break":
        for _ in stream:
            break
    elif how == "exception":
        with pytest.raises(ZeroDivisionError):
            for _ in stream:
                _ = 1 / 0
    else:
        iterator = iter(stream)
        next(iterator)
        del iterator
    assert len(list(stream)) == 7  # the next epoch
    assert stream.state_dict()["next"] == [2, 0]
    stream.close()
    stream.close()
    assert gloader_threads() == []


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_loader_built_for_a_dataset_goes_with_the_adapter_and_others_stay(
    dataset, settings, make_loader, adapter
):
    items = iter(adapter(dataset, **settings, features="ssd"))  # its only reference is the epoch
    assert len(list(items)) == 7
    native = weakref.ref(adapter(dataset, **settings).loader)
    assert native() is None
    with make_loader() as loader:
        for _ in range(2):
            assert len(list(adapter(loader))) == 7


def test_an_epoch_ends_with_its_last_batch_so_that_counting_loops_may_go_on(dataset, settings):
    with NodeLoader(dataset, **settings) as stream:
        first = iter(stream)
        for _ in range(7):
            next(first)
        assert stream.state_dict()["next"] == [1, 0]
        assert len(list(stream)) == 7  # while `first` is alive
        assert next(first, None) is None


def test_an_iterator_that_is_never_used_takes_no_epoch(dataset, settings):
    with NodeLoader(dataset, **settings) as stream:
        iter(stream)
        unused = iter(stream)
        assert stream.state_dict()["next"] == [0, 0]
        assert len(list(stream)) == 7
        assert stream.state_dict()["next"] == [1, 0]
        del unused


def test_an_iterator_that_was_replaced_refuses_to_go_on(dataset, settings):
    with NodeLoader(dataset, **settings) as stream:
        first = iter(stream)
        next(first)
        second = iter(stream)
        next(second)
        with pytest.raises(LoaderBusyError, match="another epoch of this loader was started meanwhile"):
            next(first)
        assert len(list(second)) == 6
