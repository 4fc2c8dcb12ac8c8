"""The topologies of a dataset of several types share what memory there is: some are held, others read page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.offsets import offsets_of
from gloader.dataset import Dataset
from gloader.dataset.topology import PagedTopology, held_relations, open_hetero_topology, require_offsets
from gloader.errors import BudgetError, ChecksumError, GraphError
from gloader.samplers import CscGraph, make_sampler
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.testing.sampler_suite import batch_bytes
from gloader.types import BatchId

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.samplers import Topology
    from gloader.types import Relation

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
NOWHERE, HOSTS = ("paper", "held_at", "venue"), ("venue", "hosts", "paper")
NUM_NODES = {"paper": 2000, "author": 700, "venue": 0}
SIZES = {WRITES: 8 * 2001 + 4 * 20_000, CITES: 8 * 2001 + 8 * 30_000, NOWHERE: 8, HOSTS: 8 * 2001}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two relations of edges, one of them with weights, and two of none."""
    return write(tmp_path_factory.mktemp("hetero") / "data")


def write(path: Path) -> Dataset:
    rng = np.random.default_rng(5)
    return Dataset.from_numpy_hetero(
        path,
        num_nodes=NUM_NODES,
        features={"paper": rng.random((2000, 2), np.float32)},
        edges={
            WRITES: np.stack([rng.integers(0, 700, 20_000), rng.integers(0, 2000, 20_000)]),
            CITES: rng.integers(0, 2000, (2, 30_000)),
            NOWHERE: np.empty((2, 0), np.int64),
            HOSTS: np.empty((2, 0), np.int64),
        },
        edge_weight={CITES: rng.random(30_000, np.float32)},
        labels={"paper": rng.integers(0, 4, 2000)},
    )


def edges_of(topology: Topology) -> tuple[bytes, ...]:
    """Return offsets, sources and weights of a topology, whatever form it has."""
    offsets = offsets_of(topology.offsets, np.arange(topology.num_nodes + 1))
    values = [topology.sources, *([] if topology.weights is None else [topology.weights])]
    pieces = [b"".join(piece.tobytes() for piece in value.pieces()) for value in values]
    return (offsets.astype(np.int64).tobytes(), *pieces)


@pytest.mark.parametrize("max_bytes", [0, 10, 50_000, 200_000, 10**9])
@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_every_relation_has_the_same_edges_whatever_memory_there_is(
    dataset: Dataset, max_bytes: int, io: Any
) -> None:
    expected = dataset.load_hetero_graph()
    with open_hetero_topology(dataset, max_bytes=max_bytes, io=io) as graph:
        assert dict(graph.num_nodes) == NUM_NODES
        assert list(graph.relations) == list(expected.relations)
        for relation, topology in graph.relations.items():
            assert edges_of(topology) == edges_of(expected.relations[relation])
            assert topology.num_sources == NUM_NODES[relation[0]]


def test_a_relation_that_is_read_page_by_page_gives_the_same_batches(dataset: Dataset) -> None:
    seeds, batch = np.arange(0, 2000, 7), BatchId(epoch=0, index=0)
    expected = make_sampler("weighted", dataset.load_hetero_graph().relations[CITES], [5, 5], 3)
    with open_hetero_topology(dataset, max_bytes=0) as graph:
        sampler = make_sampler("weighted", graph.relations[CITES], [5, 5], 3)
        assert batch_bytes(sampler.sample(batch, seeds)) == batch_bytes(expected.sample(batch, seeds))


