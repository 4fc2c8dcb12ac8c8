"""The degrees of a batch: of the edges that its hops may take, not of those that are predicted or of the future."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gloader
from gloader import Dataset, LinkLoader
from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.types import ReadyBatch

from .linked import NUM_NODES, LinkedGraph, write_linked

PLACES: dict[str, dict[str, Any]] = {
    "ram": {"features": "ram"},
    "packed": {"features": "ssd", "cache": 900, "io_strategy": "packed", "superbatch": 3},
    "edges read": {"features": "ram", "topology": "direct"},
    "edges swept": {"features": "ram", "topology": "sweep"},
}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> LinkedGraph:
    return write_linked(tmp_path_factory.mktemp("linked") / "graph")


def trees_of(batch: ReadyBatch) -> np.ndarray:
    """Return the seed in whose tree each node is."""
    tree = np.full(len(batch.nodes), -1)
    tree[: batch.num_seeds] = np.arange(batch.num_seeds)
    for block in reversed(batch.blocks):
        source, destination = block.edge_index.numpy()
        tree[source] = tree[destination]
    assert tree.min() >= 0
    return tree


def degrees(batch: ReadyBatch) -> np.ndarray:
    """Return the degree of each node, which every block says alike."""
    found = batch.blocks[0].src_degree.numpy()
    assert len(found) == len(batch.nodes)
    for block in batch.blocks:
        assert np.array_equal(block.src_degree.numpy(), found[: block.num_src])
    return found


@pytest.mark.reliability("M17")
@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("place", ["ram", "packed", "edges read"])
@pytest.mark.parametrize("rule", [{}, {"time_bound": "<="}, {"time_window": 300}])
def test_degrees_are_those_that_the_seed_may_know_of(
    linked: LinkedGraph, place: str, layout: str, rule: dict[str, Any]
) -> None:
    settings = {"time_strategy": "uniform", "layout": layout, **rule, **PLACES[place]}
    seeds, times = np.arange(60) % 40, np.arange(60) * 17
    with gloader.Loader(
        linked.dataset, seeds=seeds, times=times, fanouts=[4, 3], batch_size=20, shuffle=False, **settings
    ) as loader:
        for number, batch in enumerate(loader):
            asked = times[20 * number :][trees_of(batch)]
            for node, time, degree in zip(batch.nodes, asked, degrees(batch), strict=True):
                of = linked.time[linked.indptr[node] : linked.indptr[node + 1]]
                may = of <= time if rule.get("time_bound") == "<=" else of < time
                may &= of >= time - rule.get("time_window", 10**9)
                assert degree == may.sum()


@pytest.mark.reliability("M17")
def test_edges_of_the_future_change_nothing_of_a_batch_or_of_what_models_make_of_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    features = rng.standard_normal((NUM_NODES, 6)).astype(np.float32)
    edges, time = rng.integers(0, NUM_NODES, (2, 6000)), rng.integers(0, 1000, 6000)
    edge_x = rng.standard_normal((6000, 3)).astype(np.float32)
    now, streams = time < 500, []
    for name, taken in (("whole", slice(None)), ("until then", now)):
        dataset = Dataset.from_numpy(
            edge_index=edges[:, taken],
            features=features,
            labels=np.zeros(NUM_NODES, np.int64),
            train=np.arange(100),
            valid=np.arange(0),
            test=np.arange(0),
            edge_time=time[taken],
            edge_features=edge_x[taken],
            path=tmp_path / name,
        )
        torch.manual_seed(0)
        models = [
            build_model(
                ModelConfig(name=model, hidden=8),
                in_dim=6,
                out_dim=3,
                num_layers=2,
                **({"edge_dim": 3} if model == "gine" else {}),
            ).eval()
            for model in ("gcn", "gine")
        ]
        with gloader.Loader(
            dataset, times=np.full(100, 500), time_strategy="uniform", fanouts=[5, -1], batch_size=50
        ) as loader:
            streams.append(
                [
                    [batch.nodes.tolist(), degrees(batch).tolist()]
                    + [block.indices.tolist() for block in batch.blocks]
                    + [block.edge_x.tolist() for block in batch.blocks if block.edge_x is not None]
                    + [model(batch.x, batch.blocks).tolist() for model in models]
                    for batch in loader
                ]
            )
    assert streams[0] == streams[1]


@pytest.mark.reliability("M17")
@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("place", PLACES)
def test_degrees_do_not_tell_which_edges_are_predicted(linked: LinkedGraph, place: str, layout: str) -> None:
    full = np.diff(linked.indptr)
    with LinkLoader(
        linked.dataset,
        exclude="reverse",
        fanouts=[-1, 2],
        batch_size=64,
        layout=layout,
        memory_budget="200MB",
        **PLACES[place],
    ) as loader:
        for batch in loader:
            ready = batch.batch
            assert isinstance(ready, ReadyBatch)
            excluded = linked.pairs[batch.edge_ids[: batch.num_positives], 2:]
            excluded = np.unique(excluded[excluded >= 0])
            left = full - np.bincount(linked.dst[excluded], minlength=NUM_NODES)
            assert np.array_equal(degrees(ready), left[ready.nodes])
            # All of what the seeds may take is taken: a sum that is rescaled by the degree is as it is.
            assert np.array_equal(
                ready.blocks[-1].indptr.diff().numpy(), left[ready.nodes[: ready.num_seeds]]
            )
