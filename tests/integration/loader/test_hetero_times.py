"""Seeds of several types that ask at times of their own: batches of a loader, wherever rows and edges live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gloader
from gloader.dataset import Dataset

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.types import HeteroReadyBatch

NUM_NODES = {"user": 400, "item": 250}
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "bought_by", "user")
NUM_EDGES = 6000
PLACES: dict[str, dict[str, Any]] = {
    "ram": {},
    "edges read": {"topology": "direct"},
    "packed": {
        "features": "ssd",
        "topology": "direct",
        "io_strategy": "packed",
        "cache": 4096,
        "superbatch": 3,
    },
    "static": {"features": "ssd", "policy": "static", "cache": 4096},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Purchases have times; what leads back from items to their buyers has none."""
    root = tmp_path_factory.mktemp("typed") / "data"
    random = np.random.default_rng(0)
    with Dataset.create_hetero(
        root, name="shop", num_nodes=NUM_NODES, relations=[BUYS, BOUGHT], num_classes=2
    ) as writer:
        for relation in (BUYS, BOUGHT):
            destinations = np.sort(random.integers(0, NUM_NODES[relation[2]], NUM_EDGES))
            edges = writer.edges(relation)
            with edges.indptr() as column:
                column.append(np.searchsorted(destinations, np.arange(NUM_NODES[relation[2]] + 1)))
            with edges.indices(NUM_EDGES, "int32") as column:
                column.append(random.integers(0, NUM_NODES[relation[0]], NUM_EDGES).astype(np.int32))
            if relation == BUYS:
                times = random.integers(0, 1000, NUM_EDGES)
                with edges.edge_time(NUM_EDGES) as column:
                    column.append(times[np.lexsort((times, destinations))])
        for number, (name, count) in enumerate(NUM_NODES.items()):
            with writer.nodes(name).features(4, "float32") as rows:
                rows.append(np.arange(count * 4, dtype=np.float32).reshape(-1, 4) + 10_000 * number)
        writer.nodes("item").labels(np.zeros(NUM_NODES["item"], np.int64))
        writer.nodes("item").splits(train=np.arange(90), valid=np.arange(90, 120), test=np.arange(120, 200))
    return root


def batches(path: Path, place: str, **settings: Any) -> list[HeteroReadyBatch]:
    random = np.random.default_rng(1)
    given: dict[str, Any] = {"time_strategy": "uniform"} | settings
    with gloader.HeteroLoader(
        Dataset.open(path),
        seeds={"item": random.integers(0, 250, 60)},
        times=random.integers(0, 1000, 60),
        fanouts=[4, 3],
        batch_size=20,
        epochs=1,
        memory_budget="100MB",
        **PLACES[place],
        **given,
    ) as loader:
        return list(loader)


def contents(batch: HeteroReadyBatch) -> tuple[Any, ...]:
    nodes = tuple(nodes.tobytes() for nodes in batch.nodes.values())
    edges = tuple(block.edge_ids.numpy().tobytes() for hop in batch.blocks for block in hop.values())
    return batch.id, nodes, edges


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_batches_are_the_same_wherever_rows_and_edges_live(path: Path, layout: str, strategy: str) -> None:
    expected = None
    for place in PLACES:
        found = batches(path, place, layout=layout, time_strategy=strategy, time_bound="<=", time_window=600)
        assert len(found) == 3
        for batch in found:
            assert len(np.unique(batch.nodes["item"])) < len(batch.nodes["item"])
            assert sum(len(block.indices) for hop in batch.blocks for block in hop.values()) > 100
            for number, (name, nodes) in enumerate(batch.nodes.items()):
                rows = nodes[:, None] * 4 + np.arange(4) + 10_000 * number
                assert np.array_equal(batch.x[name].numpy(), rows.astype(np.float32))
        expected = expected or [contents(batch) for batch in found]
        assert [contents(batch) for batch in found] == expected


def test_no_purchase_is_as_late_as_its_seed(path: Path) -> None:
    graph = Dataset.open(path).load_hetero_graph()
    times: Any = graph.relations[BUYS].times
    random = np.random.default_rng(2)
    asked = np.sort(random.integers(0, 1000, 30))
    with gloader.HeteroLoader(
        Dataset.open(path),
        seeds={"item": random.integers(0, 250, 30)},
        times=asked,
        time_strategy="uniform",
        shuffle=False,
        fanouts=[5, 5],
        batch_size=30,
        epochs=1,
    ) as loader:
        (batch,) = loader
    of_node = {"item": np.full(len(batch.nodes["item"]), -1), "user": np.full(len(batch.nodes["user"]), -1)}
    of_node["item"][:30] = asked
    num_edges = 0
    for hop in reversed(batch.blocks):
        for (source, _, destination), block in hop.items():
            ends = block.edge_index.numpy()
            if source == "user":
                assert (times.array[block.edge_ids.numpy()] < of_node[destination][ends[1]]).all()
            of_node[source][ends[0]] = of_node[destination][ends[1]]
            num_edges += ends.shape[1]
    assert num_edges > 300