def test_the_smallest_relations_are_held_first(dataset: Dataset) -> None:
    assert {name: table.topology_bytes for name, table in dataset.edge_tables.items()} == SIZES
    order: list[Relation] = [NOWHERE, HOSTS, WRITES, CITES]
    total = 0
    assert held_relations(SIZES, max_bytes=7) == frozenset()
    for number, relation in enumerate(order, 1):
        total += SIZES[relation]
        assert held_relations(SIZES, max_bytes=total) == frozenset(order[:number])
        assert held_relations(SIZES, max_bytes=total - 1) == frozenset(order[: number - 1])
    with open_hetero_topology(dataset, max_bytes=total - 1) as graph:
        held = {name for name, topology in graph.relations.items() if isinstance(topology, CscGraph)}
        assert held == set(order[:3])
        assert isinstance(graph.relations[CITES], PagedTopology)


def test_what_is_left_is_dealt_out_by_bytes_and_half_of_it_keeps_pages(dataset: Dataset) -> None:
    left = SIZES[WRITES] - 1
    with open_hetero_topology(dataset, max_bytes=SIZES[HOSTS] + SIZES[NOWHERE] + left) as graph:
        kept = {
            name: topology.kept_bytes
            for name, topology in graph.relations.items()
            if isinstance(topology, PagedTopology)
        }
    assert set(kept) == {WRITES, CITES}
    for relation, num_bytes in kept.items():
        share = left * SIZES[relation] / (SIZES[WRITES] + SIZES[CITES]) / 2
        assert share - 4101 < num_bytes <= share


def test_a_homogeneous_dataset_has_one_relation(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    dataset = Dataset.from_numpy(
        tmp_path / "d",
        features=rng.random((300, 4), np.float32),
        labels=rng.integers(0, 3, 300),
        edge_index=rng.integers(0, 300, (2, 9000)),
    )
    expected = dataset.load_graph()
    for max_bytes in (0, 10**9):
        with open_hetero_topology(dataset, max_bytes=max_bytes) as graph:
            (topology,) = graph.relations.values()
            assert edges_of(topology) == edges_of(expected)


def test_damage_names_the_file_of_the_relation(tmp_path: Path) -> None:
    dataset = write(tmp_path / "d")
    file = tmp_path / "d" / "relations" / "author__writes__paper" / "indices.npy"
    with file.open("r+b") as opened:
        opened.seek(DATA_OFFSET + 4096)
        opened.write(b"\xff" * 8)
    message = r"relations/author__writes__paper/indices\.npy: page 1 at byte 8192"
    with pytest.raises(ChecksumError, match=message):
        dataset.load_hetero_graph()
    with open_hetero_topology(dataset, max_bytes=0) as graph, pytest.raises(ChecksumError, match=message):
        edges_of(graph.relations[WRITES])


def test_a_source_beyond_its_type_is_refused_though_the_destinations_are_more(tmp_path: Path) -> None:
    with Dataset.create_hetero(
        tmp_path / "d", name="d", num_nodes={"paper": 20, "author": 5}, relations=[WRITES], num_classes=1
    ) as writer:
        writer.nodes("paper").labels(np.zeros(20, np.int64))
        writer.nodes("paper").splits(train=np.arange(3), valid=np.arange(3, 5), test=np.arange(5, 6))
        with writer.edges(WRITES).indptr() as column:
            column.append(np.concatenate([np.zeros(20), [3]]).astype(np.int64))
        with writer.edges(WRITES).indices(3, "int32") as column:
            column.append(np.array([0, 5, 1], np.int32))
    dataset = Dataset.open(tmp_path / "d")
    message = (
        r"author__writes__paper/indices\.npy: indices\[1\] = 5 is not a node: it must be in 0\.\.4; its check"
    )
    with pytest.raises(GraphError, match=message):
        dataset.load_hetero_graph()
    with open_hetero_topology(dataset, max_bytes=0) as graph, pytest.raises(GraphError, match=message):
        edges_of(graph.relations[WRITES])


def test_a_budget_that_the_offsets_of_all_relations_exceed_is_refused(dataset: Dataset) -> None:
    with pytest.raises(BudgetError, match="the offsets of 6,000 nodes need"):
        require_offsets(dataset, budget_bytes=3 * 2 * 2000)
    require_offsets(dataset, budget_bytes=30_000)
