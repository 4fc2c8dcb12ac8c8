"""Labels that are columns of values, in the batches of every loader and bridge; and seeds that repeat."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler, WeightedRandomSampler

import gloader
import gloader.compat.dgl as dgl
from gloader.adapters import pyg
from gloader.core.order import DrawnSeeds, Draws
from gloader.errors import BudgetError, ConfigError, SeedError, ShapeError

N, K = 400, 3
REPEATED = np.array([5, 5, 7, 9, 7, 30, 31])


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    random = np.random.default_rng(3)
    values = random.normal(size=(N, K)).astype(np.float32)
    values[random.random((N, K)) < 0.3] = np.nan
    values[:20] = np.nan
    return values


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, labels: np.ndarray) -> gloader.Dataset:
    random = np.random.default_rng(4)
    return gloader.Dataset.from_numpy(
        tmp_path_factory.mktemp("columns") / "one",
        features=random.normal(size=(N, 5)).astype(np.float32),
        labels=labels,
        edge_index=random.integers(0, N, (2, 3000)),
    )


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory, labels: np.ndarray) -> gloader.Dataset:
    random = np.random.default_rng(4)
    pairs = np.stack([random.integers(0, 50, 900), random.integers(0, N, 900)])
    return gloader.Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("columns") / "typed",
        num_nodes={"user": 50, "item": N},
        features={"item": random.normal(size=(N, 5)).astype(np.float32)},
        edges={("user", "buys", "item"): pairs, ("item", "bought", "user"): pairs[::-1].copy()},
        labels={"item": labels},
    )


def same(found: torch.Tensor, expected: np.ndarray) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("features", ["ram", "ssd"])
def test_a_batch_has_a_row_of_labels_for_each_seed(dataset, labels, features):
    seen = []
    with gloader.Loader(dataset, fanouts=(3, 2), batch_size=32, features=features) as loader:
        for batch in loader:
            seeds = batch.nodes[: batch.num_seeds]
            same(batch.y, labels[seeds])
            seen += seeds.tolist()
    assert sorted(seen) == sorted(dataset.train.tolist())


def test_seeds_of_other_types_have_no_row(typed, labels):
    seeds = {"user": np.arange(50), "item": np.arange(10, 90)}
    with gloader.HeteroLoader(typed, fanouts=(3, 2), batch_size=32, seeds=seeds) as loader:
        for batch in loader:
            items = batch.nodes["item"][: batch.num_seeds.get("item", 0)]
            same(batch.y, labels[items])


def test_the_batches_of_pyg_have_them(dataset, typed, labels):
    for batch in pyg.NeighborLoader(dataset, [3, 2], input_nodes=torch.arange(100), batch_size=32):
        same(batch.y, labels[batch.n_id[: batch.batch_size]])
    for batch in pyg.NeighborLoader(
        typed, [3, 2], input_nodes=("item", torch.tensor(REPEATED)), batch_size=4
    ):
        store = batch["item"]
        same(store.y, labels[REPEATED[store.input_id]])
    np.testing.assert_array_equal(pyg.GraphData(dataset).y.numpy(), labels)
    np.testing.assert_array_equal(pyg.HeteroGraphData(typed)["item"].y.numpy(), labels)


def test_the_blocks_of_dgl_have_them(dataset, typed, labels):
    adapter = pytest.importorskip("gloader.adapters.dgl")
    for _, output, blocks in adapter.BlockLoader(dataset, fanouts=(3, 2), batch_size=32):
        same(blocks[-1].dstdata["label"], labels[output.numpy()])
    for _, output, blocks in adapter.BlockLoader(typed, fanouts=(3, 2), batch_size=32):
        same(blocks[-1].dstnodes["item"].data["label"], labels[output["item"].numpy()])
    back = gloader.Dataset.from_dgl(dataset.to_dgl(), Path(dataset.root).parent / "back")
    np.testing.assert_array_equal(back.labels, labels)


def test_scripts_of_dgl_have_them_without_dgl(dataset, labels):
    graph = dgl.DGLGraph(dataset)
    np.testing.assert_array_equal(graph.ndata["label"].numpy(), labels)
    sampler = dgl.dataloading.NeighborSampler([2, 3])
    for _, output, blocks in dgl.dataloading.DataLoader(graph, torch.arange(90), sampler, batch_size=32):
        same(blocks[-1].dstdata["label"], labels[output.numpy()])


def test_a_row_store_has_a_row_for_each_node(dataset, labels):
    with dataset.open_features() as rows:
        store = pyg.RowStore(rows, dataset.labels)
        same(store.get_tensor(group_name=None, attr_name="y", index=torch.tensor([3, 50])), labels[[3, 50]])
        with pytest.raises(ShapeError, match=r"labels have shape \(9, 3\) for 400 feature rows"):
            pyg.RowStore(rows, labels[:9])


def test_wide_labels_count_in_the_memory_budget(tmp_path):
    wide = np.zeros((N, 100_000), np.float32)  # 400 kB a node
    dataset = gloader.Dataset.from_numpy(
        tmp_path / "d",
        features=np.zeros((N, 2), np.float32),
        labels=wide,
        edge_index=np.zeros((2, 4), int),
        train=np.arange(N),
        valid=np.arange(0),
        test=np.arange(0),
        memory_budget="600MB",
    )
    with pytest.raises(BudgetError, match=r"166 MB for label columns"):
        gloader.Loader(dataset, fanouts=(2,), batch_size=4, memory_budget="150MB").__iter__().__next__()


# Seeds that repeat, and torch's samplers: they work, or one sentence names the loader that takes them.

DRAWN = DrawnSeeds(nodes=np.arange(40), draws=Draws(num_draws=64, weights=None, replace=True))
TAKES = r"gloader\.adapters\.pyg\.NeighborLoader takes"


def test_the_pyg_loaders_have_a_row_for_each_draw(dataset, labels):
    sampler = WeightedRandomSampler(torch.arange(40.0), 64)
    for loader in (
        pyg.NeighborLoader(dataset, [2], input_nodes=torch.arange(40), batch_size=16, sampler=sampler),
        pyg.NodeLoader(dataset, fanouts=(2,), batch_size=16, seeds=DRAWN),
    ):
        batches = list(loader)
        assert [batch.batch_size for batch in batches] == [16] * 4
        for batch in batches:
            same(batch.y, labels[batch.input_id.numpy()])


@pytest.mark.parametrize("make", [gloader.Loader, gloader.HeteroLoader, pyg.NodeLoader])
def test_loaders_refuse_repeated_seeds_and_torchs_samplers(
    dataset: gloader.Dataset, make: Callable[..., object]
) -> None:
    sampler = WeightedRandomSampler(torch.ones(40), 64)
    settings = {"fanouts": (2,), "batch_size": 4}
    with pytest.raises(SeedError, match=rf"seeds must not repeat; these do: \[5, 7\]\. .*{TAKES}"):
        make(dataset, seeds=REPEATED, **settings)
    with pytest.raises(
        ConfigError, match=r"For a torch sampler of seeds use gloader\.adapters\.pyg\.Neighbor"
    ):
        make(dataset, sampler=sampler, **settings)
    for given in (sampler, SequentialSampler(range(40)), BatchSampler(sampler, 4, drop_last=False)):
        with pytest.raises(SeedError, match=rf"seeds is a {type(given).__name__}; pass the ids.*{TAKES}"):
            make(dataset, seeds=given, **settings)


def test_the_dgl_loaders_refuse_them(dataset):
    sampler, hops = WeightedRandomSampler(torch.ones(40), 64), dgl.dataloading.NeighborSampler([2])
    ids = torch.arange(40)
    for name, given in (("sampler", sampler), ("batch_sampler", BatchSampler(sampler, 4, drop_last=False))):
        with pytest.raises(ConfigError, match=rf"{name}= is an argument of torch's loader: .*{TAKES}"):
            dgl.dataloading.DataLoader(dataset, ids, hops, batch_size=4, **{name: given})
    with pytest.raises(SeedError, match=TAKES):
        dgl.dataloading.DataLoader(dataset, torch.tensor(REPEATED), hops, batch_size=4)
    adapter = pytest.importorskip("gloader.adapters.dgl")
    with pytest.raises(SeedError, match=TAKES):
        adapter.BlockLoader(dataset, fanouts=(2,), batch_size=4, seeds=REPEATED)
    with pytest.raises(
        ConfigError, match=r"blocks have each output node once; gloader\.adapters\.pyg\.NodeLoader"
    ):
        adapter.BlockLoader(dataset, fanouts=(2,), batch_size=4, seeds=DRAWN)
    with gloader.Loader(dataset, fanouts=(2,), batch_size=4, seeds=DRAWN) as native:
        with pytest.raises(ConfigError, match="seeds may repeat, and DGL's blocks"):
            adapter.BlockLoader(native)
        assert len(list(native)) == 16  # it stays open
