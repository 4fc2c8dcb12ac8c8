"""torch's samplers and seeds that repeat, in PyG's loader: what is drawn, what a batch holds, and where it goes on."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import gloader
from gloader.adapters.dgl import BlockLoader
from gloader.adapters.pyg import GraphData, LinkNeighborLoader, NeighborLoader, NodeLoader
from gloader.compat.dgl import dataloading
from gloader.errors import ConfigError, SeedError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.loader import ImbalancedSampler
    from torch_geometric.nn import SAGEConv

NUM = 100
SETTINGS = {"batch_size": 16, "memory_budget": "64MB", "features": "ram"}
WEIGHTS = np.arange(NUM, dtype=float)
SAMPLERS = [
    (RandomSampler(range(NUM)), NUM),
    (RandomSampler(range(NUM), replacement=True, num_samples=30), 30),
    (RandomSampler(range(NUM), num_samples=250), 250),
    (SequentialSampler(range(NUM)), NUM),
    (SubsetRandomSampler([3, 5, 70]), 3),
    (WeightedRandomSampler(WEIGHTS, 300), 300),
    (WeightedRandomSampler(WEIGHTS, 40, replacement=False), 40),
]


def load(dataset, sampler=None, ids=None, **settings):
    ids = torch.tensor(dataset.train) if ids is None else ids
    given = {} if sampler is None else {"sampler": sampler}
    return NeighborLoader(dataset, [4, 3], ids, **(SETTINGS | given | settings))


def edges_of(data, copy):
    """What the copies of seeds, and all other nodes, draw from: global ids of the sources, by place in the batch."""
    src, dst = data.edge_index
    return sorted(data.n_id[src[dst == copy]].tolist())


def require_whole(data, ids):
    """A batch in PyG's layout, whose first rows are those of its draws."""
    assert torch.equal(data.n_id[: data.batch_size], ids[data.input_id])
    assert len(data.n_id) == len(data.x) == sum(data.num_sampled_nodes)
    assert data.edge_index.shape[1] == len(data.e_id) == sum(data.num_sampled_edges)
    others = data.n_id[data.batch_size :]
    assert not set(others.tolist()) & set(data.n_id[: data.batch_size].tolist())
    assert len(others.unique()) == len(others)


@pytest.mark.reliability("S9")
@pytest.mark.parametrize(("sampler", "count"), SAMPLERS, ids=lambda value: type(value).__name__)
def test_a_sampler_says_what_an_epoch_takes_and_a_resumed_one_takes_the_same(dataset, sampler, count):
    ids = torch.tensor(dataset.train)
    with load(dataset, sampler) as loader, load(dataset, sampler) as resumed:
        assert len(loader) == -(-count // min(16, count))
        epochs, states = [], []
        for _ in range(2):
            for data in loader:
                require_whole(data, ids)
                epochs.append((data.input_id.tolist(), data.edge_index.tolist(), data.n_id.tolist()))
                states.append(loader.state_dict())
        drawn = [position for positions, *_ in epochs[: len(loader)] for position in positions]
        assert len(drawn) == count
        if isinstance(sampler, SubsetRandomSampler):
            assert sorted(drawn) == [3, 5, 70]
        if isinstance(sampler, SequentialSampler):
            assert drawn == list(range(NUM))
        if not getattr(sampler, "replacement", False) and count <= NUM:
            assert len(set(drawn)) == count
        at = (len(loader) - 1) // 2
        resumed.load_state_dict(states[at])
        rest = [(data.input_id.tolist(), data.edge_index.tolist(), data.n_id.tolist()) for data in resumed]
        assert rest == (
            epochs[at + 1 : len(loader)] or epochs[len(loader) :]
        )  # one batch, and the next epoch's


@pytest.mark.reliability("S9")
def test_weights_are_the_chances_of_the_draws(dataset):
    rare = torch.where(torch.arange(NUM) < 90, 0, 1)
    with load(dataset, ImbalancedSampler(rare, num_samples=4000), batch_size=100) as loader:
        drawn = torch.cat([data.input_id for data in loader])
    # Half of the draws, give or take five standard deviations.
    assert abs(int((drawn >= 90).sum()) - 2000) < 5 * np.sqrt(1000)
    counts = torch.bincount(drawn, minlength=NUM)[90:]
    assert int(counts.min()) > 200 - 5 * np.sqrt(200)
    with load(dataset, WeightedRandomSampler(WEIGHTS, 300)) as loader:
        assert not any((data.input_id == 0).any() for data in loader)  # its weight is 0


@pytest.mark.reliability("S9")
def test_a_seed_that_repeats_has_a_row_for_each_draw_with_its_neighbours_and_label(dataset):
    ids = torch.tensor([1, 1, 2, 58, 58, 58, 7])
    with (
        load(dataset, ids=ids, batch_size=5) as loader,
        load(dataset, ids=ids[:0].new_tensor([1, 2, 58])) as single,
    ):
        first, second = loader
        (plain,) = single
        assert len(loader.dataset) == 7
    require_whole(first, ids)
    assert first.n_id[:5].tolist() == [1, 1, 2, 58, 58]
    assert first.y.tolist() == dataset.labels[[1, 1, 2, 58, 58]].tolist()
    assert second.n_id[:2].tolist() == [58, 7]
    for copies in ((0, 1), (2,), (3, 4)):
        expected = edges_of(plain, plain.n_id.tolist().index(int(first.n_id[copies[0]])))
        assert [edges_of(first, copy) for copy in copies] == [expected] * len(copies)
    torch.manual_seed(0)
    layers = [SAGEConv(24, 8), SAGEConv(8, 4)]
    found, expected = [
        layers[1](layers[0](data.x, data.edge_index).relu(), data.edge_index)[: data.batch_size]
        for data in (first, plain)
    ]
    torch.testing.assert_close(found, expected[[0, 0, 1, 2, 2]])


@pytest.mark.reliability("S9")
def test_a_seed_that_repeats_in_a_graph_of_several_types(typed):
    ids = torch.tensor(typed.train[:3])[[0, 0, 1, 2, 2, 2]]
    settings = SETTINGS | {"batch_size": 6}
    once = NeighborLoader(typed, [4, 3], ("paper", ids.unique(sorted=False)), **settings)
    with NeighborLoader(typed, [4, 3], ("paper", ids), **settings) as loader, once:
        (data,), (plain,) = loader, once
    store = data["paper"]
    assert store.batch_size == 6
    assert torch.equal(store.n_id[:6], ids[store.input_id])
    assert store.y.tolist() == typed.labels[ids.numpy()].tolist()
    assert store.num_nodes == len(store.n_id) == sum(store.num_sampled_nodes)
    for kind in data.edge_types:
        source, _, destination = kind
        edges, single = data[kind], plain[kind]
        assert edges.edge_index.shape[1] == len(edges.e_id) == sum(edges.num_sampled_edges)
        (src, dst), (a, b) = edges.edge_index, single.edge_index
        pairs = zip(data[source].n_id[src].tolist(), data[destination].n_id[dst].tolist(), strict=True)
        expected = zip(plain[source].n_id[a].tolist(), plain[destination].n_id[b].tolist(), strict=True)
        copies = dict(zip(*np.unique(ids.numpy(), return_counts=True), strict=True))
        is_seed = destination == "paper"
        assert sorted(pairs) == sorted(
            pair for pair in expected for _ in range(int(copies.get(pair[1], 1)) if is_seed else 1)
        )


class _Own(RandomSampler):
    def __iter__(self):
        return iter([0, 1])


@pytest.mark.reliability("S9")
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sampler": _Own(range(NUM))}, "sampler=_Own: its order could not be resumed"),
        (
            {"sampler": DistributedSampler(range(NUM), 2, 0)},
            "sampler=DistributedSampler: .* takes its part of the seeds itself",
        ),
        ({"sampler": RandomSampler(range(7))}, "draws from 7 items, and there are 100 input_nodes"),
        ({"sampler": RandomSampler(range(NUM)), "shuffle": True}, "leave out shuffle=True"),
        (
            {"sampler": RandomSampler(range(NUM), generator=torch.Generator())},
            "follow from the loader's seed=",
        ),
        ({"sampler": SubsetRandomSampler([3, 3])}, "positions in the 100 input_nodes, each once"),
        ({"batch_sampler": BatchSampler(range(NUM), 2, False)}, "give its sampler as sampler="),
        (
            {"sampler": WeightedRandomSampler(WEIGHTS, 100, replacement=False)},
            "100 draws without replacement of 99",
        ),
    ],
)
def test_what_a_sampler_cannot_be_is_said(dataset, settings, text):
    with pytest.raises((ConfigError, SeedError), match=text):
        NeighborLoader(dataset, [2], torch.tensor(dataset.train), **(SETTINGS | settings))


@pytest.mark.reliability("S9")
def test_where_seeds_are_taken_once_a_sampler_is_refused_with_what_takes_it(dataset):
    sampler, ids = RandomSampler(range(NUM)), torch.tensor([1, 1])
    takes = "gloader.adapters.pyg.NeighborLoader"
    for build in (
        lambda: gloader.Loader(dataset, fanouts=[2], sampler=sampler, **SETTINGS),
        lambda: NodeLoader(dataset, fanouts=[2], sampler=sampler, **SETTINGS),
        lambda: BlockLoader(dataset, fanouts=[2], sampler=sampler, **SETTINGS),
        lambda: BlockLoader(dataset, fanouts=[2], seeds=ids.numpy(), **(SETTINGS | {"batch_size": 2})),
        lambda: dataloading.DataLoader(
            dataset, torch.arange(9), dataloading.NeighborSampler([2]), sampler=sampler
        ),
        lambda: dataloading.DataLoader(dataset, ids, dataloading.NeighborSampler([2])),
    ):
        with pytest.raises((ConfigError, SeedError), match=takes):
            build()
    with pytest.raises(ConfigError, match="an epoch takes each row of the link table once"):
        LinkNeighborLoader(GraphData(dataset), [2], sampler=sampler)


@pytest.mark.reliability("S9")
def test_ranks_share_the_draws_of_a_sampler(dataset):
    parts = []
    for rank in range(2):
        with load(
            dataset, WeightedRandomSampler(WEIGHTS, 64), batch_size=8, rank=rank, world_size=2
        ) as loader:
            parts.append([data.input_id.tolist() for data in loader])
    with load(dataset, WeightedRandomSampler(WEIGHTS, 64), batch_size=16) as loader:
        whole = [data.input_id.tolist() for data in loader]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole
